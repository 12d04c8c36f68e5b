"""Planted faults: what people write, each wrong in one way, and named after it.

Each is a Brain with its data that looks right, trains, and breaks one promise. `FAULTS` says what the doctor has to
name.
"""

from __future__ import annotations

import copy
import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Sampler

import brainlib as bl
from brainlib.checkup.telling import RESUME, SAME_AGAIN, SPLIT

Batch = dict[str, Any]
NUM_ITEMS, NUM_INPUTS = 24, 5


class Items(Dataset[Batch]):
    """Items of a learnable function."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(NUM_ITEMS, NUM_INPUTS, generator=generator)
        self.y = self.x @ torch.randn(NUM_INPUTS, 1, generator=generator)

    def __len__(self) -> int:
        return NUM_ITEMS

    def __getitem__(self, index: int) -> Batch:
        return {"id": f"item{index}", "x": self.x[index], "y": self.y[index]}


class Brain(bl.Brain):
    """The two methods; nothing is wrong here."""

    def compute_forward(self, batch: Batch, stage: bl.Stage) -> Tensor:
        return self.modules.model(batch["x"])

    def compute_objectives(self, predictions: Tensor, batch: Batch, stage: bl.Stage) -> Tensor:
        return nn.functional.mse_loss(predictions, batch["y"])


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(NUM_INPUTS, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


# ------------------------------------------------------------------------------------------------ the state of a Brain
class SchedulerTwoLevelsDown(Brain):
    """A list is looked into, and a dict; a list in a dict is not."""

    def init_optimizers(self) -> None:
        super().init_optimizers()
        self.plans = {"lr": [torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)]}

    def on_fit_batch_end(self, batch: Batch, outputs: Any, loss: Tensor, should_step: bool) -> None:
        for plan in self.plans["lr"]:
            self.optimizer.param_groups[0]["lr"] = 0.05 * 0.9 ** (plan.last_epoch + 1)
            plan.last_epoch += 1


class SchedulerThatWaits(Brain):
    """As above, and in the few batches of a test it changes nothing."""

    def init_optimizers(self) -> None:
        super().init_optimizers()
        self.plans = {"lr": [torch.optim.lr_scheduler.StepLR(self.optimizer, 1000)]}

    def on_fit_batch_end(self, batch: Batch, outputs: Any, loss: Tensor, should_step: bool) -> None:
        self.plans["lr"][0].step()


class PlainCount(Brain):
    """A count that the loss depends on."""

    num_seen = 0

    def compute_objectives(self, predictions: Tensor, batch: Batch, stage: bl.Stage) -> Tensor:
        self.num_seen += stage is bl.Stage.TRAIN
        return super().compute_objectives(predictions, batch, stage) * min(1.0, 0.1 + 0.01 * self.num_seen)


class ResetAtEachStart(Brain):
    """The open epoch's on_stage_start runs again in a resumed run."""

    difficulty = 0.0

    def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
        if stage is bl.Stage.TRAIN:
            self.difficulty = 0.0

    def compute_objectives(self, predictions: Tensor, batch: Batch, stage: bl.Stage) -> Tensor:
        if stage is bl.Stage.TRAIN:
            self.difficulty += 0.1
        return super().compute_objectives(predictions, batch, stage) * (1 + self.difficulty)


class HalfRemembered(Brain):
    """It saves both and puts back one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.scale, self.offset = 1.0, 0.0

    def compute_objectives(self, predictions: Tensor, batch: Batch, stage: bl.Stage) -> Tensor:
        if stage is bl.Stage.TRAIN:
            self.scale, self.offset = self.scale * 0.9, self.offset + 0.01
        return super().compute_objectives(predictions + self.offset, batch, stage) * self.scale

    def get_extra_state(self) -> Any:
        return {"scale": self.scale, "offset": self.offset}

    def set_extra_state(self, state: Any) -> None:
        self.scale = state["scale"]


HEAD = nn.Linear(1, 1)


class ModuleInAGlobal(Brain):
    """It is trained, and it is in no `modules`."""

    def init_optimizers(self) -> None:
        self.optimizer = sgd([*self.modules.parameters(), *HEAD.parameters()])

    def compute_forward(self, batch: Batch, stage: bl.Stage) -> Tensor:
        return HEAD(super().compute_forward(batch, stage))


def with_a_closure() -> type[Brain]:
    hidden_head = nn.Linear(1, 1)

    class ModuleInAClosure(Brain):
        def init_optimizers(self) -> None:
            self.optimizer = sgd([*self.modules.parameters(), *hidden_head.parameters()])

        def compute_forward(self, batch: Batch, stage: bl.Stage) -> Tensor:
            return hidden_head(super().compute_forward(batch, stage))

    return ModuleInAClosure


class Noise:
    """Augmentation with a generator of its own."""

    def __init__(self) -> None:
        self.generator = torch.Generator()
        self.generator.seed()

    def __call__(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn(x.shape, generator=self.generator)


class GeneratorInAnObject(Brain):
    """A generator is saved where it is an attribute of the Brain; this one is an attribute of an attribute."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.noise = Noise()

    def compute_forward(self, batch: Batch, stage: bl.Stage) -> Tensor:
        x = self.noise(batch["x"]) if stage is bl.Stage.TRAIN else batch["x"]
        return self.modules.model(x)


class GeneratorMadeAnew(Brain):
    """A generator without a seed, made where it is used."""

    def compute_forward(self, batch: Batch, stage: bl.Stage) -> Tensor:
        return self.modules.model(self.blurred(batch["x"]))

    def blurred(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.from_numpy(np.random.default_rng().normal(size=x.shape).astype(np.float32))


class MomentumOfAHook(Brain):
    """A checkpoint holds the weights and buffers of a module, and not its settings."""

    def on_fit_batch_end(self, batch: Batch, outputs: Any, loss: Tensor, should_step: bool) -> None:
        self.modules.model[1].momentum *= 0.8


class SecondStream(Brain):
    """An iterator that goes round for ever."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.negatives = itertools.cycle([1.0, 2.0, 3.0, 4.0, 5.0])

    def compute_objectives(self, predictions: Tensor, batch: Batch, stage: bl.Stage) -> Tensor:
        loss = super().compute_objectives(predictions, batch, stage)
        return loss * next(self.negatives) if stage is bl.Stage.TRAIN else loss


class SavedTooEarly(Brain):
    """What a hook changes after its save is not in it."""

    strictness = 1.0

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        if stage is bl.Stage.VALID:
            self.checkpointer.save_and_keep_only({"loss": stage_loss}, min_keys=["loss"])
            self.strictness *= 2

    def compute_objectives(self, predictions: Tensor, batch: Batch, stage: bl.Stage) -> Tensor:
        return super().compute_objectives(predictions, batch, stage) * self.strictness

    def get_extra_state(self) -> Any:
        return self.strictness

    def set_extra_state(self, state: Any) -> None:
        self.strictness = state


class ForgetfulExtension(bl.Extension):
    """It changes the learning rate by a count that its state does not hold."""

    trigger = (1, "step")

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0

    def __call__(self, brain: Any) -> None:
        self.num_calls += 1
        brain.optimizer.param_groups[0]["lr"] = 0.05 / self.num_calls


class FailsWhenResumed(Brain):
    """It reads back what it did not save."""

    def get_extra_state(self) -> Any:
        return {"step": self.step}

    def set_extra_state(self, state: Any) -> None:
        self.best = state["best"]


# ------------------------------------------------------------------------------------------------------- the loss
class SumOverTheBatch(Brain):
    def compute_objectives(self, predictions: Tensor, batch: Batch, stage: bl.Stage) -> Tensor:
        return nn.functional.mse_loss(predictions, batch["y"], reduction="sum")


class MeanOverLargeOnes(Brain):
    """A mean over some of the items, with the weight of all."""

    def compute_objectives(self, predictions: Tensor, batch: Batch, stage: bl.Stage) -> Tensor:
        chosen = batch["x"][:, :1] > -0.3
        return ((predictions - batch["y"]).pow(2) * chosen).sum() / chosen.sum().clamp_min(1)


# ------------------------------------------------------------------------------------------------------- the data
class OwnRandomState(Items):
    """A generator that goes on from item to item."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.RandomState(3)

    def __getitem__(self, index: int) -> Batch:
        item = super().__getitem__(index)
        return {**item, "x": item["x"] + float(self.rng.normal())}


class GrowingCache(Items):
    """What an item is depends on how often it was read."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[str, Tensor] = {}

    def __getitem__(self, index: int) -> Batch:
        item = super().__getitem__(index)
        self.cache["last"] = 0.5 * self.cache.get("last", 0.0) + item["x"]
        return {**item, "x": item["x"] + self.cache["last"]}


class Stamped(Items):
    """The time in an item."""

    def __getitem__(self, index: int) -> Batch:
        return {**super().__getitem__(index), "y": torch.tensor([time.time() % 1])}


class ByTheClock(Sampler[int]):
    """An order that the clock decides."""

    def __len__(self) -> int:
        return NUM_ITEMS

    def __iter__(self) -> Iterator[int]:
        order = list(range(NUM_ITEMS))
        random.Random(time.time_ns()).shuffle(order)
        return iter(order)


class FromTheSystem(ByTheClock):
    """An order that the system's random numbers decide."""

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(range(NUM_ITEMS), key=lambda _: os.urandom(4)))


class ShuffledByTheClock(Items):
    """A dataset that mixes its items anew in each process, by the clock."""

    order: list[int] | None = None

    def __getitem__(self, index: int) -> Batch:
        if self.order is None:
            self.order = list(range(NUM_ITEMS))
            random.Random(time.time_ns()).shuffle(self.order)
        return super().__getitem__(self.order[index])


class ById(ByTheClock):
    """An order by where things lie in memory, of which the last bits are noise."""

    def __iter__(self) -> Iterator[int]:
        things = [object() for _ in range(NUM_ITEMS)]
        return iter(sorted(range(NUM_ITEMS), key=lambda n: (id(things[n]) * os.getpid()) % 8191))


class AsAdvised(ByTheClock):
    """What the doctor advises to write for the four above."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(NUM_ITEMS).tolist())


class CountsItself(ByTheClock):
    """A sampler that counts its own passes."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        order = list(range(NUM_ITEMS))
        random.Random(self.passes).shuffle(order)
        return iter(order)


@dataclass(frozen=True)
class Fault:
    """A fault, and what has to be said of it.

    Args:
        check: which check finds it.
        names: words that have to stand in the finding.
        brain: the class of the Brain.
        data: makes the training data.
        loader: options of the loader.
        extensions: of the Brain.
        todo: words that have to stand in what is to be done.
    """

    check: str
    names: tuple[str, ...]
    brain: type[Brain] = Brain
    data: Callable[[], Any] = Items
    loader: Callable[[], dict[str, Any]] = lambda: {"shuffle": True}
    extensions: Callable[[], list[bl.Extension]] = field(default=list)
    todo: tuple[str, ...] = ()

    def make(self, folder: Any) -> tuple[Brain, Any, dict[str, Any]]:
        """A Brain, its data, and the options of the loader."""
        brain = self.brain(
            {"model": model()},
            sgd,
            hparams={"seed": 3},
            run_opts={"noprogressbar": True, "device": "cpu"},
            checkpointer=bl.Checkpointer(folder),
            extensions=self.extensions(),
        )
        return brain, self.data(), {"batch_size": 4, **self.loader()}


FAULTS = {
    "a scheduler two levels down": Fault(RESUME, ("brain.plans['lr'][0]", "ExponentialLR"), SchedulerTwoLevelsDown),
    "a scheduler that waits": Fault(RESUME, ("brain.plans['lr'][0]", "StepLR"), SchedulerThatWaits),
    "a plain count": Fault(RESUME, ("brain.num_seen", "loss of batch"), PlainCount),
    "a reset at each start of an epoch": Fault(RESUME, ("brain.difficulty", "loss of batch"), ResetAtEachStart),
    "extra state put back by half": Fault(RESUME, ("brain.offset", "set_extra_state"), HalfRemembered),
    "a module in a global": Fault(RESUME, ("HEAD", "Linear", "`modules`"), ModuleInAGlobal),
    "a module in a closure": Fault(RESUME, ("hidden_head", "Linear", "`modules`"), with_a_closure()),
    "a generator in an object": Fault(RESUME, ("brain.noise.generator",), GeneratorInAnObject),
    "a generator without a seed": Fault(SAME_AGAIN, ("blurred", "default_rng", "batch 1"), GeneratorMadeAnew),
    "the momentum of a batch norm": Fault(RESUME, ("modules.model.1.momentum",), MomentumOfAHook),
    "an iterator": Fault(RESUME, ("brain.negatives", "cycle"), SecondStream),
    "a save before a change": Fault(RESUME, ("brain.strictness", "after epoch 1"), SavedTooEarly),
    "a forgetful extension": Fault(
        RESUME, ("extensions['ForgetfulExtension'].num_calls",), extensions=lambda: [ForgetfulExtension()]
    ),
    "a resume that fails": Fault(RESUME, ("KeyError: 'best'",), FailsWhenResumed),
    "a sum over the batch": Fault(SPLIT, ("sum", "loss_weight"), SumOverTheBatch),
    "a mean over something else": Fault(SPLIT, ("loss_weight(batch, stage)",), MeanOverLargeOnes),
    "a generator in the dataset": Fault(RESUME, ("train_set.rng", "RandomState", "sample 0"), data=OwnRandomState),
    "a cache in the dataset": Fault(RESUME, ("train_set.cache", "sample 0"), data=GrowingCache),
    "a clock in the items": Fault(
        SAME_AGAIN, ("Stamped.__getitem__", "the time", "'y'"), data=Stamped,
        todo=("in Stamped.__getitem__ use no time, also not as a seed (time)", "seeded for each item"),
    ),
    "an order by the clock": Fault(
        SAME_AGAIN, ("ByTheClock", "the time", "order differs"), loader=lambda: {"sampler": ByTheClock()},
        todo=("in ByTheClock.__iter__ use no time, also not as a seed (time", "shuffle=True", "torch.randperm"),
    ),
    "an order by the clock in the dataset": Fault(
        SAME_AGAIN, ("ShuffledByTheClock.__getitem__", "the time"), data=ShuffledByTheClock,
        todo=("in ShuffledByTheClock.__getitem__ use no time, also not as a seed (time", "shuffle=True"),
    ),
    "an order from the system": Fault(
        SAME_AGAIN, ("FromTheSystem", "urandom", "order differs"), loader=lambda: {"sampler": FromTheSystem()},
        todo=("in FromTheSystem.__iter__ use none of the system's random numbers (urandom)", "shuffle=True"),
    ),
    "an order by id()": Fault(
        SAME_AGAIN, ("ById", "id()", "order differs"), loader=lambda: {"sampler": ById()},
        todo=("take the index of an item for id() (id)", "leave the number of the process out (getpid)"),
    ),
    "a sampler that counts": Fault(
        RESUME, ("train_loader_kwargs['sampler'].passes", "order differs"), loader=lambda: {"sampler": CountsItself()}
    ),
}  # fmt: skip

HEALTHY = Fault("", ())


def healthy(folder: Any) -> tuple[Brain, Any, dict[str, Any]]:
    """The same Brain without a fault."""
    return copy.copy(HEALTHY).make(folder)
