"""The ledger of a run: the wall time of all its fits and of all its starts, whatever ended them.

A killed process can say nothing of its end. So nothing is asked of it: each checkpoint holds the ledger as it was when
its state was taken, with the time of day. A run that goes on from there takes it over, and all that has passed since
then is *lost to restarts*: what was computed and thrown away, and the time in which no process ran. The same holds in
one process, where a resume point in memory is put back. Of a run that could say its end, by a signal, a limit or an
error, the time from there to the next start is told apart: it has *waited between starts*.

What no checkpoint can tell stands in `starts.jsonl` beside them: the starts that came to none, when the run was
stopped, and when it was finished, since the time from then on is nobody's loss.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brainlib.common.counted import counted
from brainlib.common.lines import append_line
from brainlib.common.logs import logger
from brainlib.common.notebook import shell
from brainlib.common.plain import from_json, to_json
from brainlib.profiling.ledger import LEFT_OVER, PARTS, Ledger, in_words

__all__ = ["STARTS", "RunLedger", "Starts", "age_of_process"]

STARTS = "starts.jsonl"
LOST, WAITED, OUTSIDE = "lost to restarts", "waited between starts", "outside fits"
ALL_PARTS = (*PARTS, OUTSIDE, LOST, WAITED, LEFT_OVER)
EFFECTIVE = ("compute", "data wait", "validation", "hooks")
START, ANEW, GOES_ON, STOPPED, FINISHED = "start", "start anew", "goes on", "stopped", "finished"
_WHAT = {
    START: "was started",
    ANEW: "was started anew",
    GOES_ON: "goes on",
    STOPPED: "is stopped",
    FINISHED: "is finished",
}


class RunLedger:
    """Where the wall time of a run went.

    It begins with the process, for the first Brain of a script that trains; with the Brain, for a later one and in a
    notebook.

    Args:
        clock: a function that returns seconds; tests pass their own.
        now: the time of day in seconds since 1970.
        age: how many seconds before now this run began in this process; asked once.

    >>> run, fit = RunLedger(age=lambda: 0.0), Ledger()
    >>> run.fit_begins(fit)
    >>> run.running(None)
    >>> fit.close()
    >>> run.fit_ends()
    >>> sum(run.seconds().values()) >= fit.total
    True
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        now: Callable[[], float] = time.time,
        age: Callable[[], float] | None = None,
    ) -> None:
        self._clock, self._now, self._age = clock, now, age or _age_of_run
        self._since = clock()  # up to here the time of this process is shared out, but for the open fit
        self._began = now()
        self._before = dict.fromkeys(ALL_PARTS, 0.0)  # taken over
        self._here = dict.fromkeys(ALL_PARTS, 0.0)
        self._fit: Ledger | None = None
        self._starts: Starts | None = None
        self._begun = self._running = False
        self._num_fits = 0  # of this process
        self._taken_at: float | None = None  # when the state that was loaded last had been taken
        self._told: dict[str, float] = {}  # at the end of the epoch before, the last that was told
        self._updates_told = 0
        self.num_starts = 1

    # ---- what happens

    def fit_begins(self, fit: Ledger) -> None:
        """An outer fit begins, which has this ledger of its own."""
        part = OUTSIDE if self._begun else START
        if not self._begun:
            age = max(self._age(), self._clock() - self._since)
            self._since, self._began = self._clock() - age, self._now() - age
        self._here[part] += max(fit.began - self._since, 0.0)
        self._begun, self._fit, self._starts = True, fit, None
        self._num_fits += 1

    def running(self, starts: Starts | None) -> None:
        """The first epoch of a fit is about to be trained, with the first of this process: what has passed since the
        state that is gone on from is lost.

        Args:
            starts: where starts are noted; None where they are not.
        """
        self._starts = starts
        if starts is not None:
            starts.note(GOES_ON if self._running else START, self._now() if self._running else self._began)
        if self._running:
            return
        self._running = True
        earlier, lost, waited = _since(starts, self._taken_at, self._began)
        self._before[LOST] += lost
        self._before[WAITED] += waited
        self.num_starts += earlier

    def fit_ends(self, finished: bool = False) -> None:
        """It is over, and its ledger is closed; `finished`: there is nothing left of it to go on with."""
        fit, self._fit = self._fit, None
        if fit is None:
            return
        self._here = _plus(self._here, fit.seconds)
        self._since = fit.began + fit.total
        if self._starts is not None:
            self._starts.note(FINISHED if finished else STOPPED, self._now())

    # ---- what is asked

    def seconds(self) -> dict[str, float]:
        """The seconds of each part, over all starts; they add up to the wall time from the first one on."""
        so_far = {} if self._fit is None else self._fit.so_far()
        return _plus(_plus(self._before, self._here), so_far)

    def epoch(self, num_updates: int, num_items: float | None) -> dict[str, Any]:
        """What has passed since this was asked last, over restarts: the row of an epoch.

        Args:
            num_updates: of the run so far.
            num_items: of the epoch, where known.
        """
        now = self.seconds()
        parts = {name: now[name] - self._told.get(name, 0.0) for name in ALL_PARTS}
        updates = num_updates - self._updates_told
        self._told, self._updates_told = now, num_updates
        trained = parts["compute"] + parts["data wait"]
        speed = {"updates_per_second": _four(updates / trained)} if trained > 0 else {}
        if num_items is not None and trained > 0:
            speed["items_per_second"] = _four(num_items / trained)
        rates = {} if self._fit is None else self._fit.rates(updates, parts)
        return {
            "wall": round(sum(parts.values()), 6),
            "seconds": {name: round(each, 6) for name, each in parts.items()},
            "updates": updates,
            **speed,
            **{name: _four(each) for name, each in rates.items()},
        }

    def tell(self, num_updates: int) -> None:
        """Say it in a line, of a run that has trained; the line of its only fit in its only start says it already.

        Args:
            num_updates: of the run so far.
        """
        if not self._running or (self.num_starts == 1 and self._num_fits == 1):
            return
        seconds = self.seconds()
        total, effective = sum(seconds.values()), sum(seconds[name] for name in EFFECTIVE)
        logger.info(
            "the run took %.2f s in %s%s; %s, %.1f a second; effective training time %.2f s (%.1f %%)",
            total,
            counted(self.num_starts, "start"),
            in_words(seconds),
            counted(num_updates, "update"),
            num_updates / max(total, 1e-9),
            effective,
            100 * effective / max(total, 1e-9),
        )

    # ---- state

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        return {
            "time": self._now(),
            "seconds": self.seconds(),
            "starts": self.num_starts,
            "told": self._told,
            "updates_told": self._updates_told,
        }

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Go on from what `state` gave, in this process or an earlier one; None: from a run that kept no ledger."""
        if state is None or state["time"] == self._taken_at:  # the same one is applied once more
            return
        self._taken_at = state["time"]
        before = _plus(dict.fromkeys(ALL_PARTS, 0.0), state["seconds"])
        if self._running:  # a point of this process is put back
            before[LOST] += max(sum(self.seconds().values()) - sum(before.values()), 0.0)
            so_far = {} if self._fit is None else self._fit.so_far()
            self._here = {name: -so_far.get(name, 0.0) for name in ALL_PARTS}
        else:
            self.num_starts = state["starts"]
        self._before = before
        self._told, self._updates_told = dict(state["told"]), state["updates_told"]


def _plus(one: Mapping[str, float], two: Mapping[str, float]) -> dict[str, float]:
    return {name: one[name] + two.get(name, 0.0) for name in one}


def _four(value: float) -> float:
    """Four digits that count."""
    return float(f"{value:.4g}")


def _since(starts: Starts | None, taken_at: float | None, began: float) -> tuple[int, float, float]:
    """How many starts there were before this one, how much time was lost, and for how much of it nothing ran.

    Args:
        starts: where they are noted.
        taken_at: when the state that the run goes on from was taken; None: it goes on from none.
        began: when this start was.
    """
    notes = [] if starts is None else starts.notes()
    if taken_at is None:  # of this folder, up to where somebody wanted a new run
        anew = [place for place, note in enumerate(notes) if note.what == ANEW]
        notes = notes[anew[-1] :] if anew else notes
        if not notes:
            return 0, 0.0, 0.0
        taken_at, earlier = notes[0].time, 0
    else:
        notes, earlier = [note for note in notes if note.time >= taken_at], 1
    starting = (START, ANEW)
    num = sum(note.what in starting for note in notes)
    idle = dict.fromkeys((FINISHED, STOPPED), 0.0)
    for before, after in itertools.pairwise(notes):
        if before.what in idle and after.what in starting:
            idle[before.what] += max(after.time - before.time, 0.0)
    passed = max(began - taken_at - idle[FINISHED], 0.0)
    waited = min(idle[STOPPED], passed)
    return max(num - 1, 0) + earlier, passed - waited, waited


# ------------------------------------------------------------------------------------------------- starts.jsonl


@dataclass(frozen=True)
class Note:
    """A line.

    Attributes:
        what: "start" of a process, "start anew" where it was told to leave alone what is there, "goes on" with another
            fit, "stopped" in one, "finished" with one.
        time: seconds since 1970.
    """

    what: str
    time: float


class Starts:
    """When a run was started, and when it was finished: a line each, in the folder of its checkpoints.

    Args:
        folder: of the checkpoints.
        anew: whether this start is that of a new run, whatever is there.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     starts = Starts(folder)
        ...     starts.note("start", 5.0)
        ...     starts.notes()
        [Note(what='start', time=5.0)]
    """

    def __init__(self, folder: str | os.PathLike[str], anew: bool = False) -> None:
        self.path = Path(folder) / STARTS
        self._anew = anew

    def note(self, what: str, at: float) -> None:
        """Append a line. A disk that refuses it costs the ledger, not the run."""
        what = ANEW if what == START and self._anew else what
        try:
            append_line(self.path, to_json({"what": what, "time": round(at, 6)}))
        except OSError as error:
            logger.warning(
                "the ledger of this run will not know that the run %s now: %s cannot be written (%s)",
                _WHAT[what],
                self.path,
                error.strerror or error,
            )

    def notes(self) -> list[Note]:
        """All of them, in order; lines that are not whole are passed over."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            logger.warning("the ledger of this run does not know its earlier starts: %s", error)
            return []
        return [note for line in lines if (note := _note_of(line)) is not None]


def _note_of(line: bytes) -> Note | None:
    """What a line says; None for one that is not whole, or that `Starts.note` did not write."""
    try:
        row = from_json(line)
        what, at = row["what"], row["time"]
        wrong = what not in _WHAT or isinstance(at, (bool, str)) or not math.isfinite(at)
        return None if wrong else Note(what, float(at))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


# ------------------------------------------------------------------------------------------------- the process

_IMPORTED = time.monotonic()
_claimed: list[bool] = []


def age_of_process() -> float:
    """For how many seconds this process has run; where the system does not say, since this file was imported.

    >>> 0 < age_of_process() < 1e6
    True
    """
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, IndexError, ValueError):
        return time.monotonic() - _IMPORTED


def _age_of_run() -> float:
    """The first run of a script began with it; a later one, and one in a notebook, when its Brain was made."""
    first = not _claimed
    _claimed.append(True)
    return age_of_process() if first and not _is_interactive() else 0.0


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or shell() is not None
