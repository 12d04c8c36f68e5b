"""The order of operations of saving and loading; what it consists of lives in the files beside this one.

*Save*: ask for what is found now → take every state, refuse what could not be read back, and copy it → in a thread
beside training: write, commit, let older ones go. *Load*: read all files and check their sums → compare every state
with its live object → apply, and put everything back if one fails. Only the main process writes.
"""

from __future__ import annotations

import gc
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, runtime_checkable

import torch

from brainlib.checkpoint import manifest
from brainlib.checkpoint.beside import Writer, settled
from brainlib.checkpoint.copies import Copies
from brainlib.checkpoint.errors import CheckpointError, DamagedCheckpointError, UnfitCheckpointError
from brainlib.checkpoint.held import Held
from brainlib.checkpoint.hooks import (
    ClassHooks,
    LoadHook,
    SaveHook,
    check_load_hook,
    check_save_hook,
    hooks_of,
)
from brainlib.checkpoint.journal import RECORDS, Record, from_journal, record_of
from brainlib.checkpoint.manifest import AUTOMATIC, REASONS, Checkpoint, Saved
from brainlib.checkpoint.metadata import plain
from brainlib.checkpoint.recoverables import (
    Kind,
    ParameterNames,
    Recoverable,
    class_name,
    covered,
    kind_of,
    nonfinite_among,
)
from brainlib.checkpoint.retention import Score, by_metric, doomed, rank, recency, require_metric
from brainlib.checkpoint.states import read_state, tidy
from brainlib.checkpoint.store import Store, check_name
from brainlib.checkpoint.warm_start import Loaded, weight_source
from brainlib.checkpoint.writer import (
    Entry,
    Save,
    entries_of,
    write_by_hooks,
    write_checkpoint,
)
from brainlib.common.background import hurried
from brainlib.common.errors import nearest, quoted
from brainlib.common.files import DISK, Disk
from brainlib.common.logs import logger
from brainlib.common.retrying import Retry
from brainlib.distributed.group import from_main, gather, link
from brainlib.distributed.peers import of_rank
from brainlib.distributed.world import World

__all__ = ["Checkpoint", "Checkpointer", "Owner"]

Predicate = Callable[[Checkpoint], bool]
Keys = str | Sequence[str]

# By find and best: the first two carry no metrics, the last is the state of a run that failed.
AUTOMATIC_KEPT = 2  # the newest, and one to go back to if it turns out damaged

SKIPPED_BY_FIND = frozenset({"timed", "signal", "error"})
BY_HAND = 'bl.load_weights(path, "name") gives the state dict of one object there, as a dict'


class Owner(Protocol):
    """The trainer that a checkpointer works for; asked anew at every save and load.

    >>> class Trainer:
    ...     def found_recoverables(self):
    ...         return {"model": torch.nn.Linear(1, 1)}
    ...     def counters(self):
    ...         return {"fit": 0, "epoch": 1, "step": 0, "optimizer_step": 1200}
    ...     def closes_epoch(self):
    ...         return True
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpointer = Checkpointer(folder)
    ...     checkpointer.attach(Trainer())
    ...     checkpointer.save_checkpoint().wait().path.name
    'step-00001200'
    """

    def found_recoverables(self) -> dict[str, object]:
        """What the trainer holds now that a run needs, by name; the user's own registrations come before it."""
        ...

    def counters(self) -> dict[str, int]:
        """fit, epoch, step and optimizer_step."""
        ...

    def closes_epoch(self) -> bool:
        """Whether a checkpoint made now is one of a closed epoch."""
        ...


@runtime_checkable
class OwnerOfRanks(Protocol):
    """An owner that trains in several processes.

    Attributes:
        parts: on the main rank, during a save: what each rank alone knows.
    """

    parts: list[Any]

    def part(self) -> Any:
        """What this rank alone knows."""
        ...


@dataclass(frozen=True)
class Registered:
    """What the user registered under a name."""

    obj: object
    saver: SaveHook | None = None
    loader: LoadHook | None = None
    optional: bool = False


class Checkpointer:
    """Saves objects to a folder of checkpoints, finds the newest or best, and loads it back; also without a Brain.

    A checkpoint exists only once all of it is on the disk, and it is read back by the safe loader only. See
    ``docs/checkpoints.md``. Making a Checkpointer touches no disk.

    A save takes a copy of the state and returns; a thread writes it while training goes on. Whatever looks at the
    folder through this object waits for that first, and so does the end of the program; `wait` does it by hand. An
    error of the thread is logged at once and raised by the next call that waits.

    Args:
        checkpoints_dir: The folder; created by the first save.
        recoverables: Objects by name: modules, optimizers, schedules, scalers, ``torch.Generator``, objects of
            decorated classes, anything with `state_dict` and `load_state_dict`. A Brain's own need not be named.
        custom_load_hooks: ``hook(obj, path, end_of_epoch)`` by name, instead of the usual loading.
        custom_save_hooks: ``hook(obj, path)`` by name, instead of the usual saving.
        allow_partial_load: Whether objects that a checkpoint does not have are left as they are (one warning);
            otherwise they are an error. States that are there are always loaded whole.
        background: Whether saves are written in a thread of their own, which takes as much memory once more as the
            state that is saved. False: a save returns when all of it is on the disk.

    Raises:
        CheckpointError: A name is no plain file name, or an object is of none of these kinds.

    >>> model = torch.nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpointer = Checkpointer(folder, {"model": model})
    ...     for loss in (0.5, 0.1, 0.3):
    ...         _ = checkpointer.save_and_keep_only(meta={"loss": loss}, min_keys=["loss"])
    ...     best = checkpointer.recover_if_possible(min_key="loss")
    ...     [c.meta["loss"] for c in checkpointer.list_checkpoints()], best.meta
    ([0.3, 0.1], {'loss': 0.1})
    """

    disk: Disk = DISK  # what every byte goes through; a variant may count, fail or die there
    retry: Retry = (
        Retry()
    )  # how often, and after which pauses, a save is tried again that failed for a moment

    def __init__(
        self,
        checkpoints_dir: str | os.PathLike[str],
        recoverables: Mapping[str, object] | None = None,
        custom_load_hooks: Mapping[str, LoadHook] | None = None,
        custom_save_hooks: Mapping[str, SaveHook] | None = None,
        allow_partial_load: bool = False,
        *,
        background: bool = True,
    ) -> None:
        self.allow_partial_load = allow_partial_load
        self.background = background
        self._store = Store(_absolute(checkpoints_dir), self.disk)
        self._used = False
        self._registered: dict[str, Registered] = {}
        self._load_hooks = dict(custom_load_hooks or {})
        self._save_hooks = dict(custom_save_hooks or {})
        self._owner: Owner | None = None
        # Round what the caller waits for: a trainer that keeps a ledger of its time puts another one here.
        self.timed: Callable[[], AbstractContextManager[None]] = nullcontext
        self._world = World.from_environment()
        self._loaded: Checkpoint | None = None
        self._written: Checkpoint | None = None
        self._writing: Save | None = None  # until it is written
        self._last: Save | None = None
        self._taking = False  # whether a save asks the objects for their states
        self._writer = Writer(self.checkpoints_dir)
        self.troubled = (
            False  # whether a save in the background has failed and `wait` has not raised that yet
        )
        self._copies = Copies()
        self._weights_only = False
        self._criterion: tuple[str, str] | None = None  # of save_and_keep_only
        self.best_of_snapshots: Sequence[tuple[str, str]] = ()  # by what those of the Brain keep the best
        self._failed_saves = self._failed_in_a_row = 0
        self._said: set[str] = set()
        for name, load_hook in self._load_hooks.items():
            check_load_hook(load_hook, f"the load hook of {name!r}")
        for name, save_hook in self._save_hooks.items():
            check_save_hook(save_hook, f"the save hook of {name!r}")
        self.add_recoverables(recoverables or {})

    def __getstate__(self) -> dict[str, Any]:
        self.wait()
        return {**self.__dict__, "_last": None}  # a copy has nothing that is being written

    def __repr__(self) -> str:
        return f"Checkpointer({str(self.checkpoints_dir)!r}, recoverables={list(self._registered)})"

    # -------------------------------------------------------------------------------------------- what takes part

    @property
    def checkpoints_dir(self) -> Path:
        """The folder of checkpoints, absolute. It can be set until the first save or load, not after."""
        return self._store.folder

    @checkpoints_dir.setter
    def checkpoints_dir(self, folder: str | os.PathLike[str]) -> None:
        if self._used:
            raise CheckpointError(
                f"this Checkpointer has worked in {self.checkpoints_dir} already; make a new one for "
                f"{os.fspath(folder)}"
            )
        self._store = Store(_absolute(folder), self.disk)
        self._writer.folder = self.checkpoints_dir

    @property
    def recoverables(self) -> Mapping[str, object]:
        """The registered objects by name, to read; `add_recoverable` changes them."""
        return MappingProxyType({name: registered.obj for name, registered in self._registered.items()})

    def attach(self, owner: Owner | None, *, world: World | None = None) -> None:
        """Makes a trainer's objects and counters part of every checkpoint from now on; a second one replaces the first.

        Args:
            owner: The trainer; None detaches it.
            world: The processes of the run; by default those that a launcher has started.
        """
        self._owner = owner
        self._world = world or World.from_environment()

    def add_recoverable(
        self,
        name: str,
        obj: object,
        custom_load_hook: LoadHook | None = None,
        custom_save_hook: SaveHook | None = None,
        optional_load: bool = False,
    ) -> None:
        """Registers an object. A name that is taken already gets the new object.

        Args:
            name: The object's name in every checkpoint; a plain file name.
            obj: The object.
            custom_load_hook: ``hook(obj, path, end_of_epoch)``, instead of the usual loading.
            custom_save_hook: ``hook(obj, path)``, instead of the usual saving.
            optional_load: Whether a checkpoint without it is fine; the object then stays as it is.

        Raises:
            CheckpointError: The name is no plain file name, or the object cannot be saved.
        """
        check_name(name, "a recoverable")
        if custom_load_hook is not None:
            check_load_hook(custom_load_hook, f"the load hook of {name!r}")
        if custom_save_hook is not None:
            check_save_hook(custom_save_hook, f"the save hook of {name!r}")
        registered = Registered(obj, custom_save_hook, custom_load_hook, optional_load)
        if self._resolve(name, registered) is None:
            raise CheckpointError(
                f"{name!r} is a {class_name(obj)}, and there is no way known to save one. Give its class state_dict() "
                "and load_state_dict(), or decorate it with register_checkpoint_hooks, or pass custom_save_hook and "
                "custom_load_hook"
            )
        self._registered[name] = registered

    def add_recoverables(self, recoverables: Mapping[str, object]) -> None:
        """Registers several objects by name, see `add_recoverable`."""
        if not isinstance(recoverables, Mapping):
            raise CheckpointError(
                f"recoverables is a {type(recoverables).__name__}; a dict from names to objects is needed"
            )
        for name, obj in recoverables.items():
            self.add_recoverable(name, obj)

    def _resolve(self, name: str, registered: Registered) -> Recoverable | None:
        """How an object is saved: hooks given beside it, then those of its class, then its kind; None: not at all."""
        obj = registered.obj
        hooks = hooks_of(obj) or ClassHooks()
        saver = registered.saver or self._save_hooks.get(name) or _method(obj, hooks.saver)
        loader = registered.loader or self._load_hooks.get(name) or _method(obj, hooks.loader)
        kind = kind_of(obj)
        if kind is None:
            if saver is None or loader is None:
                return None
            kind = Kind()
        return Recoverable(name, obj, kind, saver, loader, registered.optional or kind.optional)

    def _gather(self) -> tuple[list[Recoverable], ParameterNames]:
        """All that takes part now: what the user registered, then what is found on the owner and is not in that."""
        found: list[Recoverable] = []
        for name, registered in self._registered.items():
            recoverable = self._resolve(name, registered)
            assert recoverable is not None, name  # add_recoverable refused others
            found.append(recoverable)
        modules = {r.name: r.obj for r in found if isinstance(r.obj, torch.nn.Module)}
        known_modules = dict(modules)
        taken = {r.name for r in found}
        objects = {id(r.obj) for r in found}
        for given_name, obj in (self._owner.found_recoverables() if self._owner else {}).items():
            if id(obj) in objects:
                continue
            name = given_name
            while name in taken:
                name = f"brain-{name}"
            if isinstance(obj, torch.nn.Module):
                known_modules[name] = obj  # covered or not, its names help to know parameters again
                if covered(obj, modules.values()):
                    continue
                modules[name] = obj
            found_one = self._resolve(check_name(name, "a recoverable"), Registered(obj))
            if found_one is None:
                self._warn_once(
                    f"{name!r} ({class_name(obj)}) is not in the checkpoints: there is no way known to save one. Give "
                    "it state_dict() and load_state_dict() if the run needs it"
                )
                continue
            taken.add(name)
            objects.add(id(obj))
            found.append(found_one)
        for name in (*self._load_hooks, *self._save_hooks):
            if name not in taken:
                self._warn_once(
                    f"the custom hook for {name!r} has no effect: nothing has that name.{nearest(name, taken)}"
                )
        return found, ParameterNames(known_modules)

    def _warn_once(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            logger.warning("%s", message)

    def _settle(self) -> None:
        """Before a look at the folder: what is being written comes first; what killed processes left is removed."""
        self.wait()
        settled(self.checkpoints_dir)  # another object may write there
        if not self._used:
            self._used = True
            if self._world.is_main:
                self._store.sweep()

    def make_ready(self) -> None:
        """Makes the folder of checkpoints where it is missing; a trainer calls it before the work begins. Main process.

        Raises:
            CheckpointError: The folder cannot be made, or not be written to.

        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Checkpointer(folder + "/run/save").make_ready()
        ...     os.path.isdir(folder + "/run/save")
        True
        """
        if self._world.is_main:
            self._store.make_ready()

    # ------------------------------------------------------------------------------------------------------ saving

    def save_checkpoint(
        self,
        meta: Mapping[str, Any] | None = None,
        end_of_epoch: bool = True,
        name: str | None = None,
        verbosity: int = logging.INFO,
        *,
        reason: str = "user",
        snapshot: tuple[str, int] | None = None,
    ) -> Checkpoint:
        """Saves everything that takes part, as it is now; it is written while the caller goes on.

        On return the state is copied, and may change. The checkpoint's `wait` returns when it is on the disk, complete.

        Args:
            meta: What to note beside it: metrics, remarks; numbers may be numpy's or torch's.
            end_of_epoch: Whether the epoch is closed, which loader hooks are told. An attached Brain knows it better.
            name: Saves under ``CKPT+<name>``; the older checkpoint of that name, if any, goes once this one is there.
            verbosity: The level of the log line.
            reason: For the trainer: why it saves (see `manifest.REASONS`). Of automatic ones the newest is kept.
            snapshot: For a `Snapshot`: its name, and which one of it this is.

        Returns:
            The checkpoint, with its final path.

        Raises:
            CheckpointError: Something cannot be saved; the message names it. The folder is as it was.
            OSError: The disk refused; the message names the object. The folder is as it was. What the disk refuses in
                the background is raised by `wait`, and by the next call that looks at the folder.

        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpointer = Checkpointer(folder, {"model": torch.nn.Linear(2, 1)})
        ...     checkpointer.save_checkpoint({"epoch": 3}, name="before-fine-tuning").wait().path.name
        'CKPT+before-fine-tuning'
        """
        return self._save(meta, end_of_epoch, name, verbosity, reason, self.criterion, snapshot).told

    def wait(self) -> None:
        """Returns when the last save is on the disk, complete, and what it let go is gone; at once when that is so.

        Raises:
            CheckpointError, OSError: It could not be written. Raised once; the saves after it are not affected.

        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpointer = Checkpointer(folder, {"model": torch.nn.Linear(2, 1)})
        ...     checkpoint = checkpointer.save_checkpoint()
        ...     checkpointer.wait()
        ...     (checkpoint.path / "manifest.json").exists()
        True
        """
        with self.timed():
            try:
                self._writer.wait()
            finally:
                self.troubled = self._writer.failed

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._writer.busy

    def save_automatically(
        self,
        meta: Mapping[str, Any] | None = None,
        end_of_epoch: bool = True,
        *,
        reason: str,
        snapshot: tuple[str, int] | None = None,
        on_error: str = "raise",
        going: Sequence[Checkpoint] = (),
    ) -> Checkpoint | None:
        """For the trainer: as `save_checkpoint`, and where asked for, a save that failed does not end the run.

        Args:
            meta: As for `save_checkpoint`.
            end_of_epoch: As for `save_checkpoint`.
            reason: As for `save_checkpoint`.
            snapshot: As for `save_checkpoint`.
            on_error: The run option `on_save_error`. "raise": the error comes through; "warn": it is logged as an
                error, with how many saves in a row have failed and which checkpoint is the last good one.
            going: Checkpoints that are let go once this one is on the disk.

        Returns:
            The checkpoint; None when it is known already that there is none, and that was only logged.

        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpointer = Checkpointer(folder, {"model": torch.nn.Linear(2, 1)})
        ...     checkpointer.save_automatically({"loss": 0.5}, reason="epoch", on_error="warn").wait().meta
        {'loss': 0.5}
        """
        if on_error not in ("raise", "warn"):
            raise CheckpointError(f"on_error is {on_error!r}; it is 'raise' or 'warn'")
        try:
            save = self._save(
                meta, end_of_epoch, None, logging.INFO, reason, self.criterion, snapshot, on_error, going
            )
        except (OSError, CheckpointError) as error:
            if on_error == "raise":
                raise
            self._say_not_saved(error)
            return None
        return None if save.error is not None and not self.busy else save.told

    def _say_not_saved(self, error: BaseException) -> None:
        logger.error(
            "NOT SAVED: %s. on_save_error is 'warn', so the run goes on. %s failed in a row (%d of this run in all); "
            "if it ends now, %s",
            error,
            "1 save has" if self._failed_in_a_row == 1 else f"{self._failed_in_a_row} saves have",
            self._failed_saves,
            f"it goes on from {self._written.path}"
            if self._written
            else "nothing that it has saved is there",
        )

    @property
    def failed_saves(self) -> int:
        """How many saves of this object have failed for good, after all tries."""
        return self._failed_saves

    def save_and_keep_only(
        self,
        meta: Mapping[str, Any] | None = None,
        end_of_epoch: bool = True,
        name: str | None = None,
        num_to_keep: int = 1,
        keep_recent: bool = True,
        importance_keys: Sequence[Score[Checkpoint]] = (),
        max_keys: Keys = (),
        min_keys: Keys = (),
        ckpt_predicate: Predicate | None = None,
        verbosity: int = logging.INFO,
    ) -> Checkpoint:
        """Saves, then lets the older checkpoints go that no rule keeps; a trainer's automatic ones are left alone.

        Args:
            meta: As for `save_checkpoint`.
            end_of_epoch: As for `save_checkpoint`.
            name: As for `save_checkpoint`.
            num_to_keep: How many each rule keeps; -1 for all.
            keep_recent: Whether the newest are kept as well.
            importance_keys: Rules as functions of a checkpoint: the largest values are kept. The one that is being
                saved has its `meta` and `counters`, and no files yet.
            max_keys: Metrics in `meta` of which the largest are kept.
            min_keys: Metrics in `meta` of which the smallest are kept. The first of `min_keys`, else of `max_keys`, is
                from now on what "best" means (`declared_criterion`).
            ckpt_predicate: Only checkpoints for which it is true may go.
            verbosity: The level of the log line.

        Returns:
            The checkpoint that was saved, also when a rule let it go.

        Raises:
            CheckpointError: As for `save_checkpoint`; or no checkpoint has a metric that was named: then the weights
                are saved and nothing was deleted.

        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpointer = Checkpointer(folder, {"model": torch.nn.Linear(2, 1)})
        ...     for wer in (30.0, 10.0, 20.0):
        ...         _ = checkpointer.save_and_keep_only({"WER": wer}, min_keys=["WER"])
        ...     [c.meta["WER"] for c in checkpointer.find_checkpoints(min_key="WER")]
        [10.0, 20.0]
        """
        lowest, highest = _names(min_keys, "min_keys"), _names(max_keys, "max_keys")
        _check_num_to_keep(num_to_keep)
        declared: tuple[str, str] | None = (
            ("min", lowest[0]) if lowest else ("max", highest[0]) if highest else None
        )
        trouble: list[Exception] = []

        def going(coming: Checkpoint) -> list[Checkpoint]:
            try:
                scores = [*importance_keys, *([recency] if keep_recent else [])]
                return self._doomed(num_to_keep, lowest, highest, scores, ckpt_predicate, coming)
            except Exception as error:  # noqa: BLE001  # of a misspelt metric, or a function of the user's: after the save
                trouble.append(error)
                return []

        saved = self._save(
            meta, end_of_epoch, name, verbosity, "user", declared or self.criterion, going=going
        ).told
        self._criterion = declared or self._criterion
        if trouble:
            self.wait()
            raise trouble[0]
        return saved

    def _save(self, *args: Any, **kwargs: Any) -> Save:
        with self.timed():
            return self._save_now(*args, **kwargs)

    def _save_now(
        self,
        meta: Mapping[str, Any] | None,
        end_of_epoch: bool,
        name: str | None,
        verbosity: int,
        reason: str,
        criterion: tuple[str, str] | None,
        snapshot: tuple[str, int] | None = None,
        on_error: str = "raise",
        going: Sequence[Checkpoint] | Callable[[Checkpoint], list[Checkpoint]] = (),
    ) -> Save:
        """A save by all ranks, of which the main one writes. The state at an error it writes alone."""
        arguments = (meta, end_of_epoch, name, verbosity, reason, criterion, snapshot, on_error, going)
        if self._world.size == 1 or (reason == "error" and self._world.is_main):
            return self._save_here(*arguments)
        return self._save_together(on_error, lambda: self._save_here(*arguments))

    def _save_together(self, on_error: str, save_here: Callable[[], Save]) -> Save:
        """The main rank gets what each rank alone knows, and writes; the others learn what became of it. All ranks."""
        joined = link()
        joined.assemble("a save of a checkpoint")
        parts = gather(self._owner.part() if isinstance(self._owner, OwnerOfRanks) else None)
        answer: Save | Checkpoint | Exception | None = None
        if self._world.is_main:
            if isinstance(self._owner, OwnerOfRanks):
                self._owner.parts = parts
            try:
                answer = save_here()
            except (OSError, CheckpointError) as error:
                answer = error
            finally:
                if isinstance(self._owner, OwnerOfRanks):
                    self._owner.parts = []
        told = from_main(lambda: answer.told if isinstance(answer, Save) else answer)
        if isinstance(answer, Save):
            return answer
        if isinstance(told, Exception):
            if isinstance(answer, Exception):
                raise answer
            self._count_failure()
            raise of_rank(0, told)
        assert isinstance(told, Checkpoint)
        # This rank writes nothing, and has nothing to wait for.
        self._written = told = replace(told, writer=None)
        return Save(told, [], told.path.name, on_error, logging.DEBUG)

    def _save_here(
        self,
        meta: Mapping[str, Any] | None,
        end_of_epoch: bool,
        name: str | None,
        verbosity: int,
        reason: str,
        criterion: tuple[str, str] | None,
        snapshot: tuple[str, int] | None,
        on_error: str,
        going: Sequence[Checkpoint] | Callable[[Checkpoint], list[Checkpoint]],
    ) -> Save:
        """Everything that concerns live objects; then the writing, here or beside."""
        assert self._world.is_main, "only the main process writes checkpoints"
        if reason not in REASONS:
            raise CheckpointError(
                f"reason is {reason!r}; it is one of {quoted(REASONS)}.{nearest(str(reason), REASONS)}"
            )
        if name is not None:
            check_name(name, "a checkpoint")
        if meta is not None and not isinstance(meta, Mapping):
            raise CheckpointError(f"meta is a {type(meta).__name__}; a dict from names to values is needed")
        noted = plain(dict(meta or {}))
        if self._taking:
            raise CheckpointError(
                "a save began while another one of this Checkpointer takes its states: in a save hook or a "
                "state_dict() of an object that is being saved, or in another thread. A Checkpointer is for one "
                "thread at a time"
            )
        self._settle()
        self._taking = True
        try:
            with _no_search_for_rings():
                entries, beside = self._take_states()
            counters = (
                {key: int(value) for key, value in self._owner.counters().items()} if self._owner else {}
            )
            stem = self._stem(name, counters)
            told = Checkpoint(
                path=self.checkpoints_dir / (stem if name is not None else self._store.free_name(stem)),
                meta=noted,
                commit=self._store.next_commit(),
                reason=reason,
                name=name,
                end_of_epoch=bool(self._owner.closes_epoch() if self._owner else end_of_epoch),
                counters=counters,
                time=manifest.now(),
                criterion=criterion,
                environment=self.environment(),
                world_size=self._world.size,
                snapshot_of=snapshot[0] if snapshot else None,
                number=snapshot[1] if snapshot else 0,
                writer=lambda: self._finish(save),
            )
            save = Save(told, entries, stem, on_error, verbosity if reason == "user" else logging.DEBUG)
            save.going = list(going(told) if callable(going) else going)
            try:
                write_by_hooks(save, self._store, self.retry)
            except BaseException:
                if save.draft is not None:
                    self._store.close_draft(save.draft)
                raise
        except (OSError, CheckpointError):
            self._count_failure()
            raise
        finally:
            self._taking = False
        self._writing = self._last = save
        if not beside:
            self._write(save)
            return save
        try:
            self._writer.start(lambda pace: self._write(save, pace))
        except BaseException:
            if not self._writer.busy and self._writing is save:  # interrupted before it began
                self._writing = None
                if save.draft is not None:
                    self._store.close_draft(save.draft)
            raise
        return save

    def _take_states(self) -> tuple[list[Entry], bool]:
        """The states of all that takes part, and whether they are copies, which can be written beside training."""
        recoverables, names = self._gather()
        entries = entries_of(recoverables)
        taking = {each.recoverable.name: each for each in entries if each.recoverable.saver is None}
        states = {name: _state_of(each.recoverable, names) for name, each in taking.items()}
        if self.background:
            try:
                bare = {name for name, each in taking.items() if each.recoverable.kind.bare}
                copied, odd = self._copies.take(states, bare)
            except CheckpointError:  # it does not say where; `tidy` does, and raises again
                pass
            except (MemoryError, RuntimeError) as error:
                if not isinstance(error, MemoryError) and "alloc" not in str(error).lower():
                    raise
                self._copies = Copies()
                self._warn_once(
                    f"there is no memory for a copy of the state ({error}): checkpoints are written while training "
                    "waits. Checkpointer(..., background=False) or ckpt_async: false does that from the start"
                )
            else:
                for name, each in taking.items():
                    each.state, each.odd = copied[name], name in odd
                return entries, True
        for name, each in taking.items():
            recoverable = each.recoverable
            each.state, each.odd = tidy(states[name], recoverable.told, recoverable.kind.bare)
        return entries, False

    def _write(self, save: Save, pace: Callable[[], None] = hurried) -> None:
        """From copied states to the checkpoint on the disk, and what follows from its being there."""
        committed = False
        try:
            try:
                self._copies.ready()
                refuse = getattr(self._owner, "refuse", None)
                if callable(refuse):
                    refuse(
                        {each.recoverable.name: (each.recoverable.obj, each.state) for each in save.entries}
                    )
                written = write_checkpoint(save, self._store, self.retry, pace)
            except (OSError, CheckpointError):
                self._count_failure()
                raise
            self._failed_in_a_row = 0
            if save.told.name is not None:
                written = self._replace_namesakes(written, save.stem)
            save.told.fill(written)
            self._written, committed = save.told, True
            logger.log(save.verbosity, "saved the checkpoint %s", written.path)
            if written.reason in AUTOMATIC:
                automatic = [c for c in self._store.known() if c.reason in AUTOMATIC]
                save.going += sorted(automatic, key=lambda c: c.commit, reverse=True)[AUTOMATIC_KEPT:]
            for older in save.going:
                self._let_go(older)
                logger.log(save.verbosity, "deleted the checkpoint %s", older.path)
            self._keep_journal()
        except (OSError, CheckpointError) as error:
            save.error = error
            if save.on_error == "raise":
                self.troubled = pace is not hurried
                if self.troubled:
                    logger.error(
                        "%s. The next save, or what else looks at the checkpoints, raises this error", error
                    )
                raise
            if committed:
                logger.error("%s was saved, but an older one could not be removed: %s", save.told.path, error)
                save.error = None
            else:
                self._say_not_saved(error)
        except BaseException as error:
            save.error, self.troubled = error, pace is not hurried
            raise
        finally:
            if save.draft is not None and not committed:
                self._store.close_draft(save.draft)
            save.entries = []  # the copies stay, the live objects need not
            self._writing = None

    def _finish(self, save: Save) -> None:
        """For one checkpoint's `wait`."""
        if self._last is save:
            self.wait()
        if save.error is not None:
            raise save.error

    def _count_failure(self) -> None:
        self._failed_saves += 1
        self._failed_in_a_row += 1

    def _keep_journal(self, anew: bool = False) -> None:
        try:
            self._store.keep_journal(anew)
        except OSError as error:  # a cache: without it a listing reads the manifests
            self._warn_once(
                f"{RECORDS} could not be brought up to date ({error}); that costs time at a listing and nothing else"
            )

    def _let_go(self, checkpoint: Checkpoint) -> None:
        self.retry.run(lambda: self._store.delete(checkpoint), f"deleting {checkpoint.path}")
        if checkpoint == self._written:
            self._written = None

    def _stem(self, name: str | None, counters: dict[str, int]) -> str:
        if name is not None:
            return f"CKPT+{name}"
        if "optimizer_step" in counters:
            return f"step-{counters['optimizer_step']:08d}"
        return f"commit-{self._store.next_commit():08d}"

    def environment(self) -> dict[str, Any]:
        """What exactness depends on; a trainer that knows more (compile, form of the optimizer) has `environment()`."""
        more = getattr(self._owner, "environment", None)
        return {**manifest.environment(), **(plain(more(), "environment") if callable(more) else {})}

    def _replace_namesakes(self, checkpoint: Checkpoint, stem: str) -> Checkpoint:
        """A name means one checkpoint, the newest: older ones go now that it is there, and it gets their place."""
        for older in self._store.known():
            if older.name == checkpoint.name and older.commit < checkpoint.commit:
                self._let_go(older)
        return self.retry.run(
            lambda: self._store.rename(checkpoint, stem), f"renaming {checkpoint.path} to {stem}"
        )

    def hold(self) -> Held:
        """For the trainer: everything that takes part as it is now, in memory. It touches no disk of checkpoints.

        Raises:
            CheckpointError: Something does not give its state, or there is not enough memory for a copy.

        >>> model = torch.nn.Linear(1, 1)
        >>> held = Checkpointer("never-written", {"model": model}).hold()
        """
        return Held(self._gather)

    # ----------------------------------------------------------------------------------------------------- finding

    def list_checkpoints(self) -> list[Checkpoint]:
        """All checkpoints, of every reason, the newest first.

        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Checkpointer(folder).list_checkpoints()
        []
        """
        self._settle()
        return self._store.listed()

    def records(self) -> list[Record]:
        """As `list_checkpoints`, the little that a listing tells of each, by far faster where there are thousands.

        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpointer = Checkpointer(folder, {"model": torch.nn.Linear(2, 1)})
        ...     _ = checkpointer.save_checkpoint({"WER": 9.0})
        ...     [record.metrics for record in checkpointer.records()]
        [{'WER': 9.0}]
        """
        self._settle()
        records, without_line = from_journal(self.checkpoints_dir)
        if without_line:
            records = [record_of(checkpoint) for checkpoint in self._store.listed()]
            if self._world.is_main:
                self._keep_journal(anew=True)
        return records

    def newest(self) -> Checkpoint | None:
        """The newest intact checkpoint of any reason but "error"; None when there is none.

        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Checkpointer(folder).newest() is None
        True
        """
        without = frozenset({"error"})
        return self._first_intact([c for c in self.list_checkpoints() if c.reason not in without], without)

    @property
    def loaded(self) -> Checkpoint | None:
        """The checkpoint that was loaded last, which may be an older one than `newest` when that is damaged."""
        return self._loaded

    @property
    def written(self) -> Checkpoint | None:
        """The checkpoint that this object wrote last, or is writing; None once it has let that go again."""
        writing = self._writing
        if writing is None or any(each is writing.told for each in writing.going):
            return self._written
        return writing.told

    def find_checkpoint(
        self,
        importance_key: Score[Checkpoint] | None = None,
        max_key: str | None = None,
        min_key: str | None = None,
        ckpt_predicate: Predicate | None = None,
        *,
        include: Sequence[str] = (),
    ) -> Checkpoint | None:
        """The best checkpoint, or the newest when nothing says what "best" is; None when there is none.

        Args:
            importance_key: A function of a checkpoint; the largest value is best.
            max_key: A metric; the largest is best. At most one of the three may be given.
            min_key: A metric; the smallest is best. NaN is never best, and among equals the newest is.
            ckpt_predicate: Only checkpoints for which it is true are looked at.
            include: Reasons to look at as well: "timed", "signal", "error".

        Raises:
            CheckpointError: No checkpoint has the metric; the message lists those there are.

        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpointer = Checkpointer(folder, {"model": torch.nn.Linear(2, 1)})
        ...     for loss in (0.5, float("nan"), 0.1):
        ...         _ = checkpointer.save_checkpoint({"loss": loss})
        ...     checkpointer.find_checkpoint(max_key="loss").meta
        {'loss': 0.5}
        """
        without = SKIPPED_BY_FIND - self._included(include)
        found = self._find(importance_key, max_key, min_key, ckpt_predicate, without)
        return self._first_intact(found, without)

    def find_checkpoints(
        self,
        importance_key: Score[Checkpoint] | None = None,
        max_key: str | None = None,
        min_key: str | None = None,
        ckpt_predicate: Predicate | None = None,
        max_num_checkpoints: int | None = None,
        *,
        include: Sequence[str] = (),
    ) -> list[Checkpoint]:
        """As `find_checkpoint`, all of them, the best (or newest) first, at most `max_num_checkpoints`.

        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpointer = Checkpointer(folder, {"model": torch.nn.Linear(2, 1)})
        ...     for loss in (0.5, 0.3, 0.1):
        ...         _ = checkpointer.save_checkpoint({"loss": loss})
        ...     [c.meta["loss"] for c in checkpointer.find_checkpoints(min_key="loss", max_num_checkpoints=2)]
        [0.1, 0.3]
        """
        without = SKIPPED_BY_FIND - self._included(include)
        found = self._find(importance_key, max_key, min_key, ckpt_predicate, without)
        return found if max_num_checkpoints is None else found[: max(0, max_num_checkpoints)]

    @property
    def criterion(self) -> tuple[Literal["min", "max"], str] | None:
        """What this object knows that "best" means; `declared_criterion` also asks the checkpoints.

        That is what the last `save_and_keep_only` named, else the one metric by which Snapshots keep the best.
        """
        only = self.best_of_snapshots[0] if len(self.best_of_snapshots) == 1 else None
        return _as_criterion(self._criterion or only)

    def declared_criterion(self) -> tuple[Literal["min", "max"], str] | None:
        """What "best" means: the metric of the last `save_and_keep_only` that named one, or the only one of the
        rules `best` of all Snapshots; also after a restart.

        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpointer = Checkpointer(folder, {"model": torch.nn.Linear(2, 1)})
        ...     _ = checkpointer.save_and_keep_only({"WER": 9.0}, min_keys=["WER"])
        ...     Checkpointer(folder).declared_criterion()
        ('min', 'WER')
        """
        told = self.criterion or next((c.criterion for c in self.list_checkpoints() if c.criterion), None)
        return _as_criterion(told)

    @staticmethod
    def _included(include: Sequence[str]) -> frozenset[str]:
        for reason in _names(include, "include"):
            if reason not in REASONS:
                raise CheckpointError(
                    f"include holds {reason!r}; the reasons are {quoted(REASONS)}.{nearest(reason, REASONS)}"
                )
        return frozenset(_names(include, "include"))

    def _find(
        self,
        importance_key: Score[Checkpoint] | None,
        max_key: str | None,
        min_key: str | None,
        predicate: Predicate | None,
        without: frozenset[str],
    ) -> list[Checkpoint]:
        given = {"importance_key": importance_key, "max_key": max_key, "min_key": min_key}
        if len(told := [name for name, key in given.items() if key is not None]) > 1:
            raise CheckpointError(
                f"{' and '.join(told)} were given; one order at a time, so give one of them"
            )
        candidates = [c for c in self.list_checkpoints() if c.reason not in without]
        if predicate is not None:
            candidates = [c for c in candidates if predicate(c)]
        if importance_key is not None:
            return rank(candidates, importance_key)
        key = max_key if max_key is not None else min_key
        if key is None or not candidates:
            return candidates
        require_metric(key, candidates)
        return rank(candidates, by_metric(key, "min" if max_key is None else "max"))

    def _intact(self, checkpoints: Sequence[Checkpoint]) -> Iterator[Checkpoint]:
        """Those whose files are all there in their size; warns of the others."""
        for checkpoint in checkpoints:
            try:
                self._store.check_sizes(checkpoint)
            except DamagedCheckpointError as error:
                logger.warning("the checkpoint %s is skipped: %s", checkpoint.path, error)
                continue
            yield checkpoint

    def _first_intact(self, found: Sequence[Checkpoint], without: frozenset[str]) -> Checkpoint | None:
        for checkpoint in self._intact(found):
            return checkpoint
        self._refuse_if_all_damaged(found, without)
        return None

    def _refuse_if_all_damaged(self, found: Sequence[Checkpoint], without: frozenset[str]) -> None:
        """After nothing in `found` was intact. "Nothing is there" and "all is damaged" must not look the same."""
        loadable = [c for c in self._store.known() if c.reason not in without]
        if found or (self._store.damaged and not loadable):
            raise CheckpointError(
                f"all checkpoints in {self.checkpoints_dir} that could be loaded are damaged; the warnings above say "
                "how. Put an intact copy there, or move the damaged ones away to start from scratch"
            )

    # ---------------------------------------------------------------------------------------------------- deleting

    def delete_checkpoints(
        self,
        *,
        num_to_keep: int = 1,
        min_keys: Keys = (),
        max_keys: Keys = (),
        importance_keys: Sequence[Score[Checkpoint]] = (),
        ckpt_predicate: Predicate | None = None,
        verbosity: int = logging.INFO,
    ) -> None:
        """Lets go of the user's checkpoints that no rule keeps; without a rule the newest `num_to_keep` stay.

        Checkpoints without the metrics and those for which the predicate is false are left, and so are a trainer's
        automatic ones, which it looks after itself.

        Args:
            num_to_keep: How many each rule keeps; -1 for all.
            min_keys: As for `save_and_keep_only`.
            max_keys: As for `save_and_keep_only`.
            importance_keys: As for `save_and_keep_only`.
            ckpt_predicate: As for `save_and_keep_only`.
            verbosity: The level of the log lines.

        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpointer = Checkpointer(folder, {"model": torch.nn.Linear(2, 1)})
        ...     for loss in (0.5, 0.3, 0.1):
        ...         _ = checkpointer.save_checkpoint({"loss": loss})
        ...     checkpointer.delete_checkpoints(max_keys=["loss"])
        ...     [c.meta["loss"] for c in checkpointer.list_checkpoints()]
        [0.5]
        """
        _check_num_to_keep(num_to_keep)
        lowest, highest = _names(min_keys, "min_keys"), _names(max_keys, "max_keys")
        if not self._world.is_main:
            return
        self.list_checkpoints()
        going = self._doomed(num_to_keep, lowest, highest, list(importance_keys), ckpt_predicate)
        for checkpoint in going:
            self._let_go(checkpoint)
            logger.log(verbosity, "deleted the checkpoint %s", checkpoint.path)
        if going:
            self._keep_journal()

    def delete(self, checkpoint: Checkpoint) -> None:
        """Lets go of this very one, whoever made it; one that is gone already is no error.

        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpointer = Checkpointer(folder, {"model": torch.nn.Linear(2, 1)})
        ...     checkpointer.delete(checkpointer.save_checkpoint())
        ...     checkpointer.list_checkpoints()
        []
        """
        if not self._world.is_main:
            return
        self._settle()
        self._let_go(checkpoint)
        self._keep_journal()

    def set_aside(self) -> Path | None:
        """Moves all checkpoints into ``former.1`` (``former.2``, …) inside the folder, where none of them counts.

        They stay what they are: ``Checkpointer(folder / "former.1")`` finds them. Main process only.

        Returns:
            That folder; None where there was no checkpoint.

        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpointer = Checkpointer(folder, {"model": torch.nn.Linear(2, 1)})
        ...     _ = checkpointer.save_checkpoint()
        ...     former = checkpointer.set_aside()
        ...     former.name, len(checkpointer.list_checkpoints()), len(Checkpointer(former).list_checkpoints())
        ('former.1', 0, 1)
        """
        if not self._world.is_main:
            return None
        self._settle()
        former = self.retry.run(
            self._store.set_aside, f"moving the checkpoints in {self.checkpoints_dir} aside"
        )
        if former is not None:
            self._written = None
            self._keep_journal(anew=True)
        return former

    def _doomed(
        self,
        num_to_keep: int,
        min_keys: Sequence[str],
        max_keys: Sequence[str],
        importance: Sequence[Score[Checkpoint]],
        predicate: Predicate | None,
        coming: Checkpoint | None = None,
    ) -> list[Checkpoint]:
        """The user's checkpoints that no rule keeps, as soon as `coming` is one of them."""
        there = [c for c in self._store.known() if coming is None or c.name is None or c.name != coming.name]
        candidates = [
            c
            for c in [*([coming] if coming is not None else []), *there]
            if c.reason == "user" and (predicate is None or predicate(c))
        ]
        if not candidates:
            return []
        for key in (*min_keys, *max_keys):
            require_metric(key, candidates)
        scores: list[Score[Checkpoint]] = [
            *importance,
            *(by_metric(key, "min") for key in min_keys),
            *(by_metric(key, "max") for key in max_keys),
        ]
        return doomed(candidates, scores or [recency], num_to_keep)

    # ----------------------------------------------------------------------------------------------------- loading

    @contextmanager
    def weights_only(self) -> Iterator[None]:
        """Inside it, every load touches modules only: to evaluate a checkpoint in the middle of a run.

        >>> model, generator = torch.nn.Linear(2, 1), torch.Generator()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpointer = Checkpointer(folder, {"model": model, "generator": generator})
        ...     _ = checkpointer.save_checkpoint()
        ...     _ = generator.manual_seed(7)
        ...     with checkpointer.weights_only():
        ...         _ = checkpointer.recover_if_possible()
        ...     generator.initial_seed()
        7
        """
        before = self._weights_only
        self._weights_only = True
        try:
            yield
        finally:
            self._weights_only = before

    def recover_if_possible(
        self,
        importance_key: Score[Checkpoint] | None = None,
        max_key: str | None = None,
        min_key: str | None = None,
        ckpt_predicate: Predicate | None = None,
        *,
        device: object = None,
    ) -> Checkpoint | None:
        """Loads the best checkpoint, or the newest when nothing says what "best" is; None when there is none.

        Without an order, checkpoints made inside an epoch and by a signal count as well (those of a run that failed do
        not). A damaged one is skipped with a warning and the next is taken.

        Args:
            importance_key: As for `find_checkpoint`.
            max_key: As for `find_checkpoint`.
            min_key: As for `find_checkpoint`.
            ckpt_predicate: As for `find_checkpoint`.
            device: Taken for the sake of old code; it has no effect, for every object is loaded to where it is.

        Raises:
            CheckpointError: There are checkpoints and all are damaged; or the one found does not fit, in which case
                the live objects are as they were.

        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Checkpointer(folder, {"model": torch.nn.Linear(2, 1)}).recover_if_possible() is None
        True
        """
        self._device_has_no_effect(device)
        if self._world.size == 1:
            return self._recover(importance_key, max_key, min_key, ckpt_predicate)
        chosen = (
            self._recover(importance_key, max_key, min_key, ckpt_predicate) if self._world.is_main else None
        )
        told = from_main(lambda: chosen)
        if told is not None and not self._world.is_main:
            self._load_what_main_did(told)
        return told

    def _load_what_main_did(self, told: Checkpoint) -> None:
        if not told.path.is_dir():
            raise CheckpointError(
                f"rank 0 has loaded {told.path}, which rank {self._world.rank} does not see. All machines of a run "
                "need the folder of checkpoints on a disk that they share"
            )
        self._load(manifest.read(told.path))

    def _recover(
        self,
        importance_key: Score[Checkpoint] | None,
        max_key: str | None,
        min_key: str | None,
        ckpt_predicate: Predicate | None,
    ) -> Checkpoint | None:
        no_order = importance_key is None and max_key is None and min_key is None
        without = frozenset({"error"}) if no_order else SKIPPED_BY_FIND
        found = self._find(importance_key, max_key, min_key, ckpt_predicate, without)
        for checkpoint in found:
            try:
                self._load(checkpoint)
            except DamagedCheckpointError as error:
                logger.warning("the checkpoint %s is skipped: %s", checkpoint.path, error)
                continue
            return checkpoint
        self._refuse_if_all_damaged(found, without)
        return None

    def load_checkpoint(
        self, checkpoint: Checkpoint | str | os.PathLike[str], *, device: object = None
    ) -> Checkpoint:
        """Loads this very checkpoint, wherever it lies.

        Args:
            checkpoint: A checkpoint, or the path of its folder.
            device: Taken for the sake of old code; it has no effect.

        Raises:
            DamagedCheckpointError: Its files are not those that were written.
            CheckpointError: It does not fit the live objects, which are as they were.

        >>> model = torch.nn.Linear(2, 1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoint = Checkpointer(folder, {"model": model}).save_checkpoint()
        ...     Checkpointer("elsewhere", {"model": model}).load_checkpoint(checkpoint.path) == checkpoint
        True
        """
        self._device_has_no_effect(device)
        self._settle()
        if self._world.size > 1:
            from_main(self.wait)  # all ranks load, and the main one may still be writing
        try:
            if isinstance(checkpoint, Checkpoint):
                settled(checkpoint.path)
            else:
                if not os.path.isdir(settled(checkpoint)):
                    raise CheckpointError(
                        f"{os.fspath(checkpoint)!r} is no checkpoint's folder; there are: "
                        + quoted(c.path.name for c in self._store.listed())
                    )
                checkpoint = manifest.read(_absolute(checkpoint))
            self._load(checkpoint)
        except DamagedCheckpointError as error:
            path = checkpoint.path if isinstance(checkpoint, Checkpoint) else _absolute(checkpoint)
            raise DamagedCheckpointError(f"{path} is no intact checkpoint: {error}") from error
        return checkpoint

    def load_modules(self, path: str | os.PathLike[str]) -> Loaded:
        """Gives the modules that take part the weights of another run; touches nothing else, and the folder not at all.

        Modules are matched by name, and inside one all names and shapes have to fit. One that is not there stays as
        it is. With hooks of its own it reads its own files.

        Args:
            path: A checkpoint, a folder of checkpoints, either of SpeechBrain's, or a file with a state dict; see
                `weight_source`.

        Raises:
            FileNotFoundError: There is nothing.
            DamagedCheckpointError: The files are not those that were written.
            CheckpointError: None of the modules is there; the message lists what is. Or they do not fit, or a parameter
                there is not finite: all modules are then as they were.

        >>> model = torch.nn.Linear(2, 1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Checkpointer(folder, {"model": model, "other": torch.Generator()}).save_checkpoint()
        ...     Checkpointer("elsewhere", {"model": torch.nn.Linear(2, 1)}).load_modules(folder).names
        ('model',)
        """
        recoverables, names = self._gather()
        modules = {r.name: r for r in recoverables if isinstance(r.obj, torch.nn.Module)}
        source = weight_source(path, {name: r.obj for name, r in modules.items()})
        lines: list[str] = []
        plan: list[tuple[Recoverable, Any]] = []
        sums: dict[str, str] = {}
        for name, recoverable in modules.items():
            if name not in source.names:
                continue
            sums.update(source.sums_of(name))
            if name in source.states:
                recoverable, state = replace(recoverable, loader=None), source.states[name]
                problems = recoverable.kind.problems(recoverable.obj, state, names)
            elif recoverable.loader is not None:
                state, problems = None, []
            else:
                saved = source.checkpoint.saved(name)
                state, problems = _read(source.checkpoint, recoverable, saved, names)
            lines.extend(f"{recoverable.told}: {problem}" for problem in problems)
            plan.append((recoverable, state))
        if not plan:
            raise CheckpointError(
                f"{source.path} holds weights of none of the modules here, which are {quoted(modules)}; it holds "
                f"{quoted(source.names)}. To load a part by hand: {BY_HAND}"
            )
        if lines:
            raise CheckpointError(
                f"the weights in {source.path} do not fit, so nothing was loaded:\n  "
                + "\n  ".join(lines)
                + f"\nTo load the part that fits by hand: {BY_HAND}"
            )
        _apply(source.checkpoint, plan, names, check=_refuse_nonfinite)
        return Loaded(
            path=source.path,
            names=tuple(r.name for r, _ in plan),
            lacking=tuple(n for n, r in modules.items() if n not in source.names and r.obj.state_dict()),
            sums=sums,
        )

    def _device_has_no_effect(self, device: object) -> None:
        if device is not None:
            self._warn_once(
                "device= has no effect when a checkpoint is loaded: every object is loaded to where it is"
            )

    def _load(self, checkpoint: Checkpoint) -> None:
        """Both phases: nothing is touched before all that is needed was read and compared."""
        recoverables, names = self._gather()
        if self._weights_only:
            recoverables = [r for r in recoverables if isinstance(r.obj, torch.nn.Module)]
        self._store.check_sizes(checkpoint)
        missing = [r for r in recoverables if r.name not in checkpoint.recoverables]
        loading = [
            (r, checkpoint.recoverables[r.name]) for r in recoverables if r.name in checkpoint.recoverables
        ]
        self._store.check_sums(checkpoint, tuple(file for _, saved in loading for file in saved.files))

        # What does not fit is collected, so that one message tells all of it.
        lines = []
        if needed := [r for r in missing if not r.optional]:
            told = ", ".join(f"{r.name!r} ({class_name(r.obj)})" for r in needed)
            if self.allow_partial_load:
                self._warn_once(f"{checkpoint.path} has no {told}, which stays as it is")
            else:
                lines.append(f"it has no {told}; it holds {quoted(checkpoint.recoverables)}")
        plan: list[tuple[Recoverable, Any]] = []
        loads_again = getattr(self._owner, "loads_again", None)
        postponed = not self._weights_only and callable(loads_again) and loads_again(checkpoint)
        if postponed:
            lines.clear()
        for recoverable, saved in loading:
            state = None
            if recoverable.loader is None:
                state, problems = _read(checkpoint, recoverable, saved, names)
                if problems and postponed:  # the owner applies it once more, when what it holds has been made
                    logger.debug("%s does not fit yet: %s", recoverable.told, "; ".join(problems))
                    continue
                lines.extend(f"{recoverable.told}: {problem}" for problem in problems)
            plan.append((recoverable, state))
        if lines:
            raise UnfitCheckpointError(
                f"{checkpoint.path} does not fit, so nothing was loaded:\n  "
                + "\n  ".join(lines)
                + "\nIs it another model's, or have the hyperparameters changed? (allow_partial_load and optional_load "
                "let whole objects be missing)",
                checkpoint,
            )
        _apply(checkpoint, plan, names)
        self._loaded = checkpoint
        if leftover := sorted(set(checkpoint.recoverables) - {r.name for r in recoverables}):
            logger.debug("nothing here takes %s of %s", quoted(leftover), checkpoint.path)


# ------------------------------------------------------------------------------------------- one object at a time


def _method(obj: object, name: str) -> Callable[..., Any] | None:
    """A hook method as a function of the object, in the form that the object's own class gives it; None for ""."""
    return getattr(type(obj), name) if name else None


@contextmanager
def _no_search_for_rings() -> Iterator[None]:
    """Python searches for rings again whenever enough objects are new: half of the time that many small states take."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _state_of(recoverable: Recoverable, names: ParameterNames) -> Any:
    """The state of an object, which may share memory with it."""
    try:
        return recoverable.kind.state(recoverable.obj, names)
    except Exception as error:
        raise CheckpointError(f"{recoverable.told} failed to give its state: {error!r}") from error


def _read(
    checkpoint: Checkpoint, recoverable: Recoverable, saved: Saved, names: ParameterNames
) -> tuple[Any, list[str]]:
    """The saved state of an object, and what in it does not fit."""
    if saved.kind == "hook" and saved.files != (saved.path,):
        return None, [f"it was saved by a hook, as {quoted(saved.files)}, and no load hook is known here"]
    if saved.kind not in ("hook", recoverable.kind.name):
        return None, [f"the checkpoint holds a {saved.kind} ({saved.class_name}) under this name"]
    state = read_state(checkpoint.path / saved.path)
    return state, recoverable.kind.problems(recoverable.obj, state, names)


def _refuse_nonfinite(recoverable: Recoverable) -> None:
    if broken := nonfinite_among(dict(recoverable.obj.named_parameters())):
        raise CheckpointError(f"the parameters {quoted(broken)} there hold values that are not finite")


def _apply(
    checkpoint: Checkpoint,
    plan: Sequence[tuple[Recoverable, Any]],
    names: ParameterNames,
    check: Callable[[Recoverable], None] = lambda recoverable: None,
) -> None:
    """Applies what was read, one object after the other; if one fails, all are put back to what they were.

    Args:
        checkpoint: Where the files are that load hooks read.
        plan: Objects with their states.
        names: Of the parameters.
        check: Looks at each object once its state is applied; what it raises is a failure, too.
    """
    done: list[tuple[Recoverable, Callable[[], object] | None]] = []
    with tempfile.TemporaryDirectory(prefix="brainlib-load-") as scratch:
        for recoverable, state in plan:
            try:
                done.append((recoverable, _undo_of(recoverable, Path(scratch) / str(len(done)))))
                if recoverable.loader is not None:
                    path = checkpoint.path / checkpoint.recoverables[recoverable.name].path
                    recoverable.loader(recoverable.obj, path, checkpoint.end_of_epoch)
                else:
                    recoverable.kind.apply(recoverable.obj, state, names)
                check(recoverable)
            except BaseException as error:
                lost = _put_back(done)
                if not isinstance(error, Exception):
                    raise
                after = f"; all is as it was, but for {quoted(lost)}" if lost else "; all is as it was before"
                raise CheckpointError(
                    f"{recoverable.told} could not be loaded from {checkpoint.path}{after}: "
                    f"{type(error).__name__}: {error}"
                ) from error


def _undo_of(recoverable: Recoverable, scratch: Path) -> Callable[[], object] | None:
    """Notes what an object is now, and returns what puts it back; None where it cannot tell.

    Args:
        recoverable: The object.
        scratch: A free path, for an object that writes its own files.
    """
    obj, kind = recoverable.obj, recoverable.kind
    saver, loader = recoverable.saver, recoverable.loader
    try:
        if saver is not None and loader is not None:
            saver(obj, scratch)
            return lambda: loader(obj, scratch, False)
        if kind_of(obj) is kind and kind.name != "hook":
            before = kind.snapshot(obj)
            return lambda: kind.put_back(obj, before)
    except Exception as error:  # noqa: BLE001  # whatever a user's method raises: it may have no state before its first load
        logger.debug("%s cannot be put back if the load fails: %r", recoverable.told, error)
    return None


def _put_back(done: Sequence[tuple[Recoverable, Callable[[], object] | None]]) -> list[str]:
    """Undoes a load, the last object first; returns the names of those that could not be put back."""
    lost = []
    for recoverable, undo in reversed(done):
        try:
            if undo is None:
                lost.append(recoverable.name)
            else:
                undo()
        except Exception as error:  # noqa: BLE001  # the first failure is the one to tell; this one is named in it
            logger.error("%s could not be put back after a failed load: %r", recoverable.told, error)
            lost.append(recoverable.name)
    return lost


def _names(keys: Keys, what: str) -> list[str]:
    """Names as a list; one alone may be given as a plain string."""
    names = [keys] if isinstance(keys, str) else list(keys)
    for name in names:
        if not isinstance(name, str):
            raise CheckpointError(f"{what} holds {name!r}; names of metrics or reasons are strings")
    return names


def _as_criterion(told: tuple[str, str] | None) -> tuple[Literal["min", "max"], str] | None:
    return None if told is None else ("min" if told[0] == "min" else "max", told[1])


def _check_num_to_keep(number: int) -> None:
    if not isinstance(number, int) or number < -1:
        raise CheckpointError(f"num_to_keep is {number!r}; give how many to keep, 0 for none or -1 for all")


def _absolute(folder: str | os.PathLike[str]) -> Path:
    """A path that stays the same when the script changes its working directory later; touches no disk."""
    return Path(os.path.abspath(os.fspath(folder)))
