"""Whether a batch gives the gradient that its two parts give together: what an accumulated update relies on.

An update over several batches is Σ wᵢ∇lᵢ / Σ wᵢ, with the weights of `loss_weight`. It is that of the batch uncut if
the loss is a mean over as many items as `loss_weight` says, and if the loss of an item depends on that item alone.
Gradients are compared and not updates, since the first update of Adam is the same for a gradient of any length.

Where a batch is padded, the parts are compared twice if they differ: padded to their own longest sample, and as the
whole is. If they agree then, padding counts, and `loss_weight` has nothing to do with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from brainlib.checkup.batches import CannotBeSplitError, is_padded, split
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
    parameters = [param for param in brain.modules.parameters() if param.requires_grad]
    if not parameters:
        raise _CannotCompareError("no parameter of its modules is trained")
    before = Digests().of(generator_states())
    whole, again = _gradient(brain, batch, stage, parameters), _gradient(brain, batch, stage, parameters)
    first, rest = (_gradient(brain, part, stage, parameters) for part in split(batch))
    if Digests().of(generator_states()) != before or not _equal(whole.gradients, again.gradients):
        raise _CannotCompareError(
            "what compute_forward or compute_objectives gives is drawn at random, also in eval mode"
        )
    coarse = brain._options.precision != "fp32" or brain.device.type != "cpu"
    tolerance = COARSE if coarse else TOLERANCE
    found = {"weights": [first.weight, rest.weight], "stage": stage.name}
    difference, padded = None, is_padded(batch)
    if padded:
        difference = _difference(whole, first, rest)
        if difference <= tolerance:
            return {"result": "same", "why": "", "difference": difference, **found}
        # With the padding of the whole batch in its parts, what still differs comes from something else.
        first, rest = (_gradient(brain, part, stage, parameters) for part in split(batch, trim=False))
    if _mixes(whole.outputs, first.outputs, rest.outputs, tolerance):
        raise _CannotCompareError(
            "what compute_forward gives for a sample depends on the other samples of its batch"
        )
    alike = _difference(whole, first, rest)
    why = "padding" if padded else ""
    if alike > tolerance:
        why = _cause(whole, first, rest, tolerance)
    return {
        "result": "differs" if padded or alike > tolerance else "same",
        "why": why,
        "difference": alike if difference is None else difference,
        **found,
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


def _difference(whole: _Gradient, first: _Gradient, rest: _Gradient) -> float:
    """How far the gradient of the whole is from that of its parts, as a part of its length."""
    total = first.weight + rest.weight
    summed = [
        (a * first.weight + b * rest.weight) / total
        for a, b in zip(first.gradients, rest.gradients, strict=True)
    ]
    lengths = _norm(whole.gradients), _norm(summed)
    if not all(map(math.isfinite, lengths)) or not max(lengths):
        raise _CannotCompareError(
            f"the gradient has the length {lengths[0]:g}, and that of the parts {lengths[1]:g}"
        )
    return _norm([a - b for a, b in zip(whole.gradients, summed, strict=True)]) / max(lengths)


def _norm(gradients: list[Tensor]) -> float:
    return math.sqrt(sum(float(each.double().pow(2).sum()) for each in gradients))


def _equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _mixes(whole: Any, first: Any, rest: Any, tolerance: float) -> bool:
    """Whether outputs show that samples see each other."""
    outputs = zip(_computed(whole), _computed(first), _computed(rest), strict=False)
    return any(_differ(*each, tolerance) for each in outputs)


def _computed(outputs: Any) -> list[Tensor]:
    """The tensors among outputs that the modules have computed. Lengths, which are given back beside them, are parts of
    the longest, and so are others in another batch.
    """
    if isinstance(outputs, Tensor):
        return [outputs] if outputs.requires_grad and outputs.dim() else []
    if isinstance(outputs, Mapping):
        outputs = outputs.values()
    elif not isinstance(outputs, (list, tuple)):
        return []
    return [tensor for each in outputs for tensor in _computed(each)]


def _differ(whole: Tensor, first: Tensor, rest: Tensor, tolerance: float) -> bool:
    if whole.shape[1:] != first.shape[1:] or whole.shape[1:] != rest.shape[1:]:
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
