"""Brains that log in every hook, and a script with everything around them; each moment of it can be the last.

``python diary.py FOLDER PLAN`` runs the script in FOLDER; PLAN is a `Plan` as JSON. `moment` is called before and after
whatever the script logs and saves, so "killed at moment n" for all n is "killed anywhere".
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import brainlib as bl
from brainlib.common import lines
from tests.contracts.brains import SEVEN, SHUFFLED, VALID, Batch, Items, Plain, make, ready_batches

BRAINS = {cls.__name__: cls for cls in SEVEN}
CUSTOM = {cls.__name__ for cls in SEVEN if "fit_batch" in vars(cls)}


@dataclass
class Plan:
    """What is run.

    Args:
        brain: which of the seven.
        last_moment: the number of the moment at which the process dies, from 1; 0: it lives.
        signal: which one the process then sends to itself. After SIGTERM it goes on to the next boundary, and saves.
        torn: instead: the number of the line that is written by half when the process dies.
        saves: where the Brain saves by itself: "", "valid" (last line of `on_stage_end`), "before logging" (first line
            of it), "batch" (in `on_fit_batch_end` of every other batch).
        checkpoints: whether there is a Checkpointer.
        tensorboard: whether TensorBoard is told, too: losses of batches over updates, losses of epochs over epochs.
        curves: who is told these instead: "csv", "mlflow", "wandb".
        options: run options.
        global_seed: what the process is seeded with.
    """

    brain: str = "Plain"
    last_moment: int = 0
    signal: str = "SIGKILL"
    torn: int = 0
    saves: str = ""
    checkpoints: bool = True
    tensorboard: bool = False
    curves: str = "tensorboard"
    options: dict[str, Any] = field(default_factory=dict)
    global_seed: int = 3


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Moments:
    """Counts moments, and ends everything at one of them."""

    def __init__(self, last: int = 0, end: Callable[[], object] = kill) -> None:
        self.number, self.last, self.end = 0, last, end

    def __call__(self) -> None:
        self.number += 1
        if self.number == self.last:
            self.end()


class Diary:
    """A mixin that logs in every hook: by a logger that only hparams hold, as SpeechBrain's recipes do."""

    def note(self: Any, what: str, stage: bl.Stage, epoch: Any, **stats: Any) -> None:
        self.moment()
        meta = {"what": what, "stage": stage.name, "epoch": epoch, "update": self.optimizer_step}
        self.hparams.train_logger.log_stats(meta, **stats)
        self.moment()

    def on_stage_start(self: Any, stage: bl.Stage, epoch: int | None = None) -> None:
        self.note("start", stage, epoch)
        super().on_stage_start(stage, epoch)  # type: ignore[misc]

    def on_fit_batch_end(
        self: Any, batch: Batch, outputs: Any, loss: torch.Tensor, should_step: bool
    ) -> None:
        super().on_fit_batch_end(batch, outputs, loss, should_step)  # type: ignore[misc]
        self.note("batch", bl.Stage.TRAIN, self.step, train_stats={"loss": loss})
        if self.plan.tensorboard:
            self.hparams.curves.log_stats({"step": self.optimizer_step}, {"batch loss": loss})
        if self.plan.saves == "batch" and self.step % 2:
            self.checkpointer.save_and_keep_only(end_of_epoch=False)
        self.moment()

    def on_stage_end(self: Any, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        super().on_stage_end(stage, stage_loss, epoch)  # type: ignore[misc]
        outer = not getattr(self, "inside", False)
        if self.plan.saves == "before logging" and stage is bl.Stage.VALID and outer:
            self.checkpointer.save_and_keep_only({"loss": stage_loss}, min_keys=["loss"])
            self.hparams.train_logger.log_stats({"what": "saved", "epoch": epoch})
            self.moment()
            return
        self.note("end", stage, epoch, valid_stats={"loss": stage_loss})
        if self.plan.saves == "valid" and stage is bl.Stage.VALID and outer:
            self.checkpointer.save_and_keep_only({"loss": stage_loss}, min_keys=["loss"])
        self.moment()


class CustomDiary(Diary):
    """For a `fit_batch` that calls no hooks."""

    def fit_batch(self: Any, batch: Batch) -> Any:
        self.note("before", bl.Stage.TRAIN, self.step)
        loss = super().fit_batch(batch)  # type: ignore[misc]
        self.note("batch", bl.Stage.TRAIN, self.step, train_stats={"loss": loss})
        return loss


def diary_of(name: str) -> type[Plain]:
    """One of the seven, with a diary."""
    mixin = CustomDiary if name in CUSTOM else Diary
    return type(name, (mixin, BRAINS[name]), {})


def curves_of(kind: str, folder: Path) -> bl.TrainLogger:
    """The logger of this kind."""
    if kind == "csv":
        return bl.CSVLogger(folder / "curves" / "curves.csv")
    if kind == "mlflow":
        return bl.MlflowLogger(folder / "curves", "diary", f"file:{folder}/mlruns")
    if kind == "wandb":
        return bl.WandbLogger(folder / "curves", "diary", mode="offline")
    return bl.TensorboardLogger(folder / "events")


def run(folder: Path, plan: Plan, end: Callable[[], object] = kill) -> Moments:
    """The script: evaluations and lines of its own before, between and after two fits."""
    moment = Moments(plan.last_moment, end)
    log, curves = bl.JsonlLogger(folder / "metrics.jsonl"), curves_of(plan.curves, folder)
    brain = make(
        diary_of(plan.brain),
        bl.Checkpointer(folder / "save") if plan.checkpoints else None,
        global_seed=plan.global_seed,
        hparams={"train_logger": log, "curves": curves},
        **plan.options,
    )
    brain.plan, brain.moment = plan, moment  # type: ignore[attr-defined]
    brain.loggers = [bl.JsonlLogger(folder / "losses.jsonl"), bl.FileTrainLogger(folder / "log.txt")]
    if plan.tensorboard:
        brain.loggers.append(curves)

    try:
        brain.evaluate(VALID)
        brain.fit(range(2), Items(), VALID, train_loader_kwargs=SHUFFLED)
        moment()
        log.log_stats({"what": "between"})
        moment()
        brain.evaluate(VALID)
        brain.fit(range(1), ready_batches(), VALID)
        moment()
        brain.evaluate(VALID)
        for logger in (log, *brain.loggers):
            logger.log_stats({"what": "done", "epoch": 0}, test_stats={"loss": 0.5})
            moment()
    except BaseException:
        if (
            plan.curves == "wandb"
        ):  # its service, a process of its own, does this when that of the script dies
            curves.close()
        raise
    curves.close()
    return moment


def tear(number: int) -> None:
    """Let the process die in the middle of the `number`-th line that it appends to ``metrics.jsonl``."""
    original, calls = lines.append_line, 0

    def append_line(path: Any, text: str) -> None:
        nonlocal calls
        calls += Path(path).name == "metrics.jsonl"
        if calls == number:
            with open(path, "ab") as file:
                file.write(text.encode()[: len(text) // 2])
            kill()
        original(path, text)

    bl.loggers.jsonl.append_line = append_line  # type: ignore[attr-defined]


def rows(path: Path) -> list[dict[str, Any]]:
    """What a reader gets, without what differs from one start to the next."""
    return [
        {key: value for key, value in row.items() if key not in ("time", "ledger")}
        for row in bl.read_metrics(path)
    ]


if __name__ == "__main__":
    plan = Plan(**json.loads(sys.argv[2]))
    if plan.torn:
        tear(plan.torn)
    number = getattr(signal, plan.signal)
    print(run(Path(sys.argv[1]), plan, end=lambda: os.kill(os.getpid(), number)).number)
