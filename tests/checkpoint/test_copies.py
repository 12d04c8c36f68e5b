"""Copies of states: the same numbers and classes, the memory of before, ties kept, nothing shared with what is live."""

from __future__ import annotations

import gc
import random
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

from brainlib.checkpoint import CheckpointError
from brainlib.checkpoint.copies import Copies

WHOLE = torch.arange(12.0)


def conv() -> torch.Tensor:
    return torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.0),
        torch.arange(6).reshape(2, 3).t(),
        WHOLE[3:7],
        WHOLE.view(3, 4)[:, 1],
        conv(),
        torch.ones(3).expand(2, 3),
        torch.as_strided(torch.arange(4.0), (2, 2), (1, 1)),
        torch.empty(0),
        torch.empty(0, 5, dtype=torch.int8),
        torch.tensor([True, False]),
        torch.randn(3, dtype=torch.bfloat16),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(4, dtype=torch.complex64)[1:].conj(),
        torch.eye(3).to_sparse(),
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        torch.ones(2, requires_grad=True),
    ],
)
def test_every_form_of_tensor(tensor: torch.Tensor) -> None:
    copies = Copies()
    for _ in range(3):  # met first, and known
        taken = copies.take({"a": {"t": tensor}})[0]["a"]["t"]
        assert taken.dtype == tensor.dtype and taken.shape == tensor.shape and not taken.requires_grad
        if tensor.layout is torch.strided and not tensor.is_quantized:
            assert torch.equal(taken.resolve_conj(), tensor.detach().resolve_conj())
            assert taken.numel() == 0 or taken.data_ptr() != tensor.data_ptr()
        else:
            assert str(taken) == str(tensor)


def test_a_copy_is_of_one_moment_and_the_next_one_takes_its_memory() -> None:
    weight, copies = torch.ones(1000), Copies()
    first = copies.take({"a": {"w": weight}})[0]["a"]["w"]
    address = first.data_ptr()
    weight.fill_(2.0)
    assert first.eq(1.0).all()
    second = copies.take({"a": {"w": weight}})[0]["a"]["w"]
    assert second.eq(2.0).all() and second.data_ptr() == address


def test_what_shares_memory_shares_it_in_the_copy() -> None:
    base = torch.arange(10.0)
    states = {"a": {"whole": base, "part": base[2:5]}, "b": {"again": base, "matrix": base.view(2, 5)}}
    for order in (1, -1):
        taken, _ = Copies().take(dict(list(states.items())[::order]))
        taken["a"]["whole"][3] = -1.0
        assert (
            taken["a"]["part"][1] == -1.0
            and taken["b"]["again"][3] == -1.0
            and taken["b"]["matrix"][0, 3] == -1.0
        )


def test_containers_keep_their_classes_and_what_is_attached() -> None:
    state = nn.BatchNorm1d(2).state_dict()
    taken = Copies().take({"m": state})[0]["m"]
    assert type(taken) is OrderedDict and taken._metadata == state._metadata  # type: ignore[attr-defined]
    mixed: dict[Any, Any] = {"l": [1, (2, torch.ones(1)), {3}], 4: bytearray(b"x"), (1, 2): None}
    again = Copies().take({"m": mixed})[0]["m"]
    assert str(again) == str(mixed)
    mixed["l"].append(5)
    mixed[4][0] = 0
    assert again["l"][-1] == {3} and again[4] == bytearray(b"x")


def test_a_parameter_stays_one_unless_only_its_numbers_count() -> None:
    param = nn.Parameter(torch.ones(2), requires_grad=False)
    copies = Copies()
    taken, _ = copies.take({"user": {"p": param}, "module": {"p": param}}, bare={"module"})
    assert type(taken["user"]["p"]) is nn.Parameter and not taken["user"]["p"].requires_grad
    assert type(taken["module"]["p"]) is torch.Tensor


def test_a_tensor_whose_memory_was_exchanged_is_copied_anew() -> None:
    param, copies = nn.Parameter(torch.ones(4)), Copies()
    copies.take({"a": {"p": param}})
    param.data = torch.full((4,), 7.0)
    assert copies.take({"a": {"p": param}})[0]["a"]["p"].eq(7.0).all()
    param.data = torch.full((2, 3), 8.0)
    assert copies.take({"a": {"p": param}})[0]["a"]["p"].shape == (2, 3)


def test_tied_after_they_were_not() -> None:
    one, two, copies = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3)), Copies()
    copies.take({"a": {"one": one, "two": two}})
    two.data = one.data
    taken = copies.take({"a": {"one": one, "two": two}})[0]["a"]
    assert taken["one"].data_ptr() == taken["two"].data_ptr() and taken["two"].eq(1.0).all()


def test_memory_is_held_once() -> None:
    """A state that is made anew each time does not leave copy after copy behind, nor the live one."""
    copies = Copies()
    for number in range(5):
        copies.take({"a": {"big": torch.full((1237,), float(number))}})
    gc.collect()
    held = [o for o in gc.get_objects() if type(o) is torch.Tensor and o.shape == (1237,)]
    assert len(held) <= 1


def test_what_cannot_be_read_back_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    for state in ({"x": range(3)}, {"x": loop}, {object(): 1}):
        with pytest.raises(CheckpointError):
            Copies().take({"a": state})


def test_what_passes_a_trial_is_said_to_be_odd() -> None:
    class Own(torch.Tensor):
        pass

    _, odd = Copies().take({"plain": {"x": torch.ones(1)}, "odd": {"x": torch.eye(2).to_sparse()}})
    assert odd == {"odd"}


def test_a_failed_copy_leaves_nothing_to_the_next() -> None:
    copies, weight = Copies(), torch.ones(3)
    with pytest.raises(CheckpointError):
        copies.take({"a": {"w": weight, "bad": range(3)}})
    weight.fill_(2.0)
    assert copies.take({"a": {"w": weight}})[0]["a"]["w"].eq(2.0).all()


@pytest.mark.parametrize("order", [(1, 2, 0), (2, 1, 0), (0, 2, 1)])
def test_weights_that_were_put_aside_and_came_back(order: tuple[int, ...]) -> None:
    """As offloading does: the same parameters, in memory that others had before."""
    params, copies = [nn.Parameter(torch.full((16,), float(i))) for i in range(3)], Copies()
    for _ in range(4):
        copies.take({"a": dict(enumerate(params))})
        kept = [param.data.clone() for param in params]
        for param in params:
            param.data = torch.empty(0)
        for i in order:
            params[i].data = kept[i].clone()
        taken = copies.take({"a": dict(enumerate(params))})[0]["a"]
        assert [value[0].item() for value in taken.values()] == [0.0, 1.0, 2.0]


def test_what_is_turned_in_place_is_turned_for_nobody_else() -> None:
    square = torch.arange(9.0).view(3, 3)
    other, copies = square.detach(), Copies()
    for turn in (lambda: square.t_(), lambda: other.t_(), lambda: setattr(square, "data", square.t())):
        copies.take({"a": {"square": square, "other": other}})
        turn()
        for state in ({"square": square, "other": other}, {"other": other, "square": square}):
            taken = copies.take({"a": state})[0]["a"]
            for name, value in state.items():
                assert torch.equal(taken[name], value) and taken[name].stride() == value.stride(), name


def test_what_becomes_its_own_conjugate() -> None:
    wave = torch.tensor([1 + 2j, 3 - 4j])
    other, copies = wave.detach(), Copies()
    copies.take({"a": {"wave": wave, "other": other}})
    wave.data = wave.conj()
    taken = copies.take({"a": {"wave": wave, "other": other}})[0]["a"]
    assert torch.equal(taken["wave"].resolve_conj(), wave.resolve_conj()) and torch.equal(
        taken["other"], other
    )


def test_what_is_seen_as_a_conjugate_and_as_it_is() -> None:
    x = torch.randn(3, dtype=torch.complex64)
    r = torch.randn(3)
    for state in ({"c": x.conj(), "x": x}, {"x": x, "c": x.conj()}, {"n": torch._neg_view(r), "r": r}):
        taken = Copies().take({"a": state})[0]["a"]
        for name, value in state.items():
            assert torch.equal(taken[name].resolve_conj(), value.resolve_conj().resolve_neg()), name


def together(tensors: dict[int, torch.Tensor]) -> set[tuple[int, ...]]:
    """Which of them share their memory."""
    places = {name: tensor.untyped_storage().data_ptr() for name, tensor in tensors.items() if tensor.numel()}
    return {tuple(sorted(n for n in places if places[n] == place)) for place in places.values()}


def test_many_small_ones_at_rest_are_copied_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is done to one of them in between, and each is a storage of its own in a file."""
    kinds = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool)
    shapes = ((3,), (5,), (2, 3), (4, 3), (7, 3, 2), (600,))
    tensors = {
        f"{kind}-{shape}-{again}": torch.empty(shape).uniform_(-9, 9).to(kind)
        for kind in kinds
        for shape in shapes
        for again in range(3)
    }
    copies, joined = Copies(), 0
    whole = torch.cat

    def cat(*args: Any, **kwargs: Any) -> torch.Tensor:
        nonlocal joined
        joined += 1
        return whole(*args, **kwargs)

    def alike() -> int:
        """How many operations made one of many."""
        nonlocal joined
        joined = 0
        for tensor in tensors.values():
            tensor.copy_(torch.empty(tensor.shape).uniform_(-9, 9).to(tensor.dtype))
        taken = copies.take({"a": dict(tensors)})[0]["a"]
        for name, tensor in tensors.items():
            assert torch.equal(taken[name], tensor), name
            assert taken[name].untyped_storage().nbytes() == tensor.untyped_storage().nbytes()
        return joined

    monkeypatch.setattr(torch, "cat", cat)
    rows = len(kinds) * 3  # by what follows the first dimension: nothing, 3, and 3 × 2
    assert [alike() for _ in range(5)] == [0, 0, 0, rows, rows]
    name = f"{torch.float32}-{(2, 3)}-1"
    for change in (
        lambda tensor: torch.zeros(2, 3),
        lambda tensor: tensor.resize_(1, 3),
        lambda tensor: tensor.resize_(9, 3),
        lambda tensor: tensor.unsqueeze_(0),
        lambda tensor: torch.zeros(2, 3, dtype=torch.int32),
        lambda tensor: tensor.expand(4, 2, 3).contiguous()[1],
    ):
        tensors[name] = change(tensors[name])
        assert alike() >= rows - 1  # one row waits until it has settled again
        for _ in range(4):
            alike()
    tensors = dict(reversed(tensors.items()))
    assert [alike() for _ in range(3)] == [0, 0, rows]
    del tensors[f"{torch.float32}-{(2, 3)}-0"]
    assert [alike() for _ in range(3)] == [rows - 1, rows - 1, rows]


def test_random_histories_of_memory() -> None:
    """Freed, swapped, tied, resized, looked at in part, made anew: a copy is what a clone is."""
    for seed in range(60):
        rng = random.Random(seed)
        tensors = {n: torch.randn(rng.choice([1, 3, 16, 16, 64, 1000])) for n in range(6)}
        copies = Copies()
        for _ in range(20):
            for _ in range(rng.randint(0, 6)):
                one, two = rng.choice(list(tensors)), rng.choice(list(tensors))
                act = rng.choice(
                    ["free", "refill", "swap", "add", "new", "tie", "resize", "part", "turn", "share"]
                )
                if act == "free":
                    tensors[one].data = torch.empty(0)
                elif act == "refill":
                    tensors[one].data = torch.randn(rng.choice([1, 3, 16, 64]))
                elif act == "swap":
                    tensors[one].data, tensors[two].data = tensors[two].data, tensors[one].data
                elif act == "add":
                    tensors[one].add_(1)
                elif act == "new":
                    tensors[one] = torch.randn(16)
                elif act == "tie":
                    tensors[one].data = tensors[two].data
                elif act == "resize":
                    tensors[one].resize_(rng.choice([1, 16, 64])).normal_()
                elif act == "turn":
                    tensors[one].data = tensors[one].reshape(1 if tensors[one].numel() % 4 else 4, -1).t()
                elif act == "share":
                    tensors[one] = tensors[two].detach()
                elif tensors[two].numel() > 2:
                    tensors[one] = tensors[two][1:-1]
            for _ in range(rng.choice([1, 1, 4])):  # at rest, small ones get their copies side by side
                for tensor in tensors.values():
                    if tensor.data_ptr() and rng.random() < 0.8:
                        tensor.add_(1)
                taken = copies.take({"a": dict(tensors)})[0]["a"]
                assert all(torch.equal(taken[name], tensors[name]) for name in tensors), seed
                assert together(taken) == together(tensors), seed


def test_shapes_that_do_not_come_again_hold_nothing() -> None:
    """Such as a history that grows in its second dimension; its block of memory went on being held for each shape."""
    copies = Copies()
    for length in range(1, 60):
        history = [torch.full((2, length), 1.0 * n) for n in range(3)]
        for _ in range(4):
            states, _ = copies.take({"h": {"history": history}})
        assert all(map(torch.equal, states["h"]["history"], history))
    assert len(copies._lanes) <= 2


def test_a_place_among_small_ones_is_kept_while_it_is_not_needed() -> None:
    """Each sweep the memory is met first by a tensor that is a part of it; then by the whole of it alone."""
    copies, whole, other = Copies(), torch.zeros(6), torch.zeros(6)
    for state in (
        ({"whole": whole, "other": other},) * 3
        + ({"part": whole[2:], "whole": whole},) * 3
        + ({"whole": whole, "other": other},) * 3
    ):
        with torch.no_grad():
            whole.add_(1.0)
            other.sub_(1.0)
        states, _ = copies.take({"s": state})
        assert all(torch.equal(states["s"][key], live) for key, live in state.items())
