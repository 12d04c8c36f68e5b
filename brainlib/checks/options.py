"""The run options of the checks."""

from __future__ import annotations

import dataclasses

from brainlib.common.logs import logger
from brainlib.common.option_fields import OptionGroup, option

__all__ = ["ALL", "CheckOptions"]

ALL = "all"


@dataclasses.dataclass(frozen=True)
class CheckOptions(OptionGroup):
    """What is looked at before a run is trusted; see docs/profiling.md.

    >>> CheckOptions().check_batches
    2
    """

    check_shape: list[str] | None = option(
        None,
        "Show the shapes and types of what goes into modules and comes out, for the first updates: names of modules, "
        "or all; null: off.",
        ours=True,
    )
    check_content: list[str] | None = option(
        None,
        "The same with ranges, shares of zeros, NaN and infinities, of gradients too; names what is dead or explodes.",
        ours=True,
    )
    check_batches: int = option(
        2, "With check_shape or check_content: how many updates are looked at.", ours=True, minimum=1
    )
    overfit_batches: int | None = option(
        None,
        "Train on the first so many batches over and over, in the same order, and validate on them: a model that can "
        "learn brings their loss to 0. null: off.",
        ours=True,
        minimum=1,
    )
    sanity_valid_batches: int = option(
        0,
        "Validate on so many batches before the first epoch of a run, to meet an error there at once; nothing of it "
        "counts, and on_stage_end is not called. 0: off.",
        ours=True,
        minimum=0,
    )
    detect_anomaly: bool = option(
        False, "End at the first NaN or infinity, and name the module and the samples; slow.", ours=True
    )

    def settle(self, explicit: frozenset[str]) -> CheckOptions:
        """Tell of what has no effect."""
        if "check_batches" in explicit and self.check_shape is None and self.check_content is None:
            logger.warning("check_batches has no effect without check_shape or check_content")
        return self
