"""What an item draws is a function of its place: no worker, no batch size, no history."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, random_split

from brainlib.data.randomness import Place, SeededCollate, SeededDataset, kept_apart, seed_at
from brainlib.data.sources import source_of
from brainlib.seeding import generator_states


def three_draws() -> tuple[float, float, float]:
    return torch.rand(1).item(), random.random(), float(np.random.rand())


class Drawing(Dataset[Any]):
    def __init__(self, num_items: int = 8) -> None:
        self.num_items = num_items

    def __len__(self) -> int:
        return self.num_items

    def __getitem__(self, index: int) -> Any:
        return (index, *three_draws())


class AtOnce(Drawing):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def drawn(dataset: Any, batch_size: int | None, epoch: int = 0) -> list[Any]:
    loader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, collate_fn=lambda items: items)
    batches = source_of(loader, "train_set").read(3, epoch)
    return list(batches) if batch_size is None else [item for batch in batches for item in batch]


@pytest.mark.parametrize(
    "dataset",
    [
        Drawing(),
        Subset(Drawing(), range(8)),
        Subset(Subset(Drawing(20), range(10)), range(8)),
        random_split(Drawing(), [8, 0])[0],
    ],
    ids=["dataset", "subset", "subset of a subset", "random_split"],
)
def test_an_item_draws_the_same_in_any_batch(dataset: Any) -> None:
    """torch gives a Subset a `__getitems__`; it reads batches only if the dataset below does."""
    whole = drawn(dataset, 8)
    assert len({item[1] for item in whole}) == 8
    for size in (1, 3, None):
        assert drawn(dataset, size) == whole


@pytest.mark.parametrize("wrap", [False, True], ids=["dataset", "subset"])
def test_a_dataset_that_reads_batches_draws_as_its_batch_does(wrap: bool) -> None:
    dataset = Subset(AtOnce(), range(8)) if wrap else AtOnce()
    assert drawn(dataset, 4) == drawn(dataset, 4)
    assert drawn(dataset, 4) != drawn(dataset, 4, epoch=1)
    assert len({item[1] for item in drawn(dataset, 4)}) == 8, "no two items of a batch draw alike"


def test_places_draw_differently() -> None:
    draws = []
    for key in (0, 1, 2**63, 2**64 - 1):
        for position in (0, 1, 2, 2**32, 2**40):
            seed_at(key, position)
            draws.append(three_draws())
    for each in zip(*draws, strict=True):
        assert len(set(each)) == len(draws)


def test_the_collate_function_draws_from_a_stream_of_its_own() -> None:
    items = SeededDataset(Drawing())
    read = [items[Place(5, key=1, position=p)] for p in (0, 1)]
    draws = SeededCollate(lambda each: (each, three_draws()))(read)
    assert draws == SeededCollate(lambda each: (each, three_draws()))(read)
    assert draws[0] == [each.items for each in read], "the user's function sees items, no places"
    assert draws[1] != read[0].items[1:]


# --------------------------------------------------------------------------------------------------- the dataset inside
def test_attributes_are_those_of_the_users_dataset() -> None:
    """A worker_init_fn opens files through `get_worker_info().dataset`."""
    users = Drawing()
    items = SeededDataset(users)
    assert items.num_items == 8
    items.num_items = 3
    items.opened = "file"
    assert (users.num_items, users.opened) == (3, "file")
    with pytest.raises(AttributeError, match="nowhere"):
        items.nowhere  # noqa: B018


def test_it_reads_batches_if_and_only_if_the_dataset_does() -> None:
    assert not hasattr(SeededDataset(Drawing()), "__getitems__")
    assert not hasattr(SeededDataset(Subset(Drawing(), [0])), "__getitems__")
    assert hasattr(SeededDataset(AtOnce()), "__getitems__")
    assert hasattr(SeededDataset(Subset(AtOnce(), [0])), "__getitems__")


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda each: pickle.loads(pickle.dumps(each))])
@pytest.mark.parametrize("kind", [Drawing, AtOnce])
def test_it_can_be_sent_to_a_worker(copied: Any, kind: Any) -> None:
    """By pickle, where processes are spawned."""
    items = SeededDataset(kind())
    place = Place(2, key=1, position=2)
    twin = copied(items)
    assert twin[place] == items[place]
    assert hasattr(twin, "__getitems__") == hasattr(items, "__getitems__")


# ---------------------------------------------------------------------------------------------- in the training process
def test_reading_leaves_generators_and_threads() -> None:
    before, threads, inside = str(generator_states()), torch.get_num_threads(), []

    def batches() -> Iterator[Any]:
        for _ in range(2):
            inside.append(torch.get_num_threads())
            yield three_draws()

    torch.set_num_threads(2)
    try:
        assert len(list(kept_apart(batches()))) == 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert inside == [1, 1]
    assert str(generator_states()) == before


def test_reading_leaves_them_after_an_error_too() -> None:
    def batches() -> Iterator[Any]:
        three_draws()
        raise OSError("broken file")
        yield

    before, threads = str(generator_states()), torch.get_num_threads()
    with pytest.raises(OSError, match="broken file"):
        list(kept_apart(batches()))
    assert str(generator_states()) == before
    assert torch.get_num_threads() == threads
