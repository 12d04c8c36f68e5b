"""What it costs that a run can be entered anywhere: the start inside an epoch, and the seed of every item.

*Going on*: an epoch of 1,000,000 items, shuffled, was cut after 1 % of its batches and after 99 %. What is timed is a
Brain that goes on there without workers, from the call of ``fit`` to its first batch: loading the checkpoint, the
order of the epoch, one batch. At 99 % it may take 1.1 times as long as at 1 % and 10 ms. It counts the items that are
read: one batch's, and none to throw away.

*Seeding*: what an item costs more than reading it plainly, measured inside a worker of a loader; and what a batch costs
besides where there is no worker, because the generators of the training are set aside meanwhile.

Both ways are timed in turns, one torch thread, and what everything is compared with is timed twice (A/A). How far it is
from itself is what the machine can tell: a figure stands only if its distance to the bar is at least twice that, else
it is "too noisy". What counts is the minimum over the rounds, for whoever else is on the machine only slows it down. It
prints a table and a line of JSON, and exits with 1 where a bar that stands is missed or other items were read.

    python benchmarks/resume.py --rounds 15
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from figures import Figure, as_json, in_turns, status
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

import brainlib as bl
from brainlib.data.randomness import Place, SeededDataset
from brainlib.data.sources import source_of

NUM_ITEMS = 1_000_000
BATCH_SIZE = 64
RATIO, EXTRA_MS = 1.1, 10.0  # of the time at 1 %
ITEM_BAR = 25.0  # microseconds
BATCH_BAR = 150.0
BLOCK = 50  # items or batches that are timed together: a millisecond or ten, so that some of them are not disturbed
BLOCKS_A_ROUND = 10


# ------------------------------------------------------------------------------------------------------------- going on
class Counted(Dataset[Tensor]):
    """A million items that cost nothing, and how many were read."""

    def __init__(self, num_items: int) -> None:
        self.num_items, self.num_read = num_items, 0

    def __len__(self) -> int:
        return self.num_items

    def __getitem__(self, index: int) -> Tensor:
        self.num_read += 1
        return torch.full((4,), index / self.num_items)


class Quick(Counted):
    """The same items, a batch at once: to get to 99 % in seconds."""

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        return list(torch.tensor(indices).div(self.num_items).unsqueeze(1).expand(-1, 4))


class Here(BaseException):
    """The end of a run that has been looked at."""


class Stopping(bl.Brain):
    """Ends at its first batch, or saves at some and ends after the last of these."""

    saves_at: tuple[int, ...] = ()

    def compute_forward(self, batch: Tensor, stage: bl.Stage) -> Tensor:
        if not self.saves_at:
            self.first_batch_at, self.first_step = time.perf_counter(), self.step
            raise Here
        return self.modules.model(batch)

    def compute_objectives(self, predictions: Tensor, batch: Tensor, stage: bl.Stage) -> Tensor:
        return predictions.pow(2).mean()

    def on_fit_batch_end(self, batch: Tensor, outputs: Any, loss: Tensor, should_step: bool) -> None:
        if self.step in self.saves_at:
            self.checkpointer.save_checkpoint(name=f"after-{self.step}")
            if self.step == self.saves_at[-1]:
                raise Here


def run(folder: Path, items: Counted, saves_at: tuple[int, ...] = ()) -> Stopping:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    brain = Stopping(
        {"model": model},
        lambda parameters: torch.optim.Adam(parameters),
        {"seed": 0},
        {"device": "cpu", "noprogressbar": True, "ckpt_interval_minutes": 0},
        bl.Checkpointer(folder),
    )
    brain.saves_at = saves_at
    brain.started_at = time.perf_counter()
    try:
        brain.fit(range(1), items, train_loader_kwargs={"batch_size": BATCH_SIZE, "shuffle": True})
    except Here:
        pass
    return brain


def going_on(folder: Path, num_items: int, num_rounds: int) -> tuple[list[Figure], dict[str, int]]:
    """The figures, and how many items each start has read."""
    num_batches = -(-num_items // BATCH_SIZE)
    early, late = num_batches // 100, num_batches * 99 // 100
    run(folder, Quick(num_items), saves_at=(early, late))
    starts = {"at 1 %": early, "at 99 %": late, "at 1 %, again": early}
    for name, batch in starts.items():  # a folder each, in which that checkpoint is the newest
        (folder / name).mkdir()
        (folder / name / f"CKPT+after-{batch}").symlink_to(folder / f"CKPT+after-{batch}")
    read: dict[str, int] = {}

    def milliseconds(name: str) -> float:
        items = Counted(num_items)
        brain = run(folder / name, items)
        assert brain.first_step == starts[name] + 1, "it did not go on where it stood"
        read[name] = items.num_read
        return (brain.first_batch_at - brain.started_at) * 1e3

    first, at_99, again = in_turns([partial(milliseconds, name) for name in starts], num_rounds)
    at_1, noise = min(first, again), abs(first - again)
    return [
        Figure(f"first batch, going on at 1 % of {num_items:,} items", at_1, "ms"),
        Figure("  at 1 %, again (A/A): apart by", noise, "ms"),
        Figure("  at 99 %", at_99, "ms"),
        Figure("  at 99 %, what is over 1.1 times that at 1 %", at_99 - RATIO * at_1, "ms", EXTRA_MS, noise),
    ], read


# -------------------------------------------------------------------------------------------------------------- seeding
class Light(Dataset[int]):
    """Items that cost nothing."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> int:
        return index


def figure_of(name: str, times: list[float], bar: float) -> Figure:
    """From the plain form, ours, and the plain form again."""
    plain, ours, again = times
    return Figure(name, ours - min(plain, again), "µs", bar, abs(again - plain))


def microseconds(dataset: Any, places: list[Any]) -> float:
    """An item, read one after the other as a worker does."""
    start = time.perf_counter()
    _ = [dataset[place] for place in places]
    return (time.perf_counter() - start) / len(places) * 1e6


class TimedInWorker:
    """A ``worker_init_fn`` that times reading in the worker it is called in, and sends what it found.

    Args:
        num_rounds: of plain, seeded, plain again, in turns.
    """

    def __init__(self, num_rounds: int) -> None:
        self.num_rounds = num_rounds
        self.found = torch.multiprocessing.SimpleQueue()

    def __call__(self, worker: int) -> None:
        seeded = get_worker_info().dataset  # type: ignore[union-attr]
        assert type(seeded) is SeededDataset
        places = [Place(index, 1, index) for index in range(BLOCK)]
        indices = [place.index for place in places]
        light = Light()
        self.found.put(
            in_turns(
                [
                    lambda: microseconds(light, indices),
                    lambda: microseconds(seeded, places),
                    lambda: microseconds(light, indices),
                ],
                self.num_rounds,
            )
        )


def item_in_a_worker(num_rounds: int) -> Figure:
    timed = TimedInWorker(num_rounds)
    loader = DataLoader(Light(), batch_size=1, num_workers=1, worker_init_fn=timed)
    next(source_of(loader, "train_set").read(0, 0))
    return figure_of("seeding an item, in a worker", timed.found.get(), ITEM_BAR)


def microseconds_a_batch(batches: Iterator[Any]) -> float:
    next(batches)
    start = time.perf_counter()
    for _ in range(BLOCK):
        next(batches)
    return (time.perf_counter() - start) / BLOCK * 1e6


def batch_in_this_process(num_rounds: int, item: float) -> Figure:
    """Batches of one item, without workers: what they cost more than those of torch's loader and one item's seed."""
    loader = DataLoader(Light(), batch_size=1)
    source = source_of(loader, "train_set")
    times = in_turns(
        [
            lambda: microseconds_a_batch(iter(loader)),
            lambda: microseconds_a_batch(source.read(0, 0)) - item,
            lambda: microseconds_a_batch(iter(loader)),
        ],
        num_rounds,
    )
    return figure_of("seeding a batch besides, in this process", times, BATCH_BAR)


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="counted rounds (default 15)")
    parser.add_argument("--items", type=int, default=NUM_ITEMS, help=f"of the epoch (default {NUM_ITEMS:,})")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    logging.getLogger("brainlib").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as name:
        figures, read = going_on(Path(name), arguments.items, arguments.rounds)
    item = item_in_a_worker(arguments.rounds * BLOCKS_A_ROUND)
    figures += [item, batch_in_this_process(arguments.rounds * BLOCKS_A_ROUND, item.value)]
    print(f"{arguments.rounds} rounds, one thread, torch {torch.__version__}; minima over the rounds\n")
    print(f"{'':52}{'':>10}{'bar':>10}")
    for figure in figures:
        bar = figure.limit and f"{figure.limit} {figure.unit}"
        print(f"{figure.name:52}{figure.value:8.2f} {figure.unit}{bar:>10}   {figure.verdict}")
    told = ", ".join(f"{number} {where}" for where, number in read.items())
    print(f"Items read up to the first batch of {BATCH_SIZE}: {told}")
    print(as_json("resume", figures, digits=3, rounds=arguments.rounds, read=read))
    return int(set(read.values()) != {BATCH_SIZE}) or status(figures)


if __name__ == "__main__":
    sys.exit(main())
