"""Saves that fail for a moment, for good, and again and again: tried again, told, counted, and nothing older lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from brainlib.checkpoint import Checkpointer, CheckpointError
from brainlib.common.retrying import Retry
from tests.checkpoint.small import Counter, RecordingDisk, checkpointer_on, fill, linear, value_of


class MoodyDisk(RecordingDisk):
    """Refuses so many calls of a kind, each with the error."""

    def __init__(self, times: int, at: str = "write", code: int = errno.EIO) -> None:
        super().__init__()
        self.times = times
        self.at = at
        self.code = code

    def call(self, name: str, path: str) -> None:
        super().call(name, path)
        if name == self.at and self.times:
            self.times -= 1
            raise OSError(self.code, os.strerror(self.code))


def moody(
    folder: Path, disk: MoodyDisk, value: float = 1.0, tries: int = 3
) -> tuple[Checkpointer, list[float]]:
    paused: list[float] = []
    retry = Retry([float(i) for i in range(1, tries)], paused.append)
    return checkpointer_on(disk, folder, {"model": linear(value)}, retry), paused


@pytest.mark.parametrize("at", ["make_folder", "open_new", "write", "fsync", "rename", "fsync_dir"])
def test_what_fails_for_a_moment_is_saved(tmp_path: Path, at: str, caplog: pytest.LogCaptureFixture) -> None:
    checkpointer, paused = moody(tmp_path / "save", MoodyDisk(2, at))
    checkpoint = checkpointer.save_checkpoint({"n": 1})
    assert paused == [1.0, 2.0]
    assert checkpointer.failed_saves == 0
    assert checkpointer.list_checkpoints() == [checkpoint], "a try that failed leaves none behind"
    model = linear()
    Checkpointer(tmp_path / "save", {"model": model}).load_checkpoint(checkpoint)
    assert value_of(model) == 1.0
    first = caplog.records[0].getMessage()
    assert first.startswith(f"saving a checkpoint to {tmp_path / 'save'} failed (")
    assert "Input/output error" in first
    assert first.endswith("; this was try 1 of 3, the next one is in 1 s")


def test_what_fails_for_good_comes_through_and_is_counted(tmp_path: Path) -> None:
    moody(tmp_path, MoodyDisk(0))[0].save_checkpoint({"n": 0})
    checkpointer, paused = moody(tmp_path, MoodyDisk(6))
    for times in (1, 2):
        with pytest.raises(
            OSError, match=r"recoverable 'model' \(.*Linear\) could not be written: Input/output"
        ):
            checkpointer.save_checkpoint()
        assert checkpointer.failed_saves == times
    assert paused == [1.0, 2.0] * 2
    assert [c.meta for c in checkpointer.list_checkpoints()] == [{"n": 0}]
    checkpointer.save_checkpoint({"n": 3})
    assert checkpointer.failed_saves == 2


def test_a_deletion_that_fails_for_a_moment_is_made(tmp_path: Path) -> None:
    moody(tmp_path, MoodyDisk(0))[0].save_checkpoint({"n": 0})
    disk = MoodyDisk(0, "rename")
    checkpointer, paused = moody(tmp_path, disk)

    saved = checkpointer.save_checkpoint({"n": 1})
    disk.times = 1
    checkpointer.delete_checkpoints(num_to_keep=1)
    assert checkpointer.list_checkpoints() == [saved]
    assert paused == [1.0]


# ---------------------------------------------------------------------------------------------- the trainer's own saves


def test_a_trainer_that_is_told_to_warn_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = MoodyDisk(0)
    checkpointer, _ = moody(tmp_path, disk, tries=1)
    good = checkpointer.save_automatically({"n": 1}, reason="timed", on_error="warn")
    assert good is not None
    disk.times, disk.code = 2, errno.ENOSPC
    for _ in range(2):
        assert checkpointer.save_automatically({"n": 2}, reason="timed", on_error="warn") is None
    first, second = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert first.startswith(
        "NOT SAVED: [Errno 28] recoverable 'model' (torch.nn.modules.linear.Linear) could not be"
    )
    assert (
        "on_save_error is 'warn', so the run goes on. 1 save has failed in a row (1 of this run in all)"
        in first
    )
    assert first.endswith(f"; if it ends now, it goes on from {good.path}")
    assert "2 saves have failed in a row (2 of this run in all)" in second
    assert checkpointer.written == good
    assert checkpointer.save_automatically({"n": 3}, reason="timed", on_error="warn") is not None
    disk.times = 1
    checkpointer.save_automatically({"n": 4}, reason="timed", on_error="warn")
    assert "1 save has failed in a row (3 of this run in all)" in caplog.records[-1].getMessage()


def test_nothing_saved_yet_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpointer, _ = moody(tmp_path, MoodyDisk(1), tries=1)
    assert checkpointer.save_automatically(reason="timed", on_error="warn") is None
    assert caplog.records[-1].getMessage().endswith("; if it ends now, nothing that it has saved is there")


def test_an_object_that_cannot_be_saved_is_told_the_same_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = Checkpointer(tmp_path, {"counter": Counter({1, 2}.__iter__())})  # type: ignore[arg-type]
    assert checkpointer.save_automatically(reason="epoch", on_error="warn") is None
    assert "NOT SAVED: recoverable 'counter'" in caplog.records[-1].getMessage()
    with pytest.raises(CheckpointError, match="recoverable 'counter'"):
        checkpointer.save_automatically(reason="epoch")
    assert checkpointer.failed_saves == 2


def test_the_default_raises(tmp_path: Path) -> None:
    checkpointer, _ = moody(tmp_path, MoodyDisk(1), tries=1)
    with pytest.raises(OSError, match="Input/output error"):
        checkpointer.save_automatically(reason="timed")


def test_a_mistyped_choice(tmp_path: Path) -> None:
    checkpointer, _ = moody(tmp_path, MoodyDisk(0))
    with pytest.raises(CheckpointError, match="on_error is 'ignore'; it is 'raise' or 'warn'"):
        checkpointer.save_automatically(reason="timed", on_error="ignore")


def test_an_older_one_that_cannot_be_removed_is_no_lost_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MoodyDisk(0, "rename", errno.EACCES)
    checkpointer = checkpointer_on(disk, tmp_path, {"model": fill(linear(), 1.0)})
    for n in range(2):
        checkpointer.save_automatically({"n": n}, reason="timed")

    class Refusing(MoodyDisk):
        def rename(self, source: Path, target: Path) -> None:
            if target.name.startswith(".deleting-"):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(source))
            super().rename(source, target)

    checkpointer = checkpointer_on(Refusing(0), tmp_path, {"model": linear(1.0)})
    saved = checkpointer.save_automatically({"n": 2}, reason="timed", on_error="warn")
    assert saved is not None
    assert saved.meta == {"n": 2}
    told = caplog.records[-1].getMessage()
    assert "was saved, but an older one could not be removed: [Errno 13] Permission denied" in told
    assert told.startswith(str(saved.path))
    assert checkpointer.failed_saves == 0
