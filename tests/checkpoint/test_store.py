"""The folder of checkpoints: what is written in which order, what is skipped, what is swept."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import time
from pathlib import Path

import pytest
import torch

from brainlib.checkpoint import Checkpoint, CheckpointError, manifest
from brainlib.checkpoint.store import Store, check_name
from tests.checkpoint.small import Foreground as Checkpointer
from tests.checkpoint.small import RecordingDisk, checkpointer_on, linear, pretend_dead


def commit(store: Store, stem: str = "step-00000001", content: bytes = b"hello") -> Checkpoint:
    with store.draft() as draft:
        with draft.file("a.bin") as file:
            file.write(content)
        return store.commit(draft, Checkpoint(draft.path, {}, 0), stem)


def test_the_order_of_a_commit(tmp_path: Path) -> None:
    disk = RecordingDisk()
    checkpointer = checkpointer_on(
        disk, tmp_path / "save", {"model": linear(), "optimizer": torch.optim.SGD(linear().parameters())}
    )
    checkpointer.save_checkpoint()
    calls = disk.calls
    rename = calls.index(("rename", "commit-00000001"))
    opened = [name for call, name in calls[:rename] if call == "open_new"]
    synced = [name for call, name in calls[:rename] if call == "fsync"]
    assert opened == synced, "every file is synced before the rename"
    assert opened[-1] == "manifest.json", "and the manifest is the last"
    assert calls[rename - 1][0] == "fsync_dir", (
        "the temporary folder is synced when all files have their names"
    )
    assert calls[rename - 1][1].startswith(".writing-")
    assert calls[rename + 1] == ("fsync_dir", "save"), "the parent folder is synced after the rename"
    assert [call for call, _ in calls[rename + 2 :]] == ["open_new", "write", "rename"], (
        "and then the journal"
    )
    assert calls[-1] == ("rename", "records.jsonl")


def test_no_byte_of_a_commit_escapes_the_disk(tmp_path: Path) -> None:
    disk = RecordingDisk()
    checkpoint = checkpointer_on(disk, tmp_path, {"model": torch.nn.Linear(300, 300)}).save_checkpoint()
    files = [*checkpoint.path.iterdir(), tmp_path / "records.jsonl"]
    assert disk.bytes_written == sum(path.stat().st_size for path in files)
    assert disk.bytes_written > 360_000


def test_an_older_one_goes_only_after_the_newer_is_committed(tmp_path: Path) -> None:
    disk = RecordingDisk()
    checkpointer = checkpointer_on(disk, tmp_path, {"model": linear()})
    checkpointer.save_and_keep_only()
    del disk.calls[:]
    checkpointer.save_and_keep_only()
    committed = disk.calls.index(("rename", "commit-00000002"))
    assert disk.calls[committed + 1] == ("fsync_dir", tmp_path.name)
    away = next(
        i for i, (call, name) in enumerate(disk.calls) if call == "rename" and name.startswith(".deleting-")
    )
    assert away > committed + 1
    assert not any(call == "unlink" for call, _ in disk.calls[:away])


def test_making_one_touches_no_disk(tmp_path: Path) -> None:
    (tmp_path / "save").mkdir()
    (tmp_path / "save" / ".writing-4194399-1-ab-machine").mkdir()
    before = sorted(tmp_path.rglob("*"))
    Checkpointer(tmp_path / "save", {"model": linear()})
    Checkpointer(tmp_path / "other", {"model": linear()})
    assert sorted(tmp_path.rglob("*")) == before


def test_order_is_the_commit_number_and_nothing_else(tmp_path: Path) -> None:
    """Not the clock (set back here), not the text of the name (9 after 10), not the step."""
    store = Store(tmp_path)
    for stem in ("step-00000010", "step-00000009", "step-00000011", "step-00000009"):
        commit(store, stem)
    for i, checkpoint in enumerate(store.listed()):
        os.utime(checkpoint.path, (i, i))
    names = [checkpoint.path.name for checkpoint in Store(tmp_path).listed()]
    assert names == ["step-00000009-2", "step-00000011", "step-00000009", "step-00000010"]
    assert [checkpoint.commit for checkpoint in Store(tmp_path).listed()] == [4, 3, 2, 1]


def test_commit_numbers_grow_after_a_deletion(tmp_path: Path) -> None:
    store = Store(tmp_path)
    commit(store)
    newest = commit(store)
    store.delete(newest)
    assert commit(store).commit == 3
    assert commit(Store(tmp_path)).commit == 4


def test_a_moved_folder_is_the_same(tmp_path: Path) -> None:
    checkpoint = commit(Store(tmp_path / "a"))
    shutil.move(tmp_path / "a", tmp_path / "b")
    (moved,) = Store(tmp_path / "b").listed()
    assert moved.path == tmp_path / "b" / checkpoint.path.name
    Store.check_sizes(moved)
    Store.check_sums(moved, tuple(moved.files))


def test_a_listing_reads_each_manifest_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        commit(Store(tmp_path))
    store = Store(tmp_path)
    reads: list[Path] = []
    real = manifest.read

    def reading(folder: Path) -> Checkpoint:
        reads.append(folder)
        return real(folder)

    monkeypatch.setattr(manifest, "read", reading)
    for _ in range(3):
        assert len(store.listed()) == 5
    assert len(reads) == 5
    commit(store)
    assert len(store.listed()) == 6
    assert len(reads) == 5, "what this process wrote itself it need not read"
    commit(Store(tmp_path))
    assert len(store.listed()) == 7, "and what another process wrote is seen"


def test_a_manifest_that_changed_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path)
    checkpoint = commit(store)
    assert len(store.listed()) == 1
    (checkpoint.path / "manifest.json").write_text('{"format": "brainlib-che')
    assert store.listed() == []
    store.listed()
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == f"the checkpoint {checkpoint.path} is skipped: its manifest.json is torn"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text[: len(text) // 2], "its manifest.json is torn"),
        (lambda text: "", "its manifest.json is torn"),
        (lambda text: "[1]", r"is not what was written \(its sum differs\)"),
        (
            lambda text: text.replace('"commit": 1', '"commit": 7'),
            r"is not what was written \(its sum differs\)",
        ),
        (lambda text: text.replace('"user"', '"epoch"'), r"is not what was written \(its sum differs\)"),
        (lambda text: "[" * 100_000, "its manifest.json is torn"),
    ],
)
def test_an_altered_manifest_is_no_checkpoint(tmp_path: Path, change: object, reason: str) -> None:
    path = commit(Store(tmp_path)).path / "manifest.json"
    path.write_text(change(path.read_text()))  # type: ignore[operator]
    store = Store(tmp_path)
    assert store.listed() == []
    (told,) = store.damaged.values()
    assert re.search(reason, told)


def resealed(path: Path, **changes: object) -> None:
    """A manifest with other content and a right sum: what somebody with bad intentions would send."""
    content = json.loads(path.read_text())
    content.update(changes)
    del content["sha256"]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({**content, "sha256": hashlib.sha256(text.encode()).hexdigest()}))


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", "..", "", "a\\b"])
def test_a_manifest_cannot_lead_out_of_its_folder(tmp_path: Path, name: str) -> None:
    checkpoint = commit(Store(tmp_path))
    resealed(checkpoint.path / "manifest.json", files={name: {"size": 1, "sha256": "0"}})
    store = Store(tmp_path)
    assert store.listed() == []
    (told,) = store.damaged.values()
    assert "points outside the checkpoint" in told


@pytest.mark.parametrize(
    "changes", [{"commit": "x"}, {"files": 3}, {"recoverables": {"a": 1}}, {"meta_nonfinite": [["x"]]}]
)
def test_a_manifest_of_wrong_types_is_damaged_and_no_crash(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    resealed(commit(Store(tmp_path)).path / "manifest.json", **changes)
    store = Store(tmp_path)
    assert store.listed() == []
    (told,) = store.damaged.values()
    assert "lacks something or holds a wrong type" in told


def test_a_newer_format_is_named(tmp_path: Path) -> None:
    resealed(commit(Store(tmp_path)).path / "manifest.json", version=2)
    store = Store(tmp_path)
    assert store.listed() == []
    (told,) = store.damaged.values()
    assert "format version 2 and this brainlib reads up to 1" in told


def test_a_folder_that_lost_its_manifest_is_named_and_others_are_not(tmp_path: Path) -> None:
    (commit(Store(tmp_path)).path / "manifest.json").unlink()
    (tmp_path / "wavs").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    store = Store(tmp_path)
    assert store.listed() == []
    assert store.damaged == {"step-00000001": "it has no manifest.json"}


def test_a_speechbrain_checkpoint_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = tmp_path / "CKPT+2024-01-01+00-00-00+00"
    theirs.mkdir()
    (theirs / "CKPT.yaml").write_text("unixtime: 1")
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    assert checkpointer.recover_if_possible() is None
    checkpointer.save_and_keep_only(num_to_keep=0)
    assert theirs.is_dir()
    assert "is a SpeechBrain checkpoint" in caplog.text


def test_a_symbolic_link_to_a_checkpoint_is_read_and_only_the_link_is_deleted(tmp_path: Path) -> None:
    real = commit(Store(tmp_path / "elsewhere"))
    (tmp_path / "save").mkdir()
    (tmp_path / "save" / "step-00000001").symlink_to(real.path)
    store = Store(tmp_path / "save")
    (listed,) = store.listed()
    store.delete(listed)
    assert list((tmp_path / "save").iterdir()) == []
    Store.check_sums(real, tuple(real.files))


def test_a_store_deletes_only_what_is_in_it(tmp_path: Path) -> None:
    other = commit(Store(tmp_path / "a"))
    with pytest.raises(CheckpointError, match="a store deletes only what is its own"):
        Store(tmp_path / "b").delete(other)
    assert other.path.is_dir()


def test_what_is_gone_already_can_be_deleted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    checkpoint = commit(store)
    Store(tmp_path).delete(checkpoint)
    store.delete(checkpoint)
    assert store.listed() == []


def test_another_checkpoint_under_the_name_of_one_that_is_gone_stays(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = commit(store)
    store.delete(first)
    second = commit(store)
    os.rename(second.path, first.path)
    for each in (store, Store(tmp_path)):
        each.delete(first)
        assert [checkpoint.commit for checkpoint in each.listed()] == [second.commit]


def test_a_damaged_one_can_be_deleted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    checkpoint = commit(store)
    (checkpoint.path / "manifest.json").write_text("torn")
    store.delete(checkpoint)
    assert not checkpoint.path.exists()


def test_a_draft_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(ZeroDivisionError), store.draft() as draft:
        with draft.file("a.bin") as file:
            file.write(b"x")
        raise ZeroDivisionError
    with store.draft() as draft:
        pass
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------- what killed processes left


def leave_unfinished(folder: Path, mark: str, kind: str = ".writing-") -> Path:
    path = folder / f"{kind}{mark}"
    path.mkdir(parents=True)
    (path / "model.pt").write_text("half")
    return path


def test_the_dead_are_swept_and_the_living_are_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    machine = os.uname().nodename
    dead = leave_unfinished(tmp_path, f"4194399-1-ab-{machine}")
    deleted = leave_unfinished(tmp_path, f"4194399-1-cd-{machine}", ".deleting-")
    mine_before = leave_unfinished(tmp_path, f"{os.getpid()}-1-ab-{machine}")  # same number, another process
    far = leave_unfinished(tmp_path, "17-1-ab-other-machine")
    users = leave_unfinished(tmp_path, "notes")
    with caplog.at_level(logging.INFO, "brainlib"):
        checkpointer = Checkpointer(tmp_path, {"model": linear()})
        assert dead.exists(), "not at construction"
        checkpointer.save_checkpoint()
    assert [path.exists() for path in (dead, deleted, mine_before, far, users)] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert (
        f"removed 3 unfinished checkpoints in {tmp_path}, of a process that ended while it wrote: "
        in caplog.text
    )

    long_ago = time.time() - 7200
    for path in (far / "model.pt", far):
        os.utime(path, (long_ago, long_ago))
    Checkpointer(tmp_path, {"model": linear()}).recover_if_possible()
    assert not far.exists(), "another machine's, in which nobody wrote for two hours"


def test_what_this_process_writes_now_is_not_swept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.draft() as draft:
        assert Store(tmp_path).sweep() == []
        assert draft.path.exists()
    with pytest.raises(ZeroDivisionError), store.draft() as draft:
        with pretend_dead(tmp_path):
            assert len(Store(tmp_path).sweep()) == 1
        raise ZeroDivisionError


def test_sweeping_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert Store(tmp_path / "never").sweep() == []
    assert not (tmp_path / "never").exists()


# ---------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a/b", "it holds '/'"),
        ("a\\b", r"it holds '\\\\'"),
        ("..", r"it holds '\.\.'"),
        ("a..b", r"it holds '\.\.'"),
        ("", "it is empty"),
        (".hidden", "it begins with a dot"),
        ("a\nb", "it holds a control character"),
        ("é" * 101, "it is longer than 200 bytes"),
    ],
)
def test_names_that_are_refused(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(CheckpointError, match=why):
        check_name(name, "a recoverable")
    with pytest.raises(CheckpointError, match="cannot be the name of a recoverable"):
        Checkpointer(tmp_path, {name: linear()})
    with pytest.raises(CheckpointError, match="cannot be the name of a checkpoint"):
        Checkpointer(tmp_path, {"model": linear()}).save_checkpoint(name=name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["epoch=3-WER=2.5", "best model", "größe", "a+b", "x" * 200])
def test_names_that_are_fine(tmp_path: Path, name: str) -> None:
    checkpoint = Checkpointer(tmp_path, {name: linear()}).save_checkpoint(name=name)
    assert checkpoint.path == tmp_path / f"CKPT+{name}"
    assert [c.name for c in Checkpointer(tmp_path).list_checkpoints()] == [name]
