"""numpy's process-wide generator, noted and put back in microseconds: it is done around every batch that is read.

numpy's own get_state and set_state walk through its 624 words one by one. That was timed at 70 µs each, three times
what all takes that is done with Python's and torch's generators. So the words are copied from and to where
``bit_generator.ctypes``, which numpy documents, says they are. Whether they lie there as expected is looked at once;
where they do not, and where somebody has put another bit generator in place, numpy's own ways are taken.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

import numpy as np

__all__ = ["numpy_state", "set_numpy_state"]

_NUM_WORDS = 624
_SIZE = 4 * _NUM_WORDS + 4  # bytes: the words, and how many of them are used up


def numpy_state() -> Any:
    """Where the generator stands, for `set_numpy_state`; it stands there afterwards, too.

    >>> before = numpy_state(); a = np.random.randn(3)
    >>> set_numpy_state(before); bool((a == np.random.randn(3)).all())
    True
    """
    memory = _memory()
    if memory is None:
        return np.random.get_state(legacy=False)
    words = ctypes.string_at(memory, _SIZE)
    # Normal numbers come in pairs, of which the second may be waiting, and only get_state tells of it. But if it is,
    # to ask for one moves no word.
    number = np.random.standard_normal()
    state = words, number if ctypes.string_at(memory, _SIZE) == words else None
    set_numpy_state(state)
    return state


def set_numpy_state(state: Any) -> None:
    """Back to where `numpy_state` found it."""
    if isinstance(state, dict):
        np.random.set_state(state)
        return
    words, waiting = state
    memory = _memory()
    if waiting is None and memory is not None:
        np.random.seed(0)  # nothing is waiting after it
        ctypes.memmove(memory, words, _SIZE)
        return
    used = int.from_bytes(words[-4:], sys.byteorder)
    has_waiting, number = (0, 0.0) if waiting is None else (1, waiting)
    np.random.set_state(("MT19937", np.frombuffer(words[:-4], np.uint32), used, has_waiting, number))


def _memory() -> int | None:
    """Where the words are; None where that is not known."""
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]  # documented, and not in its __all__
    if type(generator) is not np.random.MT19937 or not _is_as_expected():
        return None
    return int(generator.ctypes.state_address)


@functools.cache
def _is_as_expected() -> bool:
    generator = np.random.MT19937(1)
    state = generator.state["state"]
    expected = state["key"].tobytes() + int(state["pos"]).to_bytes(4, sys.byteorder)
    return ctypes.string_at(generator.ctypes.state_address, _SIZE) == expected
