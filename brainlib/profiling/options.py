"""The run options of profiling and of benchmark runs."""

from __future__ import annotations

import dataclasses
import math

from brainlib.common.logs import logger
from brainlib.common.option_fields import OptionGroup, Settings, option
from brainlib.profiling.settings import ProfilerOptions

__all__ = ["ProfileOptions"]


@dataclasses.dataclass(frozen=True)
class ProfileOptions(OptionGroup):
    """Which updates of a fit are profiled; see docs/profiling.md.

    >>> ProfileOptions(profile_training=True).profiler().batch_range
    (5, 10)
    """

    profiler_options: Settings | None = option(
        None,
        "Profile some updates, as 'batch_range=[10, 20]; state=All'; an empty text: all defaults; null: off. "
        "docs/profiling.md lists the keys.",
        ours=True,
    )
    profile_training: bool = option(
        False, "Profile updates profile_warmup to profile_warmup + profile_steps − 1 of a fit, then end it."
    )
    profile_warmup: int = option(
        5, "With profile_training: how many updates pass before profiling starts.", minimum=0
    )
    profile_steps: int = option(5, "With profile_training: how many updates are profiled.", minimum=1)

    benchmark_max_step: int | None = option(
        None,
        "A benchmark run: exactly so many updates, then one line of JSON on standard output. It begins afresh, with "
        "checkpoints in a temporary place. null: none.",
        ours=True,
        minimum=1,
    )
    benchmark_batch_size: int | None = option(
        None, "In a benchmark run: the batch size of training; null: as it is.", ours=True, minimum=1
    )

    count_flops: bool = option(
        False,
        "Count the floating point operations of one update with torch's own counter; the ledger of the fit then tells "
        "how many there are a second and, where the peak is known, the MFU.",
        ours=True,
    )
    peak_flops: float | None = option(
        None,
        "With count_flops: what one device can do at most, in operations a second; null: as known for the device.",
        ours=True,
        minimum=0,
    )

    def settle(self, explicit: frozenset[str]) -> ProfileOptions:
        """Read the profiler options, so that what is wrong with them is said now; tell of what has no effect."""
        object.__setattr__(self, "_read", ProfilerOptions.read(self.profiler_options))
        if self.profiler_options is not None and self.profile_training:
            logger.warning("profile_training has no effect, because profiler_options says what is profiled")
        useless = [name for name in ("profile_warmup", "profile_steps") if name in explicit]
        if useless and (not self.profile_training or self.profiler_options is not None):
            logger.warning("%s has no effect without profile_training", " and ".join(useless))
        if self.benchmark_batch_size is not None and self.benchmark_max_step is None:
            logger.warning("benchmark_batch_size has no effect without benchmark_max_step")
        if self.peak_flops is not None and not self.count_flops:
            logger.warning("peak_flops has no effect without count_flops")
        if self.peak_flops is not None and not 1 <= self.peak_flops < math.inf:
            raise ValueError(
                f"The option 'peak_flops' is {self.peak_flops:g}; it is more than 0, or null: how many operations one "
                "device can do in a second, such as 121e12."
            )
        return self

    def profiler(self) -> ProfilerOptions | None:
        """What is to be profiled; None: nothing."""
        if self.profiler_options is not None or not self.profile_training:
            read: ProfilerOptions | None = vars(self).get("_read")  # what is odd in it has been told
            return read or ProfilerOptions.read(self.profiler_options)
        return ProfilerOptions(batch_range=(self.profile_warmup, self.profile_warmup + self.profile_steps))
