"""The ledger of a fit: its wall time, shared out to the end, at no cost in a step but two looks at the clock.

The clock of `Phases` is handed on at places that are rare: an epoch, a validation, a hook of a stage, a save. What is
between is training; the wait for its data is summed by the loop itself, and taken out of it when somebody asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from brainlib.common.logs import logger
from brainlib.profiling.phases import LOOP, Phases

__all__ = ["LEFT_OVER", "PARTS", "Ledger", "in_words"]

PARTS = ("start", "compute", "data wait", "checkpoint", "validation", "hooks")
LEFT_OVER = "left over"


class Ledger:
    """Where the wall time of one fit went.

    Args:
        clock: a function that returns seconds; tests pass their own.

    Attributes:
        flops: floating point operations of one update, where they were counted; 0 where not.
        peak: of the device, in operations a second, where it is known.

    >>> ledger = Ledger()
    >>> ledger.running()
    True
    >>> with ledger.on("compute"):
    ...     with ledger.on("checkpoint"):
    ...         pass
    >>> ledger.close()
    >>> abs(sum(ledger.seconds.values()) - ledger.total) < 1e-9
    True
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._phases = Phases(clock)
        self._phases.enter("start")
        self._started = self._closed = False
        self._waited: Callable[[], float] = _not_at_all
        self._moved = 0.0  # of what `_waited` tells
        self.total = 0.0
        self.seconds: dict[str, float] = {}
        self._updates_before = 0
        self.flops = 0
        self.peak: float | None = None

    @property
    def began(self) -> float:
        """When, by its clock."""
        return self._phases.began

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Inside, the time is that of `name`, but for what is inside it on something else."""
        depth = self._phases.enter(name)
        try:
            yield
        finally:
            self._phases.leave(depth)

    def running(self, num_updates: int = 0) -> bool:
        """The start is over; returns whether it was not before. `num_updates`: of the run so far."""
        if self._started:
            return False
        self._started, self._updates_before = True, num_updates
        self._phases.leave(0)
        return True

    @contextmanager
    def training(self, waited: Callable[[], float]) -> Iterator[None]:
        """Inside, the time is that of computing and of waiting for data.

        Args:
            waited: tells how many seconds of it so far were spent waiting.
        """
        self._waited, self._moved = waited, 0.0
        try:
            with self.on("compute"):
                yield
        finally:
            self._move_waits()
            self._waited = _not_at_all

    def _move_waits(self) -> None:
        waited = self._waited()
        self._phases.seconds["compute"] -= waited - self._moved
        self._phases.seconds["data wait"] += waited - self._moved
        self._moved = waited

    def so_far(self) -> dict[str, float]:
        """The seconds of each part up to now; they add up to the time that has passed."""
        if not self._closed:
            if self._waited is not _not_at_all:
                self._move_waits()
            self.total = self._phases.settle()
            found = self._phases.seconds
            self.seconds = {**{name: found[name] for name in PARTS}, LEFT_OVER: found[LOOP]}
        return self.seconds

    def close(self) -> None:
        """The fit is over: nothing is credited any more."""
        self._phases.leave(0)
        self.so_far()
        self._closed = True

    def rates(self, num_updates: int, seconds: Mapping[str, float]) -> dict[str, float]:
        """Operations an update and a second, and what share of the peak that is; empty where none were counted.

        Args:
            num_updates: how many were made.
            seconds: in which of the parts; computing and waiting for data count.
        """
        trained = seconds["compute"] + seconds["data wait"]
        if not self.flops or trained <= 0:
            return {}
        rate = self.flops * num_updates / trained
        share = {} if self.peak is None else {"mfu": rate / self.peak}
        return {"flops_per_update": self.flops, "flops_per_second": rate, **share}

    def tell(self, num_updates: int) -> None:
        """Say it in a line.

        Args:
            num_updates: of the run so far.
        """
        made = max(num_updates - self._updates_before, 0)
        speed = f"; {made / self.total:.1f} updates/s" if self._started and self.total else ""
        rates = self.rates(made, self.seconds)
        if rates:
            speed += (
                f"; {rates['flops_per_update']:.4g} FLOPs an update, {rates['flops_per_second']:.4g} a second"
            )
        if "mfu" in rates:
            speed += f", MFU {rates['mfu']:.2%}"
        logger.info("the fit took %.2f s%s%s", self.total, in_words(self.seconds), speed)


def in_words(seconds: Mapping[str, float]) -> str:
    """The parts that are worth a word, behind a colon; nothing of a moment.

    >>> in_words({"start": 0.351, "hooks": 0.0, "left over": 0.01}), in_words({"start": 0.001})
    (': start 0.35, left over 0.01', '')
    """
    told = ", ".join(f"{name} {each:.2f}" for name, each in seconds.items() if each >= 0.005)
    return f": {told}" if told else ""


def _not_at_all() -> float:
    return 0.0
