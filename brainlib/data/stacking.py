"""Torch's own way to make a batch of items, with an error that says what does not stack, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import default_collate

__all__ = ["does_batch", "explained", "stacked"]

_MOST_NAMED = 4  # shapes in a message


def does_batch(options: Mapping[str, Any]) -> bool:
    """Whether a loader with these options makes batches of items, rather than hand them on as they are.

    >>> does_batch({}), does_batch({"batch_size": None})
    (True, False)
    """
    return options.get("batch_size", 1) is not None or options.get("batch_sampler") is not None


def stacked(items: list[Any]) -> Any:
    """A batch as torch makes it where no ``collate_fn`` is given: tensors of one shape are stacked.

    Raises:
        ValueError: what items hold does not stack; it names the key, and the ``collate_fn`` that pads.

    >>> import torch
    >>> stacked([{"x": torch.zeros(3)}, {"x": torch.zeros(3)}])["x"].shape
    torch.Size([2, 3])
    >>> stacked([{"x": torch.zeros(3)}, {"x": torch.zeros(5)}])
    Traceback (most recent call last):
    ...
    ValueError: the items of a batch cannot be stacked: their 'x' has the shapes (3,), (5,). ...
    """
    try:
        return default_collate(items)
    except (RuntimeError, TypeError) as error:
        found = _difference(items, "")
        if found is None and isinstance(error, RuntimeError):  # memory, say
            raise
        padded = '"collate_fn": bl.PaddedBatch, which pads tensors to the longest, and keeps how long each is'
        if not isinstance(items[0], Mapping):
            padded = f"items that are dicts, and {padded}"
        raise ValueError(
            f"the items of a batch cannot be stacked: {found or error}. Without a collate_fn each key must have one "
            f"shape in all items. Give the loader options {padded}; or a collate_fn of your own."
        ) from error


def explained(collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same function, or `stacked` in place of torch's.

    >>> explained(len) is len, explained(default_collate) is stacked
    (True, True)
    """
    return stacked if collate is default_collate else collate


def _difference(values: Sequence[Any], path: str) -> str | None:
    """Where the values of several items have different sizes, in words; None where that is nowhere."""
    where = f"their {path}" if path else "each"
    if all(isinstance(each, (Tensor, np.ndarray)) for each in values):
        return _told(f"{where} has the shapes", [str(tuple(each.shape)) for each in values])
    if all(isinstance(each, Mapping) for each in values):
        shared = [key for key in values[0] if all(key in each for each in values)]
        parts = [
            ([each[key] for each in values], f"{path}[{key!r}]" if path else repr(key)) for key in shared
        ]
    elif all(isinstance(each, (list, tuple)) for each in values):
        if len({len(each) for each in values}) > 1:
            return _told(f"{where} has as many entries as", [str(len(each)) for each in values])
        parts = [(list(each), f"{path}[{place}]") for place, each in enumerate(zip(*values, strict=True))]
    else:
        return None
    return next((found for part in parts if (found := _difference(*part)) is not None), None)


def _told(what: str, sizes: list[str]) -> str | None:
    different = list(dict.fromkeys(sizes))
    more = ", ..." if len(different) > _MOST_NAMED else ""
    return f"{what} {', '.join(different[:_MOST_NAMED])}{more}" if len(different) > 1 else None
