"""Averages that count each item once, and what a loss and a `fit_batch` may return."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import brainlib as bl
from tests.brain.small import Batch, Regression, batches, joined, small

TRAIN, VALID, TEST = bl.Stage.TRAIN, bl.Stage.VALID, bl.Stage.TEST


class Averages(Regression):
    """The loss of a batch is the mean of what the batch holds: nothing is learned, only averaged."""

    def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
        return batch["x"] + 0 * self.modules.model.bias.sum()

    def compute_objectives(self, predictions: torch.Tensor, batch: Batch, stage: bl.Stage) -> torch.Tensor:
        return predictions.mean()

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        self.ends = {**getattr(self, "ends", {}), stage: stage_loss}


VALUES = [torch.tensor([0.1, 0.2, 0.3, 0.2]), torch.tensor([0.1, 0.3, 0.2, 0.18]), torch.tensor([0.21])]
UNEVEN = [{"x": values.double()} for values in VALUES]
OF_ITEMS = float(torch.cat(VALUES).double().mean())
OF_BATCHES = sum(float(values.double().mean()) for values in VALUES) / 3


def test_a_stage_loss_counts_each_item_once() -> None:
    brain = small(Averages)
    brain.fit(range(1), UNEVEN, UNEVEN)
    assert brain.ends[TRAIN] == pytest.approx(OF_ITEMS, abs=1e-15)
    assert brain.ends[VALID] == pytest.approx(OF_ITEMS, abs=1e-15)
    assert brain.evaluate(UNEVEN) == pytest.approx(OF_ITEMS, abs=1e-15)
    assert abs(OF_ITEMS - OF_BATCHES) > 1e-3, "the two differ, or this test says nothing"


def test_the_mean_of_batch_means_can_be_had() -> None:
    brain = small(Averages, hparams={"run_opts": {"loss_average": "batches"}})
    brain.fit(range(1), UNEVEN, UNEVEN)
    assert brain.ends[TRAIN] == pytest.approx(OF_BATCHES, abs=1e-15)
    assert brain.evaluate(UNEVEN) == pytest.approx(OF_BATCHES, abs=1e-15)


def test_another_loss_average_is_refused() -> None:
    with pytest.raises(ValueError, match="loss_average") as caught:
        small(loss_average="tokens")
    assert "items" in str(caught.value)
    assert "batches" in str(caught.value)


def test_the_averages_of_an_overridden_fit_batch_are_weighted_too() -> None:
    class Own(Averages):
        def fit_batch(self, batch: Batch) -> torch.Tensor:
            return self.compute_objectives(self.compute_forward(batch, TRAIN), batch, TRAIN).detach()

    brain = small(Own)
    brain.fit(range(1), UNEVEN)
    assert brain.ends[TRAIN] == pytest.approx(OF_ITEMS, abs=1e-15)


def test_loss_weight_says_what_a_loss_is_a_mean_over() -> None:
    class Tokens(Averages):
        def loss_weight(self, batch: Batch, stage: bl.Stage) -> float:
            return float(batch["num_tokens"].sum())

    data = [
        {"x": torch.tensor([1.0]).double(), "num_tokens": torch.tensor([9])},
        {"x": torch.tensor([3.0]).double(), "num_tokens": torch.tensor([1])},
    ]
    brain = small(Tokens)
    brain.fit(range(1), data, data)
    assert brain.ends[TRAIN] == pytest.approx(1.2, abs=1e-15)
    assert brain.evaluate(data) == pytest.approx(1.2, abs=1e-15)


def test_batches_whose_size_nobody_can_tell_count_as_one_and_are_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Opaque:
        def __init__(self, value: float) -> None:
            self.value = value

    class Brain(Averages):
        def compute_forward(self, batch: Any, stage: bl.Stage) -> torch.Tensor:
            return torch.tensor([batch.value]).double() + 0 * self.modules.model.bias.sum()

    brain = small(Brain)
    brain.fit(range(2), [Opaque(1.0), Opaque(2.0)])
    assert brain.ends[TRAIN] == pytest.approx(1.5)
    warnings = [record for record in caplog.records if "loss_weight" in record.getMessage()]
    assert len(warnings) == 1
    assert warnings[0].levelname == "WARNING"


@pytest.mark.parametrize("kind", ["tensor", "float", "int", "tensor with grad"])
def test_an_overridden_fit_batch_returns_tensor_float_or_int(kind: str) -> None:
    class Brain(Averages):
        def fit_batch(self, batch: Batch) -> Any:
            loss = self.compute_objectives(self.compute_forward(batch, TRAIN), batch, TRAIN)
            loss.backward()
            self.optimizers_step()
            return {"tensor": loss.detach(), "float": loss.item(), "int": 2, "tensor with grad": loss}[kind]

    brain = small(Brain)
    brain.fit(range(1), UNEVEN)
    assert brain.ends[TRAIN] == pytest.approx(2.0 if kind == "int" else OF_ITEMS, abs=1e-12)
    assert brain.optimizer_step == 3


def test_an_overridden_fit_batch_that_returns_nothing_is_an_error() -> None:
    class Brain(Averages):
        def fit_batch(self, batch: Batch) -> Any:
            return None

    with pytest.raises((TypeError, ValueError), match="fit_batch") as caught:
        small(Brain).fit(range(1), UNEVEN)
    assert "loss" in str(caught.value)


def test_the_default_fit_batch_returns_a_detached_tensor_on_the_device() -> None:
    returned: list[torch.Tensor] = []

    class Brain(Regression):
        def fit_batch(self, batch: Batch) -> torch.Tensor:
            loss = super().fit_batch(batch)
            returned.append(loss)
            return loss

    brain = small(Brain)
    brain.fit(range(1), batches(4, 2))
    assert [loss.requires_grad for loss in returned] == [False, False]
    assert all(loss.device == torch.device(brain.device) for loss in returned)
    assert returned[0].shape == ()


def test_a_loss_without_reduction_is_an_error_that_says_so() -> None:
    class Brain(Regression):
        def compute_objectives(
            self, predictions: torch.Tensor, batch: Batch, stage: bl.Stage
        ) -> torch.Tensor:
            return (predictions - batch["y"]).pow(2)

    for run in (lambda b: b.fit(range(1), batches(4)), lambda b: b.evaluate(batches(4))):
        with pytest.raises(ValueError, match="compute_objectives|evaluate_batch") as caught:
            run(small(Brain))
        assert "4, 2" in str(caught.value), "the shape that it got"
        assert "mean" in str(caught.value), "what to do"


def test_a_loss_with_one_element_is_a_scalar() -> None:
    class Brain(Regression):
        def compute_objectives(
            self, predictions: torch.Tensor, batch: Batch, stage: bl.Stage
        ) -> torch.Tensor:
            return super().compute_objectives(predictions, batch, stage).reshape(1)

    brain, reference = small(Brain), small()
    brain.fit(range(1), batches(4, 2), batches(2))
    reference.fit(range(1), batches(4, 2), batches(2))
    assert brain.evaluate(batches(2)) == reference.evaluate(batches(2))


def test_a_loss_that_does_not_depend_on_the_weights_is_an_error_that_names_the_method() -> None:
    class Brain(Regression):
        def compute_objectives(
            self, predictions: torch.Tensor, batch: Batch, stage: bl.Stage
        ) -> torch.Tensor:
            return super().compute_objectives(predictions.detach(), batch, stage)

    with pytest.raises(ValueError, match="compute_objectives") as caught:
        small(Brain).fit(range(1), batches(4))
    assert "grad" in str(caught.value)


def test_a_loss_that_is_no_tensor_is_an_error_that_names_the_method() -> None:
    class Brain(Regression):
        def compute_objectives(self, predictions: torch.Tensor, batch: Batch, stage: bl.Stage) -> Any:
            return {"loss": super().compute_objectives(predictions, batch, stage)}

    with pytest.raises((TypeError, ValueError), match="compute_objectives") as caught:
        small(Brain).fit(range(1), batches(4))
    assert "dict" in str(caught.value)


def test_evaluate_is_right_for_any_split() -> None:
    rows = joined(batches(7, 5, 1))
    right = small().evaluate([rows])
    for sizes in ((13,), (1,) * 13, (7, 5, 1), (4, 4, 4, 1)):
        columns = {key: value.split(list(sizes)) for key, value in rows.items()}
        parts = [{key: column[k] for key, column in columns.items()} for k in range(len(sizes))]
        assert small().evaluate(parts) == pytest.approx(right, abs=1e-12)
