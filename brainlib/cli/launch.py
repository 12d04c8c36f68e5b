"""``brainlib launch``: a script in several processes on this machine (docs/scale.md). torchrun does as well."""

from __future__ import annotations

import argparse
import signal
import sys
from typing import Any

from brainlib.distributed.launch import launch

__all__ = ["add_to"]

FAILED = 1


def add_to(rooms: Any) -> None:
    """Add ``launch`` to the parser's subcommands."""
    parser = rooms.add_parser(
        "launch",
        help="run a script in several processes that train one model",
        usage="brainlib launch [-n N] [--devices 0,1] [--log_dir DIR] [--max_restarts N] SCRIPT ...",
        description="Start a script several times, as torchrun does: one process a device. If one of them fails, all "
        "end, and the summary names it. Everything behind SCRIPT is the script's.",
    )
    parser.add_argument(
        "-n", "--nprocs", "--nproc_per_node", "--nproc-per-node", type=int, default=2, metavar="N",
        help="how many processes (default: 2); --nproc_per_node is torchrun's word for it",
    )  # fmt: skip
    parser.add_argument("--devices", metavar="0,1", help="numbers of the GPUs (default: the first ones)")
    parser.add_argument(
        "--log_dir",
        "--log-dir",
        metavar="DIR",
        help="write the output of each rank to files here; rank 0 is shown",
    )
    parser.add_argument(
        "--max_restarts", "--max-restarts", type=int, default=0, metavar="N",
        help="start all again when one has failed, at most so often (default: 0)",
    )  # fmt: skip
    parser.add_argument(
        "--shutdown_timeout", "--shutdown-timeout", type=int, default=5, metavar="SECONDS",
        help="how long the others may take to end once one has failed, before they are killed (default: 5)",
    )  # fmt: skip
    parser.add_argument("script", metavar="SCRIPT", help="the script that trains")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="what stands behind it")
    parser.set_defaults(run=_launch)


def _launch(given: argparse.Namespace) -> int:
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        launch(
            given.script,
            given.words,
            given.nprocs,
            devices=given.devices,
            log_dir=given.log_dir,
            max_restarts=given.max_restarts,
            shutdown_seconds=given.shutdown_timeout,
        )
    except ChildFailedError as error:
        for rank, failure in sorted(error.failures.items(), key=lambda each: each[1].timestamp):
            how = f"status {failure.exitcode}"
            if failure.exitcode < 0:
                how = signal.Signals(-failure.exitcode).name
            print(f"brainlib launch: rank {rank} (process {failure.pid}) ended with {how}", file=sys.stderr)
        return FAILED
    except SignalException as error:
        return 128 + error.sigval
    return 0
