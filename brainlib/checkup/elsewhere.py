"""Which files a process opens for writing outside its folder. Seen from Python; a library in C may open others."""

from __future__ import annotations

import os
import sys
import tempfile
from types import TracebackType
from typing import Any

__all__ = ["Elsewhere"]

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MOST = 20
_NOBODYS = ("/__pycache__/", "/.cache/", "/.config/", "/site-packages/", "/dist-packages/")


class Elsewhere:
    """While it is entered, it collects paths. An audit hook cannot be taken away, so it is for processes that end soon.

    Args:
        folder: where writing is expected.
    """

    def __init__(self, folder: str) -> None:
        temporary = tempfile.gettempdir() + os.sep
        self._expected = (
            folder,
            "/dev/",
            "/proc/",
            *(temporary + name for name in ("tmp", "pymp-", "brainlib-", "torch")),
        )
        self._on = False
        self.paths: list[str] = []

    def __enter__(self) -> Elsewhere:
        self._on = True
        sys.addaudithook(self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._on = False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not self._on or len(self.paths) >= _MOST:
            return
        path, flags = arguments[0], arguments[2]
        if not isinstance(path, (str, bytes, os.PathLike)) or not flags or not flags & _WRITING:
            return
        text = os.path.abspath(os.fsdecode(path))
        if text.startswith(self._expected) or any(part in text for part in _NOBODYS) or text in self.paths:
            return
        self.paths.append(text)
