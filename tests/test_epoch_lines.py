"""The line of an epoch: changes, marks, and what is kept of it in a checkpoint."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from brainlib.checkpoint.checkpointer import Checkpointer
from brainlib.epoch_lines import ClosedEpoch, EpochLines


def lines(
    *epochs: dict[str, dict[str, Any]], criterion: Any = None, begin: EpochLines | None = None
) -> list[str]:
    made, told = begin or EpochLines(clock=lambda: 0.0), []
    for number, groups in enumerate(epochs, start=1):
        made.closes(number)
        made.hear("", {"epoch": number}, groups)
        told.append(made.close(f"epoch {number}", criterion).removesuffix("; 0.0 s"))
    return told


def test_best_is_said_of_a_loss_and_of_the_criterion_alone() -> None:
    epochs = [
        {"valid": {"loss": loss, "accuracy": accuracy, "rate": rate}}
        for loss, accuracy, rate in ((0.5, 0.8, 1.0), (0.4, 0.9, 2.0), (0.6, 0.7, 3.0))
    ]
    assert lines(*epochs, criterion=("max", "accuracy")) == [
        "epoch 1: valid loss 0.5, valid accuracy 0.8, valid rate 1",
        "epoch 2: valid loss 0.4 (-0.1, best), valid accuracy 0.9 (+0.1, best), valid rate 2 (+1)",
        "epoch 3: valid loss 0.6 (+0.2), valid accuracy 0.7 (-0.2), valid rate 3 (+1)",
    ]
    assert lines(*epochs, criterion=("min", "rate"))[2].endswith(
        "valid accuracy 0.7 (-0.2), valid rate 3 (+1)"
    )


def test_without_a_validation_the_training_loss_has_the_mark() -> None:
    assert lines({"train": {"loss": 2.0}}, {"train": {"loss": 1.0}})[1] == "epoch 2: train loss 1 (-1, best)"
    both = {"train": {"loss": 2.0}, "valid": {"loss": 3.0}}, {"train": {"loss": 1.0}, "valid": {"loss": 3.0}}
    assert lines(*both)[1] == "epoch 2: train loss 1 (-1), valid loss 3 (+0)"


def test_an_epoch_whose_loss_was_not_finite_is_passed_over() -> None:
    told = lines(*({"valid": {"loss": loss}} for loss in (0.5, math.nan, 0.25)))
    assert told[1:] == ["epoch 2: valid loss nan", "epoch 3: valid loss 0.25 (-0.25, best)"]


def test_many_numbers_are_not_all_shown_and_what_is_no_number_is_not() -> None:
    (line,) = lines({"valid": {**{f"class {n}": float(n) for n in range(20)}, "matrix": [[1]], "flag": True}})
    assert line.endswith("valid class 11 11, and 8 more") and "matrix" not in line and "flag" not in line


def test_a_second_fit_is_compared_with_none_before() -> None:
    made = EpochLines(clock=lambda: 0.0)
    lines({"train": {"loss": 2.0}}, begin=made)
    made.begin_fit()
    assert lines({"train": {"loss": 1.0}}, begin=made) == ["epoch 1: train loss 1"]


def test_what_is_logged_while_no_epoch_closes_is_not_in_it() -> None:
    made = EpochLines(clock=lambda: 0.0)
    made.hear("metrics.jsonl", {"step": 3}, {"train": {"batch loss": 9.0}})
    assert lines({"train": {"loss": 2.0}}, begin=made) == ["epoch 1: train loss 2"]
    assert list(made.places) == ["metrics.jsonl"]


@pytest.mark.parametrize("taken", ["while it closes", "when it is closed"])
def test_a_checkpoint_holds_what_the_next_line_needs(taken: str) -> None:
    made = EpochLines(clock=lambda: 0.0)
    made.closes(1)
    made.hear("", {}, {"valid": {"loss": 0.5, "infinite": math.inf}})
    if taken == "when it is closed":
        made.close("epoch 1")
    state, closed = json.loads(json.dumps([made.state(), made.state_of_closed()]))
    other = EpochLines(clock=lambda: 0.0)
    other.load(state, closed)
    assert other.closed == [ClosedEpoch(0, 1, {"valid loss": 0.5, "valid infinite": math.inf})]
    assert other.best() == ["valid loss 0.5 in epoch 1"]
    other.closes(2)
    other.hear("", {}, {"valid": {"loss": 0.25}})
    assert other.close("epoch 2") == "epoch 2: valid loss 0.25 (-0.25, best); 0.0 s"
    assert [each.numbers["valid loss"] for each in other.closed] == [0.5, 0.25]
    other.load(None)
    assert other.best() == [] and other.closed == []


def test_an_epoch_that_is_closed_again_replaces_itself_and_all_after_it() -> None:
    """As after a resume from a checkpoint of before it."""
    made = EpochLines(clock=lambda: 0.0)
    for fit, epoch, loss in ((0, 1, 3.0), (0, 2, 2.0), (1, 1, 1.0), (0, 2, 2.5)):
        made.closes(epoch, fit)
        made.hear("", {}, {"train": {"loss": loss}})
        made.close("")
    made.close("an epoch in which nothing was measured")
    assert made.closed == [ClosedEpoch(0, 1, {"train loss": 3.0}), ClosedEpoch(0, 2, {"train loss": 2.5})]


@pytest.mark.parametrize(("kind", "values"), [("max", (0.5, 0.9, 0.9, 0.7)), ("min", (0.5, 0.1, 0.1, 0.7))])
def test_of_equal_epochs_the_newest_is_the_best_as_among_checkpoints(
    kind: Any, values: tuple[float, ...], tmp_path: Path
) -> None:
    made, checkpointer = EpochLines(clock=lambda: 0.0), Checkpointer(tmp_path, {"x": torch.nn.Linear(1, 1)})
    lines(*({"valid": {"score": value}} for value in values), criterion=(kind, "score"), begin=made)
    for epoch, value in enumerate(values, start=1):
        checkpointer.save_checkpoint({"score": value, "epoch": epoch})
    best = checkpointer.find_checkpoint(**{f"{kind}_key": "score"})
    assert best is not None and best.meta["epoch"] == 3
    assert made.best((kind, "score")) == [f"valid score {values[1]} in epoch 3"]
