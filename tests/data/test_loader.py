"""SaveableDataLoader: a loop that was cut goes on with the batches that would have come, and torch is not patched."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

import brainlib as bl
from brainlib.data.sources import LoaderBatches, source_of


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return index + torch.rand(1).double() + random.random() + float(np.random.rand())


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(torch.arange(7) + torch.rand(7))


LOADERS: dict[str, Callable[[], bl.SaveableDataLoader]] = {
    "in order": lambda: bl.SaveableDataLoader(Noisy(), batch_size=3),
    "shuffled": lambda: bl.SaveableDataLoader(Noisy(), batch_size=3, shuffle=True),
    "two workers": lambda: bl.SaveableDataLoader(Noisy(), batch_size=2, shuffle=True, num_workers=2),
    "dynamic": lambda: bl.SaveableDataLoader(
        Noisy(),
        batch_sampler=bl.DynamicBatchSampler(range(10), 6.0, lengths_list=[1.0 + n % 3 for n in range(10)]),
    ),
    "a stream": lambda: bl.SaveableDataLoader(Stream(), batch_size=2),
}


def epochs(loader: bl.SaveableDataLoader, num: int = 2) -> list[Any]:
    return [batch.tolist() for _ in range(num) for batch in loader]


@pytest.mark.parametrize("kind", LOADERS)
def test_a_cut_loop_goes_on(kind: str) -> None:
    whole = epochs(LOADERS[kind]())
    assert epochs(LOADERS[kind]()) == whole
    for cut in (0, 3, len(whole) - 1) if kind == "two workers" else range(len(whole)):
        loader, batches = LOADERS[kind](), []
        while len(batches) <= cut:
            for batch in loader:
                batches.append(batch.tolist())
                if len(batches) > cut:
                    break
        state = loader.state_dict()
        torch.rand(5), random.random()
        resumed = LOADERS[kind]()
        resumed.load_state_dict(state)
        rest = epochs(resumed, 2 - state["epoch"])
        assert batches + rest == whole


def test_epochs_differ_and_can_be_chosen() -> None:
    loader = LOADERS["shuffled"]()
    first, second = epochs(loader, 1), epochs(loader, 1)
    assert first != second
    loader.set_epoch(0)
    assert epochs(loader, 1) == first


def test_what_was_read_ahead_does_not_count() -> None:
    loader = LOADERS["two workers"]()
    batches = iter(loader)
    next(batches)
    assert loader.state_dict()["batches"] == 1
    del batches


def test_reading_draws_nothing_from_the_training() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    epochs(LOADERS["shuffled"]())
    assert torch.equal(torch.rand(1), expected)


def test_other_data_is_refused_in_the_middle_of_an_epoch() -> None:
    loader = LOADERS["shuffled"]()
    next(iter(loader))
    other = bl.SaveableDataLoader(Noisy(), batch_size=2, shuffle=True)
    with pytest.raises(
        ValueError, match="the data changed in the middle of an epoch: the loader had {'items': 10"
    ):
        other.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="the state of a loader has the keys"):
        other.load_state_dict({"batches": 1})


def test_its_state_is_a_checkpoint_s() -> None:
    """Plain values, which the safe loader reads back."""
    loader = bl.SaveableDataLoader(Noisy(), batch_size=3, shuffle=True, seed=0)
    assert loader.state_dict() == {
        "epoch": 0,
        "batches": 0,
        "seed": 0,
        "data": {"items": 10, "batch_size": 3, "batches": 4},
    }


def test_a_brain_takes_its_parts_and_reads_in_its_own_order() -> None:
    source = source_of(LOADERS["shuffled"](), "train_set")
    assert type(source) is LoaderBatches
    plain = source_of(DataLoader(Noisy(), batch_size=3, shuffle=True), "train_set")
    assert [b.tolist() for b in source.read(4, 2, 1)] == [b.tolist() for b in plain.read(4, 2, 1)]


def test_items_of_a_dynamic_set_become_padded_batches() -> None:
    data = bl.DynamicItemDataset({"a": {"n": 1}, "b": {"n": 2}})
    loaders = [
        bl.SaveableDataLoader(data, batch_size=2),
        bl.SaveableDataLoader(Subset(data, [0, 1]), batch_size=2),
        bl.Brain().make_dataloader(data, bl.Stage.TRAIN, batch_size=2),
    ]
    for loader in loaders:
        (batch,) = loader
        assert isinstance(batch, bl.PaddedBatch) and batch.n.tolist() == [1, 2]
    (batch,) = bl.SaveableDataLoader(data, batch_size=2, collate_fn=lambda items: items)
    assert batch == [{"id": "a", "n": 1}, {"id": "b", "n": 2}]
    assert next(iter(bl.SaveableDataLoader(data, batch_size=None))) == {"id": "a", "n": 1}


def test_torch_is_as_it_was() -> None:
    import torch.utils.data.dataloader as torchs

    for cls in (torchs._BaseDataLoaderIter, DataLoader):
        for value in vars(cls).values():
            assert not getattr(value, "__module__", "torch").startswith("brainlib")
