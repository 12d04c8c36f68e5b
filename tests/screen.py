"""What people see of what was written."""

from __future__ import annotations

import re


def on_the_page(written: str) -> list[str]:
    """The lines that stand there in the end, on a terminal and under a cell: a carriage return writes over the line."""
    page = []
    for line in written.replace("\r\n", "\n").split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        page.append(re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", shown).rstrip())
    return page
