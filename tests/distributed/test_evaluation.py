"""Evaluation on several ranks gives the numbers of one process, bit for bit, and every rank has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import brainlib as bl
from brainlib.distributed.world import World
from tests.contracts.brains import VALID, Items, Plain, make, ready_batches
from tests.distributed.host import Host


class Norms(Plain):
    """What an item gives depends on the batch it sits in, in training; the statistics are those of the main rank."""

    network = staticmethod(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    )
    correct = 0

    def compute_objectives(self, predictions: Any, batch: Any, stage: bl.Stage) -> Any:
        if stage != bl.Stage.TRAIN:
            self.correct += int((predictions > batch["y"]).sum())
            self.batches = [*getattr(self, "batches", []), len(batch["x"])]
        return super().compute_objectives(predictions, batch, stage)


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([Items()[i] for i in range(7)])


def evaluations(weights: str) -> dict[str, Any]:
    """With the same weights on any number of ranks."""
    brain = make(Norms, global_seed=1)
    if World.from_environment().size == 1:
        brain.fit(range(1), Items(), train_loader_kwargs={"batch_size": 4})
        torch.save(brain.modules.state_dict(), weights)
    brain.modules.load_state_dict(torch.load(weights))
    told: dict[str, Any] = {}
    items = Items(5, seed=9)
    for name, data, loader in (
        ("5 items, batches of 2", items, {"batch_size": 2}),
        ("one batch", items, {"batch_size": 8}),
        ("items with workers", Items(11), {"batch_size": 2, "num_workers": 2}),
        ("a list", ready_batches((1, 4, 2, 3, 3)), {}),
        ("a generator's class", Stream(), {"batch_size": 2}),
    ):
        brain.correct, brain.batches = 0, []
        loss = brain.evaluate(data, test_loader_kwargs=loader)
        told[name] = [loss, sum(bl.gather(brain.correct)), sum(map(sum, bl.gather(brain.batches)))]
    predictions = brain.predict(items, loader_kwargs={"batch_size": 2})
    told["predictions"] = [each.tolist() for each in predictions]
    limited = make(Norms, global_seed=1, limit_valid_batches=3)
    limited.modules.load_state_dict(torch.load(weights))
    limited.fit(range(0), Items(), VALID)
    told["limited"] = limited._fit_valid(
        limited._source(ready_batches((2,) * 5), bl.Stage.VALID, {}), 0, False
    )
    with pytest.raises(ValueError, match="test_set is"):
        brain.evaluate(iter(()))
    return told


def test_evaluation_gives_the_numbers_of_one_process(host: Host, tmp_path: Path) -> None:
    weights = str(tmp_path / "weights.pt")
    (one,) = host.run(evaluations, tmp_path / "1", weights, size=1)
    for size in (2, 3):
        for each in host.run(evaluations, tmp_path / f"{size}", weights, size=size):
            assert each == one


def validations() -> Any:
    brain = make(Norms, global_seed=World.from_environment().rank)
    brain.fit(
        range(2), Items(26), ready_batches((3, 2, 2)), train_loader_kwargs={"batch_size": 4, "shuffle": True}
    )
    losses = [brain.trace, brain.evaluate(ready_batches((3, 2, 2)))]
    buffers = {name: each.tolist() for name, each in brain.modules.named_buffers()}
    return [losses, buffers, [p.tolist() for p in brain.modules.parameters()]]


def test_hooks_get_the_numbers_of_all_ranks(host: Host, tmp_path: Path) -> None:
    zero, one = host.run(validations, tmp_path)
    assert zero == one, "losses, running statistics and weights"
