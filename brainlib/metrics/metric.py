"""What all metrics have in common: they count batches, can be merged, saved and gathered, and answer at the end."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any, TextIO, TypeVar

import torch
from torch import Tensor

from brainlib.common.counted import counted
from brainlib.common.errors import nearest, quoted
from brainlib.common.files import write_atomic
from brainlib.distributed.group import gather

__all__ = ["Metric", "field_of", "mean", "numbers_of", "plain_ids", "plain_numbers", "stream_to"]

Same = TypeVar("Same", bound="Metric")


class Metric:
    """Something that is counted over batches. A subclass overrides `clear`, and keeps what it counts in `kept`.

    A metric that is an attribute of a Brain is saved with the run. Clear it in ``on_stage_start``, append to it in
    ``compute_objectives``, and ask ``metric.gather().summarize()`` in ``on_stage_end``, on all ranks. In which order
    batches came, and on which rank, makes no difference to the answer, not in the last bit. With several ranks a
    checkpoint holds what the main one has counted; validations are counted from their beginning in any case.

    Attributes:
        kept: the names of the attributes that hold what was counted: lists, or numbers.

    >>> class Items(Metric):
    ...     kept = ("number",)
    ...     def clear(self):
    ...         self.number = 0
    ...     def append(self, batch):
    ...         self.number += len(batch)
    >>> here, there = Items(), Items()
    >>> here.append([1, 2]); there.append([3])
    >>> here.merge(there); here.number
    3
    """

    kept: Sequence[str] = ()

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew."""

    def settle(self) -> None:
        """Bring what waits on a device into what is kept; called before that is read."""

    def merge(self, other: Metric) -> None:
        """Count in what another one has counted; the other is left alone.

        Raises:
            ValueError: it is another kind of metric.
        """
        if type(other) is not type(self):
            raise ValueError(f"a {type(self).__name__} cannot take in a {type(other).__name__}")
        self._add(other.state_dict())

    def _add(self, state: Mapping[str, Any]) -> None:
        self.settle()
        for name in self.kept:
            setattr(self, name, getattr(self, name) + state[name])

    def gather(self: Same) -> Same:
        """What all ranks have counted, in one metric, on each of them; with one process this one itself. All ranks."""
        states = gather(self.state_dict())
        if len(states) == 1:
            return self
        total = copy.copy(self)
        total.clear()
        for state in states:
            total._add(state)
        return total

    def state_dict(self) -> dict[str, Any]:
        """What was counted."""
        self.settle()
        return {name: copy.copy(getattr(self, name)) for name in self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` returned, in place of what was counted here.

        Raises:
            ValueError: for missing or leftover keys; nothing is changed then.
        """
        if set(state) != set(self.kept):
            raise ValueError(
                f"the state of a {type(self).__name__} has the keys {quoted(self.kept)}, not {quoted(state)}"
            )
        self.clear()
        for name in self.kept:
            setattr(self, name, copy.copy(state[name]))


def field_of(summary: dict[str, Any], field: str | None) -> Any:
    """One value of a summary, or all of it.

    Raises:
        ValueError: it has no such value.

    >>> field_of({"WER": 12.5}, "WER")
    12.5
    """
    if field is None:
        return summary
    if field not in summary:
        raise ValueError(f"there is no {field!r}; there is {quoted(summary)}.{nearest(field, summary)}")
    return summary[field]


def mean(values: Iterable[float]) -> float:
    """A mean that depends on no order: the sum is exact before it is rounded. NaN where a value is.

    >>> mean([1e16, 1.0, -1e16]) == mean([1e16, -1e16, 1.0])
    True
    """
    listed = list(values)
    if not all(map(math.isfinite, listed)):
        return sum(listed) / len(listed)
    return math.fsum(listed) / len(listed)


def numbers_of(values: Any) -> Tensor:
    """A tensor as it is; other numbers in float64, in which Python's are.

    >>> numbers_of([0.1]).item()
    0.1
    """
    return values if isinstance(values, Tensor) else torch.as_tensor(values, dtype=torch.float64)


def plain_numbers(batches: Sequence[Tensor]) -> list[float]:
    """The numbers in tensors, one after the other, in one copy from the device.

    >>> plain_numbers([torch.tensor([1.0, 2.0]), torch.tensor([3.0])])
    [1.0, 2.0, 3.0]
    """
    if not batches:
        return []
    return torch.cat([batch.detach().flatten().double() for batch in batches]).tolist()


def plain_ids(ids: Iterable[Any], number: int, what: str) -> list[Any]:
    """Ids as text and numbers, as many as there are items.

    Raises:
        ValueError: there are more or fewer; or one text where a list of ids is needed.

    >>> plain_ids(["a", "b"], 2, "scores")
    ['a', 'b']
    """
    if isinstance(ids, str):
        raise ValueError(f"the ids are one text, {ids!r}; give a list, one id an item")
    listed = ids.tolist() if isinstance(ids, Tensor) else [_plain(each) for each in ids]
    if len(listed) != number:
        raise ValueError(f"{counted(len(listed), 'id')} and {number} {what}: one of each an item")
    return listed


def _plain(value: Any) -> Any:
    """What a checkpoint can hold: of a number of numpy the number, of a path its text."""
    if hasattr(value, "item"):
        return value.item()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


@contextmanager
def stream_to(target: str | os.PathLike[str] | TextIO) -> Iterator[TextIO]:
    """Something to write to: the stream that was given, or a file, which is there as a whole or not at all.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with stream_to(f"{folder}/wer.txt") as stream:
    ...         _ = stream.write("hello")
    ...     Path(folder, "wer.txt").read_text()
    'hello'
    """
    if not isinstance(target, (str, os.PathLike)):
        yield target
        return
    with StringIO() as text:
        yield text
        write_atomic(target, text.getvalue())
