"""The check-up: four short runs, what their traces say, and the report.

1. *First* and *second* run from the same start, in processes of their own. The second saves a checkpoint and copies its
   folder at two places: when epoch 1 is closed, and inside epoch 2.
2. From each copy a run is resumed, in a process of its own again, and compared with the second run from there on.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from brainlib.checkup.comparison import (
    Difference,
    first_difference,
    likely,
    made_anew,
    noise_in_objects,
    noise_in_walks,
    suspects_of,
)
from brainlib.checkup.report import CheckupError, Finding, Report
from brainlib.checkup.runs import Run, fork, wait_for
from brainlib.checkup.session import Plan
from brainlib.checkup.telling import (
    RESUME,
    SAME_AGAIN,
    SPLIT,
    failed_resume,
    not_restored,
    not_resumed,
    not_split,
    not_the_same,
)
from brainlib.checkup.trace import START, Place, Trace
from brainlib.common.counted import counted

__all__ = ["Start", "examine"]

Start = Callable[
    [str, Plan], None
]  # becomes the run of this name with this plan; called in a process of its own


class _Home:
    """The temporary folder of a check-up, and the runs in it."""

    def __init__(self, folder: Path, start: Start, timeout: float, at_once: int, plan: Plan) -> None:
        self._folder, self._start, self._timeout, self._at_once, self._plan = (
            folder,
            start,
            timeout,
            at_once,
            plan,
        )

    def plan(
        self, name: str, folder: Path | None = None, copies: str = "", accumulation: bool = False
    ) -> Plan:
        folder = folder or self._folder / name
        folder.mkdir(exist_ok=True)
        trace = str(self._folder / f"{name}.trace")
        return Plan(
            str(folder), trace, self._plan.num_batches, copies, accumulation, self._plan.quiet_loggers
        )

    def run(self, plans: dict[str, Plan]) -> dict[str, Trace]:
        """Make these runs, as many at once as fit, and read their traces."""
        names, done = list(plans), []
        while names:
            now, names = names[: self._at_once], names[self._at_once :]
            runs: list[Run] = []
            try:
                for name in now:
                    plan = plans[name]
                    start = lambda name=name, plan=plan: self._start(name, plan)  # noqa: E731
                    runs.append(fork(name, start, self._folder / f"{name}.output"))
            finally:
                wait_for(runs, self._timeout if len(runs) == len(now) else 0)
            done += runs
        traces = {}
        for run in done:
            trace = traces[run.name] = Trace.read(plans[run.name].trace)
            if not trace.ended and trace.error is None:
                raise CheckupError(self._why(run, trace))
        return traces

    def _why(self, run: Run, trace: Trace) -> str:
        if run.timed_out:
            return (
                f"the run took longer than {self._timeout:g} s, and was at {self._reached(trace)}: give more time "
                "(timeout) or fewer batches (num_batches)"
            )
        if run.status == 0 and not trace.steps:
            return "the script ended, and there was no fit in it that trains"
        how = f"signal {-run.status}" if run.status is not None and run.status < 0 else f"status {run.status}"
        return f"the run ended with {how} at {self._reached(trace)}. The last it printed:\n{run.last_lines()}"

    @staticmethod
    def _reached(trace: Trace) -> str:
        if not trace.steps:
            return "no batch yet"
        place = trace.steps[-1][0]
        return f"batch {place.batch} of epoch {place.epoch + 1}"


def examine(
    start: Start,
    *,
    num_batches: int | None,
    timeout: float,
    at_once: int,
    quiet_loggers: bool,
    accumulation: bool,
) -> Report:
    """Make the runs and the report.

    Args:
        start: becomes a run; see `Start`.
        num_batches: of an epoch; None: see `Plan`.
        timeout: seconds for one run.
        at_once: how many runs at once.
        quiet_loggers: see `Plan`.
        accumulation: whether batches are compared with their parts.

    Raises:
        CheckupError: a run of the script fails, never trains, or takes too long.
    """
    began, report = time.monotonic(), Report()
    with tempfile.TemporaryDirectory(prefix="brainlib-doctor-") as folder:
        home = _Home(
            Path(folder), start, timeout, at_once, Plan("", "", num_batches or 0, quiet_loggers=quiet_loggers)
        )
        copies = Path(folder) / "copies"
        copies.mkdir()
        traces = home.run(
            {
                "first": home.plan("first", accumulation=accumulation),
                "second": home.plan("second", copies=str(copies)),
            }
        )
        first, second = traces["first"], traces["second"]
        for trace in (first, second):
            if trace.error is not None:
                raise CheckupError(f"the run itself fails:\n{trace.error['traceback'].rstrip()}")
        if not first.steps or not second.steps:
            raise CheckupError("the fit of the script trained no batch")
        difference = first_difference(first, second)
        _same_again(report, first, second, difference)
        if difference is None or difference.place == START:  # starts that are not seeded can each be resumed
            alike = first if difference is None else None
            plans = {
                f"resumed {place}": home.plan(f"resumed-{n}", Path(copy))
                for n, (place, copy) in enumerate(sorted(second.saved.items()))
            }
            resumed = home.run(plans) if plans else {}
            for place in sorted(second.saved):
                _resumed(report, place, alike, second, resumed[f"resumed {place}"])
        if accumulation:
            _split(report, first)
        if first.wrote:
            report.notes.append(f"the script also wrote to {', '.join(first.wrote)}")
    report.seconds = time.monotonic() - began
    return report


def _same_again(report: Report, first: Trace, second: Trace, difference: Difference | None) -> None:
    if difference is None:
        epochs = first.steps[-1][0].epoch + 1
        told = f"equal bits in {counted(len(first.steps), 'batch', 'batches')} of {counted(epochs, 'epoch')}"
        report.checks.append((SAME_AGAIN, told))
        return
    suspects = suspects_of(first, second, START, data_first=difference.kind == "batch")
    finding = not_the_same(difference, first, likely(suspects))
    report.findings.append(finding)
    report.checks.append((SAME_AGAIN, f"differs: {finding.where}"))
    if difference.place != START:
        report.checks.append(
            (RESUME, "not looked at: a run that is not the same twice cannot be the same after a cut")
        )


def _resumed(report: Report, place: Place, alike: Trace | None, second: Trace, resumed: Trace) -> None:
    """Compare a resumed run with the one that was cut. `alike`: a run that is the same as that one, if there is one;
    what differs between the two is no trace of the cut.
    """
    if resumed.error is not None:
        _add(report, failed_resume(place, resumed.error["error"]))
        report.checks.append((RESUME, f"{place}: fails"))
        return
    objects = frozenset() if alike is None else noise_in_objects(alike, second)
    paths = frozenset() if alike is None else noise_in_walks(alike, second, place)
    anew, aside = made_anew(second, resumed, place, objects)
    paths |= aside
    difference = first_difference(second, resumed, place, objects, anew)
    in_data = difference is not None and difference.kind == "batch"
    suspects = suspects_of(second, resumed, place, paths, data_first=in_data)
    if difference is not None:
        finding = not_resumed(place, difference, second, likely(suspects))
        _add(report, finding)
        report.checks.append((RESUME, f"{place}: differs at {finding.where.partition(', resumed')[0]}"))
        return
    lost = [each for each in suspects if each.kind in ("parameter", "object")]
    for each in lost:
        _add(report, not_restored(place, second, each))
    report.checks.append(
        (RESUME, f"{place}: equal bits to the end" + (f", without {lost[0].name}" if lost else ""))
    )
    others = [each.name for each in suspects if each not in lost]
    if others:
        _note(report, others)


def _add(report: Report, finding: Finding) -> None:
    """One fault shows at both cuts: it is told once."""
    same = (finding.suspects[:1], "" if finding.suspects else finding.cause)
    if same not in [(each.suspects[:1], "" if each.suspects else each.cause) for each in report.findings]:
        report.findings.append(finding)


_NOTE = "changed by training, in no checkpoint, and without an influence on what was seen here: "


def _note(report: Report, names: list[str]) -> None:
    known = report.notes[0].removeprefix(_NOTE).split(", ") if report.notes else []  # those of the other cut
    report.notes = [_NOTE + ", ".join([*known, *(name for name in names if name not in known)])]


def _split(report: Report, first: Trace) -> None:
    result = first.accumulation
    if result is None:
        return
    if result["result"] == "not compared":
        report.checks.append((SPLIT, f"not compared: {result['why']}"))
        return
    own = (
        " (compute_objectives; what your own fit_batch divides by is not seen)"
        if first.start["own_fit_batch"]
        else ""
    )
    if result["result"] == "same":
        report.checks.append(
            (SPLIT, f"a batch and its two parts give the same gradient, to {result['difference']:.0e}{own}")
        )
        return
    report.findings.append(not_split(result))
    report.checks.append((SPLIT, f"the gradient of a batch and of its two parts differ{own}"))
