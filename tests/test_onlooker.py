"""The seam for whoever looks on at a fit: told in this order, and nobody's training is changed by it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from brainlib.onlooker import Onlooker, invite, present
from tests.contracts.brains import InnerFit, Items, Plain, ending, make, train


class Noting(Onlooker):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def fit_starts(self, brain: Any, epoch_counter: Any, **sets: Any) -> None:
        self.notes.append(
            f"starts on {type(sets['train_set']).__name__} {'inside' * brain._scope.inner}".strip()
        )

    def batches(self, brain: Any, batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches, 1):
            assert brain.step == number - 1  # all that belongs to the one before is done
            yield batch
            self.notes.append(str(number))

    def fit_ends(self, brain: Any) -> None:
        self.notes.append("ends")


@pytest.fixture
def noting() -> Iterator[Noting]:
    before, onlooker = present(), Noting()
    invite(onlooker)
    yield onlooker
    invite(before)


def test_it_is_told_where_a_fit_begins_and_ends_and_sees_every_batch(noting: Noting) -> None:
    train(make(Plain), num_epochs=2)
    assert noting.notes == ["starts on Items", *"12345", *"12345", "ends"]


def test_inner_fits_are_told_too(noting: Noting) -> None:
    train(make(InnerFit), num_epochs=1)
    assert noting.notes == ["starts on Items", "starts on list inside", "1", "2", "ends", *"12345", "ends"]


def test_it_changes_nothing(noting: Noting) -> None:
    watched = ending(train(make(Plain), items=Items()))
    invite(Onlooker())
    assert watched == ending(train(make(Plain), items=Items()))
