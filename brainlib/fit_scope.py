"""What belongs to one fit. A fit inside a hook gets one of its own, and the outer one's is put back after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from brainlib.data.share import Share
from brainlib.run_state import RunState
from brainlib.update.buffers import Buffers
from brainlib.update.watch import OptimizerWatch

if TYPE_CHECKING:
    from brainlib.checkpoint.checkpointer import Checkpoint
    from brainlib.checkpoint.held import Held
    from brainlib.data.sources import BatchSource

__all__ = ["FitScope", "nothing"]


def nothing() -> float:
    """The validation of a fit that has none.

    >>> nothing()
    0.0
    """
    return 0.0


def _do_nothing() -> None:
    pass


def _never() -> bool:
    return False


@dataclass
class FitScope:
    """The counters of a fit, and what its loop leaves for the methods it calls.

    >>> FitScope(RunState(), OptimizerWatch()).inner
    False
    """

    run: RunState
    watch: OptimizerWatch
    inner: bool = False  # a fit inside a hook: it saves nothing, logs nothing and is not limited
    epoch_counter: Any = None
    eval_step: int | None = None  # batches of the running evaluation; None while training
    closing: bool = False  # whether a checkpoint taken now stands for a closed epoch
    strict: bool = False  # whether a checkpoint that is loaded now has to fit in all its parts
    resumed: Checkpoint | None = None  # until the open epoch's on_stage_start has been run again
    fingerprint: dict[str, int] = field(default_factory=dict)  # of the data that the open epoch is trained on
    buffers: Buffers = field(
        default_factory=lambda: Buffers(torch.nn.Module())
    )  # as they were before the window
    batch: Any = None  # in hand
    gradients_before: Any = (
        None  # marks of the gradients when it was handed out, where fit_batch is the user's
    )
    losses: dict[str, float] = field(default_factory=dict)  # of the epoch that is about to close
    epoch_ledger: dict[str, Any] | None = None  # of that epoch, while it is logged
    updates_before: int = 0  # optimizer_step when the open window began
    told: int = 0  # nonfinite windows that a warning has named
    window_began: int = 0  # optimizer_step when it began, whoever stepped in it since
    put_off: bool = False  # whether a save is due that waits for the one before to be written
    validate_now: Callable[[], float] = nothing
    is_last: Callable[[], bool] = _never  # whether the batch in hand is the last of its epoch
    left: bool = False  # whether the run has left its last resume point
    held: Held | None = None  # that point, while code runs that may be interrupted and is run again
    sources: list[BatchSource] = field(default_factory=list)  # what it reads
    share: Share = field(default_factory=Share)  # what this rank gets of the open epoch
    keep_buffers: Callable[[], None] = _do_nothing  # a window begins
