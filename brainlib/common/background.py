"""One piece of work beside the thread that asked for it, such as writing a checkpoint while training goes on."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

__all__ = ["Background", "Pace", "hurried"]


class Pace:
    """Leaves the interpreter to the threads that train: what works in the background calls it now and then.

    While one thread runs Python, every other waits for it, up to 5 ms at a time; a step that calls a thousand operators
    would wait seconds. So the background works in short slices and sleeps in between, until somebody waits for it.

    Args:
        hurried: Whether somebody waits: then nothing sleeps any more.

    >>> Pace(lambda: True)()
    """

    SLICE = 0.0002  # seconds of work between two pauses
    PAUSE = 0.0018  # seconds: with the slice, at most a tenth of the interpreter is taken from training

    def __init__(self, hurried: Callable[[], bool] = lambda: False) -> None:
        self._hurried = hurried
        self._since = time.perf_counter()

    def __call__(self) -> None:
        """Pauses where the last pause is long enough ago."""
        if time.perf_counter() - self._since < self.SLICE:
            return
        if (
            not self._hurried() and threading.main_thread().is_alive()
        ):  # else the program has ended, and waits
            time.sleep(self.PAUSE)
        self._since = time.perf_counter()


def hurried() -> None:
    """The pace of work that somebody waits for: no pauses."""


class Background:
    """Runs one piece of work at a time in a thread of its own; its error comes up where it is waited for.

    The thread lives as long as the work, and the interpreter waits for it when it ends. Where no thread can be had, as
    while the interpreter ends, the work is done at once.

    >>> done = []
    >>> background = Background("example")
    >>> background.start(lambda pace: done.append(1))
    >>> background.wait()
    >>> done, background.busy
    ([1], False)

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self.begun = False  # whether there is work that nobody has waited for
        self._name = name
        self._job: _Job | None = None

    @property
    def busy(self) -> bool:
        """Whether the work goes on."""
        job = self._job  # in a process that was forked meanwhile the work is none of its business
        return job is not None and not job.over and job.process == os.getpid()

    @property
    def failed(self) -> bool:
        """Whether an error waits to be raised by `wait`."""
        return self._job is not None and self._job.error is not None

    def start(self, work: Callable[[Callable[[], None]], object]) -> None:
        """Starts a piece of work; the one before has been waited for.

        Args:
            work: Is given a function to call now and then, see `Pace`.

        Raises:
            KeyboardInterrupt: Came in the middle. The work is done, or it never will be: see `busy` and `failed`.
        """
        assert not self.busy and not self.failed, "wait() comes first"
        if sys.is_finalizing():  # a thread that is started now never runs
            work(hurried)
            return
        self.begun = True
        job = self._job = _Job(work, self._name)
        try:
            job.thread.start()
        except BaseException as error:
            begun = not job.give_up()
            if not begun:
                self._job = None
            if not isinstance(error, RuntimeError):
                raise
            if begun:  # what threading makes of an interrupt while it waits for the thread to begin
                raise KeyboardInterrupt from error
            work(hurried)  # no thread can be had

    def wait(self) -> None:
        """Returns when the work is done; at once when there is none, and for the work itself.

        Raises:
            BaseException: What the work ended with, once.
        """
        self.join()
        job = self._job
        if job is None or job.thread is threading.current_thread():
            return
        self._job, self.begun = None, False
        if job.error is not None:
            raise job.error

    def join(self) -> None:
        """As `wait`, for somebody else: the error stays for the one whose work it is."""
        job = self._job
        if job is not None and job.thread is not threading.current_thread():
            job.hurried = True
            # Not by Thread.join: a Ctrl-C in it marks a thread that goes on as ended (seen in CPython 3.11).
            while not job.over and job.process == os.getpid():
                if job.thread.ident is None and job.give_up():  # an interrupt came before it was started
                    break
                time.sleep(0.0005)
            if job.thread.ident is None:
                return
            job.thread.join()


class _Job:
    """A piece of work and its thread, which is either begun or given up, whatever interrupts its start."""

    def __init__(self, work: Callable[[Callable[[], None]], object], name: str) -> None:
        self.hurried = False  # whether somebody waits
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=name)
        self.process = os.getpid()
        self.over = False
        self._work = work
        self._decided = threading.Lock()  # taken for good by whoever is first: the thread, or who gives it up

    def give_up(self) -> bool:
        """Whether the thread has not begun, and will do nothing if it does."""
        given_up = self._decided.acquire(blocking=False)
        if given_up:
            self.over = True
        return given_up

    def _run(self) -> None:
        if not self._decided.acquire(blocking=False):
            return
        try:
            self._work(Pace(lambda: self.hurried))
        except BaseException as error:  # noqa: BLE001  # whatever it is, `wait` raises it
            self.error = error
        finally:
            self.over = True
