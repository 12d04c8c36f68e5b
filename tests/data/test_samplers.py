"""Samplers: an order that is a function of (seed, epoch), alone and under a Brain's sources, entered anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader

import brainlib as bl
from brainlib.data.order import PlannedOrder, order_of
from brainlib.data.plan import BatchPlan, PlannedBatchSampler
from brainlib.data.sources import source_of

NUM = 40
LENGTHS = [1.0 + (n * 7 % 13) / 4 for n in range(NUM)]
WEIGHTS = [float(n % 3) for n in range(NUM)]

SAMPLERS: dict[str, Callable[..., Any]] = {
    "random": lambda **o: bl.ReproducibleRandomSampler(range(NUM), **o),
    "random with replacement": lambda **o: bl.ReproducibleRandomSampler(range(NUM), replacement=True, **o),
    "weighted": lambda **o: bl.ReproducibleWeightedRandomSampler(WEIGHTS, 30, **o),
    "weighted without replacement": lambda **o: bl.ReproducibleWeightedRandomSampler(WEIGHTS, 20, False, **o),
    "balanced": lambda **o: bl.BalancingDataSampler([{"k": n % 4 == 0} for n in range(NUM)], "k", **o),
    "dynamic": lambda **o: bl.DynamicBatchSampler(range(NUM), 12.0, lengths_list=LENGTHS, **o),
}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_order_is_a_function_of_seed_and_epoch(kind: str) -> None:
    def order(seed: int, epoch: int) -> list[Any]:
        torch.rand(3)
        sampler = SAMPLERS[kind](seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(1, 0) == order(1, 0)
    assert len({str(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1, 2)}) == 6
    assert list(SAMPLERS[kind](seed=1, epoch=2)) == order(1, 2)
    assert len(SAMPLERS[kind](seed=1, epoch=2)) == len(order(1, 2))


@pytest.mark.parametrize("kind", SAMPLERS)
def test_forgetting_the_epoch_is_said_once_more(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    sampler = SAMPLERS[kind]()
    with caplog.at_level("WARNING", logger="brainlib"):
        list(sampler)
        sampler.set_epoch(1)
        list(sampler)
        assert caplog.text == ""
        list(sampler)
    assert (
        "is iterated in epoch 1 once more, which gives the same order again: call set_epoch(epoch)"
        in caplog.text
    )


@pytest.mark.parametrize("kind", SAMPLERS)
def test_alone_the_seed_is_that_of_seed_everything(kind: str) -> None:
    bl.seed_everything(5)
    first = list(SAMPLERS[kind]())
    bl.seed_everything(6)
    assert list(SAMPLERS[kind]()) != first == list(SAMPLERS[kind](seed=5))
    bl.seed_everything(0)


def loader_of(sampler: Any, batch_size: int | None = 4, drop_last: bool = False) -> DataLoader[Any]:
    if isinstance(sampler, bl.DynamicBatchSampler):
        return DataLoader(range(NUM), batch_sampler=sampler)  # type: ignore[arg-type]
    return DataLoader(range(NUM), sampler=sampler, batch_size=batch_size, drop_last=drop_last)  # type: ignore[arg-type]


def batches_of(loader: DataLoader[Any], seed: int, epoch: int, start: int = 0) -> list[Any]:
    return [batch.tolist() for batch in source_of(loader, "train_set").read(seed, epoch, start)]


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_brain_gives_its_seed_and_enters_anywhere(kind: str) -> None:
    loader = loader_of(SAMPLERS[kind]())
    assert type(order_of(loader)) is PlannedOrder
    whole = batches_of(loader, seed=3, epoch=2)
    assert whole != batches_of(loader, seed=3, epoch=1) and whole != batches_of(loader, seed=4, epoch=2)
    for start in range(len(whole) + 1):
        assert batches_of(loader_of(SAMPLERS[kind]()), 3, 2, start) == whole[start:]
    alone = SAMPLERS[kind](seed=3, epoch=2)
    flat = [index for batch in alone for index in (batch if isinstance(batch, list) else [batch])]
    assert [index for batch in whole for index in batch] == flat
    assert batches_of(loader_of(SAMPLERS[kind](seed=3)), 77, 2) == whole, "a seed of its own stays in charge"


@pytest.mark.parametrize("kind", SAMPLERS)
def test_places_are_those_of_the_whole_order(kind: str) -> None:
    order = order_of(loader_of(SAMPLERS[kind]()))
    whole = [list(batch) for batch in order]
    assert [place.position for batch in whole for place in batch] == list(range(sum(map(len, whole))))
    order.start = len(whole) - 2
    assert [list(batch) for batch in order] == whole[-2:]
    assert order.num_batches == len(whole)


def test_items_one_by_one_and_last_ones_dropped() -> None:
    one_by_one = loader_of(SAMPLERS["random"](), batch_size=None)
    assert sorted(source_of(one_by_one, "train_set").read(0, 0)) == list(range(NUM))
    sizes = [len(batch) for batch in batches_of(loader_of(SAMPLERS["weighted"](), 4, drop_last=True), 0, 0)]
    assert sizes == [4] * 7
    assert [*sizes, 2] == [len(batch) for batch in batches_of(loader_of(SAMPLERS["weighted"](), 4), 0, 0)]


def test_what_a_position_leans_on() -> None:
    fingerprint = source_of(loader_of(SAMPLERS["dynamic"]()), "train_set").fingerprint()
    assert fingerprint == source_of(loader_of(SAMPLERS["dynamic"]()), "train_set").fingerprint()
    others = [
        bl.DynamicBatchSampler(range(NUM), 12.5, lengths_list=LENGTHS),
        bl.DynamicBatchSampler(range(NUM), 12.0, lengths_list=[9.0, *LENGTHS[1:]]),
        bl.DynamicBatchSampler(range(NUM), 12.0, lengths_list=LENGTHS, mix=0.5),
    ]
    for other in others:
        assert source_of(loader_of(other), "train_set").fingerprint() != fingerprint


def test_weights_are_kept() -> None:
    drawn = Counter(bl.ReproducibleWeightedRandomSampler([1.0, 0.0, 3.0, 0.0], 20_000, seed=0))
    assert set(drawn) == {0, 2} and abs(drawn[2] / 20_000 - 0.75) < 0.02
    firsts = Counter(
        next(iter(bl.ReproducibleWeightedRandomSampler([1.0, 0.0, 3.0], 2, replacement=False, seed=seed)))
        for seed in range(2000)
    )
    assert set(firsts) == {0, 2} and abs(firsts[2] / 2000 - 0.75) < 0.05


def test_balance() -> None:
    data = bl.DynamicItemDataset({str(n): {"spk": "a" if n < 90 else "b"} for n in range(100)})
    drawn = Counter(n < 90 for n in bl.BalancingDataSampler(data, "spk", num_samples=10_000, seed=0))
    assert abs(drawn[True] / 10_000 - 0.5) < 0.03


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bl.ReproducibleRandomSampler([]), "num_samples is 0; it must be from 1 to 0"),
        (lambda: bl.ReproducibleRandomSampler([1], num_samples=2), "from 1 to 1, or replacement=True"),
        (lambda: bl.ReproducibleWeightedRandomSampler([1.0, -1.0], 2), "weights must be a list of numbers"),
        (lambda: bl.ReproducibleWeightedRandomSampler([0.0, 0.0], 2), "not all of them zero"),
        (
            lambda: bl.ReproducibleWeightedRandomSampler([float("nan")], 2),
            "weights must be a list of numbers",
        ),
        (
            lambda: bl.ReproducibleWeightedRandomSampler([0.0, 1.0], 2, False),
            "num_samples is 2, and 1 item has a",
        ),
    ],
)
def test_what_cannot_be_drawn(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        make()
    assert message in str(error.value)


def test_a_torch_batch_sampler_round_one_of_ours() -> None:
    sampler = BatchSampler(bl.ReproducibleRandomSampler(range(NUM)), 8, drop_last=False)
    loader = DataLoader(range(NUM), batch_sampler=sampler)  # type: ignore[arg-type]
    whole = batches_of(loader, 1, 1)
    assert [len(batch) for batch in whole] == [8] * 5 and batches_of(loader, 1, 1, 3) == whole[3:]
    assert np.unique(whole).tolist() == list(range(NUM))


TOLD = {
    "random": "ReproducibleRandomSampler(40 items",
    "random with replacement": "ReproducibleRandomSampler(40 items, with replacement",
    "weighted": "ReproducibleWeightedRandomSampler(30 of 40 items, with replacement",
    "weighted without replacement": "ReproducibleWeightedRandomSampler(20 of 40 items",
    "balanced": "BalancingDataSampler(40 items, with replacement, 2 values of 'k' alike",
    "dynamic": "DynamicBatchSampler(40 items, batches of a length up to 12, 2 buckets",
}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_sampler_tells_what_it_is(kind: str) -> None:
    sampler = SAMPLERS[kind]()
    assert repr(sampler) == f"{TOLD[kind]}, seed: that of the run, next epoch: 0)"
    sampler = SAMPLERS[kind](seed=7)
    sampler.set_epoch(3)
    assert repr(sampler) == f"{TOLD[kind]}, seed: 7, next epoch: 3)"


def test_batches_and_loaders_tell_what_they_are() -> None:
    class Mine(PlannedBatchSampler):
        def plan(self, seed: int, epoch: int) -> BatchPlan:
            raise AssertionError("a repr makes no plan")

    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    assert (
        repr(PlannedBatchSampler([[0]]))
        == "PlannedBatchSampler(1 batch, seed: that of the run, next epoch: 0)"
    )
    assert repr(Mine(seed=1)) == "Mine(batches of a plan, seed: 1, next epoch: 0)"
    dropping = bl.DynamicBatchSampler(
        range(3), 2.0, lengths_list=[1.0, 2.0, 3.0], over_long="drop", max_batch_ex=4
    )
    assert "(2 items, 1 dropped, batches of a length up to 2, of 4 items at most, " in repr(dropping)
    loader = bl.SaveableDataLoader(range(5), batch_size=2)
    assert repr(loader) == "SaveableDataLoader(5 items of a range, 2 a batch; stands at epoch 0, batch 0)"
    batches = iter(loader)
    next(batches)
    assert repr(loader).endswith("stands at epoch 0, batch 1)")
    list(batches)
    assert repr(loader).endswith("stands at epoch 1, batch 0)")
    assert repr(bl.SaveableDataLoader([1], batch_sampler=[[0]])).startswith(
        "SaveableDataLoader(1 item of a list, batches of the sampler;"
    )
    assert repr(bl.SaveableDataLoader(Stream(), num_workers=2)).startswith(
        "SaveableDataLoader(Stream, 1 a batch, 2 workers;"
    )


def test_values_of_any_kind_are_balanced_as_what_they_are() -> None:
    def weights(*values: Any) -> list[float]:
        return bl.BalancingDataSampler([{"x": value} for value in values], "x").weights.tolist()

    assert weights(1, "1", "1") == [1.0, 0.5, 0.5]
    assert weights(None, "a", "a") == [1.0, 0.5, 0.5]
    assert weights((1, 2), (1, 2), (2, 3)) == [0.5, 0.5, 1.0]
    assert weights(torch.tensor(1), torch.tensor(1), torch.tensor(0)) == [0.5, 0.5, 1.0]
    with pytest.raises(ValueError, match="the values of 'x' are of the type list"):
        weights([1], [2])
    with pytest.raises(ValueError, match="num_samples is 0"):
        bl.BalancingDataSampler([{"x": 1}], "x", num_samples=0)


def test_of_nothing_nothing_can_be_drawn() -> None:
    for make in (
        lambda: bl.ReproducibleWeightedRandomSampler([], 1),
        lambda: bl.BalancingDataSampler([], "x"),
    ):
        with pytest.raises(ValueError, match="the data set is empty"):
            make()
