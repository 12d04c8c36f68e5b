"""Bytes that are on the disk: whole, or not at all."""

from __future__ import annotations

import errno
import gc
import hashlib
import os
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from brainlib.common.files import (
    CHUNK_BYTES,
    Disk,
    SummedFile,
    fsync_dir,
    make_folder,
    remove_tree,
    sha256_of,
    write_atomic,
)


class FullDisk(Disk):
    """Takes some bytes, then says that it is full."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, fd: int, data: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = super().write(fd, data[: self.room])
        self.room -= written
        return written


class ShortDisk(Disk):
    """Takes at most seven bytes at a time, which the system is allowed to do."""

    def write(self, fd: int, data: memoryview) -> int:
        return super().write(fd, data[:7])


def test_write_atomic_replaces_the_content(tmp_path: Path) -> None:
    for content in ("one", "", "three\n"):
        write_atomic(tmp_path / "a.txt", content)
        assert (tmp_path / "a.txt").read_text() == content
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_write_atomic_takes_text_and_bytes(tmp_path: Path) -> None:
    write_atomic(str(tmp_path / "a"), "größer")
    write_atomic(tmp_path / "b", "größer".encode())
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_full_disk_leaves_the_old_content_and_nothing_beside_it(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a.txt", "old")
    with pytest.raises(OSError, match=r"No space left on device: .*a\.txt") as caught:
        write_atomic(tmp_path / "a.txt", "new and longer", FullDisk(4))
    assert caught.value.errno == errno.ENOSPC
    assert (tmp_path / "a.txt").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_write_atomic_syncs_the_file_before_the_rename_and_the_folder_after(tmp_path: Path) -> None:
    calls: list[str] = []

    class Noting(Disk):
        def fsync(self, fd: int) -> None:
            calls.append("fsync")
            super().fsync(fd)

        def rename(self, source: Path, target: Path) -> None:
            calls.append("rename")
            super().rename(source, target)

        def fsync_dir(self, path: Path) -> None:
            calls.append(f"fsync {path.name}")
            super().fsync_dir(path)

    write_atomic(tmp_path / "a.txt", "x", Noting())
    assert calls == ["fsync", "rename", f"fsync {tmp_path.name}"]


@pytest.mark.parametrize("disk", [Disk(), ShortDisk()])
def test_a_summed_file_knows_what_it_wrote(tmp_path: Path, disk: Disk) -> None:
    pieces = [b"a" * 5, b"", b"b" * 1000, memoryview(b"c" * 30), bytearray(b"d")]
    with SummedFile(tmp_path / "a", disk) as file:
        for piece in pieces:
            assert file.write(piece) == len(piece)
    whole = b"".join(bytes(piece) for piece in pieces)
    assert (tmp_path / "a").read_bytes() == whole
    assert (file.size, file.sha256) == (len(whole), hashlib.sha256(whole).hexdigest())
    assert sha256_of(tmp_path / "a") == file.sha256


def test_large_and_small_pieces_keep_their_order(tmp_path: Path) -> None:
    large = os.urandom(CHUNK_BYTES + 17)
    with SummedFile(tmp_path / "a") as file:
        for piece in (b"x", large, b"y", large, b"z"):
            file.write(piece)
    assert (tmp_path / "a").read_bytes() == b"x" + large + b"y" + large + b"z"
    assert sha256_of(tmp_path / "a") == file.sha256


@pytest.mark.parametrize("room", [0, 1, 500, 5000, 1_100_000])
def test_a_full_disk_under_torch_save_is_told_as_such(tmp_path: Path, room: int) -> None:
    """torch.save itself would say "unexpected pos 30 vs 0"."""
    with (
        pytest.raises(OSError, match="No space left on device") as caught,
        SummedFile(tmp_path / "a", FullDisk(room)) as file,
    ):
        torch.save({"weight": torch.ones(600_000)}, file)  # type: ignore[arg-type]
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(tmp_path / "a")


def test_an_interrupt_under_torch_save_stays_one(tmp_path: Path) -> None:
    class Interrupted(Disk):
        def write(self, fd: int, data: memoryview) -> int:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), SummedFile(tmp_path / "a", Interrupted()) as file:
        torch.save({"weight": torch.ones(600_000)}, file)  # type: ignore[arg-type]


def test_a_summed_file_never_writes_over_one_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(FileExistsError):
        SummedFile(tmp_path / "a")
    assert (tmp_path / "a").read_text() == "old"


def test_make_folder_makes_and_syncs_those_above(tmp_path: Path) -> None:
    synced: list[str] = []

    class Noting(Disk):
        def fsync_dir(self, path: Path) -> None:
            synced.append(path.name)

    make_folder(tmp_path / "a" / "b", Noting())
    make_folder(tmp_path / "a" / "b", Noting())
    assert (tmp_path / "a" / "b").is_dir()
    assert synced == [tmp_path.name, "a"]


def test_make_folder_over_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "a")


def test_remove_tree_removes_links_and_not_what_they_lead_to(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x")
    (tmp_path / "gone" / "inner").mkdir(parents=True)
    (tmp_path / "gone" / "inner" / "file").write_text("x")
    (tmp_path / "gone" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "alias").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "gone")
    remove_tree(tmp_path / "alias")
    remove_tree(tmp_path / "never-there")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "kept"]


def test_a_file_system_that_cannot_sync_folders_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync_dir(tmp_path)

    def refuse(fd: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    fsync_dir(tmp_path)
    with pytest.raises(FileNotFoundError):
        fsync_dir(tmp_path / "never-there")


def test_a_large_piece_may_be_reused_when_it_is_written(tmp_path: Path) -> None:
    piece = bytearray(os.urandom(3 * CHUNK_BYTES + 17))
    expected = hashlib.sha256()
    with SummedFile(tmp_path / "a") as file:
        for _ in range(3):
            expected.update(piece)
            file.write(piece)
            piece[:] = bytes(len(piece))  # as a caller does who fills the same buffer again
            piece[7] = 1
    assert file.sha256 == expected.hexdigest() == sha256_of(tmp_path / "a")


def lasting(*pieces: bytes) -> Callable[[memoryview], bool]:
    return lambda piece: any(piece.obj is known for known in pieces)


def test_memory_that_lasts_is_summed_beside_what_follows(tmp_path: Path) -> None:
    """All that is written after a large piece, the sync and the end of the file."""
    pieces = [os.urandom(3 * CHUNK_BYTES + 17), b"small", os.urandom(CHUNK_BYTES)]
    with SummedFile(tmp_path / "a", lasting=lasting(*pieces)) as file:
        for piece in pieces:
            file.write(piece)
    whole = b"".join(pieces)
    assert (tmp_path / "a").read_bytes() == whole
    assert (file.size, file.sha256) == (len(whole), hashlib.sha256(whole).hexdigest())
    assert not [thread for thread in threading.enumerate() if thread.name == "brainlib-sum"]


@pytest.mark.parametrize("size", [30, 70_000, CHUNK_BYTES, 3 * CHUNK_BYTES])
def test_memory_that_does_not_last_may_be_reused_at_once(tmp_path: Path, size: int) -> None:
    """As torch.save does with the heads of its records and its table of contents, beside tensors that last."""
    large = os.urandom(24 * CHUNK_BYTES)  # the sum is busy with it for a while
    fill = os.urandom(CHUNK_BYTES - 5)
    piece = bytearray(os.urandom(size))
    expected = hashlib.sha256()
    with SummedFile(tmp_path / "a", lasting=lasting(large)) as file:
        for part in (large, fill, piece, fill, piece, large, piece):
            expected.update(part)
            file.write(part)
            if part is piece:
                piece[:] = os.urandom(size)
    assert file.sha256 == expected.hexdigest() == sha256_of(tmp_path / "a")


def test_what_waits_to_be_summed_does_not_pile_up(tmp_path: Path) -> None:
    piece = os.urandom(CHUNK_BYTES - 1)
    tracemalloc.start()
    try:
        with SummedFile(tmp_path / "a", synced=False, lasting=lasting(piece)) as file:
            for _ in range(64):
                file.write(piece)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 * CHUNK_BYTES
    assert file.sha256 == hashlib.sha256(64 * piece).hexdigest()


@pytest.mark.parametrize("lasts", [False, True])
def test_the_thread_that_sums_ends_with_the_file(tmp_path: Path, lasts: bool) -> None:
    """Also where the block is left by an error, and where the file is dropped before it is left."""

    def summing() -> bool:
        return any(thread.name == "brainlib-sum" for thread in threading.enumerate())

    piece = os.urandom(3 * CHUNK_BYTES)
    known = lasting(piece) if lasts else None
    with pytest.raises(KeyError), SummedFile(tmp_path / "a", lasting=known) as file:
        file.write(piece)
        raise KeyError
    assert not summing()
    dropped = SummedFile(tmp_path / "b", lasting=known)
    dropped.write(piece)
    assert summing()
    del dropped
    deadline = time.monotonic() + 5
    while summing() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not summing()


def test_a_block_that_is_found_in_a_ring_of_objects_is_left(tmp_path: Path) -> None:
    """As after a Ctrl-C in a save, in its traceback: the search ends the thread before it leaves the block."""

    def save() -> Iterator[None]:
        with SummedFile(tmp_path / "a") as file:
            file.write(os.urandom(3 * CHUNK_BYTES))
            yield

    ring: list[object] = [save()]
    next(ring[0])  # type: ignore[call-overload]
    ring.append(ring)
    del ring
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name == "brainlib-sum"]


def test_what_fails_beside_is_raised_where_it_is_waited_for(tmp_path: Path) -> None:
    class Full:
        def update(self, piece: memoryview) -> None:
            raise MemoryError("no room for a sum")

    with pytest.raises(MemoryError, match="no room"), SummedFile(tmp_path / "a") as file:
        file._sum = Full()
        file.write(os.urandom(3 * CHUNK_BYTES))


def test_what_can_be_made_anew_is_not_synced(tmp_path: Path) -> None:
    class NoSync(Disk):
        def fsync(self, fd: int) -> None:
            raise AssertionError("synced")

    with SummedFile(tmp_path / "a", NoSync(), synced=False) as file:
        file.write(b"x")
    assert (tmp_path / "a").read_bytes() == b"x"


def test_a_file_is_removed_as_a_folder_is(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    remove_tree(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
