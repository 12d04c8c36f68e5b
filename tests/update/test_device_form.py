"""The guard that reads nothing of the update in hand ends with the same bits and counts as the one that reads the norm.

It is what accelerators get; its logic is the same on a CPU, where it can be compared.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

import brainlib as bl
from brainlib.update.guard import DeviceGuard, HostGuard

Batch = tuple[Tensor, Tensor]


class Plain(bl.Brain):
    """A model with running statistics; `on_device` chooses the form of the guard."""

    on_device = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.losses: list[float] = []
        super().__init__(*args, **kwargs)

    def _make_guard(self) -> HostGuard:
        return DeviceGuard(torch.device("cpu")) if self.on_device else HostGuard()

    def compute_forward(self, batch: Batch, stage: bl.Stage) -> Tensor:
        return self.modules.model(batch[0])

    def compute_objectives(self, predictions: Tensor, batch: Batch, stage: bl.Stage) -> Tensor:
        return torch.nn.functional.mse_loss(predictions, batch[1])

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        self.losses.append(stage_loss)


class OwnStep(Plain):
    """Steps by itself."""

    def fit_batch(self, batch: Batch) -> Tensor:
        loss = self.compute_objectives(self.compute_forward(batch, bl.Stage.TRAIN), batch, bl.Stage.TRAIN)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


class TwoSteps(Plain):
    """Two optimizers of its own; a large target spoils the gradient of the first alone."""

    def init_optimizers(self) -> None:
        self.first = self.opt_class(self.modules.model[0].parameters())
        self.second = self.opt_class(self.modules.model[2].parameters())

    def fit_batch(self, batch: Batch) -> Tensor:
        loss = self.compute_objectives(self.compute_forward(batch, bl.Stage.TRAIN), batch, bl.Stage.TRAIN)
        loss.backward()
        if batch[1][0, 0] > 90:
            self.modules.model[0].weight.grad[0, 0] = float("inf")
        self.first.step()
        self.second.step()
        self.zero_grad()
        return loss.detach()


OPTIMIZERS: dict[str, Callable[[Iterable[Tensor]], torch.optim.Optimizer]] = {
    "fused Adam": lambda p: torch.optim.Adam(p, 0.01, fused=True),
    "fused momentum": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, fused=True),
    "not fused": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9),
}


def ending(cls: type[Plain], optimizer: str, bad: int | None, factor: int, on_device: bool) -> Any:
    generator = torch.Generator().manual_seed(0)
    data = [
        (torch.randn(8, 4, generator=generator), torch.randn(8, 3, generator=generator)) for _ in range(7)
    ]
    train = copy.deepcopy(data)
    if bad is not None and cls is TwoSteps:
        train[bad][1][0, 0] = 99.0
    elif bad is not None:
        train[bad][0][0, 0] = float("nan")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    options = {"noprogressbar": True, "grad_accumulation_factor": factor, "max_grad_norm": 0.5}
    kind = type(cls.__name__, (cls,), {"on_device": on_device})
    brain = kind({"model": model}, OPTIMIZERS[optimizer], run_opts=options)
    brain.fit(range(2), train, data)
    counts = brain.optimizer_step, brain.run_state.nonfinite_windows, brain.nonfinite_count
    return brain.losses, counts, [value.tolist() for value in model.state_dict().values()]


@pytest.mark.parametrize("factor", [1, 3])
@pytest.mark.parametrize("bad", [None, 0, 3, 6])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("cls", [Plain, OwnStep, TwoSteps])
def test_both_forms_end_alike(cls: type[Plain], optimizer: str, bad: int | None, factor: int) -> None:
    on_host = ending(cls, optimizer, bad, factor, on_device=False)
    assert on_host == ending(cls, optimizer, bad, factor, on_device=True)
    if bad is not None:
        assert on_host[1][1] == 2, "one bad window an epoch"


class Interrupted(Plain):
    """Looks at its counters before the host has the verdict on the last window."""

    def on_fit_batch_end(self, batch: Batch, outputs: Tensor, loss: Tensor, should_step: bool) -> None:
        if torch.isnan(batch[0]).any():
            self.saved = self._state.counters()


def test_a_save_right_after_a_bad_window_counts_it() -> None:
    data = [(torch.randn(4, 4), torch.randn(4, 3)) for _ in range(4)]
    data[2][0].fill_(float("nan"))
    kind = type("Device", (Interrupted,), {"on_device": True})
    brain = kind({"model": torch.nn.Linear(4, 3)}, OPTIMIZERS["fused Adam"], run_opts={"noprogressbar": True})
    brain.fit(range(1), data)
    assert brain.saved["optimizer_step"] == 2
    assert brain.optimizer_step == 3


def test_the_limit_counts_updates_that_were_made() -> None:
    data = [(torch.randn(4, 4), torch.randn(4, 3)) for _ in range(5)]
    data[1][0].fill_(float("nan"))
    kind = type("Device", (Plain,), {"on_device": True})
    options = {"noprogressbar": True, "optimizer_step_limit": 2}
    brain = kind({"model": torch.nn.Linear(4, 3)}, OPTIMIZERS["fused Adam"], run_opts=options)
    brain.fit(range(1), data)
    assert (brain.optimizer_step, brain.run_state.nonfinite_windows) == (2, 1)


def test_patience_ends_the_run() -> None:
    data = [(torch.full((4, 4), float("nan")), torch.randn(4, 3)) for _ in range(5)]
    kind = type("Device", (Plain,), {"on_device": True})
    model = torch.nn.Linear(4, 3)
    before = model.weight.detach().clone()
    brain = kind({"model": model}, OPTIMIZERS["fused Adam"], run_opts={"noprogressbar": True})
    with pytest.raises(ValueError, match="nonfinite_patience=3"):
        brain.fit(range(1), data)
    assert torch.equal(model.weight, before)
