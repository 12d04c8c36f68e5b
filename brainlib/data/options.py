"""The options of what an epoch reads."""

from __future__ import annotations

import dataclasses

from brainlib.common.option_fields import OptionGroup, option

__all__ = ["DataOptions"]


@dataclasses.dataclass(frozen=True)
class DataOptions(OptionGroup):
    """How much of the data a stage uses.

    >>> DataOptions().limit_train_batches is None
    True
    """

    limit_train_batches: int | None = option(
        None, "Train on at most this many batches an epoch; null: all.", ours=True, minimum=1
    )
    limit_valid_batches: int | None = option(
        None, "Validate on at most this many batches; null: all.", ours=True, minimum=1
    )
