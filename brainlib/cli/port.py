"""``brainlib port``: what of a script written for speechbrain carries over (docs/porting.md). Nothing of it is run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from brainlib.compat.port import port

__all__ = ["add_to"]


def add_to(rooms: Any) -> None:
    """Add ``port`` to the parser's subcommands."""
    parser = rooms.add_parser(
        "port",
        help="what of a script or hparams file for speechbrain carries over",
        usage="brainlib port [--write NEW] FILE",
        description="Read a script (or an hparams file) written for speechbrain, without running it, and list what "
        "carries over, what stays speechbrain's, what differs on purpose and what could not be changed. Exit status: "
        "0 all of it carries over, 1 something is left to you, 2 the file cannot be read.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the script that trains, or its .yaml")
    parser.add_argument(
        "--write",
        type=Path,
        metavar="NEW",
        help="write the script with its imports changed to this file, which must not be there yet",
    )
    parser.set_defaults(run=_port)


def _port(given: argparse.Namespace) -> int:
    report = port(given.file.read_text(encoding="utf-8"), str(given.file))
    print(report)
    if given.write is not None:
        if report.text == given.file.read_text(encoding="utf-8"):
            print(f"nothing to change: {given.write} is not written")
        else:
            with given.write.open("x", encoding="utf-8") as file:
                file.write(report.text)
            print(f"written: {given.write}")
    return 1 if report.left else 0
