"""What hangs on the loop of a Brain and is told of its updates: profilers, and the meter of a benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brainlib.brain import Brain

__all__ = ["Instruments"]


class Instruments:
    """The profilers of one Brain, ours and others, as the loop sees them: it counts updates for all of them.

    Args:
        profilers: `Profiler`, or anything with ``start``, ``step`` and ``stop``, such as `torch.profiler.profile`.

    >>> Instruments([]).exits
    ''
    """

    def __init__(self, profilers: list[Any]) -> None:
        self.profilers = profilers
        self._ours = [each for each in profilers if hasattr(each, "waits")]
        self._first: int | None = None
        self._told = 0

    @classmethod
    def beside(cls, there: Instruments | None, one: Any) -> Instruments:
        """Those that hang there already, and one more.

        >>> len(Instruments.beside(Instruments.beside(None, Instruments([])), Instruments([])).profilers)
        2
        """
        return cls([*([] if there is None else there.profilers), one])

    def start(self) -> None:
        """A fit begins."""
        self._first = None
        for place, each in enumerate(self.profilers):
            try:
                each.start()
            except BaseException:
                for before in self.profilers[:place]:
                    before.stop()
                raise

    def stop(self, error: BaseException | None = None) -> None:
        """It is over."""
        for each in self.profilers:
            if each in self._ours:
                each.stop(error)
            else:
                each.stop()

    def waits(self, brain: Brain, batches: Iterator[Any], phase: str) -> Iterator[Any]:
        """The batches of an epoch, the wait for each of them being `phase`. Those of an inner fit are not looked at."""
        if brain._scope.inner:
            return batches
        if self._first is None:
            self._first = self._told = brain._scope.run.optimizer_step
            for each in self._ours:
                each.begin(brain)
        for each in self._ours:
            batches = each.waits(batches, phase)
        return batches

    def look(self, brain: Brain) -> None:
        """A window has closed: tell of the updates that were made; of a void one there is nothing to tell."""
        if brain._scope.inner:
            return
        while self._told < brain._scope.run.optimizer_step:
            self._told += 1
            for each in self.profilers:
                each.step()

    @property
    def exits(self) -> str:
        """Why the fit is to end now; "" for no reason."""
        return next((reason for each in self._ours if (reason := each.exits)), "")
