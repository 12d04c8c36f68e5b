"""Which optimizers stepped: seen from the optimizers themselves, whoever calls ``step()``.

With the default ``fit_batch`` the Brain makes the update and knows. With an overridden one the user does, in any order
and any number; so the verdict on a window (did somebody step, was somebody refused) is read off hooks of the
optimizers. The same hooks refuse gradients that are not finite: the gradients are dropped before the step, after which
torch's optimizers change neither weights nor moments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from brainlib.update.gradients import Gradients
from brainlib.update.guard import takes_verdict

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

    def __init__(self, on_device: bool = False) -> None:
        self.on_device = on_device  # judge on the device where an optimizer can take the verdict there
        self.stepped = False
        self.refused = False
        self.flags: list[Tensor] = []  # of the steps judged on the device: 1 where one was refused
        self.trusted = False  # the steps that come were judged already: they are seen, not judged again
        self._bad: set[int] = set()
        self._found_inf: dict[int, Tensor | None] = {}  # what a scaler had put there
        self._gradients: dict[int, Gradients] = {}

    def clear(self) -> None:
        """A new window begins."""
        self.stepped = self.refused = False
        self.flags.clear()

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

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        self._bad.discard(id(optimizer))
        if self.trusted:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is not None:  # the gradients of this step are yet to come
            return (args[0], self._judging(optimizer, closure)), {
                k: v for k, v in kwargs.items() if k != "closure"
            }
        gradients = self._gradients[id(optimizer)]
        if self.on_device and takes_verdict(optimizer):
            self._hand_over(optimizer, (~torch.isfinite(gradients.measure_on_device())).float())
        elif not math.isfinite(gradients.measure()):
            gradients.drop()
            self._bad.add(id(optimizer))
            self.refused = True
        return None

    def _judging(self, optimizer: Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The user's closure, after which its gradients are judged."""

        def judged() -> Any:
            loss = closure()
            gradients = self._gradients[id(optimizer)]
            if not math.isfinite(gradients.measure()):
                gradients.drop()
                self._bad.add(id(optimizer))
                self.refused = True
            return loss

        return judged

    def _hand_over(self, optimizer: Any, bad: Tensor) -> None:
        """Let the device refuse the step; a scaler may have put its own verdict there already."""
        theirs = self._found_inf[id(optimizer)] = getattr(optimizer, "found_inf", None)
        optimizer.found_inf = bad if theirs is None else torch.maximum(bad, theirs.to(bad))
        self.flags.append(optimizer.found_inf)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if id(optimizer) in self._found_inf:
            theirs = self._found_inf.pop(id(optimizer))
            if theirs is None:
                del optimizer.found_inf
            else:
                optimizer.found_inf = theirs
        if id(optimizer) not in self._bad:
            self.stepped = True
