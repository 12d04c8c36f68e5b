"""`predict`: what `compute_forward` gives, batch by batch, and nothing moved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import brainlib as bl
from tests.brain.small import Regression, Rows, batches, joined, linear, same, small, weights


def test_one_prediction_a_batch_in_order() -> None:
    brain = small()
    predictions = brain.predict(batches(4, 2))
    assert [tuple(each.shape) for each in predictions] == [(4, 2), (2, 2)]
    with torch.no_grad():
        assert torch.allclose(torch.cat(list(predictions)), brain.modules.model(joined(batches(4, 2))["x"]))
    assert not any(each.requires_grad for each in predictions)


def test_from_a_dataset() -> None:
    brain = small()
    from_rows = torch.cat(list(brain.predict(Rows(10), loader_kwargs={"batch_size": 3})))
    assert torch.allclose(from_rows, torch.cat(list(brain.predict(batches(10)))))


def test_in_evaluation_mode_and_everything_as_it_was() -> None:
    brain = small(model=nn.Sequential(linear(), nn.Dropout(0.5)))
    state = torch.get_rng_state()
    one, two = (torch.cat(list(brain.predict(batches(4)))) for _ in range(2))
    assert torch.equal(one, two)
    assert all(module.training for module in brain.modules.modules())
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)


def test_no_loss_is_needed() -> None:
    class Forward(bl.Brain):
        def compute_forward(self, batch: dict[str, torch.Tensor], stage: bl.Stage) -> torch.Tensor:
            return self.modules.model(batch["x"])

    assert len(list(small(Forward).predict(batches(4)))) == 1


def test_the_current_weights_unless_another_is_chosen(tmp_path: Path) -> None:
    brain = small(checkpointer=bl.Checkpointer(tmp_path))
    brain.fit(range(1), batches(4, 4))
    saved = torch.cat(list(brain.predict(batches(4))))
    with torch.no_grad():
        brain.modules.model.bias.add_(1.0)
    before = weights(brain)
    assert torch.allclose(torch.cat(list(brain.predict(batches(4)))), saved + 1.0)
    assert torch.equal(torch.cat(list(brain.predict(batches(4), checkpoint="last"))), saved)
    assert same(weights(brain), before)


def test_modes_are_back_after_an_error() -> None:
    class Failing(Regression):
        def compute_forward(self, batch: dict[str, torch.Tensor], stage: bl.Stage) -> torch.Tensor:
            raise RuntimeError("a bad batch")

    brain = small(Failing)
    with pytest.raises(RuntimeError, match="a bad batch"):
        list(brain.predict(batches(4)))
    assert brain.modules.model.training
    assert torch.is_grad_enabled()
