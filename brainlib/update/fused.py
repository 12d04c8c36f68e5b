"""Making an optimizer fused, where the user asks for it: one kernel a step, and a verdict it takes on the device."""

from __future__ import annotations

from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from brainlib.common.logs import logger

__all__ = ["make_fused"]

_CAN = (SGD, Adam, AdamW, Adagrad)


def make_fused(optimizer: Optimizer, name: str) -> None:
    """Switch `optimizer` to its fused form, before its first step. It changes the last bits of what a step computes.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)
    >>> make_fused(optimizer, "optimizer"); optimizer.param_groups[0]["fused"]
    True
    """
    if type(optimizer) not in _CAN:
        logger.warning(
            "fused has no effect on %s: torch has no fused form of %s (it has for %s)",
            name,
            type(optimizer).__name__,
            ", ".join(kind.__name__ for kind in _CAN),
        )
        return
    for group in [*optimizer.param_groups, optimizer.defaults]:
        group["fused"], group["foreach"] = True, False
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
