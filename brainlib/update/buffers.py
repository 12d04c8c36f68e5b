"""Buffers as they were before a window, for when the window turns out bad.

BatchNorm's running statistics take a NaN in *forward*, before anybody can know; skipping the update is not enough, the
statistics have to be put back.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor

__all__ = ["Buffers"]

_SMALL = 1 << 16  # elements; running statistics are smaller than this, tables that never move may be larger


@dataclass
class _Alike:
    """Buffers of one device and dtype, and one flat copy of them."""

    live: list[Tensor]
    flat: Tensor
    views: list[Tensor]  # of `flat`, in the shapes of `live`


class Buffers:
    """Copies of the buffers that may move in a forward, taken when a window begins.

    A large buffer is copied only once it was seen to move, by torch's version counter of the tensor; small ones always,
    because the native BatchNorm writes its statistics without counting a version.

    >>> norm = torch.nn.BatchNorm1d(2)
    >>> buffers = Buffers(norm); buffers.keep()
    >>> _ = norm(torch.full((4, 2), float("nan")))
    >>> buffers.put_back(); norm.running_mean, norm.num_batches_tracked
    (tensor([0., 0.]), tensor(0))
    """

    __slots__ = ("_alike", "_held", "_num_lazy", "_places", "_versions")

    def __init__(self, modules: torch.nn.Module) -> None:
        self._places = [(module, name) for module in modules.modules() for name in module._buffers]
        self._held: list[Tensor | None] = []  # one a place
        self._num_lazy = 0  # those without a shape yet
        self._versions: dict[int, int] = {}  # of the large buffers that have not moved yet
        self._alike: list[_Alike] = []

    @property
    def there_are_some(self) -> bool:
        """Whether the modules have any."""
        return bool(self._places)

    @property
    def kept(self) -> bool:
        """Whether there is something to go back to."""
        return bool(self._held)

    def keep(self) -> None:
        """A window begins: this is what to go back to."""
        if self._places:
            self._look()
            for alike in self._alike:
                torch._foreach_copy_(alike.views, alike.live)

    def state_dict(self) -> dict[str, Tensor]:
        """What was kept, by the place of the buffer."""
        copies = {
            id(live): copy
            for alike in self._alike
            for live, copy in zip(alike.live, alike.views, strict=True)
        }
        return {
            str(place): copies[id(buffer)].clone()
            for place, buffer in enumerate(self._held)
            if buffer is not None and id(buffer) in copies
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Keep what `state_dict` returned in place of what is there now."""
        for alike in self._alike:
            for live, copy in zip(alike.live, alike.views, strict=True):
                place = next(str(number) for number, buffer in enumerate(self._held) if buffer is live)
                if place in state:
                    copy.copy_(state[place])

    @torch.no_grad()
    def put_back(self) -> None:
        """The window was bad: the buffers are again those of before, and hold what they held."""
        if not self.kept:  # no window has begun
            return
        for (module, name), buffer in zip(self._places, self._held, strict=True):
            module._buffers[name] = buffer
        for alike in self._alike:
            torch._foreach_copy_(alike.live, alike.views)

    def put_back_if(self, bad: Tensor) -> None:
        """The same where `bad` is 1, decided on the device: nothing is read."""
        if self._alike:
            self._choose(bad)

    @torch.no_grad()
    def _choose(self, bad: Tensor) -> None:
        for alike in self._alike:
            now = torch.cat([buffer.reshape(-1) for buffer in alike.live])
            chosen = torch.where(bad.bool(), alike.flat, now)
            torch._foreach_copy_(alike.live, _views(chosen, alike.live))

    def _look(self) -> None:
        """Find the buffers again: a module may have replaced one, and a large one may have begun to move."""
        before, held = self._versions, [module._buffers[name] for module, name in self._places]
        self._versions = {
            id(buffer): buffer._version
            for buffer in held
            if _is_there(buffer)
            and buffer.numel() > _SMALL
            and before.get(id(buffer), buffer._version) == buffer._version
        }
        same = len(held) == len(self._held) and all(a is b for a, b in zip(held, self._held, strict=True))
        num_lazy, self._num_lazy = self._num_lazy, sum(not _is_there(buffer) for buffer in held)
        if same and before.keys() == self._versions.keys() and num_lazy == self._num_lazy:
            return
        self._held = held
        live = defaultdict(list)
        for buffer in held:
            if _is_there(buffer) and id(buffer) not in self._versions:
                live[buffer.device, buffer.dtype].append(buffer)
        self._alike = []
        for buffers in live.values():
            flat = torch.empty_like(torch.cat([buffer.detach().reshape(-1) for buffer in buffers]))
            self._alike.append(_Alike(buffers, flat, _views(flat, buffers)))


def _is_there(buffer: Tensor | None) -> TypeGuard[Tensor]:
    return buffer is not None and not torch.nn.parameter.is_lazy(buffer)


def _views(flat: Tensor, shaped: list[Tensor]) -> list[Tensor]:
    parts = torch.split(flat, [each.numel() for each in shaped])
    return [part.view(each.shape) for part, each in zip(parts, shaped, strict=True)]
