"""Windows: the same samples give the same update however they are split, and no micro-batch is thrown away."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import brainlib as bl
from tests.brain.small import Batch, Regression, batches, far, joined, linear, small, weights


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def by_hand(windows: list[list[Batch]], max_norm: float | None, num_epochs: int = 1) -> list[torch.Tensor]:
    """The loop that people write: one big batch a window, clipped."""
    model = linear()
    optimizer = momentum(model.parameters())
    for _ in range(num_epochs):
        for window in windows:
            batch = joined(window)
            torch.nn.functional.mse_loss(model(batch["x"]), batch["y"]).backward()
            if max_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


def test_a_trailing_window_is_stepped() -> None:
    """Six batches by four: two updates, the second over two."""
    data = batches(4, 4, 4, 4, 4, 4)
    brain = small(opt_class=momentum, grad_accumulation_factor=4)
    brain.fit(range(2), data)
    assert brain.optimizer_step == 4
    assert far(weights(brain), by_hand([data[:4], data[4:]], 5.0, num_epochs=2)) < 1e-12


def test_a_window_equals_one_big_batch_also_with_uneven_micro_batches() -> None:
    data = batches(5, 1, 3, 2, 1)
    brain = small(opt_class=momentum, grad_accumulation_factor=3, max_grad_norm=0.3)
    brain.fit(range(3), data)
    assert brain.optimizer_step == 6
    assert far(weights(brain), by_hand([data[:3], data[3:]], 0.3, num_epochs=3)) < 1e-12


@pytest.mark.parametrize("case", range(20))
def test_any_split(case: int) -> None:
    draw = random.Random(case)
    sizes = [draw.randint(1, 5) for _ in range(draw.randint(1, 7))]
    factor, max_norm = draw.randint(1, 4), draw.choice([None, 0.3, 5.0])
    data = batches(*sizes, seed=case)
    brain = small(opt_class=momentum, grad_accumulation_factor=factor, max_grad_norm=max_norm)
    brain.fit(range(1), data)
    windows = [data[k : k + factor] for k in range(0, len(data), factor)]
    assert brain.optimizer_step == len(windows)
    assert far(weights(brain), by_hand(windows, max_norm)) < 1e-12


def test_one_micro_batch_a_window_has_the_bits_of_the_loop_by_hand() -> None:
    data = batches(5, 4, 3, 2, 1)
    brain = small(opt_class=momentum, max_grad_norm=0.3)
    brain.fit(range(2), data)
    assert far(weights(brain), by_hand([[batch] for batch in data], 0.3, num_epochs=2)) == 0.0


def test_the_weight_of_a_batch_is_what_its_loss_is_a_mean_over() -> None:
    """Tokens, not sentences: the big batch's mean is over all of its tokens."""

    class Tokens(Regression):
        def compute_objectives(
            self, predictions: torch.Tensor, batch: Batch, stage: bl.Stage
        ) -> torch.Tensor:
            squares = (predictions - batch["y"]).pow(2).mean(1)
            return (squares * batch["mask"]).sum() / batch["mask"].sum()

        def loss_weight(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
            return batch["mask"].sum()

    data = batches(4, 3, 2)
    for batch, kept in zip(data, (1, 3, 2), strict=True):
        batch["mask"] = (torch.arange(len(batch["x"])) < kept).double()
    split, whole = small(Tokens, grad_accumulation_factor=3), small(Tokens)
    split.fit(range(1), data)
    whole.fit(range(1), [joined(data)])
    assert split.optimizer_step == whole.optimizer_step == 1
    assert far(weights(split), weights(whole)) < 1e-12


@pytest.mark.parametrize("weight", [0, -1.0, float("nan"), "four", None])
def test_a_loss_weight_that_is_none_is_refused(weight: Any) -> None:
    class Brain(Regression):
        def loss_weight(self, batch: Batch, stage: bl.Stage) -> Any:
            return weight

    with pytest.raises((TypeError, ValueError), match="loss_weight"):
        small(Brain, grad_accumulation_factor=2).fit(range(1), batches(2, 2))


def test_everybody_is_told_when_the_window_closes() -> None:
    seen: list[tuple[bool, bool, bool]] = []

    class Brain(Regression):
        def on_fit_batch_start(self, batch: Batch, should_step: bool) -> None:
            self.told = should_step

        def on_fit_batch_end(self, batch: Batch, outputs: Any, loss: torch.Tensor, should_step: bool) -> None:
            seen.append((self.told, should_step, self.should_step))

    small(Brain, grad_accumulation_factor=2).fit(range(1), batches(1, 1, 1, 1, 1))
    assert [told for told, _, _ in seen] == [False, True, False, True, True]
    assert all(len(set(line)) == 1 for line in seen)


def test_the_optimizers_step_is_counted_before_on_fit_batch_end() -> None:
    class Brain(Regression):
        def on_fit_batch_end(self, batch: Batch, outputs: Any, loss: torch.Tensor, should_step: bool) -> None:
            counts.append(self.optimizer_step)

    counts: list[int] = []
    small(Brain, grad_accumulation_factor=2).fit(range(1), batches(1, 1, 1))
    assert counts == [0, 1, 2]


def test_a_window_closes_at_the_limit_of_an_epoch() -> None:
    data = batches(2, 2, 2, 2, 2)
    brain = small(opt_class=momentum, grad_accumulation_factor=2, limit_train_batches=3)
    brain.fit(range(1), data)
    assert brain.optimizer_step == 2
    assert far(weights(brain), by_hand([data[:2], data[2:3]], 5.0)) < 1e-12


def test_gradients_from_outside_do_not_leak_into_the_first_window() -> None:
    data = batches(2, 2)
    brain, reference = small(), small()
    for parameter in brain.modules.parameters():
        parameter.grad = torch.ones_like(parameter)
    brain.fit(range(1), data)
    reference.fit(range(1), data)
    assert far(weights(brain), weights(reference)) == 0.0


def test_no_gradient_is_left_after_an_epoch() -> None:
    brain = small(grad_accumulation_factor=2)
    brain.fit(range(1), batches(2, 2, 2))
    assert all(p.grad is None or not p.grad.any() for p in brain.modules.parameters())


@pytest.mark.parametrize("factor", [0, -1, 1.5, "two"])
def test_a_factor_that_is_no_number_of_batches_is_refused(factor: Any) -> None:
    with pytest.raises(ValueError, match="grad_accumulation_factor"):
        small(grad_accumulation_factor=factor)


def test_no_sync_gives_back_what_it_took_also_after_an_error() -> None:
    brain = small()
    for use in (True, False):
        with brain.no_sync(use), brain.no_sync():
            pass
        with pytest.raises(KeyError), brain.no_sync(use):
            raise KeyError("from inside")
    brain.fit(range(1), batches(2, 2))
    assert brain.optimizer_step == 2
