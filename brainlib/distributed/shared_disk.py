"""Whether all ranks see one folder: looked at when a run starts, and not when it has to go on days later."""

from __future__ import annotations

import os
import socket
import time
import uuid
from pathlib import Path

from brainlib.distributed.group import from_main, gather
from brainlib.distributed.peers import of_rank
from brainlib.distributed.world import World

__all__ = ["check_shared"]

SECONDS = 10.0  # a network drive may take so long until it shows what another machine has written


def check_shared(folder: str | os.PathLike[str]) -> None:
    """All ranks name the same folder, and see what the main one writes into it. All ranks.

    Args:
        folder: as this rank names it; the main rank makes it where it is missing.

    Raises:
        ValueError: some rank does not; the message names it.
        OSError: the main rank cannot write there.

    >>> check_shared("nowhere/yet")  # one process: nobody else has to see it
    """
    world, mine = World.from_environment(), os.path.abspath(folder)
    if world.size == 1:
        return
    told, mark = from_main(lambda: _leave_mark(mine))
    seen = mine == told and _appears(Path(told, mark))
    ranks = gather((mine, seen, socket.gethostname()))
    if world.is_main:
        Path(told, mark).unlink(missing_ok=True)
    for rank, (theirs, sees, machine) in enumerate(ranks):
        if not sees:
            error = ValueError(_what_is_wrong(rank, theirs, machine, told, ranks[0][2]))
            raise error if world.is_main else of_rank(0, error)


def _leave_mark(folder: str) -> tuple[str, str]:
    """Of a name that nobody has asked for before: network drives remember for a while what was not there."""
    mark = f".seen-by-all-ranks-{uuid.uuid4().hex}"
    os.makedirs(folder, exist_ok=True)
    Path(folder, mark).touch()
    return folder, mark


def _appears(path: Path) -> bool:
    end = time.monotonic() + SECONDS
    while not path.exists():
        if time.monotonic() >= end:
            return False
        time.sleep(0.1)
    return True


def _what_is_wrong(rank: int, theirs: str, machine: str, told: str, main_machine: str) -> str:
    if theirs != told:
        return (
            f"rank {rank} keeps the run in {theirs}, and rank 0 in {told}: all ranks have to name one folder. A name "
            "with the time of day or a random part in it differs from process to process: write it into the hparams "
            "or on the command line"
        )
    return (
        f"rank {rank} on {machine} does not see what rank 0 on {main_machine} has written into {told}: all machines of "
        "a run need the folder of checkpoints on a disk that they share (NFS, Lustre, ...), because each reads it "
        "when the run goes on. Without such a disk, train on one machine"
    )
