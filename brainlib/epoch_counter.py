"""Epoch counters: a plain iterator over epoch numbers that can be saved, put back and prolonged."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any, SupportsFloat, SupportsIndex

from brainlib.common.counted import counted
from brainlib.common.errors import nearest, quoted
from brainlib.common.logs import logger

__all__ = ["EpochCounter", "EpochCounterWithStopper"]


class EpochCounter:
    """Hands out the epoch numbers 1 … `limit`, each once.

    It is its own iterator and does not start again: a second loop over it goes on where the first ended, and
    does nothing when all epochs were handed out. Raise `limit` to get the difference. ``Brain.fit`` puts it
    where the recovered run stands; without a Brain, save it and load it back (see `load_state_dict`).

    Args:
        limit: number of the last epoch.

    Raises:
        ValueError: when `limit` is not a whole number, or negative.

    Attributes:
        current: the number handed out last; 0 before the first.

    Example:
        >>> counter = EpochCounter(2)
        >>> [epoch for epoch in counter]
        [1, 2]
        >>> [epoch for epoch in counter]
        []
        >>> counter.limit = 3
        >>> [epoch for epoch in counter]
        [3]
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.current = 0

    @property
    def limit(self) -> int:
        """Number of the last epoch."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = _whole("limit", limit, least=0)

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.current >= self.limit:
            raise StopIteration
        self.current += 1
        return self.current

    def seek(self, closed: int) -> None:
        """Go to where `closed` epochs are over: the next number is closed + 1.

        >>> counter = EpochCounter(5)
        >>> counter.seek(3)
        >>> list(counter)
        [4, 5]
        """
        self.current = _whole("closed", closed, least=0)

    def state_dict(self) -> dict[str, Any]:
        """What has to survive a restart, in plain values."""
        return {"current": self.current}

    def load_state_dict(self, state: dict[str, Any], end_of_epoch: bool = True) -> None:
        """Put back what `state_dict` returned; missing or leftover keys are an error and change nothing.

        Args:
            state: what `state_dict` returned.
            end_of_epoch: whether it was saved at the end of an epoch, so that the next one follows. If it was
                saved in the middle (False), that epoch is handed out once more.

        Raises:
            ValueError: when the keys are not the expected ones.

        Example:
            >>> counter = EpochCounter(3)
            >>> counter.load_state_dict({"current": 2}, end_of_epoch=False)
            >>> list(counter)
            [2, 3]
        """
        self._check_keys(state)
        self.current = max(int(state["current"]) - (not end_of_epoch), 0)

    def _check_keys(self, state: dict[str, Any]) -> None:
        expected = set(self.state_dict())
        if set(state) != expected:
            raise ValueError(
                f"the saved state of an {type(self).__name__} has the keys "
                f"{quoted(sorted(map(str, state)))}, not {quoted(sorted(expected))}: it was saved by another "
                "kind of counter. Use that kind, or a new folder."
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(limit={self.limit}, current={self.current})"


class EpochCounterWithStopper(EpochCounter):
    """An `EpochCounter` that ends early once a metric has stopped to get better.

    Call `update_metric` once an epoch, usually in ``on_stage_end`` of the validation. The best value is
    watched from the first epoch on; epochs up to `limit_warmup` do not count as waiting. An equal value is
    not better, and a value that is NaN or infinite never is.

    Args:
        limit: number of the last epoch, if nothing stops before.
        limit_to_stop: how many epochs without improvement end the loop; try 3 to 10.
        limit_warmup: epochs during which waiting is not counted; try 0.
        direction: "min" when lower is better (loss, error rate), "max" when higher is (accuracy).

    Raises:
        ValueError: for another direction, or limits that are no whole numbers.

    Attributes:
        best: the best value so far, None before the first.
        best_epoch: the epoch it came from, 0 before the first.

    Example:
        >>> counter = EpochCounterWithStopper(limit=50, limit_to_stop=2, limit_warmup=0, direction="max")
        >>> for epoch in counter:
        ...     counter.update_metric(min(epoch, 3) / 10)  # accuracy 0.1, 0.2, 0.3, and then no better
        >>> counter.current, counter.best, counter.best_epoch
        (5, 0.3, 3)
    """

    def __init__(self, limit: int, limit_to_stop: int, limit_warmup: int, direction: str) -> None:
        super().__init__(limit)
        self.limit_to_stop = _whole("limit_to_stop", limit_to_stop, least=1)
        self.limit_warmup = _whole("limit_warmup", limit_warmup, least=0)
        if direction not in ("min", "max"):
            raise ValueError(
                f"direction={direction!r}: give 'min' when a lower metric is better (loss, error rate), or "
                f"'max' when a higher one is (accuracy).{nearest(str(direction), ('min', 'max'))}"
            )
        self.direction = direction
        self.best: float | None = None
        self.best_epoch = 0
        self._updated = 0  # the epoch of the last update_metric: an epoch without one is not waiting
        self._told_not_finite = False
        self._told_stop = False

    @property
    def waited(self) -> int:
        """Epochs without improvement after the best one and after the warm-up."""
        return max(self._updated - max(self.best_epoch, self.limit_warmup), 0)

    @property
    def should_stop(self) -> bool:
        """Whether the waiting has reached `limit_to_stop`."""
        return self.waited >= self.limit_to_stop

    def __next__(self) -> int:
        if self.should_stop:
            raise StopIteration
        return super().__next__()

    def update_metric(self, value: SupportsFloat) -> None:
        """Tell the metric of the current epoch.

        Waiting is counted in epochs, so a second call in one epoch (a validation that is repeated after a
        restart) does no harm.

        Args:
            value: a number, or a tensor or array with one element.

        Raises:
            ValueError: when `value` is not one number.

        Example:
            >>> counter = EpochCounterWithStopper(limit=9, limit_to_stop=2, limit_warmup=0, direction="min")
            >>> next(counter); counter.update_metric(-1.5); counter.best
            1
            -1.5
        """
        try:
            metric = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"update_metric takes one number, not {value!r}") from error
        self._updated = self.current
        if not math.isfinite(metric):
            if not self._told_not_finite:
                logger.warning(
                    "the metric that early stopping watches is %s in epoch %d; such an epoch counts as one "
                    "without improvement (said once)",
                    metric,
                    self.current,
                )
            self._told_not_finite = True
        elif self.best is None or (metric < self.best if self.direction == "min" else metric > self.best):
            self.best, self.best_epoch = metric, self.current
        if self.should_stop and not self._told_stop:
            best = (
                "no finite value yet"
                if self.best is None
                else f"the best is {self.best:g} of epoch {self.best_epoch}"
            )
            logger.info(
                "stopping early after epoch %d: no improvement for %s (limit_to_stop=%d, direction=%r); %s",
                self.current,
                counted(self.waited, "epoch"),
                self.limit_to_stop,
                self.direction,
                best,
            )
        self._told_stop = self.should_stop

    def seek(self, closed: int) -> None:
        """Go to where `closed` epochs are over: the next number is closed + 1."""
        super().seek(closed)
        # An update of an epoch that is about to be repeated will come again.
        self._updated = min(self._updated, self.current)

    def state_dict(self) -> dict[str, Any]:
        """What has to survive a restart, in plain values."""
        return {
            "current": self.current,
            "best": self.best,
            "best_epoch": self.best_epoch,
            "updated": self._updated,
            "direction": self.direction,
        }

    def load_state_dict(self, state: dict[str, Any], end_of_epoch: bool = True) -> None:
        """Put back what `state_dict` returned; see `EpochCounter.load_state_dict`."""
        self._check_keys(state)
        if state["direction"] != self.direction:
            raise ValueError(
                f"this counter has direction={self.direction!r}, the saved one had {state['direction']!r}: "
                f"its best value {state['best']} means nothing here. Use the saved direction, or a new "
                "folder."
            )
        super().load_state_dict(state, end_of_epoch)
        self.best, self.best_epoch = state["best"], state["best_epoch"]
        self._updated = min(state["updated"], self.current)
        self._told_stop = self.should_stop


def _whole(name: str, value: SupportsIndex, least: int) -> int:
    """`value`, if it is a whole number of at least `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least:
        raise ValueError(f"{name}={value!r}: give a whole number of epochs, {least} or more")
    return number
