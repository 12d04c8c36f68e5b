"""Buffers go back to what they were when the window began: value, object, and what a module has replaced."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from brainlib.update.buffers import _SMALL, Buffers

BAD = torch.tensor(1.0)


class Holding(nn.Module):
    """Buffers of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("seen", torch.zeros(2, 2, dtype=torch.bool))
        self.register_buffer("unsaved", torch.zeros(2), persistent=False)
        self.register_buffer("absent", None)
        self.register_buffer("table", torch.zeros(_SMALL + 1))
        self.register_buffer("strided", torch.zeros(4, 3).t())


def back_by_host(buffers: Buffers) -> None:
    buffers.put_back()


def back_by_device(buffers: Buffers) -> None:
    buffers.put_back_if(BAD)


both_ways = pytest.mark.parametrize("put_back", [back_by_host, back_by_device])
SMALL = ["mean", "count", "seen", "unsaved", "strided"]


@both_ways
@pytest.mark.parametrize("name", SMALL)
def test_a_buffer_goes_back_in_place(name: str, put_back: Callable[[Buffers], None]) -> None:
    module = Holding()
    buffers, tensor = Buffers(nn.Sequential(module)), getattr(module, name)
    buffers.keep()
    tensor.fill_(1)
    put_back(buffers)
    assert getattr(module, name) is tensor
    assert not tensor.any()


@both_ways
def test_it_goes_back_to_the_window_that_was_begun_last(put_back: Callable[[Buffers], None]) -> None:
    module = Holding()
    buffers = Buffers(module)
    for value in (1.0, 2.0):
        module.mean.fill_(value)
        buffers.keep()
    module.mean.fill_(torch.nan)
    put_back(buffers)
    assert module.mean.tolist() == [2.0] * 3
    module.mean.fill_(3.0)
    put_back(buffers)
    assert module.mean.tolist() == [2.0] * 3, "what is held is not changed by giving it back"


def test_good_windows_stay() -> None:
    module = Holding()
    buffers = Buffers(module)
    buffers.keep()
    module.mean.fill_(1.0)
    buffers.put_back_if(torch.tensor(0.0))
    assert module.mean.tolist() == [1.0] * 3


def test_a_replaced_buffer_is_the_old_object_again() -> None:
    """Some modules assign a new tensor in forward, or make one in their first."""
    module = Holding()
    buffers, mean = Buffers(module), module.mean
    buffers.keep()
    module.mean, module.absent = torch.full((5,), torch.nan), torch.ones(2)
    buffers.put_back()
    assert module.mean is mean
    assert module.absent is None


def test_a_replaced_buffer_that_was_good_is_the_one_from_now_on() -> None:
    module = Holding()
    buffers = Buffers(module)
    buffers.keep()
    module.mean = new = torch.ones(5)
    buffers.keep()
    new.fill_(torch.nan)
    buffers.put_back()
    assert module.mean is new
    assert new.tolist() == [1.0] * 5


@both_ways
def test_a_large_buffer_is_copied_once_it_was_seen_to_move(put_back: Callable[[Buffers], None]) -> None:
    """A table that never moves costs nothing; the price is the first window in which one moves."""
    module = Holding()
    buffers = Buffers(module)
    buffers.keep()
    assert _SMALL + 1 not in [tensor.numel() for alike in buffers._alike for tensor in alike.live]
    module.table.fill_(1.0)
    buffers.keep()
    module.table.fill_(torch.nan)
    put_back(buffers)
    assert module.table[0] == 1.0


@both_ways
@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm1d(3), nn.BatchNorm1d(3, momentum=None), nn.InstanceNorm1d(3, track_running_stats=True)],
)
def test_normalization(norm: nn.Module, put_back: Callable[[Buffers], None]) -> None:
    buffers = Buffers(norm)
    norm(torch.rand(4, 3, 5))
    before = {name: value.clone() for name, value in norm.named_buffers()}
    buffers.keep()
    norm(torch.full((4, 3, 5), torch.nan))
    put_back(buffers)
    assert all(torch.equal(value, before[name]) for name, value in norm.named_buffers())


def test_without_buffers_there_is_nothing_to_do() -> None:
    buffers = Buffers(nn.Linear(1, 1))
    buffers.keep()
    buffers.put_back()
    buffers.put_back_if(BAD)


def test_before_a_window_there_is_nothing_to_go_back_to() -> None:
    """A run resumed inside a window, or an error before its first batch."""
    module = Holding()
    mean: Tensor = module.mean
    mean.fill_(1.0)
    buffers = Buffers(module)
    buffers.put_back_if(BAD)
    buffers.put_back()
    assert mean.tolist() == [1.0] * 3


def test_a_lazy_buffer_is_left_alone_until_it_has_a_shape() -> None:
    norm = nn.LazyBatchNorm1d()
    buffers = Buffers(norm)
    buffers.keep()
    norm(torch.rand(4, 3))
    buffers.keep()
    before = norm.running_mean.clone()
    norm(torch.full((4, 3), torch.nan))
    buffers.put_back()
    assert torch.equal(norm.running_mean, before)
