"""The options of stopping: how long a run may take to end, and how long it may train."""

from __future__ import annotations

import dataclasses

from brainlib.common.option_fields import OptionGroup, Seconds, option

__all__ = ["StoppingOptions"]


@dataclasses.dataclass(frozen=True)
class StoppingOptions(OptionGroup):
    """When a run ends before its last epoch.

    >>> StoppingOptions().stop_grace_seconds
    10.0
    """

    stop_grace_seconds: float = option(
        10.0,
        "How many seconds after SIGTERM the batch in hand has to be over; a process for which it is not prints where "
        "it stands and ends itself. 0: no such limit.",
        ours=True,
        minimum=0,
    )
    max_time: Seconds | None = option(
        None,
        "How long the run may train, over all its restarts: seconds, hours:minutes:seconds, or "
        "days-hours:minutes:seconds. What counts is the time inside fit, from its first line on: its start, hooks, "
        "validations and saves, too; imports, the preparation of data and evaluate do not. Then the run is saved and "
        "fit returns. null: no limit.",
        ours=True,
        minimum=0,
    )
