"""Brain: the class you subclass. `Brain.fit` and `Brain.evaluate` read from top to bottom.

Who keeps what: `RunState` counts, `Window` decides when an update closes, `BatchSource` knows the order of the data,
`BrainState` lists what a checkpoint holds of the Brain. Nothing here counts, orders or saves on its own.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from brainlib.announcements import parameter_line, say_epoch
from brainlib.arguments import check_arguments, check_fit_arguments, check_loader_options, seed_of
from brainlib.attempt import logging_for
from brainlib.borrowing import load_for_evaluation, preserved_buffers, preserved_weights
from brainlib.brain_state import MID_EPOCH_VALIDATION, NUM_SNAPSHOTS, BrainState
from brainlib.checks.overfit import FirstBatches
from brainlib.common.asked import asked
from brainlib.common.counted import counted
from brainlib.common.errors import quoted
from brainlib.common.logs import logger
from brainlib.compiling import compile_in_place, set_matmul_precision, to_channels_last
from brainlib.data.loader import make_dataloader
from brainlib.data.share import Share, in_order
from brainlib.data.sources import BatchSource, check_set, is_ready, only_one_is_batched, source_of
from brainlib.data.transfer import on_device
from brainlib.distributed.ddp import COMPARED_AT, Ranks
from brainlib.distributed.group import from_main, gather, join
from brainlib.distributed.world import World
from brainlib.ending import keep_point, listen, may_be_left, see_to
from brainlib.epoch_lines import EpochLines
from brainlib.experiment import current_experiment, in_experiment
from brainlib.extension import Extension, Extensions, make_extension
from brainlib.fit_scope import FitScope
from brainlib.found import attributes_of, found_in
from brainlib.hanging import instruments
from brainlib.hints import hinting
from brainlib.hparams import HParams
from brainlib.onlooker import present
from brainlib.options import RunOptions
from brainlib.precision import precision_of
from brainlib.profiling.benchmark import loader_options_for
from brainlib.profiling.ledger import Ledger
from brainlib.profiling.run_ledger import RunLedger
from brainlib.progress import Progress
from brainlib.run_state import RunningMean, RunState
from brainlib.seeding import derive, preserved_generators
from brainlib.snapshot import Snapshot
from brainlib.stage import Stage
from brainlib.starting import (
    check_same_data,
    numbered_fit,
    open_data,
    open_epochs,
    replay_resumed,
    settle_in,
    take_origin,
)
from brainlib.stopping.endings import Interrupted
from brainlib.stopping.signals import Signals
from brainlib.triggers import Trigger
from brainlib.update.fused import make_fused
from brainlib.update.gradients import Gradients
from brainlib.update.guard import DeviceGuard, HostGuard
from brainlib.update.loss_check import check_loss
from brainlib.update.loss_weight import ids_of, num_items
from brainlib.update.optimizers import Optimizers
from brainlib.update.parameter_groups import without_vector_decay
from brainlib.update.watch import OptimizerWatch

if TYPE_CHECKING:
    from brainlib.checkpoint.checkpointer import Checkpoint, Checkpointer

__all__ = ["Brain"]

_ALL_ALIKE: AbstractContextManager[None] = nullcontext()
_MAY_BE_OVERRIDDEN = {"_compile", "_wrap_distributed", "_make_guard"}


def _assigned_in(method: Any) -> set[str]:
    """The private attributes that a method names."""
    return {name for name in method.__code__.co_names if name.startswith("_") and not name.startswith("__")}


def names_for_itself() -> set[str]:
    """The private names that a subclass of Brain cannot have.

    >>> "_fit_train" in names_for_itself(), "_compile" in names_for_itself()
    (True, False)
    """
    ours = {name for name in vars(Brain) if name.startswith("_")} | _assigned_in(Brain.__init__)
    return {name for name in ours - _MAY_BE_OVERRIDDEN if not name.endswith("__")}


class Brain:
    """A training run. Subclass it, write `compute_forward` and `compute_objectives`, call `fit`.

    Args:
        modules: names with modules: what is trained. Becomes the ModuleDict `self.modules` on the device; nothing
            in it is ever replaced.
        opt_class: takes parameters (or parameter groups), returns an optimizer, such as
            ``lambda p: torch.optim.Adam(p, 1e-3)``. None for a Brain that makes its optimizers itself
            (`init_optimizers`) or trains without any.
        hparams: the experiment, usually from `load_hyperpyyaml`; reachable as ``self.hparams.key``. Options of
            SpeechBrain's names are read from its top level, all options from its section ``run_opts``; ``seed`` is
            the seed of the run.
        run_opts: options set by hand or on the command line; they win over hparams. ``docs/options.md`` lists all.
        checkpointer: makes the run one that cannot be lost. It saves at each epoch's end and every 15 minutes, and
            goes on where the newest checkpoint stands when the script is started again.
        loggers: are told the losses of each closed epoch.
        profiler: a `Profiler`, its options, or any object with ``start``, ``step`` and ``stop``, such as
            `torch.profiler.profile`. Started with each fit; one ``step`` an update.
        extensions: what else happens periodically.

    Raises:
        ValueError: for an option that does not exist or does not fit, a device that is not there, a module that is
            none.

    Example:
        >>> class SimpleBrain(Brain):
        ...     def compute_forward(self, batch, stage):
        ...         return self.modules.model(batch["input"])
        ...
        ...     def compute_objectives(self, predictions, batch, stage):
        ...         return torch.nn.functional.l1_loss(predictions, batch["target"])
        >>> model = torch.nn.Linear(10, 10)
        >>> brain = SimpleBrain(
        ...     {"model": model}, opt_class=lambda p: torch.optim.SGD(p, 0.1), run_opts={"noprogressbar": True}
        ... )
        >>> brain.fit(range(10), [{"input": torch.rand(10, 10), "target": torch.rand(10, 10)}])
        >>> brain.optimizer_step
        10
    """

    def __init__(
        self,
        modules: Mapping[str, torch.nn.Module] | None = None,
        opt_class: Callable[..., Optimizer] | None = None,
        hparams: Mapping[str, Any] | None = None,
        run_opts: Mapping[str, Any] | RunOptions | None = None,
        checkpointer: Checkpointer | None = None,
        *,
        loggers: Iterable[Any] = (),
        profiler: Any = None,
        extensions: Iterable[Extension] = (),
    ) -> None:
        users_own = set(self.__dict__)  # attributes that a subclass made before it called this
        check_arguments(modules, opt_class, hparams, checkpointer, loggers, extensions)
        hparams = dict(hparams or {})
        # Who takes part, and how
        self._world = World.from_environment()
        self._options = RunOptions.resolve(run_opts, hparams)
        self.device = self._options.find_device(self._world.local_rank)
        join(self._world, self.device, self._options.distributed_options)
        self._ranks = Ranks(self._world, self._options.distributed_options, self.device)
        precision = precision_of(self._options.precision, self.device)
        self.training_ctx, self.scaler = precision.context(), precision.scaler()
        self.evaluation_ctx = precision_of(self._options.eval_precision, self.device).context()
        set_matmul_precision(self._options.tf32)
        # What is trained
        self.modules = torch.nn.ModuleDict(dict(modules or {})).to(self.device)
        if self._options.channels_last:
            to_channels_last(self.modules)
        self.opt_class = opt_class
        self.optimizer: Optimizer | None = None
        self.optimizers_dict: dict[str, Optimizer] = {}
        self.hparams = HParams(hparams, watch=[key for key, _ in RunOptions.resembling(map(str, hparams))])
        # Where the run stands, and what it must not lose
        self._guard = self._make_guard()
        self._outer = self._new_scope()
        self._scope = self._outer  # of the innermost fit: a hook may call fit
        self._ledger = Ledger()  # of the fit that runs, or of the last one
        self._run_ledger = RunLedger()  # of all of them, over restarts
        self._epochs = EpochLines()
        self._signals = Signals(deaf=True)  # until something runs that listens
        self._seed: int | None = seed_of(hparams)
        self._state = BrainState(self)
        self.checkpointer = checkpointer
        # What hangs on the loop
        self.loggers: list[Any] = list(loggers)
        self._profiler = instruments(profiler, self._options)
        self._extensions = Extensions([*extensions, *self._own_extensions()])
        self._progress = Progress(self._options.progress_options)
        # What a fit leaves for the methods it calls
        self.should_step = False
        self._experiment = current_experiment()  # whose log this Brain writes into, whatever comes after it
        self._fitting = False
        self._fits_done = 0  # outer fits finished by this process: the number of the next one
        self._prepared = False  # whether on_fit_start has done its once-a-Brain work
        self._ready = False  # whether the first fit has looked at the result
        self._custom_fit_batch = False
        self._weighted = False  # whether losses are scaled by their weights before they are summed
        self._max_grad_norm: float | None = self._options.max_grad_norm
        self._update_limit: int | None = self._options.optimizer_step_limit
        self._pending: Checkpoint | None = None  # what was loaded, until the fit it stands in begins
        self._loaded_counter: Any = None  # the state of the open fit's epoch counter, until that fit begins
        self._checkpoint_choice: Any = None
        self._active: list[Gradients] = []  # of the last update
        self._save_triggers: list[Trigger] = []
        self._optimizers = Optimizers()
        self._said: set[str] = set()
        self._debug_folder: tempfile.TemporaryDirectory[str] | None = None
        self._is_trial = False  # a benchmark or a debug run, whose checkpoints go with the Brain
        names = (
            "_options",
            "_outer",
            "_state",
            "_optimizers",
            "_extensions",
            "_world",
            "_ranks",
        )
        self._collaborators = {name: self.__dict__[name] for name in names}
        self._own_names = frozenset(self.__dict__).difference(users_own) | {"_own_names"}
        self._attach_checkpointer()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a subclass that takes a private name of ours without meaning to."""
        super().__init_subclass__(**kwargs)
        taken = sorted(names_for_itself().intersection(vars(cls)))
        if taken:
            raise TypeError(
                f"{cls.__name__} defines {quoted(taken)}, which Brain needs for itself: take another name"
            )

    def _check_own_attributes(self) -> None:
        """An attribute of ours that the user has assigned over would break the run in an odd place."""
        for name, value in self._collaborators.items():
            if self.__dict__.get(name) is not value:
                raise ValueError(
                    f"the attribute {name} of {type(self).__name__} was assigned over; Brain needs it for itself: take "
                    "another name"
                )

    # ------------------------------------------------------------------------------------------------------------
    # What you write
    # ------------------------------------------------------------------------------------------------------------

    def compute_forward(self, batch: Any, stage: Stage) -> Any:
        """From a batch to predictions; the batch is on the device. Write this one."""
        raise NotImplementedError(f"{type(self).__name__} must define compute_forward(batch, stage)")

    def compute_objectives(self, predictions: Any, batch: Any, stage: Stage) -> Tensor:
        """From predictions to the loss, a scalar that is a mean over `loss_weight` items. Write this one."""
        raise NotImplementedError(
            f"{type(self).__name__} must define compute_objectives(predictions, batch, stage)"
        )

    # ------------------------------------------------------------------------------------------------------------
    # What you may write: hooks, in the order in which they are called
    # ------------------------------------------------------------------------------------------------------------

    def on_fit_start(self) -> None:
        """Called at each fit, before its first epoch; does its work once a Brain.

        Compiles modules in place, distributes, makes the optimizers, recovers the newest checkpoint (or what the
        options `resume` and `init_from` say). A second fit goes on with the live weights and the same optimizers. All
        ranks.
        """
        if self._prepared:
            return
        self._compile()
        self._wrap_distributed()
        self.init_optimizers()
        self._fuse()
        take_origin(self)
        self._prepared = True  # only now: what an error or Ctrl-C broke off is done again by the next call

    def on_stage_start(self, stage: Stage, epoch: Any = None) -> None:
        """Called at the start of each stage; `epoch` is None for TEST. What it freezes (``eval()``) stays frozen."""

    def on_fit_batch_start(self, batch: Any, should_step: bool) -> None:
        """Called before a training batch is computed; `should_step`: whether this batch closes an update."""

    def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Tensor, should_step: bool) -> None:
        """Called after a training batch; `should_step`: whether it closed an update that was made.

        The place for a per-update schedule.
        """

    def on_stage_end(self, stage: Stage, stage_loss: float, epoch: Any = None) -> None:
        """Called at the end of each stage with its average loss. For VALID and TEST inside eval mode and ``no_grad``.

        The place to log, to step a per-epoch schedule, and, last, to save:
        ``self.checkpointer.save_and_keep_only(meta={"loss": stage_loss}, min_keys=["loss"])``.
        """

    def on_evaluate_start(self, max_key: str | None = None, min_key: str | None = None) -> None:
        """Called by `evaluate` first: puts the weights of the wanted checkpoint in place. They are put
        back afterwards.
        """
        load_for_evaluation(self.checkpointer, self._checkpoint_choice, max_key, min_key, self._state)

    def loss_weight(self, batch: Any, stage: Stage) -> float:
        """How many items (utterances, tokens, frames) the loss of this batch is a mean over.

        Batches of an update, and losses of a stage, are averaged with these weights; so the same samples give the same
        update however they are split. The default counts items; override it where the loss is a mean over something
        else: ``return float(batch["num_tokens"])``.
        """
        items = num_items(batch)
        if items is None:
            self._say_once(
                "loss_weight",
                f"cannot tell how many items a batch of type {type(batch).__name__} holds: each batch "
                f"weighs 1. Override "
                "loss_weight(batch, stage) to say it.",
            )
            return 1.0
        return items

    def get_extra_state(self) -> Any:
        """What else a checkpoint should hold: tensors, numbers, strings, and lists and dicts of these."""
        return None

    def set_extra_state(self, state: Any) -> None:
        """Put back what `get_extra_state` returned (None from a Brain that returned nothing)."""

    # ------------------------------------------------------------------------------------------------------------
    # The book: training
    # ------------------------------------------------------------------------------------------------------------

    def fit(
        self,
        epoch_counter: Iterable[Any],
        train_set: Any,
        valid_set: Any = None,
        progressbar: bool | None = None,
        train_loader_kwargs: Mapping[str, Any] | None = None,
        valid_loader_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Train for the epochs of `epoch_counter`, validating after each. All ranks.

        Args:
            epoch_counter: such as ``range(10)`` or an `EpochCounter`; its values are handed to the hooks. Closed
                epochs are not repeated when the script is started again, whichever of the two it is.
            train_set: a Dataset, a DataLoader, or a list or iterable of ready batches. With loader options a list is
                a Dataset of items.
            valid_set: the same, or None.
            progressbar: whether to show a bar; None: unless ``noprogressbar`` is set.
            train_loader_kwargs: handed to `make_dataloader`:
                ``{"batch_size": 16, "shuffle": True, "num_workers": 2}``.
            valid_loader_kwargs: the same for the valid_set.

        Raises:
            ValueError: for an empty set, an iterator that is used up in the second epoch, more than
                ``nonfinite_patience`` updates in a row that were not finite, or data that changed in the middle of
                an epoch that is resumed.
        """
        self._check_own_attributes()
        check_fit_arguments(epoch_counter)
        if self._options.test_only:
            logger.info("fit: skipped, because the option test_only is set")
            return
        sets = {"train_set": train_set, "valid_set": valid_set, "train_loader_kwargs": train_loader_kwargs}
        with numbered_fit(self, epoch_counter, sets) as scope:
            train = self._source(train_set, Stage.TRAIN, train_loader_kwargs)
            valid = None if valid_set is None else self._source(valid_set, Stage.VALID, valid_loader_kwargs)
            if doubt := only_one_is_batched(train_set, train_loader_kwargs, valid_set, valid_loader_kwargs):
                self._say_once("one is batched", doubt)
            if self._options.overfit_batches is not None and not scope.inner:
                train = FirstBatches(train, self._options.overfit_batches)
                valid = None if valid is None else train
            scope.sources = [train] if valid is None else [train, valid]
            check_same_data(self, epoch_counter)
            self.on_fit_start()
            settle_in(self)
            if self._options.sanity_valid_batches and valid is not None and not scope.inner:
                self._try_validation(valid, self._options.sanity_valid_batches)
            for epoch in open_epochs(self, epoch_counter, scope, train):
                self._fit_train(train, valid, epoch, progressbar)
                if valid is not None:
                    self._fit_valid(valid, epoch, progressbar, closing=True)
                self._close_epoch(epoch)
            present().fit_ends(self)

    def _fit_train(
        self, train: BatchSource, valid: BatchSource | None, epoch: Any, progressbar: bool | None
    ) -> None:
        """One epoch of training, from the batch at which the run stands. All ranks."""
        scope, run, signals = self._scope, self._scope.run, self._signals
        self.modules.train()  # before the hook: what the hook freezes stays frozen
        if not scope.inner and self._overridden("on_stage_start"):
            keep_point(self)
        with self._ledger_on("hooks"):
            self.on_stage_start(Stage.TRAIN, epoch)
            replay_resumed(self)
        if run.step == 0:
            run.open_epoch()
            self._optimizers.drop_gradients()

        if train.num_workers:
            signals.shield_update()
        batches, window, total = open_data(self, train)
        batches = present().batches(self, batches)
        if valid is not None:
            scope.validate_now = lambda: self._fit_valid(valid, epoch, progressbar)
        marks = self._custom_fit_batch and self.checkpointer is not None
        read_loss, keep_buffers, trained = run.loss.value, scope.keep_buffers, run.step
        has_limit = self._options.max_time is not None or self._profiler is not None
        waited = 0.0
        with (
            _ALL_ALIKE if scope.inner else self._ledger.training(lambda: waited),
            self._progress.bar("train", total, run.step, self._shows(progressbar)) as bar,
            self._watched(),
        ):
            try:
                if run.unfired:  # stopped in a validation inside the epoch, or saved by a hook of the batch
                    scope.left = True  # and no resume point until the next batch is over
                    batches = iter(()) if self._after_window() else batches
                signals.waiting = True
                if signals.pending or has_limit:
                    see_to(self)
                asked = perf_counter()
                for batch in batches:
                    waited += perf_counter() - asked
                    signals.waiting, scope.left = False, True
                    if signals.broken_off:
                        raise Interrupted
                    run.begin_batch()
                    if run.micro == 1:
                        scope.held = None
                        keep_buffers()
                        scope.window_began = run.optimizer_step
                    scope.batch = batch
                    if marks:
                        scope.gradients_before = self._optimizers.mark()
                    self.should_step = closes = window.closes(run)
                    # What is due after an update is still to come, of what a hook of this batch saves.
                    run.unfired = closes and not scope.inner
                    loss = self.fit_batch(batch)
                    if self._custom_fit_batch:
                        closes = self._settle(loss, batch, closes)
                    trained = run.step
                    if closes and self._after_window():
                        break
                    bar.advance(read_loss)
                    scope.left, signals.waiting = False, True
                    if signals.pending or has_limit:
                        see_to(self)
                    asked = perf_counter()
                else:
                    waited += perf_counter() - asked
                signals.waiting = False
            except BaseException:
                signals.waiting = False
                self._take_back(trained)
                raise
        scope.batch, scope.left = None, True
        self._settle_verdict()
        if run.step == 0:
            raise ValueError(train.empty_message(run.epoch))

        train_loss = run.loss.value() if run.loss.weight else math.nan  # every window was void
        scope.losses = {"train_loss": train_loss}
        if valid is not None and not scope.inner:
            keep_point(self)
        with self._ledger_on("hooks"), self._closing_epoch(epoch, valid is None):
            self.on_stage_end(Stage.TRAIN, train_loss, epoch)

    def _take_back(self, trained: int) -> None:
        """An error came in a batch. What was not trained on is taken back, so that the same call made again repeats it:
        the whole window, since its gradients cannot be told from half of those of the batch in hand.
        """
        run, scope = self._scope.run, self._scope
        scope.batch = None
        self._guard.settle(run)
        if run.step == trained or scope.watch.stepped:
            return  # the error came after the batch, or after a step of the user's
        made = run.verdict is not None or (run.recorded and not self.should_step)
        if not made:
            run.return_batches(whole_window=run.optimizer_step == scope.window_began)
            scope.buffers.put_back()
            self._optimizers.drop_gradients()

    def fit_batch(self, batch: Any) -> Tensor:
        """Forward, loss, backward, and the update where the window closes; returns the loss, detached, on the device.

        Overriding it is ordinary (GANs do). Resume, counters and the guard against non-finite gradients hold all the
        same, because they look at the optimizers. An override may return a tensor, a float or an int.
        """
        run, should_step = self._scope.run, self.should_step
        self.on_fit_batch_start(batch, should_step)
        with self.no_sync(not should_step):
            with self.training_ctx:
                if self._ranks.step is None:
                    outputs, carried = self.compute_forward(batch, Stage.TRAIN), None
                    loss = self.compute_objectives(outputs, batch, Stage.TRAIN)
                else:  # several ranks: the same two calls, inside what DDP wraps
                    outputs, loss, carried = self._ranks.forward(batch)
            weight = self._weight(batch, Stage.TRAIN)
            try:
                if carried is None:
                    # Weights divide out where a window is one micro-batch of one process.
                    total = self._scaled(loss * weight if self._weighted else loss)
                    total.backward()  # type: ignore[no-untyped-call]
                else:  # what the ranks have to agree on rides with the gradients
                    self._ranks.backward(self._scaled(loss), carried, loss, weight, run, should_step)
            except (RuntimeError, AttributeError, TypeError, ValueError) as error:
                # Raises where it can say more than torch did.
                self._ranks.explain(error)
                check_loss(loss, f"compute_objectives of {type(self).__name__}")
                raise
        detached = loss.detach()
        run.record(detached, weight)
        if should_step:
            self.optimizers_step()
        # A window that was void made no update: a schedule that is stepped in this hook stands still.
        self.on_fit_batch_end(batch, outputs, loss, should_step and run.verdict is not False)
        return detached

    def optimizers_step(self) -> None:
        """One update: unscale → norm → finite? → one multiply (window weight × clip) → step → scaler → count → zero.

        What lies between unscale and count is `make_update` of ``update/guard.py``.
        """
        run, optimizers = self._scope.run, self._optimizers
        scaler = self.scaler if self.scaler.is_enabled() else None
        steppable = self.freeze_optimizers(self.optimizers_dict or optimizers.found)
        active = optimizers.gradients_of(steppable.values())
        if scaler is not None:
            active = [each for each in active if each.tensors()]  # it refuses an optimizer without gradients
            for each in active:
                scaler.unscale_(each.optimizer)

        if self._guard.late:
            self._settle_verdict()
        if self._world.size > 1:
            self._ranks.agree(run)
        scale = self._world.size / run.weight if self._weighted and run.recorded else 1.0
        self._scope.watch.trusted = True  # these steps are judged here
        try:
            self._guard.make_update(
                active, run, self._scope.buffers, scale=scale, max_norm=self._max_grad_norm, scaler=scaler
            )
        finally:
            self._scope.watch.trusted = False

        self._active = active
        if scaler is not None and active:
            scaler.update()
        optimizers.drop_gradients()
        if run.nonfinite_in_a_row:
            self._check_patience()

    def _after_window(self) -> bool:
        """What is due after an update, in this order; returns whether the update limit ends training. All ranks."""
        run = self._scope.run
        if self._profiler is not None:
            self._profiler.look(self)
        if self._world.size > 1 and run.optimizer_step in COMPARED_AT:
            self._ranks.check_alike(self.modules, f"after update {run.optimizer_step}")
        if self._scope.inner:  # an inner fit is part of somebody's hook: it saves nothing and is not limited
            return False
        if self._extensions:
            every = self._options.valid_interval_steps
            if every and run.optimizer_step % every == 0:  # a validation is due, which may be interrupted
                run.unfired = True
                keep_point(self)
            run.unfired = False
            self._extensions.fire(self)
            self._scope.held = None
        else:
            run.unfired = False
        if self.checkpointer is not None:
            self._save_in_time(self.checkpointer)
        if self._limit_reached(run):
            self._settle_verdict()  # the last update may turn out not to have been made
            return self._limit_reached(run)
        return False

    def _fit_valid(
        self, valid: BatchSource, epoch: Any, progressbar: bool | None, closing: bool = False
    ) -> float:
        """One validation; modules and gradient mode come back as they were, also after an error. All ranks."""
        with self._ledger_on("validation"), self._as_it_was():
            return self._evaluate_stage(valid, Stage.VALID, epoch, progressbar, closing)

    def _try_validation(self, source: BatchSource, num_batches: int) -> None:
        """Some batches of a validation before the first epoch of a run: what fails there fails now. It leaves no trace
        but what ``on_stage_start`` does. All ranks.
        """
        run = self._scope.run
        if run.fit > 0 or run.epoch or run.step or self._fits_done:
            return
        with self._as_it_was(), preserved_generators(), preserved_buffers(self.modules):
            self._scope.eval_step = 0
            self.on_stage_start(Stage.VALID, 0)
            self.modules.eval()
            batches = islice(source.read(self._run_seed(), 0), num_batches)
            with torch.no_grad(), self._extensions.evaluating(self, Stage.VALID):
                for batch in self._signals.between(on_device(batches, self.device)):
                    self._scope.eval_step += 1
                    loss = self.evaluate_batch(batch, Stage.VALID)
                    if not math.isfinite(float(loss)):
                        logger.warning(
                            "sanity validation: the loss of batch %d is %s", self.step, float(loss)
                        )
            logger.info(
                "sanity validation: %s went through", counted(self._scope.eval_step, "batch", "batches")
            )
        source.abandon()

    def _close_epoch(self, epoch: Any) -> None:
        """The epoch is over: count it, fire what is due, and commit it unless a hook has done so. All ranks."""
        self._scope.run.close_epoch()
        if self._scope.inner:
            return
        say_epoch(self, epoch)
        if self._extensions:
            with self._ledger_on("hooks"):
                self._extensions.fire(self)
        if self.checkpointer is not None and not self._is_committed(self.checkpointer):
            meta = {**_plain_epoch(epoch), **self._scope.losses}
            self.checkpointer.save_automatically(meta, reason="epoch", on_error=self._options.on_save_error)
        self._scope.held = None

    def _is_committed(self, checkpointer: Checkpointer) -> bool:
        """Whether the newest checkpoint of this run's main process stands for where it stands now. All ranks."""
        counters = self._state.counters()
        return from_main(
            lambda: checkpointer.written is not None and checkpointer.written.counters == counters
        )

    # ------------------------------------------------------------------------------------------------------------
    # The book: evaluation
    # ------------------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        test_set: Any,
        max_key: str | None = None,
        min_key: str | None = None,
        progressbar: bool | None = None,
        test_loader_kwargs: Mapping[str, Any] | None = None,
        *,
        checkpoint: Any = None,
    ) -> float:
        """The average loss over `test_set`, with the weights of a checkpoint; leaves the Brain as it was. All ranks.

        Args:
            test_set: as for `fit`.
            max_key: take the checkpoint with the largest value of this metric.
            min_key: take the one with the smallest value.
            progressbar: whether to show a bar; None: unless ``noprogressbar`` is set.
            test_loader_kwargs: handed to `make_dataloader`.
            checkpoint: which weights: "best", "last", "current" or a path. By default those of the last criterion
                that was declared (in ``save_and_keep_only``, or as the only ``best`` of the Snapshots), else of the
                newest checkpoint, else the current ones. A
                line says which.

        Returns:
            The loss, weighted by `loss_weight`.

        Raises:
            ValueError: for an empty set, or a checkpoint that is not there.
        """
        with self._borrowing(max_key, min_key, checkpoint):
            test = self._source(test_set, Stage.TEST, test_loader_kwargs)
            self._ranks.check_same_data({"test_set": test.fingerprint()})
            self.on_evaluate_start(max_key=max_key, min_key=min_key)
            return self._evaluate_stage(test, Stage.TEST, None, progressbar)

    def _evaluate_stage(
        self, source: BatchSource, stage: Stage, epoch: Any, progressbar: bool | None, closing: bool = False
    ) -> float:
        """Every batch of a stage once, without gradients. All ranks."""
        mean, several = RunningMean(), self._world.size > 1
        share = Share(self._world.rank, self._world.size, fill=False)
        losses: list[tuple[float | Tensor, float]] = []  # of this rank
        self._ranks.share_buffers(self.modules)
        if source.num_workers:
            self._signals.shield_update()
        by_items = self._options.loss_average == "items"
        giver = "evaluate_batch" if self._overridden("evaluate_batch") else "compute_objectives"
        self._scope.eval_step = 0
        self.on_stage_start(stage, epoch)
        self.modules.eval()
        with torch.no_grad():
            batches = source.read(self._run_seed(), 0, 0, share)
            total = self._num_of_stage(source, stage, share)
            batches = islice(batches, total)
            with (
                self._progress.bar(stage.name.lower(), total, 0, self._shows(progressbar)) as bar,
                self._extensions.evaluating(self, stage),
            ):
                for batch in self._signals.between(on_device(batches, self.device)):
                    if several and self._signals.number and may_be_left(self):
                        break
                    self._scope.eval_step += 1
                    loss = self.evaluate_batch(batch, stage)
                    if not isinstance(loss, (float, int)):
                        check_loss(loss, f"{giver} of {type(self).__name__}", needs_graph=False)
                    weight = self._weight(batch, stage) if by_items else 1.0
                    mean.add(loss, weight)
                    if several:
                        losses.append((loss, weight))
                    bar.advance(mean.value)
            if several:
                mean = self._mean_of_all(losses)
            if not mean.weight:
                raise ValueError(source.empty_message(self._scope.run.epoch))
            self._scope.eval_step = 0
            if closing:
                self._scope.losses["valid_loss"] = mean.value()
            with self._closing_epoch(epoch, closing):
                self.on_stage_end(stage, mean.value(), epoch)
        return mean.value()

    def _num_of_stage(self, source: BatchSource, stage: Stage, share: Share) -> int | None:
        """How many batches of what is being read are this rank's; whole ones of the order of one process are dealt."""
        limits = [each for each in (source.num_batches, self._batch_limit(stage)) if each is not None]
        return share.rounds(min(limits)) if limits else None

    def _mean_of_all(self, losses: Sequence[tuple[float | Tensor, float]]) -> RunningMean:
        """The mean over the batches of all ranks, added in the order of one process: the same bits. All ranks."""
        mean = RunningMean()
        parts = self._ranks.meet([(float(loss), weight) for loss, weight in losses])
        if self._ranks.agreed.asked:
            self._signals.see_to()
        for loss, weight in in_order(parts):
            mean.add(loss, weight)
        return mean

    def evaluate_batch(self, batch: Any, stage: Stage) -> Tensor:
        """Forward and loss of one batch; returns the loss, detached, on the device. Override it freely."""
        with self.evaluation_ctx:
            outputs = self.compute_forward(batch, stage)
            loss = self.compute_objectives(outputs, batch, stage)
        return loss.detach()

    def predict(
        self,
        dataset: Any,
        progressbar: bool | None = None,
        loader_kwargs: Mapping[str, Any] | None = None,
        *,
        checkpoint: Any = "current",
    ) -> list[Any]:
        """What `compute_forward` gives for each batch of `dataset`, in order, as a list; leaves the Brain as it was.

        Arguments are those of `evaluate`; the weights are the current ones unless `checkpoint` says otherwise.

        >>> class Doubles(Brain):
        ...     def compute_forward(self, batch, stage):
        ...         return 2 * batch
        >>> Doubles(run_opts={"noprogressbar": True}).predict([torch.ones(1), torch.ones(2)])
        [tensor([2.]), tensor([2., 2.])]
        """
        with self._borrowing(None, None, checkpoint):
            source = self._source(dataset, Stage.TEST, loader_kwargs)
            self._ranks.check_same_data({"the data set": source.fingerprint()})
            Brain.on_evaluate_start(self)
            self.modules.eval()
            with (
                torch.no_grad(),
                self._progress.bar("test", source.num_batches, 0, self._shows(progressbar)) as bar,
            ):
                predictions = []
                share = Share(self._world.rank, self._world.size, fill=False)
                batches = source.read(self._run_seed(), 0, 0, share)
                for batch in self._signals.between(on_device(batches, self.device)):
                    with self.evaluation_ctx:
                        predictions.append(self.compute_forward(batch, Stage.TEST))
                    bar.advance(lambda: 0.0)
            return in_order(gather(predictions))

    # ------------------------------------------------------------------------------------------------------------
    # Machinery that may be overridden
    # ------------------------------------------------------------------------------------------------------------

    def make_dataloader(
        self, dataset: Any, stage: Stage, ckpt_prefix: str | None = "dataloader-", **loader_kwargs: Any
    ) -> DataLoader[Any]:
        """A loader for a Dataset or a list of items. Its position is kept by the run: `ckpt_prefix` has no effect.

        >>> loader = Brain().make_dataloader([1, 2, 3], Stage.TRAIN, batch_size=2)
        >>> [batch.tolist() for batch in loader]
        [[1, 2], [3]]
        """
        if hasattr(dataset, "__len__") and len(dataset) == 0:
            raise ValueError(
                f"the {stage.name} dataset is empty: it holds no item. Check the manifest and its filters."
            )
        check_loader_options(loader_kwargs)
        return make_dataloader(dataset, **loader_kwargs)

    def init_optimizers(self) -> None:
        """Make `self.optimizer` and `self.optimizers_dict` from `opt_class`; override it for several optimizers.

        Whatever optimizer, scheduler or scaler becomes an attribute of the Brain is saved and recovered by that name.
        """
        if self.opt_class is None:
            return
        parameters: Any = list(self.modules.parameters())
        if not parameters:
            raise ValueError(
                f"opt_class is given, but the modules ({quoted(self.modules)}) have no parameters to train. "
                f"Give modules "
                "with parameters, or opt_class=None to train without an optimizer."
            )
        if self._options.remove_vector_weight_decay:
            parameters = without_vector_decay(parameters)
        optimizer = self.opt_class(parameters)
        if not isinstance(optimizer, Optimizer):
            raise ValueError(f"opt_class returned {optimizer!r}; it must return a torch.optim.Optimizer")
        self.optimizer = optimizer
        self.optimizers_dict = {"opt_class": self.optimizer}

    def freeze_optimizers(self, optimizers: dict[str, Optimizer]) -> dict[str, Optimizer]:
        """The optimizers that take part in the coming update; all by default. The gradients of the others
        are zeroed too.
        """
        return optimizers

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Zero the gradients of all optimizers."""
        self._find_optimizers()
        for optimizer in self._optimizers.found.values():
            optimizer.zero_grad(set_to_none)

    def no_sync(self, use: bool = True) -> AbstractContextManager[None]:
        """A context in which gradients are summed and not exchanged between processes; with one, nothing to do.

        Forward and backward both stand inside.
        """
        return self._ranks.no_sync() if use and self._world.size > 1 else _ALL_ALIKE

    def check_loss_isfinite(self, loss: Tensor) -> None:
        """For a ``fit_batch`` of your own: count a loss that is not finite, and raise when patience is exhausted.

        Nothing has to call it: an update with a non-finite gradient or loss is skipped and counted in any case.
        """
        if self._world.size > 1:
            return  # the window is judged for all ranks at once
        if not bool(torch.isfinite(loss.detach()).all()):
            self._scope.run.skip_window(closes=False)
            self._check_patience()

    def check_gradients(self, loss: Tensor | None = None) -> bool:
        """For a ``fit_batch`` of your own: whether loss and gradients are finite, so that a step may be made."""
        finite = loss is None or bool(torch.isfinite(loss.detach()).all())
        return finite and all(
            math.isfinite(each.measure())
            for each in self._optimizers.gradients_of(self._optimizers.found.values())
        )

    def update_average(self, loss: Tensor | float, avg_loss: float) -> float:
        """The running mean `avg_loss` over the batches before, with one more; for loops of your own.

        The Brain's own averages are weighted by `loss_weight` and do not use it.
        """
        value = float(loss)
        return avg_loss + (value - avg_loss) / max(self.step, 1) if math.isfinite(value) else avg_loss

    def print_trainable_parameters(self) -> None:
        """Log how many parameters there are, and how many of them are trained."""
        logger.info("%s", parameter_line(self.modules))

    # ------------------------------------------------------------------------------------------------------------
    # What the run can be asked
    # ------------------------------------------------------------------------------------------------------------

    @property
    def run_state(self) -> RunState:
        """Every counter of the run. To be read."""
        return self._scope.run

    @asked
    def step(self) -> int:
        """Batches of the current stage so far, the one in hand included."""
        return self._scope.run.step if self._scope.eval_step is None else self._scope.eval_step

    @property
    def optimizer_step(self) -> int:
        """Updates of the whole run: windows in which some optimizer stepped."""
        return self._scope.run.optimizer_step

    @optimizer_step.setter
    def optimizer_step(self, value: int) -> None:  # recipes with a fit_batch of their own count it themselves
        self._scope.run.optimizer_step = value

    @asked
    def avg_train_loss(self) -> float:
        """Weighted mean of the open epoch's training loss over the updates made so far."""
        return self._scope.run.loss.value()

    @asked
    def grad_norm(self) -> float:
        """2-norm of the gradients of the last update, before clipping, over all its optimizers; 0.0 before the first.

        With a ``fit_batch`` of your own: of the last update that went through `optimizers_step`.
        """
        return math.hypot(*[each.last_norm for each in self._active])

    @property
    def nonfinite_count(self) -> int:
        """Updates of the open epoch that were skipped because a loss or gradient was not finite."""
        return self._scope.run.nonfinite_in_epoch

    @nonfinite_count.setter
    def nonfinite_count(self, value: int) -> None:
        self._scope.run.nonfinite_in_epoch = value

    def __getattr__(self, name: str) -> Any:
        """The value of an option, where neither the Brain nor the user has an attribute of that name."""
        options = self.__dict__.get("_options")
        if options is not None and name in RunOptions.names():
            return getattr(options, name)
        if options is None:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}: its __init__ has not called "
                "super().__init__(...), or has not yet"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # ------------------------------------------------------------------------------------------------------------
    # What a fit is made with; how it starts, and where a resumed one goes on, stands in starting.py
    # ------------------------------------------------------------------------------------------------------------

    def _make_guard(self) -> HostGuard:
        """On a CPU the host may read the norm: it waits for nothing there."""
        return HostGuard() if self.device.type == "cpu" else DeviceGuard(self.device)

    def _new_scope(self, inner: bool = False) -> FitScope:
        late = self._guard.late
        by_items, ranks = self._options.loss_average == "items", self._ranks
        run = (
            RunState(by_items, late)
            if self._world.size == 1
            else RunState(by_items, late, lambda: ranks.agreed.seconds, self._world.size)
        )
        return FitScope(run, OptimizerWatch(on_device=late), inner)

    def _run_seed(self) -> int:
        """The seed of a fit's data order. The first fit's is the seed of the run; later and inner fits
        derive theirs.
        """
        seed = self._seed or 0
        if self._scope.inner:
            return derive(seed, "inner", *self._outer.run.point())
        return seed if self._scope.run.fit <= 0 else derive(seed, "fit", self._scope.run.fit)

    # ------------------------------------------------------------------------------------------------------------
    # A window whose fit_batch is the user's
    # ------------------------------------------------------------------------------------------------------------

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """With an overridden fit_batch the optimizers are watched: they know who stepped, whoever wrote the step."""
        if not self._custom_fit_batch:
            yield
            return
        with self._scope.watch.attached(self._optimizers.found.values()):
            yield

    def _settle(self, loss: Any, batch: Any, closes: bool) -> bool:
        """After an overridden fit_batch: record the loss it returned, and judge the window by what the optimizers did.

        Returns whether an update was made or refused, or the window closes: whether there is something to follow up.
        """
        run, watch = self._scope.run, self._scope.watch
        several = self._world.size > 1
        if not run.recorded:
            told, weight = self._returned_loss(loss), self._weight(batch, Stage.TRAIN)
            if several and run.verdict is not None:
                told, weight = self._ranks.share_loss(float(told), weight)
            run.record(told, weight)
        if run.verdict is None:
            if several and (closes or watch.stepped or watch.refused):
                self._ranks.agree(run)
            counted_by_user = run.optimizer_step != self._scope.updates_before
            stepped = watch.stepped and not counted_by_user
            nothing_made = not watch.stepped and (watch.refused or (closes and not run.finite_pending()))
            if nothing_made:
                run.skip_window(closes)
            elif watch.flags and isinstance(self._guard, DeviceGuard):
                self._settle_verdict()
                self._guard.judge_later(watch.flags, run, self._scope.buffers, stepped=stepped, closes=closes)
            elif watch.stepped or closes:
                finite = run.finite_pending()
                run.commit_window(stepped, finite and not watch.refused, closes)
                if not finite:
                    self._scope.buffers.put_back()
            else:
                return False
        if run.verdict is False:
            self._scope.buffers.put_back()
        self._scope.updates_before = run.optimizer_step
        watch.clear()
        if several:
            self._ranks.next_window()
        if run.nonfinite_in_a_row:
            self._check_patience()
        return True

    def _returned_loss(self, loss: Any) -> float | Tensor:
        if isinstance(loss, (int, float)):
            return float(loss)
        check_loss(loss, f"fit_batch of {type(self).__name__}", needs_graph=False)
        return loss.detach()  # type: ignore[no-any-return]

    # ------------------------------------------------------------------------------------------------------------
    # Small matters
    # ------------------------------------------------------------------------------------------------------------

    def _overridden(self, name: str) -> bool:
        """Whether the user's class or object has its own method of this name."""
        method = getattr(self, name)
        return getattr(method, "__func__", method) is not getattr(Brain, name)

    def _weight(self, batch: Any, stage: Stage) -> float:
        weight = self.loss_weight(batch, stage)
        if isinstance(weight, Tensor) and weight.numel() == 1:
            weight = weight.item()
        if not (isinstance(weight, (int, float)) and weight > 0 and math.isfinite(weight)):
            raise ValueError(
                f"loss_weight gave {weight!r} for a {stage.name} batch; it must be a positive number: how "
                f"many items the loss "
                "is a mean over. Drop batches without items before they come here."
            )
        if stage is Stage.TRAIN and 0 < self._scope.share.filled_at == self._scope.run.step:
            return 0.0  # this rank has no batch of its own in the last round, and only takes part
        return weight

    def _scaled(self, loss: Tensor) -> Tensor:
        return self.scaler.scale(loss) if self.scaler.is_enabled() else loss

    def _find_optimizers(self) -> None:
        attributes = found_in(attributes_of(self, without=self._own_names))
        self._optimizers.find([("optimizer", self.optimizer), *attributes, *self.optimizers_dict.items()])

    def _settle_verdict(self) -> None:
        """Learn the verdict on the last window where it still is on the device, before counters are relied upon."""
        run, before = self._scope.run, self._scope.run.nonfinite_windows
        self._guard.settle(run)
        if run.nonfinite_windows != before:
            self._check_patience()

    def _check_patience(self) -> None:
        run, patience = self._scope.run, self._options.nonfinite_patience
        if run.nonfinite_windows != self._scope.told:  # once a window, whoever looks
            self._scope.told = run.nonfinite_windows
            logger.warning(
                "update skipped: a loss or gradient was not finite (%sbatch %d of the epoch%s, %d in a row, %d in all)",
                "seen at " if self._guard.late else "",
                run.step,
                "" if self._guard.late else ids_of(self._scope.batch),
                run.nonfinite_in_a_row,
                run.nonfinite_windows,
            )
        if run.nonfinite_in_a_row > patience:
            raise ValueError(
                f"{counted(run.nonfinite_in_a_row, 'update')} in a row had a loss or gradient that is not finite, more "
                f"than nonfinite_patience={patience} allows. The weights are those of the last good update. Look "
                f"at the data of "
                "these batches, lower the learning rate, or raise nonfinite_patience."
            )

    def _limit_reached(self, run: RunState) -> bool:
        """Whether the run has made all its updates; a fit in a hook is not limited."""
        limit = self._update_limit
        return limit is not None and not self._scope.inner and run.optimizer_step >= limit

    def _batch_limit(self, stage: Stage) -> int | None:
        options = self._options
        limits = [
            options.debug_batches if options.debug else None,
            options.limit_train_batches if stage is Stage.TRAIN else None,
            options.limit_valid_batches if stage is Stage.VALID else None,
        ]
        return min((limit for limit in limits if limit is not None), default=None)

    def _shows(self, progressbar: bool | None) -> bool:
        wanted = not self._options.noprogressbar if progressbar is None else progressbar
        return wanted and self._world.is_main

    def _source(self, data: Any, stage: Stage, loader_kwargs: Mapping[str, Any] | None) -> BatchSource:
        name = f"{stage.name.lower()}_set"
        check_set(data, name)
        options = dict(loader_kwargs or {})
        if self._options.benchmark_max_step is not None and stage is Stage.TRAIN and not self._scope.inner:
            size = self._options.benchmark_batch_size
            if size is not None:
                options = loader_options_for(size, data, options, is_ready(data, options))
        if isinstance(data, DataLoader):
            if options:
                logger.warning(
                    "the loader options %s have no effect: %s is a DataLoader already", sorted(options), name
                )
        elif not is_ready(data, options):
            data = self.make_dataloader(
                data, stage, **({"ckpt_prefix": None} if stage is not Stage.TRAIN else {}), **options
            )
        return source_of(data, name)

    def _compile(self) -> None:
        compile_in_place(self.modules, self._options)

    def _fuse(self) -> None:
        if self._options.fused:
            self._find_optimizers()
            for name, optimizer in self._optimizers.found.items():
                make_fused(optimizer, name)

    def _wrap_distributed(self) -> None:
        """All ranks begin with the main one's weights. The step is wrapped when an epoch starts, see `Ranks.wrap`."""
        self._ranks.share_weights(self.modules)

    def _compute(self, batch: Any) -> tuple[Any, Tensor]:
        """What DDP wraps."""
        outputs = self.compute_forward(batch, Stage.TRAIN)
        return outputs, self.compute_objectives(outputs, batch, Stage.TRAIN)

    @contextmanager
    def _closing_epoch(self, epoch: Any, closing: bool) -> Iterator[None]:
        """Inside, a checkpoint stands for the closed epoch: this hook is the last that it has.

        The loggers are told before: killed in between, the epoch is logged twice; afterwards it would be missing.
        """
        closing = closing and not self._scope.inner
        if closing:
            losses, run = self._scope.losses, self._scope.run
            items = run.loss.weight if run.by_items else None
            self._scope.epoch_ledger = self._run_ledger.epoch(run.optimizer_step, items)
            meta = {"epoch": epoch, "optimizer_step": run.optimizer_step}
            train = {"loss": losses["train_loss"]}
            valid = {"loss": losses["valid_loss"]} if "valid_loss" in losses else None
            self._epochs.closes(run.epoch + 1, run.fit)
            self._epochs.hear("", meta, {"train": train, **({"valid": valid} if valid else {})})
            for log in self.loggers:
                log.log_stats(meta, train, valid)
        kept, self._scope.closing = self._scope.closing, closing
        try:
            yield
        finally:
            self._scope.closing = kept
            if closing:
                self._scope.epoch_ledger = None

    @contextmanager
    def _as_it_was(self) -> Iterator[None]:
        """Training modes of all modules, and the count of the stage, come back as they were."""
        modes = [(module, module.training) for module in self.modules.modules()]
        kept = self._scope.eval_step
        try:
            yield
        finally:
            self._scope.eval_step = kept
            for module, training in modes:
                module.training = training

    @contextmanager
    def _borrowing(self, max_key: str | None, min_key: str | None, checkpoint: Any) -> Iterator[None]:
        """Inside, the weights may be those of a checkpoint; weights, modes and generators come back afterwards."""
        if max_key is not None and min_key is not None:
            raise ValueError(
                f"evaluate was given max_key={max_key!r} and min_key={min_key!r}; give one of them"
            )
        self._wait_for_checkpoints()
        loads = (
            self._overridden("on_evaluate_start")
            or (self.checkpointer is not None and checkpoint != "current")
            or self._state.origin.lends()
        )
        registered = () if self.checkpointer is None else self.checkpointer.recoverables.values()
        lent = (
            [*self.modules.values(), *self._state.found_recoverables().values(), *registered] if loads else []
        )
        weights_only = nullcontext() if self.checkpointer is None else self.checkpointer.weights_only()
        self._checkpoint_choice = checkpoint
        listen(self)
        try:
            with (
                hinting(self.modules),
                self._signals.heard(self._options.stop_grace_seconds, self._ranks.agreed_to_stop),
                in_experiment(self._experiment),
                logging_for(self._state),
                self._as_it_was(),
                preserved_generators(),
                weights_only,
                preserved_buffers(self.modules),
                preserved_weights(lent),
            ):
                yield
        finally:
            self._checkpoint_choice = None

    def _attach_checkpointer(self) -> None:
        if self.checkpointer is None:
            return
        debug, benchmark = self._options.debug, self._options.benchmark_max_step is not None
        self._is_trial = benchmark or (debug and not self._options.debug_persistently)
        if self._is_trial:
            if self._world.is_main:
                self._debug_folder = tempfile.TemporaryDirectory(
                    prefix="brainlib-debug-"
                )  # goes with the Brain
            folder = self._debug_folder
            self.checkpointer.checkpoints_dir = from_main(lambda: "" if folder is None else folder.name)
            logger.info(
                "%s: checkpoints go to %s, which is removed in the end",
                "debug" if debug else "benchmark",
                self.checkpointer.checkpoints_dir,
            )
        if not self._options.ckpt_async:
            self.checkpointer.background = False
        checkpointer = self.checkpointer
        checkpointer.attach(self._state, world=self._world)
        snapshots = [each for each in self._extensions if isinstance(each, Snapshot)]
        rules = [(order, key) for snapshot in snapshots for key, order, _ in snapshot.best]
        checkpointer.best_of_snapshots = list(dict.fromkeys(rules))
        self._ranks.busy = lambda: checkpointer.busy

    def _ledger_on(self, name: str) -> AbstractContextManager[None]:
        """The time inside is that of `name`; a fit in a hook is part of the hook."""
        return _ALL_ALIKE if self._scope.inner else self._ledger.on(name)

    def _wait_for_checkpoints(self) -> None:
        """What was saved is on the disk; an error in writing it is raised."""
        if self.checkpointer is not None:
            self.checkpointer.wait()

    def _save_in_time(self, checkpointer: Checkpointer) -> None:
        """Save where an interval is over; where the save before is still being written, as soon as it is not."""
        if checkpointer.troubled:
            checkpointer.wait()  # raises
        due = (
            sum(due(self) for due in self._save_triggers) > 0
        )  # all are asked: each remembers where it looked
        if not due and not self._scope.put_off:
            return
        self._scope.put_off = checkpointer.busy if self._world.size == 1 else self._ranks.agreed.busy
        if not self._scope.put_off:
            checkpointer.save_automatically(
                end_of_epoch=False, reason="timed", on_error=self._options.on_save_error
            )
        elif due:
            self._say_once(
                "put off",
                "a checkpoint is due and the one before is still being written: it is put off until that is done. "
                "Where this is said, writing takes longer than ckpt_interval_minutes or ckpt_interval_steps leaves it",
            )

    def _own_extensions(self) -> Sequence[Extension]:
        snapshots = self._own_snapshots()
        every = self._options.valid_interval_steps
        if not every:
            return snapshots

        @make_extension(trigger=(every, "step"), name=MID_EPOCH_VALIDATION, priority=300)
        def validate(brain: Brain) -> None:
            # Where the epoch ends here, its own validation follows; where it is closed, that has just been.
            if brain._scope.run.step and not brain._scope.is_last():
                brain._scope.validate_now()

        return (validate, *snapshots)

    def _own_snapshots(self) -> Sequence[Extension]:
        num = self._options.num_snapshots
        if num is not None and self.checkpointer is None:
            logger.warning("num_snapshots has no effect: the Brain has no checkpointer")
        return () if num is None or self.checkpointer is None else (Snapshot(num, name=NUM_SNAPSHOTS),)

    def _say_once(self, what: str, message: str) -> None:
        if what not in self._said:
            self._said.add(what)
            logger.warning("%s", message)


def _plain_epoch(epoch: Any) -> dict[str, Any]:
    return {"epoch": epoch} if isinstance(epoch, (int, float, str)) else {}
