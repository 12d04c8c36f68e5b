"""`make chaos`: runs are killed everywhere, started again, and have to end with the bits of the one that was not.

*The sweep*: every cell is cut at every place, as often as a run comes there. *At random*: 300 kills by a seed, half of
them at a place, half sent from outside at a random moment, of which half are killed once more while they go on; the
table tells what the processes were doing. *Signals*: 100 at random moments, to runs of all styles. *With interpreters
of their own*: ten cells once more, as a user starts them, with two torch threads, and going on with another number of
workers.

Each failure is printed with the arguments that repeat it alone. It exits with 1 unless all are equal.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.resume import signals
from tests.resume.job import DOING, WRITING
from tests.resume.plan import CELLS, PLACES, Cell, Cut
from tests.resume.runs import (
    Ended,
    Failed,
    Start,
    cut_and_resumed,
    cuts_of,
    differences,
    fresh,
    lanes,
    references,
    run_cut,
    run_to_its_end,
)

NUM_KILLS = 300
NUM_FRESH = 10
NUM_SIGNALS = 100
NUM_MOMENTS = 20  # tried for a kill from outside until one comes before the process has ended by itself
TWO_THREADS = ("--threads", "2")

Map = Callable[[Callable[..., Any], Iterable[Any]], Iterator[Any]]


@dataclass(frozen=True)
class Kill:
    """A random one.

    Attributes:
        cell: what is run.
        way: how it writes checkpoints.
        moments: the place to cut; or seconds, to try one after the other until the process has not ended by then.
        again: after so many seconds the process that goes on is killed, too, unless it has ended.
    """

    cell: Cell
    way: str
    moments: Sequence[Cut] | Sequence[float]
    again: float | None = None


def is_inside(number: int) -> bool:
    """Whether a random kill is one at a place."""
    return number % 2 == 1


class Chaos:
    """What is done, and the count of what came out equal.

    Args:
        in_lanes: does several things at a time, see `lanes`.
        seed: of all that is drawn.
    """

    def __init__(self, in_lanes: Map, seed: int) -> None:
        self.in_lanes, self.seed = in_lanes, seed
        self.references: dict[Cell, Ended] = {}
        self.right: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()

    # ------------------------------------------------------------------------------------------- what is done

    def run_uncut(self, cells: Sequence[Cell]) -> None:
        """The references; and saving must change nothing."""

        def work(start: Start, folder: Path, cell: Cell) -> tuple[Ended, list[str]]:
            return references(start, cell, folder)

        for cell, (reference, wrong) in zip(cells, self.in_lanes(work, cells), strict=True):
            self.references[cell] = reference
            self.judge("uncut runs with and without checkpoints", wrong, f"--cell {cell}")

    def sweep(self, cells: Sequence[Cell], only: Cut | None = None) -> None:
        """Every place of every cell, or one."""

        def work(start: Start, folder: Path, todo: tuple[Cell, Cut]) -> list[str]:
            return cut_and_resumed(start, todo[0], folder, todo[1], self.references[todo[0]])

        cuts = {cell: [only] if only else cuts_of(self.references[cell]) for cell in cells}
        todo = [(cell, cut) for cell in cells for cut in cuts[cell]]
        print_row("", [place.split(" ")[0] for place in PLACES])
        print_row("cuts that came out equal", [" ".join(place.split(" ")[1:]) for place in PLACES])
        right: Counter[str] = Counter()
        for (cell, cut), wrong in zip(todo, self.in_lanes(work, todo), strict=True):
            right[cut.place] += self.judge("cuts of the sweep", wrong, f'--cell {cell} --cut "{cut}"')
            if cut == cuts[cell][-1]:
                print_row(str(cell), [right[place] for place in PLACES])
                right.clear()

    def kill_at_random(self, numbers: Sequence[int]) -> None:
        """One for each number; all about it follows from that and the seed, but for when exactly one falls."""

        def work(start: Start, folder: Path, number: int) -> tuple[str, list[str]]:
            kill = self.drawn(number)
            return killed(start, folder, kill, self.references[kill.cell])

        fell: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
        for number, (was_doing, wrong) in zip(numbers, self.in_lanes(work, numbers), strict=True):
            fell[is_inside(number)][was_doing] += 1
            self.judge("random kills", wrong, f"--seed {self.seed} --kill {number}")
        columns = [*DOING, WRITING[-1]]
        print_row("random kills, and where they fell", columns)
        for inside, name in (
            (True, "by themselves, at a place"),
            (False, "from outside, at a random moment"),
        ):
            print_row(name, [fell[inside][column] for column in columns])

    def drawn(self, number: int) -> Kill:
        rng = random.Random(f"{self.seed}-{number}")
        cell = rng.choice(CELLS)
        reference = self.references[cell]
        if is_inside(number):
            return Kill(cell, rng.choice(["here", "waited"]), [rng.choice(cuts_of(reference))])
        moments = [rng.uniform(0.0, reference.seconds) for _ in range(NUM_MOMENTS)]
        again = rng.uniform(0.0, reference.seconds / 2) if rng.random() < 0.5 else None
        return Kill(cell, rng.choice(["here", "beside", "beside"]), moments, again)

    def with_interpreters(self, cells: Sequence[Cell], only: Cut | None = None) -> None:
        """As a user starts them, and going on with another number of workers; at one place each."""

        def work(start: Start, folder: Path, cell: Cell) -> tuple[Cut, list[str]]:
            reference, wrong = references(start, cell, folder.with_name("uncut"), *TWO_THREADS)
            cut = only or random.Random(f"{self.seed}-{cell}").choice(cuts_of(reference))
            other = ("--num_workers", str(2 - cell.num_workers))
            wrong += cut_and_resumed(fresh, cell, folder, cut, reference, *TWO_THREADS, going_on=other)
            return cut, wrong

        for cell, (cut, wrong) in zip(cells, self.in_lanes(work, cells), strict=True):
            self.judge("cuts with interpreters of their own", wrong, f'--fresh --cell {cell} --cut "{cut}"')

    def send_signals(self, number: int, num_lanes: int) -> None:
        """At random moments, to runs of all styles."""
        trials = signals.sweep(number, self.seed, num_lanes)
        print(signals.report(trials), flush=True)
        for trial in trials:
            self.judge(
                "runs that random signals stopped", trial.problems, f"--seed {self.seed} --signals {number}"
            )

    # ------------------------------------------------------------------------------------------- what comes of it

    def judge(self, kind: str, wrong: list[str], arguments: str) -> bool:
        (self.wrong if wrong else self.right)[kind] += 1
        if wrong:
            told = f"WRONG; alone: python -m tests.resume.chaos {arguments}"
            print(told, *wrong, sep="\n    ", flush=True)
        return not wrong

    def summary(self) -> str:
        kinds = dict.fromkeys([*self.right, *self.wrong])
        return "\n".join(f"{self.right[k]:,} of {self.right[k] + self.wrong[k]:,} {k}" for k in kinds)


def killed(start: Start, folder: Path, kill: Kill, reference: Ended) -> tuple[str, list[str]]:
    """What a process was doing when it was killed, and what is wrong with the run in the end."""
    was_doing: str | None = None
    way = ("--way", kill.way)
    try:
        for number, moment in enumerate(kill.moments):
            place = folder.with_name(f"{folder.name}-{number}")
            was_doing = run_cut(start, kill.cell, place, moment, *way)
            if was_doing is not None:
                if kill.again is not None:
                    run_cut(start, kill.cell, place, kill.again, *way)
                return was_doing, differences(run_to_its_end(start, kill.cell, place, *way), reference)
    except Failed as error:
        return was_doing or "unknown", [str(error)]
    return "unknown", ["every kill came too late"]


def print_row(name: str, columns: Sequence[object]) -> None:
    print(f"{name:34}" + "".join(f"{column!s:>11}" for column in columns), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="of all that is drawn; without it, another one each time")
    parser.add_argument("--kills", type=int, default=NUM_KILLS, help=f"random ones (default {NUM_KILLS})")
    parser.add_argument(
        "--lanes", type=int, default=os.cpu_count(), help="runs at a time (default: as many as cores)"
    )
    parser.add_argument("--cell", type=Cell.from_name, help="only this one, at every place")
    parser.add_argument("--cut", type=Cut.from_name, help="of --cell: only this one")
    parser.add_argument(
        "--fresh", action="store_true", help="of --cell: with an interpreter for each process"
    )
    parser.add_argument("--signals", type=int, help="only so many random signals")
    parser.add_argument("--kill", type=int, help="of the random ones of --seed: only this one")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {seed}, {arguments.lanes} lanes")
    begin = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="brainlib-chaos-") as home,
        lanes(arguments.lanes, Path(home)) as in_lanes,
    ):
        chaos = Chaos(in_lanes, seed)
        if arguments.signals is not None:
            chaos.send_signals(arguments.signals, arguments.lanes)
        elif arguments.kill is not None:
            chaos.run_uncut([random.Random(f"{seed}-{arguments.kill}").choice(CELLS)])
            chaos.kill_at_random([arguments.kill])
        elif arguments.cell is not None and arguments.fresh:
            chaos.with_interpreters([arguments.cell], arguments.cut)
        elif arguments.cell is not None:
            chaos.run_uncut([arguments.cell])
            chaos.sweep([arguments.cell], arguments.cut)
        else:
            chaos.run_uncut(CELLS)
            chaos.sweep(CELLS)
            chaos.kill_at_random(range(arguments.kills))
            chaos.send_signals(NUM_SIGNALS, arguments.lanes)
            chaos.with_interpreters(random.Random(seed).sample(CELLS, NUM_FRESH))
    print(f"{chaos.summary()}; seed {seed}, {time.monotonic() - begin:.0f} s")
    return 1 if chaos.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
