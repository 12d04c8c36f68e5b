"""Metadata: what a user notes beside a checkpoint (metrics, an epoch, a remark), as plain JSON values.

Numpy and tensor scalars become numbers, arrays become lists. JSON has no NaN, so the three numbers that are not finite
are written as strings, and a list of the places tells them from a user's own "nan".
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from brainlib.checkpoint.errors import CheckpointError

__all__ = ["plain", "restore_nonfinite", "without_nonfinite"]


def plain(value: Any, where: str = "meta") -> Any:
    """The same information in the types of JSON (with NaN and infinities still numbers).

    Args:
        value: What the user gave: numbers, strings, lists, dicts, numpy and torch values, paths.
        where: How an error names the place.

    Raises:
        CheckpointError: A value is none of these; the message names its key and class.

    >>> plain({"loss": np.float32(0.5), "wer": torch.tensor(12), "path": (1, None)})
    {'loss': 0.5, 'wer': 12, 'path': [1, None]}
    """
    if value is None or isinstance(value, (bool, str)):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, int):
        return int(value)  # int() also takes the class off an IntEnum
    if isinstance(value, float):
        return float(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {_key(key, where): plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        if isinstance(value, torch.Tensor):
            value = value.detach()
        # A one-element array is a metric that somebody forgot to reduce to a number.
        bare = value.item() if math.prod(value.shape) == 1 else value.tolist()
        if isinstance(bare, (bool, int, float, str, list)):
            return plain(bare, where)
    raise _refusal(value, where)


def _key(key: object, where: str) -> str:
    if isinstance(key, str):
        return str(key)
    if isinstance(key, (bool, int, float)):
        return str(key)  # as json.dumps does
    raise CheckpointError(f"{where} has the key {key!r} ({type(key).__name__}); keys are strings")


def _refusal(value: object, where: str) -> CheckpointError:
    return CheckpointError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which metadata cannot hold; give numbers, "
        "strings, lists, dicts, numpy or torch values. State that a run needs belongs in a recoverable, not in meta"
    )


def without_nonfinite(value: Any) -> tuple[Any, list[list[str | int]]]:
    """A plain value as strict JSON can hold it, and the places where a string stands for a number.

    >>> without_nonfinite({"loss": math.nan, "per_class": [1.0, math.inf]})
    ({'loss': 'nan', 'per_class': [1.0, 'inf']}, [['loss'], ['per_class', 1]])
    """
    places: list[list[str | int]] = []

    def walk(item: Any, place: list[str | int]) -> Any:
        if isinstance(item, dict):
            return {key: walk(inner, [*place, key]) for key, inner in item.items()}
        if isinstance(item, list):
            return [walk(inner, [*place, i]) for i, inner in enumerate(item)]
        if isinstance(item, float) and not math.isfinite(item):
            places.append(place)
            return str(item)
        return item

    return walk(value, []), places


def restore_nonfinite(value: Any, places: list[list[str | int]]) -> Any:
    """The inverse of `without_nonfinite`; changes `value` in place and returns it.

    >>> restore_nonfinite({"loss": "inf", "remark": "nan"}, [["loss"]])
    {'loss': inf, 'remark': 'nan'}
    """
    for place in places:
        holder = value
        for step in place[:-1]:
            holder = holder[step]
        holder[place[-1]] = float(holder[place[-1]])
    return value
