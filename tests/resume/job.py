"""A script with two fits, as it is cut and started again: ``python job.py CELL FOLDER [--cut PLACE:NUMBER] ...``.

It writes into its folder: ``save/``, the checkpoints; ``trace.jsonl``, a line for each batch that was trained on and
for each stage that ended; ``phase``, two bytes that say what it is doing at the moment; ``result.json`` when it has
ended, with the sum of all that was trained. Started again in the same folder it goes on. The process that goes on is
seeded with another number, so that whatever is right at its end came from the checkpoint.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import hashlib
import json
import mmap
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import brainlib as bl
from brainlib.brain_state import BrainState
from brainlib.common.files import Disk
from brainlib.seeding import generator_states
from brainlib.update.schedules import Cosine
from tests.contracts.brains import SEED, Batch, Plain, digest, make, optimizers_of
from tests.resume.plan import STYLES, WAYS, Cell, Cut
from tests.resume.waves import Waves, collate, listener, ready_waves

OTHER_SEED = 991
LONGEST = 80.0  # seconds after which a run is taken to hang: it tells where every thread stands, and ends

# What a process can be busy with, by the byte that says so: the script, and whoever writes.
DOING = ("start", "data wait", "training", "save", "validation", "epoch end", "test")
WRITING = ("nothing", "save", "prune")

TRAIN, VALID, TEST, INNER = Waves(5, seed=1), Waves(3, seed=2), Waves(3, seed=3), ready_waves((2, 1), seed=4)
LOADER: dict[str, Any] = {"batch_size": 2, "collate_fn": collate}

# The optimizers of the styles that have several; a pure schedule for the first, one of torch's for the second.
SEVERAL = {
    "TwoOptimizers": ("encoder", "decoder"),
    "Gan": ("optimizer_g", "optimizer_d"),
    "InnerFit": ("g_optimizer", "d_optimizer"),
}


class Run:
    """Where this process is, and whether it ends there."""

    def __init__(self, folder: Path, cut: Cut | None, way: str) -> None:
        self.folder, self.cut, self.way = folder, cut, way
        self.counts: Counter[str] = Counter()
        self._trace = os.open(folder / "trace.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        with open(folder / "phase", "wb+") as file:
            file.write(bytes(2))
            file.flush()
            self._phase = mmap.mmap(file.fileno(), 2)

    def comes_to(self, place: str) -> None:
        if self.is_cut_at(place):
            os.kill(os.getpid(), signal.SIGKILL)

    def is_cut_at(self, place: str) -> bool:
        self.counts[place] += 1
        return self.cut == Cut(place, self.counts[place])

    def doing(self, what: str) -> None:
        self._phase[0] = DOING.index(what)

    def writing(self, what: str) -> None:
        self._phase[1] = WRITING.index(what)

    @contextmanager
    def saving(self) -> Iterator[None]:
        before = self._phase[0]
        self.doing("save")
        yield
        self._phase[0] = before

    def note(self, kind: str, brain: bl.Brain, **what: Any) -> None:
        """A line of the trace, which the system has when this returns: a kill leaves it. One inside of it may leave a
        part, so the next line begins with an end of line.
        """
        run = brain.run_state
        line = {"at": [kind, run.fit, run.epoch, run.step], **what}
        os.write(self._trace, f"\n{json.dumps(line)}\n".encode())


class CuttingDisk(Disk):
    """Tells the run of each save and each removal; syncs nothing, for what the system has taken survives a kill."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._files: dict[int, Path] = {}
        self._num_drafts = self._num_writes = 0

    def make_folder(self, path: Path) -> None:
        if path.name.startswith(".writing-"):
            self._run.writing("save")
            self._num_drafts += 1
            self._num_writes = 0
        super().make_folder(path)

    def open_new(self, path: Path) -> int:
        fd = super().open_new(path)
        self._files[fd] = path
        return fd

    def close(self, fd: int) -> None:
        self._files.pop(fd, None)
        super().close(fd)

    def write(self, fd: int, data: memoryview) -> int:
        if fd in self._files and self._files[fd].parent.name.startswith(".writing-"):
            self._num_writes += 1
            if self._num_writes == 1 + self._num_drafts % 4 and self._run.is_cut_at("save"):
                os.write(fd, data[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
        return super().write(fd, data)

    def fsync(self, fd: int) -> None:
        pass

    def rename(self, source: Path, target: Path) -> None:
        commits = source.name.startswith(".writing-") and not target.suffix
        if commits:
            self._run.comes_to("commit")
        super().rename(source, target)
        if commits:
            self._run.comes_to("committed")
            self._run.writing("nothing")
        if target.name.startswith(".deleting-"):
            self._run.writing("prune")
            self._run.comes_to("prune")

    def fsync_dir(self, path: Path) -> None:
        pass

    def rmdir(self, path: Path) -> None:
        super().rmdir(path)
        self._run.writing("nothing")


def checkpointer_of(run: Run) -> bl.Checkpointer:
    class Watched(bl.Checkpointer):
        disk = CuttingDisk(run)

        def save_automatically(self, *args: Any, **kwargs: Any) -> Any:
            with run.saving():
                return super().save_automatically(*args, **kwargs)

        def save_and_keep_only(self, *args: Any, **kwargs: Any) -> Any:
            with run.saving():
                return super().save_and_keep_only(*args, **kwargs)

    return Watched(run.folder / "save")


def watched(style: type[Plain], run: Run) -> type[Plain]:
    """One of the seven, with the model of this folder, that tells the run where it is. Its own methods are kept."""

    class Watched(style):  # type: ignore[misc, valid-type]
        network = staticmethod(listener)
        INNER_DATA = INNER  # of the style that has one
        inside = False  # whether this is the inner fit

        def on_stage_start(self, stage: bl.Stage, epoch: Any = None) -> None:
            if not self.inside:
                if stage is bl.Stage.TRAIN:
                    run.comes_to("epoch begins")
                else:
                    run.doing("validation" if stage is bl.Stage.VALID else "test")
            super().on_stage_start(stage, epoch)
            if not self.inside and stage is bl.Stage.TRAIN:
                run.doing("data wait")

        def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
            training = stage is bl.Stage.TRAIN
            if self.inside:
                run.comes_to("inner fit")
            elif training:
                run.doing("training")
                run.comes_to("batch begins")
                content = hashlib.sha256(batch["x"].contiguous().numpy()).hexdigest()[:16]
                self.heard = {"ids": batch["id"].tolist(), "input": content}
            else:
                run.comes_to("validation" if stage is bl.Stage.VALID else "test")
            with (
                self.training_ctx if training else self.evaluation_ctx
            ):  # some styles do not enter it themselves
                return super().compute_forward(batch, stage).float()

        def trained(self, loss: torch.Tensor) -> None:
            if not self.inside:
                rates = {
                    name: [float(group["lr"]).hex() for group in optimizer.param_groups]
                    for name, optimizer in optimizers_of(self).items()
                }
                run.note("batch", self, **self.heard, loss=float(loss.detach()).hex(), rates=rates)
                run.comes_to("batch ends")
                if run.way == "waited" and self.checkpointer is not None:
                    with run.saving():
                        self.checkpointer.wait()
                run.doing("data wait")

        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: Any = None) -> None:
            if not self.inside and stage is not bl.Stage.TEST:
                run.doing("epoch end")
                run.note(stage.name, self, loss=stage_loss.hex())
                run.comes_to("training ends" if stage is bl.Stage.TRAIN else "validation ends")
            super().on_stage_end(stage, stage_loss, epoch)
            if stage is bl.Stage.VALID:
                if self.checkpointer is not None:
                    self.checkpointer.save_and_keep_only(meta={"loss": stage_loss}, min_keys=["loss"])
                run.comes_to("epoch ends")

    # A style without a fit_batch of its own must not get one: that is another way through the loop.
    if style.fit_batch is bl.Brain.fit_batch:

        class Told(Watched):
            def on_fit_batch_end(
                self, batch: Batch, outputs: Any, loss: torch.Tensor, should_step: bool
            ) -> None:
                super().on_fit_batch_end(batch, outputs, loss, should_step)
                self.trained(loss)

        return Told

    class ToldItself(Watched):
        def fit_batch(self, batch: Batch) -> torch.Tensor:
            loss = super().fit_batch(batch)
            self.trained(loss)
            return loss

    return ToldItself


def extensions_of(style: str) -> list[bl.Extension]:
    first, *others = SEVERAL.get(style, (None,))
    return [
        bl.EMA(decay=0.8, evaluate=True),
        bl.LearningRate(Cosine(num_total=12, num_warmup=3), first),
        *(
            bl.LearningRate(lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), other)
            for other in others
        ),
    ]


def make_brain(cell: Cell, run: Run, checkpointer: bl.Checkpointer | None) -> Plain:
    goes_on = any(run.folder.glob("save/step-*"))
    return make(
        watched(STYLES[cell.style], run),
        checkpointer,
        global_seed=OTHER_SEED if goes_on else SEED,
        extensions=extensions_of(cell.style) if cell.armed else (),
        precision=cell.precision,
        eval_precision=cell.precision,
        grad_accumulation_factor=2 if cell.armed or cell.style == "OwnAccumulation" else 1,
        ckpt_interval_steps=1 if cell.num_workers else 2,
        ckpt_async=run.way != "here",
    )


def script(cell: Cell, run: Run, checkpointer: bl.Checkpointer | None, num_workers: int) -> dict[str, Any]:
    """The two fits and the evaluation; returns what two runs are compared by, beside their traces."""
    brain = make_brain(cell, run, checkpointer)
    shuffled = {**LOADER, "num_workers": num_workers, "shuffle": True}
    loader = {**LOADER, "num_workers": min(num_workers, 1) if cell.armed else 0}  # each worker takes its time
    brain.fit(range(2), TRAIN, VALID, train_loader_kwargs=shuffled, valid_loader_kwargs=loader)
    brain.fit(bl.EpochCounter(1), TRAIN, VALID, train_loader_kwargs=shuffled, valid_loader_kwargs=loader)
    end: dict[str, Any] = {
        "trained": digest(brain),
        "averaged": averages(brain),
        "generators": sum_of(generator_states()),
        "optimizer_step": brain.optimizer_step,
        "nonfinite_windows": brain.run_state.nonfinite_windows,
    }
    if checkpointer is not None:
        best = checkpointer.find_checkpoint(min_key="loss")
        assert best is not None
        end["best"] = [best.meta["loss"].hex(), best.counters, checkpointer.declared_criterion()]
        end["test"] = brain.evaluate(TEST, min_key="loss", test_loader_kwargs=loader).hex()
    return end


def averages(brain: bl.Brain) -> str:
    return sum_of([each.state_dict() for each in brain._extensions if isinstance(each, bl.EMA)])


def sum_of(value: Any) -> str:
    """SHA-256 of tensors and numbers in lists and dicts, in the order of their names."""
    sha = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value):
                add(key)
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for each in value:
                add(each)
        elif torch.is_tensor(value):
            sha.update(f"{value.dtype}{tuple(value.shape)}".encode())
            sha.update(value.detach().contiguous().numpy().tobytes())
        else:
            sha.update(repr(value).encode())

    add(value)
    return sha.hexdigest()


def warm_up() -> None:
    """For `WarmScript`: what takes seconds the first time. No thread may be running when the process forks."""
    torch.set_num_threads(1)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([parameter])  # the first optimizer of a process imports a third of torch
    parameter.sum().backward()
    optimizer.step()
    gc.collect()
    gc.freeze()  # collections in the forked processes would copy its pages


def main() -> None:
    begin = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cell", type=Cell.from_name)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cut", type=Cut.from_name)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--num_workers", type=int, help="another number than the cell's")
    parser.add_argument("--way", choices=WAYS, default="waited")
    parser.add_argument("--without_checkpoints", action="store_true")
    parser.add_argument("--forget_generators", action="store_true", help="to see that it is noticed")
    told = parser.parse_args()
    faulthandler.dump_traceback_later(LONGEST, exit=True)
    torch.set_num_threads(told.threads)
    if told.forget_generators:
        BrainState.restore_generators = lambda self: None  # type: ignore[method-assign]
    run = Run(told.folder, told.cut, told.way)
    checkpointer = None if told.without_checkpoints else checkpointer_of(run)
    num_workers = told.cell.num_workers if told.num_workers is None else told.num_workers
    end = script(told.cell, run, checkpointer, num_workers)
    result = {"end": end, "counts": run.counts, "seconds": time.monotonic() - begin}
    (told.folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
