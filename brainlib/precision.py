"""Precision: in which types forward and loss run, and how gradients are scaled for it.

`Precision` itself is fp32 and does nothing; a variant states only its difference.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

import torch

__all__ = ["Autocast", "Precision", "precision_of"]


class Precision:
    """Everything in the types the modules have (fp32 as a rule).

    >>> with Precision(torch.device("cpu")).context():
    ...     torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype
    torch.float32
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def context(self) -> AbstractContextManager[None]:
        """What forward and loss are computed in; made once, entered at every batch."""
        return nullcontext()

    def scaler(self) -> torch.amp.GradScaler:
        """What scales the loss before backward; this one is switched off and does nothing."""
        return torch.amp.GradScaler(self.device.type, enabled=False)


class BFloat16(Precision):
    """Matrix products and convolutions in bfloat16; its range is that of fp32, so nothing is scaled."""

    def context(self) -> AbstractContextManager[None]:
        return Autocast(self.device.type, torch.bfloat16)


class Float16(Precision):
    """Matrix products and convolutions in float16, with losses scaled so that small gradients do not vanish.

    Raises:
        ValueError: on a CPU, which has no fast fp16.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type == "cpu":
            raise ValueError(
                "precision is 'fp16' and the device is 'cpu'; use precision: bf16 there, or an accelerator"
            )
        super().__init__(device)

    def context(self) -> AbstractContextManager[None]:
        return Autocast(self.device.type, torch.float16)

    def scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler(self.device.type)


def precision_of(name: str, device: torch.device) -> Precision:
    """The precision that an option names: ``fp32``, ``bf16`` or ``fp16``.

    >>> with precision_of("bf16", torch.device("cpu")).context():
    ...     torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype
    torch.bfloat16
    """
    kinds = {"fp32": Precision, "bf16": BFloat16, "fp16": Float16}
    return kinds[name](device)


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
