"""A checkpoint in memory: everything comes back, whatever was done to it, and by its name."""

from __future__ import annotations

import random
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import brainlib as bl
from brainlib.checkpoint import held as held_module
from brainlib.ending import keep_point, put_back
from tests.contracts.brains import SEVEN, Plain, digest, make, train


class Counter:
    def __init__(self) -> None:
        self.state: dict[str, Any] = {
            "list": [1, [2]],
            "tuple": (1.5, "a"),
            "ordered": OrderedDict(a=torch.ones(2)),
        }

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    update(model, optimizer)
    return model, optimizer


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.rand(5, 3)).sum().backward()
    optimizer.step()


def flat(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    moments = [value.tolist() for state in optimizer.state.values() for value in state.values()]
    return [
        *(value.tolist() for value in model.state_dict().values()),
        *moments,
        optimizer.param_groups[0]["lr"],
    ]


def checkpointer(**objects: Any) -> bl.Checkpointer:
    return bl.Checkpointer("never-written", objects)


def test_what_is_trained_comes_back_more_than_once() -> None:
    model, optimizer = trained()
    before = flat(model, optimizer)
    held = checkpointer(model=model, optimizer=optimizer).hold()
    for _ in range(2):
        update(model, optimizer)
        optimizer.param_groups[0]["lr"] = 0.5
        assert flat(model, optimizer) != before
        held.put_back()
        assert flat(model, optimizer) == before
    assert not Path("never-written").exists()


def test_the_copy_shares_nothing() -> None:
    counter = Counter()
    held = checkpointer(counter=counter).hold()
    counter.state["list"][1].append(3)
    counter.state["ordered"]["a"].zero_()
    held.put_back()
    assert counter.state["list"] == [1, [2]] and counter.state["ordered"]["a"].tolist() == [1.0, 1.0]
    counter.state["list"].clear()
    held.put_back()
    assert counter.state["list"] == [1, [2]]


def test_an_object_that_was_replaced_gets_the_state_of_the_one_before() -> None:
    schedules = bl.Checkpointer("never-written")
    schedules.add_recoverable("counter", Counter())
    held = schedules.hold()
    other = Counter()
    other.state = {}
    schedules.add_recoverable("counter", other)
    schedules.add_recoverable("new", Counter())
    held.put_back()
    assert other.state["list"] == [1, [2]]


def test_objects_with_hooks_write_to_a_place_of_their_own() -> None:
    words = ["a"]

    def save(obj: list[str], path: Path) -> None:
        path.write_text(" ".join(obj))

    def load(obj: list[str], path: Path, end_of_epoch: bool) -> None:
        obj[:] = path.read_text().split()

    with_hooks = bl.Checkpointer("never-written")
    with_hooks.add_recoverable("words", words, load, save)
    held = with_hooks.hold()
    words.append("b")
    held.put_back()
    assert words == ["a"]


def test_without_memory_for_it_nothing_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_module, "_free_memory", lambda: 100)
    model, _ = trained()
    with pytest.raises(bl.CheckpointError, match="would be copied, and 0.0 GB of memory are free"):
        checkpointer(model=model).hold()


def test_what_fails_is_named() -> None:
    class Broken(Counter):
        def state_dict(self) -> dict[str, Any]:
            raise OSError("gone")

    with pytest.raises(
        bl.CheckpointError, match="recoverable 'broken' .*Broken.* failed to give its state: OSError"
    ):
        checkpointer(broken=Broken()).hold()


def test_what_does_not_fit_any_more_is_named() -> None:
    model = nn.Linear(2, 1)
    holder = checkpointer(model=model)
    held = holder.hold()
    holder.add_recoverable("model", nn.Linear(3, 1))
    with pytest.raises(
        bl.CheckpointError, match="recoverable 'model' .* could not be put back: 'weight' has shape"
    ):
        held.put_back()


def test_the_free_memory_of_this_machine() -> None:
    free = held_module._free_memory()
    assert free is None or free > 1 << 20


@pytest.mark.parametrize("cls", SEVEN, ids=lambda cls: cls.__name__)
def test_a_brain_is_put_back_with_its_generators(cls: type[Plain]) -> None:
    brain = train(make(cls))
    keep_point(brain)
    held = brain._outer.held
    before, drawn = digest(brain), (random.random(), torch.rand(1).item())
    train(brain)
    brain._outer.held = held
    put_back(brain)
    assert digest(brain) == before
    assert (random.random(), torch.rand(1).item()) == drawn
