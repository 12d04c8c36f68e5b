"""The optimizers of a Brain, wherever they are found on it, and the gradients of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer

from brainlib.update.gradients import Gradients

__all__ = ["Optimizers"]


class Optimizers:
    """Every optimizer that is an attribute of a Brain or stands in its ``optimizers_dict``.

    Looked up when a fit starts and when an epoch starts, since hooks may make or replace optimizers.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    >>> optimizers = Optimizers()
    >>> optimizers.find([("optimizer_g", optimizer), ("lr", 0.1), ("g", optimizer)])
    >>> list(optimizers.found)
    ['optimizer_g']
    """

    def __init__(self) -> None:
        self.found: dict[str, Optimizer] = {}
        self._gradients: dict[int, Gradients] = {}

    def find(self, candidates: Iterable[tuple[str, Any]]) -> None:
        """Look again, among names and objects; of one object the first name counts."""
        self.found = {}
        for name, value in candidates:
            if isinstance(value, Optimizer) and all(value is not each for each in self.found.values()):
                self.found[name if name not in self.found else f"{name}-{len(self.found)}"] = value
        known = self._gradients  # each holds its optimizer, so an id in it is that optimizer's
        self._gradients = {id(each): known.get(id(each)) or Gradients(each) for each in self.found.values()}
        for gradients in self._gradients.values():
            gradients.takes_verdict = False  # what was loaded meanwhile may have changed it

    def gradients_of(self, optimizers: Iterable[Optimizer]) -> list[Gradients]:
        """The gradients of these optimizers."""
        known = self._gradients
        for each in optimizers:
            if id(each) not in known:
                known[id(each)] = Gradients(each)  # it holds the optimizer, so the id stays its own
        return [known[id(each)] for each in optimizers]

    def mark(self) -> list[tuple[int, int]]:
        """Tells whether a backward has run since: compare two marks."""
        return [
            (id(param.grad), -1 if param.grad is None else param.grad._version)
            for gradients in self._gradients.values()
            for param in gradients.params
        ]

    def drop_gradients(self) -> None:
        """The gradients of all of them, also of those that are frozen, so that they do not pile up."""
        for gradients in self._gradients.values():
            gradients.drop()
