"""The options of beginning, going on, and saving by itself."""

from __future__ import annotations

import dataclasses
from typing import Literal

from brainlib.common.option_fields import OptionGroup, option

__all__ = ["AUTO", "NEVER", "CheckpointOptions"]

AUTO, NEVER = "auto", "never"  # what `resume` may be besides a path


@dataclasses.dataclass(frozen=True)
class CheckpointOptions(OptionGroup):
    """Where a run begins; when it saves by itself besides the ends of epochs, and how many of those stay.

    >>> CheckpointOptions().ckpt_interval_minutes
    15.0
    """

    resume: str = option(
        AUTO,
        "Where a run goes on. auto: at the newest checkpoint of its folder, else it begins from scratch; never: it "
        "begins from scratch, and what is there is set aside; a path, of a checkpoint or a folder of them: "
        "there, with all that it holds, and, started again, at its own newest.",
        ours=True,
    )
    init_from: str | None = option(
        None,
        "The weights with which a run begins that has nothing to go on from: a checkpoint, a folder of them, also of "
        "SpeechBrain's, or a file with a state dict. Optimizers, schedules and counters start afresh.",
        ours=True,
    )
    ckpt_interval_minutes: float = option(
        15.0, "Save inside an epoch every so many minutes; 0: never.", minimum=0
    )
    ckpt_interval_steps: int = option(
        0, "Save inside an epoch every so many optimizer updates; 0: never.", minimum=0
    )
    ckpt_async: bool = option(
        True,
        "Write checkpoints in the background, from a copy of the state in memory. false: training waits for each, and "
        "that memory is not needed.",
        ours=True,
    )
    num_snapshots: int | None = option(
        None,
        "Keep the checkpoints of the last so many epochs, as the extension Snapshot does; -1: of all, 0: of none. "
        "null: only the newest stays, and what the script itself keeps.",
        ours=True,
        minimum=-1,
    )
    on_save_error: Literal["raise", "warn"] = option(
        "raise",
        "When an automatic save has failed in all of its tries. raise: the run ends, for it could be lost; warn: that "
        "is logged as an error, counted, and the run goes on. Saves of your own always raise.",
        ours=True,
    )

    def settle(self, explicit: frozenset[str]) -> CheckpointOptions:
        """Refuse what is neither a word nor a path."""
        if not self.resume.strip():
            raise ValueError(f"The option 'resume' is empty; it is {AUTO!r}, {NEVER!r} or a path.")
        return self
