"""The time that a process has after SIGTERM, kept by somebody who needs neither its interpreter lock nor its goodwill.

Python's own handler runs only when the main thread comes back to the interpreter; a collective that hangs or code that
holds the lock never does. What runs in any case is the part of the handler that is C: it writes the number of the
signal into a pipe (``signal.set_wakeup_fd``). At the other end of the pipe is a small process, `watcher.py`, that
counts the seconds. It is started with the first fit of a process (a millisecond) and ends with the process.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from pathlib import Path

from brainlib.common.logs import logger
from brainlib.stopping import watcher

__all__ = ["Grace"]

SAVING = 10  # times the grace: what is left for the save, once the batch in hand is over
PRINT_STACKS = (
    int(getattr(signal, "SIGRTMAX", signal.SIGABRT)) - 1
)  # one that nobody uses; macOS has only the classic ones


class Grace:
    """The watcher of this process, and what it is told.

    >>> grace = Grace()  # one a process: each has a watcher, which lives as long as the process
    >>> grace.begin(0.0); grace.reached(); grace.end()  # no limit, so none is started
    """

    def __init__(self) -> None:
        self._watcher = 0  # its process id
        self._pipe = -1
        self._earlier_pipe = -1  # where somebody else wants to read of signals
        self._seconds = 0.0

    def begin(self, seconds: float) -> None:
        """Signals are listened to: from now on SIGTERM leaves `seconds`; 0: all the time there is. Main thread only."""
        self._seconds = seconds
        if not seconds or not self._start():
            self._seconds = 0.0
            return
        faulthandler.register(
            PRINT_STACKS, file=2, all_threads=True
        )  # 2: what sys.stderr is, is no file in a notebook
        self._tell(watcher.order(watcher.LISTEN, seconds))
        self._earlier_pipe = signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)

    def reached(self) -> None:
        """The batch in hand is over; what is left to do is to save the run."""
        if self._seconds:
            self._tell(watcher.order(watcher.REACHED, SAVING * self._seconds))

    def end(self) -> None:
        """Nobody listens any more."""
        if self._seconds:
            signal.set_wakeup_fd(self._earlier_pipe)
            self._tell(watcher.order(watcher.ENDED))
            faulthandler.unregister(PRINT_STACKS)
            self._seconds = 0.0

    def pass_on(self, signum: int) -> None:
        """Tell whoever had asked before us to hear of signals (an event loop) of one that came while we listened."""
        if self._earlier_pipe != -1:
            try:
                os.write(self._earlier_pipe, bytes([signum]))
            except OSError as error:
                logger.debug("the signal %d could not be passed on: %s", signum, error)

    def forget(self) -> None:
        """In a forked process: the watcher is the parent's, and must not hear of signals that come here."""
        if self._pipe != -1:
            signal.set_wakeup_fd(-1)
            os.close(self._pipe)
        self.__init__()  # type: ignore[misc]

    def _tell(self, words: bytes) -> None:
        try:
            os.write(self._pipe, words)
        except OSError as error:  # somebody has killed it: the next fit starts another
            logger.debug("the watcher is gone: %s", error)

    def _start(self) -> bool:
        try:
            if self._watcher and os.waitpid(self._watcher, os.WNOHANG)[0] == 0:
                return True
        except ChildProcessError:  # somebody else has waited for it
            logger.debug("the watcher is gone")
        if self._pipe != -1:
            os.close(self._pipe)
        ours, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        script = str(Path(watcher.__file__))
        try:
            self._watcher = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", script, str(os.getpid()), str(PRINT_STACKS)],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, ours, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                ],
                setsid=True,
                setsigmask=signal.valid_signals(),  # a signal for the whole job is not for it
            )
        except (OSError, NotImplementedError) as error:
            logger.warning(
                "a process that hangs when SIGTERM comes will not end itself, because no process could be "
                "started that watches over it: %s",
                error,
            )
            self._watcher = 0
            os.close(self._pipe)
            self._pipe = -1
            return False
        finally:
            os.close(ours)
        return True
