"""The path from `fit` to `backward` is short: at most three frames of ours, wrappers counted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from tests.brain.small import Batch, Regression, batches, small

HERE = Path(__file__).resolve()


class Spy(torch.autograd.Function):
    """Identity; its backward writes down which files the stack runs through."""

    files: list[str] = []  # noqa: RUF012  # one slot for the test

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        Spy.files, frame = [], sys._getframe()
        while frame is not None:
            Spy.files.append(frame.f_code.co_filename)
            frame = frame.f_back  # type: ignore[assignment]
        return grad


class Default(Regression):
    def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
        return Spy.apply(super().compute_forward(batch, stage))


class Super(Default):
    def fit_batch(self, batch: Batch) -> torch.Tensor:
        return super().fit_batch(batch)


def frames_between() -> list[str]:
    """Files of the frames between the test's call of `fit` and torch's backward, innermost first."""
    assert Spy.files, "no backward was seen"
    outer = next(k for k, file in enumerate(Spy.files) if k and Path(file).resolve() == HERE)
    inner = max(k for k, file in enumerate(Spy.files[:outer]) if file.endswith("torch/_tensor.py"))
    return Spy.files[inner + 1 : outer]


@pytest.mark.parametrize("options", [{}, {"grad_accumulation_factor": 2}, {"precision": "bf16"}], ids=str)
def test_three_frames_from_fit_to_backward(options: dict[str, Any]) -> None:
    Spy.files = []
    small(Default, **options).fit(range(1), batches(4, 4), batches(4))
    frames = frames_between()
    assert len(frames) <= 3, frames


def test_three_frames_of_ours_with_fit_batch_overridden() -> None:
    Spy.files = []
    small(Super).fit(range(1), batches(4, 4))
    ours = [file for file in Spy.files if Path(file).resolve().parent == Path(bl.__file__).resolve().parent]
    assert len(ours) <= 3, ours
