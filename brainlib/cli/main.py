"""What ``brainlib`` on a command line leads to. Each group of commands is a file beside this one.

The exit status is 0 when all is well, 1 when something is damaged or not as it should be, and 2 when the command
cannot be carried out.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from brainlib.checkpoint.errors import CheckpointError, DamagedCheckpointError
from brainlib.checkup.report import CheckupError
from brainlib.cli import checkpoints, doctor, launch, port
from brainlib.common.logs import logger

__all__ = ["DAMAGED", "UNABLE", "main"]

DAMAGED = 1
UNABLE = 2  # as argparse has it


class _Parser(argparse.ArgumentParser):
    """Of the commands, too: a word that one of them does not know is answered with the usage of that one."""

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        known, unknown = super().parse_known_args(*args, **kwargs)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command and return the exit status.

    Args:
        argv: the words after ``brainlib``; those of this process by default.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     main(["ckpt", "show", folder + "/nothing"])
    2
    """
    parser = _Parser(
        prog="brainlib",
        description="Look after training runs: start them in several processes, read what they have written, and see "
        "whether they hold what is promised.",
    )
    rooms = parser.add_subparsers(metavar="COMMAND", required=True)
    checkpoints.add_to(rooms)
    doctor.add_to(rooms)
    launch.add_to(rooms)
    port.add_to(rooms)
    given = parser.parse_args(argv)
    try:
        with _quiet():
            status = int(given.run(given))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever read what is printed has gone, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it ends
        return 128 + signal.SIGPIPE
    except DamagedCheckpointError as error:
        print(f"brainlib: {error}", file=sys.stderr)
        return DAMAGED
    except (CheckpointError, CheckupError, OSError, ValueError) as error:
        print(f"brainlib: {error}", file=sys.stderr)
        return UNABLE


@contextmanager
def _quiet() -> Iterator[None]:
    """The commands tell of damage themselves, in their own form; the library's log would say it twice."""
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
