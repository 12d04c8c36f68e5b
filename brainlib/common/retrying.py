"""Trying again what may only have failed for a moment: a busy network drive, a disk that somebody else is clearing."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from brainlib.common.logs import logger

__all__ = ["TRANSIENT", "Retry"]

T = TypeVar("T")

# What may be over in a moment. Not among them: a read-only or forbidden place, a name that is too long, a file that may
# not grow further: waiting does not change these.
TRANSIENT = frozenset(
    getattr(errno, name)
    for name in (
        "EAGAIN",
        "EBUSY",
        "ECONNABORTED",
        "ECONNRESET",
        "EDQUOT",
        "EHOSTDOWN",
        "EHOSTUNREACH",
        "EINTR",
        "EIO",
        "ENETDOWN",
        "ENETRESET",
        "ENETUNREACH",
        "ENOLCK",
        "ENOSPC",
        "ENOTCONN",
        "EREMOTEIO",
        "ESTALE",
        "ETIMEDOUT",
    )
    if hasattr(errno, name)
)


class Retry:
    """Tries again after an error of the system that may be over in a moment, each time after a longer pause.

    Args:
        waits: The pauses in seconds; one more than there are pauses is the number of tries. Empty: never again.
        sleep: Waits so many seconds; a test hands in one that only notes them.

    >>> paused = []
    >>> answers = iter([OSError(errno.EIO, "Input/output error"), OSError(errno.EIO, "Input/output error"), "done"])
    >>> def attempt():
    ...     answer = next(answers)
    ...     if isinstance(answer, OSError):
    ...         raise answer
    ...     return answer
    >>> Retry((0.5, 2.0), sleep=paused.append).run(attempt, "saving")
    'done'
    >>> paused
    [0.5, 2.0]
    """

    def __init__(
        self, waits: Sequence[float] = (0.5, 2.0, 8.0), sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self.waits = tuple(waits)
        self._sleep = sleep

    def run(self, attempt: Callable[[], T], what: str) -> T:
        """What `attempt` returns, the first time that it does.

        Args:
            attempt: Starts from the beginning each time; what a failed one has written counts for nothing.
            what: What is being done, for the warnings.

        Raises:
            OSError: That of the last try, or the first one that waiting does not change.
        """
        for number, seconds in enumerate(self.waits, 1):
            try:
                return attempt()
            except OSError as error:
                if error.errno not in TRANSIENT:
                    raise
                logger.warning(
                    "%s failed (%s); this was try %d of %d, the next one is in %g s",
                    what,
                    error,
                    number,
                    len(self.waits) + 1,
                    seconds,
                )
            self._sleep(seconds)
        return attempt()
