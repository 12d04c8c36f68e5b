"""Runs are started, cut, started again, and compared with the run that was not cut."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.recipes.warm import POLL_SECONDS, WarmScript
from tests.resume.job import DOING, WRITING
from tests.resume.plan import Cell, Cut, way_for

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("job.py")

Start = Callable[..., int]  # (*arguments, output=path, kill_when=asked every few milliseconds) → exit status


@contextmanager
def warm() -> Iterator[Start]:
    """Starts runs by forking a process that has imported everything."""
    with WarmScript(JOB, ROOT, "tests.resume.job") as script:
        yield script.run


@contextmanager
def lanes(number: int, home: Path) -> Iterator[Callable[[Callable[..., Any], Iterable[Any]], Iterator[Any]]]:
    """Several warm processes, so that several runs go on at a time.

    Args:
        number: how many.
        home: where the folders of runs are made.

    Yields:
        A `map`: ``work(start, folder, each)`` for each, in order. `folder` is a path that is free.
    """
    with ExitStack() as stack:
        free: SimpleQueue[Start] = SimpleQueue()
        for _ in range(number):
            free.put(stack.enter_context(warm()))

        def each_in_a_lane(work: Callable[..., Any], todo: Iterable[Any]) -> Iterator[Any]:
            def one(each: Any) -> Any:
                start = free.get()
                try:
                    return work(start, Path(tempfile.mkdtemp(dir=home)) / "run", each)
                finally:
                    free.put(start)

            pool = ThreadPoolExecutor(number)
            try:
                yield from pool.map(one, todo)
            finally:
                pool.shutdown(cancel_futures=True)

        yield each_in_a_lane


def fresh(*arguments: str, output: Path, kill_when: Callable[[], bool] = lambda: False) -> int:
    """Starts a run as a user does: with an interpreter of its own."""
    with open(output, "ab") as file:
        process = subprocess.Popen(
            [sys.executable, str(JOB), *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if kill_when():
            process.kill()
            break
        time.sleep(POLL_SECONDS)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    os.killpg(process.pid, signal.SIGKILL)  # the workers of a loader, where it was killed
    return process.wait()


def after(seconds: float) -> Callable[[], bool]:
    """For `kill_when`: true from so many seconds on, counted from now."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


@dataclass
class Ended:
    """What is left of the processes of one run.

    Attributes:
        trace: for each batch that was trained on and each stage that ended, all that the processes noted of it: one
            line, or several where it was done again.
        end: what it ended with.
        counts: how often its last process came to each of the places.
        seconds: how long that took.
    """

    trace: dict[tuple[Any, ...], list[dict[str, Any]]]
    end: dict[str, Any]
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


class Failed(Exception):
    """A process did not end as it should have."""


def run_to_its_end(start: Start, cell: Cell, folder: Path, *more: str) -> Ended:
    """One process, not cut; in a folder where there was one before, it goes on.

    Raises:
        Failed: It did not come to its end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / "output.txt"
    status = start(str(cell), str(folder), *more, output=output)
    if status != 0:
        told = output.read_text(errors="replace")[-3000:]
        raise Failed(f"it ended with status {status}, having said:\n{told}")
    result = json.loads((folder / "result.json").read_text())
    return Ended(trace_of(folder), result["end"], result["counts"], result["seconds"])


def trace_of(folder: Path) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    trace: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for text in (folder / "trace.jsonl").read_text().split("\n"):
        try:
            line = json.loads(text) if text else None
        except ValueError:  # a kill in the middle of it
            continue
        if line is not None:
            trace.setdefault(tuple(line.pop("at")), []).append(line)
    return trace


def run_cut(start: Start, cell: Cell, folder: Path, cut: Cut | float, *more: str) -> str | None:
    """One process that gets SIGKILL; returns what it was doing then, None if it had ended by itself before.

    Args:
        start: how processes are started.
        cell: what is run.
        folder: where it is.
        cut: the place where the process kills itself; or so many seconds after its start, from outside.
        more: arguments for it.

    Raises:
        Failed: It ended in another way.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words, output = [str(cell), str(folder), *more], folder / "output.txt"
    if isinstance(cut, Cut):
        status = start(*words, "--cut", str(cut), output=output)
    else:
        status = start(*words, output=output, kill_when=after(cut))
    if status == -signal.SIGKILL:
        return doing(folder)
    if status == 0 and not isinstance(cut, Cut):
        return None
    told = output.read_text(errors="replace")[-3000:]
    raise Failed(f"it was not killed; it ended with status {status}, having said:\n{told}")


def doing(folder: Path) -> str:
    """What a process that was killed was busy with."""
    try:
        script, writing = (folder / "phase").read_bytes()
    except (FileNotFoundError, ValueError):  # killed before it had said anything
        return DOING[0]
    return WRITING[writing] if writing else DOING[script]


def differences(ended: Ended, reference: Ended, without: tuple[str, ...] = ()) -> list[str]:
    """What is not the same as in the run that was not cut; empty when all is."""
    wrong = [
        f"{key}: {ended.end.get(key)} and not {value}"
        for key, value in reference.end.items()
        if key not in without and ended.end.get(key) != value
    ]
    for at, (expected,) in reference.trace.items():
        found = ended.trace.get(at, [])
        if not found:
            wrong.append(f"{at} is missing")
        wrong += [f"{at}: {line} and not {expected}" for line in found if line != expected]
    wrong += [f"{at} was done and should not have been" for at in ended.trace if at not in reference.trace]
    return wrong


def references(start: Start, cell: Cell, folder: Path, *more: str) -> tuple[Ended, list[str]]:
    """The run that is not cut, and how it differs from the one that does not save either."""
    saving = run_to_its_end(start, cell, folder / "saving", *more)
    plain = run_to_its_end(start, cell, folder / "plain", "--without_checkpoints", *more)
    wrong = differences(plain, saving, without=("best", "test"))
    shutil.rmtree(folder)
    return saving, [f"without checkpoints, {each}" for each in wrong]


def cuts_of(reference: Ended) -> list[Cut]:
    """Every place of a cell, as often as a run comes there."""
    return [Cut(place, number + 1) for place, times in reference.counts.items() for number in range(times)]


def cut_and_resumed(
    start: Start,
    cell: Cell,
    folder: Path,
    cut: Cut,
    reference: Ended,
    *more: str,
    going_on: Sequence[str] = (),
) -> list[str]:
    """What is wrong with a run that was cut and started again; empty when nothing is.

    Args:
        start: how processes are started.
        cell: what is run.
        folder: where; it is removed when nothing is wrong.
        cut: where the first process ends.
        reference: how it has to end.
        more: arguments for both processes.
        going_on: arguments for the second one alone.
    """
    more = (*more, "--way", way_for(cell, cut))
    try:
        run_cut(start, cell, folder, cut, *more)
        wrong = differences(run_to_its_end(start, cell, folder, *more, *going_on), reference)
    except Failed as error:
        return [str(error)]
    if not wrong:
        shutil.rmtree(folder)
    return wrong
