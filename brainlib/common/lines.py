"""Files that grow by whole lines and survive that a process dies in the middle of one."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["append_line"]


def append_line(path: str | os.PathLike[str], text: str) -> None:
    r"""Append `text` and a newline to a file, in one write; a torn last line is ended first.

    The file is opened for each line: a handle that is kept open would follow a folder that is moved, and would be
    shared by forked processes.

    Args:
        path: the file; it and its folder are made when they are missing.
        text: without the newline at its end.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "log.txt")
        ...     _ = path.write_text("half a li")
        ...     append_line(path, "a whole line")
        ...     path.read_text()
        'half a li\na whole line\n'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode("utf-8", "backslashreplace") + b"\n"
    with open(path, "ab+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                data = b"\n" + data
        file.write(data)
