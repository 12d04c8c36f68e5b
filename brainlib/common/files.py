"""Bytes that are really on the disk: a new file or folder counts only once it and its folder have been synced.

`Disk` holds the few calls that change a disk, one method each. Everything that must survive a power cut goes through
one, so that a test can hand in a disk that fails, counts or dies at any of them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from brainlib.common.background import hurried

__all__ = [
    "DISK",
    "Disk",
    "SummedFile",
    "fsync_dir",
    "make_folder",
    "remove_tree",
    "sha256_of",
    "write_atomic",
]

CHUNK_BYTES = (
    1 << 20
)  # what is read at once when a file is summed: large enough to be quick, small enough to be nothing
BESIDE_BYTES = 1 << 18  # a piece of this size or more is summed in a thread beside the one that writes it
MAX_WAITING = 16  # pieces that the sum may be behind, where they take memory: CHUNK_BYTES each


class Disk:
    """The calls that change a disk. A variant (a disk that is full, that dies, that counts) overrides one method.

    >>> class Counting(Disk):
    ...     synced = 0
    ...     def fsync(self, fd):
    ...         self.synced += 1
    ...         super().fsync(fd)
    >>> import tempfile
    >>> disk = Counting()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomic(f"{folder}/results.json", "{}", disk)
    >>> disk.synced
    1
    """

    def make_folder(self, path: Path) -> None:
        """Creates one folder; its parent exists, it does not."""
        os.mkdir(path)

    def open_new(self, path: Path) -> int:
        """A descriptor for writing a file that does not exist yet."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)

    def open_end(self, path: Path) -> int:
        """A descriptor for writing behind what is in a file that is there."""
        return os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))

    def write(self, fd: int, data: memoryview) -> int:
        """Writes a part of `data`, at least a byte, and says how many bytes."""
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:
        """Returns when the file's bytes are on the disk."""
        os.fsync(fd)

    def close(self, fd: int) -> None:
        """Gives the descriptor back."""
        os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """One step from the old name to the new one; a *file* under the new name is replaced."""
        os.replace(source, target)

    def fsync_dir(self, path: Path) -> None:
        """Returns when the folder's entries (what was created, renamed and removed in it) are on the disk."""
        if os.name == "nt":  # Windows opens no folders; NTFS journals renames by itself
            return
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno != errno.EINVAL:  # some network and FUSE file systems cannot sync a folder at all
                raise
        finally:
            os.close(fd)

    def unlink(self, path: Path) -> None:
        """Removes a file or a link."""
        os.unlink(path)

    def rmdir(self, path: Path) -> None:
        """Removes an empty folder."""
        os.rmdir(path)


DISK = Disk()


class SummedFile:
    """A new file that is written once from front to back, and knows its size and SHA-256 without reading it again.

    Args:
        path: Where the file is created; nothing may be there.
        disk: What it writes through.
        synced: Whether its bytes have to be on the disk when it is left; not needed for what can be made anew.
        lasting: Says of a large piece whether its memory stays as it is for as long as this function is held, which is
            until `sha256` has been asked. Such a piece is summed beside all that follows, the sync included. The
            memory of any other is the caller's again when `write` returns.
        pace: Is called between small pieces, of which there may be many thousands, see `background.Pace`.

    Large pieces are summed in a thread beside the one that writes.
    It has the `write` and `flush` that ``torch.save`` needs. Leave it as a context manager: the file is then synced.
    The first failure of a write is the one that leaves the block, whatever was made of it on the way: ``torch.save``
    turns a full disk, and a Ctrl-C as well, into a RuntimeError about positions.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with SummedFile(Path(folder, "a.txt")) as file:
    ...         _ = file.write(b"hello")
    >>> file.size, file.sha256[:8]
    (5, '2cf24dba')
    """

    def __init__(
        self,
        path: Path,
        disk: Disk = DISK,
        *,
        synced: bool = True,
        lasting: Callable[[memoryview], bool] | None = None,
        pace: Callable[[], None] = hurried,
    ) -> None:
        self.path = path
        self.synced = synced
        self._lasting = lasting
        self._pace = pace
        self._beside: _Summing | None = None
        self.size = 0  # bytes
        self._disk = disk
        self._sum = hashlib.sha256()
        self._held = bytearray()  # small pieces, of which torch.save writes several for every tensor
        self._failure: BaseException | None = None
        self._fd = disk.open_new(path)

    @property
    def sha256(self) -> str:
        """The sum of what was written, in hexadecimal; of all of it once the block is left."""
        self._end_sum()
        return self._sum.hexdigest()

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Takes all of `data`; small pieces reach the disk together."""
        if self._failure is not None:
            raise self._failure
        try:
            piece = memoryview(data).cast("B")
            if len(self._held) + len(piece) > CHUNK_BYTES:
                self.flush()
            if len(piece) <= CHUNK_BYTES:
                self._held += piece
                self._pace()
            else:
                self._write(piece, lasting=self._lasting is not None and self._lasting(piece))
            self.size += len(piece)
            return len(piece)
        except BaseException as error:
            self._failure = self._failure or error
            raise

    def flush(self) -> None:
        """Hands what is held to the system."""
        held, self._held = self._held, bytearray()
        self._write(memoryview(held), lasting=True)  # nobody else knows it
        if self._beside is not None and self._beside.num_waiting > MAX_WAITING:
            self._beside.wait()

    def _write(self, rest: memoryview, *, lasting: bool) -> None:
        try:
            if self._beside is None and len(rest) < BESIDE_BYTES:
                self._sum.update(rest)
                self._put(rest)
                return
            if self._beside is None:
                self._beside = _Summing(self._sum, self._lasting)
            try:
                self._beside.start(rest)
                self._put(rest)
            finally:
                if not lasting:
                    self._beside.wait()
        except OSError as error:
            self._failure = _with_path(error, self.path)
            raise self._failure from error

    def _put(self, rest: memoryview) -> None:
        while rest:
            written = self._disk.write(self._fd, rest)
            if written <= 0:  # never seen on a regular file; better an error than an endless loop
                raise OSError(errno.EIO, "the system wrote nothing and gave no reason")
            rest = rest[written:]

    def __enter__(self) -> SummedFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        whole = False
        try:
            if self._failure is not None:
                raise self._failure
            if kind is None:
                self.flush()
                try:
                    if self.synced:
                        self._disk.fsync(self._fd)
                except OSError as error:
                    raise _with_path(error, self.path) from error
                whole = True
        finally:
            try:
                if not whole or self._lasting is None:
                    self._end_sum()
            finally:
                self._disk.close(self._fd)

    def _end_sum(self) -> None:
        beside, self._beside = self._beside, None
        if beside is not None:
            beside.close()


class _Summing:
    """Adds pieces to a sum in a thread of its own; at once where no thread can be had, as while the program ends.

    The thread does not know this object and ends with it, also where an interrupt has dropped it half made. It knows
    what holds the memory that lasts, which so outlives it.
    """

    def __init__(self, total: Any, lasting: object) -> None:
        self._total = total
        self._queues = _Queues()
        self._thread: Thread | None = None
        if not sys.is_finalizing():
            given = self._queues.given
            dropped = weakref.ref(self, given.put)  # no Python runs when it is, so no interrupt can come then
            self._thread = Thread(
                target=_sum, args=(total, self._queues, (dropped, lasting)), name="brainlib-sum", daemon=True
            )
            try:
                self._thread.start()
            except BaseException as error:
                given.put(None)  # it ends at once if it has begun all the same
                self._thread = None
                if not isinstance(error, RuntimeError):
                    raise

    def start(self, piece: memoryview) -> None:
        if self._thread is None:
            self._total.update(piece)
            return
        self._queues.given.put(piece)

    @property
    def num_waiting(self) -> int:
        """How many pieces the sum is behind."""
        return self._queues.given.qsize()

    def wait(self) -> None:
        """Returns when all pieces are in the sum; their memory is not looked at any more, also after an interrupt.

        The thread is over before its time where a save that was broken off is found in a ring of objects: Python first
        tells the weak references, which end the thread, and only then leaves the file's block. No sum is wanted then.
        """
        interrupt: BaseException | None = None
        mark = _Mark()
        mark.passed = self._thread is None
        while not mark.passed and not self._queues.over:
            try:
                self._queues.given.put(
                    mark
                )  # again each time: an interrupt may come before it, or take the news
                self._queues.news.get(timeout=0.1)
            except Empty:
                continue
            except BaseException as error:  # noqa: BLE001  # it is raised when the memory may go
                interrupt = error
        if interrupt is not None:
            raise interrupt
        if self._queues.error is not None:
            raise self._queues.error

    def close(self) -> None:
        """Ends the thread, when all is summed."""
        try:
            self.wait()
        finally:
            self._queues.given.put(None)
        if self._thread is not None:
            while not self._queues.over:  # not by Thread.join, see `background.Background.join`
                time.sleep(0.0001)
            self._thread.join()


class _Mark:
    """Stands between the pieces: when the thread is past it, it is past all that was given before."""

    passed = False


class _Queues:
    """What the thread that sums and the one that writes have in common."""

    def __init__(self) -> None:
        self.given: SimpleQueue[object] = SimpleQueue()  # pieces and marks; anything else is the end
        self.news: SimpleQueue[None] = SimpleQueue()  # one for each mark
        self.over = False
        self.error: Exception | None = None  # it was over because of this


def _sum(total: Any, queues: _Queues, _held: object) -> None:
    try:
        while isinstance(piece := queues.given.get(), (memoryview, _Mark)):
            if isinstance(piece, _Mark):
                piece.passed = True
                queues.news.put(None)
            else:
                total.update(piece)
            del piece
    except Exception as error:  # noqa: BLE001  # whatever it is, `wait` raises it
        queues.error = error
    finally:
        queues.over = True


def _with_path(error: OSError, path: Path) -> OSError:
    """The same error, naming the file: a write by descriptor does not know its name."""
    return OSError(error.errno, error.strerror or str(error), str(path))


def write_atomic(path: str | os.PathLike[str], data: bytes | str, disk: Disk = DISK) -> None:
    """Puts `data` under `path` so that a reader, also one after a crash, sees the old content or the new, never a part.

    Args:
        path: The file; its folder exists. What was there is replaced.
        data: The content; text is written as UTF-8.
        disk: What to write through.

    Raises:
        OSError: The disk refused; the old content is still there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomic(f"{folder}/results.json", '{"accuracy": 0.98}')
    ...     Path(folder, "results.json").read_text()
    '{"accuracy": 0.98}'
    """
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        with SummedFile(beside, disk) as file:
            file.write(data.encode() if isinstance(data, str) else data)
        disk.rename(beside, target)
    except BaseException:
        try:
            disk.unlink(beside)
        except OSError:  # the first error is the one to tell
            pass
        raise
    disk.fsync_dir(target.parent)


def fsync_dir(path: str | os.PathLike[str]) -> None:
    """Makes what was created, renamed or removed in a folder survive a power cut.

    >>> import tempfile
    >>> fsync_dir(tempfile.gettempdir())
    """
    DISK.fsync_dir(Path(path))


def make_folder(path: str | os.PathLike[str], disk: Disk = DISK) -> None:
    """Creates a folder and those above it that are missing, each of them synced into its parent.

    Raises:
        FileExistsError: Something that is no folder has the name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     make_folder(f"{folder}/results/run-1/save")
    ...     Path(folder, "results/run-1/save").is_dir()
    True
    """
    folder = Path(path)
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent, disk)
    try:
        disk.make_folder(folder)
    except FileExistsError:
        if not folder.is_dir():
            raise
    disk.fsync_dir(folder.parent)


def remove_tree(path: str | os.PathLike[str], disk: Disk = DISK) -> None:
    """Removes a folder with all that is in it, or a file. Links are removed, not followed; what is gone is no error.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> write_atomic(f"{folder}/a.txt", "a")
    >>> remove_tree(folder)
    >>> Path(folder).exists()
    False
    """
    folder = Path(path)
    if folder.is_symlink() or folder.is_file():
        disk.unlink(folder)
        return
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            remove_tree(entry.path, disk)
            continue
        try:
            disk.unlink(Path(entry.path))
        except FileNotFoundError:
            pass
    try:
        disk.rmdir(folder)
    except FileNotFoundError:
        pass


def sha256_of(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file, in hexadecimal, read in pieces.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomic(f"{folder}/a.txt", "hello")
    ...     sha256_of(f"{folder}/a.txt")[:8]
    '2cf24dba'
    """
    total = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            total.update(chunk)
    return total.hexdigest()
