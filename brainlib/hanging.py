"""What hangs on the loop of a Brain by its options: a profiler, a benchmark, the checks; or nothing at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from brainlib.checks.anomaly import AnomalyGuard
from brainlib.checks.inspector import Inspector
from brainlib.checks.options import ALL
from brainlib.common.logs import logger
from brainlib.options import RunOptions
from brainlib.profiling.benchmark import Benchmark
from brainlib.profiling.flops import FlopCounter
from brainlib.profiling.instruments import Instruments
from brainlib.profiling.profiler import Profiler
from brainlib.profiling.settings import ProfilerOptions

__all__ = ["instruments"]


def instruments(profiler: Any, options: RunOptions) -> Instruments | None:
    """What hangs on a Brain that was given `profiler` and these options; None where that is nothing.

    Raises:
        ValueError: for what is no profiler, and two of ours.

    >>> instruments(None, RunOptions()) is None
    True
    """
    if isinstance(profiler, (str, Mapping, ProfilerOptions)):
        profiler = Profiler(profiler)
    missing = [name for name in ("start", "step", "stop") if not callable(getattr(profiler, name, None))]
    if profiler is not None and missing:
        raise ValueError(
            f"profiler is {profiler!r}, which has no {' and no '.join(missing)}; give a brainlib.Profiler, the text of "
            "its options, or a torch.profiler.profile"
        )
    wanted = options.profile_options.profiler()
    if wanted is not None and isinstance(profiler, Profiler):
        raise ValueError(
            "the Brain is given a profiler, and the run options ask for one (profiler_options or profile_training): "
            "torch can run one at a time, give one of them"
        )
    given = [
        *([] if profiler is None else [profiler]),
        *([] if wanted is None else [Profiler(wanted)]),
        *([] if options.benchmark_max_step is None else [Benchmark(options.benchmark_max_step)]),
        *_checks(options),
        *_counter(options),
    ]
    return Instruments(given) if given else None


def _counter(options: RunOptions) -> Iterator[Any]:
    if options.count_flops and options.compile:
        logger.warning(
            "count_flops has no effect with compile: torch's counter sees operators, and compiled modules call others. "
            "Count in a short run without compile; there are as many operations in it."
        )
    elif options.count_flops:
        yield FlopCounter(options.peak_flops)


def _checks(options: RunOptions) -> Iterator[Any]:
    for names, content in ((options.check_content, True), (options.check_shape, False)):
        if names is not None:
            chosen = None if names == [ALL] else names
            yield Inspector(modules=chosen, content=content, num_updates=options.check_batches)
            break  # the contents tell the shapes, too
    if options.detect_anomaly:
        yield AnomalyGuard()
