"""Numbers of things in messages: one epoch, two epochs."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, one: str, several: str | None = None, spec: str = "d") -> str:
    """A number and what is counted, in the singular or the plural.

    Args:
        number: how many.
        one: the word for one; a verb may follow it.
        several: the words for none and for several; None: `one` with an s.
        spec: how the number is formatted; "," for large ones that people read.

    >>> counted(1, "epoch"), counted(0, "epoch"), counted(1797, "item", spec=",")
    ('1 epoch', '0 epochs', '1,797 items')
    >>> counted(1, "batch", "batches"), counted(2, "item has", "items have")
    ('1 batch', '2 items have')
    """
    return f"{number:{spec}} {one if number == 1 else several or f'{one}s'}"
