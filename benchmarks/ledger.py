"""Whether the ledger of a run agrees with a stopwatch that stands outside, over five kills.

A real process trains, is killed (SIGKILL) and started again, five times: before its first checkpoint, while it trains,
and while Python is still importing. What happens in it is known: it sleeps for its data, its updates, its validation
and its hooks. The stopwatch runs from the first start until the last process tells what its ledger has; how long Python
then takes to end is shown, and is nobody's to know. It knows when each process was started, and, from the manifests,
which checkpoint each went on from.

Everything is judged by its share of the whole: the total, what was lost to restarts, the sum of the epochs' rows in
metrics.jsonl, what is left over; and no part may be smaller than what was slept in it. It prints a table and a line of
JSON, and exits with 1 where a limit is passed.

    python benchmarks/ledger.py
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import brainlib as bl
from brainlib.profiling.run_ledger import EFFECTIVE, LOST

LIMIT = 0.01  # of the whole
NUM_EPOCHS, NUM_BATCHES, NUM_VALID = 10, 100, 10
SLEPT = {  # seconds a batch, or an epoch for the hooks
    "data wait": 0.006,
    "compute": 0.015,
    "validation": 0.02,
    "hooks": 0.1,
}
SAVES_EVERY = 60  # updates
# When each process is killed: so many seconds after it was started, or after it has begun to train.
KILLS = (("training", 0.7), ("training", 4.0), ("started", 0.4), ("training", 6.5), ("training", 5.2))
PAUSE = 1.0  # from a kill to the next start
TRAINING, ENDED = "training", "ended "


# ---------------------------------------------------------------------------------------------------- what is killed
class Slow(bl.Brain):
    def on_stage_start(self, stage: bl.Stage, epoch: Any = None) -> None:
        if stage is bl.Stage.TRAIN:
            print(TRAINING, flush=True)

    def compute_forward(self, batch: torch.Tensor, stage: bl.Stage) -> torch.Tensor:
        time.sleep(SLEPT["compute" if stage is bl.Stage.TRAIN else "validation"])
        return self.modules.model(batch)

    def compute_objectives(self, predictions: Any, batch: Any, stage: bl.Stage) -> torch.Tensor:
        return predictions.square().mean()

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: Any = None) -> None:
        if stage is bl.Stage.TRAIN:
            time.sleep(SLEPT["hooks"])


class SlowItems(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return NUM_BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(SLEPT["data wait"])
        return torch.full((4,), index / NUM_BATCHES)


def train(folder: Path) -> None:
    """One life of the run; tells at its end what the ledger has."""
    torch.set_num_threads(1)
    brain = Slow(
        {"model": torch.nn.Linear(4, 1)},
        lambda parameters: torch.optim.SGD(parameters, 0.01),
        {"seed": 0},
        {"device": "cpu", "noprogressbar": True, "ckpt_interval_steps": SAVES_EVERY},
        bl.Checkpointer(folder / "save"),
        loggers=[bl.JsonlLogger(folder / "metrics.jsonl")],
    )
    valid = list(torch.ones(NUM_VALID, 2, 4))
    brain.fit(range(NUM_EPOCHS), SlowItems(), valid, train_loader_kwargs={"batch_size": 1, "shuffle": True})
    ledger = brain._run_ledger
    told = {"seconds": ledger.seconds(), "starts": ledger.num_starts, "updates": brain.optimizer_step}
    print(ENDED + json.dumps(told), flush=True)


# ------------------------------------------------------------------------------------------------------ the stopwatch
@dataclass
class Stopwatch:
    """What can be seen from outside.

    Attributes:
        starts: when each process was started, in seconds since 1970.
        from_where: of each, when the checkpoint was made that it found; None: there was none.
        total: from the first start until the last process was gone.
        until_told: until the last one told what its ledger has.
        told: what that is.
    """

    starts: list[float] = field(default_factory=list)
    from_where: list[float | None] = field(default_factory=list)
    total: float = 0.0
    until_told: float = 0.0
    told: dict[str, Any] = field(default_factory=dict)

    def lost(self) -> float:
        """From the checkpoint that a start went on from up to that start, along those that led to the end."""
        lost, place = 0.0, len(self.starts) - 1
        while True:
            made = self.from_where[place]
            if made is None:
                return lost + self.starts[place] - self.starts[0]
            lost += self.starts[place] - made
            place = max(n for n, start in enumerate(self.starts) if start <= made)


def newest_in(folder: Path) -> float | None:
    made = [checkpoint.time for checkpoint in bl.Checkpointer(folder / "save").list_checkpoints()]
    return max(made) if made else None


def start(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--train", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def until(process: subprocess.Popen[str], word: str) -> str:
    """Reads until a line that begins with `word`, which it returns without it."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word):
            return line[len(word) :]
    raise RuntimeError(f"the process ended with {process.wait()} and has not said {word!r}")


def watch(folder: Path) -> Stopwatch:
    """Start it, kill it, …, and let it come to its end."""
    seen, began = Stopwatch(), time.perf_counter()
    for place, seconds in (*KILLS, (None, 0.0)):
        seen.from_where.append(newest_in(folder))
        seen.starts.append(time.time())
        with start(folder) as process:
            if place is None:
                seen.told = json.loads(until(process, ENDED))
                seen.until_told = time.perf_counter() - began
                if process.wait():
                    raise RuntimeError(f"the last process ended with {process.returncode}")
            else:
                if place == "training":
                    until(process, TRAINING)
                time.sleep(seconds)
                if process.poll() is not None:
                    raise RuntimeError(
                        "the process came to its end before it was killed: this machine is too fast"
                    )
                process.kill()
        seen.total = time.perf_counter() - began
        print(f"  {seen.total:6.1f} s: {'it has come to its end' if place is None else 'killed'}", flush=True)
        if place is not None:
            time.sleep(PAUSE)
    return seen


# --------------------------------------------------------------------------------------------------------- the figures
@dataclass
class Figure:
    """A line of the table: seconds by the ledger and by the stopwatch, and how far they may be apart."""

    name: str
    ledger: float
    outside: float
    whole: float
    at_least: bool = False  # what is known is only that it cannot be less
    judged: bool = True

    @property
    def apart(self) -> float:
        apart = self.ledger - self.outside
        return max(-apart, 0.0) / self.whole if self.at_least else abs(apart) / self.whole

    @property
    def verdict(self) -> str:
        if not self.judged:
            return ""
        return "passed" if self.apart <= LIMIT else "MISSED"


def figures_of(seen: Stopwatch, folder: Path) -> list[Figure]:
    seconds, whole = seen.told["seconds"], seen.until_told
    rows = bl.read_metrics(folder / "metrics.jsonl")
    slept = {
        "data wait": SLEPT["data wait"] * NUM_EPOCHS * NUM_BATCHES,
        "compute": SLEPT["compute"] * NUM_EPOCHS * NUM_BATCHES,
        "validation": SLEPT["validation"] * NUM_EPOCHS * NUM_VALID,
        "hooks": SLEPT["hooks"] * NUM_EPOCHS,
    }
    return [
        Figure("wall time, until it was told", sum(seconds.values()), seen.until_told, whole),
        Figure("  until the last process was gone", sum(seconds.values()), seen.total, whole, judged=False),
        Figure(LOST, seconds[LOST], seen.lost(), whole),
        Figure(
            "rows of the epochs, until the last of them",
            sum(row["ledger"]["wall"] for row in rows),
            rows[-1]["time"] - seen.starts[0],
            whole,
        ),
        Figure("left over", seconds["left over"], 0.0, whole),
        *[Figure(f"{name}, at least", seconds[name], known, whole, True) for name, known in slept.items()],
    ]


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--train", type=Path, metavar="FOLDER", help="be one of the processes that are watched"
    )
    arguments = parser.parse_args()
    if arguments.train is not None:
        train(arguments.train)
        return 0

    with tempfile.TemporaryDirectory() as name:
        seen = watch(Path(name))
        figures = figures_of(seen, Path(name))
        rows = bl.read_metrics(Path(name) / "metrics.jsonl")
    seconds, total = seen.told["seconds"], sum(seen.told["seconds"].values())
    effective = sum(seconds[each] for each in EFFECTIVE)
    print(f"\n{len(KILLS)} kills, {seen.told['updates']} updates, torch {torch.__version__}")
    print(", ".join(f"{each} {value:.2f}" for each, value in seconds.items()))
    print(f"effective training time {effective:.2f} s, {effective / total:.1%}\n")
    print(f"{'seconds':44}{'ledger':>10}{'outside':>10}{'apart':>9}{'limit':>9}")
    for figure in figures:
        limit = f"{LIMIT:.0%}" if figure.judged else ""
        seconds_told = f"{figure.ledger:10.2f}{figure.outside:10.2f}"
        print(f"{figure.name:44}{seconds_told}{figure.apart:9.2%}{limit:>9}   {figure.verdict}")
    complete = (
        seen.told["updates"] == NUM_EPOCHS * NUM_BATCHES
        and len(rows) == NUM_EPOCHS
        and sum(row["ledger"]["updates"] for row in rows) == NUM_EPOCHS * NUM_BATCHES
    )
    if not complete:
        print("MISSED: the run has not made all its updates, or they are not all in the rows of its epochs")
    print(
        json.dumps(
            {
                "benchmark": "ledger",
                "torch": torch.__version__,
                "python": platform.python_version(),
                "cores": os.cpu_count(),
                "kills": len(KILLS),
                "starts": seen.told["starts"],
                "seconds": {each: round(value, 3) for each, value in seconds.items()},
                "effective": round(effective / total, 4),
                "figures": {
                    figure.name.strip(): {
                        "ledger": round(figure.ledger, 3),
                        "outside": round(figure.outside, 3),
                        "apart": round(figure.apart, 5),
                        "limit": LIMIT if figure.judged else None,
                        "verdict": figure.verdict or None,
                    }
                    for figure in figures
                },
            }
        )
    )
    return 0 if complete and not any(figure.verdict == "MISSED" for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
