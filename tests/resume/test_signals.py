"""Real processes and real signals: how they end, what they leave, and that the next one ends with the same bits."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.resume.signals import JOB, ROOT, Sender, Start, ended, survivors, sweep, warm

WORKERS = ("--workers", "2", "--item_seconds", "0.002")
SHORT = json.dumps({"stop_grace_seconds": 0.3, "ckpt_async": False})  # what is saved before is on the disk


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    with warm() as start:
        yield start


@pytest.fixture(scope="module")
def in_peace(start: Start) -> Any:
    @functools.cache
    def result(style: str, *arguments: str) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            assert start(folder, style, *arguments, output=Path(folder, "log")) == 0, Path(
                folder, "log"
            ).read_text()
            return ended(Path(folder))

    return result


def checkpoints(folder: Path) -> list[str]:
    return (
        sorted(path.name for path in (folder / "save").glob("step-*")) if (folder / "save").exists() else []
    )


# ---------------------------------------------------------------------------------------------- how a process ends


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGUSR1", 138), ("SIGINT", -2)])
def test_the_status_of_a_script(name: str, status: int, tmp_path: Path) -> None:
    """In an interpreter of its own. After Ctrl-C it is killed by SIGINT, as any Python script is."""
    done = subprocess.run(
        [sys.executable, JOB, tmp_path, "Plain", *WORKERS, "--at", f"compute_forward:TRAIN:3:all-{name}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert f"stopped by {name} in epoch 1, after batch 3" in done.stderr
    assert ("Traceback" in done.stderr) == (name == "SIGINT")
    assert done.stderr.count("KeyboardInterrupt") == (name == "SIGINT"), "workers are silent"
    assert checkpoints(tmp_path) == ["step-00000003"]
    assert survivors(tmp_path) == []


@pytest.mark.parametrize("who", ["", "all-"], ids=["the process", "all its processes"])
@pytest.mark.parametrize("workers", [(), WORKERS], ids=["no workers", "workers"])
@pytest.mark.parametrize(
    "moment", ["compute_forward:TRAIN:3", "compute_forward:VALID:2", "on_stage_start:TRAIN:1"]
)
def test_it_is_saved_and_goes_on(
    moment: str, workers: tuple[str, ...], who: str, start: Start, in_peace: Any, tmp_path: Path
) -> None:
    signal_there = ("--at", f"{moment}:{who}SIGTERM")
    assert start(str(tmp_path), "Plain", *workers, *signal_there, output=tmp_path / "log") == 143
    assert survivors(tmp_path) == []
    assert len(checkpoints(tmp_path)) == 1
    assert start(str(tmp_path), "Plain", *workers, output=tmp_path / "log") == 0
    assert ended(tmp_path) == in_peace("Plain")


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_while_it_waits_for_data(workers: str, signum: int, start: Start, tmp_path: Path) -> None:
    """An item takes a minute; nobody waits for it. The point is the one before the first batch."""
    slow = ("--workers", workers, "--item_seconds", "60")
    sender = Sender(tmp_path, signum, 1.0, to_all=False)
    status = start(str(tmp_path), "Plain", *slow, output=tmp_path / "log", kill_when=sender)
    assert status == (143 if signum == signal.SIGTERM else 1), (tmp_path / "log").read_text()
    assert survivors(tmp_path) == []
    assert checkpoints(tmp_path) == ["step-00000000"]


def test_between_two_fits_nothing_is_listened_to(start: Start, in_peace: Any, tmp_path: Path) -> None:
    between = ("--between", "SIGTERM")
    assert start(str(tmp_path), "Plain", *between, output=tmp_path / "log") == -signal.SIGTERM
    assert start(str(tmp_path), "Plain", output=tmp_path / "log") == 0
    assert ended(tmp_path) == in_peace("Plain")


@pytest.mark.parametrize(("kind", "status"), [("notes", 143), ("leaves", 7), ("ignores", 0)])
def test_a_handler_of_the_scripts_own(kind: str, status: int, start: Start, tmp_path: Path) -> None:
    arguments = ("--earlier", kind, "--at", "compute_forward:TRAIN:3:SIGTERM")
    assert start(str(tmp_path), "Plain", *arguments, output=tmp_path / "log") == status
    assert (tmp_path / "earlier").exists() == (kind == "notes")
    assert (checkpoints(tmp_path) == ["step-00000003"]) == (status != 0)


# --------------------------------------------------------------------------------------- one that does not end


@pytest.mark.parametrize("stuck", ["sleep", "lock"])
def test_a_batch_that_hangs(stuck: str, start: Start, in_peace: Any, tmp_path: Path) -> None:
    """Also where it holds the interpreter lock: the process prints where it stands, and is gone. So are its workers."""
    hangs = ("--at", f"compute_forward:TRAIN:7:all-SIGTERM+{stuck}", "--options", SHORT)
    log = tmp_path / "log"
    assert start(str(tmp_path), "Plain", *WORKERS, *hangs, output=log) == -signal.SIGKILL, log.read_text()
    assert f'signal_job.py", line {line_of(stuck)} in {stuck}' in log.read_text()
    assert "brainlib: SIGTERM came" in log.read_text() and "the batch in hand is not over" in log.read_text()
    assert survivors(tmp_path) == []
    assert start(str(tmp_path), "Plain", *WORKERS, output=log) == 0
    assert ended(tmp_path) == in_peace("Plain")


def line_of(stuck: str) -> int:
    lines = JOB.read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if f"def {stuck}(" in line) + 1


def test_a_save_that_hangs(start: Start, tmp_path: Path) -> None:
    """A network drive that is gone. It has more time, but not for ever."""
    hangs = ("--at", "compute_forward:TRAIN:7:SIGTERM", "--stuck_save", "--options", SHORT)
    log = tmp_path / "log"
    assert start(str(tmp_path), "Plain", *hangs, output=log) == -signal.SIGKILL, log.read_text()
    assert "the checkpoint is not written" in log.read_text()
    assert checkpoints(tmp_path) == ["step-00000005"]


def test_ctrl_c_has_all_the_time(start: Start, tmp_path: Path) -> None:
    """Somebody sits there, and may press it again."""
    waits = ("--at", "compute_forward:TRAIN:2:SIGINT+nap", "--options", SHORT)
    assert start(str(tmp_path), "Plain", *waits, output=tmp_path / "log") == 1
    assert checkpoints(tmp_path) == ["step-00000002"]


def test_without_a_limit(start: Start, tmp_path: Path) -> None:
    waits = ("--at", "compute_forward:TRAIN:2:SIGTERM+nap", "--options", '{"stop_grace_seconds": 0}')
    assert start(str(tmp_path), "Plain", *waits, output=tmp_path / "log") == 143
    assert checkpoints(tmp_path) == ["step-00000002"]


def test_what_the_watcher_sets_free_is_saved(start: Start, tmp_path: Path) -> None:
    """A call of the system that a signal interrupts: the run comes to the end of its batch after all."""
    hangs = ("--at", "compute_forward:TRAIN:2:SIGTERM+call", "--options", SHORT)
    assert start(str(tmp_path), "Plain", *hangs, output=tmp_path / "log") == 143, (
        tmp_path / "log"
    ).read_text()
    assert checkpoints(tmp_path) == ["step-00000002"]


# ------------------------------------------------------------------------------------------------- anywhere at all


def test_at_random_moments() -> None:
    """A few here; ``python -m tests.resume.signals --number 300`` for more."""
    trials = sweep(16, seed=7)
    assert [trial for trial in trials if trial.problems] == []
    assert sum(sum(trial.statuses.values()) for trial in trials) >= 8, "most signals come while it runs"


def test_workers_do_not_outlive_it(start: Start, tmp_path: Path) -> None:
    """Killed while they are busy for a minute: torch would let them finish."""
    slow = (*WORKERS[:2], "--item_seconds", "60")
    sender = Sender(tmp_path, signal.SIGKILL, 1.0, to_all=False)
    assert start(str(tmp_path), "Plain", *slow, output=tmp_path / "log", kill_when=sender) == -signal.SIGKILL
    assert len((tmp_path / "processes").read_text().split()) == 3, "itself and two workers"
    assert survivors(tmp_path) == []
