"""The other processes of a run: whether they live, and what they said before they ended.

A rank that fails leaves a note with its error. The others, whose next exchange with it fails, find the note, or find
that its process is gone, and end with one line that names it; the traceback of the rank that failed first is then the
last that anybody prints.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from brainlib.common.logs import logger
from brainlib.distributed.world import World

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

__all__ = ["PeerLost", "Peers", "of_rank"]

_OF_RANK = "_brainlib_of_rank"
_SECONDS_FOR_A_NOTE = 1.0  # a rank that fails leaves its note within that, or is gone


class PeerLost(SystemExit):
    """Ends a process that cannot go on because another one is gone. It has a status and one line, and no traceback.

    >>> PeerLost("rank 1 is gone").code, str(PeerLost("rank 1 is gone"))
    (1, 'rank 1 is gone')
    """

    def __init__(self, why: str) -> None:
        super().__init__(1)
        self.why = why

    def __str__(self) -> str:
        return self.why


class Peers:
    """Who takes part, as far as this process can tell.

    Args:
        world: who it is itself.
        store: where notes are left.
    """

    def __init__(self, world: World, store: Store) -> None:
        self._world, self._store = world, store
        self._machine = f"{socket.gethostname()} {_boot()} {_numbering()}"
        self._others: dict[int, tuple[int, str] | None] = {}  # number and beginning of those of this machine
        self._told = False  # whether this process has left a note, or said what it ends of
        self.any_failed = self._left_note = False
        store.set(f"who/{world.rank}", f"{self._machine}\n{os.getpid()}\n{_began(os.getpid())}")

    def fail(self, error: BaseException) -> None:
        """This process ends with `error`: leave a note, unless the error only follows from somebody else's end."""
        if self._told or isinstance(error, PeerLost) or hasattr(error, _OF_RANK):
            return
        self._told = self.any_failed = self._left_note = True
        text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        try:
            self._store.compare_set("failed", "", f"{self._world.rank}\n{text}")
        except RuntimeError:
            logger.debug("there is nobody left to be told")

    def has_something_to_say(self, failed: bool) -> bool:
        """Whether others may want to read what this process has written, when it ends."""
        return self._left_note or not failed

    def learn(self) -> None:
        """Who the others are, as far as they have come; kept, since the store may be gone when somebody asks."""
        missing = {
            rank: f"who/{rank}"
            for rank in range(self._world.size)
            if rank != self._world.rank and rank not in self._others
        }
        if missing and not self._store.check(list(missing.values())):
            missing = {rank: key for rank, key in missing.items() if self._store.check([key])}
        if not missing:
            return
        for rank, told in zip(missing, self._store.multi_get(list(missing.values())), strict=True):
            machine, pid, began = told.decode().split("\n")
            self._others[rank] = (int(pid), began) if machine == self._machine else None

    def lost(self) -> str | None:
        """Which rank has failed or is gone, and how; None: as far as one can see all are well."""
        no_store: RuntimeError | None = None
        try:
            if self._store.check(["failed"]):
                first, _, text = self._store.get("failed").decode(errors="replace").partition("\n")
                return None if int(first) == self._world.rank else f"rank {first} failed: {text}"
            self.learn()
        except RuntimeError as error:  # the process that held it is gone
            no_store = error
        for rank, known in sorted(self._others.items()):
            if known is None or _began(known[0]) == known[1]:
                continue  # elsewhere, or alive
            try:
                if no_store is None and self._store.check([f"end/{rank}"]):
                    continue  # it has come to its end, which is no failure
            except RuntimeError as error:
                no_store = error
            return f"rank {rank} (process {known[0]}) {_end_of(known[0])}"
        if no_store is not None:
            return f"the connection to the other processes is gone ({_first_line(no_store)})"
        return None

    def raise_if_lost(self, cause: BaseException | None) -> None:
        """End this process if another one is gone.

        Raises:
            PeerLost: so it is.
        """
        why = self.lost()
        if why is not None:
            self._end(why, cause)

    def _end(self, why: str, cause: BaseException | None) -> None:
        self.any_failed = True
        self.say(why)
        raise PeerLost(why) from cause

    @contextmanager
    def explained(self) -> Iterator[None]:
        """An exchange with the others happens inside; where it fails because one of them is gone, that is the error.

        Raises:
            PeerLost: as `raise_if_lost`.
        """
        try:
            yield
        except RuntimeError as error:  # what torch raises where a connection breaks or a time is over
            self.explain(error)
            raise

    def explain(self, error: BaseException) -> None:
        """After an error that may come from an exchange: look, for a moment, whether another rank is gone.

        Raises:
            PeerLost: so it is.
        """
        if not is_of_an_exchange(error):
            return
        end = time.monotonic() + _SECONDS_FOR_A_NOTE
        while True:
            self.raise_if_lost(error)
            if time.monotonic() >= end:
                told = f"the exchange with the other ranks has failed: {_first_line(error)}"
                self._end(told + self._why_not(error), error)
            time.sleep(0.05)

    def _why_not(self, error: BaseException) -> str:
        """What else can be said of an exchange that has failed, where nobody has."""
        try:
            done = [
                str(rank)
                for rank in range(self._world.size)
                if rank != self._world.rank and self._store.check([f"end/{rank}"])
            ]
        except RuntimeError:  # of the store: the process that held it is gone
            done = []
        if done:
            return f". Rank {', '.join(done)} came to the end of the script before: all have to make the same calls"
        if "imed out" in str(error):
            return (
                ". As far as one can see all live: one is stuck, or has gone on to something else, as after an "
                "iterable that gave it fewer batches (each rank reads the same one, whole). Where one only needs "
                "longer, raise dist_timeout_seconds"
            )
        return ""

    def explains(self, error: BaseException) -> bool:
        """Leave a note of an error that nobody has caught; or say in one line that another rank's end is the reason.

        Returns:
            Whether that line was all there is to say.
        """
        if (rank := getattr(error, _OF_RANK, None)) is not None:
            self.any_failed = True
            self.say(f"rank {rank} failed: {_first_line(error)}")
            return True
        if isinstance(error, RuntimeError):
            try:
                self.explain(error)
            except PeerLost:
                return True
        self.fail(error)
        return False

    def say(self, why: str) -> None:
        """The one line."""
        if not self._told:
            self._told = True
            logger.error("this process ends because %s", why)


def of_rank(rank: int, error: Exception) -> Exception:
    """The same error as one that another rank has told: it is raised here as well, so that both may catch it, and where
    nobody does, that rank's traceback is enough.

    >>> of_rank(0, OSError("no space")).args
    ('no space',)
    """
    setattr(error, _OF_RANK, rank)
    return error


def is_of_an_exchange(error: BaseException) -> bool:
    """Whether an error is one with which an exchange between processes fails.

    >>> is_of_an_exchange(RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer"))
    True
    >>> is_of_an_exchange(RuntimeError("shape mismatch")), is_of_an_exchange(ValueError("gloo"))
    (False, False)
    """
    if not isinstance(error, RuntimeError):
        return False
    from torch.distributed import DistError

    text = str(error)
    marks = (
        "gloo",
        "NCCL",
        "ProcessGroup",
        "onnection closed by peer",
        "onnection reset by peer",
        "roken pipe",
    )
    return isinstance(error, DistError) or any(mark in text for mark in marks)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _numbering() -> str:
    """What process numbers mean the same in: containers on one machine have their own."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _stat_of(pid: int) -> list[str]:
    """What the system tells of a process, from its state on; nothing where there is no such process."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return told.rpartition(")")[2].split()


def _began(pid: int) -> str:
    """When a process began, which tells it from a later one of the same number; empty for one that is over."""
    fields = _stat_of(pid)
    return "" if not fields or fields[0] in "ZX" else fields[19]


def _end_of(pid: int) -> str:
    """How a process ended. The system knows until its parent, the launcher, has asked for it, a tenth of a second."""
    fields = _stat_of(pid)
    code = int(fields[49]) if len(fields) > 49 and fields[0] == "Z" else 0
    if number := code & 0x7F:
        names = {each.value: each.name for each in signal.Signals}
        return f"was ended by {names.get(number, f'signal {number}')}"
    if status := code >> 8:
        return f"ended with status {status}"
    return "is gone without a word: it was killed, or ended itself"
