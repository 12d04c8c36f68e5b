"""The smallest Brain with numbers that can be checked by hand: linear regression in float64, and its data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

import brainlib as bl

Batch = dict[str, torch.Tensor]


class Regression(bl.Brain):
    """Mean squared error of one linear layer."""

    def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
        return self.modules.model(batch["x"])

    def compute_objectives(self, predictions: torch.Tensor, batch: Batch, stage: bl.Stage) -> torch.Tensor:
        return nn.functional.mse_loss(predictions, batch["y"])


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def linear() -> nn.Linear:
    """Three inputs, two outputs, the same weights at every call."""
    model = nn.Linear(3, 2).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def batches(*sizes: int, seed: int = 1) -> list[Batch]:
    """Ready batches of these sizes."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(sizes), 3, generator=generator, dtype=torch.float64)
    y = torch.randn(sum(sizes), 2, generator=generator, dtype=torch.float64)
    return [{"x": a, "y": b} for a, b in zip(x.split(list(sizes)), y.split(list(sizes)), strict=True)]


def joined(parts: Iterable[Batch]) -> Batch:
    """One big batch."""
    parts = list(parts)
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


class Rows(torch.utils.data.Dataset[Batch]):
    """The same numbers as items; `reads` lists every index that was fetched."""

    def __init__(self, num_items: int = 10, seed: int = 1) -> None:
        self.whole = batches(num_items, seed=seed)[0] if num_items else {"x": torch.empty(0, 3)}
        self.reads: list[int] = []

    def __len__(self) -> int:
        return len(self.whole["x"])

    def __getitem__(self, index: int) -> Batch:
        self.reads.append(int(index))
        return {"id": torch.tensor(int(index)), **{key: value[index] for key, value in self.whole.items()}}


def small(
    cls: type[bl.Brain] = Regression,
    *,
    model: nn.Module | None = None,
    opt_class: Callable[..., torch.optim.Optimizer] | None = sgd,
    checkpointer: Any = None,
    hparams: dict[str, Any] | None = None,
    **run_opts: Any,
) -> Any:
    """A Brain over `linear()` with SGD; no progress bar, on the CPU, seed 0."""
    return cls(
        {"model": model or linear()},
        opt_class,
        hparams={"seed": 0, **(hparams or {})},
        run_opts={"noprogressbar": True, "device": "cpu", **run_opts},
        checkpointer=checkpointer,
    )


def weights(brain: bl.Brain) -> list[torch.Tensor]:
    """A copy of all parameters."""
    return [parameter.detach().clone() for parameter in brain.modules.parameters()]


def same(one: Iterable[torch.Tensor], two: Iterable[torch.Tensor]) -> bool:
    """Whether the bits are equal."""
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def far(one: Iterable[torch.Tensor], two: Iterable[torch.Tensor]) -> float:
    """The largest absolute difference."""
    return max(float((a - b).abs().max()) for a, b in zip(one, two, strict=True))
