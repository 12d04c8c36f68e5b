"""Whether a batch gives the gradient that its two parts give together: what an accumulated update relies on.

An update over several batches is Σ wᵢ∇lᵢ / Σ wᵢ, with the weights of `loss_weight`. It is that of the batch uncut if
the loss is a mean over as many items as `loss_weight` says, and if the loss of an item depends on that item alone.
Gradients are compared and not updates, since the first update of Adam is the same for a gradient of any length.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from brainlib.checkup.batches import CannotBeSplitError, split
from brainlib.checkup.digests import Digests
from brainlib.seeding import generator_states
from brainlib.stage import Stage

__all__ = ["compare_split"]

TOLERANCE = 1e-4  # relative, in fp32 on a CPU; measured on small networks: 1e-7 to 1e-6
COARSE = 2e-2  # with half precision, or products in TF32


class _CannotCompareError(ValueError):
    """Why the two are not comparable."""


def compare_split(brain: Any, batch: Any) -> dict[str, Any]:
    """Compare the gradient of `batch` with that of its parts. Modules are in eval mode: dropout and batch
    normalization would make the two differ for another reason.

    Returns:
        ``result``: "same", "differs" or "not compared"; ``why`` in a sentence; ``difference``, relative; ``sizes``.
    """
    if not (brain._overridden("compute_forward") and brain._overridden("compute_objectives")):
        return _not_compared("its fit_batch does not go through compute_forward and compute_objectives")
    modes = [(module, module.training) for module in brain.modules.modules()]
    brain.modules.eval()
    why = ""
    try:
        for stage in (Stage.TRAIN, Stage.VALID):  # augmentation draws: many Brains have it in TRAIN only
            try:
                return _compare(brain, batch, stage)
            except (_CannotCompareError, CannotBeSplitError) as error:
                why = why or str(error)
            except Exception as error:  # noqa: BLE001  # the user's own code, asked for something it may not be made for
                why = why or f"with a part of a batch it fails: {type(error).__name__}: {error}"
    finally:
        for module, training in modes:
            module.training = training
    return _not_compared(why)


def _not_compared(why: str) -> dict[str, Any]:
    return {"result": "not compared", "why": why}


def _compare(brain: Any, batch: Any, stage: Stage) -> dict[str, Any]:
    one, other = split(batch)
    parameters = [param for param in brain.modules.parameters() if param.requires_grad]
    if not parameters:
        raise _CannotCompareError("no parameter of its modules is trained")
    before = Digests().of(generator_states())
    whole, again = _gradient(brain, batch, stage, parameters), _gradient(brain, batch, stage, parameters)
    first, rest = _gradient(brain, one, stage, parameters), _gradient(brain, other, stage, parameters)
    if Digests().of(generator_states()) != before or not _equal(whole.gradients, again.gradients):
        raise _CannotCompareError(
            "what compute_forward or compute_objectives gives is drawn at random, also in eval mode"
        )
    coarse = brain._options.precision != "fp32" or brain.device.type != "cpu"
    tolerance = COARSE if coarse else TOLERANCE
    if _mixes(whole.outputs, first.outputs, rest.outputs, tolerance):
        raise _CannotCompareError(
            "what compute_forward gives for a sample depends on the other samples of its batch"
        )
    total = first.weight + rest.weight
    summed = [
        (a * first.weight + b * rest.weight) / total
        for a, b in zip(first.gradients, rest.gradients, strict=True)
    ]
    length = max(_norm(whole.gradients), _norm(summed))
    if not length > 0 or not math.isfinite(length):
        raise _CannotCompareError(f"the gradient has the length {length}")
    difference = _norm([a - b for a, b in zip(whole.gradients, summed, strict=True)]) / length
    weights = [first.weight, rest.weight]
    return {
        "result": "same" if difference <= tolerance else "differs",
        "why": "" if difference <= tolerance else _cause(whole, first, rest, tolerance),
        "difference": difference,
        "weights": weights,
        "stage": stage.name,
    }


class _Gradient:
    """Loss, weight, outputs and gradients of one batch."""

    def __init__(self, loss: float, weight: float, outputs: Any, gradients: list[Tensor]) -> None:
        self.loss, self.weight, self.outputs, self.gradients = loss, weight, outputs, gradients


def _gradient(brain: Any, batch: Any, stage: Stage, parameters: list[Tensor]) -> _Gradient:
    with torch.enable_grad():
        with brain.training_ctx:
            outputs = brain.compute_forward(batch, stage)
            loss = brain.compute_objectives(outputs, batch, stage)
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise _CannotCompareError("compute_objectives gives no single number with a gradient")
        found = torch.autograd.grad(loss.float().sum(), parameters, allow_unused=True)
    gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
    return _Gradient(float(loss.detach()), float(brain._weight(batch, stage)), outputs, gradients)


def _norm(gradients: list[Tensor]) -> float:
    return math.sqrt(sum(float(each.double().pow(2).sum()) for each in gradients))


def _equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _mixes(whole: Any, first: Any, rest: Any, tolerance: float) -> bool:
    """Whether outputs that are one tensor show that samples see each other."""
    if not (isinstance(whole, Tensor) and isinstance(first, Tensor) and isinstance(rest, Tensor)):
        return False
    if not whole.dim() or whole.shape[1:] != first.shape[1:] or whole.shape[1:] != rest.shape[1:]:
        return False
    if len(whole) != len(first) + len(rest):
        return False
    there, here = torch.cat([first, rest]).double(), whole.double()
    return bool((there - here).norm() > 10 * tolerance * here.norm().clamp_min(1e-12))


def _cause(whole: _Gradient, first: _Gradient, rest: _Gradient, tolerance: float) -> str:
    """What losses and gradients say about how a loss is averaged: "sum", "share ... ..." or nothing."""
    length = _norm(whole.gradients)
    if min(_norm(first.gradients), _norm(rest.gradients)) > tolerance * length:
        pairs = zip(whole.gradients, first.gradients, rest.gradients, strict=True)
        if _norm([a - (b + c) for a, b, c in pairs]) <= tolerance * length:
            return "sum"
    apart = first.loss - rest.loss
    if abs(apart) > 1e-2 * max(abs(whole.loss), abs(first.loss), abs(rest.loss)):
        share, told = (whole.loss - rest.loss) / apart, first.weight / (first.weight + rest.weight)
        if -0.01 < share < 1.01 and abs(share - told) > 1e-3:
            return f"share {share:.3g} {told:.3g}"
    return ""
