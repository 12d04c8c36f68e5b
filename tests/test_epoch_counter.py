"""Epoch counters: numbers, resuming, early stopping."""

from __future__ import annotations

import json
import logging
import math

import numpy as np
import pytest
import torch

from brainlib.epoch_counter import EpochCounter, EpochCounterWithStopper


def stopper(direction: str = "min", limit: int = 50, limit_to_stop: int = 3, limit_warmup: int = 0):
    return EpochCounterWithStopper(limit, limit_to_stop, limit_warmup, direction)


def run(counter: EpochCounterWithStopper, *metrics: float) -> list[int]:
    """The epochs that were run; the last metric is repeated as long as it takes."""
    epochs = []
    for epoch in counter:
        epochs.append(epoch)
        counter.update_metric(metrics[min(epoch, len(metrics)) - 1])
    return epochs


# ---------------------------------------------------------------------------------------------------------- plain


def test_numbers_begin_at_one_and_are_handed_out_once() -> None:
    counter = EpochCounter(3)
    assert counter.current == 0
    assert list(counter) == [1, 2, 3]
    assert counter.current == 3
    assert list(counter) == []


def test_a_raised_limit_adds_the_difference() -> None:
    counter = EpochCounter(2)
    assert list(counter) == [1, 2]
    counter.limit = 4
    assert list(counter) == [3, 4]
    counter.limit = 1
    assert list(counter) == []


def test_a_broken_loop_goes_on_with_the_next_epoch() -> None:
    counter = EpochCounter(3)
    for _ in counter:
        break
    assert list(counter) == [2, 3]


@pytest.mark.parametrize("saved_at", range(1, 5))
@pytest.mark.parametrize("end_of_epoch", [True, False])
def test_saved_in_the_middle_repeats_the_epoch_and_saved_at_its_end_goes_on(
    saved_at: int, end_of_epoch: bool
) -> None:
    first = EpochCounter(4)
    seen = [next(first) for _ in range(saved_at)]
    state = json.loads(json.dumps(first.state_dict()))

    second = EpochCounter(4)
    second.load_state_dict(state, end_of_epoch=end_of_epoch)
    closed = seen if end_of_epoch else seen[:-1]
    assert closed + list(second) == [1, 2, 3, 4]


def test_seek_says_how_many_epochs_are_closed() -> None:
    counter = EpochCounter(3)
    next(counter), next(counter)
    counter.seek(1)  # epoch 2 was open when the run was cut
    assert counter.current == 1
    assert list(counter) == [2, 3]
    counter.seek(7)
    assert list(counter) == []


@pytest.mark.parametrize("limit", [-1, 2.0, "3", None, True])
def test_a_limit_that_is_no_number_of_epochs(limit: object) -> None:
    with pytest.raises(ValueError, match=r"limit=.*: give a whole number of epochs, 0 or more"):
        EpochCounter(limit)  # type: ignore[arg-type]


def test_a_numpy_number_is_a_limit_too() -> None:
    assert list(EpochCounter(np.int64(2))) == [1, 2]  # type: ignore[arg-type]


def test_a_foreign_state_changes_nothing() -> None:
    counter = EpochCounter(3)
    counter.seek(2)
    with pytest.raises(
        ValueError, match=r"state of an EpochCounter has the keys 'best', 'current', not 'current'"
    ):
        counter.load_state_dict({"current": 0, "best": 1})
    assert counter.current == 2


# ------------------------------------------------------------------------------------------------------- stopping


@pytest.mark.parametrize(
    ("direction", "metric"),
    [("min", 0.5), ("max", 0.5), ("min", -2.0), ("max", -2.0), ("min", 0.0), ("max", 0.0)],
)
def test_a_plateau_stops_in_both_directions_and_below_zero(direction: str, metric: float) -> None:
    assert run(stopper(direction), metric) == [1, 2, 3, 4]


@pytest.mark.parametrize(("direction", "sign"), [("min", 1), ("max", -1)])
def test_improvement_starts_the_waiting_again(direction: str, sign: int) -> None:
    counter = stopper(direction)
    losses = [5, 6, 6, 4, 4.5, 4.5, 4.5]
    assert run(counter, *(sign * loss for loss in losses)) == [1, 2, 3, 4, 5, 6, 7]
    assert (counter.best, counter.best_epoch, counter.waited) == (sign * 4, 4, 3)


def test_it_runs_to_the_limit_while_it_gets_better() -> None:
    assert run(stopper("max", limit=6), 1, 2, 3, 4, 5, 6) == [1, 2, 3, 4, 5, 6]


def test_warm_up_epochs_do_not_count_as_waiting_but_their_best_counts() -> None:
    counter = stopper("min", limit_to_stop=2, limit_warmup=5)
    assert run(counter, 0.1, 0.9) == [1, 2, 3, 4, 5, 6, 7]
    assert (counter.best, counter.best_epoch) == (0.1, 1)


@pytest.mark.parametrize("direction", ["min", "max"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_never_an_improvement_and_is_said_once(
    direction: str, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    counter = stopper(direction)
    assert run(counter, value) == [1, 2, 3]  # also as the first value
    assert counter.best is None
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1 and f"is {value} in epoch 1" in warnings[0]

    counter = stopper(direction)
    assert run(counter, value, 0.5, value) == [1, 2, 3, 4, 5]
    assert counter.best == 0.5


def test_it_says_once_when_it_stops_and_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="brainlib")
    counter = stopper("max")
    run(counter, 0.75)
    counter.update_metric(0.7)
    assert list(counter) == []
    assert [record.getMessage() for record in caplog.records] == [
        "stopping early after epoch 4: no improvement for 3 epochs (limit_to_stop=3, direction='max'); "
        "the best is 0.75 of epoch 1"
    ]


def test_a_second_update_in_one_epoch_does_no_harm() -> None:
    counter = stopper("min")
    for _ in counter:
        counter.update_metric(1.0)
        counter.update_metric(1.0)
    assert counter.current == 4


def test_an_epoch_without_a_metric_is_judged_when_the_next_one_comes() -> None:
    counter = stopper("min", limit=20)
    for epoch in counter:
        if epoch % 2 == 0:  # validation every second epoch
            counter.update_metric(1.0)
    assert epoch == 6  # the best is of epoch 2; 3 epochs or more have passed at the metric of epoch 6


@pytest.mark.parametrize("value", [torch.tensor(0.5), torch.tensor([0.5]), np.float32(0.5), np.array(0.5)])
def test_metrics_may_be_tensors_and_numpy_values(value: object) -> None:
    counter = stopper()
    next(counter)
    counter.update_metric(value)  # type: ignore[arg-type]
    assert counter.best == 0.5 and type(counter.best) is float


@pytest.mark.parametrize("value", [torch.zeros(2), None, "a"])
def test_a_metric_that_is_not_one_number(value: object) -> None:
    with pytest.raises(ValueError, match="update_metric takes one number, not"):
        stopper().update_metric(value)  # type: ignore[arg-type]


def test_wrong_arguments() -> None:
    with pytest.raises(
        ValueError, match=r"direction='maximum': give 'min' .* or 'max' .*Did you mean 'max'\?"
    ):
        stopper("maximum")
    with pytest.raises(ValueError, match="limit_to_stop=0: give a whole number of epochs, 1 or more"):
        stopper(limit_to_stop=0)
    with pytest.raises(ValueError, match="limit_warmup=-1: give a whole number of epochs, 0 or more"):
        stopper(limit_warmup=-1)


@pytest.mark.parametrize("cut", range(1, 8))
@pytest.mark.parametrize("in_the_middle", [True, False])
def test_a_cut_run_stops_at_the_same_epoch(cut: int, in_the_middle: bool) -> None:
    metrics = [5, 6, 6, 4, 4.5, 4.5, 4.5]
    whole = run(stopper(), *metrics)

    first, epochs = stopper(), []
    for epoch in first:
        epochs.append(epoch)
        first.update_metric(metrics[epoch - 1])
        if epoch == cut:
            break
    state = json.loads(json.dumps(first.state_dict()))
    second = stopper()
    second.load_state_dict(state)
    second.seek(cut - in_the_middle)
    assert epochs[: cut - in_the_middle] + run(second, *metrics) == whole


def test_a_stopped_run_stays_stopped_until_it_is_given_more_patience() -> None:
    first = stopper()
    assert run(first, 1.0) == [1, 2, 3, 4]
    second = stopper()
    second.load_state_dict(first.state_dict())
    assert list(second) == []
    second.limit_to_stop = 4
    assert run(second, 1.0) == [5]


def test_another_direction_cannot_go_on_with_the_saved_best() -> None:
    first, second = stopper("min"), stopper("max")
    run(first, 1.0)
    with pytest.raises(
        ValueError, match=r"direction='max', the saved one had 'min': its best value 1.0 means nothing"
    ):
        second.load_state_dict(first.state_dict())
    assert second.current == 0
