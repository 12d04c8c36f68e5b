"""Which optimizers stepped: seen from the optimizers themselves, whoever calls ``step()``.

With the default ``fit_batch`` the Brain makes the update and knows. With an overridden one the user does, in any order
and any number; so the verdict on a window (did somebody step, was somebody refused) is read off hooks of the
optimizers. The same hooks refuse gradients that are not finite: the gradients are dropped before the step, after which
torch's optimizers change neither weights nor moments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from brainlib.update.gradients import Gradients

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.hooks import RemovableHandle

__all__ = ["OptimizerWatch"]


class OptimizerWatch:
    """Watches optimizers while it is attached.

    Attributes:
        stepped: whether some optimizer stepped with finite gradients since `clear`.
        refused: whether some step was refused since `clear`.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.ones(1)); optimizer = torch.optim.SGD([weight], 0.5)
        >>> watch = OptimizerWatch()
        >>> with watch.attached([optimizer]):
        ...     weight.grad = torch.tensor([float("nan")]); optimizer.step()
        >>> weight.item(), watch.stepped, watch.refused
        (1.0, False, True)
    """

    def __init__(self) -> None:
        self.stepped = False
        self.refused = False
        self.trusted = (
            False  # whether the steps that come were checked already: they are seen, not checked again
        )
        self._bad: set[int] = set()
        self._gradients: dict[int, Gradients] = {}

    def clear(self) -> None:
        """A new window begins."""
        self.stepped = self.refused = False

    @contextmanager
    def attached(self, optimizers: Iterable[Optimizer]) -> Iterator[OptimizerWatch]:
        """Hooks are on the optimizers inside, and gone afterwards."""
        handles: list[RemovableHandle] = []
        for optimizer in optimizers:
            self._gradients[id(optimizer)] = Gradients(optimizer)
            handles.append(optimizer.register_step_pre_hook(self._before))
            handles.append(optimizer.register_step_post_hook(self._after))
        try:
            yield self
        finally:
            for handle in handles:
                handle.remove()
            self._gradients.clear()

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._bad.discard(id(optimizer))
        if self.trusted:
            return
        gradients = self._gradients[id(optimizer)]
        if not math.isfinite(gradients.measure()):
            gradients.drop()
            self._bad.add(id(optimizer))
            self.refused = True

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if id(optimizer) not in self._bad:
            self.stepped = True
