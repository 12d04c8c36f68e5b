"""Which folders are being written beside training: whoever looks into one of them, from anywhere, waits for that."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from brainlib.common.background import Background

__all__ = ["Writer", "settled"]

_WRITERS: weakref.WeakSet[Writer] = weakref.WeakSet()


class Writer(Background):
    """Writes the checkpoints of one folder beside training, one at a time.

    >>> writer = Writer(Path("/nowhere/yet"))
    >>> settled("/nowhere/yet")
    PosixPath('/nowhere/yet')
    """

    def __init__(self, folder: Path) -> None:
        super().__init__("brainlib-checkpoint")
        self.folder = folder
        _WRITERS.add(self)

    def __reduce__(self) -> tuple[type[Writer], tuple[Path]]:
        return Writer, (self.folder,)


def settled(path: str | os.PathLike[str]) -> Path:
    """The path, absolute, once no thread of this process writes there any more, whoever started it.

    Args:
        path: A checkpoint's folder, or a folder of checkpoints.
    """
    place = Path(os.path.abspath(os.fspath(path)))
    busy = [writer for writer in list(_WRITERS) if writer.begun and writer.busy]
    if busy:
        real = os.path.realpath(place)
        for writer in busy:
            if os.path.realpath(writer.folder) in (real, os.path.dirname(real)):
                writer.join()
    return place
