"""What a batch's loss is a mean over, where the user does not say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

__all__ = ["num_items"]


def num_items(batch: Any) -> float | None:
    """Number of items in a batch, or None where it cannot be told.

    A batch that knows its size says so (``batchsize``, as PaddedBatch does); in a dict, list or tuple of fields the
    first tensor's first dimension counts; a field list without tensors (texts) counts its first list; anything else
    with a length counts that.

    >>> import torch
    >>> num_items({"id": ["a", "b"], "wav": torch.rand(2, 8000)})
    2.0
    >>> num_items((torch.rand(5, 3), torch.rand(5))), num_items(torch.rand(7, 1)), num_items(3) is None
    (5.0, 7.0, True)
    """
    size = getattr(batch, "batchsize", None)
    if isinstance(size, int):
        return float(size)
    if isinstance(batch, Tensor):
        return float(batch.shape[0]) if batch.dim() else None
    if isinstance(batch, (Mapping, Sequence)) and not isinstance(batch, (str, bytes)):
        return _first_dimension(batch)
    try:
        return float(len(batch))
    except TypeError:
        return None


def _first_dimension(fields: Mapping[Any, Any] | Sequence[Any]) -> float | None:
    values = list(fields.values()) if isinstance(fields, Mapping) else list(fields)
    for value in values:  # tensors first: their first dimension is the batch, by every convention
        if isinstance(value, Tensor) and value.dim():
            return float(value.shape[0])
    for value in values:
        if isinstance(value, (Mapping, list, tuple)):
            inner = _first_dimension(value)
            if inner is not None:
                return inner
    for value in values:
        if isinstance(value, (list, tuple)):
            return float(len(value))
    return None
