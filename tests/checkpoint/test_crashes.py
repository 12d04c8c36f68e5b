"""The machine stops, the disk fails, the process is killed: at any call, an intact newest checkpoint is there."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoint.small import (
    Crash,
    DyingDisk,
    FailingDisk,
    RecordingDisk,
    checkpointer_on,
    fill,
    linear,
    pretend_dead,
    value_of,
)
from tests.checkpoint.small import Foreground as Checkpointer

SAVES = {
    "save": lambda c, n: c.save_checkpoint({"n": n}),
    "keep one": lambda c, n: c.save_and_keep_only({"n": n}),
    "keep the best": lambda c, n: c.save_and_keep_only({"n": n}, keep_recent=False, max_keys=["n"]),
    "automatic": lambda c, n: c.save_checkpoint({"n": n}, reason="timed"),
    "named": lambda c, n: c.save_checkpoint({"n": n}, name="best"),
}


def prepared(folder: Path, how: str) -> dict[str, Any]:
    """Two saves that worked."""
    objects = {"model": linear()}
    checkpointer = checkpointer_on(RecordingDisk(), folder, objects)
    for n in (1, 2):
        fill(objects["model"], n)
        SAVES[how](checkpointer, n)
    fill(objects["model"], 3)
    return objects


def recovered(folder: Path) -> int:
    """What a new process finds: one whole state, and nothing half-done left after it has looked."""
    model = linear(-1.0)
    with pretend_dead(folder):
        checkpoint = Checkpointer(folder, {"model": model}).recover_if_possible()
    assert checkpoint is not None
    assert checkpoint.meta["n"] == value_of(model)
    assert not list(folder.glob(".*")), "swept"
    return int(checkpoint.meta["n"])


def calls_of_one_save(folder: Path, how: str) -> list[tuple[str, str]]:
    objects = prepared(folder, how)
    disk = RecordingDisk()
    SAVES[how](checkpointer_on(disk, folder, objects), 3)
    return disk.calls


@pytest.mark.parametrize("how", SAVES)
def test_a_crash_at_every_call_of_a_save(tmp_path: Path, how: str) -> None:
    """Never without a checkpoint; the old one until the rename of the new one, the new one from then on."""
    calls = calls_of_one_save(tmp_path / "dry", how)
    committed = next(
        i for i, (call, name) in enumerate(calls) if call == "rename" and not name.startswith(".")
    )
    assert len(calls) >= 10
    for at in range(len(calls)):
        folder = tmp_path / str(at)
        objects = prepared(folder, how)
        disk = DyingDisk(at)
        with pytest.raises(Crash):
            SAVES[how](checkpointer_on(disk, folder, objects), 3)
        assert [name for name, _ in disk.calls[: at + 1]] == [name for name, _ in calls[: at + 1]]
        assert recovered(folder) == (2 if at <= committed else 3)
        objects["model"] = fill(linear(), 4.0)
        SAVES[how](checkpointer_on(RecordingDisk(), folder, objects), 4)
        assert recovered(folder) == 4, "and the folder goes on being used"


def of_the_journal(call: str, name: str) -> bool:
    return name == "records.jsonl" or (call in ("open_new", "write") and name.startswith(".writing-"))


@pytest.mark.parametrize(("how", "code"), [*((how, errno.ENOSPC) for how in SAVES), ("keep one", errno.EIO)])
def test_an_error_at_every_call_of_a_save(tmp_path: Path, how: str, code: int) -> None:
    """The error comes through as what it is; what was there is there, and the next save works."""
    calls = calls_of_one_save(tmp_path / "dry", how)
    committed = next(
        i for i, (call, name) in enumerate(calls) if call == "rename" and not name.startswith(".")
    )
    for at in range(len(calls)):
        folder = tmp_path / str(at)
        objects = prepared(folder, how)
        checkpointer = checkpointer_on(FailingDisk(at, code), folder, objects)
        if calls[at][0] in ("unlink", "rmdir") or of_the_journal(*calls[at]):
            # A part of a deleted one that stays, or a journal out of date, is no reason to stop a run.
            SAVES[how](checkpointer, 3)
        else:
            with pytest.raises(OSError, match=os.strerror(code)) as caught:
                SAVES[how](checkpointer, 3)
            assert caught.value.errno == code
        if at < committed:
            assert not list(folder.glob(".*")), "an unfinished one is removed at once"
        SAVES[how](checkpointer, 3)
        assert recovered(folder) == 3


def test_the_error_names_the_object_that_was_being_written(tmp_path: Path) -> None:
    objects = {"small": linear(), "large": torch.nn.Linear(100, 100)}
    calls = RecordingDisk()
    checkpointer_on(calls, tmp_path / "a", objects).save_checkpoint()
    at = calls.calls.index(("write", "large.pt"))
    with pytest.raises(
        OSError,
        match=r"recoverable 'large' \(torch.nn.modules.linear.Linear\) could not be written: No space left",
    ) as caught:
        checkpointer_on(FailingDisk(at), tmp_path / "b", objects).save_checkpoint()
    assert str(caught.value.filename).endswith("large.pt")
    assert isinstance(caught.value, OSError)
    assert list((tmp_path / "b").iterdir()) == []


# ----------------------------------------------------------------------------------------------------------- real kills


def save_for_ever(folder: Path, start: int, told: int, how: str) -> None:
    """The child: saves 1, 2, 3, … and says each number once its save has returned."""
    model = linear()
    checkpointer = Checkpointer(folder, {"model": model})
    for n in range(start, start + 100_000):
        fill(model, float(n))
        SAVES[how](checkpointer, n)
        os.write(told, f"{n}\n".encode())


@pytest.mark.skipif(
    not hasattr(os, "fork"), reason="needs fork: a new interpreter for each kill would take minutes"
)
def test_kills_at_any_moment(tmp_path: Path) -> None:
    """Twenty children in a row work in one folder and are killed; nothing that was said to be saved is ever lost."""
    rng = random.Random(11)
    newest, kills_inside_a_save = 0, 0
    for number in range(20):
        how = list(SAVES)[number % len(SAVES)]
        folder = tmp_path / how
        model = linear()
        before = Checkpointer(folder, {"model": model}).recover_if_possible()
        newest = 0 if before is None else int(before.meta["n"])
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(reading)
                torch.set_num_threads(1)
                save_for_ever(folder, newest + 1, writing, how)
            finally:
                os._exit(1)
        os.close(writing)
        os.read(reading, 1)  # the first save is done
        time.sleep(rng.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reading, "rb") as pipe:
            said = [int(line) for line in pipe.read().split(b"\n")[1:-1] if line]
        acknowledged = max([newest + 1, *said])
        kills_inside_a_save += any(folder.glob(".*"))

        model = linear(-1.0)
        checkpoint = Checkpointer(folder, {"model": model}).recover_if_possible()
        assert checkpoint is not None
        assert checkpoint.meta["n"] == value_of(model)
        assert acknowledged <= checkpoint.meta["n"] <= acknowledged + 1
        assert not list(folder.glob(".*")), "what the dead child left is swept"
    assert kills_inside_a_save >= 5, "or this test does not test what it says"
