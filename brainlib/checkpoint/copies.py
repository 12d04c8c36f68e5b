"""A copy of a state in memory, made in one sweep into memory that the next copy uses again.

While training goes on, a checkpoint is written from such a copy, so what training stands still for is this and no more:
a walk over the state, and one copy of its bytes. Memory that is touched for the first time costs several times the copy
itself (the system hands it out page by page), which is why it is kept.

What shares memory in the live state shares it in the copy: tied weights stay tied, and are copied once.

Thousands of small tensors cost by their number: most of the time goes into waiting for memory that nobody has looked at
for a while, so few objects are looked at for each. And what comes in the same order again gets its copies side by side,
in one block, which one operation fills.
"""

from __future__ import annotations

import copy
import operator
import weakref
from collections import Counter, OrderedDict
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from brainlib.checkpoint.errors import CheckpointError
from brainlib.checkpoint.states import PLAIN_TENSORS, SAFE_LEAVES, Own, refuse_unreadable

__all__ = ["Copies"]

_UNCHANGING = SAFE_LEAVES - {bytearray}  # nobody can change them
_SMALL = 4096  # bytes; a copy of more costs by its bytes


class _Lane:
    """What one sweep copies from one device, and to where."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.sources: list[Tensor] = []
        self.targets: list[Tensor] = []

    def copy(self) -> None:
        if self.sources:
            torch._foreach_copy_(self.targets, self.sources, non_blocking=self.device.type == "cuda")

    def empty(self) -> None:
        self.sources, self.targets = [], []


class _Row(_Lane):
    """A lane of small tensors that differ in their first dimension at most, so that they can be copied as one.

    Their copies get a block of memory in common when they have come in one order twice; each is a storage of its own
    inside of it, because a file holds whole storages.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._block: Tensor | None = None
        self._seats: list[Tensor] = []  # the copies in the block, in its order
        self._last: list[Tensor] = []

    def copy(self) -> None:
        if self._block is None or not _same(self.targets, self._seats):
            super().copy()
        elif self.device.type == "cpu":
            torch.cat(self.sources, out=self._block)
        else:
            self._block.copy_(torch.cat(self.sources), non_blocking=self.device.type == "cuda")

    def settles(self) -> bool:
        """Whether the copies had better be somewhere else. To be asked once a sweep."""
        again, self._last = _same(self.targets, self._last), self.targets
        return again and len(self.targets) > 1 and not _same(self.targets, self._seats)

    def seat(self) -> dict[int, Tensor]:
        """New places for the copies, side by side; by the ids of the old ones."""
        first = self.targets[0]
        num_rows = sum(len(target) for target in self.targets)
        self._block = torch.empty(
            (num_rows, *first.shape[1:]), dtype=first.dtype, pin_memory=self.device.type == "cuda"
        )
        held = self._block.view(-1).view(torch.uint8).numpy()
        seats: dict[int, Tensor] = {}
        start = 0
        for target in self.targets:
            seat = torch.frombuffer(held, dtype=first.dtype, count=target.numel(), offset=start)
            seats[id(target)] = seat.view(target.shape)
            start += target.nbytes
        self._seats = self._last = list(seats.values())
        return seats


def _same(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


class _Memory:
    """The copy of one live storage, and which live tensor is all of it, such as an average of Adam's.

    Args:
        buffer: The memory of the copy.
    """

    __slots__ = (
        "address",
        "buffer",
        "dtype",
        "given_up",
        "lane",
        "shape",
        "taken",
        "tensor",
        "view",
        "views",
    )

    # These five say what is known of the tensor; one that is not as it was is looked at anew.
    lane: _Lane
    address: int
    dtype: torch.dtype
    shape: torch.Size
    view: Tensor  # its copy

    def __init__(self, buffer: torch.UntypedStorage) -> None:
        self.tensor: weakref.ref[Tensor] | None = None
        self.taken = 0  # the number of the sweep that the bytes are of
        self.given_up = False  # whether the storage has another copy now, or is gone
        self.buffer = buffer
        self.views: dict[Any, Tensor] = {}  # by dtype, offset, shape and stride


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
        self._memories: dict[int, _Memory] = {}  # by the addresses of what they are of
        self._known: dict[int, _Memory] = {}  # by the ids of their tensors
        self._lanes: dict[Any, _Lane] = {}  # by device; of small tensors by all that they have in common
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
                for lane in self._lanes.values():
                    lane.copy()
            self._events = _recorded({lane.device for lane in self._lanes.values() if lane.sources})
            self._seat()
        except RecursionError:
            raise CheckpointError("a state contains itself") from None
        finally:
            num_taken = sum(len(lane.sources) for lane in self._lanes.values())
            idle = [key for key, lane in self._lanes.items() if not lane.sources]
            for lane in self._lanes.values():
                lane.empty()
        self._forget(num_taken)
        if idle:
            self._close(idle)
        return copied, odd

    def _seat(self) -> None:
        """Puts the copies of small tensors side by side, for the next time; those of this one stay where they are."""
        rows = [row for row in self._lanes.values() if isinstance(row, _Row) and row.settles()]
        if not rows:
            return
        memories = {id(memory.view): memory for memory in self._known.values()}
        for row in rows:
            alone = (
                id(target) in memories and len(memories[id(target)].views) == 1 for target in row.targets
            )
            if not all(alone):
                continue  # something else has its copy in the same memory
            for old, seat in row.seat().items():
                memory = memories[old]
                memory.view, memory.buffer = seat, seat.untyped_storage()
                memory.views = dict.fromkeys(memory.views, seat)

    def _forget(self, num_taken: int) -> None:
        """What was not met this time is gone; to hold its memory would be a second copy."""
        if num_taken == len(self._memories) and len(self._known) <= 2 * num_taken:
            return
        for address in [each for each, memory in self._memories.items() if memory.taken != self._number]:
            self._memories.pop(address).given_up = True
        self._known = {
            id(memory.tensor()): memory  # type: ignore[misc]
            for memory in self._known.values()
            if not memory.given_up and not _is_gone(memory)
        }

    def _close(self, idle: list[Any]) -> None:
        """Lanes that nothing went through, with the block that they hold; but for those that are waited in."""
        awaited = {id(memory.lane) for memory in self._known.values()}
        for key in idle:
            if id(self._lanes[key]) not in awaited:
                del self._lanes[key]

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
        known: dict[int, _Memory],
        lanes: dict[Any, _Lane],
        number: int,
    ) -> None:
        self.odd = self.bare = False
        self._memories, self._known, self._lanes = memories, known, lanes
        self._shapes: dict[torch.Size, torch.Size] = {}  # one object for all that are equal
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
        memory = self._known.get(id(tensor))
        if (
            memory is None
            or memory.tensor() is not tensor  # type: ignore[misc]  # those that are known have one
            or memory.address != tensor.data_ptr()  # its storage may have been exchanged, or have grown
            or memory.dtype is not tensor.dtype
            or memory.shape != tensor.shape
            or not tensor.is_contiguous()  # transposed in place since: what shares the memory would see it so
            or memory.given_up
        ):
            return self._met_first(tensor)
        if memory.taken != self._number:
            memory.taken = self._number
            lane = memory.lane
            lane.sources.append(tensor)
            lane.targets.append(memory.view)
        return memory.view

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
        address = storage.data_ptr()  # no two storages have the same at one time, but for those of no bytes
        memory = self._memories.get(address)
        if memory is None or memory.buffer.nbytes() != storage.nbytes():
            if memory is not None:
                memory.given_up = True
            memory = self._memories[address] = _Memory(_memory_for(storage))
        spot = (tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride())
        view = memory.views.get(spot)
        if view is None:
            if len(memory.views) > 100:  # of a storage that is looked at in another way each time
                memory.views.clear()
            view = torch.empty(0, dtype=tensor.dtype).set_(memory.buffer, *spot[1:])
            memory.views[spot] = view
        whole = tensor.is_contiguous() and tensor.nbytes == storage.nbytes()
        if memory.taken != self._number:
            memory.taken = self._number
            lane = self._lane(tensor.device)
            lane.sources.append(tensor if whole else _bytes_of(storage))
            lane.targets.append(view if whole else _bytes_of(memory.buffer))
        if whole and not tensor.is_complex():  # such may become its own conjugate
            self._know(tensor, memory, view)
        return view

    def _know(self, tensor: Tensor, memory: _Memory, view: Tensor) -> None:
        """Of the tensors that are all of one storage, one at a time is known."""
        if not _is_gone(memory):
            self._known.pop(id(memory.tensor()), None)  # type: ignore[misc]
        self._known[id(tensor)] = memory
        memory.tensor = weakref.ref(tensor)
        memory.address, memory.dtype, memory.view = tensor.data_ptr(), tensor.dtype, view
        memory.shape = self._shapes.setdefault(tensor.shape, tensor.shape)
        small = tensor.dim() > 0 and 0 < tensor.nbytes <= _SMALL
        memory.lane = self._lane(tensor.device, (tensor.dtype, tensor.shape[1:]) if small else ())

    def _lane(self, device: torch.device, row: tuple[Any, ...] = ()) -> _Lane:
        lane = self._lanes.get((device, *row))
        if lane is None:
            lane = self._lanes[(device, *row)] = _Row(device) if row else _Lane(device)
        return lane


def _is_gone(memory: _Memory) -> bool:
    """Whether no live tensor is known to be what it is of."""
    return memory.tensor is None or memory.tensor() is None


def _recorded(devices: set[torch.device]) -> list[Any]:
    """What has to be waited for."""
    events = []
    for device in devices:
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
