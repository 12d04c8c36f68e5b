"""What the tests of checkpoints share: a tiny set of objects, and disks that count, fail or die."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from brainlib.checkpoint import Checkpointer
from brainlib.common.files import Disk
from brainlib.common.retrying import Retry


def linear(value: float = 0.0) -> torch.nn.Linear:
    """One weight and one bias, both `value`."""
    model = torch.nn.Linear(1, 1)
    return fill(model, value)


def fill(model: Any, value: float) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def value_of(model: torch.nn.Module) -> float:
    """The one value that all parameters have; more than one is a checkpoint that was put together from two."""
    (value,) = {x for parameter in model.parameters() for x in parameter.detach().flatten().tolist()}
    return value


class Counter:
    """An object with a state of its own."""

    def __init__(self, n: int = 0) -> None:
        self.n = n

    def state_dict(self) -> dict[str, Any]:
        return {"n": self.n}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.n = state["n"]


class Trainer:
    """The smallest owner."""

    def __init__(self, **found: object) -> None:
        self.found = found
        self.step = 0
        self.closed = True

    def found_recoverables(self) -> dict[str, object]:
        return self.found

    def counters(self) -> dict[str, int]:
        return {"fit": 0, "epoch": 1, "step": 3, "optimizer_step": self.step}

    def closes_epoch(self) -> bool:
        return self.closed


class Crash(BaseException):
    """The machine is off. No `except Exception` may catch it."""


class RecordingDisk(Disk):
    """Notes every call, as (its name, the file's). Syncs nothing: a kill keeps what the system has taken."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.bytes_written = 0
        self.open: dict[int, str] = {}

    def call(self, name: str, path: str) -> None:
        self.calls.append((name, path))

    def make_folder(self, path: Path) -> None:
        self.call("make_folder", path.name)
        super().make_folder(path)

    def open_new(self, path: Path) -> int:
        self.call("open_new", path.name)
        fd = super().open_new(path)
        self.open[fd] = path.name
        return fd

    def open_end(self, path: Path) -> int:
        self.call("open_end", path.name)
        fd = super().open_end(path)
        self.open[fd] = path.name
        return fd

    def write(self, fd: int, data: memoryview) -> int:
        self.call("write", self.open[fd])
        written = super().write(fd, data)
        self.bytes_written += written
        return written

    def fsync(self, fd: int) -> None:
        self.call("fsync", self.open.get(fd, "?"))

    def close(self, fd: int) -> None:
        self.open.pop(fd, None)
        super().close(fd)

    def rename(self, source: Path, target: Path) -> None:
        self.call("rename", target.name)
        super().rename(source, target)

    def fsync_dir(self, path: Path) -> None:
        self.call("fsync_dir", path.name)

    def unlink(self, path: Path) -> None:
        self.call("unlink", path.name)
        super().unlink(path)

    def rmdir(self, path: Path) -> None:
        self.call("rmdir", path.name)
        super().rmdir(path)


class FailingDisk(RecordingDisk):
    """Fails at call number `at` with an error of the system; works before and after."""

    def __init__(self, at: int, code: int = errno.ENOSPC) -> None:
        super().__init__()
        self.at = at
        self.code = code

    def call(self, name: str, path: str) -> None:
        super().call(name, path)
        if len(self.calls) - 1 == self.at:
            raise OSError(self.code, os.strerror(self.code))


class DyingDisk(RecordingDisk):
    """From call number `at` on nothing happens any more; at a write, half of it still does."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def call(self, name: str, path: str) -> None:
        super().call(name, path)
        if len(self.calls) - 1 >= self.at and name != "write":
            raise Crash

    def write(self, fd: int, data: memoryview) -> int:
        self.call("write", self.open[fd])
        if len(self.calls) - 1 >= self.at:
            if len(self.calls) - 1 == self.at:
                os.write(fd, data[: len(data) // 2])
            raise Crash
        return os.write(fd, data)


ONCE = Retry(())  # no second try


class Foreground(Checkpointer):
    """Writes here and now: for tests that look into the folder themselves."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"background": False, **kwargs})


def checkpointer_on(
    disk: Disk, folder: Path, recoverables: dict[str, Any], retry: Retry = ONCE, **kwargs: Any
) -> Checkpointer:
    """A checkpointer all of whose writes go to `disk`, here and now; it gives up at once unless told otherwise."""

    class OnDisk(Foreground):
        pass

    OnDisk.disk = disk
    OnDisk.retry = retry
    return OnDisk(folder, recoverables, **kwargs)


@contextmanager
def pretend_dead(folder: Path) -> Iterator[None]:
    """What this process left unfinished in `folder` gets the name that a dead process's would have."""
    for path in folder.glob(".*"):
        mark = path.name.split("-")
        mark[1] = "4194399"  # above the largest process number of a 64-bit Linux
        path.rename(path.with_name("-".join(mark)))
    yield
