"""Which attempt of a run is logging, where in the run it stands, and what a later attempt supersedes.

A run that is killed and started again repeats what came after the checkpoint from which it goes on, and logs it again.
Nothing is taken out of a log; each line says where in the run it belongs, and a reader leaves out what was repeated:

- `Attempt` is one life of a run: from the start of a script until it ends or is killed.
- `Whereabouts` is what a logger writes beside its numbers. The Brain gives it; a logger asks `whereabouts`, so that one
  which a hook calls by itself knows as much as one that was given to the Brain.
- `surviving` tells which lines stand.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol

from brainlib.common.files import DISK
from brainlib.common.logs import logger

__all__ = [
    "At",
    "Attempt",
    "Moment",
    "Whereabouts",
    "hear",
    "label_of",
    "logging_for",
    "surviving",
    "told_of",
    "whereabouts",
]


class Moment(IntEnum):
    """Where between two resume points something is done."""

    BATCH = (
        0  # in the batch after which the point stands, or in the last hook of the epoch that is closed there
    )
    DUE = 1  # what is due then: extensions, a validation inside the epoch
    BEYOND = 2  # before the first batch of an epoch, or after its last


# A resume point (fit, epochs closed in it, batches trained on in the open one) and the moment beside it. What a script
# does before fit f, outside of fits, is at (f, -1, 0, 0). The order of the tuples is that of the run. An attempt goes
# on behind the moment DUE of its resume point; where it was stopped in what was due, behind BATCH.
At = tuple[int, int, int, int]

_Place = tuple[float, ...]
_Life = tuple[str, int]  # name of a run, number of the attempt
_SCRATCH: _Place = (-1,)  # before every place
_UNKNOWN: _Place = (math.inf,)  # after every place


@dataclass(eq=False)
class Attempt:
    """One life of a run. A fit that an error or Ctrl-C has interrupted, and that is called again, begins another.

    Args:
        folder: of the run's checkpoints, by which an attempt knows the ones before it; None without a Checkpointer.
        label: what the run is called where there is no folder.
        known: whether it is known from where it goes on; not before the first fit has begun.
        origin: what lies before it and there was done by earlier attempts; None: from scratch.
        said: the same for people.
        logs: files into which something was logged from inside the run.
        unsynced: those with lines that a power cut could take.
        numbers: which attempt it is in each log.
        announced: logs for people that tell of it.

    Example:
        >>> Attempt(Path("results/save")).name_in(Path("results"))
        'save'
    """

    folder: Path | None = None
    label: str = ""
    known: bool = False
    origin: At | None = None
    said: str = ""
    logs: set[Path] = field(default_factory=set)
    unsynced: set[Path] = field(default_factory=set)
    numbers: dict[Path, int] = field(default_factory=dict)
    announced: set[Path] = field(default_factory=set)

    def name_in(self, folder: Path) -> str:
        """What tells this run from others that log into a file in `folder`; it stays the same when both are moved."""
        return self.label if self.folder is None else os.path.relpath(self.folder, folder)

    def begin(self, origin: At | None, said: str) -> None:
        """Its first fit begins: now it is known from where."""
        self.known, self.origin, self.said = True, origin, said

    def goes_on(self, origin: At, said: str) -> Attempt:
        """The next attempt of the same run in the same process."""
        return Attempt(self.folder, self.label, True, origin, said, self.logs, self.unsynced)

    def repeats(self, at: At) -> bool:
        """Whether what is done there had been done before the checkpoint was made."""
        return self.known and self.origin is not None and at <= self.origin

    def sync(self) -> None:
        """Bring the logs to the disk. Called before a checkpoint is made: what was logged before it is not repeated."""
        while self.unsynced:
            path = self.unsynced.pop()
            try:
                descriptor = DISK.open_end(path)
                try:
                    DISK.fsync(descriptor)
                finally:
                    DISK.close(descriptor)
                DISK.fsync_dir(path.parent)
            except OSError as error:  # a log must not keep the run from being saved
                logger.warning("%s may lose its last lines in a power cut: %s", path, error)


class Run(Protocol):
    """What can say where it stands."""

    @property
    def attempt(self) -> Attempt:
        """The one that is running."""

    def whereabouts(self) -> Whereabouts:
        """Where it stands now."""

    def hear(self, place: str, meta: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]) -> None:
        """Something was logged inside of it."""


@dataclass(frozen=True)
class Whereabouts:
    """Where in which attempt something is logged.

    >>> Whereabouts(Attempt(label="run"), at=(0, 2, 5, 0), optimizer_step=25).whereabouts().at
    (0, 2, 5, 0)
    """

    attempt: Attempt
    at: At
    optimizer_step: int  # updates of the whole run so far
    ledger: Mapping[str, Any] | None = None  # of the epoch, where one is about to close

    def whereabouts(self) -> Whereabouts:
        """These: of a run that stands still."""
        return self

    def hear(self, place: str, meta: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]) -> None:
        """It does not listen."""


# The run inside whose methods this is; and those of all threads, because one that a hook starts inherits no context.
_run: ContextVar[Run | None] = ContextVar("brainlib_run", default=None)
_running: list[Run] = []
_latest: list[Whereabouts] = []  # of the one whose method ended last; at most one
_labels: Counter[str] = Counter()


def label_of(name: str) -> str:
    """A name for a run without a folder: that of its class, with a number for the second of this process and so on.

    >>> label_of("Doctest"), label_of("Doctest")
    ('Doctest', 'Doctest-2')
    """
    _labels[name] += 1
    return name if _labels[name] == 1 else f"{name}-{_labels[name]}"


@contextmanager
def logging_for(run: Run) -> Iterator[None]:
    """Inside, what is logged belongs to this run.

    What a hook of one Brain does with another one belongs to the first: it is done again with that hook.
    """
    if _run.get() is not None:
        yield
        return
    token = _run.set(run)
    _running.append(run)
    try:
        yield
    finally:
        _run.reset(token)
        _running.remove(run)
        _latest[:] = [run.whereabouts()]


def whereabouts(log: Path, is_its: Callable[[Attempt], bool] = lambda attempt: False) -> Whereabouts | None:
    """Where in a run something is logged now; None where it belongs to none.

    Args:
        log: the file. What a script logs outside of all methods of a Brain belongs to the run that was there last,
            where that one has logged into the same file.
        is_its: whether an earlier attempt of the same run has logged into it.

    >>> log = Path("metrics.jsonl")
    >>> with logging_for(Whereabouts(Attempt(label="run"), at=(0, 2, 5, 0), optimizer_step=25)):
    ...     whereabouts(log).at
    (0, 2, 5, 0)
    >>> whereabouts(log) is not None, whereabouts(Path("elsewhere.jsonl")) is not None
    (True, False)
    """
    log = log.absolute()
    run = _run.get() or (_running[0] if len(_running) == 1 else None)
    if run is not None:
        here = run.whereabouts()
    elif _latest and not _running and (log in _latest[0].attempt.logs or is_its(_latest[0].attempt)):
        here = _latest[0]
    else:
        return None
    here.attempt.logs.add(log)
    here.attempt.unsynced.add(log)
    return here


def hear(place: str, meta: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Tell the run in which something was logged what it was; outside of all runs nobody listens.

    Args:
        place: where people find it.
        meta: what the numbers belong to.
        groups: the numbers, by "train", "valid" and "test".

    >>> hear("metrics.jsonl", {"epoch": 1}, {"train": {"loss": 0.5}})
    """
    run = _run.get() or (_running[0] if len(_running) == 1 else None)
    if run is not None:
        run.hear(place, meta, groups)


def surviving(runs: Sequence[Any]) -> list[bool]:
    """Which lines of a log stand.

    Args:
        runs: what stands under "run" in each line, in the order of the file: ``name`` of the run, the number of the
            ``attempt``, ``at`` (see `At`) and, once it is known, ``from``, where it goes on. A line that holds None or
            something else there stands in any case.

    Superseded is what comes after the point that a later attempt went on from, and what an attempt repeats of which the
    earlier line stands.

    >>> first = [{"name": "save", "attempt": 1, "from": None, "at": [0, 0, step, 0]} for step in (1, 2, 3)]
    >>> second = [{"name": "save", "attempt": 2, "from": [0, 0, 1, 1], "at": [0, 0, step, 0]} for step in (2, 3)]
    >>> surviving(first + second)
    [True, False, False, True, True]
    """
    lines = [_line(run) for run in runs]
    begins: dict[_Life, _Place] = {}
    for life, _, begin in filter(None, lines):
        begins[life] = min(begin, begins.get(life, _UNKNOWN))
    trained = {life for life, begin in begins.items() if begin != _UNKNOWN}
    ends = _close(begins)

    # Of those lives that trained, the first with a line at a place that stands.
    first: dict[tuple[str, _Place], _Life] = {}
    stands = []
    for line in lines:
        kept = True
        if line is not None:
            life, at, _ = line
            begin, here = begins[life], (life[0], at)
            repeated = at <= begin != _UNKNOWN and first.get(here, life) != life
            kept = at <= ends[life] and not repeated
            if kept and life in trained:
                first.setdefault(here, life)
        stands.append(kept)
    return stands


def told_of(run: Any) -> dict[str, Any] | None:
    """What stands under "run" in a line of a log, if it is what a run of ours has told of itself; else None.

    >>> told_of({"name": "save", "attempt": 1, "at": [0, 0, 1, 0]})["attempt"]
    1
    >>> told_of({"name": "night run", "id": 7}), told_of("garbled")
    (None, None)
    """
    if not isinstance(run, dict):
        return None
    name, attempt, begin = run.get("name"), run.get("attempt"), run.get("from")
    ours = isinstance(name, str) and type(attempt) is int and _is_place(run.get("at"))
    return run if ours and (begin is None or _is_place(begin)) else None


def _is_place(place: Any) -> bool:
    return (
        isinstance(place, (list, tuple)) and len(place) == 4 and all(isinstance(each, int) for each in place)
    )


def _line(run: Any) -> tuple[_Life, _Place, _Place] | None:
    """Whose line it is, where it stands, and where that life begins."""
    told = told_of(run)
    if told is None:
        return None
    begin = _UNKNOWN if "from" not in told else _SCRATCH if told["from"] is None else tuple(told["from"])
    return (told["name"], told["attempt"]), tuple(told["at"]), begin


def _close(begins: dict[_Life, _Place]) -> dict[_Life, _Place]:
    """For each life of a run the place after which a later one has taken over.

    One that ended before its first fit would have gone on from where the next one did: that is put into `begins`.
    """
    ends: dict[_Life, _Place] = {}
    # By name: where the next life begins, and the earliest beginning of all later ones.
    later: dict[str, tuple[_Place, _Place]] = {}
    for life in sorted(begins, reverse=True):
        following, ends[life] = later.get(life[0], (_UNKNOWN, _UNKNOWN))
        if begins[life] == _UNKNOWN:
            begins[life] = following
        later[life[0]] = (begins[life], min(begins[life], ends[life]))
    return ends
