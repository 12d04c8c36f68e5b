"""records.jsonl: what it holds, that it is only a cache, and that it is made anew whatever happens to it."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from brainlib.checkpoint import manifest
from brainlib.checkpoint.journal import Record, from_journal, read_records
from tests.checkpoint.small import Foreground as Checkpointer
from tests.checkpoint.small import RecordingDisk, Trainer, checkpointer_on, linear


def saved(folder: Path, number: int = 5) -> Checkpointer:
    trainer = Trainer(model=linear())
    checkpointer = Checkpointer(folder)
    checkpointer.attach(trainer)
    for n in range(1, number + 1):
        trainer.step = n * 10
        checkpointer.save_checkpoint({"loss": 1 / n, "remark": "x"})
    return checkpointer


def agree(folder: Path, records: list[Record] | None = None) -> list[Record]:
    """The records, which say what the manifests say."""
    records = read_records(folder) if records is None else records
    listed = Checkpointer(folder).list_checkpoints()
    assert [(r.path, r.commit, r.time, r.reason, r.name, r.snapshot_of, r.number) for r in records] == [
        (c.path, c.commit, c.time, c.reason, c.name, c.snapshot_of, c.number) for c in listed
    ]
    assert [r.metrics["loss"] for r in records] == [c.meta["loss"] for c in listed]
    assert [r.size for r in records] == [sum(file.size for file in c.files.values()) for c in listed]
    return records


def no_manifest_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "read", lambda folder: pytest.fail(f"read the manifest of {folder}"))


def test_a_line_a_commit(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    lines = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [line["path"] for line in lines] == ["step-00000010", "step-00000020"]
    last = lines[-1]
    assert {key: last[key] for key in ("iteration", "epoch", "reason", "metrics", "commit", "name")} == {
        "iteration": 20,
        "epoch": 1,
        "reason": "user",
        "metrics": {"loss": 0.5},
        "commit": 2,
        "name": None,
    }
    assert abs(last["time"] - manifest.now()) < 60


def test_a_listing_reads_no_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agree(tmp_path, saved(tmp_path).records())
    no_manifest_is_read(monkeypatch)
    assert [record.iteration for record in read_records(tmp_path)] == [50, 40, 30, 20, 10]
    assert [record.iteration for record in Checkpointer(tmp_path).records()] == [50, 40, 30, 20, 10]


def test_deleted_and_replaced_ones_are_gone_from_it(tmp_path: Path) -> None:
    checkpointer = saved(tmp_path)
    checkpointer.delete_checkpoints(num_to_keep=2)
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 2
    checkpointer.delete(checkpointer.list_checkpoints()[0])
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 1
    for loss in (0.3, 0.2):
        checkpointer.save_checkpoint({"loss": loss}, name="best")
    assert [(r.name, r.metrics) for r in read_records(tmp_path)][:1] == [("best", {"loss": 0.2})]
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 2
    agree(tmp_path)


def test_one_that_was_removed_by_hand_is_not_listed(tmp_path: Path) -> None:
    saved(tmp_path)
    shutil.rmtree(tmp_path / "step-00000030")
    assert [record.iteration for record in agree(tmp_path)] == [50, 40, 20, 10]


def test_numbers_that_json_does_not_have(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    checkpointer.save_checkpoint({"a": math.nan, "b": -math.inf, "c": True, "d": 10**400, "e": [1.0], "f": 2})
    text = (tmp_path / "records.jsonl").read_text()
    assert '"metrics": {"a": "nan", "b": "-inf", "c": true, "f": 2}' in text
    (record,) = read_records(tmp_path)
    assert math.isnan(record.metrics["a"])
    assert record.metrics["b"] == -math.inf
    json.loads(text, parse_constant=lambda name: pytest.fail(name))


@pytest.mark.parametrize("how", ["missing", "empty", "cut", "a line lost", "twice", "garbage", "a folder"])
def test_it_is_made_anew(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path)
    path = tmp_path / "records.jsonl"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    if how in ("missing", "a folder"):
        path.unlink()
    if how == "a folder":
        path.mkdir()
    else:
        changed = {
            "empty": b"",
            "cut": whole[:-30],
            "a line lost": b"".join(lines[:2] + lines[3:]),
            "twice": whole + whole,
            "garbage": os.urandom(1000) + b"\n[" + b"[" * 100_000,
        }
        path.write_bytes(changed[how]) if how in changed else None
    agree(tmp_path)
    checkpointer = Checkpointer(tmp_path)
    agree(tmp_path, checkpointer.records())
    if how not in ("a folder", "twice"):
        assert path.read_bytes() == whole, "by the first that lists"
        no_manifest_is_read(monkeypatch)
        assert len(read_records(tmp_path)) == 5


def test_a_flipped_bit_anywhere_is_seen(tmp_path: Path) -> None:
    saved(tmp_path)
    path = tmp_path / "records.jsonl"
    whole = path.read_bytes()
    expected = agree(tmp_path)
    rng = random.Random(2)
    for _ in range(100):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        found = read_records(tmp_path)
        assert [(r, r.metrics) for r in found] == [(r, r.metrics) for r in expected]


def test_a_line_of_an_older_checkpoint_of_the_name_does_not_count(tmp_path: Path) -> None:
    """A kill between the commit and the journal."""
    checkpointer = saved(tmp_path, 1)
    checkpointer.save_checkpoint({"loss": 9.0}, name="best")
    old = (tmp_path / "records.jsonl").read_bytes()
    checkpointer.save_checkpoint({"loss": 8.0}, name="best")
    (tmp_path / "records.jsonl").write_bytes(old)
    assert [record.metrics["loss"] for record in agree(tmp_path)] == [8.0, 1.0]


def test_a_moved_folder_and_a_copied_one(tmp_path: Path) -> None:
    saved(tmp_path / "a")
    shutil.move(tmp_path / "a", tmp_path / "b")
    agree(tmp_path / "b")
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    agree(tmp_path / "c")
    agree(tmp_path / "c", Checkpointer(tmp_path / "c").records())
    assert from_journal(tmp_path / "c")[1] == []


@pytest.mark.parametrize(
    "changes",
    [
        {"path": "../step-00000010"},
        {"path": 3},
        {"commit": "x"},
        {"commit": float("inf")},
        {"time": 10**400},
        {"metrics": []},
        {"manifest": 3},
        {"time": None},
    ],
)
def test_a_line_that_somebody_made_up(tmp_path: Path, changes: dict[str, object]) -> None:
    """With a right sum; it cannot lead out of the folder, nor stop a listing."""
    saved(tmp_path, 1)
    path = tmp_path / "records.jsonl"
    content = {**json.loads(path.read_text()), **changes}
    del content["crc"]
    rest = json.dumps(content)[1:].encode()
    path.write_bytes(b'{"crc": "%08x", %s\n' % (zlib.crc32(rest), rest))
    agree(tmp_path)


def test_a_damaged_checkpoint_is_left_out(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "step-00000050" / "manifest.json").write_text("{")
    assert [record.iteration for record in agree(tmp_path)] == [40, 30, 20, 10]


def test_a_journal_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class NoJournal(RecordingDisk):
        def rename(self, source: Path, target: Path) -> None:
            if target.name == "records.jsonl":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
            super().rename(source, target)

    checkpointer = checkpointer_on(NoJournal(), tmp_path, {"model": linear()})
    for loss in (0.2, 0.1):
        checkpointer.save_checkpoint({"loss": loss})
    assert not list(tmp_path.glob(".*"))
    agree(tmp_path)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith(
        "records.jsonl could not be brought up to date ([Errno 28] No space left on device"
    )
    assert warning.endswith("; that costs time at a listing and nothing else")


def test_a_save_adds_a_line_and_all_else_writes_it_anew(tmp_path: Path) -> None:
    """Once a save, and never synced; so that the thousandth save costs what the tenth does."""
    disk = RecordingDisk()
    checkpointer = checkpointer_on(disk, tmp_path, {"model": linear()})

    def journal_calls(work: Callable[[], object]) -> list[str]:
        del disk.calls[:]
        work()
        last_sync = max(i for i, (call, _) in enumerate(disk.calls) if call in ("fsync", "fsync_dir"))
        return [call for call, _ in disk.calls[last_sync + 1 :] if call not in ("unlink", "rmdir")]

    anew, added = ["open_new", "write", "rename"], ["open_end", "write"]
    assert journal_calls(checkpointer.save_checkpoint) == anew, "what is there is anybody's guess"
    assert journal_calls(checkpointer.save_checkpoint) == added
    checkpointer.list_checkpoints()
    assert journal_calls(checkpointer.save_checkpoint) == added
    assert journal_calls(checkpointer.delete_checkpoints) == anew
    assert journal_calls(checkpointer.save_checkpoint) == added
    Checkpointer(tmp_path, {"model": linear()}).save_checkpoint()
    checkpointer.list_checkpoints()
    assert journal_calls(checkpointer.save_checkpoint) == anew, "somebody else has been there"
    (tmp_path / "records.jsonl").unlink()
    assert journal_calls(checkpointer.save_checkpoint) == ["open_end", *anew], "and has tidied up"
    assert len(from_journal(tmp_path)[0]) == len(checkpointer.list_checkpoints()) == 5
