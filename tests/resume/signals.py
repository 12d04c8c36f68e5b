"""Runs that are sent signals at random moments, started again until they end, and compared with one left in peace.

``python -m tests.resume.signals`` prints a table; `sweep` is the same for other programs. A signal comes to the process
alone, as from ``kill``, or to it and everything that it has started, as from a scheduler.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.contracts.brains import SEVEN
from tests.recipes.warm import WarmScript

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("signal_job.py")
LONGEST = 60.0  # seconds after a signal in which a process has to be gone; it takes well under one

# How a process may end that has got a signal: inside a fit, or while none runs; and 0, when it had ended before.
# (A process of `WarmScript` ends with 1 where the interpreter would kill itself with SIGINT.)
ENDINGS = {
    signal.SIGTERM: {143, -signal.SIGTERM, 0},
    signal.SIGUSR1: {138, -signal.SIGUSR1, 0},
    signal.SIGINT: {1, -signal.SIGINT, 0},
}

Start = Callable[..., int]


@contextmanager
def warm() -> Iterator[Start]:
    """Starts jobs by forking a process that has imported everything."""
    with WarmScript(JOB, ROOT) as script:
        yield script.run


def family(process: int) -> list[int]:
    """A process, and all that it has started."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []
    return [process, *(each for child in children for each in family(int(child)))]


def is_there(process: int) -> bool:
    """Whether a process has not ended; one that only waits to be reaped has."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def survivors(folder: Path, seconds: float = 10.0) -> list[int]:
    """Processes of a job that are still there, after some patience."""
    noted = [int(line) for line in (folder / "processes").read_text().split()]
    deadline = time.monotonic() + seconds
    while (there := [each for each in noted if is_there(each)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return there


class Sender:
    """Asked every few milliseconds whether to kill a job: sends it a signal instead, and kills only what hangs."""

    def __init__(self, folder: Path, signum: int, seconds: float, to_all: bool) -> None:
        self._noted = folder / "processes"
        self._known = len(self._read())
        self._signum, self._seconds, self._to_all = signum, seconds, to_all
        self._due: float | None = None
        self.sent: float | None = None

    def __call__(self) -> bool:
        now = time.monotonic()
        if self.sent is not None:
            return now > self.sent + LONGEST
        if self._due is None and len(self._read()) > self._known:
            self._due = now + self._seconds
        if self._due is not None and now >= self._due:
            self.sent = now
            process = self._read()[self._known]
            for each in family(process) if self._to_all else [process]:
                try:
                    os.kill(each, self._signum)
                except ProcessLookupError:
                    pass
        return False

    def _read(self) -> list[int]:
        return [int(line) for line in self._noted.read_text().split()] if self._noted.exists() else []


def ended(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """What a run that has ended is compared by."""
    return json.loads((folder / "result").read_text()), (folder / "trace").read_text().splitlines()


@dataclass
class Trial:
    """One run of the sweep, and what became of it."""

    style: str
    arguments: list[str]
    signals: list[tuple[int, float, bool]]
    problems: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    slowest: float = 0.0  # seconds from a signal to the end of the process

    def go(self, start: Start, folder: Path, expected: tuple[dict[str, Any], list[str]]) -> None:
        folder.mkdir()
        log = folder / "log"
        for signum, seconds, to_all in self.signals:
            sender = Sender(folder, signum, seconds, to_all)
            status = start(str(folder), self.style, *self.arguments, output=log, kill_when=sender)
            name = signal.Signals(signum).name
            if sender.sent is not None:
                self.slowest = max(self.slowest, time.monotonic() - sender.sent)
                self.statuses[status] += 1
                if status not in ENDINGS[signal.Signals(signum)]:
                    self.problems.append(f"{name} after {seconds:.3f} s: status {status}")
            if there := survivors(folder):
                self.problems.append(f"{name} after {seconds:.3f} s: {there} are left")
            if (folder / "result").exists():
                break
        else:
            status = start(str(folder), self.style, *self.arguments, output=log)
            if status:
                self.problems.append(f"left in peace it ended with status {status}")
                return
        if ended(folder) != expected:
            self.problems.append("it ended with other bits than the run that was left in peace")


def plan(number: int, seed: str) -> list[Trial]:
    """Trials with so many signals in all."""
    draw, trials, left = random.Random(seed), [], number
    styles = [cls.__name__ for cls in SEVEN] + ["Everything"]
    while left > 0:
        some = min(draw.randint(1, 4), left)
        left -= some
        options = {
            "grad_accumulation_factor": draw.choice([1, 3]),
            "valid_interval_steps": draw.choice([0, 2]),
            "ckpt_interval_steps": draw.choice([0, 0, 1]),
        }
        workers = draw.choice([0, 2])
        arguments = [
            "--workers", str(workers), "--item_seconds", "0.004", "--batch_seconds", "0.004",
            "--options", json.dumps(options),
        ]  # fmt: skip
        signals = [
            (draw.choice(list(ENDINGS)), draw.uniform(0.0, 0.7 if workers else 0.5), draw.random() < 0.5)
            for _ in range(some)
        ]
        trials.append(Trial(styles[len(trials) % len(styles)], arguments, signals))
    return trials


def sweep(number: int = 100, seed: int = 0, lanes: int = 2) -> list[Trial]:
    """Send `number` random signals to runs of all styles; what went wrong stands in `Trial.problems`.

    A signal that is drawn for a moment at which its run has ended is not sent; others are drawn until all are.

    Args:
        number: how many signals, at least.
        seed: of the moments; the same seed draws the same ones, though a machine never does the same thing twice.
        lanes: how many runs go on at a time.
    """
    trials: list[Trial] = []
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="brainlib-signals-")))
        free: SimpleQueue[Start] = SimpleQueue()
        for _ in range(lanes):
            free.put(stack.enter_context(warm()))
        pool = stack.enter_context(ThreadPoolExecutor(lanes))
        lock = threading.Lock()

        @functools.cache
        def in_peace(style: str, options: str) -> tuple[dict[str, Any], list[str]]:
            folder = Path(tempfile.mkdtemp(dir=home))
            start = free.get()
            try:
                status = start(str(folder), style, "--options", options, output=folder / "log")
            finally:
                free.put(start)
            assert status == 0, (folder / "log").read_text()
            return ended(folder)

        def run(place: int) -> None:
            trial, folder = trials[place], home / str(place)
            options = trial.arguments[-1]
            with lock:
                expected = in_peace(trial.style, options)
            start = free.get()
            try:
                trial.go(start, folder, expected)
            finally:
                free.put(start)
            if trial.problems:
                trial.problems.append((folder / "log").read_text()[-3000:])
            shutil.rmtree(folder, ignore_errors=True)

        while (left := number - sum(sum(trial.statuses.values()) for trial in trials)) > 0:
            begun = len(trials)
            trials += plan(left, f"{seed}-{begun}")
            list(pool.map(run, range(begun, len(trials))))
    return trials


def report(trials: list[Trial]) -> str:
    """How the runs ended, in lines, and what is wrong with which of them."""
    statuses = sum((trial.statuses for trial in trials), Counter())
    bad = [trial for trial in trials if trial.problems]
    lines = [f"{sum(statuses.values())} signals to {len(trials)} runs, {len(bad)} of them with problems"]
    lines += [f"  status {status:4d}: {count}" for status, count in sorted(statuses.items())]
    lines.append(f"  slowest end after a signal: {max(trial.slowest for trial in trials):.2f} s")
    for trial in bad:
        lines += [f"\n{trial.style} {trial.arguments} {trial.signals}", *trial.problems]
    return "\n  ".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--number", type=int, default=100, help="how many signals")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lanes", type=int, default=os.cpu_count() or 1, help="how many runs at a time")
    given = parser.parse_args()
    trials = sweep(given.number, given.seed, given.lanes)
    print(report(trials))
    sys.exit(any(trial.problems for trial in trials))


if __name__ == "__main__":
    main()
