"""What an item draws (augmentation) is a function of seed, epoch and its position in the epoch: no worker, no history.

`Noisy` draws from all three process-wide generators, as augmentation libraries do.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import brainlib as bl
from tests.brain.small import Batch, Regression, Rows, same, small, weights


class Noisy(Rows):
    def __getitem__(self, index: int) -> Batch:
        item = super().__getitem__(index)
        noise = torch.rand(3).double() + random.random() + float(np.random.rand())
        return {**item, "x": item["x"] + noise}


class Keeping(Regression):
    """Keeps what it was trained on; `stop_at` batches end it."""

    stop_at: int | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.seen: list[torch.Tensor] = []
        super().__init__(*args, **kwargs)

    def on_fit_batch_start(self, batch: Batch, should_step: bool) -> None:
        if len(self.seen) == self.stop_at:
            raise KeyError("cut")
        self.seen.append(batch["x"])


def trained(num_workers: int, stop_at: int | None = None, folder: Path | None = None) -> Any:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    checkpointer = None if folder is None else bl.Checkpointer(folder)
    brain = small(Keeping, checkpointer=checkpointer, ckpt_interval_steps=1, ckpt_async=False)
    brain.stop_at = stop_at
    kwargs = {"shuffle": True, "batch_size": 2, "num_workers": num_workers}
    if stop_at is None:
        brain.fit(range(2), Noisy(10), train_loader_kwargs=kwargs)
    else:
        with pytest.raises(KeyError, match="cut"):
            brain.fit(range(2), Noisy(10), train_loader_kwargs=kwargs)
    return brain


def test_the_number_of_workers_changes_nothing() -> None:
    none, one, two = (trained(num_workers) for num_workers in (0, 1, 2))
    assert same(none.seen, one.seen)
    assert same(none.seen, two.seen)


def test_two_epochs_draw_differently() -> None:
    seen = trained(0).seen
    first, second = torch.cat(seen[:5]), torch.cat(seen[5:])
    assert len(set(first.flatten().tolist()) & set(second.flatten().tolist())) == 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_cut_run_draws_what_the_uncut_one_drew(num_workers: int, tmp_path: Path) -> None:
    first = trained(num_workers, stop_at=8, folder=tmp_path)
    second = trained(num_workers, folder=tmp_path)
    uncut = trained(num_workers)
    assert same(first.seen + second.seen, uncut.seen)
    assert same(weights(second), weights(uncut))


def test_restarting_with_another_number_of_workers_is_the_same_run(tmp_path: Path) -> None:
    trained(2, stop_at=3, folder=tmp_path)
    assert same(weights(trained(0, folder=tmp_path)), weights(trained(0)))
