"""The walk: what it reaches, under which name, and that nothing it meets stops it."""

from __future__ import annotations

import collections
import functools
import itertools
import random
import types
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import brainlib as bl
from brainlib.checkup.batches import CannotBeSplitError, contents, split
from brainlib.checkup.digests import Digests
from brainlib.checkup.user_code import methods_of, suspicious_calls
from brainlib.checkup.walk import Leaf, Walk
from brainlib.data.padded_batch import PaddedBatch

STATE = {"global": [1.0]}


class Slotted:
    __slots__ = ("count", "unset")

    def __init__(self) -> None:
        self.count = 3


class Base:
    shared: ClassVar[list[Any]] = []

    def first(self) -> Any:
        return STATE["global"]

    def second(self) -> float:
        return random.random()


class User(Base):
    def first(self) -> Any:
        return super().first()

    def second(self) -> float:
        return 1.0


def walked(value: Any, name: str = "brain.x") -> dict[str, Leaf]:
    walk = Walk(Digests())
    walk.root(name, value)
    walk.follow_functions()
    return walk.leaves


def test_every_kind_of_thing_is_reached_and_seen_to_change() -> None:
    made: dict[str, Any] = {
        "number": 1,
        "numbers": [1, {"two": 2.0}, (3,)],
        "many": list(range(1000)),
        "queue": collections.deque([1]),
        "tensor": torch.ones(3),
        "array": np.ones(3),
        "python": random.Random(1),
        "legacy": np.random.RandomState(1),
        "numpy": np.random.default_rng(1),
        "torch": torch.Generator(),
        "module": nn.Sequential(nn.BatchNorm1d(2)),
        "slots": Slotted(),
        "space": types.SimpleNamespace(inner=1),
        "partial": functools.partial(print, [1], sep={"a": 1}),
        "counter": bl.EpochCounter(3),
    }
    changes: dict[str, Any] = {
        "number": lambda: made.update(number=2),
        "numbers[1]['two']": lambda: made["numbers"][1].update(two=2.5),
        "many": lambda: made["many"].__setitem__(7, -1),
        "queue": lambda: made["queue"].append(2),
        "tensor": lambda: made["tensor"].add_(1),
        "array": lambda: made["array"].__iadd__(1),
        "python": lambda: made["python"].random(),
        "legacy": lambda: made["legacy"].normal(),
        "numpy": lambda: made["numpy"].normal(),
        "torch": lambda: torch.rand(1, generator=made["torch"]),
        "module.0.momentum": lambda: setattr(made["module"][0], "momentum", 0.5),
        "module.0.running_mean": lambda: made["module"][0].running_mean.add_(1),
        "slots.count": lambda: setattr(made["slots"], "count", 4),
        "space.inner": lambda: setattr(made["space"], "inner", 2),
        "partial.args[0][0]": lambda: made["partial"].args[0].__setitem__(0, 5),
        "partial.keywords['sep']['a']": lambda: made["partial"].keywords["sep"].update(a=2),
        "counter": lambda: next(made["counter"]),
    }

    def look() -> dict[str, Leaf]:
        walk = Walk(Digests())
        for name, value in made.items():
            walk.root(name, value)
        return walk.leaves

    for path, change in changes.items():
        before = look()
        change()
        after = look()
        changed = [each for each in after if before.get(each, after[each]).digest != after[each].digest]
        assert path in changed, (path, changed)
        assert all(each.startswith(path.partition(".")[0].partition("[")[0]) for each in changed)


def test_a_tensor_so_large_that_a_sample_is_taken_is_told_by_it() -> None:
    large = torch.zeros(1 << 23)
    before = walked(large)["brain.x"].digest
    large += 1
    assert walked(large)["brain.x"].digest != before


def test_what_turns_in_circles_or_answers_with_an_error_stops_nothing() -> None:
    class Rude:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    class NotReady:
        def state_dict(self) -> Any:
            raise RuntimeError("not yet")

        def load_state_dict(self, state: Any) -> None:
            pass

    circle: list[Any] = [1]
    circle += [circle, Rude(), NotReady(), iter([1]), print, bl, 2]
    leaves = walked(circle)
    assert "brain.x[0]" in leaves and "brain.x[7]" in leaves and leaves["brain.x[4]"].kind == "iterator"


def test_functions_lead_to_globals_closures_and_class_attributes() -> None:
    hidden = nn.Linear(1, 1)
    walk = Walk(Digests())
    walk.root("brain.user", User())
    walk.root("brain.function", lambda: hidden)
    walk.follow_functions()
    assert {"global STATE['global'][0]", "closure variable hidden.weight", "Base.shared"} <= set(walk.leaves)
    assert walk.leaves["closure variable hidden.weight"].owner == "closure variable hidden"


def test_an_overridden_method_counts_where_super_calls_it() -> None:
    assert {function.__qualname__ for function in methods_of(User)} == {
        "User.first",
        "Base.first",
        "User.second",
    }


def test_each_object_has_the_first_name_that_leads_to_it() -> None:
    one = Slotted()
    walk = Walk(Digests(), without=[hidden := Slotted()])
    for name in ("a", "b"):
        walk.root(name, [one, hidden])
    assert "a[0].count" in walk.leaves and "b[0].count" not in walk.leaves and "a[1].count" not in walk.leaves


def test_two_globals_of_one_name_have_two_names() -> None:
    walk = Walk(Digests())
    walk._visit_named("global rng", random.Random(1))
    walk._visit_named("global rng", random.Random(2))
    assert list(walk.leaves) == ["global rng", "global rng (2)"]


@pytest.mark.parametrize(
    ("function", "word"),
    [
        (lambda: {str(n) for n in range(3)}, "set"),
        (lambda path: sorted(path.iterdir()), "folder"),
        (lambda: np.random.default_rng(), "without a seed"),
        (lambda: [itertools.count() for _ in range(2)], None),
    ],
)
def test_what_differs_between_processes_is_seen_in_code(function: Any, word: str | None) -> None:
    calls = suspicious_calls(function)
    assert (word is None and not calls) or any(word in call for call in calls)


# ------------------------------------------------------------------------------------------------------------ batches


@pytest.mark.parametrize(
    "batch",
    [
        {"x": torch.rand(5, 2), "y": torch.rand(5), "id": list("abcde"), "n": 3, "nothing": None},
        (torch.rand(5, 2), torch.rand(5)),
        [torch.rand(5, 2), {"y": torch.rand(5)}],
        torch.rand(5, 3),
        collections.namedtuple("Pair", "x y")(torch.rand(5, 2), torch.rand(5)),
        PaddedBatch([{"id": str(n), "x": torch.rand(4), "label": n} for n in range(5)]),
    ],
)
def test_a_batch_and_its_parts_hold_the_same_samples(batch: Any) -> None:
    digests = Digests()
    whole, one, other = (contents(each, digests) for each in (batch, *split(batch)))
    for name, rows in whole.items():
        assert rows == (one[name] + other[name] if len(rows) == 5 else one[name])


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        ({"x": torch.rand(1, 2)}, "one sample"),
        (
            {"x": torch.rand(4, 2), "w": torch.rand(3)},
            r"'w' has the shape \[3\], and the batch has 4 samples",
        ),
        (3, "how many samples a int holds"),
        ({"x": torch.rand(4, 2), "o": object()}, "not known how to split a object"),
    ],
)
def test_a_batch_that_cannot_be_split_says_why(batch: Any, why: str) -> None:
    with pytest.raises(CannotBeSplitError, match=why):
        split(batch)
