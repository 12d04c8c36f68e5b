"""Items that torch cannot stack: what is said of them, wherever the batch is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import brainlib as bl
from brainlib.data.stacking import stacked
from tests.brain.small import small

WAVES = [{"id": str(number), "wave": torch.ones(3 + number % 2)} for number in range(4)]
CURE = '"collate_fn": bl.PaddedBatch, which pads tensors to the longest'


@pytest.mark.parametrize(
    ("items", "told"),
    [
        (WAVES, "their 'wave' has the shapes (3,), (4,). "),
        ([{"a": {"x": np.ones(2)}}, {"a": {"x": np.ones(3)}}], "their 'a'['x'] has the shapes (2,), (3,). "),
        ([{"n": [1]}, {"n": [1, 2]}], "their 'n' has as many entries as 1, 2. "),
        ([{"n": None}, {"n": None}], "found <class 'NoneType'>"),
        ([torch.ones(2), torch.ones(3)], "each has the shapes (2,), (3,). "),
        ([(torch.ones(2), 1), (torch.ones(3), 1)], "their [0] has the shapes (2,), (3,). "),
        ([{"x": torch.ones(n)} for n in range(9)], "the shapes (0,), (1,), (2,), (3,), .... "),
    ],
)
def test_what_does_not_stack_is_named(items: list[Any], told: str) -> None:
    with pytest.raises(ValueError, match="^the items of a batch cannot be stacked: ") as caught:
        stacked(items)
    assert told in str(caught.value) and CURE in str(caught.value)
    assert ("Give the loader options items that are dicts" in str(caught.value)) == (
        not isinstance(items[0], dict)
    )


def test_other_errors_are_left_alone() -> None:
    with pytest.raises(KeyError):
        stacked([{"a": 1}, {"b": 1}])
    with pytest.raises(RuntimeError, match="sparse|SparseTensor|layout") as caught:
        stacked([{"x": torch.ones(2).to_sparse()}, {"x": torch.ones(2)}])
    assert "cannot be stacked" not in str(caught.value)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(WAVES)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "given",
    [
        lambda: (WAVES, {"batch_size": 2}),
        lambda: (Stream(), {"batch_size": 2}),
        lambda: (DataLoader(WAVES, 2), {}),
    ],
    ids=["list", "stream", "loader of the user's"],
)
def test_fit_names_the_cure(given: Any, num_workers: int) -> None:
    data, options = given()
    if isinstance(data, DataLoader):
        data = DataLoader(WAVES, 2, num_workers=num_workers)
    else:
        options["num_workers"] = num_workers
    with pytest.raises(ValueError, match="their 'wave' has the shapes") as caught:
        small().fit(range(1), data, train_loader_kwargs=options)
    assert CURE in str(caught.value)


def test_the_cure_is_one() -> None:
    seen = []

    class Waves(bl.Brain):
        def compute_forward(self, batch: Any, stage: bl.Stage) -> Any:
            seen.append(batch.wave.data.shape)
            return self.modules.model(batch.wave.data.sum(dim=1, keepdim=True))

        def compute_objectives(self, predictions: Any, batch: Any, stage: bl.Stage) -> torch.Tensor:
            return predictions.mean()

    brain = small(Waves, model=torch.nn.Linear(1, 1))
    brain.fit(range(1), WAVES, train_loader_kwargs={"batch_size": 2, "collate_fn": bl.PaddedBatch})
    assert seen == [(2, 4), (2, 4)]
