"""The ledger over restarts: closed whatever ended a start, in the log, by epoch, and in a process that was killed."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import brainlib as bl
from brainlib.profiling import run_ledger
from brainlib.profiling.ledger import Ledger
from brainlib.profiling.run_ledger import ALL_PARTS, LOST, STARTS, WAITED, RunLedger, Starts
from tests.brain.small import Regression, batches, small
from tests.contracts.brains import SEVEN, Plain, make, two_fits


@pytest.fixture(autouse=True)
def not_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of these tests begin with their Brains, not with pytest."""
    monkeypatch.setattr(run_ledger, "_claimed", [True])


class Time:
    """A clock of the tests: the seconds of a machine that is never switched off."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def run(self) -> RunLedger:
        """A process was started two seconds ago."""
        self.now += 2
        return RunLedger(self, self, age=lambda: 2.0)

    def fit(self, run: RunLedger) -> Ledger:
        """A fit begins, and comes to its first epoch after a second."""
        fit = Ledger(self)
        run.fit_begins(fit)
        self.now += 1
        return fit

    def train(self, run: RunLedger, fit: Ledger, seconds: float, starts: Starts | None = None) -> None:
        if fit.running():
            run.running(starts)
        with fit.on("compute"):
            self.now += seconds

    def end(self, run: RunLedger, fit: Ledger, finished: bool = False) -> None:
        fit.close()
        run.fit_ends(finished)


def parts_of(run: RunLedger) -> dict[str, float]:
    return {name: seconds for name, seconds in run.seconds().items() if seconds}


def test_what_came_after_the_checkpoint_is_lost() -> None:
    time = Time()
    run = time.run()
    fit = time.fit(run)
    time.train(run, fit, 10)
    state = run.state()
    time.train(run, fit, 7)  # thrown away
    time.now += 20  # nobody knows when it died

    again = time.run()
    fit = time.fit(again)
    again.load(state)
    time.train(again, fit, 5)
    time.end(again, fit)
    assert parts_of(again) == {"start": 2 * 3, "compute": 15, LOST: 27}
    assert again.num_starts == 2 and sum(again.seconds().values()) == time.now - 1000


def test_a_start_that_came_to_no_checkpoint_is_in_what_the_next_but_one_has_lost() -> None:
    time = Time()
    run = time.run()
    fit = time.fit(run)
    time.train(run, fit, 10)
    state = run.state()
    for _ in range(3):
        time.now += 4
        again = time.run()
        fit = time.fit(again)
        again.load(state)
        again.load(state)  # a checkpoint is applied once more after a hook
        time.train(again, fit, 6)
    assert parts_of(again) == {"start": 6, "compute": 16, LOST: 4 + 13 + 13}
    assert sum(again.seconds().values()) == time.now - 1000


def test_starts_before_the_first_checkpoint_are_found_beside_it(tmp_path: Path) -> None:
    time = Time()
    for _ in range(3):
        run = time.run()
        fit = time.fit(run)
        time.train(run, fit, 5, Starts(tmp_path))
        time.now += 2
    assert parts_of(run) == {"start": 3, "compute": 5, LOST: 2 * 10, "left over": 2}
    assert run.num_starts == 3
    assert [note.time for note in Starts(tmp_path).notes()] == [1000, 1010, 1020]

    state = run.state()
    again = time.run()
    fit = time.fit(again)
    again.load(state)
    time.train(again, fit, 1, Starts(tmp_path))
    assert again.num_starts == 4 and sum(again.seconds().values()) == time.now - 1000


def test_a_run_that_is_to_begin_anew_has_lost_nothing(tmp_path: Path) -> None:
    time = Time()
    for anew in (False, True):
        run = time.run()
        fit = time.fit(run)
        time.train(run, fit, 5, Starts(tmp_path, anew))
    assert parts_of(run) == {"start": 3, "compute": 5} and run.num_starts == 1


def test_the_time_after_a_run_was_finished_is_nobodys_loss(tmp_path: Path) -> None:
    """One epoch more the next day; in between it was started in vain."""
    time = Time()
    run = time.run()
    fit = time.fit(run)
    time.train(run, fit, 10, Starts(tmp_path))
    state = run.state()
    time.end(run, fit, finished=True)
    time.now += 40_000
    vain = time.run()
    fit = time.fit(vain)
    vain.load(state)
    time.end(vain, fit, finished=True)
    assert vain.seconds()[LOST] == 0
    time.now += 40_000
    more = time.run()
    fit = time.fit(more)
    more.load(state)
    time.train(more, fit, 10, Starts(tmp_path))
    assert parts_of(more) == {"start": 6, "compute": 20}


def test_the_time_after_a_run_was_stopped_is_named_waiting(tmp_path: Path) -> None:
    """Stopped and saved, the next day started, killed, started, stopped before its save, started."""
    time = Time()
    run = time.run()
    fit = time.fit(run)
    time.train(run, fit, 10, Starts(tmp_path))
    state = run.state()
    time.now += 1  # is being written
    time.end(run, fit)
    time.now += 40_000
    for stopped in (False, True):
        run = time.run()
        fit = time.fit(run)
        run.load(state)
        time.train(run, fit, 6, Starts(tmp_path))
        if stopped:
            time.end(run, fit)
        time.now += 100
    run = time.run()
    fit = time.fit(run)
    run.load(state)
    time.train(run, fit, 5, Starts(tmp_path))
    assert parts_of(run) == {"start": 6, "compute": 15, LOST: 1 + 9 + 100 + 9, WAITED: 40_000 + 100}
    assert sum(run.seconds().values()) == time.now - 1000 and run.num_starts == 4


def test_a_stop_in_this_process_is_no_waiting(tmp_path: Path) -> None:
    """Ctrl-C in a notebook, some thought, and fit again; then it is killed."""
    time = Time()
    run = time.run()
    fit = time.fit(run)
    time.train(run, fit, 10, Starts(tmp_path))
    state = run.state()
    time.end(run, fit)
    time.now += 50
    fit = time.fit(run)
    time.train(run, fit, 10, Starts(tmp_path))
    assert parts_of(run) == {"start": 4, "compute": 20, "outside fits": 50}
    again = time.run()
    fit = time.fit(again)
    again.load(state)
    time.train(again, fit, 1, Starts(tmp_path))
    assert parts_of(again) == {"start": 6, "compute": 11, LOST: 61}


def test_a_point_that_is_put_back_in_this_process() -> None:
    time = Time()
    run = time.run()
    fit = time.fit(run)
    time.train(run, fit, 10)
    state = run.state()
    time.train(run, fit, 4)
    run.load(state)
    time.train(run, fit, 3)
    time.end(run, fit)
    time.now += 6
    fit = time.fit(run)
    time.train(run, fit, 1)
    time.end(run, fit)
    assert parts_of(run) == {"start": 4, "compute": 14, LOST: 4, "outside fits": 6}
    assert sum(run.seconds().values()) == time.now - 1000


def test_epochs_add_up_over_restarts() -> None:
    time = Time()
    run = time.run()
    fit = time.fit(run)
    time.train(run, fit, 10)
    rows = [run.epoch(5, 40.0)]
    time.train(run, fit, 2)
    state = run.state()
    time.train(run, fit, 8)
    again = time.run()
    fit = time.fit(again)
    again.load(state)
    time.train(again, fit, 6)
    rows.append(again.epoch(9, None))
    for row in rows:
        row["seconds"] = {name: seconds for name, seconds in row["seconds"].items() if seconds}
    assert rows == [
        {
            "wall": 13.0,
            "seconds": {"start": 3.0, "compute": 10.0},
            "updates": 5,
            "updates_per_second": 0.5,
            "items_per_second": 4.0,
        },
        {
            "wall": 19.0,
            "seconds": {"start": 3.0, "compute": 8.0, LOST: 8.0},
            "updates": 4,
            "updates_per_second": 0.5,
        },
    ]
    assert sum(row["wall"] for row in rows) == time.now - 1000


def test_a_disk_that_takes_no_note_of_a_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / STARTS).mkdir()
    starts = Starts(tmp_path)
    starts.note("start", 1.0)
    assert starts.notes() == []
    assert (
        f"the ledger of this run will not know that the run was started now: {tmp_path / STARTS} cannot be written "
        "(Is a directory)" in caplog.text
    )
    assert "the ledger of this run does not know its earlier starts" in caplog.text


def test_lines_that_are_not_whole(tmp_path: Path) -> None:
    (tmp_path / STARTS).write_bytes(b'{"what": "start", "time": 3.0}\n\xff\n[]\n{"what": "fini')
    assert [note.time for note in Starts(tmp_path).notes()] == [3.0]


@pytest.mark.parametrize(
    "line",
    [
        b'{"what": "start", "time": NaN}',
        b'{"what": "start", "time": "nan"}',
        b'{"what": "start", "time": -Infinity}',
        b'{"what": "start", "time": "-inf"}',
        b'{"what": "start", "time": 1' + 400 * b"0" + b"}",
        b'{"what": "start", "time": true}',
        b'{"what": "start", "time": "5"}',
        b'{"what": "start", "time": [5]}',
        b'{"what": ["start"], "time": 5}',
        b'{"what": "other", "time": 5}',
        b'{"time": 5}',
        b'"start"',
        b"null",
        100_000 * b"[",
    ],
    ids=lambda line: line[:40].decode(),
)
def test_a_line_that_was_not_written_by_a_run(line: bytes, tmp_path: Path) -> None:
    (tmp_path / STARTS).write_bytes(line + b'\n{"what": "start", "time": 3.0}\n')
    assert [note.time for note in Starts(tmp_path).notes()] == [3.0]


# -- of a Brain --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", SEVEN, ids=lambda cls: cls.__name__)
def test_every_closed_epoch_has_its_row(cls: type[Plain], tmp_path: Path) -> None:
    brain = make(cls, bl.Checkpointer(tmp_path / "save"))
    brain.loggers.append(bl.JsonlLogger(tmp_path / "metrics.jsonl"))
    two_fits(brain)
    ledgers = [row["ledger"] for row in bl.read_metrics(tmp_path / "metrics.jsonl")]
    assert len(ledgers) == 3
    for ledger in ledgers:
        assert list(ledger["seconds"]) == list(ALL_PARTS) and min(ledger["seconds"].values()) >= 0
        assert sum(ledger["seconds"].values()) == pytest.approx(ledger["wall"], abs=1e-4)
    assert sum(ledger["updates"] for ledger in ledgers) == brain.optimizer_step
    assert sum(ledger["wall"] for ledger in ledgers) <= sum(brain._run_ledger.seconds().values()) + 1e-4
    assert ledgers[2]["seconds"]["outside fits"] > 0 and ledgers[2]["seconds"][LOST] == 0


def test_a_logger_of_the_users_has_it_too_and_in_closing_epochs_alone(tmp_path: Path) -> None:
    class Logging(Regression):
        def on_fit_batch_end(self, *args: Any) -> None:
            self.hparams.log.log_stats({"step": self.step})

        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: Any = None) -> None:
            self.hparams.log.log_stats({"epoch": epoch, "stage": stage.name})

    log = bl.JsonlLogger(tmp_path / "metrics.jsonl")
    brain = small(Logging, hparams={"log": log})
    brain.fit(range(2), batches(2, 3), batches(2))
    log.log_stats({"after": "it"})
    rows = bl.read_metrics(log.path)
    assert [row.get("stage") for row in rows if "ledger" in row] == ["VALID", "VALID"]
    assert rows[-1]["run"]["at"] and "ledger" not in rows[-1]


def test_a_meta_value_of_that_name(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"stats_meta has the keys 'ledger', which metrics\.jsonl uses itself"
    ):
        bl.JsonlLogger(tmp_path / "metrics.jsonl").log_stats({"ledger": 1})


def run_in(folder: Path, dies_at: int | None) -> Any:
    class Mortal(Regression):
        def on_fit_batch_end(self, *args: Any) -> None:
            if self.optimizer_step == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)

    brain = small(
        Mortal, checkpointer=bl.Checkpointer(folder / "save"), ckpt_interval_steps=4, ckpt_async=False
    )
    brain.loggers.append(bl.JsonlLogger(folder / "metrics.jsonl"))
    brain.fit(range(3), batches(*[2] * 5))
    return brain


def test_processes_that_are_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Before the first checkpoint, after one inside an epoch, and before a new one."""
    caplog.set_level("INFO", logger="brainlib")
    began = time.time()
    for dies_at in (2, 7, 6):
        child = os.fork()
        if not child:
            try:
                run_in(tmp_path, dies_at)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    made_before = time.time()
    brain = run_in(tmp_path, None)
    ledger = brain._run_ledger
    assert ledger.num_starts == 4
    lines = [json.loads(line)["what"] for line in (tmp_path / "save" / STARTS).read_text().splitlines()]
    assert lines == ["start"] * 4 + ["finished"]
    seconds = ledger.seconds()
    rows = bl.read_metrics(tmp_path / "metrics.jsonl")
    assert [row["ledger"]["updates"] for row in rows] == [5, 5, 5]
    # Each wall clock is read within the other's; whatever this process did before its Brain was made is not in it.
    assert seconds[LOST] <= made_before - began + 0.1
    closed = sum(row["ledger"]["wall"] for row in rows)
    assert closed <= sum(seconds.values()) + 1e-3
    assert sum(row["ledger"]["seconds"][LOST] for row in rows) == pytest.approx(seconds[LOST], abs=1e-3)
    assert "in 4 starts: " in caplog.text and "15 updates" in caplog.text


def test_a_run_without_a_ledger_goes_on(tmp_path: Path) -> None:
    """A checkpoint of before there was one."""
    brain = make(Plain, bl.Checkpointer(tmp_path))
    two_fits(brain)
    state = brain._state.state_dict()
    del state["ledger"]
    again = make(Plain)
    again._state.load_state_dict(state)
    assert again._run_ledger.seconds()[LOST] == 0 and again.optimizer_step == brain.optimizer_step


def test_nothing_is_told_of_a_run_that_has_nothing_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small(checkpointer=bl.Checkpointer(tmp_path)).fit(range(1), batches(2))
    caplog.set_level("INFO", logger="brainlib")
    caplog.clear()
    small(checkpointer=bl.Checkpointer(tmp_path)).fit(range(1), batches(2))
    assert "the fit took" in caplog.text and "updates/s" not in caplog.text
    assert "the run took" not in caplog.text


def test_the_run_is_told_of_where_it_has_more_than_this_fit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="brainlib")

    def told() -> bool:
        said = "the run took" in caplog.text
        caplog.clear()
        return said

    brain = small(checkpointer=bl.Checkpointer(tmp_path))
    brain.fit(range(1), batches(2))
    assert not told()
    brain.fit(range(1), batches(2))
    assert told()
    again = small(checkpointer=bl.Checkpointer(tmp_path))
    again.fit(range(1), batches(2))
    again.fit(range(1), batches(2))
    assert not told(), "both are there already"
    again.fit(range(1), batches(2))
    assert told(), "with the starts before"
