"""What a checkpoint costs beside the bytes it writes, and what a listing costs where there are thousands.

*A commit*: every byte written, synced and summed, manifest, renames, folders synced, against ``torch.save`` and fsync
of the same tensors: a model and its Adam, 300 MB. Both write in turns; each round begins with another one, and what
counts is the minimum over the rounds, for a disk is only ever slowed down. The reference is timed twice a round (A/A).
How far its two minima are apart says what this disk can tell at the moment: a figure stands only if its distance to the
bar is at least twice that, else it is "too noisy". Reading back and comparing sums is timed apart.

*The pause*: how long training stands still for a save of 100 million parameters with Adam, against one copy of the same
tensors into memory that was used before, with the same number of threads; from the third save on. And with 20,000 small
tensors: by how much the slowest step is slower than the median, while checkpoints are taken and written beside it.

*Training on*: the time of 5 seconds' updates of 10 million parameters with Adam that begin with a save, against that of
the same number of updates that do not, in turns, in one run.

*A long run*: a thousand saves into one folder, of which five or all are kept; the median of the last ten against that
of 11 to 20. The same calls are made by hand, too: how far those grow or shrink is what the file system does by itself.

*A listing*: 10,000 checkpoints, from the journal, and once more with the journal gone, which makes it anew.

It prints a table and a line of JSON, and exits with 1 where a bar that stands is missed.

    python benchmarks/checkpoint.py --rounds 9 --megabytes 300
"""

from __future__ import annotations

import argparse
import gc
import itertools
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from figures import Figure, as_json, status
from torch import nn

import brainlib as bl
from brainlib.checkpoint import manifest

COMMIT_BAR = 1.5  # times torch.save and fsync
PAUSE_BAR = 1.2  # times one copy in memory
HELD_UP_BAR = 0.05  # seconds that any step waits more than the median
TRAINING_BAR = 1.05  # times the run that does not save
GROWTH_BAR = 1.2  # times the saves at the beginning
LISTING_BAR = 1.0  # seconds
REBUILDING_BAR = 5.0  # seconds


def model_with_adam(megabytes: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """So many megabytes together: a third of it are weights, the others Adam's two averages."""
    width = 1024
    layers = max(1, round(megabytes * 1e6 / 12 / width / width))
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def timed(work: Callable[[], Any]) -> float:
    """Seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# ------------------------------------------------------------------------------------------------------------- a commit
def by_hand(path: Path, objects: dict[str, Any]) -> None:
    """The reference: what people write, and a sync."""
    with open(path, "wb") as file:
        torch.save({name: obj.state_dict() for name, obj in objects.items()}, file)
        file.flush()
        os.fsync(file.fileno())


def commits(folder: Path, megabytes: float, num_rounds: int) -> list[Figure]:
    folder.mkdir()
    model, optimizer = model_with_adam(megabytes)
    objects: dict[str, Any] = {"model": model, "optimizer": optimizer}
    checkpointer = bl.Checkpointer(folder / "save", objects, background=False)

    def save() -> None:
        checkpointer.save_checkpoint()

    forms: dict[str, Callable[[], None]] = {
        "torch.save and fsync": lambda: by_hand(folder / "one.pt", objects),
        "a commit": save,
        "torch.save and fsync, again": lambda: by_hand(folder / "other.pt", objects),
    }
    times: dict[str, list[float]] = {name: [] for name in forms}
    names = list(forms)
    for number in range(num_rounds + 1):  # the first one warms up
        start = number % len(names)
        for name in names[start:] + names[:start]:
            for left in folder.glob("*.pt"):
                left.unlink()
            checkpointer.delete_checkpoints(num_to_keep=0)
            os.sync()  # what is still to be written is not the next one's
            seconds = timed(forms[name])
            if number:
                times[name].append(seconds)
    checkpoint = checkpointer.save_checkpoint()
    one, commit, other = (min(times[name]) for name in names)
    reading = min(timed(lambda: checkpointer.load_checkpoint(checkpoint)) for _ in range(3))
    hand = min(one, other)
    noise = abs(other / one - 1)
    size = sum(file.size for file in checkpoint.files.values()) / 1e6
    shutil.rmtree(folder / "save")
    return [
        Figure(f"torch.save and fsync, {size:.0f} MB", hand, "s"),
        Figure("  again (A/A)", other / one, "×"),
        Figure("a commit", commit, "s"),
        Figure("a commit, by torch.save and fsync", commit / hand, "×", COMMIT_BAR, noise),
        Figure("sums compared, read and applied", reading, "s"),
    ]


# ------------------------------------------------------------------------------------------------------------ the pause
def tensors_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Parameters and everything that Adam keeps for them."""
    parameters = [parameter.detach() for group in optimizer.param_groups for parameter in group["params"]]
    return parameters + [value for state in optimizer.state.values() for value in state.values()]


def pause(folder: Path, megabytes: float, num_rounds: int) -> list[Figure]:
    """With all threads: a copy of so many bytes is faster with several."""
    model, optimizer = model_with_adam(megabytes)
    checkpointer = bl.Checkpointer(folder, {"model": model, "optimizer": optimizer})
    sources = tensors_of(optimizer)
    targets = [torch.empty_like(source) for source in sources]
    forms: dict[str, Callable[[], Any]] = {
        "copy": lambda: torch._foreach_copy_(targets, sources),
        "save": checkpointer.save_checkpoint,
        "again": lambda: torch._foreach_copy_(targets, sources),
    }
    times: dict[str, list[float]] = {name: [] for name in forms}
    for number in range(num_rounds + 2):
        for name, work in forms.items():
            seconds = timed(work)
            if number >= 2:
                times[name].append(seconds)
            checkpointer.wait()
        checkpointer.delete_checkpoints(num_to_keep=0)
    one, save, other = (min(times[name]) for name in forms)
    size = sum(source.nbytes for source in sources) / 1e6
    return [
        Figure(f"one copy in memory, {size:,.0f} MB", min(one, other), "s"),
        Figure("  again (A/A)", other / one, "×"),
        Figure("the pause of a save", save, "s"),
        Figure("the pause, by one copy", save / min(one, other), "×", PAUSE_BAR, abs(other / one - 1)),
    ]


def small_tensors(folder: Path, num_tensors: int, num_steps: int, num_rounds: int) -> list[Figure]:
    """A quarter of them are parameters, the others Adam's two averages and its counts; minima over the rounds."""
    model = nn.ParameterList([torch.randn(8) for _ in range(num_tensors // 4)])
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, foreach=True)
    parameters = list(model.parameters())
    checkpointer = bl.Checkpointer(folder, {"model": model, "optimizer": optimizer})

    def step() -> None:
        for parameter in parameters:
            parameter.grad = (
                parameter.detach() * 0.1
            )  # thousands of calls, each of which lets go of the interpreter
        optimizer.step()

    def held_up(saves: bool) -> tuple[float, float]:
        """By how much the slowest step of a round is above the median; a save comes after the first third."""
        times = []
        for number in range(num_steps):
            start = time.perf_counter()
            step()
            if saves and number == num_steps // 3:
                checkpointer.save_checkpoint()
            times.append(time.perf_counter() - start)
        checkpointer.wait()
        checkpointer.delete_checkpoints(num_to_keep=0)
        median = statistics.median(times)
        return max(times) - median, median

    gc.collect()
    gc.disable()  # Python's search for rings holds up a step of so many small objects by 0.15 s, saves or not
    held_up(saves=True)
    held_up(saves=True)
    rounds = [(held_up(False), held_up(True), held_up(False)) for _ in range(num_rounds)]
    gc.enable()
    alone, beside, again = (min(times[form][0] for times in rounds) for form in range(3))
    median = statistics.median(times[0][1] for times in rounds)
    ordinary = statistics.median(times[1][0] for times in rounds)
    return [
        Figure(f"a step of {num_tensors:,} small tensors", median, "s"),
        Figure("  the slowest, above the median, no saves", max(alone, again), "s"),
        Figure("the slowest while a checkpoint is written", beside, "s", HELD_UP_BAR, abs(alone - again)),
        Figure("  in the median of the rounds", ordinary, "s"),
    ]


# ---------------------------------------------------------------------------------------------------------- training on
class Wide(bl.Brain):
    """A stack of layers, so wide that the time goes into the mathematics."""

    def compute_forward(self, batch: torch.Tensor, stage: bl.Stage) -> torch.Tensor:
        return self.modules.model(batch)

    def compute_objectives(
        self, predictions: torch.Tensor, batch: torch.Tensor, stage: bl.Stage
    ) -> torch.Tensor:
        return (predictions - batch).square().mean()


def training(folder: Path, parameters: float, seconds: float, num_rounds: int) -> list[Figure]:
    """One run, in thirds of 5 seconds: one begins with a save, which is written in it, the next two do not save."""
    width = 1024
    data = [torch.randn(64, width) for _ in range(8)]
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(max(1, round(parameters / width**2)))))
    ends: list[float] = []

    class Timed(Wide):
        def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Any, should_step: bool) -> None:
            ends.append(time.perf_counter())

    def run(updates: int, saves_every: int) -> None:
        ends.clear()
        brain = Timed(
            {"model": model},
            lambda params: torch.optim.Adam(params, 1e-4),
            run_opts={
                "noprogressbar": True,
                "ckpt_interval_minutes": 0,
                "ckpt_interval_steps": saves_every,
            },
            checkpointer=bl.Checkpointer(folder / f"{time.time_ns()}"),
        )
        brain.fit(range(1), [data[number % len(data)] for number in range(updates)])

    run(60, 0)
    third = max(2, round(seconds / ((ends[-1] - ends[10]) / (len(ends) - 11))))
    run(third * (3 * num_rounds + 6), 3 * third)
    marks = ends[third - 1 :: third]  # a save comes with the last update of a third: after its mark
    taken = [later - earlier for earlier, later in itertools.pairwise(marks)]
    saving, without, again = taken[2::3], taken[3::3], taken[4::3]
    rounds = list(zip(saving, without, again, strict=False))[
        1:
    ]  # the first save touches its memory for the first time
    ratio = statistics.median(s / ((w + a) / 2) for s, w, a in rounds)
    noise = abs(statistics.median(a / w for _, w, a in rounds) - 1)
    shutil.rmtree(folder)
    return [
        Figure(
            f"{third} updates of {parameters / 1e6:.0f} million parameters", statistics.median(without), "s"
        ),
        Figure("  again (A/A)", 1 + noise, "×"),
        Figure("the same with a save", ratio, "×", TRAINING_BAR, noise),
    ]


# ----------------------------------------------------------------------------------------------------------- a long run
def by_hand_small(folder: Path, model: nn.Module, number: int) -> None:
    """The calls that a small commit cannot do without, into a folder that grows as well."""
    place = folder / f"{number:08d}"
    place.mkdir()
    by_hand(place / "model.pt", {"model": model})
    by_hand(place / "manifest.pt", {})
    for each in (place, folder):
        fd = os.open(each, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def long_run(folder: Path, num_saves: int) -> list[Figure]:
    """A file system itself is slower with every folder in a folder, so it is asked by hand as well."""
    model = nn.Linear(100, 100)
    five, every = (
        bl.Checkpointer(folder / "five", {"model": model}, background=False),
        bl.Checkpointer(folder / "all", {"model": model}, background=False),
    )
    (folder / "hand").mkdir(parents=True)
    kept_five, kept_all, hand = [], [], []
    for number in range(num_saves):
        kept_five.append(timed(lambda: five.save_and_keep_only({"loss": 0.5}, num_to_keep=5)))
        kept_all.append(timed(lambda: every.save_checkpoint({"loss": 0.5})))
        hand.append(timed(lambda number=number: by_hand_small(folder / "hand", model, number)))  # type: ignore[misc]
    shutil.rmtree(folder)

    def growth(times: list[float]) -> float:
        return statistics.median(times[-10:]) / statistics.median(times[10:20])

    noise = abs(growth(hand) - 1)  # what this file system does by itself, faster or slower
    return [
        Figure("a small save, 11 to 20, all kept", statistics.median(kept_all[10:20]), "s"),
        Figure("  by hand: the last ten by those", growth(hand), "×"),
        Figure(f"the last ten of {num_saves:,} by those, 5 kept", growth(kept_five), "×", GROWTH_BAR, noise),
        Figure("  all kept", growth(kept_all), "×", GROWTH_BAR, noise),
    ]


# ------------------------------------------------------------------------------------------------------------ a listing
def listings(folder: Path, num_checkpoints: int) -> list[Figure]:
    """The folders are copies of a real one with another number; to save so many would take minutes."""
    model, optimizer = model_with_adam(0.1)
    pattern = (
        bl.Checkpointer(folder, {"model": model, "optimizer": optimizer})
        .save_checkpoint({"loss": 0.5})
        .wait()
    )
    for number in range(2, num_checkpoints + 1):
        place = folder / f"commit-{number:08d}"
        place.mkdir()
        told = replace(pattern, path=place, commit=number, meta={"loss": 1 / number, "WER": float(number)})
        (place / "manifest.json").write_bytes(manifest.to_bytes(told))

    def listed() -> int:
        return len(bl.Checkpointer(folder).records())

    (folder / "records.jsonl").unlink()
    anew = timed(listed)
    from_journal = [timed(listed) for _ in range(5)]
    assert listed() == num_checkpoints
    return [
        Figure(f"{num_checkpoints:,} listed from the journal", min(from_journal), "s", LISTING_BAR),
        Figure("the journal made anew", anew, "s", REBUILDING_BAR),
    ]


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="counted rounds of a commit (default 9)")
    parser.add_argument("--megabytes", type=float, default=300, help="of model and optimizer (default 300)")
    parser.add_argument("--parameters", type=float, default=100e6, help="of the pause (default 100 million)")
    parser.add_argument(
        "--seconds", type=float, default=5, help="between two saves while training goes on (default 5)"
    )
    parser.add_argument("--saves", type=int, default=1000, help="of the long run (default 1,000)")
    parser.add_argument("--checkpoints", type=int, default=10_000, help="of the listing (default 10,000)")
    parser.add_argument("--folder", help="where to write (default: the folder for temporary files)")
    arguments = parser.parse_args()

    logging.getLogger("brainlib").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        paused = pause(folder / "pause", arguments.parameters * 12 / 1e6, arguments.rounds)
        shutil.rmtree(folder / "pause")
        torch.set_num_threads(1)
        figures = [
            *paused,
            *small_tensors(folder / "small", 20_000, 30, arguments.rounds),
            *training(folder / "training", arguments.parameters / 10, arguments.seconds, arguments.rounds),
            *commits(folder / "commits", arguments.megabytes, arguments.rounds),
            *long_run(folder / "long", arguments.saves),
            *listings(folder / "listing", arguments.checkpoints),
        ]
    print(
        f"{arguments.rounds} rounds, one thread (the pause: all), torch {torch.__version__}; minima over the rounds\n"
    )
    print(f"{'':42}{'':>9}{'bar':>10}")
    for figure in figures:
        bar = figure.limit and f"{figure.limit} {figure.unit}"
        print(f"{figure.name:42}{figure.value:8.3f} {figure.unit}{bar:>9}   {figure.verdict}")
    print(as_json("checkpoint", figures, rounds=arguments.rounds))
    return status(figures)


if __name__ == "__main__":
    sys.exit(main())
