"""PaddedBatch: whatever the keys are, and what cannot be padded is named."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import brainlib as bl
from brainlib.data.transfer import to_device
from brainlib.update.loss_weight import ids_of, num_items

ITEMS: list[dict[str, Any]] = [
    {
        "id": "a",
        "signal": torch.tensor([1.0, 2.0]),
        "tokens": torch.tensor([5, 6, 7]),
        "label": 1,
        "words": ["x"],
    },
    {"id": "b", "signal": torch.tensor([3.0]), "tokens": torch.tensor([8]), "label": 0, "words": []},
]


def test_each_kind_of_key() -> None:
    batch = bl.PaddedBatch(ITEMS, per_key_padding_kwargs={"tokens": {"value": -1}})
    assert batch.signal.data.tolist() == [[1.0, 2.0], [3.0, 0.0]]
    assert batch.tokens.data.tolist() == [[5, 6, 7], [8, -1, -1]] and batch.tokens.data.dtype == torch.int64
    assert torch.equal(batch.tokens.lengths, torch.tensor([1.0, 1 / 3])) and batch.tokens.num == (3, 1)
    assert batch.tokens.num_entries.tolist() == [3, 1]
    assert batch.signal.mask().tolist() == [[True, True], [True, False]]
    assert batch.id == ["a", "b"] and batch.label.tolist() == [1, 0] and batch.words == [["x"], []]
    assert batch.keys() == ["id", "signal", "tokens", "label", "words"] and len(batch) == 5
    assert next(iter(batch)) is batch.id is batch["id"] is batch.at_position(0) and "label" in batch


def test_it_unpacks_as_speechbrain_has_it() -> None:
    signals, lengths = bl.PaddedBatch(ITEMS).signal
    assert signals.shape == (2, 2) and lengths.tolist() == [1.0, 0.5]
    assert bl.PaddedBatch(ITEMS).signal[1].tolist() == [1.0, 0.5] and len(bl.PaddedBatch(ITEMS).signal) == 2


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([torch.ones(2, 3), torch.ones(1, 3)], "[2, 2, 3]"),
        ([np.ones(2, np.float32), np.ones(3, np.float32)], "[2, 3]"),
        ([torch.tensor(1), torch.tensor(2)], "tensor [2]"),
        ([1, 2.5], "tensor [2]"),
        ([True, False], "tensor [2]"),
        ([torch.ones(1), None], "list"),
        ([None, None], "list"),
        (["a", 1], "list"),
        ([np.array(["a"]), np.array(["b"])], "list"),
        ([torch.ones(0), torch.ones(0)], "[2, 0]"),
        ([torch.ones(0), torch.ones(2)], "[2, 2]"),
    ],
    ids=str,
)
def test_what_becomes_of_values(values: list[Any], kind: str) -> None:
    found = bl.PaddedBatch([{"x": value} for value in values]).x
    if isinstance(found, bl.PaddedData):
        assert kind == str(list(found.data.shape)) and found.num == tuple(len(value) for value in values)
        assert torch.isfinite(found.lengths).all()
    else:
        assert kind == ("list" if isinstance(found, list) else f"tensor {list(found.shape)}")


def test_which_keys_are_padded_and_stacked() -> None:
    items = [{"x": torch.ones(2), "y": torch.ones(2)}] * 2
    batch = bl.PaddedBatch(items, padded_keys=["x"])
    assert isinstance(batch.x, bl.PaddedData) and batch.y.shape == (2, 2)
    assert isinstance(bl.PaddedBatch(items, padded_keys=["x"], nonpadded_stack=False).y, list)
    ragged = [{"x": torch.ones(2)}, {"x": torch.ones(1)}]
    assert isinstance(bl.PaddedBatch(ragged, padded_keys=[]).x, list)


@pytest.mark.parametrize(
    ("items", "options", "message"),
    [
        ([], {}, "was given no items; it needs a list of dicts"),
        ([1, 2], {}, "was given items of type int"),
        (
            [{"id": "u", "x": 1}, {"id": "v"}],
            {},
            "the items 'u', 'v' have different keys: 'x' not in all of them",
        ),
        (
            [{"id": "u", "x": torch.ones(2, 3)}, {"id": "v", "x": torch.ones(2, 4)}],
            {},
            "the key 'x' cannot be padded: [2, 3] float32 ('u') and [2, 4] float32 ('v'). Only the first dimension",
        ),
        (
            [{"x": torch.ones(2)}, {"x": torch.ones(2, 1)}],
            {},
            "cannot be padded: [2] float32 and [2, 1] float32",
        ),
        (
            [{"x": torch.ones(2)}, {"x": torch.ones(2).long()}],
            {},
            "cannot be padded: [2] float32 and [2] int64",
        ),
        (ITEMS, {"padded_keys": ["signals"]}, "padded_keys: there is no key 'signals' in the items"),
        (ITEMS, {"per_key_padding_kwargs": {"token": {}}}, "Did you mean 'tokens'?"),
        (ITEMS, {"padding_kwargs": {"mode": "reflect"}}, "the padding of 'signal' has the option 'mode'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_a_batch(items: list[Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        bl.PaddedBatch(items, **options)
    assert message in str(error.value)


def test_a_key_that_is_not_there() -> None:
    batch = bl.PaddedBatch(ITEMS)
    with pytest.raises(
        AttributeError, match="there is no key 'signals' in this batch; .* Did you mean 'signal'?"
    ):
        batch.signals  # noqa: B018
    with pytest.raises(KeyError, match="Did you mean 'signal'?"):
        batch["signals"]
    assert not hasattr(batch, "__len_hint__")


def test_moving_it_changes_it_and_lengths_keep_their_type() -> None:
    batch = bl.PaddedBatch(ITEMS)
    assert batch.to("meta", torch.float16, non_blocking=True) is batch
    assert batch.signal.data.dtype == torch.float16 and batch.signal.lengths.dtype == torch.float32
    assert batch.tokens.data.dtype == torch.int64
    assert {t.device.type for t in (batch.signal.data, batch.signal.lengths, batch.label)} == {"meta"}
    assert batch.tokens.num == (3, 1) and batch.id == ["a", "b"]
    assert to_device(bl.PaddedBatch(ITEMS), torch.device("meta")).signal.data.device.type == "meta"


def test_only_the_prepared_keys_move() -> None:
    batch = bl.PaddedBatch(ITEMS, device_prep_keys=["signal"]).to("meta")
    assert batch.signal.data.device.type == "meta" and batch.tokens.data.device.type == "cpu"


def test_a_list_of_tensors_moves_too() -> None:
    batch = bl.PaddedBatch([{"x": torch.ones(2)}, {"x": torch.ones(1)}], padded_keys=[]).to("meta")
    assert [each.device.type for each in batch.x] == ["meta"] * 2


def test_the_trainer_knows_its_size_and_ids() -> None:
    batch = bl.PaddedBatch(ITEMS)
    assert num_items(batch) == 2.0 and ids_of(batch) == " with the ids 'a', 'b'"


def test_a_copy_is_the_same() -> None:
    batch = pickle.loads(pickle.dumps(bl.PaddedBatch(ITEMS)))
    assert batch.signal.data.tolist() == [[1.0, 2.0], [3.0, 0.0]] and batch.signal.num == (2, 1)
    assert torch.equal(batch.signal.lengths, torch.tensor([1.0, 0.5])) and batch.batchsize == 2


def test_it_comes_through_workers() -> None:
    loader = DataLoader(ITEMS, batch_size=2, collate_fn=bl.PaddedBatch, num_workers=1)  # type: ignore[arg-type]
    (batch,) = loader
    assert batch.signal.data.tolist() == [[1.0, 2.0], [3.0, 0.0]] and batch.label.tolist() == [1, 0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, to pin memory for")
def test_pinned_memory() -> None:
    batch = bl.PaddedBatch(ITEMS).pin_memory()
    assert batch.signal.data.is_pinned() and batch.signal.lengths.is_pinned() and batch.label.is_pinned()
    moved = batch.to("cuda", non_blocking=True)
    assert moved.signal.data.tolist() == [[1.0, 2.0], [3.0, 0.0]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([np.float32(1), np.float32(2)], torch.tensor([1.0, 2.0])),
        ([np.int64(1), np.int64(2)], torch.tensor([1, 2])),
        ([np.bool_(True), np.bool_(False)], torch.tensor([True, False])),
        ([np.array(1.5), np.array(2.5)], torch.tensor([1.5, 2.5], dtype=torch.float64)),
    ],
)
def test_numbers_of_numpy_are_numbers(values: list[Any], expected: torch.Tensor) -> None:
    batch = bl.PaddedBatch([{"x": value} for value in values])
    assert torch.equal(batch.x, expected) and batch.x.dtype == expected.dtype


def test_arrays_that_torch_does_not_read_are_copied() -> None:
    turned, foreign = np.arange(3.0)[::-1], np.arange(2.0).astype(">f8")
    batch = bl.PaddedBatch([{"x": turned}, {"x": foreign}])
    assert batch.x.data.tolist() == [[2.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
    mixed = bl.PaddedBatch([{"x": torch.ones(1)}, {"x": np.ones(2, np.float32)}])
    assert mixed.x.num == (1, 2)


@pytest.mark.parametrize(
    ("values", "options", "told"),
    [
        ([2**70, 1], {}, "holds a number that no tensor can hold"),
        ([torch.ones(2).byte(), torch.ones(3).byte()], {"padding_kwargs": {"value": -1}}, "padded with -1"),
        ([torch.ones(2), torch.ones(3)], {"padding_kwargs": {"value": "0"}}, "padded with '0'"),
        ([torch.tensor(1.0), torch.ones(3)], {}, "cannot be padded: "),
        ([np.ones(2, np.longdouble)], {}, "is an array of float128"),
    ],
)
def test_what_cannot_be_a_tensor_names_its_key_and_ids(
    values: list[Any], options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match="the key 'x'.*'utt0'") as failure:
        bl.PaddedBatch([{"id": f"utt{n}", "x": value} for n, value in enumerate(values)], **options)
    assert told in str(failure.value)
