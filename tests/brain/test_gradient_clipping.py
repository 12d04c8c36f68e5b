"""`max_grad_norm`: jointly over all groups of an optimizer; None is off; what was once dangerous is said."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.brain.small import Regression, batches, linear, same, small, weights


def sgd_1(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def two_groups(parameters: Any) -> torch.optim.Optimizer:
    first, second = parameters
    return torch.optim.SGD([{"params": [first]}, {"params": [second]}], lr=1.0)


def moved(brain: Regression) -> torch.Tensor:
    """What one update subtracted, as one vector; with SGD and lr 1 that is the gradient."""
    before = weights(brain)
    brain.fit(range(1), batches(4))
    return torch.cat([(a - b).flatten() for a, b in zip(before, weights(brain), strict=True)])


def gradient() -> torch.Tensor:
    return moved(small(opt_class=sgd_1, max_grad_norm=None))


def test_the_default_clips_at_five() -> None:
    assert small().max_grad_norm == 5.0
    model = linear()
    with torch.no_grad():
        model.weight.mul_(1000)
    assert moved(small(model=model, opt_class=sgd_1)).norm().item() == pytest.approx(5.0, rel=1e-5)


def test_the_norm_is_over_all_groups_together() -> None:
    brain = small(opt_class=two_groups, max_grad_norm=1e-3)
    update = moved(brain)
    assert update.norm().item() == pytest.approx(1e-3, rel=1e-2)
    direction = gradient() / gradient().norm()
    assert torch.allclose(update / update.norm(), direction, atol=1e-6), (
        "clipped together, so the direction is kept"
    )


def test_groups_or_not_the_bits_are_the_same() -> None:
    one = small(opt_class=sgd_1, max_grad_norm=0.1)
    two = small(opt_class=two_groups, max_grad_norm=0.1)
    one.fit(range(2), batches(4, 3))
    two.fit(range(2), batches(4, 3))
    assert same(weights(one), weights(two))


def test_with_vectors_and_matrices_in_groups_of_their_own() -> None:
    """`remove_vector_weight_decay` splits them; in SpeechBrain the matrices were then never clipped."""
    brain = small(opt_class=sgd_1, max_grad_norm=1e-3, remove_vector_weight_decay=True)
    assert moved(brain).norm().item() == pytest.approx(1e-3, rel=1e-2)
    assert len(brain.optimizer.param_groups) == 2
    assert [
        group["weight_decay"] for group in brain.optimizer.param_groups if group["params"][0].dim() == 1
    ] == [0.0]


def test_each_optimizer_is_clipped_on_its_own() -> None:
    class Two(Regression):
        def init_optimizers(self) -> None:
            weight, bias = self.modules.model.weight, self.modules.model.bias
            self.optimizers_dict = {
                "weight": torch.optim.SGD([weight], 1.0),
                "bias": torch.optim.SGD([bias], 1.0),
            }

    brain = small(Two, opt_class=None, max_grad_norm=1e-3)
    before = weights(brain)
    brain.fit(range(1), batches(4))
    for a, b in zip(before, weights(brain), strict=True):
        assert (a - b).norm().item() == pytest.approx(1e-3, rel=1e-2)


def test_a_small_gradient_is_not_touched() -> None:
    assert torch.equal(moved(small(opt_class=sgd_1, max_grad_norm=1e6)), gradient())


def test_none_switches_clipping_off() -> None:
    model = linear()
    with torch.no_grad():
        model.weight.mul_(1000)
    assert moved(small(model=model, opt_class=sgd_1, max_grad_norm=None)).norm() > 100


def test_none_from_the_hparams_too() -> None:
    assert small(hparams={"max_grad_norm": None}).max_grad_norm is None


def test_a_negative_norm_switches_it_off_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    brain = small(opt_class=sgd_1, max_grad_norm=-1.0)
    assert torch.equal(moved(brain), gradient()), "not reversed"
    warnings = [
        r.getMessage()
        for r in caplog.records
        if r.levelname == "WARNING" and "max_grad_norm" in r.getMessage()
    ]
    assert len(warnings) == 1
    assert "null" in warnings[0] or "None" in warnings[0], "what to write instead"


@pytest.mark.parametrize("norm", [0, 0.0, float("nan"), "much"])
def test_a_norm_that_cannot_be_is_an_error(norm: Any) -> None:
    with pytest.raises(ValueError, match="max_grad_norm"):
        small(max_grad_norm=norm)


def test_the_norm_in_use_is_shown_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="brainlib"):
        small(max_grad_norm=2.5).fit(range(1), batches(2))
    assert "max_grad_norm" in caplog.text
    assert "2.5" in caplog.text
