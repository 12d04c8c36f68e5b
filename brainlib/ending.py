"""How a fit ends before its last epoch: its last resume point is put back where the run has left it, and saved.

A run is at a resume point only when a batch is over and when an epoch is closed. In between stands code that cannot be
undone bit by bit: the hooks at the start and the end of a stage, and the validation, whatever they change. Before it
begins the point is kept in memory (`keep_point`), so that a request to stop need not wait until it is over.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from brainlib.checkpoint.checkpointer import Checkpoint, Checkpointer
from brainlib.checkpoint.errors import CheckpointError
from brainlib.checkpoint.manifest import AUTOMATIC
from brainlib.common.counted import counted
from brainlib.common.durations import as_clock
from brainlib.common.logs import logger
from brainlib.distributed.group import from_main
from brainlib.stopping.endings import Enough, Interrupted, TimeIsUp
from brainlib.stopping.signals import of_this_thread

if TYPE_CHECKING:
    from brainlib.brain import Brain

__all__ = [
    "at_point",
    "end_early",
    "keep_point",
    "listen",
    "may_be_left",
    "put_back",
    "see_to",
    "take_back",
    "to_end",
]


def keep_point(brain: Brain) -> None:
    """The run leaves a resume point, for code that may be interrupted and is then run again. All ranks.

    It costs a copy of what a checkpoint holds, in memory. What cannot be copied is not interrupted: the run ends at the
    next resume point.
    """
    scope = brain._outer
    scope.left, scope.held = True, None
    checkpointer = brain.checkpointer
    if checkpointer is None:
        checkpointer = Checkpointer("never-written")
        checkpointer.attach(brain._state)
    try:
        scope.held = checkpointer.hold()
    except CheckpointError as error:
        brain._say_once("held", f"until the next resume point no signal will end this run early: {error}")


def listen(brain: Brain) -> None:
    """Signals are about to be heard. Those of one rank are the business of all, once they have agreed."""
    brain._signals = signals = of_this_thread()
    brain._ranks.listen(lambda: signals.number, signals.ask)


def may_be_left(brain: Brain) -> bool:
    """Whether this rank could end where it is: at a resume point, or where it can be put back to one, or in no fit."""
    return not brain._fitting or not brain._outer.left or brain._outer.held is not None


def at_point(brain: Brain) -> bool:
    """Whether the run is at a resume point, or can be put back to the one that it has left, and all ranks know."""
    return brain._ranks.agreed_to_stop() and (not brain._outer.left or brain._outer.held is not None)


def see_to(brain: Brain) -> None:
    """A boundary at which something is pending: a signal, or the end of what the run was started for. All ranks."""
    if brain._signals.pending:
        brain._signals.see_to()
    if not brain._scope.inner and may_be_left(brain):
        to_end(brain)


def to_end(brain: Brain) -> None:
    """End the fit where its run has trained for its `max_time`, or a profiler has seen enough."""
    limit = brain._options.max_time
    if limit is not None and brain._outer.run.elapsed() >= limit:
        raise TimeIsUp(f"max_time ({as_clock(limit)})")
    if brain._profiler is not None and brain._profiler.exits:
        raise Enough(brain._profiler.exits)


def put_back(brain: Brain) -> None:
    """Make the live run again what it was at its last resume point, if that is kept."""
    scope = brain._outer
    held, scope.held = scope.held, None
    if held is None:
        return
    loaded = brain._state.loaded
    try:
        held.put_back()
    finally:
        brain._state.loaded = loaded  # nothing has come from the disk
    scope.left = False
    brain._state.restore_generators()
    counter = scope.epoch_counter
    if brain._loaded_counter is not None and hasattr(counter, "load_state_dict"):
        counter.load_state_dict(brain._loaded_counter)


def take_back(brain: Brain) -> bool:
    """An error ended the fit, or a signal: what is not over is taken back, so that the same call made again repeats it.

    Returns whether that worked.
    """
    try:
        put_back(brain)
    except CheckpointError as error:
        logger.error("what was not over yet could not be undone: %s", error)
        return False
    return True


def end_early(brain: Brain, interrupted: Interrupted) -> None:
    """The fit ends here: put back, save, say so, let go of the data. All ranks."""
    enough = isinstance(interrupted, Enough)
    why, reason = (interrupted, "timed") if enough else (brain._signals.asked, "signal")
    saved, run = _commit(brain, reason) if take_back(brain) else None, brain._outer.run
    where = (
        f"in epoch {run.epoch + 1}, after batch {run.step}"
        if run.step
        else f"after {counted(run.epoch, 'epoch')}"
    )
    logger.info(
        "stopped by %s %s, update %d%s", why, where, run.optimizer_step,
        f"; the run goes on from {saved.path}" if saved is not None and not brain._is_trial else "",
    )  # fmt: skip
    for source in brain._outer.sources:  # only now: the loader of another process may keep us waiting
        source.abandon()
    traceback.clear_frames(
        interrupted.__traceback__
    )  # who keeps it (a notebook) does not keep what was being read


def _commit(brain: Brain, reason: str) -> Checkpoint | None:
    """The checkpoint of where the run stands, complete on the disk; written if it is not there. All ranks."""
    checkpointer = brain.checkpointer
    if checkpointer is None:
        return None
    try:
        checkpointer.wait()
    except (OSError, CheckpointError) as error:  # it was told when it came
        logger.debug("the save before the last has failed: %s", error)
    if brain._pending is not None or brain._outer.resumed is not None:
        # The run is on its way to where its checkpoint stands: not all that it held has been made and loaded yet.
        return checkpointer.loaded
    counters = brain._state.counters()

    def there() -> Checkpoint | None:
        newest = checkpointer.written or checkpointer.loaded
        stands_here = newest is not None and newest.counters == counters
        # Inside an epoch one of the user's own was made inside the batch, before what is due after it.
        at_the_end = newest is not None and (brain._outer.run.step == 0 or newest.reason in AUTOMATIC)
        return newest if stands_here and at_the_end else None

    newest = from_main(there)
    if newest is not None:
        return newest
    saved = checkpointer.save_automatically(
        end_of_epoch=False, reason=reason, on_error=brain._options.on_save_error
    )
    checkpointer.wait()
    return from_main(lambda: checkpointer.written if saved is not None else None)
