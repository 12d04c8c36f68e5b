"""`compile` in place: keys, attributes, `isinstance` and object identity hold.

`nn.Module.compile` is replaced by a note here: what torch makes of a graph is torch's to test, and costs ten seconds.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.brain.small import batches, linear, small


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[nn.Module, dict[str, Any]]]:
    notes: list[tuple[nn.Module, dict[str, Any]]] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, *args, **kwargs: notes.append((self, kwargs)))
    return notes


def test_each_module_is_compiled_in_place(compiled: list[Any]) -> None:
    model = nn.Sequential(linear())
    brain = small(model=model, compile=True, compile_mode="reduce-overhead")
    keys = list(brain.modules.state_dict())
    brain.fit(range(1), batches(2), batches(2))
    brain.fit(range(1), batches(2))
    assert [module for module, _ in compiled] == [model], "once, the module that was given"
    assert compiled[0][1]["mode"] == "reduce-overhead"
    assert brain.modules.model is model
    assert list(brain.modules.state_dict()) == keys


def test_without_the_option_nothing_is_compiled(compiled: list[Any]) -> None:
    small().fit(range(1), batches(2))
    assert compiled == []


def test_naming_a_module_is_enough(compiled: list[Any]) -> None:
    brain = small(compile_module_keys=["model"])
    brain.fit(range(1), batches(2))
    assert len(compiled) == 1


def test_a_module_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="modle") as caught:
        small(compile_module_keys=["modle"]).fit(range(1), batches(2))
    assert "model" in str(caught.value)


def test_compiled_for_real_it_trains_to_the_same_numbers() -> None:
    """One graph, the cheapest backend there is."""
    brain, reference = small(), small()
    brain.modules.model.compile(backend="eager")
    assert isinstance(brain.modules.model, nn.Linear)
    for each in (brain, reference):
        each.fit(range(1), batches(4, 4))
    assert torch.allclose(brain.modules.model.weight, reference.modules.model.weight)
