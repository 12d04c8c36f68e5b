"""What every logger keeps: one suite that each of them joins, and what each adds."""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from brainlib.attempt import Attempt, Whereabouts, logging_for
from brainlib.loggers import (
    CSVLogger,
    FileTrainLogger,
    JsonlLogger,
    MlflowLogger,
    TensorboardLogger,
    TrainLogger,
    WandbLogger,
    read_metrics,
)
from tests.loggers import pages

Make = Callable[[Path], TrainLogger]


class Memory(TrainLogger):
    """What a user would write: one method."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def write(self, meta: dict[str, Any], groups: dict[str, dict[str, Any]]) -> None:
        self.rows.append((meta, groups))


LOGGERS: dict[str, Make] = {
    "base": lambda folder: TrainLogger(),
    "memory": lambda folder: Memory(),
    "file": lambda folder: FileTrainLogger(folder / "new" / "train_stats.txt"),
    "jsonl": lambda folder: JsonlLogger(folder / "new" / "metrics.jsonl"),
    "tensorboard": lambda folder: TensorboardLogger(folder / "new" / "events"),
    "csv": lambda folder: CSVLogger(folder / "new" / "metrics.csv"),
    "wandb": lambda folder: WandbLogger(folder / "new" / "wandb", project="contract", mode="offline"),
    "mlflow": lambda folder: MlflowLogger(folder / "new", "contract", f"file:{folder}/mlruns"),
}


@pytest.fixture(params=LOGGERS)
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Make:
    pages.skip_without(request.param, monkeypatch)
    return LOGGERS[request.param]


@pytest.fixture
def log(make: Make, tmp_path: Path) -> Iterator[TrainLogger]:
    made = make(tmp_path)
    yield made
    made.close()


# ----------------------------------------------------------------------------------------------------- all of them


def test_constructing_touches_no_disk(make: Make, tmp_path: Path) -> None:
    make(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_groups_are_optional(log: TrainLogger) -> None:
    log.log_stats({"epoch": 1, "lr": 1e-3})
    log.log_stats({"epoch": 1}, {"loss": 0.5})
    log.log_stats({"epoch": 1}, {"loss": 0.5}, {"loss": 0.6, "accuracy": 0.9})
    log.log_stats(stats_meta={"epoch loaded": 1}, test_stats={"loss": 0.7})
    log.log_stats({})


def test_all_kinds_of_values_are_taken_and_left_alone(log: TrainLogger) -> None:
    stats = {
        "tensor": torch.tensor(0.5, requires_grad=True),
        "half": torch.tensor([1.5], dtype=torch.bfloat16),
        "numpy": np.float32(0.25),
        "count": np.int64(3),
        "flag": True,
        "list": [1.0, 2.0],
        "classes": {"a": 0.5, "b": {"c": 1}},
        "text": "two\nlines",
        "path": Path("a/b"),
        "none": None,
        "nan": math.nan,
        "inf": -math.inf,
    }
    before = dict(stats)
    log.log_stats({"epoch": torch.tensor(1)}, valid_stats=stats)
    assert stats.keys() == before.keys() and all(stats[key] is before[key] for key in stats)


def test_verbose_says_it_too(log: TrainLogger, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="brainlib")
    log.log_stats({"epoch": 1}, {"loss": 0.5})
    log.log_stats({"epoch": 2}, {"loss": 0.5}, verbose=True)
    said = [record.getMessage() for record in caplog.records if record.name == "brainlib"]
    assert said == ["epoch: 2 - train loss: 0.5000"]


def test_it_may_be_closed_twice_and_used_again(log: TrainLogger) -> None:
    log.close()
    log.log_stats({"epoch": 1}, {"loss": 0.5})
    log.close()
    log.close()
    log.log_stats({"epoch": 2}, {"loss": 0.5})


def test_the_folder_may_be_moved_between_two_lines(make: Make, tmp_path: Path) -> None:
    log = make(tmp_path)
    log.log_stats({"epoch": 1}, {"loss": 0.5})
    log.close()
    if (tmp_path / "new").exists():
        (tmp_path / "new").rename(tmp_path / "old")
    log.log_stats({"epoch": 2}, {"loss": 0.5})
    log.close()


def test_nothing_is_left_running(make: Make, tmp_path: Path) -> None:
    before, seen = set(threading.enumerate()), []
    for name in ("first", "second"):  # wandb has a service for the whole process, which the first one starts
        log = make(tmp_path / name)
        log.log_stats({"epoch": 1}, {"loss": 0.5})
        log.close()
        seen.append(set(threading.enumerate()))
    assert seen[1] <= seen[0]
    assert isinstance(log, WandbLogger) or seen[0] <= before


def test_a_logger_of_ones_own_is_one_method() -> None:
    log = Memory()
    log.log_stats({"epoch": torch.tensor(1)}, {"loss": np.float64(0.5)}, test_stats={})
    assert log.rows == [({"epoch": 1}, {"train": {"loss": 0.5}, "test": {}})]


def test_it_says_where_it_writes(log: TrainLogger, tmp_path: Path) -> None:
    writes = type(log) not in (TrainLogger, Memory)
    assert (str(tmp_path) in log.place) == writes


# ------------------------------------------------------------------------------------------------- a line for people


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_one_human_line_an_epoch(tmp_path: Path) -> None:
    log = FileTrainLogger(tmp_path / "log.txt")
    log.log_stats({"epoch": 3, "lr": 1e-3}, {"loss": 0.52}, {"loss": 0.614, "accuracy": 0.93})
    log.log_stats({"epoch loaded": 3}, test_stats={"loss": 12.345, "note": "two\n lines"})
    assert lines_of(log.save_file) == [
        "epoch: 3, lr: 1.00e-03 - train loss: 0.52 - valid loss: 0.61, valid accuracy: 0.93",
        "epoch loaded: 3 - test loss: 12.35, test note: two lines",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00"),
        (-0.5, "-0.50"),
        (0.1, "0.10"),
        (0.0999, "9.99e-02"),
        (123.456, "123.46"),
        (10_000.0, "1.00e+04"),
        (-2e-7, "-2.00e-07"),
        (7, "7"),
        (12_345_678, "12345678"),
        (True, "True"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        ([0.5, 1], "[0.50, 1]"),
        ({"a": 0.5}, "{a: 0.50}"),
        (None, "None"),
    ],
)
def test_numbers_are_plain_where_they_are_ordinary(value: object, text: str, tmp_path: Path) -> None:
    log = FileTrainLogger(tmp_path / "log.txt")
    log.log_stats({"x": value})
    assert lines_of(log.save_file) == [f"x: {text}"]


def test_precision(tmp_path: Path) -> None:
    log = FileTrainLogger(tmp_path / "log.txt", precision=4)
    log.log_stats({"a": 0.98765, "b": 1e-5})
    assert lines_of(log.save_file) == ["a: 0.9877, b: 1.0000e-05"]
    with pytest.raises(
        ValueError, match="precision=-1: give the number of digits after the point, 0 or more"
    ):
        FileTrainLogger(tmp_path / "log.txt", precision=-1)


def test_a_torn_line_in_the_human_file_stays_alone(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("epoch: 1, lr: 1.0")
    FileTrainLogger(tmp_path / "log.txt").log_stats({"epoch": 2})
    assert lines_of(tmp_path / "log.txt") == ["epoch: 1, lr: 1.0", "epoch: 2"]


# ------------------------------------------------------------------------------------------------ a line for programs


def test_each_line_is_one_strict_json_object(tmp_path: Path) -> None:
    log = JsonlLogger(tmp_path / "metrics.jsonl", clock=lambda: 12.3456)
    log.log_stats({"epoch": 1, "lr": 1e-3}, {"loss": math.nan}, {"loss": -math.inf, "note": "zwölf\nlines"})

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    (line,) = lines_of(log.path)
    assert json.loads(line, parse_constant=refuse) == {
        "epoch": 1,
        "lr": 0.001,
        "train": {"loss": "nan"},
        "valid": {"loss": "-inf", "note": "zwölf\nlines"},
        "time": 12.346,
    }
    (row,) = read_metrics(log.path)
    assert math.isnan(row["train"]["loss"]) and row["valid"]["loss"] == -math.inf


def test_floats_come_back_to_the_last_bit(tmp_path: Path) -> None:
    log = JsonlLogger(tmp_path / "metrics.jsonl")
    value = 0.1 + 0.2
    log.log_stats({"epoch": 1}, {"loss": torch.tensor(value, dtype=torch.float64)})
    assert read_metrics(log.path)[0]["train"]["loss"] == value


@pytest.mark.parametrize(
    "torn", [b'{"epoch": 2, "tra', b'{"epoch": 2, "note": "zw\xc3', b"\0\0\0\0", b"[1]", b"NaN"]
)
def test_a_torn_last_line_is_left_out_and_the_next_one_is_whole(
    torn: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = JsonlLogger(tmp_path / "metrics.jsonl", clock=lambda: 0.0)
    log.log_stats({"epoch": 1})
    with open(log.path, "ab") as file:
        file.write(torn)
    assert [row["epoch"] for row in read_metrics(log.path)] == [1]
    log.log_stats({"epoch": 2})
    assert [row["epoch"] for row in read_metrics(log.path)] == [1, 2]
    assert "metrics.jsonl: line 2 is not whole and is left out" in caplog.text


STRANGE_RUNS = (
    [
        {"name": "save"},
        {"name": "save", "at": [0, 0, 1, 0]},
        {"name": "save", "attempt": None, "at": [0, 0, 1, 0]},
    ]
    + [
        {"name": "save", "attempt": 1, "at": at}
        for at in (None, 3, [], [0, 0], [0, "1", 0, 0], [0, [], 0, 0])
    ]
    + [
        {"name": "save", "attempt": 1, "at": [0, 0, 1, 0], "from": begin}
        for begin in (True, 1.5, [None] * 4, {})
    ]
    + [{"name": name, "attempt": "x", "at": [0, 0, 1, 0]} for name in ({}, None, "save")]
    + ["my run", 7, None, [], {"id": 3}]
)


@pytest.mark.parametrize("tensorboard", [False, True])
def test_rows_that_say_strange_things_of_a_run_are_in_nobodys_way(tensorboard: bool, tmp_path: Path) -> None:
    """A key "run" of somebody else's, and what a damaged disk has made of ours: runs and readers go on."""
    pytest.importorskip("tensorboard") if tensorboard else None
    log = TensorboardLogger(tmp_path / "board") if tensorboard else JsonlLogger(tmp_path / "metrics.jsonl")
    path = log._rows.path if isinstance(log, TensorboardLogger) else log.path
    path.parent.mkdir(exist_ok=True)
    strange = [{"epoch": 1, "run": run} for run in STRANGE_RUNS] + [
        {"x": 1, "run": 3, "groups": 5, "meta": None}
    ]
    with open(path, "a") as file:
        file.writelines(json.dumps(row) + "\n" for row in strange)
        file.write("[" * 100_000 + "\n")
    for attempt in (1, 2):
        told = Attempt(label="save", origin=None if attempt == 1 else (0, 0, 0, 0))
        with logging_for(Whereabouts(told, at=(0, 0, attempt, 0), optimizer_step=attempt)):
            log.log_stats({"epoch": 2}, {"loss": 1.0})
        rows = read_metrics(path)
        assert rows[: len(strange)] == strange
        assert read_metrics(path, superseded=True)[-1]["run"]["attempt"] == attempt
        read_metrics(path, merge_by="epoch")
    log.close()


def test_rows_of_one_epoch_can_be_merged(tmp_path: Path) -> None:
    log = JsonlLogger(tmp_path / "metrics.jsonl", clock=lambda: 0.0)
    log.log_stats({"epoch": 1}, {"loss": 3.0})
    log.log_stats({"epoch": 2, "lr": 0.1}, {"loss": 2.5, "accuracy": 0.5})  # cut before it was saved
    log.log_stats({"epoch": 2}, {"loss": 2.0}, {"loss": 2.1})
    log.log_stats({"epoch loaded": 2}, test_stats={"loss": 9.0})
    assert read_metrics(log.path, merge_by="epoch") == [
        {"epoch": 1, "train": {"loss": 3.0}, "time": 0.0},
        {"epoch": 2, "lr": 0.1, "train": {"loss": 2.0, "accuracy": 0.5}, "time": 0.0, "valid": {"loss": 2.1}},
        {"epoch loaded": 2, "test": {"loss": 9.0}, "time": 0.0},
    ]
    assert len(read_metrics(log.path)) == 4
    assert len(read_metrics(log.path, merge_by=("epoch", "lr"))) == 4


def test_names_that_the_file_uses_itself(tmp_path: Path) -> None:
    log = JsonlLogger(tmp_path / "metrics.jsonl")
    for name in ("time", "run"):
        message = f"stats_meta has the keys '{name}', which metrics.jsonl uses itself"
        with pytest.raises(ValueError, match=message):
            log.log_stats({"epoch": 1, name: 12.0})
    assert not log.path.exists()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"metrics\.jsonl"):
        read_metrics(tmp_path / "metrics.jsonl")


# -------------------------------------------------------------------------------------------------------- TensorBoard


def test_tensorboard_gets_scalars_by_epoch_also_after_a_restart(tmp_path: Path) -> None:
    for epoch in (1, 2):
        log = TensorboardLogger(tmp_path)  # a new process each time
        log.log_stats({"epoch": epoch, "lr": 0.5}, {"loss": 1.0}, {"loss": 2.0, "classes": {"a": 0.25}})
        log.close()
    assert pages.of_tensorboard(tmp_path) == {
        "epoch": [(1, 1.0), (2, 2.0)],
        "lr": [(1, 0.5), (2, 0.5)],
        "loss/train": [(1, 1.0), (2, 1.0)],
        "loss/valid": [(1, 2.0), (2, 2.0)],
        "classes/a/valid": [(1, 0.25), (2, 0.25)],
    }


def test_tensorboard_places_by_step_then_epoch_then_call(tmp_path: Path) -> None:
    log = TensorboardLogger(tmp_path)
    log.log_stats({"step": 500, "epoch": 2}, {"a": 1.0})
    log.log_stats({"Epoch loaded": 7}, test_stats={"b": 1.0})
    log.log_stats({"note": "no number"}, test_stats={"c": 1.0})
    log.close()
    found = pages.of_tensorboard(tmp_path)
    assert [found[tag][0][0] for tag in ("a/train", "b/test", "c/test")] == [500, 7, 2]


def test_a_killed_run_keeps_what_was_logged(tmp_path: Path) -> None:
    log = TensorboardLogger(tmp_path)
    log.log_stats({"epoch": 1}, {"loss": 1.0})
    assert pages.of_tensorboard(tmp_path)["loss/train"] == [(1, 1.0)]  # before it is closed
    log.close()


def test_without_tensorboard_it_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"needs tensorboard: pip install 'brainlib\[loggers\]'"):
        TensorboardLogger(tmp_path)
    with pytest.raises(ImportError, match=r"WandbLogger needs wandb: pip install 'brainlib\[wandb\]'"):
        WandbLogger(tmp_path, project="p")
    with pytest.raises(ImportError, match=r"MlflowLogger needs mlflow: pip install 'brainlib\[mlflow\]'"):
        MlflowLogger(tmp_path, experiment="p")


def test_a_folder_of_its_name_is_no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """wandb leaves a folder `wandb` where a script was started, which Python would take for one."""
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)  # of the tests before
    with pytest.raises(ImportError, match="WandbLogger needs wandb"):
        WandbLogger(tmp_path, project="p")


# ---------------------------------------------------------------------------------------------------------------- CSV


def test_a_table_that_grows(tmp_path: Path) -> None:
    log = CSVLogger(tmp_path / "metrics.csv")
    log.log_stats({"epoch": 1}, {"loss": 0.5})
    assert lines_of(log.save_file) == ["epoch,loss/train", "1,0.5"]
    log.log_stats({"epoch": 2, "note": 'two, "lines"\nof text'}, {"loss": math.nan}, {"classes": {"a": 1.0}})
    log.log_stats({"epoch": 3}, {"loss": True})
    assert lines_of(log.save_file) == [
        "epoch,loss/train,note,classes/a/valid",
        "1,0.5,,",
        '2,nan,"two, ""lines"" of text",1.0',
        "3,True,,",
    ]


@pytest.mark.parametrize("damage", ["epoch,loss/train\n1,0.5\n2,0.", "", None])
def test_a_table_is_made_anew_from_its_notes(damage: str | None, tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    for epoch in (1, 2):
        CSVLogger(path).log_stats({"epoch": epoch}, {"loss": 0.5})
    path.unlink()
    if damage is not None:
        path.write_text(damage)
    CSVLogger(path).log_stats({"epoch": 3}, {"loss": 0.25})
    assert lines_of(path) == ["epoch,loss/train", "1,0.5", "2,0.5", "3,0.25"]


# ------------------------------------------------------------------------------------------- the pages of others


def test_mlflow_gets_metrics_tags_and_params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages.skip_without("mlflow", monkeypatch)
    uri, params = f"file:{tmp_path}/mlruns", {"lr": 0.1, "model": {"width": 3}}
    for epoch in (1, 2):  # a new process each time
        log = MlflowLogger(tmp_path / "own", "digits", uri, "seed 3", params)
        log.log_stats({"epoch": epoch, "note": "ä" * 9000}, {"loss": 1 / epoch}, {"a+b": math.nan})
        log.close()
    (run,) = pages.runs_of_mlflow(uri, "digits")
    assert run.info.status == "FINISHED" and run.info.run_name == "seed 3"
    assert run.data.params == {"lr": "0.1", "model/width": "3"}
    assert len(run.data.tags["note"]) == 5000
    page = pages.of_mlflow(tmp_path / "own", uri)
    assert page["loss/train"] == [(1, 1.0), (2, 0.5)] and page["epoch"] == [(1, 1.0), (2, 2.0)]
    assert [step for step, value in page["a_b/valid"] if math.isnan(value)] == [1, 2]


def test_wandb_goes_on_in_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages.skip_without("wandb", monkeypatch)
    for epoch in (1, 2):  # a new process each time
        log = WandbLogger(tmp_path, "digits", "seed 3", {"lr": 0.1}, mode="offline")
        log.log_stats({"epoch": epoch, "note": "warm"}, {"loss": 1 / epoch})
        log.close()
    assert len(json.loads((tmp_path / "wandb_run.json").read_text())["ids"]) == 1
    assert pages.of_wandb(tmp_path)["loss/train"] == [(1, 1.0), (2, 0.5)]
    assert [row["_step"] for row in pages.history_of_wandb(tmp_path)] == [0, 1]
    with pytest.raises(ValueError, match="WandbLogger sets group, id of wandb.init itself"):
        WandbLogger(tmp_path, "digits", id="mine", group="ours")
