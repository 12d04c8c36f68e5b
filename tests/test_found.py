"""What is found on an object: attributes and slots, and one level down in lists, tuples and dicts."""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from brainlib.found import attributes_of, found_in, has_state, own_generators


def layer() -> nn.Module:
    return nn.Linear(1, 1)


class Counting:
    def state_dict(self) -> dict[str, int]:
        return {"n": 0}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


class HalfWay:
    def state_dict(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize(
    "value",
    [
        layer(),
        Counting(),
        torch.Generator(),
        torch.optim.SGD(layer().parameters(), 0.1),
        torch.amp.GradScaler("cpu"),
        nn.ModuleList([layer()]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_state(value: Any) -> None:
    assert has_state(value)


@pytest.mark.parametrize(
    "value",
    [
        Counting,  # a class, not an object
        HalfWay(),
        torch.ones(1),
        nn.Parameter(torch.ones(1)),
        random.Random(),
        None,
        3,
        "text",
        {},
        nn.Linear,
        lambda: layer(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_none(value: Any) -> None:
    assert not has_state(value)


def names(**attributes: Any) -> list[str]:
    return [name for name, _ in found_in(iter(attributes.items()))]


def test_names_tell_the_way() -> None:
    assert names(
        one=layer(),
        listed=[layer(), 3, layer()],
        fixed=(layer(),),
        named={"a": layer(), 7: layer(), "b": None},
        ordered=OrderedDict(z=layer()),
        plain=3,
    ) == ["one", "listed-0", "listed-2", "fixed-0", "named-a", "named-7", "ordered-z"]


@pytest.mark.parametrize(
    "value",
    [[[layer()]], {"a": [layer()]}, {"a": {"b": layer()}}, {layer()}, "text", iter([layer()]), [], {}, ()],
)
def test_no_further_than_one_level_down(value: Any) -> None:
    assert names(attribute=value) == []


def test_a_module_is_one_thing_whatever_it_holds() -> None:
    assert names(lists=nn.ModuleList([layer(), layer()]), dicts=nn.ModuleDict({"a": layer()})) == [
        "lists",
        "dicts",
    ]


def test_the_same_object_under_two_names_is_given_twice() -> None:
    """Who saves it takes the first."""
    both = layer()
    assert names(one=both, many=[both]) == ["one", "many-0"]


# ----------------------------------------------------------------------------------------------------------- attributes
class Base:
    __slots__ = ("low",)


class Between(Base):
    __slots__ = "single"


class Slotted(Between):
    __slots__ = ("__dict__", "__weakref__", "empty", "high")


def test_slots_of_all_classes_are_attributes_too() -> None:
    slotted = Slotted()
    slotted.low, slotted.single, slotted.high, slotted.plain = 1, 2, 3, 4
    assert dict(attributes_of(slotted)) == {"plain": 4, "high": 3, "single": 2, "low": 1}
    assert dict(attributes_of(slotted, without=["low", "plain"])) == {"high": 3, "single": 2}


def test_properties_are_not_asked() -> None:
    class Lazy:
        @property
        def costly(self) -> Any:
            raise AssertionError("asked")

    lazy = Lazy()
    lazy.plain = 1  # type: ignore[attr-defined]
    assert list(attributes_of(lazy)) == [("plain", 1)]


def test_generators_of_python_and_numpy() -> None:
    """Torch's has a state that the checkpoint knows by itself."""
    mine = {
        "a": random.Random(),
        "b": np.random.default_rng(),
        "c": np.random.RandomState(),
        "d": torch.Generator(),
        "e": random,
        "f": np.random,
        "g": random.Random,
    }
    assert list(own_generators(iter(mine.items()))) == ["a", "b", "c"]
