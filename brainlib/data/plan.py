"""The batches of an epoch, decided at once: an array of indices, and where each batch begins in it.

So an epoch can be entered at any batch without walking there, and the place of each item in it is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from brainlib.common.counted import counted
from brainlib.common.logs import logger
from brainlib.seeding import derive, last_seed

__all__ = ["BatchPlan", "PlannedBatchSampler", "generator_for"]


def generator_for(seed: int, epoch: int, what: str) -> torch.Generator:
    """A generator whose draws are a function of its arguments.

    torch's, and not numpy's: a checkpoint notes the version of torch.

    >>> torch.rand(1, generator=generator_for(1, 2, "a")) == torch.rand(1, generator=generator_for(1, 2, "a"))
    tensor([True])
    """
    return torch.Generator().manual_seed(derive(seed, epoch, what))


@dataclass(frozen=True)
class BatchPlan:
    """The batches of one epoch.

    Attributes:
        indices: int64, those of all batches, one after another.
        starts: int64, where each batch begins in `indices`; the last entry is where the last batch ends.

    >>> plan = BatchPlan.cut(np.array([4, 2, 0, 1, 3]), 2, drop_last=False)
    >>> len(plan), plan.batch(1), plan.starts
    (3, [0, 1], array([0, 2, 4, 5]))
    """

    indices: np.ndarray[Any, Any]
    starts: np.ndarray[Any, Any]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def batch(self, number: int) -> list[int]:
        """The indices of a batch, counted from 0."""
        found: list[int] = self.indices[self.starts[number] : self.starts[number + 1]].tolist()
        return found

    @classmethod
    def cut(cls, indices: np.ndarray[Any, Any], batch_size: int, drop_last: bool) -> BatchPlan:
        """Batches of one size, as they come."""
        full = len(indices) // batch_size * batch_size
        starts = np.arange(0, full + 1, batch_size)
        if len(indices) > full and not drop_last:
            starts = np.append(starts, len(indices))
        return cls(indices, starts)

    @classmethod
    def of(cls, batches: Sequence[Sequence[int]]) -> BatchPlan:
        """Lists of indices as a plan."""
        starts = np.zeros(len(batches) + 1, np.int64)
        np.cumsum([len(batch) for batch in batches], out=starts[1:])
        return cls(np.array([index for batch in batches for index in batch], np.int64), starts)


class _Epochs:
    """What is asked for its order in an epoch; alone it has to be told which one it is in."""

    seed: int | None
    epoch: int
    _walked: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next; a Brain does so itself."""
        self.epoch = int(epoch)

    def __repr__(self) -> str:
        seed = "that of the run" if self.seed is None else self.seed
        return f"{type(self).__name__}({self._what()}, seed: {seed}, next epoch: {self.epoch})"

    def _what(self) -> str:
        """What is in it, for its repr."""
        return "items"

    def own_seed(self) -> int:
        """The seed where there is no run: that given, else that of `seed_everything`, else 0."""
        return self.seed if self.seed is not None else last_seed() or 0

    def _note_walk(self, shuffles: bool) -> None:
        if shuffles and self._walked == self.epoch:
            logger.warning(
                "%s is iterated in epoch %d once more, which gives the same order again: call set_epoch(epoch) before "
                "each epoch of a loop of your own",
                type(self).__name__,
                self.epoch,
            )
        self._walked = self.epoch


class PlannedBatchSampler(_Epochs, Sampler[list[int]]):
    """Batches that are known before the epoch starts. This base class has the same ones in each; override `plan`.

    Args:
        batches: lists of indices.
        seed: of the order; None: that of the run.
        epoch: which one comes next, counted from 0.

    >>> list(PlannedBatchSampler([[0, 1], [2]]))
    [[0, 1], [2]]
    """

    shuffles = False

    def __init__(
        self, batches: Sequence[Sequence[int]] = (), seed: int | None = None, epoch: int = 0
    ) -> None:
        self.seed, self.epoch = seed, epoch
        self._batches = batches
        self._last: tuple[tuple[int, int], BatchPlan] | None = None

    def _what(self) -> str:
        planned = "batches of a plan" if type(self).plan is not PlannedBatchSampler.plan else ""
        return planned or counted(len(self._batches), "batch", "batches")

    def plan(self, seed: int, epoch: int) -> BatchPlan:
        """The batches of an epoch: a function of both arguments."""
        return BatchPlan.of(self._batches)

    def planned(self, seed: int, epoch: int) -> BatchPlan:
        """The same, kept until another epoch is asked for; a seed of its own stays in charge."""
        which = (seed if self.seed is None else self.seed, epoch)
        if self._last is None or self._last[0] != which:
            self._last = which, self.plan(*which)
        return self._last[1]

    def fingerprint(self) -> dict[str, int]:
        """What must be the same for a position in an epoch to mean the same."""
        return {"batches": len(self._batches)}

    def __len__(self) -> int:
        return len(self.planned(self.own_seed(), self.epoch))

    def __iter__(self) -> Iterator[list[int]]:
        self._note_walk(self.shuffles)
        plan = self.planned(self.own_seed(), self.epoch)
        return (plan.batch(number) for number in range(len(plan)))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}
