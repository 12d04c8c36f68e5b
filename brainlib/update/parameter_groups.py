"""Parameter groups for optimizers: vectors (biases, norms) without weight decay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.nn import Parameter

__all__ = ["without_vector_decay"]


def without_vector_decay(parameters: Iterable[Parameter]) -> list[dict[str, Any]]:
    """Two groups: parameters of one dimension or none, with ``weight_decay`` 0, and all others.

    >>> import torch
    >>> groups = without_vector_decay(torch.nn.Linear(3, 2).parameters())
    >>> [(len(group["params"]), group.get("weight_decay")) for group in groups]
    [(1, 0.0), (1, None)]
    """
    parameters = list(parameters)
    vectors = [param for param in parameters if param.dim() <= 1]
    matrices = [param for param in parameters if param.dim() > 1]
    groups: list[dict[str, Any]] = [{"params": vectors, "weight_decay": 0.0}, {"params": matrices}]
    return [group for group in groups if group["params"]]
