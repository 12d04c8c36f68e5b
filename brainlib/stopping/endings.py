"""How a fit that is asked to stop says so: to itself on the way out, and to whoever called it."""

from __future__ import annotations

import signal

__all__ = ["Enough", "Interrupted", "Stopped", "TimeIsUp"]


class Interrupted(BaseException):
    """Carries control from the place where a request to stop was seen to where fit ends. Users never see it."""


class Enough(Interrupted):
    """The run has done what it was started for: it is saved where it stands, and fit returns. Its text says what."""


class TimeIsUp(Enough):
    """The run has trained for its `max_time`."""


class Stopped(SystemExit):
    """Ends a script whose run was asked to stop by SIGTERM or SIGUSR1, once the run is saved.

    It is a `SystemExit`, so that a script ends without a traceback, with status 128 + signal: 143 after SIGTERM, 138
    after SIGUSR1. Ctrl-C is a `KeyboardInterrupt` as ever.

    Attributes:
        signal: what asked for it, a `signal.Signals`.

    >>> Stopped(15).code, str(Stopped(15))
    (143, 'stopped by SIGTERM')
    """

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.signal = signal.Signals(signum)

    def __reduce__(self) -> tuple[type[Stopped], tuple[int]]:  # a copy has the signal, too
        return Stopped, (int(self.signal),)

    def __str__(self) -> str:
        return f"stopped by {self.signal.name}"
