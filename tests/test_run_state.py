"""The one owner of every counter: its transitions, one by one, and what a checkpoint of it holds."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from brainlib.run_state import RunningMean, RunState


def counts(run: RunState) -> dict[str, Any]:
    names = (
        "fit",
        "epoch",
        "step",
        "micro",
        "weight",
        "optimizer_step",
        "nonfinite_windows",
        "nonfinite_in_a_row",
    )
    return {name: getattr(run, name) for name in names}


def begun(**options: Any) -> RunState:
    run = RunState(**options)
    run.begin_fit(0, epoch_start=0)
    return run


def batch(run: RunState, loss: float = 1.0, weight: float = 2.0) -> None:
    run.begin_batch()
    run.record(loss, weight)


def test_before_the_first_fit() -> None:
    run = RunState()
    assert run.point() == (-1, 0, 0)
    assert not run.in_hand


def test_a_batch_is_in_hand_until_its_loss_is_known() -> None:
    run = begun()
    run.begin_batch()
    assert (run.in_hand, run.step, run.micro) == (True, 1, 1)
    run.record(1.0, 2.0)
    assert (run.in_hand, run.weight) == (False, 2.0)
    run.begin_batch()
    run.commit_window(stepped=True)
    assert not run.in_hand, "a verdict came before the loss: the user's fit_batch has stepped"


def test_losses_count_when_their_window_is_committed() -> None:
    run = begun()
    batch(run, 1.0, 1.0)
    batch(run, 4.0, 2.0)
    assert run.loss.value() == 0.0
    run.commit_window(stepped=True)
    assert run.loss.value() == 3.0
    assert counts(run) | {"weight": 0.0} == counts(run)
    assert (run.micro, run.optimizer_step) == (0, 1)


def test_losses_by_batches() -> None:
    run = begun(by_items=False)
    batch(run, 1.0, 1.0)
    batch(run, 4.0, 2.0)
    run.commit_window(stepped=True)
    assert run.loss.value() == 2.5


def test_a_skipped_window_moves_no_counter_of_updates() -> None:
    run = begun()
    batch(run, math.nan)
    run.skip_window()
    assert (run.optimizer_step, run.nonfinite_windows, run.nonfinite_in_a_row, run.step) == (0, 1, 1, 1)
    assert (run.loss.value(), run.loss.weight) == (0.0, 0.0)
    batch(run)
    run.commit_window(stepped=False)
    assert (run.optimizer_step, run.nonfinite_windows, run.nonfinite_in_a_row) == (0, 1, 0)


def test_the_loss_of_an_update_that_was_made_first() -> None:
    """A fit_batch of the user's steps, then returns its loss: it counts at once, or not at all."""
    for made, value in ((True, 5.0), (False, 0.0)):
        run = begun()
        run.begin_batch()
        if made:
            run.commit_window(stepped=True)
        else:
            run.skip_window()
        run.record(5.0, 1.0)
        assert run.loss.value() == value
        assert not run.pending


def test_good_gradients_under_a_bad_loss_count_without_it() -> None:
    run = begun()
    batch(run, 1.0)
    batch(run, math.inf)
    run.commit_window(stepped=True, finite=False)
    assert (run.optimizer_step, run.nonfinite_windows, run.loss.value()) == (1, 1, 1.0)


def test_a_step_inside_a_window_leaves_it_open() -> None:
    run = begun()
    batch(run)
    run.commit_window(stepped=True, closes=False)
    assert (run.micro, run.weight, run.optimizer_step) == (1, 0.0, 1)


@pytest.mark.parametrize("whole_window", [False, True])
def test_batches_that_are_taken_back(whole_window: bool) -> None:
    run = begun()
    batch(run)
    run.commit_window(stepped=True)
    batch(run, 1.0, 2.0)
    batch(run, 1.0, 3.0)
    run.begin_batch()
    run.return_batches(whole_window)
    assert not run.in_hand
    if whole_window:
        assert (run.step, run.micro, run.weight, run.pending) == (1, 0, 0.0, [])
    else:
        assert (run.step, run.micro, run.weight, len(run.pending)) == (3, 2, 5.0, 2)


def test_the_first_batch_of_a_window_taken_back_leaves_it_empty() -> None:
    run = begun()
    run.begin_batch()
    run.return_batches(whole_window=False)
    assert (run.step, run.micro, run.weight, run.pending) == (0, 0, 0.0, [])


@pytest.mark.parametrize("verdict", ["good", "bad", "partly bad"])
def test_a_late_verdict(verdict: str) -> None:
    run = begun()
    batch(run, math.nan)
    run.skip_window()
    batch(run, 3.0)
    run.commit_window(stepped=True, late=True)
    assert (run.optimizer_step, run.nonfinite_in_a_row, run.loss.value()) == (1, 0, 0.0)
    if verdict == "good":
        run.confirm_window()
        assert (run.optimizer_step, run.nonfinite_windows, run.nonfinite_in_a_row, run.loss.value()) == (
            1,
            1,
            0,
            3.0,
        )
    else:
        run.revoke_window(whole=verdict == "bad")
        made = 0 if verdict == "bad" else 1
        assert (run.optimizer_step, run.nonfinite_windows, run.nonfinite_in_a_row) == (made, 2, 2)
        assert run.loss.value() == 3.0 * made
    assert run.late is None


def test_the_two_resume_points() -> None:
    run = begun()
    batch(run)
    assert run.point() == (0, 0, 1)
    assert run.point(closed=True) == (0, 1, 0)
    run.close_epoch()
    assert run.point() == (0, 1, 0)
    run.begin_fit(1, epoch_start=1)
    assert (run.point(), run.epoch_start) == ((1, 0, 0), 1)


def full() -> RunState:
    """Something in every counter, inside a window."""
    run = begun()
    batch(run, 2.0)
    run.commit_window(stepped=True)
    batch(run, math.nan)
    run.skip_window()
    batch(run, 3.0, 4.0)
    return run


def test_first_k_save_restore_rest_equals_all() -> None:
    one, two = full(), RunState()
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert counts(one) == counts(two)
    for run in (one, two):
        batch(run, 5.0, 1.0)
        run.commit_window(stepped=True)
    assert one.state_dict() == two.state_dict()
    assert one.loss.value() == two.loss.value() == (2 * 2 + 3 * 4 + 5) / 7


def test_the_state_of_a_closed_epoch_changes_nothing_here() -> None:
    run = full()
    before = run.state_dict()
    closed = run.state_dict(closed=True)
    assert run.state_dict() == before
    assert (closed["epoch"], closed["step"], closed["micro"], closed["pending"]) == (1, 0, 0, [])
    assert (closed["optimizer_step"], closed["nonfinite_windows"], closed["nonfinite_in_epoch"]) == (1, 1, 0)
    assert closed["loss"] == {"total": 0.0, "weight": 0.0}


@pytest.mark.parametrize("change", ["missing", "leftover"])
def test_a_state_with_other_keys_is_refused_and_changes_nothing(change: str) -> None:
    run, state = full(), RunState().state_dict()
    if change == "missing":
        del state["step"]
    else:
        state["stepp"] = 1
    before = run.state_dict()
    with pytest.raises(
        ValueError, match="Continue it with the version that wrote it, or start from its weights"
    ):
        run.load_state_dict(state)
    assert run.state_dict() == before


def test_the_callers_state_is_left_alone() -> None:
    state = full().state_dict()
    copy = json.loads(json.dumps(state))
    run = RunState()
    run.load_state_dict(state)
    batch(run)
    run.commit_window(stepped=True)
    assert state == copy


# ------------------------------------------------------------------------------------------------------------- the mean
@pytest.mark.parametrize("on_device", [False, True])
def test_the_mean_has_the_bits_of_the_sum_in_order(on_device: bool) -> None:
    mean, total, weight = RunningMean(on_device), 0.0, 0.0
    for number in range(3000):  # more than the ring holds
        value = math.sin(number) * 10.0 ** (number % 7)
        mean.add(torch.tensor(value, dtype=torch.float64), 1.0 + number % 3)
        total += value * (1.0 + number % 3)
        weight += 1.0 + number % 3
        if number % 777 == 0:
            assert mean.value() == pytest.approx(total / weight)
    assert mean.value() == pytest.approx(total / weight, rel=1e-14)


@pytest.mark.parametrize("on_device", [False, True])
def test_kinds_of_values(on_device: bool) -> None:
    mean = RunningMean(on_device)
    mean.add(1, 1.0)
    mean.add(2.0, 1.0)
    mean.add(torch.tensor([3.0], requires_grad=True), 1.0)
    mean.add(torch.tensor(4.0, dtype=torch.bfloat16), 1.0)
    assert mean.value() == 2.5


@pytest.mark.parametrize("on_device", [False, True])
def test_a_mean_starts_again_from_nothing(on_device: bool) -> None:
    mean = RunningMean(on_device)
    assert mean.value() == 0.0
    mean.add(torch.tensor(3.0), 2.0)
    mean.reset()
    assert (mean.value(), mean.weight) == (0.0, 0.0)
    mean.add(torch.tensor(3.0), 2.0)
    twin = RunningMean(on_device)
    twin.add(torch.tensor(99.0), 1.0)
    twin.load_state_dict(mean.state_dict())
    assert (twin.value(), twin.weight, mean.value()) == (3.0, 2.0, 3.0)
