"""Going on late in an epoch reads no more than going on early: one batch's items, and none to throw away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from tests.brain.small import Batch, Regression, Rows, small

NUM_ITEMS, BATCH_SIZE = 100_000, 100


class AtOnce(Rows):
    """Reads a batch at once, to get far in a moment."""

    def __getitems__(self, indices: list[int]) -> list[Batch]:
        whole = {"id": torch.tensor(indices), **{key: value[indices] for key, value in self.whole.items()}}
        return [dict(zip(whole, item, strict=True)) for item in zip(*whole.values(), strict=True)]


class Enough(Exception):
    pass


class Cut(Regression):
    stop_at = 0

    def on_fit_batch_end(self, batch: Batch, outputs: Any, loss: torch.Tensor, should_step: bool) -> None:
        if self.step == self.stop_at:
            self.checkpointer.save_checkpoint(end_of_epoch=False)
            raise Enough


class Looking(Regression):
    def on_fit_batch_start(self, batch: Batch, should_step: bool) -> None:
        self.first = self.step, batch["id"].tolist()
        raise Enough


@pytest.mark.parametrize("percent", [1, 99])
def test_the_first_batch_is_all_that_is_read(percent: int, tmp_path: Path) -> None:
    stop_at = NUM_ITEMS // BATCH_SIZE * percent // 100
    options = {"batch_size": BATCH_SIZE, "shuffle": True}
    first = small(Cut, checkpointer=bl.Checkpointer(tmp_path))
    first.stop_at = stop_at
    with pytest.raises(Enough):
        first.fit(range(1), AtOnce(NUM_ITEMS), train_loader_kwargs=options)

    rows = Rows(NUM_ITEMS)
    second = small(Looking, checkpointer=bl.Checkpointer(tmp_path))
    with pytest.raises(Enough):
        second.fit(range(1), rows, train_loader_kwargs=options)
    step, ids = second.first
    assert step == stop_at + 1
    assert rows.reads == ids
    assert len(ids) == BATCH_SIZE
