"""Moving a batch to the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["to_device"]


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with every tensor on `device`; containers are rebuilt, objects with ``to`` are asked, the rest stays.

    >>> to_device({"x": torch.ones(1), "id": ["a"]}, torch.device("cpu"))
    {'x': tensor([1.]), 'id': ['a']}
    """
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        moved = {key: to_device(value, device) for key, value in batch.items()}
        return moved if type(batch) is dict else type(batch)(moved)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if type(batch) in (list, tuple):
        return type(batch)(to_device(value, device) for value in batch)
    if hasattr(batch, "to") and not isinstance(batch, type):
        return batch.to(device)
    return batch
