"""What is run and where it is cut: cells, and places in them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from tests.contracts.brains import SEVEN

STYLES = {cls.__name__: cls for cls in SEVEN}


@dataclass(frozen=True)
class Cell:
    """One way to train.

    Attributes:
        style: one of the seven Brains.
        num_workers: of the loaders.
        precision: "fp32" or "bf16".
        armed: whether an EMA and a schedule for each optimizer hang on the loop, and two batches make an update.
    """

    style: str
    num_workers: int
    precision: str
    armed: bool

    def __str__(self) -> str:
        return f"{self.style}-{self.num_workers}-{self.precision}-{'armed' if self.armed else 'plain'}"

    @classmethod
    def from_name(cls, name: str) -> Cell:
        style, num_workers, precision, armed = name.split("-")
        return cls(style, int(num_workers), precision, armed == "armed")


CELLS = [
    Cell(style, num_workers, precision, armed)
    for style, armed, precision, num_workers in product(STYLES, (False, True), ("fp32", "bf16"), (0, 2))
]

# Where a run can be cut: at the n-th time that a process comes there.
PLACES = {
    "epoch begins": "before on_stage_start(TRAIN)",
    "inner fit": "before a batch of the fit that a hook has called",
    "batch begins": "before a batch is trained on: what was saved after the one before may be on the disk",
    "batch ends": "after a batch: nothing was saved after it yet",
    "training ends": "in on_stage_end(TRAIN)",
    "validation": "before a batch of a validation",
    "validation ends": "in on_stage_end(VALID), before it saves",
    "epoch ends": "in on_stage_end(VALID), after it has saved",
    "save": "in the middle of a write of a save, another file each time",
    "commit": "before the rename that makes what was written a checkpoint",
    "committed": "after that rename: before older ones go",
    "prune": "when an older one has lost its name, and its files are still there",
    "test": "before a batch of the evaluation at the end",
}

OF_THE_DISK = (
    "save",
    "commit",
    "committed",
    "prune",
)  # a thread comes there, where it writes beside training

# How checkpoints are written: while training waits; beside training, as they are unless asked otherwise; so, but each
# batch ends only when the save before it is on the disk: then how many saves there are does not depend on the time.
WAYS = ("here", "beside", "waited")


@dataclass(frozen=True)
class Cut:
    """SIGKILL, sent by the process to itself when it comes to a place for the n-th time."""

    place: str
    number: int  # from 1

    def __str__(self) -> str:
        return f"{self.place}:{self.number}"

    @classmethod
    def from_name(cls, name: str) -> Cut:
        place, number = name.split(":")
        if place not in PLACES:
            raise ValueError(f"there is no place {place!r}; there are {', '.join(PLACES)}")
        return cls(place, int(number))


def way_for(cell: Cell, cut: Cut) -> str:
    """How checkpoints are written in a run that is cut there."""
    return "beside" if cell.armed and cut.place not in OF_THE_DISK else "waited"
