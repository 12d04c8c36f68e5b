"""A window that is not finite leaves no trace but a count; too many in a row end the run with a message."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from tests.brain.small import Batch, Regression, batches, same, small, weights

NAN = float("nan")


def spoiled(sizes: tuple[int, ...], *bad: int, value: float = NAN) -> list[Batch]:
    """Batches of which some hold one number that is not one."""
    data = batches(*sizes)
    for index in bad:
        data[index]["x"][0, 0] = value
    return data


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.1)


class Traced(Regression):
    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        self.stage_loss = stage_loss


class Own(Traced):
    """The same mathematics in a `fit_batch` of its own."""

    def fit_batch(self, batch: Batch) -> torch.Tensor:
        loss = self.compute_objectives(self.compute_forward(batch, bl.Stage.TRAIN), batch, bl.Stage.TRAIN)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.modules.parameters(), self.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


both = pytest.mark.parametrize("cls", [Traced, Own])


@both
@pytest.mark.parametrize("value", [NAN, float("inf")])
def test_a_bad_batch_is_as_if_it_had_not_been(cls: type[Traced], value: float) -> None:
    """Weights, moments, counters and the average equal those of the run without it, bit for bit."""
    brain, without = small(cls, opt_class=adam), small(cls, opt_class=adam)
    data = spoiled((4, 4, 3), 1, value=value)
    brain.fit(range(1), data)
    without.fit(range(1), [data[0], data[2]])
    assert same(weights(brain), weights(without))
    assert brain.optimizer_step == without.optimizer_step == 2
    for one, two in zip(brain.optimizer.state.values(), without.optimizer.state.values(), strict=True):
        assert same(one.values(), two.values())
    assert brain.stage_loss == without.stage_loss
    assert brain.run_state.nonfinite_windows == 1
    assert without.run_state.nonfinite_windows == 0


@both
def test_the_last_batch_may_be_the_bad_one(cls: type[Traced]) -> None:
    """Also where the verdict is read late, it is read before anybody sees the result."""
    brain = small(cls)
    brain.fit(range(1), spoiled((4, 4, 3), 2), batches(2))
    assert brain.run_state.nonfinite_windows == 1
    assert brain.optimizer_step == 2
    assert all(torch.isfinite(w).all() for w in weights(brain))
    assert math.isfinite(brain.stage_loss)


def test_one_bad_micro_batch_spoils_its_window_alone() -> None:
    brain, without = small(Traced, grad_accumulation_factor=2), small(Traced, grad_accumulation_factor=2)
    data = spoiled((4, 4, 3, 3, 2, 2), 2)
    brain.fit(range(1), data)
    without.fit(range(1), data[:2] + data[4:])
    assert same(weights(brain), weights(without))
    assert brain.optimizer_step == 2
    assert brain.run_state.nonfinite_windows == 1
    assert brain.stage_loss == without.stage_loss


def test_a_gradient_that_is_not_finite_under_a_finite_loss() -> None:
    """The root of zero: loss 0, slope infinite."""

    class Root(Traced):
        def compute_objectives(
            self, predictions: torch.Tensor, batch: Batch, stage: bl.Stage
        ) -> torch.Tensor:
            return (predictions * batch["x"].abs().sum()).pow(2).sum().sqrt() / len(predictions)

    data = batches(4, 4)
    data[0]["x"].zero_()
    brain = small(Root)
    before = weights(brain)
    brain.fit(range(1), data[:1])
    assert same(weights(brain), before)
    assert brain.run_state.nonfinite_windows == 1
    brain.fit(range(1), data)
    assert all(torch.isfinite(w).all() for w in weights(brain))
    assert brain.optimizer_step == 1


@both
def test_patience_ends_the_run_with_the_weights_unharmed(cls: type[Traced]) -> None:
    brain = small(cls, nonfinite_patience=2)
    before = weights(brain)
    with pytest.raises(ValueError, match="nonfinite_patience") as caught:
        brain.fit(range(1), spoiled((2,) * 10, *range(10)))
    assert "2" in str(caught.value)
    assert same(weights(brain), before)
    assert brain.step <= 5, "three are too many; the verdict may come one batch late"


@both
def test_patience_is_for_windows_in_a_row(cls: type[Traced]) -> None:
    """Four bad ones among good ones are not the sign of a dead run."""
    brain = small(cls, nonfinite_patience=3)
    brain.fit(range(1), spoiled((2,) * 9, 1, 3, 5, 7))
    assert brain.run_state.nonfinite_windows == 4
    assert brain.optimizer_step == 5


def test_no_patience_at_all() -> None:
    with pytest.raises(ValueError, match="nonfinite_patience"):
        small(nonfinite_patience=0).fit(range(1), spoiled((2, 2, 2), 1))


def test_a_skipped_window_is_said(caplog: pytest.LogCaptureFixture) -> None:
    small().fit(range(1), spoiled((4, 4, 3), 1))
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert any("finite" in line for line in warnings)


def test_two_optimizers_are_skipped_together() -> None:
    """One of them alone would leave the parts of a model at different updates."""

    class Two(Regression):
        def init_optimizers(self) -> None:
            weight, bias = self.modules.model.weight, self.modules.model.bias
            self.optimizers_dict = {
                "bias": torch.optim.SGD([bias], 0.1),
                "weight": torch.optim.SGD([weight], 0.1),
            }

        def compute_objectives(
            self, predictions: torch.Tensor, batch: Batch, stage: bl.Stage
        ) -> torch.Tensor:
            return (
                super().compute_objectives(predictions, batch, stage)
                + self.modules.model.weight[0, 0] * batch["bad"]
            )

    brain = small(Two, opt_class=None)
    before = weights(brain)
    data = batches(4)
    data[0]["bad"] = torch.tensor(float("inf"))  # the gradient of the weight alone is infinite
    brain.fit(range(1), data)
    assert same(weights(brain), before)
    assert brain.optimizer_step == 0


def test_an_evaluation_loss_that_is_not_finite_is_reported_as_it_is() -> None:
    assert math.isnan(small().evaluate(spoiled((4, 3), 0)))


def test_of_two_steps_in_a_batch_only_the_bad_one_is_refused_and_that_is_counted_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A judge that diverges must not take the generator with it, nor go unseen."""

    class Gan(Regression):
        def init_optimizers(self) -> None:
            self.optimizer_w = torch.optim.SGD([self.modules.model.weight], 0.1)
            self.optimizer_b = torch.optim.SGD([self.modules.model.bias], 0.1)
            self.optimizers_dict = {"w": self.optimizer_w, "b": self.optimizer_b}

        def fit_batch(self, batch: Batch) -> torch.Tensor:
            for optimizer, factor in ((self.optimizer_w, batch["factor"]), (self.optimizer_b, 1.0)):
                loss = self.compute_objectives(
                    self.compute_forward(batch, bl.Stage.TRAIN), batch, bl.Stage.TRAIN
                )
                optimizer.zero_grad()
                (loss * factor).backward()
                optimizer.step()
            return loss.detach()

    brain = small(Gan, opt_class=None)
    data = [
        {**batch, "factor": torch.tensor(factor)}
        for batch, factor in zip(batches(4, 4), (1.0, NAN), strict=True)
    ]
    brain.fit(range(1), data[1:])
    assert torch.equal(brain.modules.model.weight, small().modules.model.weight)
    assert not torch.equal(brain.modules.model.bias, small().modules.model.bias)
    assert brain.optimizer_step == 1, "some optimizer stepped"
    assert any("finite" in record.getMessage() for record in caplog.records)
    brain.fit(range(1), data[:1])
    assert all(torch.isfinite(w).all() for w in weights(brain))


def test_a_recipe_that_checks_by_itself_is_not_counted_twice() -> None:
    """`check_loss_isfinite` before backward, as in SpeechBrain's own loop: one bad batch, one count."""

    class Checking(Own):
        def fit_batch(self, batch: Batch) -> torch.Tensor:
            loss = self.compute_objectives(self.compute_forward(batch, bl.Stage.TRAIN), batch, bl.Stage.TRAIN)
            self.check_loss_isfinite(loss)
            loss.backward()
            if self.check_gradients():
                self.optimizer.step()
            self.optimizer.zero_grad()
            return loss.detach()

    brain = small(Checking, nonfinite_patience=3)
    brain.fit(range(1), spoiled((2,) * 6, 1, 2, 3))
    assert brain.optimizer_step == 3
    assert brain.run_state.nonfinite_windows == 3
    with pytest.raises(ValueError, match="nonfinite_patience"):
        brain.fit(range(1), spoiled((2,) * 6, 1, 2, 3, 4))


def test_nonfinite_count_is_there_for_the_recipe_while_it_matters() -> None:
    """Read inside an epoch; a fresh epoch starts from nothing."""
    counts: list[int] = []

    class Counting(Regression):
        def on_fit_batch_end(self, batch: Batch, outputs: Any, loss: torch.Tensor, should_step: bool) -> None:
            counts.append(self.nonfinite_count)

    small(Counting).fit(range(2), spoiled((2, 2, 2), 1))
    assert counts[0] == counts[3] == 0
    assert counts[1] == counts[4] == 1


def test_a_model_that_is_not_finite_is_never_checkpointed(tmp_path: Path) -> None:
    """Whatever wrote the value, past the guard: the older checkpoint stays, the run ends with the name."""

    class Breaking(Regression):
        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
            if stage == bl.Stage.TRAIN and epoch == 1:
                with torch.no_grad():
                    self.modules.model.weight[0, 0] = float("nan")

    brain = small(Breaking, checkpointer=bl.Checkpointer(tmp_path))
    with pytest.raises(ValueError, match=r"no checkpoint is made, because the parameters 'model.weight'"):
        brain.fit(range(3), batches(2, 2))
    other = small(checkpointer=bl.Checkpointer(tmp_path))
    other.fit(range(1), batches(2, 2))
    assert other.optimizer_step == 2
    assert torch.isfinite(other.modules.model.weight).all()


def test_the_ids_of_a_bad_batch_are_named(caplog: pytest.LogCaptureFixture) -> None:
    data = spoiled((2, 2), 1)
    named = [{**batch, "id": [f"utt{number}a", f"utt{number}b"]} for number, batch in enumerate(data)]
    small().fit(range(1), named)
    assert "batch 2 of the epoch with the ids 'utt1a', 'utt1b'" in caplog.text
