"""What a batch holds, told sample by sample; and a batch cut into two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from brainlib.checkup.digests import Digests
from brainlib.common.counted import counted
from brainlib.data.padded_batch import PaddedBatch, PaddedData
from brainlib.update.loss_weight import num_items

__all__ = ["contents", "ids", "is_padded", "split"]

_MOST_ROWS = 4096


def contents(batch: Any, digests: Digests) -> dict[str, list[str]]:
    """The digests of each field: one a sample where its first dimension counts the samples, else one for all of it.

    >>> import torch
    >>> fields = contents({"x": torch.eye(2), "scale": 0.5}, Digests())
    >>> {name: len(rows) for name, rows in fields.items()}
    {'x': 2, 'scale': 1}
    """
    size = num_items(batch)
    found = {}
    for name, value in _fields(batch, ""):
        if isinstance(value, Tensor) and value.dim() and value.shape[0] == size and 0 < size <= _MOST_ROWS:
            found[name] = digests.rows(value)
        elif isinstance(value, (list, tuple)) and len(value) == size:
            found[name] = [digests.of(each) for each in value]
        else:
            found[name] = [digests.of(value)]
    return found


def ids(batch: Any) -> list[str]:
    """The names of the samples, where a field called ``id``, ``ids`` or ``index`` holds them.

    >>> import torch
    >>> ids({"x": torch.eye(2), "id": torch.tensor([7, 3])}), ids([torch.eye(2)])
    (['7', '3'], [])
    """
    for key in ("id", "ids", "index", "indices"):
        value = batch.get(key) if isinstance(batch, Mapping) else getattr(batch, key, None)
        if isinstance(value, (Tensor, np.ndarray)) and value.ndim == 1:
            return [str(each) for each in value.tolist()]
        if isinstance(value, (list, tuple)):
            return [str(each) for each in value]
    return []


def _fields(batch: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(batch, PaddedBatch):
        batch = {key: batch[key] for key in batch.keys()}
    elif isinstance(batch, PaddedData):
        batch = {"data": batch.data, "num": list(batch.num)}
    if isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from _fields(value, f"{path}.{key}" if path else str(key))
    elif isinstance(batch, tuple) and hasattr(batch, "_fields"):
        for key, value in zip(batch._fields, batch, strict=True):
            yield from _fields(value, f"{path}.{key}" if path else str(key))
    elif isinstance(batch, (list, tuple)) and any(isinstance(each, (Tensor, Mapping)) for each in batch):
        for place, value in enumerate(batch):
            yield from _fields(value, f"{path}[{place}]")
    elif hasattr(batch, "__dict__") and not isinstance(batch, (Tensor, type)):
        for key, value in vars(batch).items():
            yield from _fields(value, f"{path}.{key}" if path else key)
    else:
        yield path, batch


class CannotBeSplitError(ValueError):
    """A batch of which it cannot be told where one sample ends and the next begins."""


def is_padded(batch: Any) -> bool:
    """Whether it is known of some of its samples that they are filled up to the length of the longest.

    >>> import torch
    >>> is_padded(PaddedBatch([{"x": torch.ones(2)}, {"x": torch.ones(3)}])), is_padded({"x": torch.ones(2, 3)})
    (True, False)
    """
    if not isinstance(batch, PaddedBatch):
        return False
    return any(isinstance(each, PaddedData) and len(set(each.num)) > 1 for each in batch)


def split(batch: Any, trim: bool = True) -> tuple[Any, Any]:
    """A batch in two: the first third of its samples, and the others.

    Args:
        batch: what a loader gives.
        trim: whether the parts of a `PaddedBatch` are padded to their own longest sample, as a loader would have it;
            else as the whole is.

    Raises:
        CannotBeSplitError: it has one sample, or holds something of which it cannot be told what belongs to a sample.

    >>> import torch
    >>> one, other = split({"x": torch.arange(4.0), "id": ["a", "b", "c", "d"], "scale": 0.5})
    >>> one, other["id"]
    ({'x': tensor([0.]), 'id': ['a'], 'scale': 0.5}, ['b', 'c', 'd'])
    """
    size = num_items(batch)
    if size is None:
        raise CannotBeSplitError(f"it cannot be told how many samples a {type(batch).__name__} holds")
    if size < 2:
        raise CannotBeSplitError("a batch holds one sample")
    size, first = int(size), max(1, int(size) // 3)
    if isinstance(batch, PaddedBatch):
        return batch.part(slice(0, first), trim), batch.part(slice(first, size), trim)
    return _part(batch, size, slice(0, first), ""), _part(batch, size, slice(first, size), "")


def _part(value: Any, size: int, place: slice, path: str) -> Any:
    if isinstance(value, (Tensor, np.ndarray)):
        if value.ndim == 0:
            return value
        if value.shape[0] != size:
            raise CannotBeSplitError(
                f"the field {path or 'of the batch'!r} has the shape {list(value.shape)}, and the batch has "
                f"{counted(size, 'sample')}"
            )
        return value[place]
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return value
    if isinstance(value, Mapping):
        parts = {
            key: _part(each, size, place, f"{path}.{key}" if path else str(key))
            for key, each in value.items()
        }
        return parts if type(value) is dict else type(value)(parts)  # type: ignore[call-arg]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_part(each, size, place, path) for each in value))
    if isinstance(value, (list, tuple)):
        if all(isinstance(each, (Tensor, Mapping)) for each in value) and num_items(value) != len(value):
            return type(value)(_part(each, size, place, f"{path}[{n}]") for n, each in enumerate(value))
        if len(value) == size:
            return value[place]
        return type(value)(_part(each, size, place, f"{path}[{n}]") for n, each in enumerate(value))
    raise CannotBeSplitError(f"it is not known how to split a {type(value).__name__}")
