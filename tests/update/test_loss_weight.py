"""How many items a batch holds, where nobody says it."""

from __future__ import annotations

from collections import OrderedDict, UserDict, deque, namedtuple
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import brainlib as bl
from brainlib.update.loss_weight import num_items
from tests.brain.small import far, small, weights


class Fields(NamedTuple):
    x: Any
    y: Any


class Sized:
    def __len__(self) -> int:
        return 6


class Padded:
    """As PaddedBatch: it knows; its length is that of something else."""

    batchsize = 5

    def __len__(self) -> int:
        return 2


def rand(*shape: int) -> Tensor:
    return torch.zeros(*shape)


CASES: list[tuple[str, Any, float | None]] = [
    ("tensor", rand(7, 3), 7),
    ("scalar tensor", torch.tensor(3.0), None),
    ("dict", {"x": rand(4, 2), "y": rand(4)}, 4),
    ("dict with a scalar first", {"scale": torch.tensor(1.0), "x": rand(4, 2)}, 4),
    ("dict with texts first", {"id": ["a", "b"], "x": rand(2, 9)}, 2),
    ("dict of dicts", {"in": {"x": rand(3, 2)}}, 3),
    ("dict without a tensor", {"id": ["a", "b", "c"]}, 3),
    ("empty dict", {}, None),
    ("ordered dict", OrderedDict(x=rand(3)), 3),
    ("user dict", UserDict(x=rand(3)), 3),
    ("fields in a tuple", (rand(5, 3), rand(5)), 5),
    ("fields in a list", [rand(5, 3), rand(5)], 5),
    ("a named tuple", Fields(rand(4, 2), 1), 4),
    ("a named tuple of unlike fields", Fields(rand(4, 2), rand(9)), 4),
    ("an old named tuple", namedtuple("Old", "x y")(rand(4), rand(4)), 4),
    ("fields, one is a scalar", (rand(5, 3), torch.tensor(0.1)), 5),
    ("fields, one is a list of texts", (rand(3, 8), ["a", "b", "c"]), 3),
    ("fields, one is a dict", (rand(3, 8), {"y": rand(3)}), 3),
    ("samples of different lengths", [rand(16000), rand(8000)], 2),
    ("three samples, two alike", [rand(9), rand(9), rand(8)], 3),
    ("samples of one length look like fields", [rand(9), rand(9)], 9),
    ("one sample alone, too", [rand(9)], 9),
    ("samples with channels", (rand(1, 9), rand(2, 9)), 2),
    ("samples that are dicts", [{"wav": rand(16000), "id": "a"}, {"wav": rand(9), "id": "b"}], 2),
    ("one sample that is a dict", [{"wav": rand(16000)}], 1),
    ("texts", ["a", "b", "c"], 3),
    ("numbers", [1.0, 2.0], None),
    ("no sample", [], None),
    ("it says so", Padded(), 5),
    ("it has a length", Sized(), 6),
    ("an array", np.zeros((4, 2)), 4),
    ("a queue", deque([1, 2]), None),
    ("a text", "abc", 3),
    ("a number", 3, None),
    ("nothing", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("batch", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_number_of_items(batch: Any, expected: float | None) -> None:
    assert num_items(batch) == expected


class Mean(bl.Brain):
    """Batches are lists of samples of different lengths, as ``collate_fn=list`` leaves them."""

    def compute_forward(self, batch: list[Tensor], stage: bl.Stage) -> Tensor:
        return torch.cat([self.modules.model(sample[:, None]).mean(dim=0) for sample in batch])

    def compute_objectives(self, predictions: Tensor, batch: list[Tensor], stage: bl.Stage) -> Tensor:
        return (predictions - 1).pow(2).mean()


SAMPLES = [
    torch.full((n,), v, dtype=torch.float64) for n, v in ((1000, 1.0), (10, 3.0), (20, -2.0), (30, 0.5))
]


def line() -> torch.nn.Module:
    model = torch.nn.Linear(1, 1).double()
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, 0.3)
    return model


@pytest.mark.parametrize(("size", "factor"), [(2, 2)])
def test_lists_of_samples_of_different_lengths_give_the_same_update(size: int, factor: int) -> None:
    """A second of sound is not sixteen thousand items."""
    whole, split = small(Mean, model=line()), small(Mean, model=line(), grad_accumulation_factor=factor)
    whole.fit(range(1), SAMPLES, train_loader_kwargs={"batch_size": 4, "collate_fn": list})
    split.fit(range(1), SAMPLES, train_loader_kwargs={"batch_size": size, "collate_fn": list})
    assert split.optimizer_step == 1
    assert far(weights(whole), weights(split)) < 1e-12
    losses = [
        small(Mean, model=line()).evaluate(SAMPLES, test_loader_kwargs={"batch_size": n, "collate_fn": list})
        for n in (size, 4)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
