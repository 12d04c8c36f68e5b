"""What a batch says of itself: how many items its loss is a mean over, and which they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

__all__ = ["ids_of", "num_items"]


def num_items(batch: Any) -> float | None:
    """Number of items in a batch, or None where it cannot be told.

    A batch that knows its size says so (``batchsize``, as PaddedBatch does). A dict, or a list or tuple of
    fields, has the first dimension of its tensors. A list that is plainly one of samples (dicts, texts, tensors of
    different lengths) has its own length, and so has anything else with a length.

    >>> import torch
    >>> num_items({"id": ["a", "b"], "wav": torch.rand(2, 8000)})
    2.0
    >>> num_items((torch.rand(5, 3), torch.rand(5))), num_items(torch.rand(7, 1)), num_items(3) is None
    (5.0, 7.0, True)
    >>> num_items([torch.rand(16000), torch.rand(8000)]), num_items([{"x": 1}, {"x": 2}, {"x": 3}])
    (2.0, 3.0)
    """
    kind = type(batch)
    if kind is dict:  # the plain kinds first: this is asked at every batch
        return _first_dimension(batch.values())
    if kind is list or kind is tuple:
        return float(len(batch)) if _are_samples(batch) else _first_dimension(batch)
    size = getattr(batch, "batchsize", None)
    if isinstance(size, int):
        return float(size)
    if isinstance(batch, Tensor):
        return float(batch.shape[0]) if batch.dim() else None
    if isinstance(batch, Mapping):
        return _first_dimension(batch.values())
    if isinstance(batch, Sequence) and not isinstance(batch, (str, bytes)):
        return _first_dimension(batch)  # a named tuple is one of fields
    try:
        return float(len(batch))
    except TypeError:
        return None


def _are_samples(values: Sequence[Any]) -> bool:
    length = None
    for value in values:
        if isinstance(value, Tensor):
            if not value.dim():
                return False
            if length is None:
                length = value.shape[0]
            elif value.shape[0] != length:
                return all(isinstance(each, Tensor) and each.dim() for each in values)
        elif length is not None or not isinstance(value, (str, Mapping)):
            return False
    return length is None and len(values) > 0  # nothing but texts and dicts


def _first_dimension(values: Iterable[Any]) -> float | None:
    for value in values:  # tensors first: their first dimension is the batch, by every convention
        if isinstance(value, Tensor) and value.dim():
            return float(value.shape[0])
    for value in values:
        if isinstance(value, (Mapping, list, tuple)):
            inner = num_items(value)
            if inner is not None:
                return inner
    return None


def ids_of(batch: Any) -> str:
    """The ids of a batch's items for a message, if it has any under ``id``.

    >>> ids_of({"id": ["utt1", "utt2"]}), ids_of([1, 2])
    (" with the ids 'utt1', 'utt2'", '')
    """
    ids = batch.get("id") if isinstance(batch, Mapping) else getattr(batch, "id", None)
    if not isinstance(ids, (list, tuple)) or not ids:
        return ""
    more = f" and {len(ids) - 8} more" if len(ids) > 8 else ""
    return " with the ids " + ", ".join(repr(each) for each in ids[:8]) + more
