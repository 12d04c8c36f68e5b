"""Evaluating with other weights leaves the Brain as it was, also buffers that nobody saves; damage is passed over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import brainlib as bl
from brainlib.borrowing import load_for_evaluation, preserved_buffers, preserved_weights
from tests.brain.small import Batch, Regression, batches, small


class Counting(nn.Module):
    """Buffers that move in each forward, in evaluation too: one is saved, one is not, one is made anew each time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2).double()
        self.register_buffer("saved", torch.zeros(1))
        self.register_buffer("unsaved", torch.zeros(1), persistent=False)
        self.register_buffer("replaced", torch.zeros(1), persistent=False)
        self.register_buffer("absent", None)

    def forward(self, x: Tensor) -> Tensor:
        self.saved += 1
        self.unsaved += 1
        self.replaced = self.replaced + 1
        return self.layer(x)


def buffers_of(module: nn.Module) -> list[tuple[float, int]]:
    return [(float(buffer), id(buffer)) for buffer in module.buffers()]


@pytest.mark.parametrize("how", ["evaluate", "predict", "evaluate, with an error"])
@pytest.mark.parametrize("saved", [False, True])
def test_no_buffer_is_moved(saved: bool, how: str, tmp_path: Path) -> None:
    class Failing(Regression):
        def compute_objectives(self, predictions: Tensor, batch: Batch, stage: bl.Stage) -> Tensor:
            if how == "evaluate, with an error" and stage == bl.Stage.TEST:
                raise KeyError("mine")
            return super().compute_objectives(predictions, batch, stage)

    brain = small(Failing, model=Counting(), checkpointer=bl.Checkpointer(tmp_path) if saved else None)
    brain.fit(range(1), batches(2, 2))
    brain.modules.model.unsaved += 10  # since the checkpoint was made
    before = buffers_of(brain.modules)
    assert [value for value, _ in before] == [2.0, 12.0, 2.0]
    if how == "predict":
        brain.predict(batches(2, 2, 2))
    elif how == "evaluate":
        brain.evaluate(batches(2, 2, 2))
    else:
        with pytest.raises(KeyError, match="mine"):
            brain.evaluate(batches(2, 2, 2))
    assert buffers_of(brain.modules) == before, "values and objects"


def test_gradients_flags_and_parameter_objects_stay(tmp_path: Path) -> None:
    brain = small(checkpointer=bl.Checkpointer(tmp_path))
    brain.fit(range(1), batches(2, 2))
    weight, bias = brain.modules.model.weight, brain.modules.model.bias
    weight.grad = torch.ones_like(weight)
    bias.requires_grad_(False)
    with torch.no_grad():
        weight.add_(1.0)
    before = weight.detach().clone()
    brain.evaluate(batches(2))
    assert brain.modules.model.weight is weight
    assert torch.equal(weight, before)
    assert torch.equal(weight.grad, torch.ones_like(weight))
    assert (weight.requires_grad, bias.requires_grad) == (True, False)
    assert brain.optimizer.param_groups[0]["params"][0] is weight


@pytest.mark.parametrize("error", [False, True])
def test_weights_come_back(error: bool) -> None:
    model, other = nn.BatchNorm1d(2), object()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        with preserved_weights([model, other, model]), preserved_buffers(model):
            for value in model.state_dict().values():
                value.fill_(7)
            if error:
                raise KeyError
    except KeyError:
        pass
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# ----------------------------------------------------------------------------------------------------- which checkpoint
class Saving(Regression):
    """Three epochs, three checkpoints with metrics 3, 1, 2."""

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        if stage == bl.Stage.TRAIN:
            metric = (3.0, 1.0, 2.0)[epoch or 0]
            self.checkpointer.save_and_keep_only({"metric": metric}, num_to_keep=3, min_keys=["metric"])


def damage(checkpoint: Path) -> None:
    weights = checkpoint / "model.pt"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 4
    weights.write_bytes(content)


CHOICES: list[tuple[dict[str, Any], int, int]] = [  # arguments; the update chosen; the next by the same rule
    ({}, 2, 3),
    ({"checkpoint": "best"}, 2, 3),
    ({"min_key": "metric"}, 2, 3),
    ({"max_key": "metric"}, 1, 3),
    ({"checkpoint": "last"}, 3, 2),
]


@pytest.mark.parametrize(("choice", "chosen", "following"), CHOICES)
def test_a_damaged_checkpoint_is_passed_over_for_the_next_by_the_same_rule(
    choice: dict[str, Any], chosen: int, following: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small(Saving, checkpointer=bl.Checkpointer(tmp_path)).fit(range(3), batches(3))

    def evaluated() -> tuple[float, str]:
        caplog.clear()
        with caplog.at_level("INFO", logger="brainlib"):
            loss = small(Saving, checkpointer=bl.Checkpointer(tmp_path)).evaluate(batches(4), **choice)
        return loss, caplog.text

    loss, text = evaluated()
    assert f"evaluating with the weights of {tmp_path}/step-0000000{chosen} (" in text
    damage(tmp_path / f"step-0000000{chosen}")
    other, text = evaluated()
    assert f"step-0000000{chosen} is skipped: its model.pt is not what was written" in text
    assert f"evaluating with the weights of {tmp_path}/step-0000000{following} (" in text
    assert other != loss


def test_all_damaged_is_an_error_and_not_the_current_weights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small(Saving, checkpointer=bl.Checkpointer(tmp_path)).fit(range(3), batches(3))
    for checkpoint in tmp_path.glob("step-*"):
        damage(checkpoint)
    brain = small(Saving, checkpointer=bl.Checkpointer(tmp_path))
    for choice in (None, "last", "best"):
        with pytest.raises(ValueError, match="that could be loaded are damaged; the warnings above say how"):
            brain.evaluate(batches(4), checkpoint=choice)
    assert all(f"step-0000000{number} is skipped" in caplog.text for number in (1, 2, 3))


def test_a_damaged_one_that_was_asked_for_by_its_path_is_an_error(tmp_path: Path) -> None:
    small(Saving, checkpointer=bl.Checkpointer(tmp_path)).fit(range(3), batches(3))
    damage(tmp_path / "step-00000002")
    with pytest.raises(ValueError, match="model.pt"):
        small(checkpointer=bl.Checkpointer(tmp_path)).evaluate(
            batches(4), checkpoint=tmp_path / "step-00000002"
        )


def test_a_misspelt_choice_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no such path; .* Did you mean 'best'"):
        load_for_evaluation(bl.Checkpointer(tmp_path), "bset")


def test_keys_without_a_checkpointer_have_no_effect_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    load_for_evaluation(None, None, max_key="acc")
    assert "evaluating with the current weights: max_key='acc' has no effect" in caplog.text
    caplog.clear()
    load_for_evaluation(None, None)
    assert caplog.text == ""


@pytest.mark.parametrize(("num", "reason"), [(2, "timed"), (2, "signal"), (0, "error")])
def test_checkpoints_that_carry_no_metric_are_not_said_to_be_absent(
    num: int, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are what the run goes on from, and are never the best."""
    caplog.set_level("INFO", logger="brainlib")
    model = nn.Linear(1, 1)
    checkpointer = bl.Checkpointer(tmp_path, {"model": model})
    for _ in range(max(num, 1)):
        newest = checkpointer.save_checkpoint(reason=reason).path.name
    load_for_evaluation(checkpointer, None, max_key="acc")
    if num:
        told = (
            f"no checkpoint in {tmp_path} carries 'acc'; the newest there, {newest}, was made inside an epoch"
        )
    else:
        told = f"there is no checkpoint in {tmp_path}"
    assert f"evaluating with the current weights: {told}" in caplog.text
    checkpointer._criterion = ("max", "acc")
    with pytest.raises(ValueError, match="checkpoint='best': " + told.partition(" in ")[0]):
        load_for_evaluation(checkpointer, "best")
    if num:
        load_for_evaluation(checkpointer, "last")
        assert f"evaluating with the weights of {tmp_path}/{newest} (newest)" in caplog.text
