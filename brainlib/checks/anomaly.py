"""The first NaN or infinity ends the fit, and is told with the module that made it and the samples it was made of."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from brainlib.checks.inspector import dense, tensors_in
from brainlib.common.counted import counted
from brainlib.update.loss_weight import ids_of

if TYPE_CHECKING:
    from brainlib.brain import Brain

__all__ = ["AnomalyFound", "AnomalyGuard"]


class AnomalyFound(ArithmeticError):
    """A module gave a value that is not finite, or its backward did.

    >>> str(AnomalyFound("model.0 (Linear) gave NaN"))
    'model.0 (Linear) gave NaN'
    """


class AnomalyGuard:
    """Looks at all that modules give in training, forward and backward; slow, since each look waits for the device.

    >>> AnomalyGuard().exits
    ''
    """

    exits = ""

    def __init__(self) -> None:
        self._stack: ExitStack | None = None
        self._names: dict[int, str] = {}
        self._last_good = ""  # the module whose output's gradient was finite last
        self._thread = threading.get_ident()
        self._brain: Brain | None = None

    def start(self) -> None:
        """A fit begins."""

    def begin(self, brain: Brain) -> None:
        """The first batch is about to be asked for."""
        self._brain, self._stack = brain, ExitStack()
        self._names = {
            id(m): f"{name} ({type(m).__name__})" for name, m in brain.modules.named_modules() if name
        }
        hook = torch.nn.modules.module.register_module_forward_hook(self._forward)
        self._stack.callback(hook.remove)
        for name, parameter in brain.modules.named_parameters():
            if parameter.requires_grad and not is_lazy(parameter):
                look = functools.partial(self._gradient, name)
                handle = parameter.register_post_accumulate_grad_hook(look)  # type: ignore[no-untyped-call]
                self._stack.callback(handle.remove)
        for optimizer in brain._optimizers.found.values():
            self._stack.callback(optimizer.register_step_pre_hook(self._before_update).remove)

    def waits(self, batches: Iterator[Any], phase: str) -> Iterator[Any]:
        """The batches; after each, whether its update was skipped for something that no hook has seen."""
        assert self._brain is not None
        for batch in batches:
            self._last_good, run = "", self._brain._scope.run
            before = run.nonfinite_windows
            yield batch
            if run.nonfinite_windows != before:
                raise AnomalyFound(
                    "the loss was not finite, or the norm of all gradients, or one of what is not in the modules"
                    f"{self._samples(None)}"
                )

    def step(self) -> None:
        """One more update was made."""

    def stop(self, error: BaseException | None = None) -> None:
        """The fit is over."""
        if self._stack is not None:
            self._stack.close()
        self._stack = None

    def _forward(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        name = self._names.get(id(module))
        if name is None or threading.get_ident() != self._thread or self._is_evaluating():
            return
        good_inputs = all(_is_finite(tensor) for _, tensor in tensors_in(inputs))
        for _, tensor in tensors_in(outputs):
            if not _is_finite(tensor):
                whose = "" if good_inputs else ", and what went into it was not finite either"
                raise AnomalyFound(f"{name} gave {_told(tensor)}{whose}{self._samples(tensor)}")
            if tensor.requires_grad:
                look = functools.partial(self._backward, name)
                tensor.register_hook(look)  # type: ignore[no-untyped-call]

    def _is_evaluating(self) -> bool:
        return self._brain is not None and self._brain._scope.eval_step is not None

    def _backward(self, name: str, gradient: Tensor) -> None:
        if _is_finite(gradient):
            self._last_good = name
            return
        by = f"the backward of {self._last_good}" if self._last_good else "the backward of the loss"
        raise AnomalyFound(
            f"{by} gave {_told(gradient)} as the gradient of what {name} gave{self._samples(gradient)}"
        )

    def _gradient(self, name: str, parameter: Tensor) -> None:
        if parameter.grad is not None and not _is_finite(parameter.grad):
            raise AnomalyFound(f"the gradient of {name} holds {_told(parameter.grad)}{self._samples(None)}")

    def _before_update(self, optimizer: Any, *_: Any) -> None:
        assert self._brain is not None
        names = {id(p): name for name, p in self._brain.modules.named_parameters()}
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            self._gradient(names.get(id(parameter), "a parameter"), parameter)

    def _samples(self, tensor: Tensor | None) -> str:
        """Which rows of the batch it stands in, and what they are called."""
        assert self._brain is not None
        scope = self._brain._scope
        batch = scope.batch
        step = f" (batch {scope.run.step} of the epoch{ids_of(batch)})"
        if tensor is None or tensor.dim() < 2 or tensor.is_nested:
            return step
        rows = (~torch.isfinite(dense(tensor))).flatten(1).any(1).nonzero().flatten().tolist()
        listed = batch.get("id") if isinstance(batch, dict) else getattr(batch, "id", None)
        if isinstance(listed, Tensor):
            listed = listed.tolist()
        named = (
            [f"{row} ({listed[row]!r})" for row in rows]
            if isinstance(listed, (list, tuple)) and len(listed) == len(tensor)
            else [str(row) for row in rows]
        )
        more = f" and {len(named) - 8} more" if len(named) > 8 else ""
        return f", in sample {', '.join(named[:8])}{more} of its {len(tensor)}{step}"


def _is_finite(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex()) or bool(
        torch.isfinite(_stored(tensor)).all()
    )


def _stored(tensor: Tensor) -> Tensor:
    """Its values; those of a sparse one without the zeros, which may be as many as an embedding has words."""
    return tensor.detach().coalesce().values() if tensor.layout is torch.sparse_coo else dense(tensor)


def _told(tensor: Tensor) -> str:
    values = _stored(tensor)
    nan, inf = int(torch.isnan(values).sum()), int(torch.isinf(values).sum())
    words = [f"{number} {what}" for number, what in ((nan, "NaN"), (inf, "infinite")) if number]
    return f"{' and '.join(words)} of {counted(values.numel(), 'value')}"
