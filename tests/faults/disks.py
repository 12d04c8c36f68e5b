"""Disks that tell of every call, and one that fails or kills at a call of choice."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from brainlib.common.files import Disk


class Call(NamedTuple):
    """One call that changes a disk."""

    name: str
    path: Path
    target: Path | None = None  # of a rename
    data: bytes = b""  # of a write; of an fsync of a file that a user's hook wrote, what is in it


class ToldDisk(Disk):
    """Tells of each call before it is made, in a form that a variant can refuse. Syncs nothing: that takes its time,
    and what the system has taken survives a kill.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.bytes_written = 0
        self._open: dict[int, Path] = {}

    @contextmanager
    def around(self, call: Call) -> Iterator[None]:
        self.calls.append(call)
        yield

    def make_folder(self, path: Path) -> None:
        with self.around(Call("make_folder", path)):
            super().make_folder(path)

    def open_new(self, path: Path) -> int:
        with self.around(Call("open_new", path)):
            fd = super().open_new(path)
        self._open[fd] = path
        return fd

    def open_end(self, path: Path) -> int:
        with self.around(Call("open_end", path)):
            fd = super().open_end(path)
        self._open[fd] = path
        return fd

    def write(self, fd: int, data: memoryview) -> int:
        with self.around(Call("write", self._open[fd], data=bytes(data))):
            written = self.write_some(fd, data)
        self.bytes_written += written
        return written

    def write_some(self, fd: int, data: memoryview) -> int:
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:
        path = self._open.get(fd)
        if path is None:  # a file that a user's hook wrote: its bytes are the hook's, the sync is ours
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            call = Call("fsync", path, data=path.read_bytes())
        else:
            call = Call("fsync", path)
        with self.around(call):
            pass

    def close(self, fd: int) -> None:
        path = self._open.pop(fd, Path("of a hook"))
        try:
            with self.around(Call("close", path)):
                pass
        finally:
            super().close(fd)

    def rename(self, source: Path, target: Path) -> None:
        with self.around(Call("rename", source, target)):
            super().rename(source, target)

    def fsync_dir(self, path: Path) -> None:
        with self.around(Call("fsync_dir", path)):
            pass

    def unlink(self, path: Path) -> None:
        with self.around(Call("unlink", path)):
            super().unlink(path)

    def rmdir(self, path: Path) -> None:
        with self.around(Call("rmdir", path)):
            super().rmdir(path)


# What can happen at a call, and at which calls it can. "full": from that call on nothing can be written any more.
EVERYWHERE = (
    "make_folder",
    "open_new",
    "open_end",
    "write",
    "fsync",
    "close",
    "rename",
    "fsync_dir",
    "unlink",
    "rmdir",
)
FAULTS: dict[str, tuple[str, ...]] = {
    "killed before": EVERYWHERE,
    "killed after": EVERYWHERE,
    "killed half-way": ("write",),
    "no space": ("make_folder", "open_new", "open_end", "write", "fsync", "rename", "fsync_dir"),
    "no space half-way": ("write",),
    "full": ("make_folder", "open_new", "open_end", "write"),
    "input/output error": (
        "make_folder",
        "open_new",
        "open_end",
        "write",
        "fsync",
        "rename",
        "fsync_dir",
        "unlink",
        "rmdir",
    ),
    "error for a moment": tuple(name for name in EVERYWHERE if name != "close"),
    "short write": ("write",),
    "one byte written": ("write",),
}


class FaultyDisk(ToldDisk):
    """At call number `at` the fault happens; before, and where it is no kill also after, the disk works."""

    def __init__(self, at: int, fault: str) -> None:
        super().__init__()
        self.at = at
        self.fault = fault
        self._refuse_next_write = False

    @contextmanager
    def around(self, call: Call) -> Iterator[None]:
        now = len(self.calls) == self.at
        full = self.fault == "full" and len(self.calls) >= self.at
        self.calls.append(call)
        if now and self.fault == "killed before":
            os.kill(os.getpid(), signal.SIGKILL)
        if (now and self.fault == "no space") or (full and call.name in FAULTS["full"]):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if now and self.fault in ("input/output error", "error for a moment"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        yield
        if now and self.fault == "killed after":
            os.kill(os.getpid(), signal.SIGKILL)

    def write_some(self, fd: int, data: memoryview) -> int:
        if self._refuse_next_write:
            self._refuse_next_write = False
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if len(self.calls) - 1 == self.at:
            if self.fault == "killed half-way":
                os.write(fd, data[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "no space half-way":  # what a system does: it takes what fits, and then refuses
                self._refuse_next_write = True
                return os.write(fd, data[: max(1, len(data) // 2)])
            if self.fault == "short write":
                return os.write(fd, data[: max(1, len(data) // 2)])
            if self.fault == "one byte written":
                return os.write(fd, data[:1])
        return os.write(fd, data)


class WatchedDisk(ToldDisk):
    """Has somebody look at the folder before and after every call."""

    def __init__(self, look: Callable[[Call], None]) -> None:
        super().__init__()
        self._look = look

    @contextmanager
    def around(self, call: Call) -> Iterator[None]:
        self.calls.append(call)
        self._look(call)
        yield
        self._look(call)
