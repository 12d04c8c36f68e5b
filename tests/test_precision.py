"""In which types forward and loss run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import brainlib as bl
from brainlib.precision import Autocast, precision_of
from tests.brain.small import Batch, Regression, batches, small

CPU = torch.device("cpu")


def kind() -> torch.dtype:
    return torch.nn.functional.linear(torch.ones(1, 2), torch.ones(2, 2)).dtype


@pytest.mark.parametrize(("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_what_a_product_is_computed_in(name: str, dtype: torch.dtype) -> None:
    precision = precision_of(name, CPU)
    context = precision.context()
    for _ in range(2):  # made once, entered at every batch
        with context:
            assert kind() == dtype
        assert kind() == torch.float32
    assert not precision.scaler().is_enabled()


def test_fp16_on_a_cpu_is_refused() -> None:
    with pytest.raises(
        ValueError, match="precision is 'fp16' and the device is 'cpu'; use precision: bf16 there"
    ):
        precision_of("fp16", CPU)
    with pytest.raises(ValueError, match="use precision: bf16 there"):
        small(precision="fp16")


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_context_entered_inside_itself_ends_with_autocast_off(depth: int) -> None:
    context = Autocast("cpu", torch.bfloat16)
    for _ in range(depth):
        context.__enter__()
    assert kind() == torch.bfloat16
    for left in reversed(range(depth)):
        context.__exit__(None, None, None)
        assert torch.is_autocast_enabled("cpu") == (left > 0)
    assert kind() == torch.float32


def test_an_error_inside_ends_it_too() -> None:
    context = Autocast("cpu", torch.bfloat16)
    with pytest.raises(KeyError), context, context:
        raise KeyError
    assert not torch.is_autocast_enabled("cpu")


def test_other_types_inside_are_those_of_the_user() -> None:
    with Autocast("cpu", torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            assert kind() == torch.float32
        assert kind() == torch.bfloat16


class Typed(Regression):
    """Writes down in which type each stage computes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.kinds: dict[str, set[torch.dtype]] = {}
        super().__init__(*args, **kwargs)

    def compute_forward(self, batch: Batch, stage: bl.Stage) -> Tensor:
        self.kinds.setdefault(stage.name, set()).add(kind())
        return super().compute_forward(batch, stage)


@pytest.mark.parametrize("evaluation", ["fp32", "bf16"])
@pytest.mark.parametrize("training", ["fp32", "bf16"])
def test_training_and_evaluation_have_each_their_own(training: str, evaluation: str) -> None:
    """Also where a validation runs between two batches of an epoch."""
    types = {"fp32": torch.float32, "bf16": torch.bfloat16}
    brain = small(Typed, precision=training, eval_precision=evaluation, valid_interval_steps=1)
    brain.fit(range(1), batches(2, 2), batches(2))
    brain.evaluate(batches(2))
    assert brain.kinds == {
        "TRAIN": {types[training]},
        "VALID": {types[evaluation]},
        "TEST": {types[evaluation]},
    }
    assert not torch.is_autocast_enabled("cpu")


def test_evaluating_inside_a_forward_leaves_autocast_on_there() -> None:
    class Inside(Typed):
        def compute_objectives(self, predictions: Tensor, batch: Batch, stage: bl.Stage) -> Tensor:
            if stage == bl.Stage.TRAIN:
                self.evaluate(batches(2), checkpoint="current")
                assert kind() == torch.bfloat16
            return super().compute_objectives(predictions, batch, stage)

    small(Inside, precision="bf16").fit(range(1), batches(2, 2))
    assert not torch.is_autocast_enabled("cpu")
