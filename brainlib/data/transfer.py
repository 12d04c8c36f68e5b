"""Moving batches to the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from brainlib.data.padded_batch import PaddedBatch, PaddedData

__all__ = ["on_device", "to_device"]


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
    if isinstance(batch, (PaddedBatch, PaddedData)):
        return batch.to(device, non_blocking=True)
    if hasattr(batch, "to") and not isinstance(batch, type):
        return batch.to(device)
    return batch


def on_device(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """The batches on `device`.

    On CUDA each copy runs on a stream of its own. The loop asks for a batch while the device still works on the one
    before, so a copy from pinned memory (``pin_memory=True``) overlaps with that work, and no batch is read ahead.
    """
    if device.type == "cpu":
        return batches
    if device.type == "cuda":
        return _over_a_stream(batches, device)
    return (to_device(batch, device) for batch in batches)


def _over_a_stream(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    for batch in batches:
        with torch.cuda.stream(copies):
            moved = to_device(batch, device)
        compute = torch.cuda.current_stream(device)
        compute.wait_stream(copies)
        _keep_for(moved, compute)
        yield moved


def _keep_for(batch: Any, stream: torch.cuda.Stream) -> None:
    """Tell the allocator that another stream than the one that made these tensors works on them."""
    if isinstance(batch, (Tensor, PaddedBatch, PaddedData)):
        batch.record_stream(stream)
    elif isinstance(batch, Mapping):
        for value in batch.values():
            _keep_for(value, stream)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            _keep_for(value, stream)
