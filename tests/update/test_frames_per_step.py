"""What a step costs beside the mathematics, counted so that noise cannot hide it: Python frames of brainlib's files.

Seconds differ from run to run, and one more function call a step disappears in them; here it is a number that is equal
to the committed one or is not. Counted is the difference between a run of 300 steps and one of 200, so that what a fit
does once is left out. Comprehensions are left out, too: since Python 3.12 they have no frame.

A change that makes a step dearer on purpose changes the number here, where a reviewer sees it.
"""

from __future__ import annotations

import gc
import io
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import brainlib as bl
from brainlib.progress import Progress
from brainlib.update.guard import DeviceGuard

HOME = str(Path(bl.__file__).resolve().parent)
COMPREHENSIONS = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"}

Batch = dict[str, Tensor]


# ------------------------------------------------------------------------------------------------ the forms of a Brain
class Plain(bl.Brain):
    def compute_forward(self, batch: Batch, stage: bl.Stage) -> Tensor:
        return self.modules.model(batch["input"])

    def compute_objectives(self, predictions: Tensor, batch: Batch, stage: bl.Stage) -> Tensor:
        return nn.functional.mse_loss(predictions, batch["target"])


class Hooked(Plain):
    def on_fit_batch_end(self, batch: Batch, outputs: Any, loss: Tensor, should_step: bool) -> None:
        pass


class Weighing(Plain):
    def loss_weight(self, batch: Batch, stage: bl.Stage) -> float:
        return 16.0


class Overridden(Plain):
    def fit_batch(self, batch: Batch) -> Tensor:
        loss = self.compute_objectives(self.compute_forward(batch, bl.Stage.TRAIN), batch, bl.Stage.TRAIN)
        loss.backward()
        self.optimizers_step()
        return loss.detach()


class StepsItself(Plain):
    def fit_batch(self, batch: Batch) -> Tensor:
        loss = self.compute_objectives(self.compute_forward(batch, bl.Stage.TRAIN), batch, bl.Stage.TRAIN)
        loss.backward()
        nn.utils.clip_grad_norm_(self.modules.parameters(), self.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Two milliseconds between two looks, so that a bar that looks once in 64 steps at most is drawn now and then."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.002
        return self.now


def make(
    cls: type[bl.Brain], folder: Path, armed: bool = False, on_device: bool = False, **run_opts: Any
) -> bl.Brain:
    """With `on_device` it has the guard that accelerators get; it works on a CPU, too."""
    more: dict[str, Any] = {}
    if armed:
        more = {
            "checkpointer": bl.Checkpointer(folder / "save"),
            "loggers": [bl.FileTrainLogger(folder / "log.txt"), bl.JsonlLogger(folder / "metrics.jsonl")],
        }
    torch.manual_seed(0)
    if on_device:
        cls = type(cls.__name__, (cls,), {"_make_guard": lambda brain: DeviceGuard(brain.device)})
    return cls(
        {"model": nn.Linear(10, 10)},
        lambda parameters: torch.optim.SGD(parameters, 0.01, fused=on_device or None),
        hparams={"seed": 0},
        run_opts={"noprogressbar": True, "device": "cpu", **run_opts},
        **more,
    )


def batches(num_steps: int) -> list[Batch]:
    torch.manual_seed(1)
    some = [{"input": torch.randn(16, 10), "target": torch.randn(16, 10)} for _ in range(10)]
    return some * (num_steps // 10)


# ------------------------------------------------------------------------------------------------------------ counting
def frames_of(run: Callable[[], Any]) -> Counter[str]:
    """How often each function of brainlib is entered (a generator: at each resumption)."""
    frames: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(HOME) and code.co_name not in COMPREHENSIONS:
            frames[f"{Path(code.co_filename).stem}.{code.co_name}"] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return frames


def frames_in_100_steps(make_brain: Callable[[Path], bl.Brain], folder: Path) -> Counter[str]:
    counts = []
    for num_steps in (10, 200, 300):  # the first run is for what a process does once
        brain, train_set = make_brain(folder / str(num_steps)), batches(num_steps)
        counts.append(frames_of(lambda brain=brain, train_set=train_set: brain.fit(range(1), train_set)))
        assert brain.run_state.optimizer_step * brain.grad_accumulation_factor == num_steps
    counts[2].subtract(counts[1])
    return counts[2]


def assert_frames(frames: Counter[str], committed: float) -> None:
    """`committed` is a number a step; what is shown beside it tells where they are."""
    shown = ", ".join(f"{name} {count / 100:g}" for name, count in frames.most_common() if count)
    counted = sum(frames.values()) / 100
    assert counted == committed, f"frames a step, by function: {shown}"


# Which Brain, its options, and the committed number of frames a step.
FORMS: dict[str, tuple[type[bl.Brain], dict[str, Any], float]] = {
    "plain": (Plain, {}, 35),
    "one hook": (Hooked, {}, 34),
    "loss_weight": (Weighing, {}, 32),
    "armed": (Plain, {"armed": True}, 38),
    "armed for every 1000 updates": (Plain, {"armed": True, "ckpt_interval_steps": 1000}, 41),
    "clipping": (Plain, {"max_grad_norm": 1e-3}, 36),
    "not clipping": (Plain, {"max_grad_norm": None}, 35),
    "windows of two": (Plain, {"grad_accumulation_factor": 2}, 26),
    "bf16": (Plain, {"precision": "bf16"}, 37),
    "guard in its device form": (Plain, {"on_device": True}, 44),
    "fit_batch overridden": (Overridden, {}, 36),
    "fit_batch that steps itself": (StepsItself, {}, 31),
}


@pytest.mark.parametrize("form", FORMS)
def test_frames_a_step(form: str, tmp_path: Path) -> None:
    cls, options, committed = FORMS[form]
    frames = frames_in_100_steps(lambda folder: make(cls, folder, **options), tmp_path)
    assert_frames(frames, committed)


def test_frames_a_step_with_a_bar_on_a_terminal(tmp_path: Path) -> None:
    """As many as without: `advance` is called in any case. Once in a while it looks at the clock."""

    def with_bar(folder: Path) -> bl.Brain:
        brain = make(Plain, folder, noprogressbar=False)
        brain._progress = Progress(stream=Terminal(), clock=Clock())
        return brain

    frames = frames_in_100_steps(with_bar, tmp_path)
    looks = {name: count for name, count in frames.items() if count % 100}
    assert sum(looks.values()) <= 100, f"less than one frame a step for looking and drawing: {looks}"
    frames.subtract(looks)
    assert_frames(frames, FORMS["plain"][2])


# -------------------------------------------------------------------------------------------------------------- growth
class Watched(Plain):
    """Notes what is alive at some steps."""

    AT = (100, 500)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.alive: list[tuple[int, int]] = []
        super().__init__(*args, **kwargs)

    def on_fit_batch_end(self, batch: Batch, outputs: Any, loss: Tensor, should_step: bool) -> None:
        if self.step in self.AT:
            gc.collect()
            objects = gc.get_objects()
            tensors = sum(issubclass(type(each), Tensor) for each in objects)
            self.alive.append((tensors, len(objects)))


@pytest.mark.parametrize("options", [{}, {"armed": True}, {"grad_accumulation_factor": 5}], ids=str)
def test_nothing_grows_with_the_number_of_steps(options: dict[str, Any], tmp_path: Path) -> None:
    """Neither tensors nor any other object that Python keeps track of, at steps where a window closes."""
    brain = make(Watched, tmp_path, **options)
    brain.fit(range(1), batches(500))
    tensors, objects = (list(counts) for counts in zip(*brain.alive, strict=True))
    assert tensors == [tensors[0]] * len(Watched.AT)
    # One object a step would be 400; a few come and go by themselves (finalizers, the line that is noted).
    assert objects[1] - objects[0] <= 20
