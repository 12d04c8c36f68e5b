"""The words that error messages share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest", "quoted"]


def nearest(name: str, allowed: Iterable[str]) -> str:
    """The end of an error message: the allowed name that looks most like `name`, or nothing.

    >>> nearest("precison", ["precision", "device"])
    " Did you mean 'precision'?"
    >>> nearest("zzz", ["precision", "device"])
    ''
    """
    close = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


def quoted(names: Iterable[object], most: int | None = None) -> str:
    """Names as a readable list.

    Args:
        names: what is listed.
        most: how many are named; of the rest it is said how many they are. None: all.

    >>> quoted(["a", "b"])
    "'a', 'b'"
    >>> quoted([]), quoted("abcde", most=2)
    ('none', "'a', 'b' and 3 more")
    """
    named = [repr(name) for name in names]
    more = "" if most is None or len(named) <= most else f" and {len(named) - most} more"
    return ", ".join(named[:most]) + more or "none"
