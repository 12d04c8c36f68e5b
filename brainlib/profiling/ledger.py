"""The ledger of a fit: its wall time, shared out to the end, at no cost in a step but two looks at the clock.

The clock of `Phases` is handed on at places that are rare: an epoch, a validation, a hook of a stage, a save. What is
between is training; the wait for its data is summed by the loop itself, and taken out of it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from brainlib.common.logs import logger
from brainlib.profiling.phases import LOOP, Phases

__all__ = ["Ledger"]

_ORDER = ("start", "compute", "data wait", "checkpoint", "validation", "hooks")


class Ledger:
    """Where the wall time of one fit went.

    >>> ledger = Ledger()
    >>> ledger.running()
    >>> with ledger.on("compute"):
    ...     with ledger.on("checkpoint"):
    ...         pass
    >>> ledger.close()
    >>> abs(sum(ledger.seconds.values()) - ledger.total) < 1e-9
    True
    """

    def __init__(self) -> None:
        self._phases = Phases()
        self._phases.enter("start")
        self._started = False
        self.total = 0.0
        self.seconds: dict[str, float] = {}

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Inside, the time is that of `name`, but for what is inside it on something else."""
        depth = self._phases.enter(name)
        try:
            yield
        finally:
            self._phases.leave(depth)

    def running(self) -> None:
        """The start is over."""
        if not self._started:
            self._started = True
            self._phases.leave(0)

    def move(self, seconds: float, source: str, target: str) -> None:
        """So much of what was credited to `source` was `target`."""
        self._phases.seconds[source] -= seconds
        self._phases.seconds[target] += seconds

    def close(self) -> None:
        """The fit is over: nothing is credited any more."""
        self._phases.leave(0)
        self.total = self._phases.settle()
        found = self._phases.seconds
        self.seconds = {**{name: found[name] for name in _ORDER}, "left over": found[LOOP]}

    def tell(self, num_updates: int, trained: float) -> None:
        """Say it in a line.

        Args:
            num_updates: made in this fit by this process.
            trained: seconds that the run has trained in all its processes, without what a restart has lost.
        """
        parts = ", ".join(
            f"{name} {seconds:.2f}" for name, seconds in self.seconds.items() if seconds >= 0.005
        )
        speed = f"; {num_updates / self.total:.1f} updates/s" if self.total else ""
        logger.info(
            "the fit took %.2f s: %s%s; the run has trained for %.2f s in all its starts",
            self.total,
            parts,
            speed,
            trained,
        )
