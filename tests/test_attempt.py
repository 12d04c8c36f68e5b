"""Where in a run something is logged, whoever logs it, and which lines stand."""

from __future__ import annotations

import errno
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from brainlib.attempt import surviving
from brainlib.common.files import Disk
from tests.brain.small import Regression, batches, linear, sgd
from tests.loggers.diary import rows


class Cut(BaseException):
    """The end of the process, as far as the Brain can tell."""


def brain_with(folder: Path, name: str, cls: type[Regression] = Regression, **options: Any) -> Any:
    return cls(
        {"model": linear()},
        sgd,
        hparams={"seed": 0},
        run_opts={"noprogressbar": True, "device": "cpu", **options},
        checkpointer=bl.Checkpointer(folder / name),
        loggers=[bl.JsonlLogger(folder / "metrics.jsonl")],
    )


def told(path: Path, **options: Any) -> list[tuple[Any, ...]]:
    """Of each row: the name of its run, fit and epoch."""
    found = bl.read_metrics(path, **options)
    return [(row["run"]["name"], row["run"]["at"][0], row["epoch"]) for row in found]


def test_what_a_row_tells(tmp_path: Path) -> None:
    for num_epochs in (1, 2):
        brain_with(tmp_path, "save").fit(range(num_epochs), batches(4, 4))
    first, second = bl.read_metrics(tmp_path / "metrics.jsonl", superseded=True)
    assert first["run"] == {
        "name": "save",
        "attempt": 1,
        "from": None,
        "at": [0, 0, 2, 2],
        "optimizer_step": 2,
    }
    assert second["run"] == {
        "name": "save",
        "attempt": 2,
        "from": [0, 1, 0, 1],
        "at": [0, 1, 2, 2],
        "optimizer_step": 4,
    }


def test_two_brains_of_a_script_log_into_one_file(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    for num_epochs in (1, 2):  # two starts of the script; the second goes on with both
        for name in ("a", "b"):
            brain_with(tmp_path, name).fit(range(num_epochs), batches(4))
    assert told(log) == [("a", 0, 0), ("b", 0, 0), ("a", 0, 1), ("b", 0, 1)]
    (tmp_path / "b").rename(tmp_path / "away")
    brain_with(tmp_path, "b").fit(range(1), batches(4))
    assert told(log) == [("a", 0, 0), ("a", 0, 1), ("b", 0, 0)]
    assert len(told(log, superseded=True)) == 5


def test_the_folder_may_be_moved_between_two_attempts(tmp_path: Path) -> None:
    brain_with(tmp_path / "old", "save").fit(range(1), batches(4))
    (tmp_path / "old").rename(tmp_path / "new")
    brain_with(tmp_path / "new", "save").fit(range(2), batches(4))
    assert told(tmp_path / "new" / "metrics.jsonl") == [("save", 0, 0), ("save", 0, 1)]


def test_rows_of_two_fits_are_not_merged(tmp_path: Path) -> None:
    brain = brain_with(tmp_path, "save")
    for _ in range(2):
        brain.fit(range(2), batches(4), batches(4))
        brain.loggers[0].log_stats({"epoch": 1}, test_stats={"loss": 0.5})
    found = bl.read_metrics(tmp_path / "metrics.jsonl", merge_by="epoch")
    assert [(row["epoch"], row["optimizer_step"]) for row in found] == [(0, 1), (1, 2), (0, 3), (1, 4)]
    assert [sorted({"train", "valid", "test"} & row.keys()) for row in found] == 2 * [
        ["train", "valid"],
        ["test", "train", "valid"],
    ]


def test_a_fit_that_ctrl_c_interrupted_goes_on_in_the_same_process(tmp_path: Path) -> None:
    """Batches of the open window are trained on again, and so is the validation done again."""

    class Stumbling(Regression):
        num_calls = 0
        stumbles: tuple[int, ...] = ()

        def compute_forward(self, batch: Any, stage: bl.Stage) -> torch.Tensor:
            self.num_calls += 1
            if self.num_calls in self.stumbles:
                raise KeyboardInterrupt
            return super().compute_forward(batch, stage)

        def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Any, should_step: bool) -> None:
            self.loggers[0].log_stats({"batch": self.step}, {"loss": loss})

        def on_stage_start(self, stage: bl.Stage, epoch: Any = None) -> None:
            self.loggers[0].log_stats({"stage": stage.name, "epoch": epoch})

        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: Any = None) -> None:
            self.loggers[0].log_stats({"stage": stage.name, "epoch": epoch}, {"loss": stage_loss})

    def script(folder: Path, *stumbles: int) -> list[dict[str, Any]]:
        brain = brain_with(folder, "save", Stumbling, grad_accumulation_factor=3)
        brain.stumbles = stumbles
        while True:
            try:
                brain.fit(range(2), batches(4, 4, 4, 4, 4), batches(4, 4))
            except KeyboardInterrupt:
                continue
            return rows(folder / "metrics.jsonl")

    expected = script(tmp_path / "uncut")
    assert len(expected) == 2 * (5 + 4 + 1)
    for stumbles in ((5,), (7,), (5, 9, 13)):
        assert script(tmp_path / str(stumbles), *stumbles) == expected, stumbles


def test_a_thread_that_a_hook_has_started_belongs_to_the_hook(tmp_path: Path) -> None:
    class Threaded(Regression):
        def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Any, should_step: bool) -> None:
            row = {"epoch": self.step}
            thread = threading.Thread(target=self.loggers[0].log_stats, args=(row,))
            thread.start()
            thread.join()

    brain_with(tmp_path, "save", Threaded).fit(range(1), batches(4, 4))
    found = bl.read_metrics(tmp_path / "metrics.jsonl")
    assert [row["run"]["at"] for row in found] == [[0, 0, 1, 0], [0, 0, 2, 0], [0, 0, 2, 2]]


def test_another_brain_in_a_hook_belongs_to_the_hook(tmp_path: Path) -> None:
    """A probe is trained from scratch after each epoch: what it logs does not take the place of the former probe's."""

    class Probing(Regression):
        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: Any = None) -> None:
            probe = Regression(
                {"model": linear()}, sgd, hparams={"seed": 0}, run_opts={"noprogressbar": True}
            )
            probe.loggers = self.loggers
            probe.fit(range(2), batches(4))
            if epoch == self.last_epoch:
                raise Cut

    for name, last_epoch in (("uncut", None), ("cut", 3), ("cut", None)):
        brain = brain_with(tmp_path / name, "save", Probing)
        brain.last_epoch = last_epoch
        with pytest.raises(Cut) if last_epoch else nullcontext():
            brain.fit(range(5), batches(4))
    expected = rows(tmp_path / "uncut" / "metrics.jsonl")
    assert len(expected) == 15
    assert rows(tmp_path / "cut" / "metrics.jsonl") == expected


def test_evaluations_of_processes_that_do_not_train_all_stand(tmp_path: Path) -> None:
    class Telling(Regression):
        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: Any = None) -> None:
            if stage is bl.Stage.TEST:
                self.loggers[0].log_stats({"epoch": None}, test_stats={"loss": stage_loss})

    brain_with(tmp_path, "save", Telling).fit(range(1), batches(4))
    for size in (2, 3):
        brain_with(tmp_path, "save", Telling).evaluate(batches(size))
    brain_with(tmp_path, "save", Telling).fit(range(2), batches(4))
    assert [epoch for *_, epoch in told(tmp_path / "metrics.jsonl")] == [0, None, None, 1]


def test_files_of_a_brainlib_without_attempts_still_read(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text(
        '{"epoch": 0, "train": {"loss": 2.0}, "time": 0.0, "run": "mine"}\n{"epoch": 0, "time": 1.0}\n'
    )
    assert [row["time"] for row in bl.read_metrics(log)] == [0.0, 1.0]
    brain_with(tmp_path, "save").fit(range(2), batches(4))
    assert [row["epoch"] for row in bl.read_metrics(log)] == [0, 0, 0, 1]


def test_a_logger_that_the_run_does_not_know_is_left_alone(tmp_path: Path) -> None:
    brain_with(tmp_path, "save").fit(range(1), batches(4))
    log = bl.JsonlLogger(tmp_path / "elsewhere.jsonl", clock=lambda: 0.0)
    log.log_stats({"epoch": 1})
    assert bl.read_metrics(log.path) == [{"epoch": 1, "time": 0.0}]


def test_logs_are_on_the_disk_before_a_checkpoint_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut the checkpoint may be all that is left, and what was logged before it is not logged again."""
    synced: list[str] = []

    class Watching(Disk):
        def open_end(self, path: Path) -> int:
            synced.append(path.name)
            return super().open_end(path)

    monkeypatch.setattr("brainlib.attempt.DISK", Watching())
    brain = brain_with(tmp_path, "save")
    brain.loggers.append(bl.FileTrainLogger(tmp_path / "log.txt"))
    brain.fit(range(3), batches(4))
    assert sorted(synced) == 3 * ["log.txt"] + 3 * ["metrics.jsonl"]


def test_a_log_that_cannot_be_synced_does_not_keep_the_run_from_being_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Disk):
        def fsync(self, fd: int) -> None:
            raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr("brainlib.attempt.DISK", Broken())
    brain = brain_with(tmp_path, "save")
    brain.fit(range(1), batches(4))
    assert brain.checkpointer.written is not None
    assert "metrics.jsonl may lose its last lines in a power cut: [Errno 5] the disk is gone" in caplog.text


def lines_of(attempt: int, *places: tuple[int, ...], **rest: Any) -> list[dict[str, Any]]:
    return [{"name": "save", "attempt": attempt, "at": list(at), **rest} for at in places]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], ""),
        ([None, "text", {"at": [0, 0, 1, 0]}, 3], "1111"),
        # stopped in a validation inside the epoch, which is done again
        (
            lines_of(1, (0, 0, 2, 0), (0, 0, 2, 1), **{"from": None})
            + lines_of(2, (0, 0, 2, 1), (0, 0, 2, 1), **{"from": [0, 0, 2, 0]}),
            "1011",
        ),
        # from scratch: all before is gone
        (
            lines_of(1, (0, -1, 0, 0), (0, 0, 1, 0), **{"from": None})
            + lines_of(2, (0, 0, 1, 0), **{"from": None}),
            "001",
        ),
        # the last hook of the epoch that was saved in it stands, the start of the next one does not
        (
            lines_of(1, (0, 0, 5, 2), (0, 1, 0, 0), (0, 1, 0, 2), (0, 1, 1, 0), **{"from": None})
            + lines_of(2, (0, 1, 0, 2), **{"from": [0, 1, 0, 1]}),
            "11001",
        ),
        # the third goes on from before the second, which is gone altogether
        (
            lines_of(1, (0, 0, 1, 0), (0, 0, 2, 0), **{"from": None})
            + lines_of(2, (0, 0, 3, 0), **{"from": [0, 0, 2, 1]})
            + lines_of(3, (0, 0, 2, 0), **{"from": [0, 0, 1, 1]}),
            "1001",
        ),
        # a life that ended before its fit repeats what stands; where nothing stands, it is kept
        (
            lines_of(1, (0, -1, 0, 0), (0, 0, 1, 0), **{"from": None})
            + lines_of(2, (0, -1, 0, 0))
            + lines_of(3, (0, -1, 0, 0), (0, 0, 2, 0), **{"from": [0, 0, 1, 1]}),
            "11001",
        ),
        (lines_of(1, (0, -1, 0, 0)) + lines_of(2, (0, -1, 0, 0)), "11"),
        # between two fits, before the point that the second life goes on from
        (
            lines_of(1, (1, -1, 0, 0), (1, 0, 1, 0), (1, 0, 2, 0), **{"from": None})
            + lines_of(2, (1, -1, 0, 0), (1, 0, 2, 0), **{"from": [1, 0, 1, 1]}),
            "11001",
        ),
    ],
)
def test_surviving(lines: list[Any], expected: str) -> None:
    assert "".join(str(int(stands)) for stands in surviving(lines)) == expected
