"""The fits of a script are numbered: a second one goes on, a finished one is not run again, a cut one resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from tests.brain.small import Regression, batches, far, same, small, weights


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


class Counting(Regression):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.epochs: list[int | None] = []
        super().__init__(*args, **kwargs)

    def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
        if stage == bl.Stage.TRAIN:
            self.epochs.append(epoch)


@pytest.mark.parametrize("saved", [False, True])
def test_a_second_fit_goes_on_with_what_there_is(saved: bool, tmp_path: Path) -> None:
    """Same optimizer object, its moments, the live weights; a checkpoint of before is not loaded over them."""
    brain = small(opt_class=momentum, checkpointer=bl.Checkpointer(tmp_path) if saved else None)
    brain.fit(range(1), batches(4, 4))
    optimizer = brain.optimizer
    with torch.no_grad():
        brain.modules.model.weight.add_(1.0)  # the user has a hand in it
    brain.fit(range(1), batches(4, 4))
    assert brain.optimizer is optimizer
    assert brain.run_state.fit == 1
    assert brain.optimizer_step == 4

    reference = small(opt_class=momentum)
    reference.fit(range(1), batches(4, 4))
    with torch.no_grad():
        reference.modules.model.weight.add_(1.0)
    reference.fit(range(1), batches(4, 4))
    assert same(weights(brain), weights(reference))


def test_two_fits_of_one_epoch_are_one_fit_of_two() -> None:
    one, two = small(opt_class=momentum), small(opt_class=momentum)
    one.fit(range(2), batches(4, 4))
    for _ in range(2):
        two.fit(range(1), batches(4, 4))
    assert same(weights(one), weights(two))


def test_a_second_fit_with_a_counter_at_its_end_says_so(caplog: pytest.LogCaptureFixture) -> None:
    counter, brain = bl.EpochCounter(2), small(Counting)
    brain.fit(counter, batches(4))
    with caplog.at_level("INFO", logger="brainlib"):
        brain.fit(counter, batches(4))
    assert brain.epochs == [1, 2]
    assert brain.optimizer_step == 2
    assert "2" in caplog.text
    assert "EpochCounter" in caplog.text or "epoch counter" in caplog.text.lower()


def test_a_raised_limit_adds_the_difference() -> None:
    counter, brain = bl.EpochCounter(2), small(Counting)
    brain.fit(counter, batches(4))
    counter.limit = 5
    brain.fit(counter, batches(4))
    assert brain.epochs == [1, 2, 3, 4, 5]


def test_a_raised_limit_adds_the_difference_after_a_restart(tmp_path: Path) -> None:
    first = small(Counting, opt_class=momentum, checkpointer=bl.Checkpointer(tmp_path))
    first.fit(bl.EpochCounter(2), batches(4, 2))
    second = small(Counting, opt_class=momentum, checkpointer=bl.Checkpointer(tmp_path))
    second.fit(bl.EpochCounter(5), batches(4, 2))
    assert second.epochs == [3, 4, 5]
    reference = small(opt_class=momentum)
    reference.fit(bl.EpochCounter(5), batches(4, 2))
    assert far(weights(second), weights(reference)) == 0.0


def test_range_resumes_like_a_counter(tmp_path: Path) -> None:
    class Dying(Counting):
        def on_fit_batch_start(self, batch: Any, should_step: bool) -> None:
            if self.epochs[-1] == 3:
                raise KeyError("the machine went away")

    first = small(Dying, checkpointer=bl.Checkpointer(tmp_path))
    with pytest.raises(KeyError):
        first.fit(range(5), batches(4, 4))
    second = small(Counting, checkpointer=bl.Checkpointer(tmp_path))
    second.fit(range(5), batches(4, 4))
    assert second.epochs == [3, 4]
    assert second.optimizer_step == 10


@pytest.mark.parametrize("counter", ["range", "EpochCounter"])
def test_a_finished_script_run_again_does_nothing_and_says_so(
    counter: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def script() -> Any:
        brain = small(Counting, opt_class=momentum, checkpointer=bl.Checkpointer(tmp_path))
        for _ in range(2):
            brain.fit(range(2) if counter == "range" else bl.EpochCounter(2), batches(4, 4))
        return brain

    first = script()
    assert len(first.epochs) == 4
    caplog.clear()
    with caplog.at_level("INFO", logger="brainlib"):
        second = script()
    assert second.epochs == []
    assert second.optimizer_step == 8
    assert same(weights(first), weights(second))
    assert "finished" in caplog.text


def test_a_third_fit_after_a_restart_is_run(tmp_path: Path) -> None:
    first = small(Counting, checkpointer=bl.Checkpointer(tmp_path))
    first.fit(range(1), batches(4))
    first.fit(range(1), batches(4))
    second = small(Counting, checkpointer=bl.Checkpointer(tmp_path))
    for _ in range(3):
        second.fit(range(1), batches(4))
    assert second.epochs == [0]
    assert second.optimizer_step == 3
    assert second.run_state.fit == 2


def test_an_interrupted_fit_keeps_its_number() -> None:
    class Stumbling(Counting):
        stumbling = True

        def on_fit_batch_start(self, batch: Any, should_step: bool) -> None:
            if self.stumbling and self.step == 2:
                self.stumbling = False
                raise KeyboardInterrupt

    brain = small(Stumbling, opt_class=momentum)
    with pytest.raises(KeyboardInterrupt):
        brain.fit(range(2), batches(4, 4, 4))
    assert brain.run_state.fit == 0
    brain.fit(range(2), batches(4, 4, 4))
    assert brain.run_state.fit == 0
    assert brain.optimizer_step == 6
    reference = small(opt_class=momentum)
    reference.fit(range(2), batches(4, 4, 4))
    assert same(weights(brain), weights(reference))


def test_an_error_inside_a_window_repeats_the_batch_and_no_other() -> None:
    """Accumulated gradients of the batches before it stay; the batch in hand is computed again."""

    class Stumbling(Regression):
        stumbling = True

        def compute_forward(self, batch: Any, stage: bl.Stage) -> torch.Tensor:
            if self.stumbling and self.step == 2:
                self.stumbling = False
                raise RuntimeError("out of memory")
            return super().compute_forward(batch, stage)

    brain = small(Stumbling, opt_class=momentum, grad_accumulation_factor=3)
    with pytest.raises(RuntimeError, match="out of memory"):
        brain.fit(range(1), batches(4, 3, 2, 1))
    brain.fit(range(1), batches(4, 3, 2, 1))
    reference = small(opt_class=momentum, grad_accumulation_factor=3)
    reference.fit(range(1), batches(4, 3, 2, 1))
    assert brain.optimizer_step == 2
    assert same(weights(brain), weights(reference))


def test_an_empty_range_is_a_fit_of_no_epoch() -> None:
    brain = small(Counting)
    before = weights(brain)
    brain.fit(range(0), batches(4))
    assert brain.epochs == []
    assert same(weights(brain), before)


def test_the_run_state_is_for_reading() -> None:
    brain = small()
    brain.fit(range(2), batches(4, 4, 4))
    state = brain.run_state
    assert (state.fit, state.epoch, state.step, state.optimizer_step) == (0, 2, 0, 6)
