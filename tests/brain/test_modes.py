"""Training mode, evaluation mode and gradients: who sets them, and that they are as before, also after an error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import brainlib as bl
from tests.brain.small import Regression, batches, linear, same, small, weights

TRAIN, VALID = bl.Stage.TRAIN, bl.Stage.VALID


def two_parts() -> nn.Sequential:
    """A frozen feature extractor with a statistic that training would move, and a head."""
    return nn.Sequential(nn.BatchNorm1d(3).double(), linear())


class Frozen(Regression):
    def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
        if stage == TRAIN:
            self.modules.model[0].eval()


def test_what_the_hook_freezes_stays_frozen() -> None:
    brain = small(Frozen, model=two_parts())
    brain.fit(range(2), batches(4, 4), batches(4))
    assert torch.equal(brain.modules.model[0].running_mean, torch.zeros(3).double())
    assert not brain.modules.model[0].training
    assert brain.modules.model[1].training


def test_mid_epoch_validation_gives_every_module_its_own_mode_back() -> None:
    seen: list[tuple[bool, bool]] = []

    class Brain(Frozen):
        def on_fit_batch_start(self, batch: Any, should_step: bool) -> None:
            seen.append((self.modules.model[0].training, self.modules.model[1].training))

    small(Brain, model=two_parts(), valid_interval_steps=1).fit(range(1), batches(4, 4, 4), batches(4))
    assert seen == [(False, True)] * 3


def test_training_mode_is_back_in_the_next_epoch() -> None:
    class Brain(Regression):
        def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
            if stage == TRAIN:
                modes.append(self.modules.model.training)

    modes: list[bool] = []
    small(Brain).fit(range(3), batches(2), batches(2))
    assert modes == [True] * 3


class Failing(Regression):
    failing = True

    def evaluate_batch(self, batch: Any, stage: bl.Stage) -> torch.Tensor:
        if self.failing:
            raise RuntimeError("a bad batch")
        return super().evaluate_batch(batch, stage)


def test_modes_and_gradients_are_back_after_an_error_in_validation() -> None:
    brain = small(Failing)
    with pytest.raises(RuntimeError, match="a bad batch"):
        brain.fit(range(1), batches(2), batches(2))
    assert torch.is_grad_enabled()
    assert brain.modules.training
    assert brain.modules.model.training


def test_modes_are_back_after_an_error_in_evaluate() -> None:
    brain = small(Failing)
    brain.modules.train()
    with pytest.raises(RuntimeError, match="a bad batch"):
        brain.evaluate(batches(2))
    assert torch.is_grad_enabled()
    assert brain.modules.model.training


@pytest.mark.parametrize("training", [True, False])
def test_evaluate_leaves_the_mode_it_found(training: bool) -> None:
    brain = small()
    brain.modules.train(training)
    brain.evaluate(batches(2))
    assert brain.modules.model.training is training


def test_an_error_in_validation_can_be_tried_again() -> None:
    """Validation is replayed, training is not: the same fit goes on and ends like one without the error."""
    brain = small(Failing)
    with pytest.raises(RuntimeError, match="a bad batch"):
        brain.fit(range(2), batches(2, 1), batches(2))
    brain.failing = False
    brain.fit(range(2), batches(2, 1), batches(2))
    reference = small()
    reference.fit(range(2), batches(2, 1), batches(2))
    assert brain.optimizer_step == reference.optimizer_step == 4
    assert same(weights(brain), weights(reference))


def test_evaluate_inside_no_grad_leaves_no_grad() -> None:
    brain = small()
    with torch.no_grad():
        brain.evaluate(batches(2))
        assert not torch.is_grad_enabled()


def test_fit_trains_whatever_the_grad_mode_outside() -> None:
    """`fit` needs gradients and takes care of them itself; a surrounding `no_grad` is not changed by it."""
    one, two = small(), small()
    one.fit(range(1), batches(2, 2))
    with torch.no_grad():
        two.fit(range(1), batches(2, 2))
        assert not torch.is_grad_enabled()
    assert same(weights(one), weights(two))
