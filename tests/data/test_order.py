"""The order of an epoch: the same from any batch on, whatever the sampler is and whatever was drawn before."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, WeightedRandomSampler

from brainlib.data.order import EpochOrder, PlainOrder, drawn_apart, order_of
from brainlib.seeding import generator_states

NUM_ITEMS = 150


class Kept(Sampler[int]):
    """Shuffles with a generator that it keeps, under a name of its own."""

    def __init__(self, generator: Any) -> None:
        self.dice = generator

    def __len__(self) -> int:
        return NUM_ITEMS

    def __iter__(self) -> Iterator[int]:
        order = list(range(NUM_ITEMS))
        if isinstance(self.dice, torch.Generator):
            return iter(torch.randperm(NUM_ITEMS, generator=self.dice).tolist())
        self.dice.shuffle(order)
        return iter(order)


class Told(Sampler[int]):
    """As torch's DistributedSampler: the epoch is told."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[int]:
        return iter([(self.epoch + place) % 4 for place in range(4)])


class Batches:
    """A batch sampler that is no class of torch's, without a length."""

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(NUM_ITEMS).tolist()
        return iter([order[i : i + 2] for i in range(0, NUM_ITEMS, 2)])


ITEMS = list(range(NUM_ITEMS))
LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "in order": lambda: DataLoader(ITEMS, batch_size=2),
    "shuffled": lambda: DataLoader(ITEMS, batch_size=2, shuffle=True),
    "shuffled by a generator": lambda: DataLoader(
        ITEMS, batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(5)
    ),
    "last one dropped": lambda: DataLoader(ITEMS, batch_size=4, shuffle=True, drop_last=True),
    "one by one": lambda: DataLoader(ITEMS, batch_size=None, shuffle=True),
    "with replacement": lambda: DataLoader(ITEMS, batch_size=2, sampler=RandomSampler(ITEMS, True)),
    "fewer than all": lambda: DataLoader(ITEMS, batch_size=2, sampler=RandomSampler(ITEMS, num_samples=140)),
    "weighted": lambda: DataLoader(
        ITEMS, batch_size=2, sampler=WeightedRandomSampler(torch.arange(1.0, 151), 140)
    ),
    "torch.Generator": lambda: DataLoader(ITEMS, batch_size=2, sampler=Kept(torch.Generator())),
    "random.Random": lambda: DataLoader(ITEMS, batch_size=2, sampler=Kept(random.Random(1))),
    "default_rng": lambda: DataLoader(ITEMS, batch_size=2, sampler=Kept(np.random.default_rng(1))),
    "in a batch sampler": lambda: DataLoader(
        ITEMS, batch_sampler=BatchSampler(Kept(random.Random(1)), 2, False)
    ),
    "batches of ones own": lambda: DataLoader(ITEMS, batch_sampler=Batches()),
}


def walked(order: EpochOrder, epoch: int = 0, start: int = 0, seed: int = 0) -> list[Any]:
    order.seed, order.epoch, order.start = seed, epoch, start
    return list(order)


@pytest.mark.parametrize("kind", LOADERS)
def test_the_rest_of_an_epoch_is_the_end_of_the_whole(kind: str) -> None:
    """Index, key and position; by a new object, after other epochs and other draws."""
    whole = walked(order_of(LOADERS[kind]()), epoch=2)
    for start in (0, 1, 33, 64, len(whole) - 1, len(whole)):
        order = order_of(LOADERS[kind]())
        walked(order, epoch=1)
        torch.rand(3), random.random(), np.random.rand()
        assert walked(order, epoch=2, start=start) == whole[start:]


@pytest.mark.parametrize("kind", LOADERS)
def test_walking_it_draws_nothing_from_the_training(kind: str) -> None:
    before = str(generator_states())
    walked(order_of(LOADERS[kind]()))
    assert str(generator_states()) == before


@pytest.mark.parametrize("kind", [kind for kind in LOADERS if kind != "in order"])
def test_each_epoch_has_another_order(kind: str) -> None:
    order = order_of(LOADERS[kind]())
    indices = [str(list(_indices(order, epoch))) for epoch in range(3)]
    assert len(set(indices)) == 3


@pytest.mark.parametrize("kind", ["shuffled by a generator", "torch.Generator"])
def test_the_users_seed_stays_in_charge_of_the_users_generator(kind: str) -> None:
    order = order_of(LOADERS[kind]())
    assert list(_indices(order, 1, seed=0)) == list(_indices(order, 1, seed=99))


@pytest.mark.parametrize("kind", ["shuffled", "random.Random", "weighted", "batches of ones own"])
def test_else_it_is_that_of_the_run(kind: str) -> None:
    order = order_of(LOADERS[kind]())
    assert list(_indices(order, 1, seed=0)) != list(_indices(order, 1, seed=99))


def _indices(order: EpochOrder, epoch: int, seed: int = 0) -> Iterator[Any]:
    order.seed, order.epoch, order.start = seed, epoch, 0
    return order.indices()


def test_a_sampler_that_wants_the_epoch_is_told_it() -> None:
    order = order_of(DataLoader(ITEMS[:4], batch_size=2, sampler=Told()))
    assert [list(_indices(order, epoch)) for epoch in (0, 1, 0)] == [
        [[0, 1], [2, 3]],
        [[1, 2], [3, 0]],
        [[0, 1], [2, 3]],
    ]


def test_positions_count_items_also_in_batches_of_different_sizes() -> None:
    order = order_of(DataLoader(ITEMS, batch_sampler=[[7], [3, 4, 5], [1, 0]]))
    assert [[place.position for place in batch] for batch in walked(order)] == [[0], [1, 2, 3], [4, 5]]
    assert [[place.position for place in batch] for batch in walked(order, start=2)] == [[4, 5]]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("num_items", "size", "drop_last", "sizes"), [
    (10, 4, False, [4, 4, 2]), (10, 4, True, [4, 4]), (8, 4, True, [4, 4]), (3, 4, False, [3]), (3, 4, True, []),
])  # fmt: skip
def test_how_a_plain_order_is_cut(
    num_items: int, size: int, drop_last: bool, sizes: list[int], shuffle: bool
) -> None:
    order = PlainOrder(num_items, size, shuffle, drop_last)
    batches = list(order.indices())
    assert [len(batch) for batch in batches] == sizes
    assert order.num_batches == len(order) == len(sizes)
    if not drop_last:
        assert sorted(index for batch in batches for index in batch) == list(range(num_items))


def test_order_and_positions_of_a_plain_order_are_those_of_the_general_one() -> None:
    plain = order_of(DataLoader(ITEMS, batch_size=4))
    general = EpochOrder(BatchSampler(range(NUM_ITEMS), 4, False))
    assert type(plain) is PlainOrder
    assert walked(plain, epoch=3) == walked(general, epoch=3)


def test_what_is_drawn_apart_is_read_as_far_as_it_is_asked_for() -> None:
    read: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            read.append(len(read))
            yield read[-1]

    values = drawn_apart(endless(), seed=0, chunk_size=1)
    assert [next(values), next(values)] == [0, 1]
    assert read == [0, 1]


@pytest.mark.parametrize("num_items", [0, 1, 3, 4, 8])
def test_chunks_change_nothing(num_items: int) -> None:
    class Drawing:
        def __iter__(self) -> Iterator[float]:
            for _ in range(num_items):
                yield torch.rand(1).item() + random.random() + float(np.random.rand())

    one, four = (list(drawn_apart(Drawing(), 7, chunk_size=size)) for size in (1, 4))
    assert one == four
    assert len(one) == num_items


def test_an_error_in_a_sampler_puts_the_generators_back() -> None:
    def failing() -> Iterator[int]:
        torch.rand(1)
        yield 1
        raise OSError("no more")

    before = str(generator_states())
    with pytest.raises(OSError, match="no more"):
        list(drawn_apart(failing(), seed=0))
    assert str(generator_states()) == before
