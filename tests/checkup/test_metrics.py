"""Metrics made in on_stage_start(VALID): a resumed run has no need of the old ones, unless something reads them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import brainlib as bl
from brainlib.checkup.telling import RESUME
from tests.checkup.faults import Batch, Brain, Items, model, sgd

VALID = [next(iter(torch.utils.data.DataLoader(Items(), batch_size=12)))]


class Stats:
    """Losses, and a state."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def append(self, loss: Tensor) -> None:
        self.losses.append(float(loss))

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self.losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = list(state["losses"])


class ModuleStats(nn.Module):
    """As other libraries have them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(()))

    def append(self, loss: Tensor) -> None:
        self.total += loss.detach()


class Measuring(Brain):
    """The commonest idiom."""

    make: Any = Stats

    def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
        if stage is not bl.Stage.TRAIN:
            self.stats = self.make()

    def compute_objectives(self, predictions: Tensor, batch: Batch, stage: bl.Stage) -> Tensor:
        loss = super().compute_objectives(predictions, batch, stage)
        if stage is not bl.Stage.TRAIN:
            self.measure(loss)
        return loss

    def measure(self, loss: Tensor) -> None:
        self.stats.append(loss)


class WithModule(Measuring):
    make = ModuleStats


class InADict(Measuring):
    """Two of them."""

    def make(self) -> Any:
        return {"first": Stats(), "second": ModuleStats()}

    def measure(self, loss: Tensor) -> None:
        for each in self.stats.values():
            each.append(loss)


class OverAllEpochs(Measuring):
    """One object for all epochs, which is made when it is first needed."""

    def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
        if stage is not bl.Stage.TRAIN and not hasattr(self, "stats"):
            self.stats = Stats()


class Lowest(Stats):
    """What it holds may be the same in the end by chance: here it always is."""

    def append(self, loss: Tensor) -> None:
        self.losses = [0.0]


class LowestOverAllEpochs(OverAllEpochs):
    def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
        if stage is not bl.Stage.TRAIN and not hasattr(self, "stats"):
            self.stats = Lowest()


class FromTheOneBefore(Measuring):
    """A new object each time, with what the old one held."""

    def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
        if stage is not bl.Stage.TRAIN:
            before, self.stats = getattr(self, "stats", Stats()), Stats()
            self.stats.losses = list(before.losses)


class FilledInTraining(Measuring):
    """Made in the validation, and filled by what follows."""

    def on_fit_batch_end(self, batch: Batch, outputs: Any, loss: Tensor, should_step: bool) -> None:
        if hasattr(self, "stats"):
            self.stats.append(loss)


class ReadByTheLoss(Measuring):
    """Of the validation before, while it is there."""

    def compute_objectives(self, predictions: Tensor, batch: Batch, stage: bl.Stage) -> Tensor:
        loss = super().compute_objectives(predictions, batch, stage)
        return loss * 0.5 if stage is bl.Stage.TRAIN and hasattr(self, "stats") else loss


class ReadWithoutAsking(Measuring):
    """In training."""

    def on_fit_batch_end(self, batch: Batch, outputs: Any, loss: Tensor, should_step: bool) -> None:
        if self.run_state.epoch:
            self.stats.state_dict()


def examined(cls: type[Brain]) -> Any:
    brain = cls({"model": model()}, sgd, {"seed": 1}, {"noprogressbar": True, "device": "cpu"})
    return bl.doctor(brain, Items(), VALID, {"batch_size": 4, "shuffle": True}, accumulation=False)


@pytest.mark.parametrize("cls", [Measuring, WithModule, InADict])
def test_what_is_made_anew_before_it_is_read_is_passed_in_silence(cls: type[Brain]) -> None:
    report = examined(cls)
    assert report and not report.findings and not report.notes, str(report)
    assert str(report).count("equal bits to the end") == 2


@pytest.mark.parametrize(
    "cls", [OverAllEpochs, LowestOverAllEpochs, FromTheOneBefore, FilledInTraining, ReadByTheLoss]
)
def test_what_is_not_made_anew_or_is_read_is_named(cls: type[Brain]) -> None:
    report = examined(cls)
    assert report.findings, str(report)
    for finding in report.findings:
        assert finding.check == RESUME and "stats" in str(finding)
        assert "brain.stats" in finding.suspects[0]
        assert "not there yet when the checkpoint that holds it is loaded" in finding.cause
        assert finding.todo.startswith("make it earlier: in __init__") and "attribute" not in finding.todo


def test_who_reads_it_all_the_same_fails() -> None:
    finding = examined(ReadWithoutAsking).findings[0]
    assert "the resumed run fails" in finding.what and "'stats'" in finding.what


@pytest.mark.parametrize("cls", [OverAllEpochs, LowestOverAllEpochs, FilledInTraining])
def test_the_advice_helps(cls: type[Brain]) -> None:
    class Earlier(cls):  # type: ignore[valid-type,misc]
        def on_fit_start(self) -> None:
            super().on_fit_start()
            if not hasattr(self, "stats"):
                self.stats = Lowest() if cls is LowestOverAllEpochs else Stats()

    report = examined(Earlier)
    if cls is FilledInTraining:  # made anew by each validation, and restored in between
        assert not report.notes
    assert report and not report.findings, str(report)
