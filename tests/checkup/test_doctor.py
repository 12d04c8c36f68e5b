"""`bl.doctor` itself: what it takes, what it leaves alone, what it says."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import brainlib as bl
from brainlib.checkup.examine import examine
from brainlib.checkup.report import CheckupError, Report
from brainlib.checkup.session import Plan, Session
from brainlib.onlooker import invite
from tests.checkup.faults import HEALTHY, NUM_INPUTS, Brain, Items, OwnRandomState, model, sgd
from tests.contracts import brains


def made(cls: type[Brain] = Brain, module: nn.Module | None = None, **options: Any) -> Brain:
    options = {"noprogressbar": True, "device": "cpu", **options}
    return cls({"model": module or model()}, sgd, {"seed": 1}, options)


def told(report: Report, check: str) -> str:
    return "; ".join(text for name, text in report.checks if name == check)


# ---------------------------------------------------------------------------------------------- what is left as it was


def test_the_brain_and_the_process_stay_as_they_are(tmp_path: Path) -> None:
    log, save = tmp_path / "log.txt", tmp_path / "save"
    brain = brains.Noam(
        brains.Noam.build(),
        brains.adam,
        {"seed": 1, "noam": brains.NoamSchedule(), "log": bl.FileTrainLogger(log)},
        {"noprogressbar": True},
        bl.Checkpointer(save),
        loggers=[bl.FileTrainLogger(log)],
    )
    before, attributes = brains.weights_of(brain), dict(vars(brain))
    state = random.getstate(), np.random.get_state()[2], torch.get_rng_state()
    bl.doctor(brain, brains.Items(), brains.VALID, brains.SHUFFLED)

    assert (random.getstate(), np.random.get_state()[2]) == state[:2] and torch.equal(
        torch.get_rng_state(), state[2]
    )
    assert all(torch.equal(value, before[name]) for name, value in brains.weights_of(brain).items())
    assert vars(brain) == attributes
    assert not log.exists() and not save.exists()
    brain.fit(range(1), brains.Items(), brains.VALID, train_loader_kwargs=brains.SHUFFLED)
    assert brain.optimizer_step == 5 and save.exists()


def test_an_experiment_that_is_open_hears_nothing(tmp_path: Path) -> None:
    from brainlib.experiment import end_experiment

    bl.create_experiment_directory(tmp_path / "experiment", save_env_desc=False)
    try:
        brain = made()
        before = sorted((p, p.read_bytes()) for p in (tmp_path / "experiment").iterdir())
        bl.doctor(brain, Items(), None, {"batch_size": 4})
        assert sorted((p, p.read_bytes()) for p in (tmp_path / "experiment").iterdir()) == before
    finally:
        end_experiment()


# ------------------------------------------------------------------------------------------------------ what it takes


def test_a_brain_without_seed_and_checkpointer_is_given_both() -> None:
    brain = Brain({"model": model()}, sgd, run_opts={"noprogressbar": True, "device": "cpu"})
    report = bl.doctor(brain, Items(), None, {"batch_size": 4, "shuffle": True})
    assert report, str(report)
    assert brain.checkpointer is None


@pytest.mark.parametrize(
    ("num_epochs", "batches", "cuts"),
    [
        (1, (4, 4, 4, 4, 2), ["after batch 2 of epoch 1"]),
        (2, (4, 4, 4, 4, 2), ["after epoch 1", "after batch 2 of epoch 2"]),
        (9, (4,), ["after epoch 1", "after batch 1 of epoch 2"]),
    ],
)
def test_short_fits(num_epochs: int, batches: tuple[int, ...], cuts: list[str]) -> None:
    brain = brains.make(brains.Plain)
    report = bl.doctor(brain, brains.ready_batches(batches), epoch_counter=bl.EpochCounter(num_epochs))
    assert report, str(report)
    assert [text.partition(":")[0] for name, text in report.checks if name == "cut and resume"] == cuts


def test_it_begins_at_the_beginning_whatever_resume_says(tmp_path: Path) -> None:
    other = brains.train(brains.make(brains.Plain, bl.Checkpointer(tmp_path / "other")), num_epochs=1)
    assert other.checkpointer is not None
    other.checkpointer.wait()
    for resume in ("never", str(tmp_path / "other")):
        brain = brains.make(brains.Plain, bl.Checkpointer(tmp_path / "save"), resume=resume)
        report = bl.doctor(brain, brains.Items(), brains.VALID, brains.SHUFFLED)
        assert report and "equal bits in 10 batches of 3 epochs" in str(report), str(report)
    warm = brains.make(brains.Plain, bl.Checkpointer(tmp_path / "save"), init_from=str(tmp_path / "other"))
    report = bl.doctor(warm, brains.Items(), brains.VALID, brains.SHUFFLED)
    assert report, str(report)


def test_two_updates_an_epoch_where_batches_are_accumulated() -> None:
    report = bl.doctor(brains.make(brains.Plain, grad_accumulation_factor=3), brains.ready_batches((2,) * 9))
    assert "equal bits in 15 batches of 3 epochs" in told(report, "same again"), str(report)
    report = bl.doctor(brains.make(brains.Plain), brains.ready_batches((2,) * 9), num_batches=2)
    assert "equal bits in 5 batches of 3 epochs" in told(report, "same again"), str(report)


class Drawn(torch.utils.data.IterableDataset[dict[str, Tensor]]):
    def __iter__(self) -> Any:
        for _ in range(12):
            yield {"x": torch.rand(NUM_INPUTS), "y": torch.rand(1)}


def test_an_iterable() -> None:
    report = bl.doctor(made(), Drawn(), None, {"batch_size": 4})
    assert report, str(report)


def test_a_generator_in_the_workers_of_a_loader_is_named() -> None:
    """It moves in the worker's copy of the dataset, where nobody sees it."""
    brain, _, loader = HEALTHY.make("nowhere")
    report = bl.doctor(brain, OwnRandomState(), None, {**loader, "num_workers": 2})
    (finding,) = report.findings
    assert "train_set.rng" in finding.cause and "after batch 2 of epoch 2" in finding.where


def test_what_is_changed_without_influence_is_a_note(tmp_path: Path) -> None:
    report = bl.doctor(
        brains.make(brains.Plain, bl.Checkpointer(tmp_path)), brains.Items(), brains.VALID, brains.SHUFFLED
    )
    (note,) = report.notes
    assert "brain.trace" in note and "train_set.reads" in note
    assert report.to_plain()["notes"] == [note]


def test_an_object_in_hparams_that_nobody_registered() -> None:
    brain = brains.Noam(
        brains.Noam.build(), brains.adam, {"seed": 1, "noam": brains.NoamSchedule()}, {"noprogressbar": True}
    )
    (finding,) = bl.doctor(brain, brains.Items(), brains.VALID, brains.SHUFFLED).findings
    assert finding.suspects == ("hparams.noam",) and "optimizer 'optimizer'" in finding.where


# --------------------------------------------------------------------------------------------------- what it refuses


def test_a_fitted_brain_is_refused() -> None:
    brain = made()
    brain.fit(range(1), Items(), train_loader_kwargs={"batch_size": 4})
    with pytest.raises(ValueError, match="fitted already; .* give it a Brain that was just made"):
        bl.doctor(brain, Items(), None, {"batch_size": 4})


class Raising(Brain):
    def compute_forward(self, batch: Any, stage: bl.Stage) -> Tensor:
        raise RuntimeError("a mistake of mine")


def test_a_run_that_fails_is_no_finding() -> None:
    with pytest.raises(CheckupError, match=r"the run itself fails:\n(.|\n)*RuntimeError: a mistake of mine$"):
        bl.doctor(made(Raising), Items(), None, {"batch_size": 4})


class Endless(Brain):
    def compute_forward(self, batch: Any, stage: bl.Stage) -> Tensor:
        time.sleep(60)
        raise AssertionError


def test_a_run_that_takes_too_long_is_ended() -> None:
    with pytest.raises(
        CheckupError, match="took longer than 0.5 s, and was at batch 1 of epoch 1: give more time"
    ):
        bl.doctor(made(Endless), Items(), None, {"batch_size": 4}, timeout=0.5)


class Killed(Brain):
    def compute_forward(self, batch: Any, stage: bl.Stage) -> Tensor:
        import os
        import signal

        print("the last words")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def test_a_run_that_is_killed_has_its_last_words_told() -> None:
    with pytest.raises(
        CheckupError, match=r"ended with signal 9 at batch 1 of epoch 1.*\n(.|\n)*the last words"
    ):
        bl.doctor(made(Killed), Items(), None, {"batch_size": 4})


# ------------------------------------------------------------------------------------------------------- accumulation


class Contrastive(Brain):
    def compute_objectives(self, predictions: Tensor, batch: Any, stage: bl.Stage) -> Tensor:
        return nn.functional.cross_entropy(predictions @ batch["y"].T, torch.arange(len(predictions)))


class Drawing(Brain):
    def compute_forward(self, batch: Any, stage: bl.Stage) -> Tensor:
        return self.modules.model(batch["x"] + torch.rand(1))


class DrawingInTraining(Brain):
    def compute_forward(self, batch: Any, stage: bl.Stage) -> Tensor:
        x = batch["x"] + torch.rand(len(batch["x"]), 1) if stage is bl.Stage.TRAIN else batch["x"]
        return self.modules.model(x)


class Normalizing(Brain):
    def compute_forward(self, batch: Any, stage: bl.Stage) -> Tensor:
        return self.modules.model(batch["x"] - batch["x"].mean(0))


class NormalizingInside(Normalizing):
    def compute_forward(self, batch: Any, stage: bl.Stage) -> Any:
        return [super().compute_forward(batch, stage)]

    def compute_objectives(self, predictions: Any, batch: Any, stage: bl.Stage) -> Tensor:
        return super().compute_objectives(predictions[0], batch, stage)


class OwnLoop(Brain):
    compute_forward = bl.Brain.compute_forward

    def fit_batch(self, batch: Any) -> Tensor:
        loss = nn.functional.mse_loss(self.modules.model(batch["x"]), batch["y"])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (DrawingInTraining, "give the same gradient"),
        (Drawing, "not compared: what compute_forward or compute_objectives gives is drawn at random"),
        (Normalizing, "not compared: what compute_forward gives for a sample depends on the other samples"),
        (
            NormalizingInside,
            "not compared: what compute_forward gives for a sample depends on the other samples",
        ),
        (OwnLoop, "not compared: its fit_batch does not go through compute_forward and compute_objectives"),
    ],
)
def test_what_is_not_comparable_is_said_and_no_finding(cls: type[Brain], words: str) -> None:
    report = bl.doctor(made(cls), Items(), None, {"batch_size": 4})
    assert report, str(report)
    assert words in told(report, "accumulation")


def test_a_loss_in_which_items_see_each_other() -> None:
    report = bl.doctor(made(Contrastive), Items(), None, {"batch_size": 8})
    assert "contrastive" in report.findings[0].cause
    report = bl.doctor(made(Contrastive), Items(), None, {"batch_size": 8}, accumulation=False)
    assert report and not told(report, "accumulation")


class Utterances(torch.utils.data.Dataset[dict[str, Any]]):
    """Of different lengths."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(3 + 5 * index % 11, NUM_INPUTS, generator=generator)
        return {"id": str(index), "x": x, "y": x.mean()}


class OverTime(Brain):
    """A mean over time; `lengths` and the loss are what a fault is made of."""

    masked, nested, summed = False, True, False

    def compute_forward(self, batch: Any, stage: bl.Stage) -> Any:
        frames = self.modules.model(torch.tanh(batch.x.data) + 1).squeeze(-1)
        mask = batch.x.mask() if self.masked else torch.ones_like(frames)
        mean = (frames * mask).sum(1) / mask.sum(1)
        return {"out": (mean, batch.x.lengths)} if self.nested else mean

    def compute_objectives(self, predictions: Any, batch: Any, stage: bl.Stage) -> Tensor:
        mean = predictions["out"][0] if self.nested else predictions
        return nn.functional.mse_loss(mean, batch.y, reduction="sum" if self.summed else "mean")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"masked": True}, ""),
        ({}, "padding counts"),
        ({"nested": False}, "padding counts"),
        ({"summed": True}, "returns a sum over the batch"),  # this first; then the padding shows
    ],
)
def test_padding_that_counts_is_told_from_a_wrong_weight(settings: dict[str, Any], words: str) -> None:
    cls = type("Mean", (OverTime,), settings)
    kwargs = {"batch_size": 4, "collate_fn": bl.PaddedBatch}
    report = bl.doctor(made(cls, nn.Linear(NUM_INPUTS, 1)), Utterances(), None, kwargs)
    assert [words in finding.cause for finding in report.findings] == ([True] if words else []), str(report)
    assert words != "padding counts" or ".mask()" in report.findings[0].todo
    assert "override loss_weight" not in str(report)


def test_dropout_and_half_precision_are_no_obstacle() -> None:
    module = nn.Sequential(nn.Linear(NUM_INPUTS, 16), nn.Dropout(0.5), nn.Linear(16, 1))
    report = bl.doctor(made(module=module, precision="bf16"), Items(), None, {"batch_size": 4})
    assert report and "give the same gradient" in told(report, "accumulation"), str(report)


# ------------------------------------------------------------------------------------------ what only a script can show


def test_a_start_that_is_not_seeded_is_named_and_its_resume_looked_at() -> None:
    """As four starts of a script would be: each makes its own Brain, with weights and seed of its own."""

    def start(name: str, plan: Plan) -> None:
        torch.manual_seed(sum(name.encode()))
        session = Session(plan)
        invite(session)
        brain = Brain({"model": model()}, sgd, run_opts={"noprogressbar": True, "device": "cpu"})
        brain.fit(range(3), Items(), train_loader_kwargs={"batch_size": 4, "shuffle": True})

    report = examine(start, num_batches=None, timeout=60, at_once=2, quiet_loggers=True, accumulation=False)
    (finding,) = report.findings
    assert "module 'model' at the start" in finding.where and "seed_everything" in finding.todo
    assert told(report, "cut and resume").count("equal bits to the end") == 2


@pytest.mark.parametrize(
    ("seeded", "cause"),
    [
        ("torch", "the generators of python and numpy are not seeded; torch is"),
        ("torch, python", "the generator of numpy is not seeded; python and torch are"),
        (
            "python, numpy",
            "the generator of torch is not seeded; python and numpy are, or not before this was made",
        ),
        ("", "the process is not seeded, or not before this was made"),
        ("too late", "the process is seeded, but not before this was made"),
    ],
)
def test_the_generators_that_are_not_seeded_are_named(seeded: str, cause: str) -> None:
    def start(name: str, plan: Plan) -> None:
        number = sum(name.encode())
        random.seed(1 if "python" in seeded else number)
        np.random.seed(1 if "numpy" in seeded else number)
        torch.manual_seed(1 if "torch" in seeded else number)
        invite(Session(plan))
        module = model()
        if seeded == "too late":
            bl.seed_everything(1)
        brain = Brain({"model": module}, sgd, run_opts={"noprogressbar": True, "device": "cpu"})
        brain.fit(range(3), Items(), train_loader_kwargs={"batch_size": 4, "shuffle": True})

    report = examine(start, num_batches=None, timeout=60, at_once=2, quiet_loggers=True, accumulation=False)
    (finding,) = report.findings
    assert finding.cause == cause


def test_a_script_that_trains_nothing() -> None:
    with pytest.raises(CheckupError, match="the run ended with status 3 at no batch yet"):
        examine(
            lambda name, plan: __import__("os")._exit(3),
            num_batches=None,
            timeout=60,
            at_once=2,
            quiet_loggers=True,
            accumulation=False,
        )
