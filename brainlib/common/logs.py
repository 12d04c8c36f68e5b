"""The library's one logger, and a console that speaks only where nobody else listens.

Everything brainlib says goes through ``logging.getLogger("brainlib")``. An application that configured logging receives
these records through the root logger, once, in its own format. Where nobody configured anything (a bare script, a
notebook), INFO lines still have to be seen, because "resumed from …" is part of the contract:
`PoliteConsole` prints them.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

__all__ = ["PoliteConsole", "file_is_taken", "logger", "take_file"]

logger = logging.getLogger("brainlib")

_taken: set[Path] = set()


def take_file(path: str | os.PathLike[str]) -> None:
    """Keep what brainlib says out of this file: somebody else writes his lines there."""
    _taken.add(Path(path).resolve())


def file_is_taken(path: Path) -> bool:
    """Whether it is somebody else's; `path` is one without links.

    >>> file_is_taken(Path("/nobody/has/taken.txt"))
    False
    """
    return path in _taken


class PoliteConsole(logging.StreamHandler):  # type: ignore[type-arg]
    """Prints to stderr while the root logger has no handlers, and is silent otherwise.

    The stream is looked up at each record, so that a redirected ``sys.stderr`` (tests, notebooks) is respected.
    """

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(logging.Formatter("brainlib: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            return
        self.stream = sys.stderr
        super().emit(record)


if not logger.handlers:  # a module that is reloaded (notebooks) must not print twice
    logger.addHandler(PoliteConsole())
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
