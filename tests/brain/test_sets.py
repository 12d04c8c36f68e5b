"""What `fit` and `evaluate` take as data, and what they say of data that cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import brainlib as bl
from brainlib.data.sources import only_one_is_batched
from tests.brain.small import Batch, Regression, Rows, batches, joined, same, small, weights


class Stream:
    """Ready batches one after the other, as often as asked; nobody knows how many."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.num_fetched = 0

    def __iter__(self) -> Iterator[Batch]:
        for batch in batches(*self.sizes):
            self.num_fetched += 1
            yield batch


class ItemStream(IterableDataset[Batch]):
    def __init__(self, num_items: int) -> None:
        self.rows = Rows(num_items)

    def __iter__(self) -> Iterator[Batch]:
        return (self.rows[index] for index in range(len(self.rows)))


KINDS: dict[str, tuple[Callable[[], Any], dict[str, Any] | None]] = {
    "list of ready batches": (lambda: batches(4, 4, 2), None),
    "tuple of ready batches": (lambda: tuple(batches(4, 4, 2)), None),
    "list of items": (lambda: [Rows(10)[k] for k in range(10)], {"batch_size": 4}),
    "Dataset": (lambda: Rows(10), {"batch_size": 4}),
    "DataLoader": (lambda: DataLoader(Rows(10), batch_size=4), None),
    "DataLoader of an IterableDataset": (lambda: DataLoader(ItemStream(10), batch_size=4), None),
    "IterableDataset": (lambda: ItemStream(10), {"batch_size": 4}),
    "iterable without length": (lambda: Stream(4, 4, 2), None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_batches_from_every_kind(kind: str) -> None:
    """Same numbers, two epochs, also as validation set; a window that ends with the epoch, whatever is known before."""
    make_set, kwargs = KINDS[kind]
    brain = small(grad_accumulation_factor=2)
    brain.fit(range(2), make_set(), make_set(), train_loader_kwargs=kwargs, valid_loader_kwargs=kwargs)
    reference = small(grad_accumulation_factor=2)
    reference.fit(range(2), batches(4, 4, 2), batches(4, 4, 2))
    assert brain.optimizer_step == 4
    assert same(weights(brain), weights(reference))
    assert brain.evaluate(make_set(), test_loader_kwargs=kwargs) == reference.evaluate(batches(4, 4, 2))


def test_batches_may_be_tuples() -> None:
    class Brain(Regression):
        def compute_forward(self, batch: Any, stage: bl.Stage) -> torch.Tensor:
            return self.modules.model(batch[0])

        def compute_objectives(self, predictions: torch.Tensor, batch: Any, stage: bl.Stage) -> torch.Tensor:
            return torch.nn.functional.mse_loss(predictions, batch[1])

    rows = joined(batches(10))
    brain = small(Brain)
    brain.fit(range(1), TensorDataset(rows["x"], rows["y"]), train_loader_kwargs={"batch_size": 4})
    reference = small()
    reference.fit(range(1), batches(4, 4, 2))
    assert same(weights(brain), weights(reference))


def test_the_ten_line_example() -> None:
    class SimpleBrain(bl.Brain):
        def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
            return self.modules.model(batch["input"])

        def compute_objectives(
            self, predictions: torch.Tensor, batch: Batch, stage: bl.Stage
        ) -> torch.Tensor:
            return torch.nn.functional.l1_loss(predictions, batch["target"])

    model = torch.nn.Linear(10, 10)
    data = [{"input": torch.rand(10, 10), "target": torch.rand(10, 10)}]
    brain = SimpleBrain({"model": model}, opt_class=lambda p: torch.optim.SGD(p, 0.1))
    before = brain.evaluate(data)
    brain.fit(range(10), data)
    assert brain.evaluate(data) < before
    assert brain.modules.model is model


def test_the_callers_kwargs_are_left_alone() -> None:
    kwargs = {"batch_size": 4}
    brain = small()
    brain.fit(range(1), Rows(), Rows(), train_loader_kwargs=kwargs, valid_loader_kwargs=kwargs)
    brain.evaluate(Rows(), test_loader_kwargs=kwargs)
    brain.fit(range(1), Rows(), Rows(), train_loader_kwargs=kwargs, valid_loader_kwargs=kwargs)
    assert kwargs == {"batch_size": 4}


# -------------------------------------------------------------------------------------------------------- empty sets
EMPTY: dict[str, tuple[Callable[[], Any], dict[str, Any] | None]] = {
    "list": (list, None),
    "Dataset": (lambda: Rows(0), {"batch_size": 4}),
    "iterable": (lambda: Stream(), None),
    "drop_last": (lambda: Rows(3), {"batch_size": 4, "drop_last": True}),
    "DataLoader with drop_last": (lambda: DataLoader(Rows(3), batch_size=4, drop_last=True), None),
}


@pytest.mark.parametrize("kind", EMPTY)
def test_an_empty_training_set_is_an_error(kind: str) -> None:
    make_set, kwargs = EMPTY[kind]
    with pytest.raises(ValueError, match="no batch|empty") as caught:
        small().fit(range(2), make_set(), train_loader_kwargs=kwargs)
    assert "train" in str(caught.value).lower()
    assert ("drop_last" in str(caught.value)) == ("drop_last" in kind), "the reason, where it is the reason"


@pytest.mark.parametrize("kind", EMPTY)
def test_an_empty_validation_set_is_an_error(kind: str) -> None:
    make_set, kwargs = EMPTY[kind]
    with pytest.raises(ValueError, match="no batch|empty") as caught:
        small().fit(range(2), batches(2), make_set(), valid_loader_kwargs=kwargs)
    assert "valid" in str(caught.value).lower()


@pytest.mark.parametrize("kind", EMPTY)
def test_an_empty_test_set_is_an_error(kind: str) -> None:
    make_set, kwargs = EMPTY[kind]
    with pytest.raises(ValueError, match="no batch|empty") as caught:
        small().evaluate(make_set(), test_loader_kwargs=kwargs)
    assert "test" in str(caught.value).lower()


def test_no_set_at_all_is_an_error() -> None:
    with pytest.raises((TypeError, ValueError), match="train_set"):
        small().fit(range(1), None)
    with pytest.raises((TypeError, ValueError), match="train_set"):
        small().fit(range(1), 7)


# -------------------------------------------------------------------------------------------------------- generators
def test_a_generator_serves_one_epoch() -> None:
    brain = small()
    brain.fit(range(1), (batch for batch in batches(4, 2)))
    assert brain.optimizer_step == 2


def test_a_generator_used_up_says_so_in_the_second_epoch() -> None:
    brain = small()
    with pytest.raises(ValueError, match="generator|iterator") as caught:
        brain.fit(range(2), (batch for batch in batches(4, 2)))
    assert "list" in str(caught.value), "what to do next"
    assert brain.optimizer_step == 2


def test_a_generator_for_validation_says_so_too() -> None:
    with pytest.raises(ValueError, match="generator|iterator") as caught:
        small().fit(range(2), batches(4), (batch for batch in batches(2)))
    assert "valid" in str(caught.value).lower()


# ------------------------------------------------------------------------------------------ items taken for batches


ITEMS = [Rows(8)[number] for number in range(8)]
LOADER = {"batch_size": 4}


@pytest.mark.parametrize(
    ("train", "train_kwargs", "valid", "valid_kwargs", "named"),
    [
        (ITEMS, LOADER, ITEMS[:2], None, "valid_loader_kwargs"),
        (ITEMS, LOADER, tuple(ITEMS[:2]), {}, "valid_loader_kwargs"),
        (ITEMS, None, ITEMS[:2], LOADER, "train_loader_kwargs"),
        (ITEMS, LOADER, ITEMS[:2], LOADER, None),
        (ITEMS, LOADER, batches(4), None, None),
        (batches(4, 4), {"batch_size": None}, batches(4), None, None),
        (ITEMS, None, ITEMS[:2], None, None),
        (Rows(8), LOADER, batches(4), None, None),
        (ITEMS, LOADER, Rows(2), None, None),
        (ITEMS, LOADER, None, None, None),
    ],
)
def test_items_that_are_taken_for_batches_beside_items_are_told(
    train: Any, train_kwargs: Any, valid: Any, valid_kwargs: Any, named: str | None, caplog: Any
) -> None:
    brain = small()
    for _ in range(2):
        brain.fit(range(1), train, valid, train_loader_kwargs=train_kwargs, valid_loader_kwargs=valid_kwargs)
    told = [each.getMessage() for each in caplog.records if "taken for a batch" in each.getMessage()]
    assert len(told) == (named is not None)  # once, in two fits
    assert all(f"If they are items, give {named}, such as" in text for text in told)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ((torch.ones(3), 1), (torch.ones(5), 2), True),
        ((torch.ones(3), 1), (torch.ones(2, 3), torch.ones(2)), False),
        ([torch.ones(3), 1], [torch.ones(2, 3), torch.ones(2)], False),
        ({"text": "a"}, {"text": "bc"}, True),
        ({"text": "a"}, {"text": ["a", "b"]}, False),
        ({"tokens": [1, 2]}, {"tokens": [1]}, True),
        ({"tokens": [1, 2]}, {"tokens": [[1, 2], [1]]}, False),
        ({"x": 1.0}, {"y": 1.0}, False),
    ],
    ids=str,
)
def test_what_an_item_and_a_batch_differ_in(one: Any, other: Any, alike: bool) -> None:
    assert (only_one_is_batched([one], LOADER, [other], None) is not None) == alike
