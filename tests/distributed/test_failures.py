"""Whatever fails on whichever rank: all processes end, with a status, and only the first failure has a traceback.

`CELLS` is every fault in every place on either rank that has a meaning; ``python -m tests.distributed.all_failures``
(``make faults-ddp``) runs all and prints the seconds, ``make test`` runs those in `ALWAYS`. A fault in training strikes
once the other rank is inside the backward of the same update, or, in the cells of `DATA_WAIT`, waits for data.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import brainlib as bl
from brainlib.checkpoint.store import Store
from brainlib.distributed.world import World
from tests.contracts.brains import Items, Plain, make
from tests.distributed.host import Ended, Host

FAULTS = ("raise", "sys.exit", "os._exit", "SIGKILL", "stuck", "worker", "NaN", "MemoryError")
PLACES = ("dataset", "collate", "forward", "backward", "hook", "validation", "save", "metric")
RANKS = (0, 1)

# How long a rank waits for another that is stuck, and how long one has to end once it is told to.
TIMEOUT, GRACE = 4.0, 1.0
LONGEST = 30.0  # seconds: a cell that takes longer has failed


class Cell(NamedTuple):
    fault: str
    place: str
    rank: int
    peer: str = "backward"  # where the other rank is, where the place is one in training

    def __str__(self) -> str:
        told = "" if self.peer == "backward" else f", peer in {self.peer}"
        return f"{self.fault} in {self.place} on rank {self.rank}{told}"

    @property
    def meets_peer(self) -> bool:
        """Whether the other rank is waited for before the fault strikes."""
        return self.fault != "NaN" and self.place in ("dataset", "collate", "forward", "backward", "hook")


def without_meaning(cell: Cell) -> str:
    """Why there is no such cell; empty where there is one."""
    if cell.fault == "worker" and cell.place not in ("dataset", "collate"):
        return "a worker of a loader runs the dataset and collate alone"
    if cell.fault == "NaN" and cell.place in ("save", "hook", "metric", "validation"):
        return "a number that is not finite is no failure there: nothing is stepped"
    if cell.fault == "NaN" and cell.place == "collate":
        return "the same as in the dataset: the batch holds a NaN"
    if cell.place == "save" and cell.rank == 1:
        return "the main rank alone takes the states and writes"
    return ""


DATA_WAIT = [
    Cell(fault, "forward", rank, "data wait")
    for fault, rank in itertools.product(("raise", "sys.exit", "os._exit", "SIGKILL", "MemoryError"), RANKS)
]
CELLS = [
    *(
        cell
        for cell in itertools.starmap(Cell, itertools.product(FAULTS, PLACES, RANKS))
        if not without_meaning(cell)
    ),
    *DATA_WAIT,
]
ALWAYS = [
    Cell("raise", "dataset", 0), Cell("raise", "backward", 1), Cell("raise", "save", 0), Cell("raise", "validation", 1),
    Cell("sys.exit", "forward", 1), Cell("sys.exit", "hook", 0), Cell("os._exit", "forward", 0),
    Cell("os._exit", "metric", 1), Cell("SIGKILL", "dataset", 1), Cell("SIGKILL", "forward", 0),
    Cell("SIGKILL", "validation", 1), Cell("worker", "dataset", 0), Cell("NaN", "forward", 1),
    Cell("MemoryError", "forward", 0), Cell("stuck", "hook", 1), Cell("stuck", "forward", 0),
    Cell("raise", "forward", 0, "data wait"), Cell("SIGKILL", "forward", 1, "data wait"),
]  # fmt: skip
FIRST = 20  # updates before the one in which a fault strikes
LAST_ITEMS = (81, 83)  # the last items of update 21 on rank 0 and rank 1


class Fault:
    """The fault of a cell; on the wrong rank it does nothing but tell where that rank is.

    Args:
        cell: which.
        folder: where the other rank tells that it is there.
    """

    def __init__(self, cell: Cell, folder: Path) -> None:
        self.cell, self.armed = cell, World.from_environment().rank == cell.rank
        self.peer_is_there = folder / "the peer is there"

    def at(self, place: str) -> float:
        """Strike, if this is the place; what it returns is added to a number there."""
        if not self.armed:
            self._tell_where(place)
            return 0.0
        if place != self.cell.place:
            return 0.0
        if self.cell.fault == "worker" and torch.utils.data.get_worker_info() is None:
            return 0.0
        if self.cell.fault == "NaN":
            self.armed = False
            return float("nan")
        if self.cell.meets_peer:
            while not self.peer_is_there.exists():
                time.sleep(0.005)
            time.sleep(0.05)  # from there into the exchange
        strike("SIGKILL" if self.cell.fault == "worker" else self.cell.fault)
        return 0.0

    def _tell_where(self, place: str) -> None:
        if place == "backward" and self.cell.peer == "backward":
            self.peer_is_there.touch()
        elif place == "dataset" and self.cell.peer == "data wait":
            self.peer_is_there.touch()
            time.sleep(60)


def strike(fault: str) -> None:
    if fault == "raise":
        raise RuntimeError("planted fault")
    if fault == "MemoryError":
        raise MemoryError("planted fault")
    if fault == "sys.exit":
        sys.exit(3)
    if fault == "os._exit":
        os._exit(3)
    if fault == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stuck":
        while True:
            time.sleep(0.1)


class Failing(Items):
    def __init__(self, fault: Fault, num_items: int) -> None:
        super().__init__(num_items)
        self.fault = fault

    def __getitem__(self, index: int) -> Any:
        item = super().__getitem__(index)
        if index in LAST_ITEMS:
            item["x"] = item["x"] + self.fault.at("dataset")
        return item


class Strikes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, fault: Any) -> Any:
        ctx.fault = fault
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad + ctx.fault.at("backward"), None


class Doomed(Plain):
    """Every fault comes in update 21, or in what comes after it."""

    fault: Fault

    @property
    def due(self) -> bool:
        return self.optimizer_step >= FIRST

    def compute_forward(self, batch: Any, stage: bl.Stage) -> Any:
        outputs = super().compute_forward(batch, stage)
        if stage == bl.Stage.TRAIN and self.due:
            outputs = Strikes.apply(outputs + self.fault.at("forward"), self.fault)
        elif stage == bl.Stage.VALID and self.due:
            self.fault.at("validation")
        return outputs

    def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Any, should_step: bool) -> None:
        if self.due:
            self.fault.at("hook")

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: Any = None) -> None:
        if stage == bl.Stage.VALID and self.due:
            self.fault.at("metric")

    def get_extra_state(self) -> Any:
        if self.due:
            self.fault.at("save")

    def set_extra_state(self, state: Any) -> None:
        pass


def collate(fault: Fault) -> Any:
    def together(items: list[Any]) -> Any:
        if any(item["id"] in LAST_ITEMS for item in items):
            fault.at("collate")
        return torch.utils.data.default_collate(items)

    return together


def run(fault: str, place: str, rank: int, peer: str, home: str) -> list[Any]:
    cell = Cell(fault, place, rank, peer)
    brain = make(
        Doomed,
        bl.Checkpointer(home),
        ckpt_interval_steps=24,
        dist_timeout_seconds=TIMEOUT,
        stop_grace_seconds=GRACE,
    )
    brain.fault = Fault(cell, Path(home).parent)
    items = Failing(brain.fault, 100)
    loader = {
        "batch_size": 2,
        "collate_fn": collate(brain.fault),
        "num_workers": 1 if fault == "worker" else 0,
    }
    brain.fit(
        range(2), items, Items(20, seed=3), train_loader_kwargs=loader, valid_loader_kwargs={"batch_size": 2}
    )
    return [brain.run_state.nonfinite_windows, brain.optimizer_step]


def resumes(home: str) -> Any:
    newest = bl.Checkpointer(home).newest()
    brain = make(Plain, bl.Checkpointer(home))
    brain.fit(
        range(2),
        Items(100),
        Items(20, seed=3),
        train_loader_kwargs={"batch_size": 2},
        valid_loader_kwargs={"batch_size": 2},
    )
    return [None if newest is None else newest.counters["optimizer_step"], brain.optimizer_step]


def outcome(host: Host, cell: Cell, folder: Path) -> tuple[str, list[Ended], float]:
    """What is wrong with how it ended; the empty text: nothing."""
    first: list[float] = []

    def end_stuck(pids: list[int]) -> None:
        """As a launcher does: once a process has failed the others are told to end."""
        gone = [pid for pid in pids if _has_failed(pid)]
        if gone and not first:
            first.append(time.monotonic())
            for pid in pids:
                if pid not in gone:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGTERM)

    ended = host.start(run, folder, *cell, str(folder / "save"), limit=60.0, meddle=end_stuck)
    seconds = [each.seconds for each in ended]
    apart = max(seconds) - min(seconds)
    if cell.fault == "NaN":
        good = all(each.status == 0 for each in ended) and ended[0].result == ended[1].result == [1, 49]
        return "" if good else "it did not go on, skipping one window", ended, apart
    if any(each.status == 0 for each in ended):
        return "a process ended as if all were well", ended, apart
    if cell.meets_peer and not (folder / "the peer is there").exists():
        return "the fault came before the peer was there", ended, apart
    peer = ended[1 - cell.rank]
    if cell.fault != "stuck" and "Traceback" in peer.output:
        return "the peer printed a traceback of its own", ended, apart
    if cell.fault in ("raise", "MemoryError") and "planted fault" not in ended[cell.rank].output:
        return "the failure is not told", ended, apart
    if (how := {"SIGKILL": "was ended by SIGKILL", "os._exit": "ended with status 3"}.get(cell.fault)) and (
        f"this process ends because rank {cell.rank} (process " not in peer.output or how not in peer.output
    ):
        return "the peer does not say how the other one ended", ended, apart
    store = Store(folder / "save")
    for checkpoint in store.listed():
        store.check_sums(checkpoint, tuple(checkpoint.files))
    if store.damaged:
        return f"a checkpoint is torn: {store.damaged}", ended, apart
    if cell.fault == "stuck" and min(seconds) < TIMEOUT:
        return "it ended before anybody could know that a rank is stuck", ended, apart
    allowed = 5.0 if cell.fault != "stuck" else 5.0 + GRACE
    if apart > allowed:
        return f"the second process ended {apart:.1f} s after the first", ended, apart
    return "", ended, apart


def _has_failed(pid: int) -> bool:
    """Whether a process has ended with another status than 0, and nobody has asked for it yet."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] in "ZX" and fields[-1] != "0"


@pytest.mark.parametrize("cell", ALWAYS, ids=str)
def test_all_end_when_one_fails(host: Host, tmp_path: Path, cell: Cell) -> None:
    assert cell in CELLS
    wrong, ended, _ = outcome(host, cell, tmp_path)
    assert not wrong, "\n".join(
        [wrong, *(f"--- {each.status} {each.seconds:.1f}\n{each.output}" for each in ended)]
    )
    assert max(each.seconds for each in ended) < LONGEST
    if cell in (Cell("raise", "save", 0), Cell("SIGKILL", "forward", 0)):
        assert not does_not_resume(host, tmp_path)


class Telling(Items):
    """Each worker of a loader leaves a file of its number."""

    def __getitem__(self, index: int) -> Any:
        Path(f"workers/{os.getpid()}").touch()
        return super().__getitem__(index)


def killed_with_workers(folder: str) -> None:
    os.chdir(folder)
    Path("workers").mkdir(exist_ok=True)
    brain = make(Doomed, stop_grace_seconds=GRACE)
    brain.fault = Fault(Cell("SIGKILL", "forward", 1), Path(folder))
    brain.fit(range(2), Telling(100), train_loader_kwargs={"batch_size": 2, "num_workers": 2})


def test_no_worker_outlives_a_rank_that_is_killed_or_ends_for_it(host: Host, tmp_path: Path) -> None:
    ended = host.start(killed_with_workers, tmp_path, str(tmp_path), tidy=False)
    assert [each.status for each in ended] == [1, -9]
    workers = [path.name for path in (tmp_path / "workers").iterdir()]
    assert len(workers) == 4
    end = time.monotonic() + 20  # torch's workers look for their parent every 5 s
    while alive := [pid for pid in workers if os.path.exists(f"/proc/{pid}")]:
        assert time.monotonic() < end, alive
        time.sleep(0.05)


def does_not_resume(host: Host, folder: Path) -> str:
    """What is wrong with going on from what is in the folder; empty: nothing."""
    again = host.run(resumes, folder / "again", str(folder / "save"))
    return "" if again[0] == again[1] and again[0][1] == 50 else f"resumed, it ended with {again}"
