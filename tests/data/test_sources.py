"""A set of any kind, read from any position: the end of the whole epoch."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, get_worker_info

from brainlib.data.sources import BatchSource, IterableBatches, LoaderBatches, Lookahead, is_ready, source_of
from brainlib.seeding import generator_states


class Noisy(Dataset[Any]):
    """Ten items that draw from all three generators."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return index + torch.rand(1).double() + random.random() + float(np.random.rand())


class WithoutLength(Dataset[Any]):
    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index)


class AtOnce(Noisy):
    """Reads a batch at once, and returns one object for it."""

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return torch.tensor(indices).double() + torch.rand(1).double()


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for place in torch.randperm(10).tolist():
            yield place + torch.rand(1)


class Drawing:
    """An iterable without a length that is told the epoch, and draws."""

    epoch = None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        for place in torch.randperm(4).tolist():
            yield (
                100.0 * (self.epoch or 0) + place + torch.rand(1) + random.random() + float(np.random.rand())
            )


class OwnLoader(DataLoader[Any]):
    pass


SETS: dict[str, Callable[[], Any]] = {
    "list": lambda: [torch.tensor(i) for i in range(5)],
    "tuple": lambda: tuple(torch.tensor(i) for i in range(5)),
    "loader": lambda: DataLoader(Noisy(), batch_size=3),
    "shuffled": lambda: DataLoader(Noisy(), batch_size=3, shuffle=True),
    "one by one": lambda: DataLoader(Noisy(), batch_size=None, shuffle=True),
    "batches at once": lambda: DataLoader(
        AtOnce(), batch_size=3, shuffle=True, collate_fn=lambda batch: batch
    ),
    "subset": lambda: DataLoader(Subset(Noisy(), [7, 1, 3, 2, 9]), batch_size=2, shuffle=True),
    "without a length": lambda: DataLoader(WithoutLength(), batch_sampler=[[0, 1], [2], [3, 4]]),
    "subclass of DataLoader": lambda: OwnLoader(Noisy(), batch_size=3, shuffle=True),
    "IterableDataset": lambda: DataLoader(Streamed(), batch_size=3),
    "iterable": Drawing,
}


def read(data: Any, epoch: int = 0, start: int = 0, seed: int = 0) -> list[Any]:
    return [
        torch.as_tensor(batch).tolist() for batch in source_of(data, "train_set").read(seed, epoch, start)
    ]


@pytest.mark.parametrize("kind", SETS)
def test_read_from_the_middle_it_is_the_end_of_the_whole(kind: str) -> None:
    whole = read(SETS[kind](), epoch=1)
    for start in (0, 1, 2, len(whole)):
        torch.rand(3), random.random(), np.random.rand()
        assert read(SETS[kind](), epoch=1, start=start) == whole[start:]


@pytest.mark.parametrize("kind", SETS)
def test_reading_draws_nothing_from_the_training(kind: str) -> None:
    before = str(generator_states())
    read(SETS[kind]())
    assert str(generator_states()) == before


@pytest.mark.parametrize("kind", [kind for kind in SETS if kind not in ("list", "tuple", "without a length")])
def test_epochs_and_seeds_differ(kind: str) -> None:
    drawn = [str(read(SETS[kind](), epoch, seed=seed)) for epoch, seed in ((0, 0), (1, 0), (0, 1))]
    assert len(set(drawn)) == 3


@pytest.mark.parametrize("kind", SETS)
def test_an_interrupted_reading_can_begin_anew(kind: str) -> None:
    source = source_of(SETS[kind](), "train_set")
    batches = source.read(0, 0)
    first = torch.as_tensor(next(iter(batches))).tolist()
    again = [torch.as_tensor(batch).tolist() for batch in source.read(0, 0)]
    assert again[0] == first
    assert again == read(SETS[kind]())


def test_entering_an_iterable_in_the_middle_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="brainlib"):
        read(Drawing(), start=0)
        assert caplog.text == ""
        read(Drawing(), start=2)
    assert "train_set cannot be entered in the middle: reading 2 batches to get there" in caplog.text


@pytest.mark.parametrize("index", [1, 3, 9])
def test_what_was_read_before_the_position_is_not_read_again(index: int) -> None:
    """Of a loader: only what is asked for is fetched."""
    fetched: list[int] = []

    class Watched(Noisy):
        def __getitem__(self, index: int) -> Any:
            fetched.append(index)
            return super().__getitem__(index)

    list(source_of(DataLoader(Watched(), batch_size=1), "train_set").read(0, 0, index))
    assert fetched == list(range(index, 10))


def test_one_batch_of_an_iterable_is_read_at_a_time() -> None:
    """A stream from a microphone must not be read ahead."""
    given: list[int] = []

    def stream() -> Iterator[int]:
        for number in range(3):
            given.append(number)
            yield number

    batches = IterableBatches(stream(), "train_set").read(0, 0)
    assert (next(batches), given) == (0, [0])


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ([1], BatchSource),
        ((1, 2), BatchSource),
        (DataLoader(Noisy()), LoaderBatches),
        (OwnLoader(Noisy()), IterableBatches),
        (DataLoader(Streamed()), IterableBatches),
        (Drawing(), IterableBatches),
        (iter([1]), IterableBatches),
    ],
)
def test_which_source_reads_what(data: Any, kind: type) -> None:
    assert type(source_of(data, "train_set")) is kind


def test_a_fingerprint_tells_what_a_position_leans_on() -> None:
    assert source_of([1, 2, 3], "train_set").fingerprint() == {"batches": 3}
    assert source_of(DataLoader(Noisy(), batch_size=3), "train_set").fingerprint() == {
        "items": 10,
        "batch_size": 3,
        "batches": 4,
    }
    assert source_of(SETS["without a length"](), "train_set").fingerprint() == {}
    assert source_of(Drawing(), "train_set").fingerprint() == {}


@pytest.mark.parametrize(
    "data", [[], (), DataLoader([], batch_size=2), DataLoader([1], batch_size=2, drop_last=True)]
)
def test_an_empty_set_is_refused_by_its_name(data: Any) -> None:
    with pytest.raises(ValueError, match="valid_set is empty: "):
        source_of(data, "valid_set")


def test_too_few_items_for_one_batch_say_why() -> None:
    with pytest.raises(ValueError, match="1 item with batch_size=2 gave no batch. With drop_last=True fewer"):
        source_of(DataLoader([1], batch_size=2, drop_last=True), "train_set")


def _set_gain(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.gain = 10 + worker


class Gained(Dataset[Any]):
    """Wants to be opened by its worker, as files and databases do."""

    gain = None

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        assert self.gain is not None, "worker_init_fn has not reached the dataset"
        return self.gain


def test_worker_init_fn_reaches_the_users_dataset() -> None:
    loader = DataLoader(Gained(), batch_size=2, num_workers=1, worker_init_fn=_set_gain)
    assert read(loader) == [[10, 10], [10, 10]]


def test_a_loader_keeps_the_users_collate_function() -> None:
    """It is handed what the dataset gave, without the places."""
    seen: list[Any] = []
    loader = DataLoader(["a", "b", "c"], batch_size=2, collate_fn=lambda items: seen.append(items) or items)
    assert list(source_of(loader, "train_set").read(0, 0)) == [["a", "b"], ["c"]]
    assert seen == [["a", "b"], ["c"]]


@pytest.mark.parametrize("data", [[1, 2], (1,), DataLoader([1]), iter([1]), {1: 2}.values()])
def test_what_is_ready(data: Any) -> None:
    assert is_ready(data, None)


@pytest.mark.parametrize("data", [Noisy(), deque([1]), np.zeros(3), torch.zeros(3)])
def test_what_has_to_be_batched(data: Any) -> None:
    assert not is_ready(data, None)


def test_a_list_with_loader_options_is_one_of_items() -> None:
    assert not is_ready([1, 2], {"batch_size": 2})
    assert is_ready([1, 2], {})


def test_the_last_batch_of_a_lookahead_is_known_only_when_asked() -> None:
    given: list[int] = []

    def batches() -> Iterator[int]:
        for number in range(3):
            given.append(number)
            yield number

    ahead = Lookahead(batches())
    assert (next(ahead), given) == (0, [0])
    assert (ahead.is_last(), given) == (False, [0, 1])
    assert (ahead.is_last(), next(ahead), next(ahead)) == (False, 1, 2)
    assert ahead.is_last()
    with pytest.raises(StopIteration):
        next(ahead)
