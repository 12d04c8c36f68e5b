"""A script with two fits and an evaluation that is sent signals: ``python signal_job.py FOLDER STYLE [options]``.

It writes into its folder: ``save/``, the checkpoints; ``processes``, the ids of itself and of its workers; ``trace``, a
line for each validation that ended; ``result``, a sum of all that was trained, when it has ended. Started again in the
same folder it goes on; that process is seeded with another number, so that what is right at its end came from the
checkpoint.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import functools
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import brainlib as bl
from brainlib.common.files import Disk
from tests.contracts.brains import SEVEN, VALID, Batch, Items, ending, make, ready_batches
from tests.contracts.test_stopped import Everything

STYLES = {cls.__name__: cls for cls in (*SEVEN, Everything)}
OTHER_SEED = 991


class Slow(Items):
    """Items that are different each time they are read, after a while."""

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__()
        self.folder, self.seconds = folder, seconds

    def __getitem__(self, index: int) -> Batch:
        item = super().__getitem__(index)
        time.sleep(self.seconds)
        return {**item, "x": item["x"] + 0.1 * torch.rand(item["x"].shape)}


def note_process(folder: Path, _: int = 0) -> None:
    with open(folder / "processes", "a") as file:
        file.write(f"{os.getpid()}\n")


def line(stage: bl.Stage, epoch: int | None, loss: float, step: int) -> str:
    return f"{stage.name} epoch {epoch}, update {step}: {loss.hex()}"


def descendants(process: int) -> list[int]:
    """The process, and all that it has started, as a scheduler sees them."""
    with open(f"/proc/{process}/task/{process}/children") as file:
        return [process, *(each for child in file.read().split() for each in descendants(int(child)))]


class Stuck:
    """The ways in which a call may not come back, or late."""

    @staticmethod
    def nap() -> None:
        time.sleep(1.5)

    @staticmethod
    def call() -> None:
        ctypes.PyDLL(None).sleep(
            60
        )  # the system's own, which any signal interrupts; it holds the interpreter lock

    @staticmethod
    def sleep() -> None:
        time.sleep(60)

    @staticmethod
    def lock() -> None:
        sum(itertools.repeat(0, 10**12))  # in C, with the interpreter lock, and without a look at signals


class StuckDisk(Disk):
    """A network drive that goes away when the signal comes."""

    gone = False

    def fsync(self, fd: int) -> None:
        if StuckDisk.gone:
            time.sleep(60)
        super().fsync(fd)


def act(what: str) -> None:
    """What happens at the moment that was named on the command line: signals, then a call that hangs or not."""
    StuckDisk.gone = True
    for word in what.split("+"):
        if word.startswith("all-"):
            for process in descendants(os.getpid()):
                os.kill(process, getattr(signal, word.removeprefix("all-")))
        elif word.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, word))
        else:
            getattr(Stuck, word)()


def do_in(brain: bl.Brain, method: str, stage: bl.Stage, number: int, what: str) -> None:
    """Let something happen in a call of a method, once. Calls of an inner fit do not count."""
    original = getattr(brain, method)
    calls = 0

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += stage in (*args, *kwargs.values()) and not getattr(brain, "inside", False)
        if calls == number:
            calls += 1000
            act(what)
        return original(*args, **kwargs)

    setattr(brain, method, replacement)


def earlier_handlers(kind: str | None, folder: Path) -> None:
    def notes(signum: int, frame: Any) -> None:
        (folder / "earlier").write_text(signal.Signals(signum).name)

    def leaves(signum: int, frame: Any) -> None:
        sys.exit(7)

    if kind == "faulthandler":
        faulthandler.register(signal.SIGUSR1, file=2)
    elif kind is not None:
        signal.signal(signal.SIGTERM, {"notes": notes, "leaves": leaves, "ignores": signal.SIG_IGN}[kind])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("style", choices=STYLES)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--item_seconds", type=float, default=0.0)
    parser.add_argument("--batch_seconds", type=float, default=0.0)
    parser.add_argument("--earlier", choices=("notes", "leaves", "ignores", "faulthandler"))
    parser.add_argument(
        "--at", help="METHOD:STAGE:NUMBER:WHAT, such as compute_forward:TRAIN:3:SIGTERM+sleep"
    )
    parser.add_argument("--between", help="what happens between the fits")
    parser.add_argument("--stuck_save", action="store_true", help="the next save after SIGTERM never ends")
    parser.add_argument("--options", type=json.loads, default={}, help="run options, as JSON")
    given = parser.parse_args()
    folder: Path = given.folder

    def trace(text: str) -> None:
        with open(folder / "trace", "a") as file:
            file.write(text + "\n")

    class Job(STYLES[given.style]):  # type: ignore[misc]
        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
            super().on_stage_end(stage, stage_loss, epoch)
            if stage == bl.Stage.VALID:
                trace(line(stage, epoch, stage_loss, self.optimizer_step))

        def compute_objectives(self, predictions: Any, batch: Batch, stage: bl.Stage) -> torch.Tensor:
            time.sleep(given.batch_seconds)
            return super().compute_objectives(predictions, batch, stage)

    again = any((folder / "save").glob("step-*"))
    note_process(folder)
    os.setpgid(0, 0)
    earlier_handlers(given.earlier, folder)
    torch.set_num_threads(1)
    if given.stuck_save:
        bl.Checkpointer.disk = StuckDisk()
    brain = make(
        Job, bl.Checkpointer(folder / "save"), global_seed=OTHER_SEED if again else 3, **given.options
    )
    if given.at:
        method, stage, number, what = given.at.split(":")
        do_in(brain, method, bl.Stage[stage], int(number), what)
    init = functools.partial(note_process, folder)
    loader = {"batch_size": 4, "shuffle": True, "num_workers": given.workers, "worker_init_fn": init}
    brain.fit(range(2), Slow(folder, given.item_seconds), VALID, train_loader_kwargs=loader)
    if given.between:
        act(given.between)
    brain.fit(range(1), ready_batches(), VALID)
    test = brain.evaluate(VALID, checkpoint="current")
    end = {**ending(brain), "test": test.hex(), "counts": getattr(brain, "counts", None)}
    del end["trace"]
    (folder / "result").write_text(json.dumps(end))


if __name__ == "__main__":
    main()
