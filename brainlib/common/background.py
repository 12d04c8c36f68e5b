"""One piece of work beside the thread that asked for it, such as writing a checkpoint while training goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Background", "Pace", "hurried"]


class Pace:
    """Leaves the interpreter to the threads that train: what works in the background calls it now and then.

    While one thread runs Python, every other waits for it, up to 5 ms at a time; a step that calls a thousand operators
    would wait seconds. So the background works in short slices and sleeps in between, until somebody waits for it.

    Args:
        hurry: Set it when somebody waits: from then on nothing sleeps any more.

    >>> hurry = threading.Event()
    >>> hurry.set()
    >>> Pace(hurry)()
    """

    SLICE = 0.0002  # seconds of work between two pauses
    PAUSE = 0.0018  # seconds: with the slice, at most a tenth of the interpreter is taken from training

    def __init__(self, hurry: threading.Event) -> None:
        self._hurry = hurry
        self._since = time.perf_counter()

    def __call__(self) -> None:
        """Pauses where the last pause is long enough ago."""
        if time.perf_counter() - self._since < self.SLICE:
            return
        if threading.main_thread().is_alive():  # else the program has ended, and waits
            self._hurry.wait(self.PAUSE)
        self._since = time.perf_counter()


def hurried() -> None:
    """The pace of work that somebody waits for: no pauses."""


class Background:
    """Runs one piece of work at a time in a thread of its own; its error comes up where it is waited for.

    The thread lives as long as the work, and the interpreter waits for it when it ends.

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
        self._name = name
        self._thread: threading.Thread | None = None
        self._hurry = threading.Event()
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether the work goes on."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def failed(self) -> bool:
        """Whether an error waits to be raised by `wait`."""
        return self._error is not None

    def start(self, work: Callable[[Callable[[], None]], object]) -> None:
        """Starts a piece of work; the one before has been waited for.

        Args:
            work: Is given a function to call now and then, see `Pace`.
        """
        assert not self.busy and not self.failed, "wait() comes first"
        self._hurry.clear()
        pace = Pace(self._hurry)

        def run() -> None:
            try:
                work(pace)
            except BaseException as error:  # noqa: BLE001  # whatever it is, `wait` raises it
                self._error = error

        self._thread = threading.Thread(target=run, name=self._name)
        self._thread.start()

    def wait(self) -> None:
        """Returns when the work is done; at once when there is none, and for the work itself.

        Raises:
            BaseException: What the work ended with, once.
        """
        self.join()
        if self._thread is threading.current_thread():
            return
        error, self._error = self._error, None
        if error is not None:
            raise error

    def join(self) -> None:
        """As `wait`, for somebody else: the error stays for the one whose work it is."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        self._hurry.set()
        thread.join()
