"""What `fit` costs on top of bare DDP: a training step of two processes that exchange gradients by gloo.

The mathematics is that of `loop.py` (Linear(10, 10), 16 items a rank, SGD, clipping). By hand means torch's DDP and the
loop that people write round it: loss, backward, clipping, step, a running mean. Each form trains in the same two
processes, on one torch thread and one core each, in turns; each round begins with another one. What is timed is one
epoch, from the end of its first step to the end of its last but one, on both ranks; an epoch to warm up came before, so
that nothing that is done once is in the numbers.

Beside the clock stands the processor time of the thread that trains, without the wait for the other rank: it tells what
`fit` does more, also on a machine where others are at work. The bar is for the clock.

The loop by hand is timed twice a round (A/A). How far its two times are apart, and how much that scatters, says what
this machine can tell at the moment: a figure stands only if its distance to the bar is at least twice that, else it is
"too noisy".

It prints a table and a line of JSON, and exits with 1 where a bar that stands is missed, or where the ranks end with
other weights than the loop by hand.

    python benchmarks/ddp.py --rounds 41 --steps 500
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from loop import MAX_NORM, Batch, Hooked, Overridden, Plain, batches, epoch_by_hand, fresh
from torch import nn

import brainlib as bl
from brainlib.distributed.world import World

RANKS = 2
BAR = 50.0  # microseconds a step: the most that `fit` may add


class Mark:
    """An iterator without items that notes when it was asked for one: on the clock, and by the work of this thread."""

    at = (0.0, 0.0)

    def __iter__(self) -> Mark:
        return self

    def __next__(self) -> Any:
        self.at = time.perf_counter(), time.thread_time()
        raise StopIteration


class TimedBatches(list):  # type: ignore[type-arg]
    """A list of batches that knows how long the last walk through it took, its first and its last round left out.

    Args:
        batches: for all who read them in turns.
        size: how many these are: a round is a batch for each.
    """

    def __init__(self, batches: list[Batch], size: int) -> None:
        super().__init__(batches)
        self.size = size
        self.start, self.end = Mark(), Mark()

    def __iter__(self) -> Iterator[Batch]:
        middle = islice(super().__iter__(), self.size, len(self) - self.size)
        return chain(self[: self.size], self.start, middle, self.end, self[-self.size :])

    @property
    def microseconds(self) -> tuple[float, float]:
        """A step, on the clock and of processor time."""
        num_steps = len(self) / self.size - 2
        clock, work = (b - a for a, b in zip(self.start.at, self.end.at, strict=True))
        return clock / num_steps * 1e6, work / num_steps * 1e6


@dataclass
class Form:
    """One way to train.

    Attributes:
        name: what it is called in the table.
        make: from a folder and the batches of all ranks to the model, its batches, and what trains an epoch on them.
        bar: microseconds a step that it may add; None: it is only told.
        times: microseconds a step of this rank, one a round.
        work: the same of processor time, without the wait for the other rank.
    """

    name: str
    make: Callable[[Path, list[Batch]], tuple[nn.Module, TimedBatches, Callable[[Any], None]]]
    bar: float | None = None
    times: list[float] = field(default_factory=list)
    work: list[float] = field(default_factory=list)


def by_hand(folder: Path, of_all: list[Batch]) -> tuple[nn.Module, TimedBatches, Callable[[Any], None]]:
    model, make_optimizer = fresh()
    wrapped = nn.parallel.DistributedDataParallel(model)
    epoch = epoch_by_hand(wrapped, model, make_optimizer(model.parameters()))
    return model, TimedBatches(of_all[World.from_environment().rank :: RANKS], 1), epoch


def with_brainlib(cls: type[bl.Brain], armed: bool) -> Any:
    def make(folder: Path, of_all: list[Batch]) -> tuple[nn.Module, TimedBatches, Callable[[Any], None]]:
        model, make_optimizer = fresh()
        more: dict[str, Any] = {}
        if armed:
            bl.create_experiment_directory(folder)
            more = {
                "checkpointer": bl.Checkpointer(folder / "save"),
                "loggers": [bl.FileTrainLogger(folder / "log.txt"), bl.JsonlLogger(folder / "metrics.jsonl")],
            }
        options = {"device": "cpu", "max_grad_norm": MAX_NORM, "noprogressbar": True}
        brain = cls({"model": model}, make_optimizer, hparams={"seed": 0}, run_opts=options, **more)
        return model, TimedBatches(of_all, RANKS), lambda batches: brain.fit(range(1), batches)

    return make


def forms() -> list[Form]:
    """The two that are the reference stand at places far apart."""
    return [
        Form("DDP by hand", by_hand),
        Form("fit", with_brainlib(Plain, armed=False), BAR),
        Form("checkpointer, loggers, run folder", with_brainlib(Plain, armed=True), BAR),
        Form("DDP by hand, again", by_hand),
        Form("one hook overridden", with_brainlib(Hooked, armed=True), BAR),
        Form("fit_batch overridden", with_brainlib(Overridden, armed=True)),
    ]


def _stay_on_one_core(rank: int) -> None:
    """Where there are enough: moving from core to core is most of what makes times of the same differ."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) >= RANKS:
        os.sched_setaffinity(0, {cores[rank]})


def measure(folder: str, num_rounds: int, num_steps: int) -> dict[str, Any]:
    """In each of the processes: the times of each form, and the weights it ended with."""
    torch.set_num_threads(1)
    _stay_on_one_core(World.from_environment().rank)
    logging.getLogger("brainlib").setLevel(logging.WARNING)
    bl.ddp_init_group({"device": "cpu"})
    of_all, some = batches(num_steps * RANKS), forms()
    made = [form.make(Path(folder, f"form-{number}"), of_all) for number, form in enumerate(some)]
    for _, timed, epoch in made:
        epoch(timed)
    gc.collect()
    gc.freeze()  # what all forms keep alive is not walked through while one of them is timed
    places = list(range(len(some)))
    for number in range(num_rounds):
        start = number % len(places)
        for place in places[start:] + places[:start]:
            _, timed, epoch = made[place]
            bl.gather(None)  # both begin together
            epoch(timed)
            clock, work = timed.microseconds
            some[place].times.append(clock)
            some[place].work.append(work)
        gc.collect()
    weights = [[value.tolist() for value in model.parameters()] for model, _, _ in made]
    return {"times": [form.times for form in some], "work": [form.work for form in some], "weights": weights}


def uncertainty(differences: list[float]) -> float:
    """How far two times of the same are apart: their median, or what the scatter of the rounds leaves open of it, where
    that is more (twice the standard error of a median; otherwise two times could agree by chance on a busy machine).
    """
    middle = statistics.median(differences)
    scatter = 1.4826 * statistics.median(abs(each - middle) for each in differences)
    return max(abs(middle), 2 * 1.2533 * scatter / len(differences) ** 0.5)


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=41, help="counted epochs of each form (default 41)")
    parser.add_argument("--steps", type=int, default=500, help="steps an epoch (default 500)")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        told = bl.spawn(measure, RANKS, args=(folder, arguments.rounds, arguments.steps))

    some = forms()
    for place, form in enumerate(some):
        form.times, form.work = (
            [statistics.mean(both) for both in zip(*(each[what][place] for each in told), strict=True)]
            for what in ("times", "work")
        )
    hand = next(form for form in some if form.name == "DDP by hand")
    again = next(form for form in some if form.name == "DDP by hand, again")
    reference = [(one + other) / 2 for one, other in zip(hand.times, again.times, strict=True)]
    work = [(one + other) / 2 for one, other in zip(hand.work, again.work, strict=True)]
    noise = uncertainty([b - a for a, b in zip(hand.times, again.times, strict=True)])
    base = statistics.median(reference)

    print(
        f"Linear(10, 10), 16 items a rank, SGD, {RANKS} processes, gloo: {base:.1f} µs a step by hand; "
        f"{arguments.rounds} rounds of {arguments.steps} steps, one thread each, torch {torch.__version__}"
    )
    print(f"A/A: the loop by hand is {noise:.1f} µs from itself\n")
    print(f"{'':36}{'work':>8}{'more':>8}{'clock':>9}{'more':>8}{'bar':>7}")
    rows, missed, different = {}, False, []
    for place, form in enumerate(some):
        added = statistics.median(a - b for a, b in zip(form.times, reference, strict=True))
        worked = statistics.median(a - b for a, b in zip(form.work, work, strict=True))
        verdict = ""
        if form.bar is not None:
            stands = noise <= abs(form.bar - added) / 2
            verdict = "too noisy" if not stands else "passed" if added <= form.bar else "MISSED"
            missed |= verdict == "MISSED"
        bar = "" if form.bar is None else f"≤ {form.bar:.0f}"
        print(
            f"{form.name:36}{statistics.median(form.work):8.1f}{worked:+8.1f}"
            f"{statistics.median(form.times):9.1f}{added:+8.1f}{bar:>7}   {verdict}"
        )
        rows[form.name] = {
            "added_microseconds": round(added, 2),
            "added_work_microseconds": round(worked, 2),
            "bar": form.bar,
            "verdict": verdict or None,
        }
        ends = [torch.cat([torch.tensor(w).flatten() for w in each["weights"][place]]) for each in told]
        expected = torch.cat([torch.tensor(w).flatten() for w in told[0]["weights"][0]])
        if not torch.equal(*ends) or not torch.allclose(ends[0], expected, rtol=0, atol=1e-5):
            different.append(form.name)
    print(
        "\nWeights: "
        + (f"NOT those of the loop by hand: {different}" if different else "those of the loop by hand.")
    )
    print(
        json.dumps(
            {
                "benchmark": "ddp",
                "torch": torch.__version__,
                "python": platform.python_version(),
                "cores": os.cpu_count(),
                "rounds": arguments.rounds,
                "steps": arguments.steps,
                "by_hand_microseconds": round(base, 2),
                "a_a_microseconds": round(noise, 2),
                "forms": rows,
            }
        )
    )
    return 1 if missed or different else 0


if __name__ == "__main__":
    sys.exit(main())
