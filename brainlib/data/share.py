"""A rank's share of the data: which batches of the one order it is handed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any, TypeVar

__all__ = ["ALL", "Share", "in_order"]

T = TypeVar("T")

_NOTHING: Any = object()


@dataclass
class Share:
    """Batches are dealt out like cards: in each round rank r gets the r-th, in the order of one process.

    Where the last round has fewer batches than ranks, a rank without one gets one of that round once more, so that all
    make the same number of steps; it takes part with weight 0. In an evaluation it gets none.

    Attributes:
        rank: which rank this is.
        size: how many there are.
        fill: whether a rank without a batch of the last round gets one that stands in.
        began: how many batches this rank had been handed before, in the epoch.
        filled_at: number of the batch that only stands in, counted from 1 in the epoch; 0: none so far.

    >>> [list(Share(rank, 2).deal(iter("abcde"))) for rank in (0, 1)]
    [['a', 'c', 'e'], ['b', 'd', 'e']]
    >>> [list(Share(rank, 2, fill=False).deal(iter("abcde"))) for rank in (0, 1)]
    [['a', 'c', 'e'], ['b', 'd']]
    """

    rank: int = 0
    size: int = 1
    fill: bool = True
    began: int = 0
    filled_at: int = 0

    def deal(self, batches: Iterator[T]) -> Iterator[T]:
        """What this rank gets of `batches`."""
        return batches if self.size == 1 else self._rounds(batches)

    def _rounds(self, batches: Iterator[T]) -> Iterator[T]:
        number = self.began
        while round_ := list(islice(batches, self.size)):
            number += 1
            if self.rank < len(round_):
                yield round_[self.rank]
            elif self.fill:
                self.filled_at = number
                yield round_[self.rank % len(round_)]

    def rounds(self, num_batches: int, start: int = 0) -> int:
        """How many batches this rank gets of `num_batches`, from batch `start` on.

        >>> Share(1, 2).rounds(5), Share(1, 2, fill=False).rounds(5), Share().rounds(5, start=2)
        (3, 2, 3)
        """
        left = max(num_batches - start, 0)
        return -(-(left if self.fill or self.size == 1 else left - self.rank) // self.size)


ALL = Share()


def in_order(parts: Sequence[Sequence[T]]) -> list[T]:
    """What the ranks made of their shares, in the order of one process.

    >>> in_order([["a", "c", "e"], ["b", "d"]])
    ['a', 'b', 'c', 'd', 'e']
    """
    return [
        each for round_ in zip_longest(*parts, fillvalue=_NOTHING) for each in round_ if each is not _NOTHING
    ]
