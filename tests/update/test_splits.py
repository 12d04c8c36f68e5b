"""The same samples give the same update, however they are split: a thousand random ways, against one big batch.

A case draws items of different lengths, what their loss is a mean over (items, frames, tokens), how they are cut into
micro-batches and windows, the form in which the data comes, the optimizer, a schedule, clipping, limits, the form of
the guard, and now and then an item that is not finite. The oracle shares nothing with brainlib: it takes one big batch
a window, on frames without padding, and is written as people write it by hand.

``BRAINLIB_SPLITS=20000 pytest tests/update/test_splits.py`` tries more of them; a failure names its case, and
``check(Case(number))`` repeats it.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

import brainlib as bl
from brainlib.update.guard import DeviceGuard, HostGuard

NUM_CASES = int(os.environ.get("BRAINLIB_SPLITS", "1000"))
NUM_PARTS = 8

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}  # ‖difference‖ of two gradients, by ‖gradient‖

Item = dict[str, Tensor]
Batch = dict[str, Tensor]
Ids = list[int]  # a batch, or a whole window, by the numbers of its items


class Case:
    """What is drawn for one case; a function of its number."""

    def __init__(self, number: int) -> None:
        draw = random.Random(number)
        self.number = number
        self.dtype = draw.choice([torch.float64, torch.float64, torch.float32])
        self.mean_over = draw.choice(["items", "frames", "tokens"])
        self.form = draw.choice(["list", "shuffled", "stream", "stream_loader"])
        self.model = draw.choice(["linear", "deep"])
        self.optimizer = draw.choice(["sgd", "momentum", "adam"])
        self.guard = draw.choice(["host", "host", "device"])  # that of accelerators works on a CPU, too
        self.two_groups = draw.random() < 0.3
        self.schedule = draw.choice([None, "exponential", "warm_up"])
        self.max_grad_norm = draw.choice([None, 0.05, 0.5, 5.0])
        self.factor = draw.choice([1, 2, 3, 4, 5, 12])  # 12: every epoch is shorter than that
        self.loss_average = draw.choice(["items", "items", "batches"])
        self.num_epochs = draw.choice([1, 1, 2, 3])
        self.limit_batches = draw.randint(1, 6) if draw.random() < 0.2 else None
        self.limit_updates = draw.randint(1, 6) if draw.random() < 0.2 else None

        num_items = draw.randint(1, 16)
        generator = torch.Generator().manual_seed(number)
        self.items = [self._item(index, draw, generator) for index in range(num_items + 3)]
        self.train_ids, self.valid_ids = list(range(num_items)), list(range(num_items, num_items + 3))
        if draw.random() < 0.35:
            for index in draw.sample(self.train_ids, k=draw.randint(1, max(num_items // 4, 1))):
                self.items[index][draw.choice("xy")][0, 0] = draw.choice([math.nan, math.inf, -math.inf])
            if self.guard == "device":
                self.schedule = (
                    None  # the verdict comes after `on_fit_batch_end`, so a schedule there is ahead
                )

        self.batch_size, self.drop_last = draw.randint(1, min(num_items, 5)), draw.random() < 0.3
        once = self._split(self.train_ids, draw)
        self.epochs = [  # a list is the same in every epoch, a stream may come in other pieces every time
            once if self.form == "list" else self._split(draw.sample(self.train_ids, k=num_items), draw)
            for _ in range(self.num_epochs)
        ]
        self.valid_batches = self._split(self.valid_ids, draw)

    def _item(self, index: int, draw: random.Random, generator: torch.Generator) -> Item:
        num_frames = draw.randint(1, 6)
        tokens = torch.tensor([draw.random() < 0.5 for _ in range(num_frames)])
        tokens[draw.randrange(num_frames)] = True  # an item without any would weigh nothing
        return {
            "id": torch.tensor(index),
            "x": torch.randn(num_frames, 3, generator=generator, dtype=torch.float64).to(self.dtype),
            "y": torch.randn(num_frames, 2, generator=generator, dtype=torch.float64).to(self.dtype),
            "tokens": tokens.to(self.dtype),
        }

    @staticmethod
    def _split(ids: Ids, draw: random.Random) -> list[Ids]:
        pieces, start = [], 0
        while start < len(ids):
            size = draw.randint(1, 5)
            pieces.append(ids[start : start + size])
            start += size
        return pieces

    def make_model(self) -> nn.Module:
        generator = torch.Generator().manual_seed(self.number + 1)
        deep = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        model = (nn.Linear(3, 2) if self.model == "linear" else deep).double()
        for parameter in model.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2
        return model.to(self.dtype)

    def make_optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        parameters = groups = list(parameters)
        if self.two_groups:
            groups = [{"params": parameters[::2]}, {"params": parameters[1::2], "lr": 0.02}]
        fused = True if self.guard == "device" else None
        if self.optimizer == "adam":
            return torch.optim.Adam(groups, lr=0.01, fused=fused)
        momentum = 0.9 if self.optimizer == "momentum" else 0.0
        return torch.optim.SGD(groups, lr=0.05, momentum=momentum, fused=fused)

    def make_schedule(self, optimizer: torch.optim.Optimizer) -> Any:
        if self.schedule == "exponential":
            return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        if self.schedule == "warm_up":
            return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min((n + 1) / 5, 1.0))
        return None

    def collate(self, items: list[Item]) -> Batch:
        """Padded to the longest, as a user does it."""
        lengths = torch.tensor([len(item["x"]) for item in items])
        padded = {
            key: nn.utils.rnn.pad_sequence([item[key] for item in items], batch_first=True)
            for key in ("x", "y", "tokens")
        }
        return {"id": torch.stack([item["id"] for item in items]), "num_frames": lengths, **padded}

    def batch_of(self, ids: Ids) -> Batch:
        return self.collate([self.items[index] for index in ids])

    def data(self) -> tuple[Any, dict[str, Any]]:
        """What `fit` is given as train_set and train_loader_kwargs."""
        if self.form == "list":
            return [self.batch_of(ids) for ids in self.epochs[0]], {}
        if self.form == "shuffled":
            options = {"batch_size": self.batch_size, "shuffle": True, "drop_last": self.drop_last}
            return Items(self.items[: len(self.train_ids)]), {**options, "collate_fn": self.collate}
        epochs = [[self.batch_of(ids) for ids in epoch] for epoch in self.epochs]
        if self.form == "stream":
            return Stream(epochs), {}
        return torch.utils.data.DataLoader(StreamedDataset(epochs), batch_size=None), {}


class Items(torch.utils.data.Dataset[Item]):
    def __init__(self, items: list[Item]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Item:
        return self.items[index]


class Stream:
    """Ready batches, without a length, other ones in every epoch."""

    def __init__(self, epochs: list[list[Batch]]) -> None:
        self.epochs, self.num_read = epochs, 0

    def __iter__(self) -> Iterator[Batch]:
        self.num_read += 1
        return iter(self.epochs[self.num_read - 1])


class StreamedDataset(Stream, torch.utils.data.IterableDataset[Batch]):
    """The same for a loader."""


# ------------------------------------------------------------------------------------------------------- with brainlib
class Splits(bl.Brain):
    """What a user writes; beside that it notes what it saw and what its optimizer was given."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.seen: list[list[Ids]] = []
        self.given: list[tuple[list[Tensor], list[Tensor]]] = []  # an update: weights before it, gradients
        self.losses: dict[bl.Stage, list[float]] = {bl.Stage.TRAIN: [], bl.Stage.VALID: []}
        super().__init__(
            {"model": case.make_model()},
            case.make_optimizer,
            hparams={"seed": case.number},
            run_opts={
                "noprogressbar": True,
                "device": "cpu",
                "grad_accumulation_factor": case.factor,
                "max_grad_norm": case.max_grad_norm,
                "loss_average": case.loss_average,
                "nonfinite_patience": 1000,
                "limit_train_batches": case.limit_batches,
                "optimizer_step_limit": case.limit_updates,
            },
        )

    def _make_guard(self) -> HostGuard:
        return DeviceGuard(self.device) if self.case.guard == "device" else HostGuard()

    def on_fit_start(self) -> None:
        super().on_fit_start()
        self.schedule = self.case.make_schedule(self.optimizer)
        self.optimizer.register_step_pre_hook(self.note_update)

    def note_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        parameters = list(self.modules.parameters())
        refused = getattr(optimizer, "found_inf", None)  # such a step is called, and left out on the device
        if (refused is None or not refused.item()) and any(
            parameter.grad is not None for parameter in parameters
        ):
            self.given.append(
                ([p.detach().clone() for p in parameters], [p.grad.detach().clone() for p in parameters])
            )

    def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
        if stage == bl.Stage.TRAIN:
            self.seen.append([])

    def compute_forward(self, batch: Batch, stage: bl.Stage) -> Tensor:
        if stage == bl.Stage.TRAIN:
            self.seen[-1].append(batch["id"].tolist())
        return self.modules.model(batch["x"])

    def compute_objectives(self, predictions: Tensor, batch: Batch, stage: bl.Stage) -> Tensor:
        squares = (predictions - batch["y"]).pow(2).mean(2)
        frames = (torch.arange(squares.shape[1]) < batch["num_frames"][:, None]).to(squares.dtype)
        if self.case.mean_over == "items":
            return ((squares * frames).sum(1) / batch["num_frames"]).mean()
        if self.case.mean_over == "frames":
            return (squares * frames).sum() / batch["num_frames"].sum()
        return (squares * batch["tokens"]).sum() / batch["tokens"].sum()

    def loss_weight(self, batch: Batch, stage: bl.Stage) -> Any:
        if self.case.mean_over == "items":
            return super().loss_weight(batch, stage)
        if self.case.mean_over == "frames":
            return batch["num_frames"].sum()  # a tensor
        return int(batch["tokens"].sum())

    def on_fit_batch_end(self, batch: Batch, outputs: Any, loss: Tensor, should_step: bool) -> None:
        if should_step and self.schedule is not None:
            self.schedule.step()

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        self.losses[stage].append(stage_loss)


# ---------------------------------------------------------------------------------------------------------- the oracle
class Oracle:
    """One big batch a window, by hand."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.model = case.make_model()
        self.optimizer = case.make_optimizer(self.model.parameters())
        self.schedule = case.make_schedule(self.optimizer)
        self.num_updates = self.num_skipped = 0
        self.train_losses: list[float] = []

    def loss(self, ids: Ids) -> Tensor:
        """The mean over all items (frames, tokens) of these, on frames that were never padded."""
        items = [self.case.items[index] for index in ids]
        weights = torch.cat(
            [
                {
                    "items": torch.full_like(item["tokens"], 1 / len(item["x"])),
                    "frames": torch.ones_like(item["tokens"]),
                    "tokens": item["tokens"],
                }[self.case.mean_over]
                for item in items
            ]
        )
        error = self.model(torch.cat([item["x"] for item in items])) - torch.cat(
            [item["y"] for item in items]
        )
        return (error.square().sum(1) / error.shape[1] * weights).sum() / weights.sum()

    def num_items(self, ids: Ids) -> float:
        """What the loss of these is a mean over."""
        counts = {
            "items": [1.0 for _ in ids],
            "frames": [float(len(self.case.items[index]["x"])) for index in ids],
            "tokens": [float(self.case.items[index]["tokens"].sum()) for index in ids],
        }
        return sum(counts[self.case.mean_over])

    def is_finite(self, ids: Ids) -> bool:
        return all(bool(self.case.items[index][key].isfinite().all()) for index in ids for key in "xy")

    def train(self, epochs: list[list[Ids]], brain: Splits) -> None:
        """Train on the micro-batches of these epochs; what the Brain gave its optimizer is compared on the way."""
        case = self.case
        for batches in epochs:
            if self.num_updates == case.limit_updates:
                return
            batches, total, count = batches[: case.limit_batches], 0.0, 0.0
            for start in range(0, len(batches), case.factor):
                micro = batches[start : start + case.factor]
                window = [index for ids in micro for index in ids]
                if not self.is_finite(window):
                    self.num_skipped += 1
                    continue
                assert self.num_updates < len(brain.given), (
                    f"{len(brain.given)} updates, the oracle makes more"
                )
                weights, gradients = brain.given[self.num_updates]
                if case.dtype == torch.float32:  # each update on its own: two runs in float32 drift apart
                    for parameter, weight in zip(self.model.parameters(), weights, strict=True):
                        parameter.data.copy_(weight)

                self.optimizer.zero_grad()
                loss = self.loss(window)
                loss.backward()
                if case.max_grad_norm is not None:
                    clip_grad_norm_(self.model.parameters(), case.max_grad_norm)
                wanted = [parameter.grad for parameter in self.model.parameters()]
                assert_close(gradients, wanted, case, f"the gradient of update {self.num_updates}")

                if case.loss_average == "items":
                    total, count = (
                        total + loss.item() * self.num_items(window),
                        count + self.num_items(window),
                    )
                else:
                    with torch.no_grad():
                        total += sum(self.loss(ids).item() for ids in micro)
                    count += len(micro)
                self.optimizer.step()
                if self.schedule is not None:
                    self.schedule.step()
                self.num_updates += 1
                if self.num_updates == case.limit_updates:
                    break
            self.train_losses.append(total / count if count else math.nan)


def assert_close(given: list[Tensor], wanted: list[Tensor], case: Case, what: str) -> None:
    difference = torch.cat([(a - b).flatten() for a, b in zip(given, wanted, strict=True)]).norm().item()
    size = torch.cat([tensor.flatten() for tensor in wanted]).norm().item()
    assert difference <= TOLERANCE[case.dtype] * size, (
        f"{what} is off by {difference / (size or 1.0):.1e} of it"
    )


def check(case: Case) -> None:
    brain, oracle = Splits(case), Oracle(case)
    train_set, options = case.data()
    brain.fit(
        range(case.num_epochs),
        train_set,
        [case.batch_of(ids) for ids in case.valid_batches],
        train_loader_kwargs=options,
    )
    epochs = case.epochs
    if case.form == "shuffled":  # the order is the Brain's choice; that it is one is looked at here
        epochs = [list(batches) for batches in brain.seen]
        for batches in epochs:
            ids = [index for batch in batches for index in batch]
            assert len(set(ids)) == len(ids), "an item came twice"
            assert set(ids) <= set(case.train_ids)
            assert all(len(batch) == case.batch_size for batch in batches[:-1])
    oracle.train(epochs, brain)

    # Counts
    assert len(brain.given) == brain.optimizer_step == oracle.num_updates
    assert brain.run_state.nonfinite_windows == oracle.num_skipped
    assert len(brain.losses[bl.Stage.TRAIN]) == len(oracle.train_losses)
    if case.form != "shuffled" and case.limit_updates is None:
        assert brain.seen == [batches[: case.limit_batches] for batches in epochs]
    if case.schedule is not None:
        assert brain.schedule.last_epoch == oracle.num_updates
    rates = [[group["lr"] for group in each.optimizer.param_groups] for each in (brain, oracle)]
    assert rates[0] == rates[1]

    # Where it ends: weights, moments, nothing pending
    assert_close(list(brain.modules.parameters()), list(oracle.model.parameters()), case, "the weights")
    for ours, theirs in zip(brain.modules.parameters(), oracle.model.parameters(), strict=True):
        assert ours.grad is None or not ours.grad.any()
        moments, wanted = brain.optimizer.state.get(ours, {}), oracle.optimizer.state.get(theirs, {})
        assert wanted.keys() <= moments.keys()
        for key, value in moments.items():
            if value is not None:  # a step refused on the device may make them, as zeros
                assert_close([value], [wanted.get(key, torch.zeros_like(value))], case, key)

    # Losses: of training, over the windows that counted; of validation, each item once
    relative = TOLERANCE[case.dtype]
    for logged, right in zip(brain.losses[bl.Stage.TRAIN], oracle.train_losses, strict=True):
        assert math.isnan(right) or logged == pytest.approx(right, rel=relative)
    assert math.isfinite(brain.avg_train_loss)
    with torch.no_grad():
        oracle.model.load_state_dict(brain.modules.model.state_dict())
        right = oracle.loss(case.valid_ids).item()
    if case.loss_average == "items" and brain.losses[bl.Stage.VALID]:
        assert brain.losses[bl.Stage.VALID][-1] == pytest.approx(right, rel=relative)


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_any_split_of_the_same_samples_gives_the_same_run(part: int) -> None:
    for number in range(part, NUM_CASES, NUM_PARTS):
        case = Case(number)
        try:
            check(case)
        except (AssertionError, ValueError) as error:
            drawn = {key: value for key, value in vars(case).items() if key not in ("items", "epochs")}
            raise AssertionError(f"case {number}: {error}\n{drawn}") from error
