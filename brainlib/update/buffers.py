"""Buffers as they were before a window, for when the window turns out bad.

BatchNorm's running statistics take a NaN in *forward*, before anybody can know; skipping the update is not enough, the
statistics have to be put back.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

__all__ = ["Buffers"]

_SMALL = 1 << 16  # elements; running statistics are smaller than this, tables that never move may be larger


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

    __slots__ = ("_copies", "_held", "_live", "_places", "_versions")

    def __init__(self, modules: torch.nn.Module) -> None:
        self._places = [(module, name) for module in modules.modules() for name in module._buffers]
        self._held: list[Tensor | None] = []  # one a place
        self._versions: dict[int, int] = {}  # of the large buffers that have not moved yet
        self._live: dict[torch.dtype, list[Tensor]] = {}
        self._copies: dict[torch.dtype, list[Tensor]] = {}
        self._look()

    def _look(self) -> None:
        """Find the buffers again: a module may have replaced one, and a large one may have begun to move."""
        before = self._versions
        self._versions = {}
        self._held = [module._buffers[name] for module, name in self._places]
        live = defaultdict(list)
        for buffer in self._held:
            if buffer is None:
                continue
            if buffer.numel() > _SMALL and before.get(id(buffer), buffer._version) == buffer._version:
                self._versions[id(buffer)] = buffer._version
            else:
                live[buffer.dtype].append(buffer)
        if {key: [id(b) for b in value] for key, value in live.items()} != {
            key: [id(b) for b in value] for key, value in self._live.items()
        }:
            self._live = dict(live)
            self._copies = {dtype: [torch.empty_like(b) for b in buffers] for dtype, buffers in live.items()}

    @torch.no_grad()
    def keep(self) -> None:
        """A window begins: this is what to go back to."""
        if not self._places:
            return
        self._look()
        for dtype, buffers in self._live.items():
            torch._foreach_copy_(self._copies[dtype], buffers)

    @torch.no_grad()
    def put_back(self) -> None:
        """The window was bad: the buffers are again those of before, and hold what they held."""
        for (module, name), buffer in zip(self._places, self._held, strict=True):
            module._buffers[name] = buffer
        for dtype, buffers in self._live.items():
            torch._foreach_copy_(buffers, self._copies[dtype])
