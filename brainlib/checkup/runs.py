"""Runs: processes that are started, waited for, and gone afterwards with all that they started."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Run", "fork", "wait_for"]

_POLL_SECONDS = 0.01


@dataclass
class Run:
    """One process, the leader of a group of its own."""

    name: str
    process: int
    output: Path
    status: int | None = None  # negative: the signal that ended it
    timed_out: bool = False

    def last_lines(self, number: int = 12) -> str:
        """The end of what it printed."""
        text = self.output.read_text(errors="replace") if self.output.exists() else ""
        return "\n".join(text.rstrip().splitlines()[-number:])


def fork(name: str, start: Callable[[], None], output: Path) -> Run:
    """Start a process that calls `start` and ends when that returns; what it prints goes to the file `output`.

    Args:
        name: for messages.
        start: called in the new process; may replace it by another program.
        output: what it prints.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with warnings.catch_warnings():  # Python 3.12 warns where threads run; loaders fork in just this way
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process:
        return Run(name, process, output)
    status = 1
    try:
        os.setsid()
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, file), (2, file)):
            os.dup2(source, target)
        sys.stdout = open(1, "w", closefd=False, buffering=1)  # in a notebook it was no file
        sys.stderr = open(2, "w", closefd=False, buffering=1)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        start()
        status = 0
    except BaseException:  # noqa: BLE001  # nothing may come back into the code that called fork
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def wait_for(runs: Sequence[Run], timeout: float) -> None:
    """Wait until all have ended. Those that take longer than `timeout` seconds are killed; so are all if this is broken
    off, and whatever they leave behind.
    """
    deadline = time.monotonic() + timeout
    try:
        while sum(_look(run) for run in runs):  # all are looked at
            if time.monotonic() > deadline:
                for run in runs:
                    run.timed_out = run.status is None
                return
            time.sleep(_POLL_SECONDS)
    finally:
        for run in runs:
            _end(run)


def _look(run: Run) -> bool:
    """Whether a process is still there. One that has ended is not reaped yet: its number stays its own."""
    if run.status is None:
        ended = os.waitid(os.P_PID, run.process, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if ended is not None:
            run.status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    return run.status is None


def _end(run: Run) -> None:
    try:
        os.killpg(run.process, signal.SIGKILL)
    except (
        ProcessLookupError,
        PermissionError,
    ):  # it has not become a leader yet, or on a Mac all are zombies
        os.kill(run.process, signal.SIGKILL)
    _, status = os.waitpid(run.process, 0)
    if run.status is None:
        run.status = os.waitstatus_to_exitcode(status)
