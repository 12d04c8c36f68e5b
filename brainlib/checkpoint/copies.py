"""A copy of a state in memory, made in one sweep into memory that the next copy uses again.

While training goes on, a checkpoint is written from such a copy, so what training stands still for is this and no more:
a walk over the state, and one copy of its bytes. Memory that is touched for the first time costs several times the copy
itself (the system hands it out page by page), which is why it is kept.

What shares memory in the live state shares it in the copy: tied weights stay tied, and are copied once.
"""

from __future__ import annotations

import copy
import weakref
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from brainlib.checkpoint.errors import CheckpointError
from brainlib.checkpoint.states import PLAIN_TENSORS, SAFE_LEAVES, Own, refuse_unreadable

__all__ = ["Copies"]

_UNCHANGING = SAFE_LEAVES - {bytearray}  # nobody can change them


@dataclass(slots=True)
class _Memory:
    """The copy of one live storage."""

    buffer: torch.UntypedStorage
    views: dict[Any, Tensor] = field(default_factory=dict)  # by dtype, offset, shape and stride
    taken: int = 0  # the number of the copy that its bytes are of
    given_up: bool = False  # whether the storage has another one now, or is gone


@dataclass(slots=True)
class _Lane:
    """What one sweep copies from one device, and to where."""

    sources: list[Tensor] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)


@dataclass(slots=True)
class _Known:
    """A live tensor that was met before, such as an average of Adam's: where it is copied to."""

    tensor: weakref.ref[Tensor]
    dtype: torch.dtype
    shape: torch.Size
    place: int  # of the storage
    num_bytes: int
    memory: _Memory
    view: Tensor
    lane: _Lane


class Copies:
    """Makes copies of states, one after the other, all in the same memory.

    A copy is good until the next one is made. Tensors of an accelerator are copied into pinned memory; `ready` waits
    for them.

    >>> weight = torch.ones(2)
    >>> copies = Copies()
    >>> states, _ = copies.take({"model": {"weight": weight, "again": weight, "steps": [3]}})
    >>> _ = weight.zero_()
    >>> states["model"]
    {'weight': tensor([1., 1.]), 'again': tensor([1., 1.]), 'steps': [3]}
    >>> states["model"]["weight"].data_ptr() == states["model"]["again"].data_ptr()
    True
    """

    def __init__(self) -> None:
        self._memories: dict[int, _Memory] = {}
        self._known: dict[int, _Known] = {}
        self._lanes: defaultdict[torch.device, _Lane] = defaultdict(_Lane)
        self._number = 0
        self._events: list[Any] = []

    def take(self, states: dict[str, Any], bare: Collection[str] = ()) -> tuple[dict[str, Any], set[str]]:
        """Copies of several states, which may share memory.

        Args:
            states: By the name of their object. They are left alone.
            bare: The names of those in which a ``torch.nn.Parameter`` stands for its numbers alone.

        Returns:
            The copies, and the names of those that hold something that is not plainly safe to read back.

        Raises:
            CheckpointError: Something in a state could not be read back; without its place.
        """
        self._number += 1
        sweep = _Sweep(self._memories, self._known, self._lanes, self._number)
        copied: dict[str, Any] = {}
        odd: set[str] = set()
        try:
            for name, state in states.items():
                sweep.odd, sweep.bare = False, name in bare
                copied[name] = sweep.walk(state)
                if sweep.odd:
                    odd.add(name)
            with torch.no_grad():
                self._events = _copy(self._lanes)
        except RecursionError:
            raise CheckpointError("a state contains itself") from None
        finally:
            num_taken = sum(len(lane.sources) for lane in self._lanes.values())
            for lane in self._lanes.values():
                lane.sources.clear()
                lane.targets.clear()
        self._forget(num_taken)
        return copied, odd

    def _forget(self, num_taken: int) -> None:
        """What was not met this time is gone; to hold its memory would be a second copy."""
        if num_taken == len(self._memories) and len(self._known) <= 2 * num_taken:
            return
        for place in [place for place, memory in self._memories.items() if memory.taken != self._number]:
            self._memories.pop(place).given_up = True
        for name in [
            name for name, each in self._known.items() if each.memory.given_up or each.tensor() is None
        ]:
            del self._known[name]

    def __reduce__(self) -> tuple[type[Copies], tuple[()]]:
        return Copies, ()  # a copy of it begins with memory of its own

    def ready(self) -> None:
        """Returns when the bytes of the last copy are all there; needed before they are read."""
        for event in self._events:
            event.synchronize()


class _Sweep:
    """One walk over all states."""

    def __init__(
        self,
        memories: dict[int, _Memory],
        known: dict[int, _Known],
        lanes: defaultdict[torch.device, _Lane],
        number: int,
    ) -> None:
        self.odd = self.bare = False
        self._memories, self._known = memories, known
        self._lanes = lanes
        self._number = number

    def walk(self, value: Any) -> Any:
        kind = type(value)
        if kind is dict:
            return self._items(value, {})
        if kind is OrderedDict:
            ordered: OrderedDict[Any, Any] = OrderedDict()
            vars(ordered).update(vars(value))  # such as the versions of a module's parts
            return self._items(value, ordered)
        if kind is list or kind is tuple or kind is set:
            walk, unchanging = self.walk, _UNCHANGING
            return kind([item if type(item) in unchanging else walk(item) for item in value])
        if kind is Tensor:
            return self._tensor(value)
        if kind is Parameter:
            return self._tensor(value) if self.bare else Parameter(self._tensor(value), value.requires_grad)
        if kind is Counter:
            return self._items(value, copy.copy(value))
        if kind is Own:
            return dict(value)
        if kind in _UNCHANGING:
            return value
        return bytearray(value) if kind is bytearray else self._odd(value)

    def _items(self, items: dict[Any, Any], copied: dict[Any, Any]) -> dict[Any, Any]:
        """Thousands of times a sweep, so what most items are comes first and calls nothing."""
        walk, tensor, unchanging = self.walk, self._tensor, _UNCHANGING
        tensors = PLAIN_TENSORS if self.bare else {Tensor}
        for key, item in items.items():
            kind = type(item)
            if kind in tensors:
                copied[key] = tensor(item)
            elif kind in unchanging:
                copied[key] = item
            elif kind is dict:
                copied[key] = self._items(item, {})
            else:
                copied[key] = walk(item)
            if type(key) not in unchanging:
                walk(key)
        return copied

    def _odd(self, value: Any) -> Any:
        changed = refuse_unreadable(value)
        if changed is not value:
            return changed
        self.odd = True
        if not isinstance(value, Tensor):
            return copy.deepcopy(value)
        if torch.nn.parameter.is_lazy(value) or value.is_meta:  # there are no numbers in it
            return value
        return value.detach().to("cpu", copy=True)

    def _tensor(self, tensor: Tensor) -> Tensor:
        known = self._known.get(id(tensor))
        if known is None or known.tensor() is not tensor:
            return self._met_first(tensor)
        memory = known.memory
        storage = tensor.untyped_storage()  # it may have been exchanged, or have grown
        if (
            storage._cdata != known.place
            or storage.nbytes() != known.num_bytes
            or known.dtype is not tensor.dtype
            or known.shape != tensor.shape
            or not tensor.is_contiguous()  # transposed in place since: what shares the memory would see it so
            or memory.given_up
        ):
            return self._met_first(tensor)
        number, view = self._number, known.view
        if memory.taken != number:
            memory.taken = number
            lane = known.lane
            lane.sources.append(tensor)
            lane.targets.append(view)
        return view

    def _met_first(self, tensor: Tensor) -> Tensor:
        if (
            tensor.layout is not torch.strided
            or tensor.is_quantized
            or tensor.is_meta
            or tensor.is_nested
            or tensor.is_conj()  # what shares the memory may show it otherwise
            or tensor.is_neg()
            or getattr(tensor, "__dict__", None)
        ):
            return self._odd(tensor)  # type: ignore[no-any-return]
        storage = tensor.untyped_storage()
        place = storage._cdata
        memory = self._memories.get(place)
        if memory is None or (memory.taken != self._number and memory.buffer.nbytes() != storage.nbytes()):
            if memory is not None:
                memory.given_up = True
            memory = self._memories[place] = _Memory(_memory_for(storage))
        spot = (tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride())
        view = memory.views.get(spot)
        if view is None:
            if len(memory.views) > 100:  # of a storage that is looked at in another way each time
                memory.views.clear()
            view = torch.empty(0, dtype=tensor.dtype).set_(memory.buffer, *spot[1:])
            memory.views[spot] = view
        whole = tensor.is_contiguous() and tensor.numel() * tensor.element_size() == storage.nbytes()
        lane = self._lanes[tensor.device]
        if memory.taken != self._number:
            memory.taken = self._number
            lane.sources.append(tensor if whole else _bytes_of(storage))
            lane.targets.append(view if whole else _bytes_of(memory.buffer))
        if whole and not tensor.is_complex():  # such may become its own conjugate
            self._known[id(tensor)] = _Known(
                weakref.ref(tensor), tensor.dtype, tensor.shape, place, storage.nbytes(), memory, view, lane
            )
        return view


def _copy(lanes: dict[torch.device, _Lane]) -> list[Any]:
    """Copies all at once; returns what has to be waited for."""
    events = []
    for device, lane in lanes.items():
        if not lane.sources:
            continue
        torch._foreach_copy_(lane.targets, lane.sources, non_blocking=device.type == "cuda")
        if device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(device))
            events.append(event)
    return events


def _memory_for(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    pinned = storage.device.type == "cuda"
    return torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=pinned).untyped_storage()


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
