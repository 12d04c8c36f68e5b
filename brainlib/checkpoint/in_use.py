"""One run at a time trains in a folder; a second one is told who is there.

Whoever trains holds a lock of the system on a small file in the folder. The lock goes with its process, however that
ends, so nothing is left locked by a kill or a power cut. Where a file system has no locks, nobody is refused.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from brainlib.checkpoint.errors import CheckpointError
from brainlib.common.files import make_folder

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["in_use"]

NAME = ".in-use"
PATIENCE = 5.0  # seconds: a run that has been told to end may still be writing

# How many fits, by process and folder: one process is never in its own way.
_held: dict[tuple[int, str], int] = {}


@contextmanager
def in_use(folder: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Inside, the folder is this process's.

    Args:
        folder: Of checkpoints. It is made where it is not there, and goes again if it stays empty.
        patience: Seconds to wait for another process to end.

    Raises:
        CheckpointError: Another process trains there; the message names it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name, in_use(Path(name)):
    ...     os.listdir(name)
    ['.in-use']
    """
    key = os.getpid(), os.path.realpath(folder)
    _held[key] = _held.get(key, 0) + 1
    note, is_new = None, not os.path.lexists(folder)
    try:
        if _held[key] == 1:
            note = _locked(folder, time.monotonic() + patience)
        yield
    finally:
        _held[key] -= 1
        if not _held[key]:
            del _held[key]
        if note is not None:
            with suppress(OSError):  # a note that is left there is in nobody's way
                (folder / NAME).unlink()
                if is_new:
                    folder.rmdir()
            os.close(note)


def _locked(folder: Path, deadline: float) -> int | None:
    """The open file of the note, locked; None where there can be none."""
    if fcntl is None:
        return None
    path = folder / NAME
    while True:
        try:
            make_folder(folder)  # for good, like the checkpoints in it
            note = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:  # a save says it better
            return None
        try:
            fcntl.lockf(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(note, path):
                who = {
                    "process": os.getpid(),
                    "host": socket.gethostname(),
                    "since": datetime.now().isoformat(),
                }
                os.truncate(note, 0)
                os.pwrite(note, json.dumps(who).encode(), 0)
                return note
            os.close(note)  # whoever held it has removed it meanwhile
        except OSError as error:
            told = os.pread(note, 1000, 0)
            os.close(note)
            if error.errno not in (errno.EACCES, errno.EAGAIN):  # such as no locks on this file system
                return None
            if time.monotonic() > deadline:
                raise CheckpointError(_refusal(folder, told)) from None
            time.sleep(0.05)


def _is_at(note: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(note), os.stat(path))
    except FileNotFoundError:
        return False


def _refusal(folder: Path, told: bytes) -> str:
    try:
        who = json.loads(told)
        name = f"process {who['process']} on {who['host']} has trained there since {who['since'][:19]}"
    except (ValueError, TypeError, KeyError, RecursionError):
        name = "another process trains there"
    return (
        f"{folder} is in use: {name}. Two runs in one folder would mix their checkpoints and logs. Wait until it ends, "
        "stop it, or give this run a folder of its own"
    )
