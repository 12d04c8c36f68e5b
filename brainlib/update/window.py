"""The window: the micro-batches that one update sums over, and the one place that decides when it closes."""

from __future__ import annotations

from collections.abc import Callable

from brainlib.run_state import RunState

__all__ = ["Window"]


def _never() -> bool:
    return False


class Window:
    """Decides, batch by batch, whether the open window closes; everybody else is told ``should_step``.

    A window closes when it holds `factor` micro-batches, or at the last batch of the epoch: an epoch that ends inside
    a window still makes its update, over what there is. Nothing is thrown away and nothing is carried over.

    Args:
        factor: micro-batches a window (``grad_accumulation_factor``).
        last: number of the last batch of the epoch, counted from 1, where it is known beforehand.
        is_last: asked where it is not known: whether the batch in hand is the last one. Asking may read one batch
            ahead, so it is asked only when the answer decides something.

    Example:
        >>> run, window = RunState(), Window(factor=4, last=6)
        >>> closes = []
        >>> for _ in range(6):
        ...     run.begin_batch()
        ...     closes.append(window.closes(run))
        ...     if closes[-1]:
        ...         run.commit_window(stepped=True)
        >>> closes, run.optimizer_step
        ([False, False, False, True, False, True], 2)
    """

    __slots__ = ("factor", "is_last", "last")

    def __init__(self, factor: int, last: int | None = None, is_last: Callable[[], bool] = _never) -> None:
        self.factor = factor
        self.last = last
        self.is_last = is_last

    def closes(self, run: RunState) -> bool:
        """Whether the window closes with the batch in hand."""
        return run.micro >= self.factor or run.step == self.last or self.is_last()
