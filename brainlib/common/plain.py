"""Values of a run (tensors, numpy scalars, paths, NaN) as plain Python and as strict JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["from_json", "plain", "to_json"]

# JSON has no NaN and no infinity; Python would write words that other readers refuse.
_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def plain(value: Any) -> Any:
    """`value` made of bool, int, float, str, None, list and dict only.

    A tensor or numpy array with one element becomes a number, a larger one a list; a set becomes a sorted
    list; what is none of these becomes its text.

    >>> import numpy, torch
    >>> plain({"loss": torch.tensor(0.5), "steps": numpy.int64(3), 4: (True, None)})
    {'loss': 0.5, 'steps': 3, '4': [True, None]}
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(entry) for entry in value), key=repr)
    for kind in (int, float, str):  # enums, numpy.float64
        if isinstance(value, kind):
            return kind(value) if kind is not str else str.__str__(value)
    if callable(getattr(value, "tolist", None)):  # tensors and numpy, without importing numpy
        listed = single = value.tolist()
        while isinstance(single, list) and len(single) == 1:
            single = single[0]
        return plain(listed if isinstance(single, list) else single)
    return str(value)


def to_json(value: Any, indent: int | None = None) -> str:
    """Strict JSON of anything `plain` takes: NaN and the infinities as the texts "nan", "inf" and "-inf".

    >>> to_json({"loss": float("nan"), "epoch": 1})
    '{"loss": "nan", "epoch": 1}'
    """
    return json.dumps(_worded(plain(value)), indent=indent, ensure_ascii=False, allow_nan=False)


def from_json(text: str | bytes) -> Any:
    """What `to_json` wrote; the texts "nan", "inf" and "-inf" come back as numbers.

    >>> from_json('{"loss": "inf", "epoch": 1}')
    {'loss': inf, 'epoch': 1}
    """
    return _unworded(json.loads(text))


def _worded(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {key: _worded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_worded(entry) for entry in value]
    return value


def _unworded(value: Any) -> Any:
    if isinstance(value, str):
        return _WORDS.get(value, value)
    if isinstance(value, dict):
        return {key: _unworded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_unworded(entry) for entry in value]
    return value
