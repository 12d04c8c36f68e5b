"""``brainlib doctor``: a self-test of a script and its Brain (docs/doctor.md). Exit status 0: nothing was found."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from brainlib.checkup.script import doctor_script
from brainlib.common.plain import to_json

__all__ = ["add_to"]

FOUND = 1


def add_to(rooms: Any) -> None:
    """Add ``doctor`` to the parser's subcommands."""
    doctor = rooms.add_parser(
        "doctor",
        help="self-test of a script: same again, cut and resumed, accumulated",
        usage="brainlib doctor [--num_batches N] [--timeout SECONDS] [--no_accumulation] [--json] SCRIPT HPARAMS ...",
        description="Make a few short runs of a script, as `python SCRIPT HPARAMS ...` would, and compare them: the "
        "same again, cut and resumed, a batch against its two parts. The first thing that differs is named. Runs write "
        "into a temporary folder. Exit status: 0 nothing found, 1 something found, 2 the script cannot be run.",
    )
    doctor.add_argument(
        "--num_batches", "--num-batches", type=int, metavar="N", help="batches of an epoch (default: 4 to 12)"
    )
    doctor.add_argument(
        "--timeout", type=float, default=300.0, metavar="SECONDS", help="for one run (default: 300)"
    )
    doctor.add_argument(
        "--no_accumulation", "--no-accumulation", action="store_true",
        help="do not compare a batch with its two parts: for a loss in which items are meant to see each other",
    )  # fmt: skip
    doctor.add_argument("--json", action="store_true", help="one JSON document instead of text")
    doctor.add_argument("script", metavar="SCRIPT", help="the script that trains")
    doctor.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="HPARAMS ...",
        help="what stands behind it: hparams file, overrides",
    )
    doctor.set_defaults(run=_doctor)


def _doctor(given: argparse.Namespace) -> int:
    if not given.json:
        print(f"brainlib doctor: making short runs of {given.script}", file=sys.stderr)
    report = doctor_script(
        given.script,
        given.words,
        num_batches=given.num_batches,
        accumulation=not given.no_accumulation,
        timeout=given.timeout,
    )
    print(to_json(report.to_plain(), indent=1) if given.json else report)
    return 0 if report else FOUND
