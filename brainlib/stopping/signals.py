"""What signals ask of a run. While a fit or an evaluation runs, they are listened to; before and afterwards, not.

A handler notes that it was called and does nothing else, except where the main thread waits for data: there it breaks
the wait off. The loop looks at what was noted when a batch is over (``if signals.pending``), and ends there.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch.utils.data._utils import signal_handling

from brainlib.common.logs import logger
from brainlib.common.unbroken import unbroken
from brainlib.stopping.endings import Interrupted, Stopped
from brainlib.stopping.grace import Grace

__all__ = ["Signals", "of_this_thread"]

_POSIX = os.name == "posix"  # elsewhere signals do what they do in any Python script
LISTENED_TO = (signal.SIGINT, signal.SIGTERM, *([signal.SIGUSR1] if _POSIX else []))
_NO_BATCH = object()
_SECONDS_FOR_THE_REST = 0.2  # a signal for the whole job comes to all of its processes within that


class Signals:
    """Who is called at which signal, and what was asked for. There is one a process; the loop reads `pending`.

    Attributes:
        pending: whether the loop has something to see to at its next boundary.
        waiting: whether the main thread waits for data, so that a signal may break in.
        broken_off: whether one has broken in. A dataset that passes over every error has passed over that one, too, and
            the batch that it then gives is none of the run's.

    >>> signals = Signals(deaf=True)
    >>> with signals.heard(grace=10.0):
    ...     signals.pending
    False
    """

    __slots__ = (
        "_asked", "_at_point", "_deaf", "_earlier", "_grace", "_raised", "_worker_died",
        "broken_off", "pending", "waiting",
    )  # fmt: skip

    def __init__(self, deaf: bool = False) -> None:
        self.pending = self.waiting = self.broken_off = False
        self._deaf = deaf
        self._asked: int | None = None
        self._raised: BaseException | None = (
            None  # by an earlier handler: it wants to end the process its own way
        )
        self._worker_died = False
        self._earlier: dict[int, Any] = {}
        self._at_point: list[Callable[[], bool]] = []  # of each open fit or evaluation, the outermost first
        self._grace = Grace()

    @contextmanager
    def heard(self, grace: float, at_point: Callable[[], bool] = lambda: True) -> Iterator[bool]:
        """Inside, signals are listened to; what was set up before is put back afterwards, also after an error.

        Args:
            grace: seconds that are left after SIGTERM; 0: no limit.
            at_point: whether the run can be stopped where it is.

        Yields:
            Whether this is the outermost one: a hook may call `fit` or `evaluate`.

        Raises:
            KeyboardInterrupt: after Ctrl-C.
            Stopped: after SIGTERM or SIGUSR1.
        """
        outermost = not self._at_point
        self._at_point.append(at_point)
        try:
            if outermost and not self._deaf:
                self._begin(grace)
            yield outermost
        except Interrupted:
            if not outermost or self._asked is None:
                raise
        finally:
            del self._at_point[-1:]  # empty in a forked process that comes out of here
            if outermost:
                self._end()
        if outermost and self._asked is not None:  # also one that came after the last boundary: none is lost
            raise self.ending() from None

    # ---- what the loop does at a boundary

    def see_to(self) -> None:
        """What is pending, at a boundary: end here, if the run can be stopped where it is."""
        if self._asked is not None:
            if self._may_end():
                self._break_off()
            return
        self.pending = False
        if self._worker_died:
            self._worker_died = False
            self._tell_of_worker(None)

    def between(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches; before each one what is pending is seen to, and the wait for it may be broken off.

        >>> list(Signals(deaf=True).between(iter("ab")))
        ['a', 'b']
        """
        try:
            while True:
                self.waiting = True
                if self.pending:
                    self.see_to()
                batch = next(batches, _NO_BATCH)
                self.waiting = False
                if self.broken_off:
                    raise Interrupted
                if batch is _NO_BATCH:
                    return
                yield batch
        finally:
            self.waiting = False

    def is_over(self) -> None:
        """There is no further batch: what is left is to wait until the run is saved, which may take longer than one."""
        self._grace.reached()

    def ending(self) -> BaseException:
        """What ends the fit towards whoever called it, and with it usually the process."""
        assert self._asked is not None
        if self._raised is not None:
            return self._raised
        return KeyboardInterrupt() if self._asked == signal.SIGINT else Stopped(self._asked)

    @property
    def asked(self) -> str | None:
        """The name of the signal that was heard; None when there was none."""
        return None if self._asked is None else signal.Signals(self._asked).name

    @property
    def number(self) -> int:
        """The number of the signal that was heard; 0 when there was none."""
        return self._asked or 0

    def ask(self, signum: int) -> None:
        """Another rank of the run has heard this signal: as if it had come here."""
        if self._asked is None:
            self._asked = signum
        self.pending = True

    def shield_update(self) -> None:
        """Keep torch from raising in the middle of an update when a worker of a loader dies, while signals are heard.

        torch looks after its workers in a handler of SIGCHLD, which raises wherever the main thread is. In the middle
        of an update that leaves a model that is half updated. A scheduler's SIGTERM goes to the workers, too, so this
        is the ordinary case, and the run has to come to the end of its batch. What torch says is said there.
        """
        if not self._earlier:
            return
        set_up = getattr(signal_handling, "_set_SIGCHLD_handler", None)
        if set_up is not None:
            set_up()  # torch does so itself with the first worker of a process; later than here is too late
        handler = signal.getsignal(signal.SIGCHLD)
        if getattr(handler, "__module__", "") == signal_handling.__name__:
            self._earlier[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, self._on_worker)

    # ---- handlers

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if self._asked is not None and signum == signal.SIGINT:
            raise KeyboardInterrupt  # the second time at once
        self._grace.pass_on(signum)
        if self._asked is None or signum == signal.SIGTERM:
            self._asked = signum
        self.pending = True
        earlier = self._earlier[signum]
        if callable(earlier) and earlier is not signal.default_int_handler:
            try:
                earlier(signum, frame)
            except BaseException as error:  # noqa: BLE001 - `ending` raises it: sys.exit() here would cut a batch in two
                self._raised = error
        self._break_wait()

    def _break_wait(self) -> None:
        """Break off the wait for data, if that is what the main thread does, and the run can be stopped where it is."""
        if self.waiting and not unbroken.postpone(self._break_wait) and self._may_end():
            self._break_off()

    def _on_worker(self, signum: int, frame: FrameType | None) -> None:
        if self.waiting:
            if not unbroken.postpone(lambda: self._tell_of_worker(None)):
                self._tell_of_worker(frame)
        else:
            self._worker_died = self.pending = True

    def _tell_of_worker(self, frame: FrameType | None) -> None:
        """Torch raises here if a worker has failed, unless the signal that ended it is about to end this process."""
        try:
            self._earlier[signal.SIGCHLD](signal.SIGCHLD, frame)
        except RuntimeError:
            deadline = time.monotonic() + _SECONDS_FOR_THE_REST
            while self._asked is None and time.monotonic() < deadline:
                time.sleep(0.01)  # our own handler may run in here, and break the wait off
            if self._asked is None:
                raise

    def _may_end(self) -> bool:
        return all(at_point() for at_point in self._at_point)

    def _break_off(self) -> None:
        self.waiting, self.broken_off = False, True
        self._grace.reached()
        raise Interrupted

    # ---- set up and put back

    def _begin(self, grace: float) -> None:
        self._asked, self._raised, self._worker_died = None, None, False
        self.pending = self.waiting = self.broken_off = unbroken.inside = False
        caught = _caught_in_c()
        for signum in LISTENED_TO:
            earlier = signal.getsignal(signum)
            # Handled in C (faulthandler.register), which we could not put back; or ignored on purpose (nohup).
            in_c = earlier is None or (earlier == signal.SIG_DFL and signum in caught)
            if in_c or earlier == signal.SIG_IGN:
                logger.debug("not listening to %s: somebody else does", signal.Signals(signum).name)
                continue
            self._earlier[signum] = earlier
            signal.signal(signum, self._on_signal)
        if signal.SIGTERM in self._earlier:
            self._grace.begin(grace)

    def _end(self) -> None:
        self._grace.end()
        for signum, handler in self._earlier.items():
            # Where it is not ours any more, the user's code has put one there.
            if getattr(signal.getsignal(signum), "__self__", None) is self:
                signal.signal(signum, handler)
        self._earlier.clear()  # only now: until then ours may be called
        self.pending = self.waiting = False

    # ---- a process is forked: nothing of this is its business, and it gets the handlers that were there before

    def _before_fork(self) -> None:
        """A signal that the new process got before it has them would be told to the watcher as one of this process."""
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, LISTENED_TO if self._earlier else ())

    def _after_fork_here(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)

    def _after_fork_there(self) -> None:
        self._grace.forget()
        self._end()
        self._at_point.clear()
        self._asked = self._raised = None
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)

    def look_after_forks(self) -> None:
        """From now on, for the life of this process."""
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork_here,
            after_in_child=self._after_fork_there,
        )


_OF_MAIN_THREAD = Signals()
_forking = threading.local()
_forks_are_looked_after = False


def of_this_thread() -> Signals:
    """What signals ask of a run in this thread: Python gives them to the main thread, so in another one nothing.

    >>> of_this_thread().pending
    False
    """
    global _forks_are_looked_after
    if not _POSIX or threading.current_thread() is not threading.main_thread():
        return Signals(deaf=True)
    if not _forks_are_looked_after:
        _OF_MAIN_THREAD.look_after_forks()
        _forks_are_looked_after = True
    return _OF_MAIN_THREAD


def _caught_in_c() -> frozenset[int]:
    """The signals that have a handler, whoever set it; Python tells only of its own. Empty where there is no /proc."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            caught = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt"))
    except (OSError, StopIteration):
        return frozenset()
    return frozenset(number + 1 for number in range(64) if caught >> number & 1)
