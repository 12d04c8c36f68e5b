"""The profiler: records ranges of updates of a fit, or of any loop, and writes what it found.

`Profiler` is what a Brain is given (``profiler=``, or by the option ``profiler_options``), what a ``with`` statement in
a notebook holds, and what `add_profiler_step` keeps for a loop that is not ours. It changes nothing: it draws no random
number, switches no mode, and what it puts on a Brain while it records is taken off again.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from brainlib.common.counted import counted
from brainlib.common.files import make_folder, write_atomic
from brainlib.common.logs import logger
from brainlib.distributed.world import World
from brainlib.profiling.instruments import Instruments
from brainlib.profiling.phases import ModuleTimes, Phases, Wrappers
from brainlib.profiling.report import (
    Report,
    backward_seconds,
    gpu_in_use,
    module_rows,
    operator_rows,
    peak_memory,
)
from brainlib.profiling.settings import ProfilerOptions
from brainlib.stopping.endings import Interrupted
from brainlib.update.loss_weight import num_items

if TYPE_CHECKING:
    from brainlib.brain import Brain

__all__ = ["Profiler", "add_profiler_step"]


class Profiler:
    """Records the updates a to b − 1, and says where their time went.

    Give one to a Brain, or use it in a ``with`` statement round a fit (``brain=``) or a loop of your own, with one call
    of `step` after each update. It records one fit: the first that reaches the end of its ranges.

    Args:
        options: see `ProfilerOptions`: a text, a mapping, or an instance; "" is all defaults.
        brain: whose fits are recorded inside a ``with`` statement; None: a loop of your own.

    Attributes:
        reports: one `Report` a recorded range; shown by ``print(profiler)`` and at the end of a cell.
        finished: whether all ranges are recorded.

    Raises:
        ValueError: for options that do not exist, values that they do not take, or a GPU that is not there.

    Example:
        >>> import tempfile
        >>> model = torch.nn.Linear(4, 4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Profiler(f"batch_range=[1, 3]; state=CPU; profile_path={folder}/tiny") as profiler:
        ...         for update in range(5):
        ...             model(torch.ones(2, 4)).sum().backward()
        ...             profiler.step()
        ...     report = profiler.reports[0]
        ...     report.num_updates, report.partial, report.trace.name
        (2, '', 'tiny.rank0.cycle0.json')
    """

    def __init__(
        self, options: str | Mapping[str, Any] | ProfilerOptions = "", brain: Brain | None = None
    ) -> None:
        read = ProfilerOptions.read(options)
        if read is None:
            raise ValueError("the profiler options are None, which is off; '' is all defaults")
        if read.state == "GPU" and not read.timer_only and not torch.cuda.is_available():
            raise ValueError(
                "profiler option 'state' is 'GPU', but torch sees no GPU here: write state=CPU, or state=All for what "
                "there is"
            )
        self.options = read
        self.reports: list[Report] = []
        self.finished = False
        self._given = brain  # for a with statement
        self._brain: Brain | None = None
        self._started = self._told = False
        self._running = False  # whether updates are being counted
        self._count = 0
        self._prefix: Path | None = None
        self._recording: _Recording | None = None
        self._warm: Any = None  # torch's profiler, prepared before the first update that is recorded

    # ------------------------------------------------------------------------------------------------ what is called

    def start(self) -> None:
        """A fit, or a loop, begins: from now on `step` counts, from 0."""
        self._started, self._running, self._count, self._prefix = True, False, 0, None
        self._brain = None

    def begin(self, brain: Brain | None = None) -> None:
        """The first batch is about to be asked for. Called by `step` or `stop` where nobody has."""
        if self._running or self.finished:
            return
        self._running, self._brain = True, brain
        self._prepare()

    def step(self) -> None:
        """One more update was made."""
        if not self._started and not self.finished and not self._told:
            self._told = True
            logger.warning(
                "profiler: step() was called outside of a 'with' and of a fit, where nothing is recorded; write "
                "`with bl.Profiler(...) as profiler:` round the loop"
            )
        if self.finished or not self._started:
            return
        if not self._running:
            self.begin()
        self._count += 1
        recording = self._recording
        if recording is not None:
            recording.update_is_over()
            if self._count >= recording.wanted[1]:
                self._close(recording, "")
                if self._count >= self.options.end:
                    self.finished, self._running = True, False
                    return
        self._prepare()

    def stop(self, error: BaseException | None = None) -> None:
        """The fit, or the loop, is over: what there is is written. After an error nothing else is raised here."""
        if not self._started:
            return
        self._started = False
        first = self.options.batch_range[0]
        ended = f"the {'loop' if self._brain is None else 'fit'} ended after {counted(self._count, 'update')}"
        if error is not None:
            by = str(error) or "a signal" if isinstance(error, Interrupted) else type(error).__name__
            ended += f", by {by}"
        recording, warm, self._warm = self._recording, self._warm, None
        if recording is not None and error is None and not recording.num_updates:
            self._recording = None
            recording.end()  # not one update of it was made
            logger.warning("profiler: the trace of [%d, %d] is empty, and is not written", *recording.wanted)
        elif recording is not None:
            self._close(recording, ended)
        elif warm is not None:
            warm.start_trace()  # torch ends what it has prepared only by way of a trace
            warm.stop_trace()
        partial = recording is not None and (recording.num_updates or error is not None)  # and said to be so
        if not self.finished and self._count <= first and not partial:
            logger.warning(
                "profiler: nothing was recorded: %s, and batch_range=[%d, %d] begins with update %d, counted from 0",
                ended, *self.options.batch_range, first,
            )  # fmt: skip
        self._running, self._brain = False, None

    def __enter__(self) -> Profiler:
        if self.finished:
            logger.warning(
                "profiler: its ranges are recorded already, and it records no more; make another Profiler"
            )
        if self._given is not None:
            self._kept = there = self._given._profiler
            others = [] if there is None else there.profilers
            if any(isinstance(each, Profiler) and not each.finished for each in others):
                raise ValueError(
                    "the Brain has a profiler already, by its run options, its argument or another 'with': torch can "
                    "run one at a time, give one of them"
                )
            self._given._profiler = Instruments.beside(there, self)
        else:
            self.start()
            self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._given is not None:
            self._given._profiler = self._kept
        else:
            self.stop(error)

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self.reports)) or f"Profiler({self.options}): nothing recorded yet"

    # ------------------------------------------------------------------------------------------- asked by the Brain

    @property
    def exits(self) -> str:
        """Why the fit is to end now; "" for no reason."""
        wanted = self.finished and self.options.exit_on_finished
        return "the profiler, whose ranges are recorded (exit_on_finished)" if wanted else ""

    def waits(self, batches: Iterator[Any], phase: str) -> Iterator[Any]:
        """The batches; the wait for each is a phase while something is recorded."""
        while True:
            recording = self._recording
            if recording is None:
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            else:
                depth = recording.phases.enter(phase)
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                finally:
                    recording.phases.leave(depth)
                if phase == "data wait":
                    recording.count(batch)
            yield batch

    # ------------------------------------------------------------------------------------------------ what it does

    def _prepare(self) -> None:
        """Warm up one update before a range begins; begin it where it begins."""
        first, last = self.options.batch_range
        length = last - first
        if self._count + 1 == first and not self.options.timer_only:
            self._warm = _torch_profiler(self.options)
            self._warm.prepare_trace()
        if self._count >= first and self._recording is None:
            cycle = (self._count - first) // length
            begin = first + cycle * length
            prepared, self._warm = self._warm, None
            self._recording = _Recording(self.options, self._brain, cycle, (begin, begin + length), prepared)

    def _close(self, recording: _Recording, partial: str) -> None:
        self._recording = None
        report = recording.end()
        report.partial = partial
        self.reports.append(report)
        try:
            self._write(recording, report)
        except (
            OSError,
            RuntimeError,
            ValueError,  # a name that the system or torch does not take
            TypeError,
        ) as failure:  # training does not end because a profile cannot be written
            logger.error("profiler: the files of cycle %d could not be written: %s", report.cycle, failure)
        where = f"\nwritten to {report.table}" if report.table else ""
        if report.trace:
            where += f" and {report.trace} (open it in https://ui.perfetto.dev or chrome://tracing)"
        logger.info("profile of %s%s", report, where)
        if partial:
            first, last = report.wanted
            logger.warning(
                "profiler: the profile is partial: %d of the %s of [%d, %d] were recorded, because %s",
                report.num_updates, counted(last - first, "update"), first, last, partial,
            )  # fmt: skip

    def _write(self, recording: _Recording, report: Report) -> None:
        """Each file under a name of its own, whole or not at all."""
        if self._prefix is None:
            self._prefix = _free_prefix(self._wished_prefix(), report.rank)
        make_folder(self._prefix.parent)
        name = f"{self._prefix.name}.rank{report.rank}.cycle{report.cycle}"
        if recording.traced is not None:
            trace = self._prefix.with_name(f"{name}.json")
            unfinished = trace.with_name(f"{name}.json.unfinished")
            try:
                recording.traced.export_chrome_trace(str(unfinished))
                os.replace(unfinished, trace)
            finally:
                unfinished.unlink(missing_ok=True)
            report.trace = trace
        table = self._prefix.with_name(f"{name}.txt")
        write_atomic(table, report.text() + "\n")
        report.table = table

    def _wished_prefix(self) -> Path:
        if self.options.profile_path is not None:
            return Path(self.options.profile_path)
        folder = getattr(self._brain, "_experiment", None)
        return Path(folder or ".") / "profile"


def _free_prefix(wished: Path, rank: int) -> Path:
    """The prefix, or with a number behind it, so that no file of an earlier profile is in the way."""
    number, prefix = 1, wished
    while any(prefix.parent.glob(f"{_literal(prefix.name)}.rank{rank}.cycle*")):
        number += 1
        prefix = wished.with_name(f"{wished.name}-{number}")
    return prefix


def _literal(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


class _Recording:
    """One range while it is recorded."""

    def __init__(
        self,
        options: ProfilerOptions,
        brain: Brain | None,
        cycle: int,
        wanted: tuple[int, int],
        prepared: Any,
    ) -> None:
        self.options, self.wanted, self.num_updates = options, wanted, 0
        self._brain, self._cycle = brain, cycle
        self._items: float | None = 0.0
        self._wrappers, self._modules = Wrappers(), None
        self.traced: Any = None
        if not options.timer_only:
            self.traced = prepared or _torch_profiler(options)
            if prepared is None:
                self.traced.prepare_trace()
            self.traced.start_trace()
        labels = self.traced is not None and options.state != "GPU"
        self._label: Any = None
        self._labels = labels
        self.phases = Phases(labels=labels)
        self._ends: list[float] = []
        if brain is not None:
            self._wrappers.watch(brain, self.phases)
            if not _is_compiled(brain):  # hooks would compile it again
                self._modules = ModuleTimes(brain.modules, labels)
                self._modules.begin()
        self._next_label()

    def _next_label(self) -> None:
        if self._label is not None:
            self._label.__exit__(None, None, None)
            self._label = None
        number = self.wanted[0] + self.num_updates
        if self._labels and number < self.wanted[1]:
            self._label = torch.profiler.record_function(f"ProfilerStep#{number}")
            self._label.__enter__()

    def count(self, batch: Any) -> None:
        items = num_items(batch)
        self._items = None if items is None or self._items is None else self._items + items

    def update_is_over(self) -> None:
        self.num_updates += 1
        self._ends.append(self.phases.settle())
        self._next_label()

    def end(self) -> Report:
        if gpu_in_use():
            torch.cuda.synchronize()  # kernels that were launched in the range belong to it
        self.phases.leave(0)
        seconds = self.phases.settle()
        if self._label is not None:
            self._label.__exit__(None, None, None)
        self._wrappers.take_off()
        timed = {}
        if self._modules is not None:
            self._modules.end()
            timed = self._modules.rows
        events: list[Any] = []
        if self.traced is not None:
            self.traced.stop_trace()
            events = list(self.traced.events() or ())
        starts = [0.0, *self._ends]
        report = Report(
            cycle=self._cycle,
            wanted=self.wanted,
            num_updates=self.num_updates,
            rank=World.from_environment().rank if self._brain is None else self._brain._world.rank,
            seconds=seconds,
            num_items=self._items if self._brain is not None else None,
            update_seconds=[after - before for before, after in zip(starts, self._ends, strict=False)],
            phases=self._phases(events),
            modules=module_rows(timed, events),
            operators=operator_rows(events, self.options.sorted_key),
            memory=peak_memory(),
            flops=sum(getattr(event, "flops", 0) or 0 for event in events),
        )
        return report

    def _phases(self, events: list[Any]) -> dict[str, float]:
        """What is left of a fit_batch is its backward, where it is ours; of one of the user's the trace tells it."""
        phases = dict(self.phases.seconds)
        if self._brain is None:
            return {}
        rest = phases.pop("fit_batch", 0.0)
        if not self._brain._custom_fit_batch:
            backward = rest
        elif self.options.state != "GPU":
            backward = min(backward_seconds(events), rest)
        else:
            backward = 0.0
        own = {"backward": backward, "fit_batch": rest - backward}
        return {**phases, **{name: seconds for name, seconds in own.items() if seconds}}


def _is_compiled(brain: Brain) -> bool:
    return any(
        getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")
        for module in brain.modules.modules()
    )


def _torch_profiler(options: ProfilerOptions) -> Any:
    if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
        raise RuntimeError(
            "another profiler of torch is recording already, and there can be one at a time: leave its 'with' before "
            "this range begins, or switch this one off"
        )
    from torch.profiler import ProfilerActivity, profile

    activities = [] if options.state == "GPU" else [ProfilerActivity.CPU]
    if options.state != "CPU" and torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    everything = options.tracer_option == "AllOpDetail"
    return profile(
        activities=activities,
        record_shapes=options.tracer_option != "Default",
        profile_memory=everything,
        with_stack=everything,
        with_flops=everything,
        acc_events=False,
    )


_of_loops: dict[ProfilerOptions, Profiler] = {}
_read_of_loops: dict[str | ProfilerOptions, ProfilerOptions] = {}


def add_profiler_step(options: str | Mapping[str, Any] | ProfilerOptions | None) -> bool:
    """For a training loop that is not ours: call it after each update, once.

    The first call is the end of update 0, so a range can begin with update 1 at the earliest. What there is when the
    process ends before the range is over is written then.

    Args:
        options: as for `Profiler`; None: nothing is profiled. Calls with equal options belong to one loop.

    Returns:
        Whether the ranges are recorded and `exit_on_finished` asks to end the loop. Nothing ends by itself.

    Raises:
        ValueError: for options that do not exist, or a range that begins with update 0.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     options = f"batch_range=[1, 3]; state=CPU; profile_path={folder}/loop"
        ...     for update in range(100):
        ...         _ = torch.ones(2) + update
        ...         if add_profiler_step(options):
        ...             break
        ...     update, sorted(path.name for path in Path(folder).iterdir())
        (2, ['loop.rank0.cycle0.json', 'loop.rank0.cycle0.txt'])
    """
    if options is None:
        return False
    given = options if isinstance(options, (str, ProfilerOptions)) else repr(options)
    read = _read_of_loops.get(given) or ProfilerOptions.read(options)
    assert read is not None
    _read_of_loops[given] = read  # what is odd in them is told once, and not each update
    profiler = _of_loops.get(read)
    if profiler is None:
        if read.batch_range[0] == 0:
            raise ValueError(
                f"profiler option 'batch_range' is {list(read.batch_range)}, but add_profiler_step is called after an "
                "update, and update 0 is over then: begin with 1. In `with bl.Profiler(...) as profiler:` update 0 is "
                "recorded, too."
            )
        profiler = _of_loops[read] = Profiler(read)
        profiler.start()
        profiler.begin()
        atexit.register(profiler.stop)
    profiler.step()
    if profiler.finished:
        atexit.unregister(profiler.stop)
    return bool(profiler.exits)
