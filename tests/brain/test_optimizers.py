"""One optimizer, several, none; frozen ones; and which of them stepped, whoever called `step`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import brainlib as bl
from tests.brain.small import Batch, Regression, batches, far, linear, same, small, weights

TRAIN = bl.Stage.TRAIN


class Two(Regression):
    """An optimizer for each parameter; the bias is frozen while `frozen` is set."""

    frozen = True

    def init_optimizers(self) -> None:
        self.weight_optimizer = torch.optim.SGD([self.modules.model.weight], lr=0.1)
        self.bias_optimizer = torch.optim.SGD([self.modules.model.bias], lr=0.1)
        self.optimizers_dict = {"weight": self.weight_optimizer, "bias": self.bias_optimizer}

    def freeze_optimizers(self, optimizers: dict[str, Any]) -> dict[str, Any]:
        return {"weight": optimizers["weight"]} if self.frozen else optimizers


def test_the_optimizer_is_there_under_its_names() -> None:
    brain = small()
    assert brain.optimizer is None
    brain.fit(range(1), batches(2))
    assert isinstance(brain.optimizer, torch.optim.SGD)
    assert list(brain.optimizers_dict.values()) == [brain.optimizer]


def test_a_frozen_optimizer_does_not_step_and_its_gradients_do_not_pile_up() -> None:
    brain = small(Two, opt_class=None)
    before = weights(brain)
    brain.fit(range(1), batches(4, 4, 4))
    assert same(weights(brain)[1:], before[1:])
    grad = brain.modules.model.bias.grad
    assert grad is None or not grad.any()

    brain.frozen = False
    brain.fit(range(1), batches(4))
    reference = small(Two, opt_class=None)
    reference.fit(range(1), batches(4, 4, 4))
    reference.frozen = False
    for parameter in reference.modules.parameters():
        parameter.grad = None
    reference.fit(range(1), batches(4))
    assert same(weights(brain), weights(reference))


def test_thawed_in_mid_epoch_the_first_update_holds_its_own_gradient_alone() -> None:
    class Thawing(Two):
        @property
        def frozen(self) -> bool:  # type: ignore[override]
            return self.optimizer_step < 3

    data = batches(4, 4, 4, 4)
    brain = small(Thawing, opt_class=None, max_grad_norm=None)
    before = weights(brain)[1]
    seen: list[torch.Tensor] = []
    brain.on_fit_batch_start = lambda batch, should_step: seen.append(weights(brain)[0])
    brain.fit(range(1), data)
    model = linear()
    with torch.no_grad():
        model.weight.copy_(seen[3])
    nn.functional.mse_loss(model(data[3]["x"]), data[3]["y"]).backward()
    assert far([weights(brain)[1]], [before - 0.1 * model.bias.grad]) < 1e-12


def test_a_step_of_two_optimizers_is_one_step() -> None:
    brain = small(Two, opt_class=None)
    brain.frozen = False
    brain.fit(range(1), batches(4, 4))
    assert brain.optimizer_step == 2


def test_all_frozen_is_no_step() -> None:
    class All(Two):
        def freeze_optimizers(self, optimizers: dict[str, Any]) -> dict[str, Any]:
            return {}

    brain = small(All, opt_class=None)
    before = weights(brain)
    brain.fit(range(1), batches(4, 4))
    assert brain.optimizer_step == 0
    assert same(weights(brain), before)


def test_optimizers_that_are_only_attributes_are_found() -> None:
    """A Brain that never fills `optimizers_dict`, as older vocoder recipes do."""

    class Attributes(Regression):
        def init_optimizers(self) -> None:
            self.own = torch.optim.SGD(self.modules.parameters(), lr=0.1)

        def fit_batch(self, batch: Batch) -> torch.Tensor:
            loss = self.compute_objectives(self.compute_forward(batch, TRAIN), batch, TRAIN)
            self.own.zero_grad()
            loss.backward()
            self.own.step()
            return loss.detach()

    brain = small(Attributes, opt_class=None)
    data = batches(4, 4, 4)
    data[1]["x"][0, 0] = float("nan")
    brain.fit(range(1), data)
    assert brain.optimizer_step == 2
    assert brain.run_state.nonfinite_windows == 1
    assert all(torch.isfinite(w).all() for w in weights(brain))


def test_a_brain_without_optimizer_can_run_its_loop() -> None:
    """For statistics, or k-means: nothing is stepped, losses are averaged."""

    class Statistics(Regression):
        def fit_batch(self, batch: Batch) -> float:
            return float(batch["x"].sum())

        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
            self.loss = stage_loss

    brain = small(Statistics, opt_class=None, hparams={"run_opts": {"loss_average": "batches"}})
    data = batches(4, 4)
    brain.fit(range(1), data)
    assert brain.optimizer_step == 0
    assert brain.loss == pytest.approx(sum(float(batch["x"].sum()) for batch in data) / 2)


class KMeans(bl.Brain):
    """What it learns are buffers; it counts its updates itself. Dies after `dies_at` of them."""

    dies_at: int | None = None

    def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
        return torch.cdist(batch["x"], self.modules.model.centers).square()

    def compute_objectives(self, predictions: torch.Tensor, batch: Batch, stage: bl.Stage) -> torch.Tensor:
        return predictions.amin(1).mean()

    def fit_batch(self, batch: Batch) -> torch.Tensor:
        model, distances = self.modules.model, self.compute_forward(batch, TRAIN)
        model.seen += torch.bincount(distances.argmin(1), minlength=len(model.seen))
        for point, nearest in zip(batch["x"], distances.argmin(1), strict=True):
            model.centers[nearest] += (point - model.centers[nearest]) / model.seen[nearest]
        self.optimizer_step += 1
        if self.optimizer_step == self.dies_at:
            raise RuntimeError("the power goes")
        return self.compute_objectives(distances, batch, TRAIN)


def kmeans(folder: Path | None = None, **options: Any) -> Any:
    model = nn.Module()
    model.register_buffer("centers", torch.eye(3, dtype=torch.float64))
    model.register_buffer("seen", torch.zeros(3))
    checkpointer = None if folder is None else bl.Checkpointer(folder)
    return small(KMeans, model=model, opt_class=None, checkpointer=checkpointer, **options)


def test_a_brain_without_gradients_counts_its_updates_and_goes_on_inside_an_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="brainlib")
    data, whole = batches(*[4] * 7), kmeans()
    whole.fit(range(3), data, data[:1])
    assert whole.optimizer_step == 21 and "update 21" in caplog.text
    assert "no optimizer: updates are what your fit_batch counts" in caplog.text
    cut = kmeans(tmp_path, ckpt_interval_steps=5, ckpt_async=False)
    cut.dies_at = 12
    with pytest.raises(RuntimeError, match="the power goes"):
        cut.fit(range(3), data, data[:1])
    assert bl.Checkpointer(tmp_path).newest().path.name == "step-00000010"  # type: ignore[union-attr]
    resumed = kmeans(tmp_path)
    resumed.fit(range(3), data, data[:1])
    assert resumed.optimizer_step == 21 and resumed.run_state.epoch == 3
    assert same(whole.modules.model.buffers(), resumed.modules.model.buffers())


def test_a_user_who_counts_steps_himself_is_not_counted_twice() -> None:
    """Recipes with a `fit_batch` of their own write ``self.optimizer_step += 1``."""

    class Counting(Regression):
        def fit_batch(self, batch: Batch) -> torch.Tensor:
            loss = self.compute_objectives(self.compute_forward(batch, TRAIN), batch, TRAIN)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.optimizer_step += 1
            return loss.detach()

    brain = small(Counting)
    brain.fit(range(2), batches(4, 4))
    assert brain.optimizer_step == 4


def test_opt_class_with_nothing_to_train_says_so() -> None:
    with pytest.raises(ValueError, match="opt_class"):
        small(model=nn.ReLU()).fit(range(1), batches(4))


def test_zero_grad_clears_all_optimizers() -> None:
    brain = small(Two, opt_class=None)
    brain.on_fit_start()
    for set_to_none in (False, True):
        for parameter in brain.modules.parameters():
            parameter.grad = torch.ones_like(parameter)
        brain.zero_grad(set_to_none)
        for parameter in brain.modules.parameters():
            assert (parameter.grad is None) if set_to_none else not parameter.grad.any()


def test_no_hook_is_left_on_the_users_optimizer() -> None:
    class Own(Regression):
        def fit_batch(self, batch: Batch) -> torch.Tensor:
            return super().fit_batch(batch)

    brain = small(Own)
    brain.fit(range(1), batches(4))
    for parameter in brain.modules.parameters():
        parameter.grad = torch.full_like(parameter, float("nan"))
    brain.optimizer.step()
    assert torch.isnan(brain.modules.model.weight).all(), "outside of fit the optimizer is the user's alone"
