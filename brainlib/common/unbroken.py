"""Short stretches of code that must not be broken off in the middle.

The handler of a signal may break off a wait for data by raising in it, wherever that wait is. What is set aside round
the wait (generators, the number of threads) has to be set aside and put back as a whole: there it postpones that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["unbroken"]


class Unbroken(threading.local):
    """Whether this thread is inside such a stretch; one for the whole process.

    It begins with an assignment, ``unbroken.inside = True``, and not with a call: handlers of signals run at calls.

    >>> unbroken = Unbroken()
    >>> unbroken.inside = True
    >>> unbroken.postpone(lambda: print("now"))
    True
    >>> unbroken.leave()
    now
    """

    inside = False
    _postponed: Callable[[], object] | None = None

    def postpone(self, action: Callable[[], object]) -> bool:
        """Have `action` done when the stretch is over; False where there is none, and nothing is postponed."""
        if self.inside:
            self._postponed = action
        return self.inside

    def leave(self) -> None:
        """The stretch is over; what was postponed is done, and may raise."""
        self.inside = False
        postponed, self._postponed = self._postponed, None
        if postponed is not None:
            postponed()


unbroken = Unbroken()
