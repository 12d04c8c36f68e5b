"""What a training step costs beside its mathematics: brainlib against the loop that people write by hand.

The mathematics is as small as it gets (Linear(10, 10), 16 items, SGD, clipping), so that nothing hides the rest. Every
form trains in this process, on one torch thread, in turns; each round begins with another one. What is timed is one
epoch, from the end of its first step to the end of its last but one; an epoch to warm up came before, so that nothing
that is done once is in the numbers.

The loop by hand is timed twice a round (A/A). How far its two times are apart says what this machine can tell at the
moment: a figure stands only if its distance to the bar is at least twice that, else it is "too noisy".

Beside the times it checks that all forms end with the bits of the loop by hand, over 2,000 steps of which about half
clip, and that memory does not grow between 2,000 and 20,000 steps. It prints a table and a line of JSON, and exits with
1 where a bar that stands is missed. SpeechBrain, Lightning, Ignite and Accelerate are timed where they are installed.

    python benchmarks/loop.py --rounds 41 --steps 500
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import json
import logging
import os
import platform
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import brainlib as bl
from brainlib.update.guard import DeviceGuard

MAX_NORM = 5.0
TINY_NORM = 1e-3  # clips every update
BAR_STEPS = 10  # an epoch with the bar is so many times as long: several redraws have to fall into it
SLOW_STEP = 2000.0  # microseconds: what a step of a real, small model takes

Batch = dict[str, Tensor]
Epoch = Callable[[Any], None]  # trains one epoch on the batches it is given


# ---------------------------------------------------------------------------------------------------------------- data
class Mark:
    """An iterator without items that notes when it was asked for one."""

    at = 0.0

    def __iter__(self) -> Mark:
        return self

    def __next__(self) -> Any:
        self.at = time.perf_counter()
        raise StopIteration


class TimedBatches(list):  # type: ignore[type-arg]
    """A list of batches that knows how long the last walk through it took, its first and its last step left out.

    Walking costs the same for everybody: all of it but the two marks is C. Some trainers fetch a batch ahead, and some
    that know the length never ask whether there is another one, so both marks stand between batches.
    """

    def __init__(self, batches: list[Batch]) -> None:
        super().__init__(batches)
        self.start, self.end = Mark(), Mark()

    def __iter__(self) -> Iterator[Batch]:
        middle = islice(super().__iter__(), 1, len(self) - 1)
        return chain(self[:1], self.start, middle, self.end, self[-1:])

    @property
    def microseconds(self) -> float:
        """A step."""
        return (self.end.at - self.start.at) / (len(self) - 2) * 1e6


def batches(num_steps: int, far_off: float = 1.0) -> list[Batch]:
    """Ready batches; the targets of every other one are `far_off` times as large, and so is its gradient."""
    generator = torch.Generator().manual_seed(0)
    some = [
        {
            "input": torch.randn(16, 10, generator=generator),
            "target": torch.randn(16, 10, generator=generator) * (far_off if index % 2 else 1.0),
        }
        for index in range(20)
    ]
    return (some * (num_steps // len(some) + 1))[:num_steps]


def fresh(fused: bool | None = None) -> tuple[nn.Linear, Callable[..., torch.optim.Optimizer]]:
    torch.manual_seed(0)
    return nn.Linear(10, 10), lambda parameters: torch.optim.SGD(parameters, lr=0.01, fused=fused)


# ------------------------------------------------------------------------------------------------------------- by hand
def by_hand(
    max_norm: float = MAX_NORM, fused: bool | None = None, note: Callable[[Tensor], None] | None = None
) -> tuple[nn.Linear, Epoch]:
    """The reference; `note` is told the norm of each update."""
    model, make_optimizer = fresh(fused)
    return model, epoch_by_hand(model, model, make_optimizer(model.parameters()), max_norm, note)


def epoch_by_hand(
    forward: nn.Module,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    max_norm: float = MAX_NORM,
    note: Callable[[Tensor], None] | None = None,
) -> Epoch:
    """The loop that people write; `forward` is the model, or what is wrapped round it."""

    def epoch(batches: Any) -> None:
        mean = 0.0
        for step, batch in enumerate(batches, 1):
            loss = nn.functional.mse_loss(forward(batch["input"]), batch["target"])
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
            mean += (loss.item() - mean) / step
            if note is not None:
                note(norm)

    return epoch


# ------------------------------------------------------------------------------------------------------- with brainlib
class Plain(bl.Brain):
    def compute_forward(self, batch: Batch, stage: bl.Stage) -> Tensor:
        return self.modules.model(batch["input"])

    def compute_objectives(self, predictions: Tensor, batch: Batch, stage: bl.Stage) -> Tensor:
        return nn.functional.mse_loss(predictions, batch["target"])


class Hooked(Plain):
    def on_fit_batch_end(self, batch: Batch, outputs: Any, loss: Tensor, should_step: bool) -> None:
        pass


class Overridden(Plain):
    """What the default does, with the tools of the Brain."""

    def fit_batch(self, batch: Batch) -> Tensor:
        outputs = self.compute_forward(batch, bl.Stage.TRAIN)
        loss = self.compute_objectives(outputs, batch, bl.Stage.TRAIN)
        loss.backward()
        self.optimizers_step()
        return loss.detach()


class StepsItself(Plain):
    """As older recipes do: clipped by hand, checked once more by the guard."""

    def fit_batch(self, batch: Batch) -> Tensor:
        outputs = self.compute_forward(batch, bl.Stage.TRAIN)
        loss = self.compute_objectives(outputs, batch, bl.Stage.TRAIN)
        loss.backward()
        nn.utils.clip_grad_norm_(self.modules.parameters(), self.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def with_brainlib(
    cls: type[bl.Brain],
    folder: Path | None = None,
    *,
    progressbar: bool = False,
    max_norm: float = MAX_NORM,
    device_guard: bool = False,
) -> tuple[nn.Module, Epoch]:
    """One of them.

    Args:
        cls: which.
        folder: where everything is armed: run folder, checkpointer, loggers; None: nothing is.
        progressbar: whether there is one.
        max_norm: what gradients are clipped to.
        device_guard: whether it looks for what is not finite as on an accelerator, where nothing may be read.
    """
    if device_guard:
        cls = type(cls.__name__, (cls,), {"_make_guard": lambda brain: DeviceGuard(brain.device)})
    model, make_optimizer = fresh(fused=device_guard or None)
    more: dict[str, Any] = {}
    if folder is not None:
        bl.create_experiment_directory(folder)
        more = {
            "checkpointer": bl.Checkpointer(folder / "save"),
            "loggers": [bl.FileTrainLogger(folder / "log.txt"), bl.JsonlLogger(folder / "metrics.jsonl")],
        }
    brain = cls(
        {"model": model},
        make_optimizer,
        hparams={"seed": 0},
        run_opts={"device": "cpu", "max_grad_norm": max_norm, "noprogressbar": not progressbar},
        **more,
    )
    return model, lambda batches: brain.fit(range(1), batches)


@contextmanager
def terminal() -> Iterator[None]:
    """Standard error is a terminal of 100 columns inside; another process reads what is written to it."""
    import fcntl
    import pty
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    reader = subprocess.Popen(["cat"], stdin=leader, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(leader)
    kept = sys.stderr
    try:
        with open(follower, "w", buffering=1) as sys.stderr:
            yield
    finally:
        sys.stderr = kept
        reader.wait()  # ends with the terminal


# --------------------------------------------------------------------------------------------------------------- peers
class ReadyLoader(torch.utils.data.DataLoader):  # type: ignore[type-arg]
    """A loader for those who insist on one; it hands on ready batches and costs nothing."""

    def __init__(self, batches: TimedBatches) -> None:
        super().__init__(batches, batch_size=None)
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)


def speechbrain() -> Epoch:
    peer = importlib.import_module("speechbrain")

    class Theirs(peer.Brain):  # type: ignore[name-defined, misc]
        compute_forward = Plain.compute_forward
        compute_objectives = Plain.compute_objectives

    model, make_optimizer = fresh()
    options = {"device": "cpu", "max_grad_norm": MAX_NORM, "noprogressbar": True}
    brain = Theirs({"model": model}, make_optimizer, run_opts=options)
    return lambda batches: brain.fit(range(1), ReadyLoader(batches))


def lightning() -> Epoch:
    peer = importlib.import_module("lightning")
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)

    class Theirs(peer.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.make_optimizer = fresh()

        def training_step(self, batch: Batch, index: int) -> Tensor:
            loss = nn.functional.mse_loss(self.model(batch["input"]), batch["target"])
            self.log("loss", loss, on_step=False, on_epoch=True, batch_size=16)  # its running mean
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self.make_optimizer(self.model.parameters())

    module = Theirs()

    def epoch(batches: TimedBatches) -> None:
        trainer = peer.Trainer(
            max_epochs=2,  # the first one is for what each `fit` does anew
            accelerator="cpu",
            gradient_clip_val=MAX_NORM,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, ReadyLoader(batches))

    return epoch


def ignite() -> Epoch:
    engine, metrics = importlib.import_module("ignite.engine"), importlib.import_module("ignite.metrics")
    model, make_optimizer = fresh()
    optimizer = make_optimizer(model.parameters())

    def update(engine: Any, batch: Batch) -> float:
        loss = nn.functional.mse_loss(model(batch["input"]), batch["target"])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    trainer = engine.Engine(update)
    metrics.RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
    return lambda batches: trainer.run(batches, max_epochs=1)


def accelerate() -> Epoch:
    accelerator = importlib.import_module("accelerate").Accelerator(cpu=True)
    model, make_optimizer = fresh()
    model, optimizer = accelerator.prepare(model, make_optimizer(model.parameters()))

    def epoch(batches: Any) -> None:
        mean = 0.0
        for step, batch in enumerate(batches, 1):
            loss = nn.functional.mse_loss(model(batch["input"]), batch["target"])
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            optimizer.zero_grad()
            mean += (loss.item() - mean) / step

    return epoch


PEERS: dict[str, Callable[[], Epoch]] = {
    "speechbrain": speechbrain,
    "lightning": lightning,
    "ignite": ignite,
    "accelerate": accelerate,
}


# --------------------------------------------------------------------------------------------------------------- forms
@dataclass
class Form:
    """One way to train."""

    name: str
    make: Callable[[Path], tuple[nn.Module | None, Epoch]]
    bar: float | None = None  # the most it may take, by the loop by hand
    hand: str = "by hand"  # the loop by hand with the same mathematics
    on_terminal: bool = False
    times: list[float] = field(default_factory=list)  # microseconds a step, one a round

    def epoch(self, train: Epoch, batches: Any) -> None:
        if not self.on_terminal:
            return train(batches)
        with terminal():
            return train(batches)


HAND = [
    Form("by hand", lambda folder: by_hand()),
    Form("by hand, again", lambda folder: by_hand()),
    Form("by hand, clipping", lambda folder: by_hand(TINY_NORM), hand="by hand, clipping"),
    Form("by hand, fused", lambda folder: by_hand(fused=True), hand="by hand, fused"),
]
OURS = [
    Form("plain", lambda folder: with_brainlib(Plain)),
    Form("checkpointer, loggers, run folder", lambda folder: with_brainlib(Plain, folder), 0.80),
    Form(
        "and the bar on a terminal",
        lambda folder: with_brainlib(Plain, folder, progressbar=True),
        0.85,
        on_terminal=True,
    ),
    Form("one hook overridden", lambda folder: with_brainlib(Hooked, folder), 0.85),
    Form("fit_batch overridden", lambda folder: with_brainlib(Overridden, folder), 1.00),
    Form("fit_batch clips and steps itself", lambda folder: with_brainlib(StepsItself, folder)),
    Form(
        "clipping at every update",
        lambda folder: with_brainlib(Plain, folder, max_norm=TINY_NORM),
        0.90,
        hand="by hand, clipping",
    ),
    Form(
        "the guard in its device form",
        lambda folder: with_brainlib(Plain, folder, device_guard=True),
        1.00,
        hand="by hand, fused",
    ),
]


def installed_peers() -> list[Form]:
    forms = []
    for name, make in PEERS.items():
        if importlib.util.find_spec(name) is None:
            continue
        try:
            epoch = make()
        except ImportError as error:
            print(f"{name} is installed and cannot be imported: {error}", file=sys.stderr)
            continue
        forms.append(Form(name, lambda folder, epoch=epoch: (None, epoch)))  # type: ignore[misc]
    return forms


# ----------------------------------------------------------------------------------------------------------- measuring
def measure(forms: list[Form], folder: Path, num_rounds: int, num_steps: int) -> None:
    """Fill the `times` of each form."""
    short, long = TimedBatches(batches(num_steps)), TimedBatches(batches(num_steps * BAR_STEPS))
    data = [long if form.on_terminal else short for form in forms]
    epochs = [form.make(folder / f"form-{index}")[1] for index, form in enumerate(forms)]
    for form, epoch, timed in zip(forms, epochs, data, strict=True):
        form.epoch(epoch, timed)
    gc.collect()
    gc.freeze()  # what all forms keep alive is not walked through while one of them is timed
    places = list(range(len(forms)))
    for number in range(num_rounds):
        start = number % len(places)
        for place in places[start:] + places[:start]:
            forms[place].epoch(epochs[place], data[place])
            forms[place].times.append(data[place].microseconds)
        gc.collect()
    gc.unfreeze()


@dataclass
class Figure:
    """What a form came to."""

    ratio: float  # median over the rounds, by the loop by hand of the same round
    added: float  # microseconds a step
    verdict: str = ""


def figures(forms: list[Form]) -> tuple[float, dict[str, Figure]]:
    """How far the loop by hand is from itself, and the figure of each form (of all by hand: by the first)."""
    hand = {form.name: form.times for form in HAND}
    first, again = hand["by hand"], hand["by hand, again"]
    hand["by hand"] = [(one + other) / 2 for one, other in zip(first, again, strict=True)]
    noise = abs(statistics.median(b / a for a, b in zip(first, again, strict=True)) - 1)
    result = {}
    for form in forms:
        pairs = list(zip(form.times, hand["by hand" if form in HAND else form.hand], strict=True))
        figure = Figure(
            statistics.median(a / b for a, b in pairs), statistics.median(a - b for a, b in pairs)
        )
        if form.bar is not None:
            stands = noise <= abs(form.bar - figure.ratio) / 2
            figure.verdict = "too noisy" if not stands else "passed" if figure.ratio <= form.bar else "MISSED"
        result[form.name] = figure
    return noise, result


# ------------------------------------------------------------------------------------------------------------ checking
def same_bits(folder: Path, num_steps: int = 2000) -> tuple[float, list[str]]:
    """The share of steps that clip, and the names of the forms whose weights are not those of the loop by hand."""
    data = batches(num_steps, far_off=40.0)
    norms: list[float] = []
    by_hand(note=lambda norm: norms.append(norm.item()))[1](data)
    wanted: dict[str, nn.Module] = {}
    for form in HAND:
        model, epoch = form.make(folder)
        epoch(data)
        assert model is not None
        wanted[form.name] = model

    different = []
    for index, form in enumerate(OURS):
        model, epoch = form.make(folder / f"bits-{index}")
        form.epoch(epoch, data)
        assert model is not None
        pairs = zip(model.parameters(), wanted[form.hand].parameters(), strict=True)
        if not all(torch.equal(ours, theirs) for ours, theirs in pairs):
            different.append(form.name)
    return sum(norm > MAX_NORM for norm in norms) / num_steps, different


def resident_bytes() -> int:
    """What this process has in memory; where /proc is not, the most it ever had."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def growth(folder: Path) -> tuple[float, int]:
    """Megabytes and live tensors that came in between 2,000 and 20,000 steps, with everything armed."""
    seen = []

    class Watched(Plain):
        def on_fit_batch_end(self, batch: Batch, outputs: Any, loss: Tensor, should_step: bool) -> None:
            if self.step in (2_000, 20_000):
                gc.collect()
                tensors = sum(issubclass(type(each), Tensor) for each in gc.get_objects())
                seen.append((resident_bytes(), tensors))

    _, epoch = with_brainlib(Watched, folder / "growth")
    epoch(batches(20_000))
    (bytes_before, tensors_before), (bytes_after, tensors_after) = seen
    return (bytes_after - bytes_before) / 2**20, tensors_after - tensors_before


# ----------------------------------------------------------------------------------------------------------- the table
def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=41, help="counted epochs of each form (default 41)")
    parser.add_argument("--steps", type=int, default=500, help="steps an epoch (default 500)")
    parser.add_argument("--no-peers", action="store_true", help="leave other trainers out")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the peers' advice
    logging.getLogger("brainlib").setLevel(logging.WARNING)
    peers = [] if arguments.no_peers else installed_peers()
    # The two that are the reference stand at places far apart.
    forms = [HAND[0], *OURS[:4], *HAND[1:], *OURS[4:], *peers]

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        share, different = same_bits(folder)
        megabytes, tensors = growth(folder)
        measure(forms, folder, arguments.rounds, arguments.steps)
    noise, results = figures([*HAND, *OURS, *peers])

    base = statistics.median(HAND[0].times + HAND[1].times)
    print(
        f"Linear(10, 10), 16 items, SGD: {base:.1f} µs a step by hand; {arguments.rounds} rounds of "
        f"{arguments.steps} steps, one thread, torch {torch.__version__}"
    )
    print(f"A/A: the loop by hand is {noise:.3f} from itself\n")
    print(f"{'':36}{'ratio':>7}{'bar':>7}{'µs more':>10}")
    for form in [*HAND, *OURS, *peers]:
        figure = results[form.name]
        bar = "" if form.bar is None else f"≤ {form.bar:.2f}"
        print(f"{form.name:36}{figure.ratio:7.3f}{bar:>7}{figure.added:+10.1f}   {figure.verdict}")
    added = results["checkpointer, loggers, run folder"].added
    print(
        f"\nAt a step of {SLOW_STEP / 1000:g} ms everything armed adds {added:+.1f} µs, {added / SLOW_STEP:+.1%}; "
        "a minus is time saved."
    )
    bits = (
        f"NOT those of the loop by hand: {different}"
        if different
        else "in all forms those of the loop by hand."
    )
    print(f"Bits after 2,000 steps, of which {share:.0%} clip: {bits}")
    print(f"Memory from 2,000 to 20,000 steps: {megabytes:+.1f} MB, {tensors:+d} tensors.")
    print(
        json.dumps(
            {
                "benchmark": "loop",
                "torch": torch.__version__,
                "python": platform.python_version(),
                "cores": os.cpu_count(),
                "rounds": arguments.rounds,
                "steps": arguments.steps,
                "by_hand_microseconds": round(base, 2),
                "a_a": round(noise, 4),
                "forms": {
                    form.name: {
                        "ratio": round(results[form.name].ratio, 4),
                        "bar": form.bar,
                        "added_microseconds": round(results[form.name].added, 2),
                        "verdict": results[form.name].verdict or None,
                    }
                    for form in [*HAND, *OURS, *peers]
                },
                "clipped_share": round(share, 3),
                "different_bits": different,
                "megabytes_grown": round(megabytes, 2),
                "tensors_grown": tensors,
            }
        )
    )
    missed = any(figure.verdict == "MISSED" for figure in results.values())
    return 1 if missed or different or not 0.4 <= share <= 0.6 or megabytes > 5 or tensors > 0 else 0


if __name__ == "__main__":
    sys.exit(main())
