"""A wait for data is broken off, and what was set aside round it is put back as a whole, wherever the signal comes."""

from __future__ import annotations

import functools
import os
import random
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from brainlib.data import order, randomness
from tests.contracts.brains import SHUFFLED, VALID, Items, Plain, ending, make


class Sampler(torch.utils.data.Sampler[int]):
    """One of the user's own, which draws from the process-wide generators."""

    def __init__(self, num_items: int) -> None:
        self.num_items = num_items

    def __iter__(self) -> Any:
        return iter(random.sample(range(self.num_items), self.num_items))

    def __len__(self) -> int:
        return self.num_items


class Drawing(Items):
    def __getitem__(self, index: int) -> Any:
        item = super().__getitem__(index)
        return {**item, "x": item["x"] + torch.rand(6) + float(np.random.rand()) + random.random()}


def by_position(brain: Plain) -> None:
    brain.fit(range(2), Drawing(), VALID, train_loader_kwargs=SHUFFLED)


def by_sampler(brain: Plain) -> None:
    items = Drawing()
    loader = torch.utils.data.DataLoader(items, batch_size=4, sampler=Sampler(len(items)))
    brain.fit(range(2), loader, VALID)


def signal_at(module: Any, name: str, number: int, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send Ctrl-C in the `number`-th call of a function of the module, or of what it returns."""
    original: Callable[..., Any] = getattr(module, name)
    calls = 0

    def sends(work: Callable[..., Any], *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and not after:
            os.kill(os.getpid(), signal.SIGINT)
        result = work(*args)
        if calls == number and after:
            os.kill(os.getpid(), signal.SIGINT)
        return functools.partial(sends, result) if callable(result) else result

    monkeypatch.setattr(module, name, functools.partial(sends, original))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, 7))
@pytest.mark.parametrize(
    ("module", "script"), [(randomness, by_position), (order, by_sampler)], ids=["item", "sampler"]
)
def test_ctrl_c_while_generators_are_exchanged(
    module: Any, script: Callable[[Plain], None], number: int, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    brain, reference = make(Plain), make(Plain)
    script(reference)
    brain = make(Plain)
    signal_at(module, "note_generators", number, after, monkeypatch)
    threads = torch.get_num_threads()
    with pytest.raises(KeyboardInterrupt):
        script(brain)
    assert torch.get_num_threads() == threads
    script(brain)
    assert ending(brain) == ending(reference)
