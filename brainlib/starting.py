"""How a fit starts, and where a resumed one goes on: its number, its open epochs, its place in the data.

`Brain.fit` calls them in this order: `numbered_fit` → `settle_in` → `open_epochs` → `replay_resumed` → `open_data`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from brainlib.announcements import (
    say_done,
    say_finished,
    say_from_where,
    say_how,
    say_that_it_goes_on,
    say_what,
    say_what_differs,
    warn_of_shadowed_options,
    warn_of_unread_keys,
)
from brainlib.attempt import logging_for
from brainlib.brain_state import warn_of_unsaved
from brainlib.checkpoint.errors import CheckpointError, UnfitCheckpointError
from brainlib.checkpoint.in_use import in_use
from brainlib.checkpoint.options import NEVER
from brainlib.common.logs import logger
from brainlib.data.share import Share
from brainlib.data.sources import BatchSource, Lookahead
from brainlib.data.transfer import on_device
from brainlib.distributed.group import from_main
from brainlib.ending import at_point, end_early, listen, put_back, see_to, take_back, to_end
from brainlib.experiment import in_experiment
from brainlib.experiment.folder import former_hyperparams
from brainlib.fit_scope import FitScope, nothing
from brainlib.hints import hinting
from brainlib.onlooker import present
from brainlib.profiling.ledger import Ledger
from brainlib.profiling.run_ledger import Starts
from brainlib.seeding import derive, draw_seed, seed_generators
from brainlib.stage import Stage
from brainlib.stopping.endings import Enough, Interrupted
from brainlib.triggers import Trigger, as_trigger
from brainlib.update.buffers import Buffers
from brainlib.update.window import Window

if TYPE_CHECKING:
    from brainlib.brain import Brain

__all__ = [
    "check_same_data",
    "numbered_fit",
    "open_data",
    "open_epochs",
    "replay_resumed",
    "settle_in",
    "take_origin",
]

_NO_EPOCH = object()


@contextmanager
def numbered_fit(brain: Brain, epoch_counter: Iterable[Any], sets: Mapping[str, Any]) -> Iterator[FitScope]:
    """The scope of this fit. An outer fit has a number, and keeps it until it is finished; one inside a hook has
    counters of its own and leaves those of the outer one alone.

    Args:
        brain: whose fit it is.
        epoch_counter: what fit was given.
        sets: the same, for who looks on.
    """
    # A hook of a validation may call fit, inside no_grad.
    with (
        in_experiment(brain._experiment),
        logging_for(brain._state),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        if brain._fitting:
            brain._settle_verdict()
            outside, brain._scope = (brain._scope, brain.should_step), brain._new_scope(inner=True)
            try:
                present().fit_starts(brain, epoch_counter, **sets)
                yield brain._scope
            finally:
                brain._scope, brain.should_step = outside
            return
        present().fit_starts(brain, epoch_counter, **sets)  # it may send the run into another folder
        with _alone(brain), _outer_fit(brain, epoch_counter) as scope:
            yield scope


@contextmanager
def _outer_fit(brain: Brain, epoch_counter: Iterable[Any]) -> Iterator[FitScope]:
    brain._fitting, brain._outer.epoch_counter = True, epoch_counter
    brain._outer.left, brain._outer.held = True, None  # until its place is taken
    try:
        brain._epochs.num_said = 0
        with hinting(brain.modules), _in_ledger(brain), _stoppable(brain), _profiling(brain):
            brain._outer.run.start_clock()
            yield brain._outer
        brain._fits_done += 1
        warn_of_unread_keys(brain.hparams.unread())
        brain.hparams.forget_unread()
    except Enough:
        return
    except BaseException as error:
        if not brain._ranks.agreed.asked:
            brain._ranks.fail(error)
        brain._extensions.on_error(brain, error)
        take_back(brain)
        raise
    finally:
        brain._outer.run.stop_clock()
        brain._fitting, brain._outer.epoch_counter = False, None
        brain._outer.validate_now = nothing
        brain._outer.sources.clear()
        brain._extensions.close(brain)


def _alone(brain: Brain) -> AbstractContextManager[None]:
    """Inside, no other process trains in the folder of the checkpoints."""
    if brain.checkpointer is None or not brain._world.is_main:
        return nullcontext()
    return in_use(brain.checkpointer.checkpoints_dir)


@contextmanager
def _in_ledger(brain: Brain) -> Iterator[None]:
    """Inside, the wall time of the fit is shared out; in the end what it has reached is told, then the time."""
    brain._ledger = fit = Ledger()
    run, checkpointer = brain._outer.run, brain.checkpointer
    finished = False
    brain._run_ledger.fit_begins(fit)
    if checkpointer is not None:
        checkpointer.timed = lambda: fit.on("checkpoint")
    try:
        yield
        finished = True
    finally:
        if checkpointer is not None:
            checkpointer.timed = nullcontext
        fit.close()
        brain._run_ledger.fit_ends(finished)
        if finished:
            say_done(brain)
        fit.tell(run.optimizer_step)
        brain._run_ledger.tell(run.optimizer_step)


def _starts_of(brain: Brain) -> Starts | None:
    """Where the starts of this run are noted, by the main rank."""
    if brain.checkpointer is None or not brain._world.is_main:
        return None
    return Starts(brain.checkpointer.checkpoints_dir, anew=brain._options.resume == NEVER)


@contextmanager
def _stoppable(brain: Brain) -> Iterator[None]:
    """Inside, a signal ends the fit at the next boundary; the run is then saved, and where it was."""
    listen(brain)
    with brain._signals.heard(brain._options.stop_grace_seconds, lambda: at_point(brain)) as outermost:
        try:
            brain._ranks.begin()
            yield
            brain._ranks.end()
            if outermost:
                brain._signals.is_over()
            brain._wait_for_checkpoints()
        except Interrupted as interrupted:
            end_early(brain, interrupted)
            raise


@contextmanager
def _profiling(brain: Brain) -> Iterator[None]:
    profiler = brain._profiler
    if profiler is None:
        yield
        return
    profiler.start()
    try:
        yield
    except BaseException as error:
        profiler.stop(error)
        raise
    profiler.stop()


def take_origin(brain: Brain) -> None:
    """Load what the run begins from. Where that is refused, name the file with the hyperparameters that it is of: this
    start has put its own in their place.
    """
    try:
        brain._state.origin.begin(brain.checkpointer, brain._state)
    except UnfitCheckpointError as error:
        folder, of = brain._experiment, error.checkpoint
        former = None if folder is None or of is None else former_hyperparams(folder, of.time)
        if of is None or former is None:
            raise
        raise CheckpointError(
            f"{error}\n{former} is what {of.path.name} was trained with; the hyperparams.yaml beside it is that of "
            "this start. To go on with that run, start with the former; for another run, give a new folder"
        ) from error


def check_same_data(brain: Brain, epoch_counter: Any) -> None:
    """All ranks must train for the same epochs, on the same sets, or they would wait for one another. All ranks.

    Raises:
        ValueError: they do not.
    """
    sized = hasattr(epoch_counter, "__len__")
    epochs = len(epoch_counter) if sized else getattr(epoch_counter, "limit", None)
    brain._ranks.check_same_data(
        {
            "epoch_counter": {"epochs": epochs},
            **{source.name: source.fingerprint() for source in brain._scope.sources},
        }
    )


def settle_in(brain: Brain) -> None:
    """After on_fit_start: look at what it made and loaded, and say how this fit starts."""
    brain._custom_fit_batch = brain._overridden("fit_batch")
    brain._find_optimizers()
    brain._weighted = brain._options.grad_accumulation_factor > 1 or brain._world.size > 1
    if brain._ready:
        return
    brain._ready = True
    loaded = brain.checkpointer.loaded if brain.checkpointer is not None and brain._state.loaded else None
    if brain._seed is None:
        brain._seed = from_main(draw_seed)
    if loaded is None and not brain._world.is_main:
        seed_generators(derive(brain._seed, "rank", brain._world.rank))  # each rank draws its own dropout
    say_what(brain)
    say_how(
        brain.modules,
        brain.device,
        brain._options,
        brain._seed,
        own_steps=brain._custom_fit_batch,
        num_processes=brain._world.size,
        has_optimizer=bool(brain._optimizers.found),
    )
    if not brain._custom_fit_batch and any(
        isinstance(o, torch.optim.LBFGS) for o in brain._optimizers.found.values()
    ):
        raise ValueError(
            "LBFGS computes the loss several times an update, which the default fit_batch does not: override "
            "fit_batch and call self.optimizer.step(closure) in it, or take another optimizer"
        )
    if not brain._optimizers.found and not brain._custom_fit_batch:
        logger.warning(
            "no parameter will be updated: there is no optimizer. Give opt_class, or make one in init_optimizers."
        )
    say_from_where(brain._scope.run, loaded, brain.checkpointer, brain._state.origin)
    brain._save_triggers = _make_save_triggers(brain)
    if brain.checkpointer is not None and brain._world.is_main:
        warn_of_unsaved(brain, brain.checkpointer)
    if loaded is not None and brain.checkpointer is not None:
        say_what_differs(loaded, brain.checkpointer.environment())
        brain._state.restore_generators()
        brain._pending = loaded
    warn_of_shadowed_options(brain.__dict__, brain._own_names, brain._options)


def _make_save_triggers(brain: Brain) -> list[Trigger]:
    if brain.checkpointer is None:
        return []
    minutes, updates = brain._options.ckpt_interval_minutes, brain._options.ckpt_interval_steps
    return [
        *([as_trigger((minutes * 60, "seconds"))] if minutes else []),
        *([as_trigger((updates, "step"))] if updates else []),
    ]


def open_epochs(
    brain: Brain, epoch_counter: Iterable[Any], scope: FitScope, train: BatchSource
) -> Iterator[Any]:
    """The epochs that are not closed yet; says so when there is none."""
    run = scope.run
    if not scope.inner:
        to_end(brain)
    if not _take_place(brain, epoch_counter, scope, train):
        return
    if hasattr(epoch_counter, "seek"):
        epoch_counter.seek(run.epoch_start + run.epoch)
        epochs = iter(epoch_counter)
    else:
        epochs = islice(epoch_counter, run.epoch, None)
    if brain._options.debug:
        epochs = islice(epochs, max(brain._options.debug_epochs - run.epoch, 0))
    started = run.step > 0  # an open epoch still has its end and its validation, also at the limit
    any_open = False
    while started or not brain._limit_reached(run):
        scope.left = False
        see_to(brain)
        epoch = next(epochs, _NO_EPOCH)
        if epoch is _NO_EPOCH:
            break
        started, any_open = False, True
        if not scope.inner:
            if brain._ledger.running(run.optimizer_step):
                if brain.checkpointer is not None:
                    from_main(brain.checkpointer.make_ready)
                brain._run_ledger.running(_starts_of(brain))
            brain._epochs.open()
        yield epoch
    if not any_open:
        say_finished(epoch_counter, run, brain._limit_reached(run))


def _take_place(brain: Brain, epoch_counter: Any, scope: FitScope, train: BatchSource) -> bool:
    """Begin this fit, or go on with it; False if it was finished before the checkpoint was made."""
    run, number = scope.run, brain._fits_done
    if not scope.inner:
        brain._state.begin_attempt()
    if not scope.inner and run.fit > number:
        logger.info(
            "fit %d of this script was finished before the checkpoint was made: nothing to do", number
        )
        if hasattr(epoch_counter, "seek"):
            epoch_counter.seek(max(epoch_counter.current, epoch_counter.limit))
        brain._extensions.start(brain)  # what they hold may be asked for between the fits
        return False
    if scope.inner:
        run.begin_fit(number, epoch_start=getattr(epoch_counter, "current", 0))
        return True
    if brain._pending is None:
        say_that_it_goes_on(run, number)
    if run.fit < number:
        run.begin_fit(number, epoch_start=getattr(epoch_counter, "current", 0))
        brain._epochs.begin_fit()
        brain._pending = None
    else:
        _resume_here(brain, number, epoch_counter)
    _check_fingerprint(brain, train)
    brain._extensions.start(brain)
    for trigger in brain._save_triggers:
        trigger.start(brain)
    return True


def _resume_here(brain: Brain, number: int, epoch_counter: Any) -> None:
    """The fit that the checkpoint stands in begins. What the script did since it was loaded (in
    on_fit_start, between its fits) it had done before the cut, too: the saved state is applied once more, over it.
    """
    loaded, brain._pending = brain._pending, None
    if loaded is None:
        return
    assert brain.checkpointer is not None
    in_mid_epoch = brain._scope.run.step > 0
    if number > 0 or brain._overridden("on_fit_start"):
        brain._scope.strict = not in_mid_epoch
        brain.checkpointer.load_checkpoint(loaded)
        brain._find_optimizers()
    brain._state.restore_generators()
    brain._scope.resumed = loaded if in_mid_epoch else None
    if brain._loaded_counter is not None and hasattr(epoch_counter, "load_state_dict"):
        epoch_counter.load_state_dict(brain._loaded_counter)


def _check_fingerprint(brain: Brain, train: BatchSource) -> None:
    """Inside an epoch, a position means the same only in the same data."""
    run, before, now = brain._scope.run, brain._scope.fingerprint, train.fingerprint()
    if run.step and before != now:
        raise ValueError(
            f"the training data changed in the middle of epoch {run.epoch + 1} of fit {run.fit} (batch {run.step} "
            f"was the last): it had {before}, now it has {now}. Go on with the same data and batch size; or, to "
            "train on other data, make a new Brain with a checkpoint folder of its own."
        )
    brain._scope.fingerprint = now


def replay_resumed(brain: Brain) -> None:
    """The open epoch's on_stage_start has been run again, as at the cut epoch's start: what it did to the state is
    undone by applying the state of before once more, also to what it created. It is that of a checkpoint, or what was
    live in this process.
    """
    scope = brain._scope
    if scope.resumed is not None:
        assert brain.checkpointer is not None
        scope.strict = True
        brain.checkpointer.load_checkpoint(scope.resumed)
        scope.resumed = None
        brain._state.restore_generators()
        scope.left, scope.held = False, None
    elif scope.run.step > 0 and not scope.inner:
        put_back(brain)
    if not scope.inner:
        brain._state.reopens = False
    brain._find_optimizers()


def _sharing(brain: Brain, buffers: Buffers) -> Callable[[], None]:
    """A window begins: running statistics become those of the main rank, and are kept. All ranks."""

    def share_and_keep() -> None:
        brain._ranks.share_buffers(brain.modules)
        buffers.keep()

    return share_and_keep


def open_data(brain: Brain, train: BatchSource) -> tuple[Iterator[Any], Window, int | None]:
    """The batches from where the run stands, the window over them, and how many there are in the epoch."""
    scope, run, profiler = brain._scope, brain._scope.run, brain._profiler
    limit = brain._batch_limit(Stage.TRAIN)
    share = scope.share = Share(brain._world.rank, brain._world.size, began=run.step)
    batches = train.read(brain._run_seed(), run.epoch_start + run.epoch, run.cursor, share)
    total = train.num_batches
    if total is not None:
        total = run.step + share.rounds(total, run.cursor)
    brain._ranks.wrap(brain.modules, brain._compute, one_by_one=brain._custom_fit_batch)
    if brain._limit_reached(run):
        batches = iter(())
    elif limit is not None:
        batches = islice(batches, max(limit - run.step, 0))
        total = min(limit, total if total is not None else limit)
    if profiler is not None:
        batches = profiler.waits(brain, batches, "data wait")
    factor = brain._options.grad_accumulation_factor
    if run.micro == 0 or not brain._scope.buffers.kept:
        brain._scope.buffers = Buffers(brain.modules)
        if run.micro:  # resumed inside a window
            brain._scope.buffers.keep()
            brain._scope.buffers.load_state_dict(brain._state.window_buffers)
    shared = brain._world.size > 1 and scope.buffers.there_are_some
    scope.keep_buffers = _sharing(brain, scope.buffers) if shared else scope.buffers.keep
    brain._scope.updates_before = run.optimizer_step
    brain._scope.watch.clear()
    if train.num_batches is not None:
        brain._scope.is_last = lambda: run.step == total or brain._limit_reached(run)
        return _moved(brain, batches), Window(factor, last=total), total
    ahead = Lookahead(batches)
    brain._scope.is_last = lambda: run.step == limit or brain._limit_reached(run) or ahead.is_last()
    return _moved(brain, ahead), Window(factor, last=limit, is_last=ahead.is_last), total


def _moved(brain: Brain, batches: Iterator[Any]) -> Iterator[Any]:
    moved = on_device(batches, brain.device)
    if brain._profiler is None or brain.device.type == "cpu":
        return moved
    return brain._profiler.waits(brain, moved, "copy")
