"""The seven Brains: small trainers in the styles that people really write.

A promise that only the default path keeps is not kept, so everything brainlib says of a training run is said of these
seven, and of two scripts: `train` (one fit) and `two_fits` (a fit of two epochs, then a fit of one).

    =================  ============================================================================================
    `Plain`            two methods and nothing else: the ten-line example, most recipes
    `Noam`             a learning rate that moves every update from `on_fit_batch_end`: transformer recipes
    `TwoOptimizers`    an encoder that joins late, by `init_optimizers` and `freeze_optimizers`: wav2vec2 fine-tuning
    `Gan`              `fit_batch` steps two optimizers of its own, zeroes before backward: vocoders
    `OwnAccumulation`  `fit_batch` accumulates by ``step % factor`` with `training_ctx`, `scaler`, `no_sync` and
                       clipping: older recipes, written before the trainer could accumulate
    `Ema`              `super().fit_batch` and then something with the weights: averaged teachers, BYOL
    `InnerFit`         calls `self.fit` inside `on_stage_start`: MetricGAN, which trains its judge before each epoch
    =================  ============================================================================================

Data is tiny (18 items, so batches of 4 end in a tail of 2) and the models use dropout, because a run that draws no
random number proves nothing about exactness. With ``grad_accumulation_factor=3`` the five batches of an epoch end in a
window of two.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

import brainlib as bl

Batch = dict[str, torch.Tensor]

NUM_INPUTS = 6
NUM_TARGETS = 3
NUM_ITEMS = 18
BATCH_SIZE = 4
SEED = 3


# --------------------------------------------------------------------------------------------------------------- data
class Items(torch.utils.data.Dataset[Batch]):
    """Items ``{"id": int, "x": [6], "y": [3]}`` of a learnable function; `reads` lists every index that was fetched."""

    def __init__(self, num_items: int = NUM_ITEMS, seed: int = 5) -> None:
        teacher = torch.randn(NUM_INPUTS, NUM_TARGETS, generator=torch.Generator().manual_seed(1))
        self.x = torch.randn(num_items, NUM_INPUTS, generator=torch.Generator().manual_seed(seed))
        self.y = torch.tanh(self.x @ teacher)
        self.reads: list[int] = []

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Batch:
        self.reads.append(int(index))
        return {"id": torch.tensor(int(index)), "x": self.x[index], "y": self.y[index]}


def ready_batches(sizes: tuple[int, ...] = (4, 4, 4, 4, 2), seed: int = 5) -> list[Batch]:
    """A list of ready batches of these sizes."""
    items = Items(sum(sizes), seed)
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    return [{"x": items.x[a : a + n], "y": items.y[a : a + n]} for a, n in zip(starts, sizes, strict=True)]


SHUFFLED: dict[str, Any] = {"batch_size": BATCH_SIZE, "shuffle": True}
VALID = ready_batches((4, 4, 3), seed=6)


# -------------------------------------------------------------------------------------------------------------- models
def regressor(dropout: float = 0.3) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(NUM_INPUTS, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, NUM_TARGETS)
    )


def judge(num_inputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(num_inputs, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-2)


# -------------------------------------------------------------------------------------------------------- the seven
class Plain(bl.Brain):
    """The two methods, and the idiom of every recipe: keep the training loss until validation has its own."""

    opt_factory: ClassVar[Callable[..., torch.optim.Optimizer] | None] = staticmethod(adam)
    network: ClassVar[Callable[[], nn.Sequential]] = staticmethod(
        regressor
    )  # what is trained; ends in a Linear

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.train_loss = math.nan
        self.trace: list[tuple[int | None, float, float]] = []  # a line an epoch: number, train, valid

    @classmethod
    def build(cls) -> dict[str, nn.Module]:
        return {"model": cls.network()}

    def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
        return self.modules.model(batch["x"])

    def compute_objectives(self, predictions: torch.Tensor, batch: Batch, stage: bl.Stage) -> torch.Tensor:
        return nn.functional.mse_loss(predictions, batch["y"])

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        if stage == bl.Stage.TRAIN:
            self.train_loss = stage_loss
        elif stage == bl.Stage.VALID:
            self.trace.append((epoch, self.train_loss, stage_loss))


class NoamSchedule:
    """A schedule that lives in the hparams of a recipe: called with the optimizer, saved because it was registered."""

    def __init__(self, peak: float = 0.05, num_warmup: int = 4) -> None:
        self.peak, self.num_warmup, self.num_calls = peak, num_warmup, 0

    def __call__(self, optimizer: torch.optim.Optimizer) -> None:
        self.num_calls += 1
        n, w = self.num_calls, self.num_warmup
        for group in optimizer.param_groups:
            group["lr"] = self.peak * math.sqrt(w) * min(n**-0.5, n * w**-1.5)

    def state_dict(self) -> dict[str, int]:
        return {"num_calls": self.num_calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.num_calls = state["num_calls"]


class Noam(Plain):
    """The schedule is in hparams and moves in `on_fit_batch_end`, once an update."""

    def on_fit_batch_end(self, batch: Batch, outputs: Any, loss: torch.Tensor, should_step: bool) -> None:
        if should_step:
            self.hparams.noam(self.optimizer)


class TwoOptimizers(Plain):
    """Two named optimizers; the encoder's stays frozen for the first four updates."""

    opt_factory = None
    NUM_FROZEN: ClassVar[int] = 4

    @classmethod
    def build(cls) -> dict[str, nn.Module]:
        *encoder, decoder = cls.network()
        return {"encoder": nn.Sequential(*encoder), "decoder": decoder}

    def init_optimizers(self) -> None:
        self.encoder_optimizer = torch.optim.SGD(self.modules.encoder.parameters(), lr=0.05, momentum=0.9)
        self.decoder_optimizer = torch.optim.Adam(self.modules.decoder.parameters(), lr=1e-2)
        self.optimizers_dict = {"encoder": self.encoder_optimizer, "decoder": self.decoder_optimizer}

    def freeze_optimizers(self, optimizers: dict[str, Any]) -> dict[str, Any]:
        if self.optimizer_step >= self.NUM_FROZEN:
            return optimizers
        return {"decoder": optimizers["decoder"]}

    def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
        return self.modules.decoder(self.modules.encoder(batch["x"]))


class Gan(Plain):
    """A vocoder's style: judge first, then generator, each with its own optimizer that the trainer never steps.

    The gradients that the generator's backward leaves in the judge stay there until the next batch zeroes them.
    """

    opt_factory = None

    @classmethod
    def build(cls) -> dict[str, nn.Module]:
        return {"generator": cls.network(), "discriminator": judge(NUM_TARGETS)}

    def init_optimizers(self) -> None:
        self.optimizer_g = torch.optim.Adam(self.modules.generator.parameters(), lr=1e-2)
        self.optimizer_d = torch.optim.Adam(self.modules.discriminator.parameters(), lr=1e-2)
        self.optimizers_dict = {"optimizer_g": self.optimizer_g, "optimizer_d": self.optimizer_d}

    def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
        return self.modules.generator(batch["x"])

    def compute_objectives(self, predictions: torch.Tensor, batch: Batch, stage: bl.Stage) -> torch.Tensor:
        return nn.functional.l1_loss(predictions, batch["y"])

    def fit_batch(self, batch: Batch) -> torch.Tensor:
        fake = self.compute_forward(batch, bl.Stage.TRAIN)
        real_error = (self.modules.discriminator(batch["y"]) - 1).pow(2).mean()
        loss_d = real_error + self.modules.discriminator(fake.detach()).pow(2).mean()
        self.optimizer_d.zero_grad()
        loss_d.backward()
        self.optimizer_d.step()

        fooled = (self.modules.discriminator(fake) - 1).pow(2).mean()
        loss_g = 0.1 * fooled + self.compute_objectives(fake, batch, bl.Stage.TRAIN)
        self.optimizer_g.zero_grad()
        loss_g.backward()
        self.optimizer_g.step()
        return loss_g.detach().cpu()

    def evaluate_batch(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
        fake = self.compute_forward(batch, stage)
        return self.compute_objectives(fake, batch, stage).detach().cpu()


class OwnAccumulation(Plain):
    """Accumulates by its own arithmetic: ``step % factor``, so that a trailing window is dropped. Its choice, kept."""

    def fit_batch(self, batch: Batch) -> torch.Tensor:
        should_step = self.step % self.grad_accumulation_factor == 0
        with self.no_sync(not should_step):
            with self.training_ctx:
                predictions = self.compute_forward(batch, bl.Stage.TRAIN)
                loss = self.compute_objectives(predictions, batch, bl.Stage.TRAIN)
            self.scaler.scale(loss / self.grad_accumulation_factor).backward()
        if should_step:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.modules.parameters(), self.max_grad_norm)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
        return loss.detach().cpu()


class Ema(Plain):
    """The trainer's own batch, then a teacher that follows the model."""

    @classmethod
    def build(cls) -> dict[str, nn.Module]:
        model, teacher = cls.network(), cls.network()
        teacher.load_state_dict(model.state_dict())
        return {"model": model, "teacher": teacher.requires_grad_(False)}

    def fit_batch(self, batch: Batch) -> torch.Tensor:
        loss = super().fit_batch(batch)
        with torch.no_grad():
            pairs = zip(self.modules.teacher.parameters(), self.modules.model.parameters(), strict=True)
            for slow, fast in pairs:
                slow.lerp_(fast, 0.1)
        return loss


class InnerFit(Plain):
    """MetricGAN's style: before each epoch the judge is trained by an inner `fit` of the same Brain."""

    opt_factory = None
    INNER_DATA: ClassVar[list[Batch]] = ready_batches((4, 3), seed=7)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.inside = False

    @classmethod
    def build(cls) -> dict[str, nn.Module]:
        return {"generator": cls.network(), "discriminator": judge(2 * NUM_TARGETS)}

    def init_optimizers(self) -> None:
        self.g_optimizer = torch.optim.Adam(self.modules.generator.parameters(), lr=1e-2)
        self.d_optimizer = torch.optim.Adam(self.modules.discriminator.parameters(), lr=1e-2)
        self.optimizers_dict = {"g_optimizer": self.g_optimizer, "d_optimizer": self.d_optimizer}

    def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
        if stage == bl.Stage.TRAIN and not self.inside:
            self.inside = True
            try:
                self.fit(range(1), self.INNER_DATA)
            finally:
                self.inside = False

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        if not self.inside:
            super().on_stage_end(stage, stage_loss, epoch)

    def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
        return self.modules.generator(batch["x"])

    def fit_batch(self, batch: Batch) -> torch.Tensor:
        enhanced = self.compute_forward(batch, bl.Stage.TRAIN)
        error = self.compute_objectives(enhanced, batch, bl.Stage.TRAIN)
        score = self.modules.discriminator(torch.cat([enhanced, batch["y"]], dim=1)).squeeze(1)
        if self.inside:  # the judge learns to predict the metric
            loss, optimizer = (score - torch.exp(-error.detach())).pow(2).mean(), self.d_optimizer
        else:  # the generator learns to please the judge
            loss, optimizer = error + 0.1 * (score - 1).pow(2).mean(), self.g_optimizer
        self.g_optimizer.zero_grad()
        self.d_optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()


SEVEN: tuple[type[Plain], ...] = (Plain, Noam, TwoOptimizers, Gan, OwnAccumulation, Ema, InnerFit)


def make(
    cls: type[Plain],
    checkpointer: Any = None,
    *,
    global_seed: int = SEED,
    hparams: dict[str, Any] | None = None,
    extensions: Iterable[bl.Extension] = (),
    **run_opts: Any,
) -> Plain:
    """One of the seven, freshly built.

    Args:
        cls: which.
        checkpointer: a `Checkpointer`; what the style registers with it (a schedule) is registered here.
        global_seed: seeds torch, numpy and python, and with them the initial weights. The hparams key `seed` is always
            `SEED`: a script that is started again has the same hparams and not the same global state.
        hparams: more hparams.
        extensions: what else hangs on the loop.
        run_opts: run options. The progress bar is off.
    """
    torch.manual_seed(global_seed)
    random.seed(global_seed)
    np.random.seed(global_seed)
    schedule = {"noam": NoamSchedule()} if issubclass(cls, Noam) else {}
    if checkpointer is not None:
        checkpointer.add_recoverables(schedule)
    return cls(
        cls.build(),
        cls.opt_factory,
        hparams={"seed": SEED, **schedule, **(hparams or {})},
        run_opts={"noprogressbar": True, "device": "cpu", **run_opts},
        checkpointer=checkpointer,
        extensions=extensions,
    )


def train(brain: Plain, num_epochs: int = 2, items: Items | None = None) -> Plain:
    """A script with one fit over shuffled items."""
    brain.fit(range(num_epochs), items or Items(), VALID, train_loader_kwargs=SHUFFLED)
    return brain


def two_fits(brain: Plain) -> Plain:
    """A script with two fits: two epochs over shuffled items, then one over a list of ready batches."""
    brain.fit(range(2), Items(), VALID, train_loader_kwargs=SHUFFLED)
    brain.fit(range(1), ready_batches(), VALID)
    return brain


# ------------------------------------------------------------------------------------------------------------- digests
def optimizers_of(brain: bl.Brain) -> dict[str, torch.optim.Optimizer]:
    """Every optimizer of a Brain by name, each object once: those of `optimizers_dict`, then attributes."""
    named = dict(brain.optimizers_dict or {})
    named.update((name, value) for name, value in sorted(vars(brain).items()) if name not in named)
    found: dict[str, torch.optim.Optimizer] = {}
    for name, value in named.items():
        if isinstance(value, torch.optim.Optimizer) and not any(value is known for known in found.values()):
            found[name] = value
    return found


def _flat(brain: bl.Brain) -> Iterator[tuple[str, Any]]:
    yield from sorted(brain.modules.state_dict().items())
    names = {id(p): name for name, p in brain.modules.named_parameters()}
    for optimizer_name, optimizer in sorted(optimizers_of(brain).items()):
        for number, group in enumerate(optimizer.param_groups):
            options = {k: v for k, v in group.items() if k != "params"}
            yield f"{optimizer_name}/{number}", json.dumps(options, sort_keys=True, default=float)
            for parameter in sorted(group["params"], key=lambda p: names[id(p)]):
                for key, value in sorted(optimizer.state.get(parameter, {}).items()):
                    yield f"{optimizer_name}/{names[id(parameter)]}/{key}", value


def digest(brain: bl.Brain) -> str:
    """SHA-256 over weights and optimizer states in the order of their names: equal means equal bits."""
    sha = hashlib.sha256()
    for name, value in _flat(brain):
        sha.update(name.encode())
        if torch.is_tensor(value):
            sha.update(str(value.dtype).encode())
            sha.update(value.detach().contiguous().cpu().numpy().tobytes())
        else:
            sha.update(repr(value).encode())
    return sha.hexdigest()


def weights_of(brain: bl.Brain) -> dict[str, torch.Tensor]:
    """A copy of all weights."""
    return {name: value.clone() for name, value in brain.modules.state_dict().items()}


def ending(brain: Plain) -> dict[str, Any]:
    """What two runs are compared by: bits, counters, and the losses of every closed epoch."""
    return {
        "trace": list(brain.trace),
        "optimizer_step": brain.optimizer_step,
        "nonfinite_windows": brain.run_state.nonfinite_windows,
        "digest": digest(brain),
    }
