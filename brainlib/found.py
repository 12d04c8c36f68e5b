"""What is found on an object that has state a checkpoint can hold: attributes, and what stands in their
lists and dicts.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["attributes_of", "found_in", "has_state", "own_generators"]


def attributes_of(obj: Any, without: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Every attribute of an object by its name, those in slots of its classes included.

    >>> class Point:
    ...     __slots__ = ("x", "__dict__")
    >>> point = Point(); point.x, point.y = 1, 2
    >>> list(attributes_of(point))
    [('y', 2), ('x', 1)]
    """
    for name, value in vars(obj).items():
        if name not in without:
            yield name, value
    for kind in type(obj).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__", *without) and hasattr(obj, name):
                yield name, getattr(obj, name)


def has_state(value: Any) -> bool:
    """Whether a checkpoint can hold the state of this object."""
    if isinstance(value, torch.Generator):
        return True
    return not isinstance(value, type) and hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def found_in(attributes: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """What has state among attributes, and one level down in lists, tuples and dicts, as ``name-0`` or ``name-key``.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    >>> [name for name, _ in found_in(iter([("lr", 0.1), ("optimizers", {"g": optimizer})]))]
    ['optimizers-g']
    """
    for name, value in attributes:
        if has_state(value):
            yield name, value
        elif isinstance(value, Mapping):
            yield from ((f"{name}-{key}", each) for key, each in value.items() if has_state(each))
        elif isinstance(value, (list, tuple)):
            yield from ((f"{name}-{place}", each) for place, each in enumerate(value) if has_state(each))


def own_generators(attributes: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    """Python's and numpy's generator objects among attributes: they have a state, and no state_dict."""
    kinds = (random.Random, np.random.Generator, np.random.RandomState)
    return {name: value for name, value in attributes if isinstance(value, kinds)}
