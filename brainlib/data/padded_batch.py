"""Items of different lengths as one batch: padded, with how long each is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from brainlib.common.counted import counted
from brainlib.common.errors import quoted
from brainlib.data.rows import no_such_key

__all__ = ["PaddedBatch", "PaddedData"]


class PaddedData:
    """Tensors of different lengths in one, the shorter ones filled up.

    It unpacks into data and relative lengths, as SpeechBrain's layers want them: ``signals, lengths = batch.signal``.

    Attributes:
        data: ``[batch, time, ...]``.
        lengths: ``[batch]``, float32 on the device of `data`: each length divided by the longest, so 1.0 for that.
        num: each length in entries of ``data``, as Python integers: known on the host, whatever the device.

    >>> padded = PaddedData.of([torch.ones(2), torch.ones(4)])
    >>> padded.data.shape, padded.lengths, padded.num, padded.mask().sum().item()
    (torch.Size([2, 4]), tensor([0.5000, 1.0000]), (2, 4), 6)
    """

    __slots__ = ("_lengths", "data", "num")

    def __init__(self, data: Tensor, num: Sequence[int]) -> None:
        self.data, self.num = data, tuple(num)
        self._lengths: Tensor | None = None

    @classmethod
    def of(cls, tensors: Sequence[Tensor], value: float = 0.0) -> PaddedData:
        """Pad tensors along their first dimension with `value`; the other dimensions must be the same."""
        return cls(pad_sequence(list(tensors), True, value), [len(each) for each in tensors])

    @property
    def lengths(self) -> Tensor:
        if self._lengths is None:
            longest = max(self.num, default=0) or 1
            self._lengths = torch.tensor([each / longest for each in self.num]).to(self.data.device)
        return self._lengths

    @property
    def num_entries(self) -> Tensor:
        """``[batch]``, int64 on the device of `data`: each length in entries."""
        return torch.tensor(self.num).to(self.data.device)

    def mask(self) -> Tensor:
        """``[batch, time]``, true where there is an entry of an item, false where it was filled up."""
        times = torch.arange(self.data.shape[1], device=self.data.device)
        return times < self.num_entries.unsqueeze(1)

    def part(self, place: slice, trim: bool = True) -> PaddedData:
        """Some of them, padded to the longest of these; or left as they are, with their lengths, without `trim`.

        >>> PaddedData.of([torch.ones(2), torch.ones(4)]).part(slice(0, 1)).data.shape
        torch.Size([1, 2])
        """
        num = self.num[place]
        if trim:
            return PaddedData(self.data[place, : max(num, default=0)], num)
        part = PaddedData(self.data[place], num)
        part._lengths = self.lengths[place]
        return part

    def __iter__(self) -> Iterator[Tensor]:
        yield self.data
        yield self.lengths

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Tensor:
        return (self.data, self.lengths)[index]

    def __repr__(self) -> str:
        return f"PaddedData(data={tuple(self.data.shape)} {self.data.dtype}, num={list(self.num)})"

    def __reduce__(self) -> Any:  # a worker sends the numbers, which is cheaper than a tensor of them
        return PaddedData, (self.data, self.num)

    def pin_memory(self) -> PaddedData:
        self.data, self._lengths = self.data.pin_memory(), self.lengths.pin_memory()
        return self

    def to(
        self, device: Any = None, dtype: torch.dtype | None = None, non_blocking: bool = False
    ) -> PaddedData:
        """Both tensors to a device, and `data`, where it holds floats, to a dtype. Lengths stay float32."""
        if device is not None:
            self._lengths = self.lengths.to(device, non_blocking=non_blocking)
        self.data = _moved(self.data, device, dtype, non_blocking)
        return self

    def record_stream(self, stream: Any) -> None:
        self.data.record_stream(stream)
        self.lengths.record_stream(stream)


class PaddedBatch:
    """A batch of items, which are dicts of the same keys; a loader's ``collate_fn``.

    Under a key whose values are tensors (or numpy arrays) of at least one dimension stands a `PaddedData`, under one of
    numbers or of tensors without a dimension a tensor ``[batch]``, else a list. ``batch.signal`` and
    ``batch["signal"]`` are the same; iterating gives the values, in the order of the keys.

    Args:
        examples: the items.
        padded_keys: which keys are padded; None: all of tensors. Tensors of other keys are stacked where their shapes
            are the same.
        device_prep_keys: which keys `to` moves; None: all that hold tensors.
        padding_kwargs: ``{"value": 0.0}``, what the shorter ones are filled up with.
        per_key_padding_kwargs: the same for single keys: ``{"tokens": {"value": -1}}``.
        nonpadded_stack: whether tensors of other keys are stacked.

    Raises:
        ValueError: for items with different keys, or tensors that cannot be padded to one; it names key and ids.

    >>> batch = PaddedBatch([
    ...     {"id": "a", "signal": torch.ones(3), "label": 2}, {"id": "b", "signal": torch.ones(2), "label": 0},
    ... ])
    >>> batch.id, batch.label, batch["signal"].data, batch.batchsize
    (['a', 'b'], tensor([2, 0]), tensor([[1., 1., 1.],
            [1., 1., 0.]]), 2)
    >>> signals, lengths = batch.signal
    """

    def __init__(
        self,
        examples: Sequence[Mapping[str, Any]],
        padded_keys: Sequence[str] | None = None,
        device_prep_keys: Sequence[str] | None = None,
        padding_kwargs: Mapping[str, Any] | None = None,
        per_key_padding_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
        nonpadded_stack: bool = True,
    ) -> None:
        if not examples or not isinstance(examples[0], Mapping):
            held = f"items of type {type(examples[0]).__name__}" if examples else "no items"
            raise ValueError(
                f"a PaddedBatch was given {held}; it needs a list of dicts, as DynamicItemDataset gives. Give another "
                "collate_fn for others"
            )
        keys = list(examples[0])
        if not all(example.keys() == examples[0].keys() for example in examples):
            differ = sorted(
                {key for example in examples for key in examples[0].keys() ^ example.keys()}, key=str
            )
            raise ValueError(
                f"the items{_ids(examples)} have different keys: {quoted(differ)} not in all of them"
            )
        for name, given in (("padded_keys", padded_keys), ("device_prep_keys", device_prep_keys)):
            for key in given or ():
                if key not in keys:
                    raise ValueError(f"{name}: " + no_such_key(key, keys, "the items"))
        for key in per_key_padding_kwargs or {}:
            if key not in keys:
                raise ValueError("per_key_padding_kwargs: " + no_such_key(key, keys, "the items"))
        self.batchsize = len(examples)
        self._prepared = None if device_prep_keys is None else tuple(device_prep_keys)
        self._values: dict[str, Any] = {}
        for key in keys:
            values = [example[key] for example in examples]
            wanted = padded_keys is None or key in padded_keys
            padding = {**(padding_kwargs or {}), **(per_key_padding_kwargs or {}).get(key, {})}
            self._values[key] = self._column(key, values, wanted, padding, nonpadded_stack, examples)

    @staticmethod
    def _column(
        key: str, values: list[Any], wanted: bool, padding: dict[str, Any], stack: bool, examples: Any
    ) -> Any:
        kinds = set(map(type, values))
        if any(issubclass(kind, (np.ndarray, np.generic)) for kind in kinds):
            values = [_of_numpy(key, *each) for each in zip(values, examples, strict=True)]
            kinds = set(map(type, values))
        if all(issubclass(kind, Tensor) for kind in kinds):
            shapes = [each.shape for each in values]
            if wanted and any(shapes):
                if (
                    len(set(map(len, shapes))) > 1
                    or len(values[0].shape) > 1
                    or len({v.dtype for v in values}) > 1
                ):
                    _check_alike(key, values, examples)
                value = padding.pop("value", 0.0)
                _no_more(key, padding)
                try:
                    return PaddedData(pad_sequence(values, True, value), [shape[0] for shape in shapes])
                except (RuntimeError, TypeError) as error:
                    raise ValueError(
                        f"the key {key!r} of the items{_ids(examples)} cannot be padded with {value!r}: {error}"
                    ) from error
            return torch.stack(values) if (stack or not shapes[0]) and len(set(shapes)) == 1 else values
        if kinds <= {int, float, bool}:
            try:
                return torch.tensor(values)
            except (ValueError, OverflowError, RuntimeError) as error:
                raise ValueError(
                    f"the key {key!r} of the items{_ids(examples)} holds a number that no tensor can hold: {error}"
                ) from error
        return values

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(no_such_key(name, list(values), "this batch"))

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            raise KeyError(no_such_key(key, list(self._values), "this batch"))
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values.values())

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"PaddedBatch({counted(self.batchsize, 'item')}: {', '.join(self._values)})"

    def keys(self) -> list[str]:
        """The keys, in order."""
        return list(self._values)

    def part(self, place: slice, trim: bool = True) -> PaddedBatch:
        """Some of its items as a batch of their own; without `trim`, padded as they are now.

        >>> batch = PaddedBatch([{"id": "a", "x": torch.ones(1)}, {"id": "b", "x": torch.ones(3)}])
        >>> batch.part(slice(0, 1)).x.data
        tensor([[1.]])
        """
        other = PaddedBatch.__new__(PaddedBatch)
        other._prepared = self._prepared
        other._values = {
            key: value.part(place, trim) if isinstance(value, PaddedData) else value[place]
            for key, value in self._values.items()
        }
        other.batchsize = len(range(self.batchsize)[place])
        return other

    def at_position(self, position: int) -> Any:
        """The value of the key at this position."""
        return list(self._values.values())[position]

    def to(
        self, device: Any = None, dtype: torch.dtype | None = None, non_blocking: bool = False
    ) -> PaddedBatch:
        """Move to a device, and change floats to a dtype; this batch itself is changed, and returned.

        Args:
            device: such as "cuda:0"; None: stays.
            dtype: of floating-point data; lengths and integers keep theirs. None: stays.
            non_blocking: whether a copy from pinned memory may go on while the host does.
        """
        for key, value in self._values.items():
            if self._prepared is None or key in self._prepared:
                if isinstance(value, PaddedData):
                    value.to(device, dtype, non_blocking)
                else:
                    self._values[key] = _moved(value, device, dtype, non_blocking)
        return self

    def pin_memory(self) -> PaddedBatch:
        """Put what `to` moves into pinned memory; a loader with ``pin_memory=True`` calls it."""
        for key, value in self._values.items():
            if self._prepared is None or key in self._prepared:
                if isinstance(value, (PaddedData, Tensor)):
                    self._values[key] = value.pin_memory()
        return self

    def record_stream(self, stream: Any) -> None:
        """Tell the allocator that another stream works on these tensors, see `torch.Tensor.record_stream`."""
        for value in self._values.values():
            if isinstance(value, (PaddedData, Tensor)):
                value.record_stream(stream)


def _of_numpy(key: str, value: Any, example: Mapping[str, Any]) -> Any:
    """An array or a number of numpy as a tensor, texts and objects as they are."""
    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype.kind in "OUSMmV":
        return value
    array = np.asarray(value)
    if not array.dtype.isnative or min(array.strides, default=0) < 0:  # torch reads neither
        array = array.astype(array.dtype.newbyteorder("="), order="C")
    try:
        return torch.as_tensor(array)
    except TypeError as error:  # such as float128
        raise ValueError(
            f"the key {key!r} is an array of {array.dtype}{_id(example)}, which is no kind of torch's: {error}"
        ) from error


def _moved(value: Any, device: Any, dtype: torch.dtype | None, non_blocking: bool) -> Any:
    if isinstance(value, Tensor):
        kind = dtype if dtype is not None and value.is_floating_point() else value.dtype
        return value.to(device if device is not None else value.device, kind, non_blocking=non_blocking)
    if isinstance(value, list):
        return [_moved(each, device, dtype, non_blocking) for each in value]
    return value


def _check_alike(key: str, values: Sequence[Tensor], examples: Sequence[Mapping[str, Any]]) -> None:
    """Raise where tensors differ in more than their first dimension."""
    first = values[0]
    for value, example in zip(values, examples, strict=True):
        if value.shape[1:] != first.shape[1:] or value.dtype != first.dtype or value.dim() != first.dim():
            one, other = (
                f"{list(each.shape)} {str(each.dtype).removeprefix('torch.')}{_id(of)}"
                for each, of in ((first, examples[0]), (value, example))
            )
            raise ValueError(
                f"the key {key!r} cannot be padded: {one} and {other}. Only the first dimension, which is time, may "
                "differ. Make the others the same in your pipeline, or leave the key out of padded_keys"
            )


def _no_more(key: str, padding: Mapping[str, Any]) -> None:
    if padding:
        raise ValueError(f"the padding of {key!r} has the option {quoted(padding)}; there is 'value' alone")


def _id(example: Mapping[str, Any]) -> str:
    return f" ({example['id']!r})" if "id" in example else ""


def _ids(examples: Sequence[Mapping[str, Any]]) -> str:
    ids = [repr(example["id"]) for example in examples if "id" in example]
    return f" {', '.join(ids[:8])}" if ids else ""
