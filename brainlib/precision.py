"""Precision: the contexts in which forward and loss run, and the gradient scaler."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

import torch

__all__ = ["Autocast", "autocast_context", "make_scaler"]

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Autocast(AbstractContextManager[None]):
    """`torch.autocast` that may be entered again while it is entered.

    One object of torch's keeps one previous state, so entering it twice leaves autocast on for good. A Brain holds its
    context for the whole run, and an evaluation may run inside a training context.

    >>> context = Autocast("cpu", torch.bfloat16)
    >>> with context:
    ...     with context:
    ...         pass
    >>> torch.is_autocast_enabled("cpu")
    False
    """

    def __init__(self, device_type: str, dtype: torch.dtype) -> None:
        self.device_type, self.dtype = device_type, dtype
        self._entered: list[torch.autocast] = []

    def __enter__(self) -> None:
        context = torch.autocast(self.device_type, dtype=self.dtype)
        context.__enter__()  # type: ignore[no-untyped-call]
        self._entered.append(context)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.pop().__exit__(kind, error, trace)


def autocast_context(precision: str, device: torch.device) -> AbstractContextManager[None]:
    """The context for one of ``fp32`` (does nothing), ``bf16``, ``fp16``.

    Raises:
        ValueError: For fp16 on a CPU: gradients underflow there without a scaler, and CPUs have no fast fp16.

    Example:
        >>> with autocast_context("bf16", torch.device("cpu")):
        ...     torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype
        torch.bfloat16
    """
    if precision == "fp32":
        return nullcontext()
    if precision == "fp16" and device.type == "cpu":
        raise ValueError(
            "precision is 'fp16' and the device is 'cpu'; use precision: bf16 there, or an accelerator"
        )
    return Autocast(device.type, _DTYPES[precision])


def make_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """The gradient scaler: at work for fp16, a no-op otherwise."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")
