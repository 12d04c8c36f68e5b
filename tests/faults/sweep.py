"""Every fault at every call of a save, a rotation and a pruning, and damage all over the files: `make faults`.

Each fault starts from a copy of the same folder. A kill is a real one, of a child that was forked from this warm
process. Whatever happened, the judge then says what is lost; nothing may be.

    python -m tests.faults.sweep            all of them; prints a table, exits with 1 if something is lost
    python -m tests.faults.sweep --only 100 a hundred of them, drawn at random
"""

from __future__ import annotations

import argparse
import collections
import errno
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from brainlib.common.retrying import Retry
from tests.checkpoint.small import ONCE
from tests.faults.disks import FAULTS, Call, FaultyDisk, ToldDisk
from tests.faults.scenarios import (
    SCENARIOS,
    Scenario,
    checkpointer,
    committing,
    judge,
    look,
    plainly,
    recovered,
)

NUM_DAMAGES = 200  # places over the files of a checkpoint; each is cut off and flipped at


@dataclass(frozen=True)
class Fault:
    """One fault at one call."""

    scenario: str
    at: int
    call: str
    file: str
    kind: str
    background: bool = False  # whether the thread that writes beside makes the call


@dataclass(frozen=True)
class Damage:
    """One place in the newest checkpoint that is altered afterwards."""

    file: str
    offset: int
    kind: str  # "cut" or "flip"


class Folders:
    """For each scenario the folder as it is before the fault, and copies of it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._calls: dict[str, list[Call]] = {}
        self._number = 0

    def original(self, name: str) -> Path:
        folder = self.home / "originals" / str(list(SCENARIOS).index(name)) / "save"
        if not folder.parent.exists():
            folder.parent.mkdir(parents=True)
            SCENARIOS[name].make(folder)
        return folder

    def copy(self, name: str) -> Path:
        self._number += 1
        folder = self.home / str(self._number) / "save"
        original = self.original(name)
        folder.parent.mkdir()
        if original.exists():
            shutil.copytree(original, folder)
        return folder

    def calls(self, name: str) -> list[Call]:
        """What one run of the scenario does when nothing fails."""
        if name not in self._calls:
            disk = ToldDisk()
            SCENARIOS[name].run(self.copy(name), disk)
            self._calls[name] = disk.calls
        return self._calls[name]


def all_faults(folders: Folders) -> list[Fault]:
    """Each kind of fault at each call at which it can happen."""
    return [
        Fault(
            name,
            at,
            call.name,
            "journal" if call.path in journal(folders.calls(name)) else call.path.suffix,
            kind,
            background,
        )
        for background in (False, True)
        for name in SCENARIOS
        if SCENARIOS[name].commits or not background
        for at, call in enumerate(folders.calls(name))
        for kind, calls in FAULTS.items()
        if call.name in calls
    ]


def journal(calls: list[Call]) -> set[Path]:
    """records.jsonl, and the files that became it."""
    found = {call.path for call in calls if call.target is not None and call.target.name == "records.jsonl"}
    return found | {call.path for call in calls if call.path.name == "records.jsonl"}


def all_damages(folders: Folders) -> list[Damage]:
    """Places spread evenly over the files of the newest checkpoint, and the ends of each file."""
    intact, _ = look(folders.original("save"))
    newest = intact[max(intact)]
    sizes = {path.name: path.stat().st_size for path in sorted(newest.iterdir())}
    ends = [(name, at) for name, size in sizes.items() for at in (0, size - 1)]
    every = [(name, at) for name, size in sizes.items() for at in range(1, size - 1)]
    rng = random.Random(5)
    places = ends + rng.sample(every, NUM_DAMAGES - len(ends))
    return [Damage(name, at, kind) for name, at in places for kind in ("cut", "flip")]


# ------------------------------------------------------------------------------------------------------- one at a time


def run_killed(scenario: Scenario, folder: Path, fault: Fault) -> str:
    """Runs it in a child, which is killed by its own disk; returns what else happened instead, if anything."""
    child = os.fork()
    if child == 0:
        try:
            scenario.run(folder, FaultyDisk(fault.at, fault.kind), background=fault.background)
        finally:
            os._exit(17)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return ""
    return f"it was not killed (status {status})"


def run_failing(scenario: Scenario, folder: Path, fault: Fault) -> OSError | None:
    """Runs it here, and returns the error that it ended with."""
    again = Retry((0.0,), sleep=lambda seconds: None) if fault.kind == "error for a moment" else ONCE
    try:
        scenario.run(folder, FaultyDisk(fault.at, fault.kind), again, fault.background)
    except OSError as error:
        return error
    return None


# Calls that only take away what does not count any more: that one of them fails is no reason to stop a run.
CLEANING = ("unlink", "rmdir")


def wrong_ending(fault: Fault, error: OSError | None) -> str:
    """What is wrong with how an operation ended that was not killed."""
    passes = ("error for a moment", "short write", "one byte written")
    expected = (
        errno.EIO if fault.kind == "input/output error" else None if fault.kind in passes else errno.ENOSPC
    )
    if error is None:
        passes_over = fault.call in CLEANING or fault.file == "journal"  # a cache
        return "" if expected is None or passes_over else "the error did not come through"
    return "" if error.errno == expected and error.strerror else f"{error!r} came out of it"


def try_fault(folders: Folders, fault: Fault) -> list[str]:
    """What is lost by a fault."""
    scenario = SCENARIOS[fault.scenario]
    folder = folders.copy(fault.scenario)
    calls = folders.calls(fault.scenario)
    if fault.kind.startswith("killed"):
        wrong = run_killed(scenario, folder, fault)
        completed = False
    else:
        error = run_failing(scenario, folder, fault)
        wrong = wrong_ending(fault, error)
        completed = error is None
    # What should be there follows from the calls that were made, and from nothing that lies in the folder.
    newest: int | None = scenario.before or None
    must = {*scenario.keeps}
    if scenario.commits:
        reached = fault.at > committing(calls)
        at_it = fault.at == committing(calls) and fault.kind == "killed after"
        if reached or at_it or completed:
            newest = scenario.before + 1
    must |= {newest} if newest else set()
    found = ([wrong] if wrong else []) + judge(folder, scenario, newest, must)
    shutil.rmtree(folder.parent)
    return found


def try_damage(folders: Folders, damage: Damage) -> list[str]:
    """What a new run makes of a damaged newest checkpoint: it has to go on from the one before."""
    scenario = SCENARIOS["save"]
    folder = folders.copy("save")
    intact, _ = look(folder)
    path = intact[scenario.before] / damage.file
    data = bytearray(path.read_bytes())
    if damage.kind == "cut":
        del data[damage.offset :]
    else:
        data[damage.offset] ^= 1 << damage.offset % 8
    same = damage.file.endswith(".json") and says_the_same(path.read_bytes(), bytes(data))
    path.write_bytes(data)
    expected = scenario.before if same else scenario.before - 1
    wrong = []
    try:
        found = recovered(folder, scenario)
    except Exception as error:  # noqa: BLE001  # whatever it is: that is the verdict
        found = None
        wrong.append(f"not recoverable: {error!r}")
    if found != expected:
        wrong.append(f"{found} was loaded and {expected} is the newest intact one")
    later = scenario.before + 1
    plainly(checkpointer(folder, scenario.objects(later)), later)
    if (found := recovered(folder, scenario)) != later:
        wrong.append(f"{found} was chosen after a further save of {later}")
    shutil.rmtree(folder.parent)
    return wrong


def says_the_same(before: bytes, after: bytes) -> bool:
    """Whether two manifests differ in nothing that they say, such as a line end or the seventeenth digit of a time."""
    try:
        return bool(json.loads(before) == json.loads(after))
    except ValueError:
        return False


def row_of(fault: Fault) -> str:
    """Of the table."""
    return f"{fault.scenario}{', beside' if fault.background else ''}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=int, help="so many, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the drawing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("brainlib").setLevel(logging.CRITICAL)
    start = time.perf_counter()
    lost: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folders = Folders(Path(name))
        todo: list[Fault | Damage] = [*all_faults(folders), *all_damages(folders)]
        if arguments.only is not None:
            todo = random.Random(arguments.seed).sample(todo, min(arguments.only, len(todo)))
        table: collections.Counter[tuple[str, str]] = collections.Counter()
        for each in todo:
            if isinstance(each, Fault):
                table[row_of(each), each.kind] += 1
                wrong = try_fault(folders, each)
            else:
                table["damage", each.kind] += 1
                wrong = try_damage(folders, each)
            lost += [f"{each}: {one}" for one in wrong]
    for scenario in dict.fromkeys(row for row, _ in table):
        kinds = {kind: count for (row, kind), count in table.items() if row == scenario}
        told = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        print(f"{scenario:38}{sum(kinds.values()):5}   {told}")
    print(*lost, sep="\n")
    print(
        f"{len(todo)} faults in {time.perf_counter() - start:.0f} s: "
        + (
            f"{len(lost)} WRONG"
            if lost
            else "nothing lost, nothing damaged loaded, the newest intact one chosen"
        )
    )
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
