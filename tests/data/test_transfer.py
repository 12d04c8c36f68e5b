"""A batch on the device keeps its shape, whatever holds its tensors. ``meta`` stands for a device here."""

from __future__ import annotations

from collections import OrderedDict, UserDict, deque, namedtuple
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from brainlib.data.transfer import on_device, to_device

META = torch.device("meta")


class Pair(NamedTuple):
    x: Tensor
    name: str


Old = namedtuple("Old", "x y")


class Asked:
    """Moves itself, as PaddedBatch does."""

    def __init__(self) -> None:
        self.devices: list[Any] = []

    def to(self, device: torch.device) -> Asked:
        self.devices.append(device)
        return self


def one() -> Tensor:
    return torch.ones(1)


@pytest.mark.parametrize(
    "batch",
    [
        {"x": one(), "y": {"z": [one(), (one(),)]}},
        [one(), one()],
        (one(), "text", 3, None),
        Pair(one(), "a"),
        Old(one(), [one()]),
        OrderedDict(x=one()),
        UserDict(x=one()),
        [],
        {},
        (),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_containers_are_rebuilt_in_kind(batch: Any) -> None:
    moved = to_device(batch, META)
    assert type(moved) is type(batch)
    assert len(moved) == len(batch)
    assert all(each.device.type == "meta" for each in tensors(moved))
    assert all(each.device.type == "cpu" for each in tensors(batch)), "the batch itself is left alone"
    assert len(tensors(moved)) == len(tensors(batch))


def tensors(batch: Any) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    if hasattr(batch, "values"):
        batch = list(batch.values())
    return [each for part in batch for each in tensors(part)] if isinstance(batch, (list, tuple)) else []


def test_an_object_that_can_move_is_asked() -> None:
    batch = Asked()
    assert to_device([batch], META) == [batch]
    assert batch.devices == [META]


@pytest.mark.parametrize(
    "value", ["text", b"bytes", 3, 2.5, None, True, {1, 2}, deque([1]), Asked, Tensor], ids=repr
)
def test_what_has_no_device_stays_what_it_is(value: Any) -> None:
    assert to_device(value, META) is value


def test_on_a_cpu_nothing_is_touched() -> None:
    """Not even rebuilt: the iterator itself comes back."""
    batches = iter([{"x": one()}])
    assert on_device(batches, torch.device("cpu")) is batches


def test_elsewhere_one_batch_at_a_time() -> None:
    given: list[int] = []

    def batches() -> Any:
        for number in range(3):
            given.append(number)
            yield [torch.tensor(number)]

    moved = on_device(batches(), META)
    assert next(moved)[0].device.type == "meta"
    assert given == [0]
