"""When a Brain saves by itself, what is in it, and what it warns of."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from brainlib.checkpoint.errors import CheckpointError
from tests.brain.small import Batch, Regression, batches, linear, same, sgd, small, weights


def listed(folder: Path) -> list[Any]:
    return bl.Checkpointer(folder).list_checkpoints()


def warnings_in(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelname == "WARNING" and word in r.getMessage()]


def test_a_closed_epoch_is_committed(tmp_path: Path) -> None:
    """Nobody saves, and still a finished run is on the disk: the newest checkpoint and one to go back to."""
    brain = small(checkpointer=bl.Checkpointer(tmp_path))
    brain.fit(range(3), batches(4, 4), batches(2))
    assert len(listed(tmp_path)) == 2
    other = small(checkpointer=bl.Checkpointer(tmp_path))
    other.fit(range(3), batches(4, 4), batches(2))
    assert other.optimizer_step == 6
    assert same(weights(brain), weights(other))


def test_what_the_user_saved_is_not_saved_again(tmp_path: Path) -> None:
    class Recipe(Regression):
        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
            if stage == bl.Stage.VALID:
                self.checkpointer.save_checkpoint(meta={"loss": stage_loss})

    small(Recipe, checkpointer=bl.Checkpointer(tmp_path)).fit(range(3), batches(4, 4), batches(2))
    assert len(listed(tmp_path)) == 3
    assert all("loss" in checkpoint.meta for checkpoint in listed(tmp_path))


def test_every_so_many_updates(tmp_path: Path) -> None:
    """Counted in updates; the two newest of them are kept."""
    seen: list[int] = []

    class Brain(Regression):
        def on_fit_batch_start(self, batch: Batch, should_step: bool) -> None:
            seen.append(len(list(tmp_path.glob("step-*"))))

    brain = small(Brain, checkpointer=bl.Checkpointer(tmp_path), ckpt_interval_steps=2, ckpt_async=False)
    brain.fit(range(1), batches(1, 1, 1, 1, 1))
    assert seen == [0, 0, 1, 1, 2]


def test_timed_saves_carry_no_metric_and_are_never_best(tmp_path: Path) -> None:
    brain = small(checkpointer=bl.Checkpointer(tmp_path), ckpt_interval_steps=1, ckpt_async=False)
    with pytest.raises(KeyError):
        brain.fit(range(1), stumbling(batches(4, 4, 4)))
    checkpointer = bl.Checkpointer(tmp_path)
    assert checkpointer.find_checkpoints() == []
    assert len(checkpointer.find_checkpoints(include=("timed",))) == 2
    assert checkpointer.recover_if_possible is not None


def stumbling(data: list[Batch]) -> Any:
    class Data:
        def __iter__(self) -> Any:
            yield from data
            raise KeyError("the disk is gone")

    return Data()


def test_without_interval_nothing_is_written_inside_an_epoch(tmp_path: Path) -> None:
    for options in ({}, {"ckpt_interval_minutes": 0}):
        brain = small(checkpointer=bl.Checkpointer(tmp_path), **options)
        with pytest.raises(KeyError):
            brain.fit(range(1), stumbling(batches(4, 4)))
        assert list(tmp_path.glob("step-*")) == []


def test_saving_changes_nothing(tmp_path: Path) -> None:
    saving, not_saving = (
        small(checkpointer=bl.Checkpointer(tmp_path), ckpt_interval_steps=1, ckpt_async=False),
        small(),
    )
    state = torch.get_rng_state()
    for brain in (saving, not_saving):
        brain.fit(range(2), batches(4, 3), batches(2))
        assert torch.equal(torch.get_rng_state(), state)
    assert same(weights(saving), weights(not_saving))


def test_a_schedule_that_is_an_attribute_is_saved(tmp_path: Path) -> None:
    class Scheduled(Regression):
        def init_optimizers(self) -> None:
            super().init_optimizers()
            self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=0.5)

        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
            if stage == bl.Stage.TRAIN:
                self.schedule.step()

    small(Scheduled, checkpointer=bl.Checkpointer(tmp_path)).fit(range(2), batches(4, 4))
    brain = small(Scheduled, checkpointer=bl.Checkpointer(tmp_path))
    brain.fit(range(3), batches(4, 4))
    reference = small(Scheduled)
    reference.fit(range(3), batches(4, 4))
    assert brain.optimizer.param_groups[0]["lr"] == reference.optimizer.param_groups[0]["lr"] == 0.0125
    assert same(weights(brain), weights(reference))


def test_a_trainable_parameter_that_no_checkpoint_holds_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lost = torch.nn.Parameter(torch.zeros(2).double())

    class Losing(Regression):
        def init_optimizers(self) -> None:
            self.optimizer = torch.optim.SGD([*self.modules.parameters(), lost], lr=0.1)
            self.optimizers_dict = {"optimizer": self.optimizer}

        def compute_objectives(
            self, predictions: torch.Tensor, batch: Batch, stage: bl.Stage
        ) -> torch.Tensor:
            return super().compute_objectives(predictions + lost, batch, stage)

    brain = small(
        Losing,
        opt_class=None,
        checkpointer=bl.Checkpointer(tmp_path),
        ckpt_interval_steps=1,
        ckpt_async=False,
    )
    brain.fit(range(2), batches(4, 4))
    assert len(warnings_in(caplog, "parameter")) == 1


def test_what_hangs_on_the_brain_is_not_named_where_it_is_a_hyperparameter_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What an extension holds neither: its state is part of the extension's."""
    schedule = bl.NewBob(0.1)
    rate = bl.LearningRate(schedule, metric=lambda brain: 1.0, per="epoch")
    hung = {"snapshot": bl.Snapshot(), "ema": bl.EMA(), "lr": rate}
    logger, checkpointer, model = Remembering(), bl.Checkpointer(tmp_path), linear()
    given = {"schedule": schedule, "logger": logger, "checkpointer": checkpointer, "model": model, **hung}
    brain = Regression(
        {"model": model},
        sgd,
        {"seed": 0, "epoch_counter": (counter := bl.EpochCounter(1)), **given},
        {"device": "cpu", "noprogressbar": True},
        checkpointer,
        loggers=[logger],
        extensions=list(hung.values()),
    )
    brain.fit(counter, batches(4))
    assert not warnings_in(caplog, "no checkpoint holds")
    brain = small(checkpointer=bl.Checkpointer(tmp_path / "other"), hparams={"lost": Remembering()})
    brain.fit(range(1), batches(4))
    assert warnings_in(caplog, "no checkpoint holds hparams.lost (Remembering)")


class Remembering:
    """A logger with a state."""

    def log_stats(self, *args: Any, **kwargs: Any) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def test_a_second_brain_on_the_same_module_objects_does_not_save_them_twice(tmp_path: Path) -> None:
    """A recipe registers its modules under its own names; those names are kept."""
    checkpointer = bl.Checkpointer(tmp_path)
    brain = small(checkpointer=checkpointer)
    checkpointer.add_recoverable("net", brain.modules.model)
    brain.fit(range(1), batches(4))
    (checkpoint,) = listed(tmp_path)
    assert [path.name for path in Path(checkpoint.path).glob("*.pt") if path.stem in ("net", "model")] == [
        "net.pt"
    ]


@pytest.mark.parametrize("when", ["before __init__", "in __init__", "in init_optimizers"])
def test_whatever_has_state_on_the_brain_is_found(when: str, tmp_path: Path) -> None:
    """A module beside `modules`, whenever it became an attribute."""

    class Keeping(Regression):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            if when == "before __init__":
                self.memory = torch.nn.Linear(1, 1)
            super().__init__(*args, **kwargs)
            if when == "in __init__":
                self.memory = torch.nn.Linear(1, 1)

        def init_optimizers(self) -> None:
            super().init_optimizers()
            if when == "in init_optimizers":
                self.memory = torch.nn.Linear(1, 1)

        def on_fit_batch_end(self, batch: Batch, outputs: Any, loss: torch.Tensor, should_step: bool) -> None:
            with torch.no_grad():
                self.memory.weight.fill_(self.optimizer_step)

    small(Keeping, checkpointer=bl.Checkpointer(tmp_path)).fit(range(2), batches(4, 4))
    brain = small(Keeping, checkpointer=bl.Checkpointer(tmp_path))
    brain.fit(range(2), batches(4, 4))
    assert brain.memory.weight.item() == 4.0


def test_what_is_found_and_cannot_be_saved_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The safe loader would not read it back: the run goes on or stops, but not without the name and the class."""

    class Secret:
        pass

    class Strange:
        def state_dict(self) -> dict[str, Any]:
            return {"secret": Secret()}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    brain = small(checkpointer=bl.Checkpointer(tmp_path))
    brain.strange = Strange()
    try:
        brain.fit(range(1), batches(4))
        said = "\n".join(warnings_in(caplog, "strange"))
    except ValueError as error:
        said = str(error)
    assert "strange" in said
    assert "Secret" in said


def test_resuming_with_another_option_is_ordinary(tmp_path: Path) -> None:
    """Validation in mid-epoch switched on or off between two starts."""
    for number, options in enumerate(({}, {"valid_interval_steps": 1}, {})):
        brain = small(checkpointer=bl.Checkpointer(tmp_path), **options)
        brain.fit(range(number + 1), batches(4, 4), batches(2))
        assert brain.optimizer_step == 2 * (number + 1)


@pytest.mark.parametrize("choice", ["warn", "raise"])
def test_a_save_that_fails_may_be_only_said(
    choice: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`on_save_error: warn`: the run goes on, loudly; by default it ends with the error."""

    class Blocked(Regression):
        def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
            shutil.rmtree(tmp_path / "save", ignore_errors=True)
            (tmp_path / "save").write_text("a file stands where the folder should be")

    brain = small(Blocked, checkpointer=bl.Checkpointer(tmp_path / "save"), on_save_error=choice)
    if choice == "raise":
        with pytest.raises(OSError):
            brain.fit(range(2), batches(2, 2))
        return
    brain.fit(range(2), batches(2, 2))
    assert brain.optimizer_step == 4
    said = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert len(said) == 2
    assert "NOT SAVED" in said[0]


@pytest.mark.parametrize("kind", ["not to be made", "a file", "through a file", "not to be written to"])
def test_a_folder_that_cannot_be_is_said_before_anything_is_trained(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "locked").mkdir(mode=0o500)
    folder, why = {
        "not to be made": (Path("/proc/no/save"), r"No such file or directory \(/proc/no\)"),
        "a file": (tmp_path / "file", f"{tmp_path}/file is no folder"),
        "through a file": (tmp_path / "file" / "run" / "save", f"{tmp_path}/file is no folder"),
        "not to be written to": (tmp_path / "locked", "it cannot be written to"),
    }[kind]
    if kind == "not to be made" and not Path("/proc/self").exists():
        pytest.skip("there is no /proc")
    if kind == "not to be written to" and os.access(folder, os.W_OK):
        pytest.skip("this user may write everywhere")
    brain = small(checkpointer=bl.Checkpointer(folder))
    with pytest.raises(
        CheckpointError, match=f"checkpoints cannot be kept in {folder}: {why}. Give the Check"
    ):
        brain.fit(range(2), batches(2, 2))
    assert brain.step == 0 and (tmp_path / "file").read_text() == "mine"


def test_a_finished_run_needs_no_folder_to_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(checkpointer=bl.Checkpointer(tmp_path)).fit(range(1), batches(2, 2))
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(os, "access", lambda *_: False)  # as of a disk that is mounted to be read
    small(checkpointer=bl.Checkpointer(tmp_path)).fit(range(1), batches(2, 2))
    with pytest.raises(CheckpointError, match="it cannot be written to"):
        small(checkpointer=bl.Checkpointer(tmp_path)).fit(range(2), batches(2, 2))
    assert sorted(tmp_path.rglob("*")) == before
