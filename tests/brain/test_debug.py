"""`debug`: a few batches, a few epochs, nothing kept. And `test_only`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import brainlib as bl
from tests.brain.small import Regression, Rows, batches, linear, same, sgd, small, weights


class Counting(Regression):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.ended: list[tuple[str, int | None]] = []
        super().__init__(*args, **kwargs)

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        self.ended.append((stage.name, epoch))


COUNTERS: dict[str, Callable[[], Any]] = {
    "range": lambda: range(10),
    "EpochCounter": lambda: bl.EpochCounter(10),
}


@pytest.mark.parametrize("counter", COUNTERS)
@pytest.mark.parametrize("num_epochs", [1, 2, 3])
def test_exactly_so_many_epochs_of_so_many_batches(counter: str, num_epochs: int) -> None:
    train, valid = Rows(10), Rows(10)
    kwargs = {"batch_size": 1}
    brain = small(Counting, debug=True, debug_epochs=num_epochs, debug_batches=3)
    brain.fit(COUNTERS[counter](), train, valid, train_loader_kwargs=kwargs, valid_loader_kwargs=kwargs)
    first = 0 if counter == "range" else 1
    assert brain.ended == [(s, e) for e in range(first, first + num_epochs) for s in ("TRAIN", "VALID")]
    assert brain.optimizer_step == 3 * num_epochs
    assert len(train.reads) == len(valid.reads) == 3 * num_epochs


def test_two_of_each_by_default() -> None:
    brain = small(debug=True)
    brain.fit(range(10), batches(*(1,) * 10))
    assert brain.optimizer_step == 4


def test_evaluation_is_short_too() -> None:
    rows = Rows(10)
    small(debug=True).evaluate(rows, test_loader_kwargs={"batch_size": 1})
    assert len(rows.reads) == 2


def test_a_window_closes_at_the_last_batch_of_debug() -> None:
    brain = small(debug=True, debug_batches=3, debug_epochs=1, grad_accumulation_factor=2)
    brain.fit(range(10), batches(*(1,) * 10))
    assert brain.optimizer_step == 2


def test_the_real_checkpoints_are_neither_read_nor_written(tmp_path: Path) -> None:
    real = small(checkpointer=bl.Checkpointer(tmp_path))
    real.fit(range(1), batches(2, 2))
    before = sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    checkpointer = bl.Checkpointer(tmp_path)
    brain = small(Counting, debug=True, checkpointer=checkpointer, ckpt_interval_steps=1)
    brain.fit(range(10), batches(2, 2), batches(2))
    assert len(brain.ended) == 4, "trained from scratch, not from the finished run"
    assert sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before
    assert Path(checkpointer.checkpoints_dir) != tmp_path


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"debug": True}, "checkpoints: none is kept of a debug run (debug_persistently keeps them)"),
        ({"benchmark_max_step": 4}, "checkpoints: none is kept of a benchmark run"),
    ],
    ids=["debug", "benchmark"],
)
def test_the_closing_lines_name_no_folder_that_is_thrown_away(
    options: dict[str, Any], line: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="brainlib")
    checkpointer = bl.Checkpointer(tmp_path)
    small(checkpointer=checkpointer, **options).fit(range(2), batches(2, 2), batches(2))
    folder = Path(checkpointer.checkpoints_dir).name
    assert folder.startswith("brainlib-debug-")
    told = [record.getMessage() for record in caplog.records]
    assert any(f"{checkpointer.checkpoints_dir}, which is removed in the end" in text for text in told)
    (done,) = (number for number, text in enumerate(told) if text.startswith(("fit 0 is done", "stopped by")))
    closing = told[done:]
    assert not any(folder in text for text in closing), closing
    assert (line in closing) == any(text.startswith("fit 0 is done") for text in closing)


def test_the_state_at_an_error_of_a_debug_run_is_not_said_to_be_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Regression):
        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
            raise RuntimeError("no")

    caplog.set_level("INFO", logger="brainlib")
    brain = Failing(
        {"model": linear()},
        sgd,
        run_opts={"debug": True},
        checkpointer=bl.Checkpointer(tmp_path),
        extensions=[bl.Snapshot(snapshot_on_error=True)],
    )
    with pytest.raises(RuntimeError, match="no"):
        brain.fit(range(1), batches(2))
    assert "(until the Brain is gone: a trial keeps nothing)" in caplog.text


def test_persistent_checkpoints_of_a_debug_run_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="brainlib")
    checkpointer = bl.Checkpointer(tmp_path)
    small(checkpointer=checkpointer, debug=True, debug_persistently=True).fit(range(1), batches(2))
    assert f"checkpoints: {tmp_path}, newest {checkpointer.newest().path.name}" in caplog.text  # type: ignore[union-attr]
    assert "fit 0 is done: 1 epoch, update 1" in caplog.text


def test_debug_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="brainlib"):
        small(debug=True).fit(range(1), batches(2))
    assert "debug" in caplog.text


def test_test_only_trains_nothing_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    brain = small(Counting, test_only=True)
    before = weights(brain)
    with caplog.at_level("INFO", logger="brainlib"):
        brain.fit(range(10), Rows(4), train_loader_kwargs={"batch_size": 2})
    assert brain.ended == []
    assert same(weights(brain), before)
    assert "test_only" in caplog.text
    assert brain.evaluate(batches(2)) > 0


def test_test_only_evaluates_the_checkpoint(tmp_path: Path) -> None:
    trained = small(checkpointer=bl.Checkpointer(tmp_path))
    trained.fit(range(3), batches(4, 4))
    brain = small(test_only=True, checkpointer=bl.Checkpointer(tmp_path))
    brain.fit(range(3), batches(4, 4))
    assert brain.evaluate(batches(3)) == trained.evaluate(batches(3))


@pytest.mark.parametrize("counter", [*COUNTERS, "a later fit"])
def test_what_is_said_is_what_is_done(counter: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="brainlib")
    make = COUNTERS.get(counter, lambda: bl.EpochCounter(30))
    brain = small(debug=True)
    epochs = make()
    if counter == "a later fit":
        epochs.current = 7
    brain.fit(epochs, batches(*(1,) * 10), batches(1, 1, 1))
    told = [record.getMessage() for record in caplog.records]
    assert "data: train 2 of 10 batches; valid 2 of 3 batches" in told
    lines = [line.partition(":")[0] for line in told if line.startswith("epoch ")]
    assert lines == (["epoch 8/9", "epoch 9/9"] if counter == "a later fit" else ["epoch 1/2", "epoch 2/2"])
    assert any(line.startswith("fit 0 is done: 2 epochs") for line in told)


def test_other_limits_are_said_as_well(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="brainlib")
    small(limit_train_batches=4, limit_valid_batches=9).fit(range(1), batches(*(1,) * 10), batches(1, 1))
    assert "data: train 4 of 10 batches; valid 2 batches" in caplog.text
