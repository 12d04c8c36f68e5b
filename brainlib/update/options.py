"""The options of one optimizer update: how many batches it sums over, how far it may go, what stops it."""

from __future__ import annotations

import dataclasses
from typing import Literal

from brainlib.common.logs import logger
from brainlib.common.option_fields import OptionGroup, option

__all__ = ["UpdateOptions"]


@dataclasses.dataclass(frozen=True)
class UpdateOptions(OptionGroup):
    """What `brainlib.update` may be told.

    >>> UpdateOptions().max_grad_norm
    5.0
    """

    max_grad_norm: float | None = option(
        5.0,
        "Scale each optimizer's gradients down to this norm, over all its parameter groups; null: never.",
    )
    grad_accumulation_factor: int = option(1, "Sum this many batches into one optimizer update.", minimum=1)
    optimizer_step_limit: int | None = option(
        None, "Stop training after this many optimizer updates, over all epochs; null: no limit.", minimum=1
    )
    nonfinite_patience: int = option(
        3,
        "How many updates in a row may be skipped for a non-finite loss or gradient before training fails.",
        minimum=0,
    )
    skip_nonfinite_grads: bool = option(
        False, "Accepted for old files: an update with a non-finite loss or gradient is always skipped."
    )
    remove_vector_weight_decay: bool = option(
        False, "Put biases and other parameters of one dimension into a parameter group without weight decay."
    )
    fused: bool = option(
        False,
        "Use torch's fused form of the optimizers: one kernel a step; the last bits of an update change.",
        ours=True,
    )
    loss_average: Literal["items", "batches"] = option(
        "items",
        "What an average counts: items (a batch weighs its `loss_weight`) or batches (all weigh 1).",
        ours=True,
    )

    def settle(self, explicit: frozenset[str]) -> UpdateOptions:
        """Give `max_grad_norm` its meaning at and below 0; say when `skip_nonfinite_grads` changes nothing."""
        if "skip_nonfinite_grads" in explicit and not self.skip_nonfinite_grads:
            logger.warning(
                "skip_nonfinite_grads: false has no effect: an update with a non-finite loss or gradient "
                "is always skipped. Remove the option."
            )
        if self.max_grad_norm == 0:
            raise ValueError(
                "The option 'max_grad_norm' is 0, which would scale every gradient to zero. "
                "Use null to switch clipping off, or a norm above 0 (5.0 is usual)."
            )
        if self.max_grad_norm is not None and self.max_grad_norm < 0:
            logger.warning(
                "max_grad_norm: %g switches clipping off. Write null, which says so.", self.max_grad_norm
            )
            return dataclasses.replace(self, max_grad_norm=None)
        return self
