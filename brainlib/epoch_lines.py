"""The line of an epoch: what was measured, how it changed, and what was best so far.

What stands in it is what the loggers are told while the epoch closes, so that it is the user's metrics, too. The
numbers before, and the best ones, are part of a checkpoint: a run that was cut says the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from brainlib.checkpoint.retention import by_metric, rank

__all__ = ["ClosedEpoch", "EpochLines", "Track"]

MOST = 12  # numbers in a line; there may be some for each class
AXES = ("epoch", "step", "optimizer_step")  # meta values that say where, which the line does by itself

Criterion = tuple[Literal["min", "max"], str]  # what is best, and of which metric


@dataclass
class Track:
    """One number over the epochs of a fit; epochs are counted from 1.

    >>> track = Track(0.5, (0.5, 1), (0.5, 1)).with_one_more(0.25, epoch=2)
    >>> track.last, track.lowest, track.highest
    (0.25, (0.25, 2), (0.5, 1))
    """

    last: float
    lowest: tuple[float, int]
    highest: tuple[float, int]

    def with_one_more(self, value: float, epoch: int) -> Track:
        """The same, an epoch later."""
        now = (value, epoch)
        return Track(value, _better("min", self.lowest, now), _better("max", self.highest, now))


class _Seen(NamedTuple):
    """A number as checkpoints are ranked: its epoch stands for the commit."""

    commit: int
    meta: dict[str, Any]


def _better(best: Literal["min", "max"], *seen: tuple[float, int]) -> tuple[float, int]:
    """The best by the rule that checkpoints are chosen by, so that both name the same epoch: of equals the newest."""
    first = rank((_Seen(epoch, {"value": value}) for value, epoch in seen), by_metric("value", best))[0]
    return first.meta["value"], first.commit


class ClosedEpoch(NamedTuple):
    """What was measured at the end of an epoch; epochs are counted from 1 in each fit.

    >>> ClosedEpoch(0, 1, {"train loss": 0.5}).numbers
    {'train loss': 0.5}
    """

    fit: int
    epoch: int
    numbers: dict[str, float]


@dataclass
class _Open:
    """The epoch that is about to close."""

    fit: int = 0
    epoch: int = 0
    numbers: dict[str, float] = field(default_factory=dict)
    beside: dict[str, Any] = field(default_factory=dict)


class EpochLines:
    """Makes the lines of a fit.

    Args:
        clock: a function that returns seconds; tests pass their own.

    Example:
        >>> lines = EpochLines(clock=lambda: 0.0)
        >>> for epoch, loss in enumerate((0.52, 0.5), start=1):
        ...     lines.open()
        ...     lines.closes(epoch)
        ...     lines.hear("", {"epoch": epoch, "lr": 0.1}, {"train": {"loss": loss}, "valid": {"loss": loss + 0.1}})
        ...     print(lines.close(f"epoch {epoch}/2"))
        epoch 1/2: train loss 0.52, valid loss 0.62; lr 0.1; 0.0 s
        epoch 2/2: train loss 0.5 (-0.02), valid loss 0.6 (-0.02, best); lr 0.1; 0.0 s
        >>> lines.best()
        ['valid loss 0.6 in epoch 2']
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since = clock()
        self._tracks: dict[str, Track] = {}
        self._open: _Open | None = None
        self.places: dict[str, None] = {}  # where loggers have written, in order
        self.num_said = 0  # epochs that this process has closed in the fit
        self.closed: list[ClosedEpoch] = []  # of all fits of the run, also of the processes before this one

    def begin_fit(self) -> None:
        """Another fit: its numbers are compared with none before."""
        self._tracks, self._open = {}, None

    def open(self) -> None:
        """An epoch begins, or goes on."""
        self._since = self._clock()

    def closes(self, epoch: int, fit: int = 0) -> None:
        """What is heard from now on is about the end of this epoch, counted from 1."""
        self._open = _Open(fit, epoch)

    def hear(self, place: str, meta: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]) -> None:
        """A logger was told something."""
        if place:
            self.places[place] = None
        if self._open is None:
            return
        for name, value in meta.items():
            if name.lower() not in AXES and isinstance(value, (int, float, str)):
                self._open.beside[name] = value
        for group, stats in groups.items():
            for name, value in stats.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    self._open.numbers[f"{group} {name}"] = float(value)

    def close(self, epoch: str, criterion: Criterion | None = None) -> str:
        """The epoch is closed: its line.

        Args:
            epoch: what it is called.
            criterion: what the checkpoints are chosen by; a loss is best where it is low in any case.
        """
        now = self._open or _Open()
        parts = [
            f"{name} {value:.4g}{self._marks(name, value, now, criterion)}"
            for name, value in list(now.numbers.items())[:MOST]
        ]
        if (rest := len(now.numbers) - MOST) > 0:
            parts.append(f"and {rest} more")
        beside = [f"{name} {_short(value)}" for name, value in list(now.beside.items())[:MOST]]
        self._tracks, self.closed, self._open = self._with(now), self._closed_with(now), None
        self.num_said += 1
        took = f"{self._clock() - self._since:.1f} s"
        return f"{epoch}: " + "; ".join([", ".join(parts), *beside, took])

    def best(self, criterion: Criterion | None = None) -> list[str]:
        """The best that the fit has reached, and in which epoch."""
        told = []
        for name, track in self._tracks.items():
            if (kind := _kind(name, self._tracks, criterion)) is not None:
                value, epoch = track.lowest if kind == "min" else track.highest
                told.append(f"{name} {value:.4g} in epoch {epoch}")
        return told

    def state(self) -> dict[str, list[float]]:
        """For a checkpoint; one that is taken while an epoch closes stands for the closed epoch."""
        tracks = self._tracks if self._open is None else self._with(self._open)
        return {name: [track.last, *track.lowest, *track.highest] for name, track in tracks.items()}

    def state_of_closed(self) -> list[list[Any]]:
        """The same of the numbers of all closed epochs."""
        return [list(each) for each in (self.closed if self._open is None else self._closed_with(self._open))]

    def load(
        self, state: Mapping[str, list[float]] | None, closed: Iterable[Sequence[Any]] | None = None
    ) -> None:
        """Go on from there; None: from a checkpoint of before there was a line, or of before all numbers were kept."""
        self._open = None
        self.closed = [ClosedEpoch(*each) for each in closed or ()]
        self._tracks = {
            name: Track(last, (low, int(low_epoch)), (high, int(high_epoch)))
            for name, (last, low, low_epoch, high, high_epoch) in (state or {}).items()
        }

    def _with(self, now: _Open) -> dict[str, Track]:
        tracks = dict(self._tracks)
        for name, value in now.numbers.items():
            if not math.isfinite(value):
                continue
            track = tracks.get(name)
            fresh = Track(value, (value, now.epoch), (value, now.epoch))
            tracks[name] = fresh if track is None else track.with_one_more(value, now.epoch)
        return tracks

    def _closed_with(self, now: _Open) -> list[ClosedEpoch]:
        if not now.epoch:  # nothing was measured
            return self.closed
        before = [each for each in self.closed if each[:2] < (now.fit, now.epoch)]
        return [*before, ClosedEpoch(now.fit, now.epoch, dict(list(now.numbers.items())[:MOST]))]

    def _marks(self, name: str, value: float, now: _Open, criterion: Criterion | None) -> str:
        track = self._tracks.get(name)
        if track is None or not math.isfinite(value):
            return ""
        kind = _kind(name, now.numbers, criterion)
        best = (kind == "min" and value < track.lowest[0]) or (kind == "max" and value > track.highest[0])
        return f" ({value - track.last:+.2g}{', best' if best else ''})"


def _kind(name: str, numbers: Mapping[str, Any], criterion: Criterion | None) -> Literal["min", "max"] | None:
    """Which way a number is better, where that is known; of a metric of several stages the validation's counts."""
    group, _, metric = name.partition(" ")
    if group != "valid" and (group != "train" or f"valid {metric}" in numbers):
        return None
    if criterion is not None and metric == criterion[1]:
        return criterion[0]
    return "min" if metric == "loss" else None


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else " ".join(str(value).split())
