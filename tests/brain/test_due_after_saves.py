"""What is due after an update that a save by hand stands for: done once, and there, wherever the run is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from tests.brain.small import Regression, batches, linear, sgd


class Cut(BaseException):
    """The end of the process, as far as the Brain can tell."""


class Steps(bl.Extension):
    """Notes at which updates it was called, and what the weights were."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[list[float]] = []

    def __call__(self, brain: Any) -> None:
        brain.moment("called")
        self.calls.append([brain.optimizer_step, brain.step, brain.modules.model.weight.sum().item()])

    def state_dict(self) -> dict[str, Any]:
        return {"calls": [list(call) for call in self.calls]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls = [list(call) for call in state["calls"]]


class SavesInHook(Regression):
    """Saves by hand at update 2, in the hook behind it, and is cut at some moment from then on."""

    cut_at = ""

    def moment(self, what: str) -> None:
        if self.optimizer_step == 2 and what == self.cut_at:
            raise Cut

    def save(self) -> None:
        if self.optimizer_step == 2:
            self.checkpointer.save_checkpoint(end_of_epoch=False).wait()
            self.moment("saved")

    def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Any, should_step: bool) -> None:
        if should_step:
            self.save()
        self.moment("hook")

    def on_fit_batch_start(self, batch: Any, should_step: bool) -> None:
        self.moment("next")


class SavesInFitBatch(SavesInHook):
    """The same with a fit_batch of its own, which saves before it returns: the update is not counted yet."""

    def fit_batch(self, batch: Any) -> Any:
        self.moment("next")
        loss = self.compute_objectives(self.compute_forward(batch, bl.Stage.TRAIN), batch, bl.Stage.TRAIN)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.optimizer_step == 1:
            self.checkpointer.save_checkpoint(end_of_epoch=False).wait()
            if self.cut_at in ("saved", "hook"):
                raise Cut
        return loss.detach()


class SavesAtStart(SavesInHook):
    """Saves before the next batch is trained on: what was due after the one before has been done."""

    def on_fit_batch_start(self, batch: Any, should_step: bool) -> None:
        self.save()
        self.moment("next")

    def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Any, should_step: bool) -> None:
        self.moment("hook")


def lived(folder: Path, cls: type[SavesInHook], cut_at: str, trigger: Any, factor: int) -> list[list[float]]:
    torch.manual_seed(0)
    steps = Steps(trigger=trigger)
    brain = cls(
        {"model": linear()},
        sgd,
        run_opts={"noprogressbar": True, "grad_accumulation_factor": factor, "ckpt_async": False},
        hparams={"seed": 1},
        checkpointer=bl.Checkpointer(folder),
        extensions=[steps],
    )
    brain.cut_at = cut_at
    if cut_at:
        with pytest.raises(Cut):
            brain.fit(range(2), batches(*[1] * (4 * factor)))
    else:
        brain.fit(range(2), batches(*[1] * (4 * factor)))
    return steps.calls


@pytest.mark.parametrize("cut_at", ["saved", "hook", "called", "next"])
@pytest.mark.parametrize(
    "trigger", [(1, "step"), (2, "step"), lambda brain: brain.optimizer_step == 2], ids=["1", "2", "function"]
)
@pytest.mark.parametrize(
    ("cls", "factor"),
    [(SavesInHook, 1), (SavesInHook, 2), (SavesAtStart, 1), (SavesAtStart, 2), (SavesInFitBatch, 1)],
)
def test_what_is_due_after_a_save_by_hand_is_done_once_and_at_its_update(
    cls: type[SavesInHook], factor: int, trigger: Any, cut_at: str, tmp_path: Path
) -> None:
    uncut = lived(tmp_path / "uncut", cls, "", trigger, factor)
    assert 2.0 in [call[0] for call in uncut] and len(uncut) <= 8
    lived(tmp_path / "cut", cls, cut_at, trigger, factor)
    assert lived(tmp_path / "cut", cls, "", trigger, factor) == uncut
