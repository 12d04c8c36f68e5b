"""Who looks on while a Brain trains: somebody that is told where a fit begins and ends, and is handed its batches.

Nobody does, unless an application invites somebody into its own process: ``brainlib doctor`` does, into processes that
it starts for that. An onlooker is asked three times a fit and once an epoch, never in a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["Onlooker", "invite", "present"]


class Onlooker:
    """One that does nothing; a variant overrides what it wants to see.

    >>> list(Onlooker().batches(None, iter("ab")))
    ['a', 'b']
    """

    def fit_starts(self, brain: Any, epoch_counter: Any, **sets: Any) -> None:
        """A fit has got its number, and ``on_fit_start`` is about to be called; `sets` is what fit was given."""

    def batches(self, brain: Any, batches: Iterator[Any]) -> Iterator[Any]:
        """The training batches of an epoch, from where it stands. The next is asked for when one is all done."""
        return batches

    def fit_ends(self, brain: Any) -> None:
        """All epochs are closed, or there was none to train."""


_present = Onlooker()


def present() -> Onlooker:
    """Who looks on in this process.

    >>> type(present()).__name__
    'Onlooker'
    """
    return _present


def invite(onlooker: Onlooker) -> None:
    """From now on `onlooker` looks on at every fit of this process, inner fits included.

    >>> invite(Onlooker())
    """
    global _present
    _present = onlooker
