"""The first batches of a training set, the same in every epoch: what a model that can learn learns by heart."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from brainlib.common.logs import logger
from brainlib.data.share import ALL, Share
from brainlib.data.sources import BatchSource

__all__ = ["FirstBatches"]


class FirstBatches(BatchSource):
    """The first `num` batches of a source, read once and kept.

    >>> source = FirstBatches(BatchSource(["a", "b", "c"], "train_set"), 2)
    >>> source.num_batches, list(source.read(seed=0, epoch=5, start=1))
    (2, ['b'])
    """

    def __init__(self, source: BatchSource, num: int) -> None:
        self.name = source.name
        self._source, self._num = source, num
        self._kept: list[Any] | None = None
        self.num_batches = None if source.num_batches is None else min(num, source.num_batches)

    def read(self, seed: int, epoch: int, start: int = 0, share: Share = ALL) -> Iterator[Any]:
        if self._kept is None:
            self._kept = list(islice(self._source.read(seed, 0), self._num))
            self._source.abandon()
            if len(self._kept) < self._num:
                logger.warning(
                    "overfit_batches is %d, but %s has only %d", self._num, self.name, len(self._kept)
                )
        return share.deal(islice(self._kept, start, None))

    def abandon(self) -> None:
        self._source.abandon()

    def fingerprint(self) -> dict[str, int]:
        return {**self._source.fingerprint(), "overfit_batches": self._num}

    def empty_message(self, epoch: int) -> str:
        return self._source.empty_message(epoch)
