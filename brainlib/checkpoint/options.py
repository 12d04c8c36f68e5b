"""The options of saving inside an epoch."""

from __future__ import annotations

import dataclasses

from brainlib.common.option_fields import OptionGroup, option

__all__ = ["CheckpointOptions"]


@dataclasses.dataclass(frozen=True)
class CheckpointOptions(OptionGroup):
    """When a Brain that has a Checkpointer saves by itself between the ends of epochs; both may be on together.

    >>> CheckpointOptions().ckpt_interval_minutes
    15.0
    """

    ckpt_interval_minutes: float = option(
        15.0, "Save inside an epoch every so many minutes; 0: never.", minimum=0
    )
    ckpt_interval_steps: int = option(
        0, "Save inside an epoch every so many optimizer updates; 0: never.", minimum=0
    )
