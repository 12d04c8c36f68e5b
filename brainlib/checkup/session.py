"""A run that is looked at: it is kept short, kept out of the user's folders, traced, saved where asked, and ended.

It happens in a process that was started for it. Nothing of the user's is called that a run would not call, except
``state_dict`` of what has one. What the doctor has to know of the inside of a Brain is in this file and in
`accumulation`.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import shutil
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch

from brainlib.checkpoint.checkpointer import Checkpointer
from brainlib.checkpoint.options import AUTO
from brainlib.checkup.accumulation import compare_split
from brainlib.checkup.batches import contents, ids
from brainlib.checkup.digests import Digests
from brainlib.checkup.elsewhere import Elsewhere
from brainlib.checkup.trace import Place, TraceFile
from brainlib.checkup.user_code import function_of, names_read, names_used, suspicious_calls
from brainlib.checkup.walk import Walk, class_values
from brainlib.found import attributes_of, found_in, has_state
from brainlib.loggers.base import TrainLogger
from brainlib.onlooker import Onlooker
from brainlib.options import RunOptions
from brainlib.origin import Origin
from brainlib.seeding import generator_states

__all__ = ["Plan", "Session"]

_ENDLESS = 1 << 30
_VALID_BATCHES = 2
# What a hook does at the end of a stage has no part in how the next batch is computed; the rest may have.
_ASIDE = (
    "on_stage_end",
    "on_evaluate_start",
    "get_extra_state",
    "set_extra_state",
    "state_dict",
    "load_state_dict",
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What one run is to do.

    Args:
        folder: where it writes; what it resumes from lies there as well.
        trace: the file of its trace.
        num_batches: of an epoch; 0: as many as two updates take, four at least.
        copies: where the folder is copied to at each cut; "" for a run that makes no cuts.
        accumulation: whether a batch is compared with its parts in the end.
        quiet_loggers: whether the Brain's loggers write nothing, because their files are not in `folder`.
    """

    folder: str
    trace: str
    num_batches: int = 0
    copies: str = ""
    accumulation: bool = False
    quiet_loggers: bool = False


class Session(Onlooker):
    """Looks on at the first fit of the first Brain of this process, and ends the process when it has seen enough."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.brain: Any = None
        self.trace = TraceFile(plan.trace)
        self.digests = Digests(plan.folder)
        self._sets: dict[str, Any] = {}
        self._first_batch: Any = None
        self._started = False
        # By name: which one it is, and itself, so that an id stays its own.
        self._held: dict[str, tuple[int, Any]] = {}
        self.elsewhere: Elsewhere | None = None

    # ------------------------------------------------------------------------------------------- asked by the Brain

    def fit_starts(self, brain: Any, epoch_counter: Any, **sets: Any) -> None:
        """Make the fit a short one that writes into the folder of the plan."""
        if self.brain is not None or brain._scope.inner:
            return
        self.brain, self._sets = brain, sets
        factor = brain._options.grad_accumulation_factor
        batches = self.plan.num_batches or max(4, min(2 * factor, 12))
        options = brain._options
        self._change_options(
            limit_train_batches=min(batches, options.limit_train_batches or batches),
            limit_valid_batches=min(_VALID_BATCHES, options.limit_valid_batches or _VALID_BATCHES),
            resume=AUTO,  # whatever the script asks for: a run is looked at from its beginning, and is then resumed
            ckpt_interval_minutes=0,
            ckpt_interval_steps=0,
            noprogressbar=True,
            debug=False,
        )
        brain._state.origin = Origin(brain._options.checkpoint_options)
        brain._update_limit = None
        brain._profiler = None  # it has been started by now, and writes when it is stepped or stopped
        self._redirect(brain)
        half = max(1, batches // 2)
        num_epochs = _num_epochs(epoch_counter)
        self._cut = Place(1 if num_epochs > 1 else 0, half)
        self._end = Place(2, half) if num_epochs > 2 else Place(_ENDLESS, 0)

    def batches(self, brain: Any, batches: Iterator[Any]) -> Iterator[Any]:
        """Trace what passes by."""
        if brain is not self.brain or brain._scope.inner:
            return batches
        return self._traced(batches)

    def fit_ends(self, brain: Any) -> None:
        """A fit of few epochs is over before the session has seen enough."""
        if brain is self.brain and not brain._scope.inner:
            self._point()
            self.finish()

    # ----------------------------------------------------------------------------------------------------- what it does

    def _traced(self, batches: Iterator[Any]) -> Iterator[Any]:
        place = self._place()
        if not place.batch:
            self._first_batch = None
        if not self._started:
            self._start(place)
        self._point()
        if place == (1, 0):
            self._copy(place)  # what lies there when epoch 1 is closed, whoever saved it
        for batch in batches:
            place = self._place()
            place = Place(place.epoch, place.batch + 1)
            if self._first_batch is None:
                self._first_batch = batch
            fields = contents(batch, self.digests)
            self.trace.write("batch", place, fields=fields, ids=ids(batch))
            yield batch
            self.trace.write("after", place, state=self._state())
            if place == self._cut:
                self._save_here()
            if place >= self._end:
                self.finish()
        if place.epoch == self._cut.epoch and place.batch < self._cut.batch:
            self._cut = place  # an epoch this short ends before the cut
            self._save_here()

    def _start(self, place: Place) -> None:
        self._started = True
        walk, brain = self._walk(), self.brain
        at_work = {f: root for f, root in walk.functions.items() if f.__name__ not in _ASIDE}
        read = {name for f in at_work if not f.__name__.startswith("__init") for name in names_read(f)}
        calls = [(root, f.__qualname__, suspicious_calls(f)) for f, root in at_work.items()]
        kinds = {"train_set": type(self._sets["train_set"]).__name__}
        for key, value in (self._sets["train_loader_kwargs"] or {}).items():
            if not isinstance(value, (bool, int, float, str, type(None))):
                kinds[f"train_loader_kwargs[{key!r}]"] = getattr(value, "__qualname__", type(value).__name__)
        self.trace.write(
            "start",
            place,
            seed=brain._seed,
            read=sorted(read),
            calls=[each for each in calls if each[2]],
            kinds=kinds,
            own_fit_batch=brain._overridden("fit_batch"),
            saves=self._names_in("get_extra_state"),
            restores=self._names_in("set_extra_state"),
        )

    def _names_in(self, method: str) -> list[str]:
        """The attributes that a method of the user's mentions."""
        function = function_of(getattr(self.brain, method))
        if function is None or not self.brain._overridden(method):
            return []
        return sorted(names_used(function))

    def _point(self) -> None:
        leaves = self._walk().leaves
        losses = {name: repr(value) for name, value in self.brain._scope.losses.items()}
        self.trace.write("point", self._place(), state=self._state(), walk=leaves, losses=losses)

    def _save_here(self) -> None:
        """A cut: the state of here, and the folder as it is with it."""
        self._point()
        if self.plan.copies:
            self.brain.checkpointer.save_automatically(end_of_epoch=False, reason="timed")
            self._copy(self._place())

    def _copy(self, place: Place) -> None:
        if self.plan.copies:
            self.brain.checkpointer.wait()  # what is being written in the background is there after a cut, or is not
            target = Path(self.plan.copies) / f"epoch-{place.epoch}-batch-{place.batch}"
            shutil.copytree(self.plan.folder, target, symlinks=True)
            self.trace.write("saved", place, folder=str(target))

    def finish(self) -> NoReturn:
        """It has seen enough: the process ends here, and nothing of the script that follows is run."""
        if self.plan.accumulation and self._first_batch is not None:
            self.trace.write("accumulation", self._place(), **compare_split(self.brain, self._first_batch))
        wrote = [] if self.elsewhere is None else self.elsewhere.paths
        self.trace.write("end", self._place(), wrote=wrote)
        end_process(0)

    def fail(self, error: BaseException) -> NoReturn:
        """The run ends with an error."""
        place = (0, 0) if self.brain is None else self._place()
        text = "".join(traceback.format_exception(error))
        self.trace.write(
            "error", place, error=self.digests.text(f"{type(error).__name__}: {error}"), traceback=text
        )
        print(text, file=sys.stderr)  # noqa: T201  # into the output of this run
        end_process(1)

    # ------------------------------------------------------------------------------------------- the inside of a Brain

    def _place(self) -> Place:
        run = self.brain._outer.run
        return Place(run.epoch, run.step)

    def _change_options(self, **changes: Any) -> None:
        """Other options for this run alone, past `RunOptions.resolve`, which would say again what it has said."""
        options = self.brain._options
        for field in dataclasses.fields(RunOptions):
            group = getattr(options, field.name)
            if dataclasses.is_dataclass(group) and not isinstance(group, type):
                own = {name: value for name, value in changes.items() if name in vars(group)}
                options = dataclasses.replace(options, **{field.name: dataclasses.replace(group, **own)})
        self.brain._options = self.brain._collaborators["_options"] = options

    def _redirect(self, brain: Any) -> None:
        """Nothing goes to where a run of the user's would write, as far as the library writes it."""
        folder = Path(self.plan.folder)
        if brain.checkpointer is None:
            brain.checkpointer = Checkpointer(folder / "checkpoints")
            brain._attach_checkpointer()
        elif not brain.checkpointer.checkpoints_dir.is_relative_to(folder):
            brain.checkpointer._used = False  # also where the script has looked into its folder already
            brain.checkpointer.checkpoints_dir = folder / "checkpoints"
        if self.plan.quiet_loggers:
            brain.loggers.clear()
            for each in (*vars(brain).values(), *vars(brain.hparams).values()):
                if isinstance(each, TrainLogger):
                    each.log_stats = _write_nothing  # type: ignore[method-assign]

    def _walk(self) -> Walk:
        brain = self.brain
        without = [brain, brain.checkpointer, brain._state, brain._options, *brain._optimizers.found.values()]
        walk = Walk(self.digests, without)
        walk.modules("modules", brain.modules)
        walk.methods("brain", type(brain))
        for name, value in attributes_of(brain, without=brain._own_names):
            walk.root(f"brain.{name}", value)
        for name, value in class_values(type(brain)):  # what an attribute is that was not assigned yet
            if name not in vars(brain):
                walk.root(f"brain.{name}", value)
        for name, value in vars(brain.hparams).items():
            walk.root(f"hparams.{name}", value)
        for extension in brain._extensions:
            walk.root(f"extensions[{extension.name or type(extension).__name__!r}]", extension)
        walk.root("opt_class", brain.opt_class)
        for name, value in self._sets.items():
            if isinstance(value, Mapping):
                for key, each in value.items():
                    walk.root(f"{name}[{key!r}]", each)
            else:
                walk.root(name, value)
        walk.follow_functions()
        return walk

    def _state(self) -> dict[str, Any]:
        """What a checkpoint has to bring back, in parts that can be named."""
        brain, digests = self.brain, self.digests
        brain._settle_verdict()
        parameters = dict(brain.modules.named_parameters())
        names = {id(param): name for name, param in parameters.items()}
        optimizers = {}
        for name, optimizer in brain._optimizers.found.items():
            for number, group in enumerate(optimizer.param_groups):
                for key, value in group.items():
                    if key != "params":
                        optimizers[f"{key} of group {number} in the optimizer {name!r}"] = digests.of(value)
                for place, param in enumerate(group["params"]):
                    known = names.get(id(param), f"{place} of group {number}")
                    for key, value in optimizer.state.get(param, {}).items():
                        optimizers[f"{key} of parameter {known!r} in the optimizer {name!r}"] = digests.of(
                            value
                        )
        registered = {**brain._state.found_recoverables(), **brain.checkpointer.recoverables}
        counters = brain._outer.run.state_dict()
        del counters["seconds"]  # no two runs take equally long
        losses = {"loss": counters.pop("loss"), "pending": counters.pop("pending")}
        generators = generator_states()
        objects = {
            name: digests.of(obj.get_state() if isinstance(obj, torch.Generator) else obj.state_dict())
            for name, obj in registered.items()
            if obj is not brain._state and has_state(obj)
            if not isinstance(obj, (torch.nn.Module, torch.optim.Optimizer))
        }
        return {
            "modules": {
                name: digests.of(value)
                for name, value in (*parameters.items(), *brain.modules.named_buffers())
            },
            "optimizers": optimizers,
            "objects": objects,
            "made": self._made(objects),
            "generators": {name: digests.of(state) for name, state in generators.items()},
            "counters": {name: repr(value) for name, value in counters.items()},
            "loss": {"loss": digests.of(losses)},
            "mean_loss": repr(brain._outer.run.loss.value()) if brain._outer.run.loss.weight else "",
        }

    def _made(self, objects: dict[str, str]) -> dict[str, tuple[int, str, str]]:
        """Objects with a state on the Brain: which one it is since the run began, its state, the attribute it is on."""
        brain, made = self.brain, {}
        elsewhere = {
            id(each) for each in (*brain.modules.modules(), *brain.checkpointer.recoverables.values())
        }
        for attribute in attributes_of(brain, without=brain._own_names):
            for name, obj in found_in(iter([attribute])):
                if id(obj) in elsewhere or isinstance(obj, torch.optim.Optimizer):
                    continue
                number, before = self._held.get(name, (0, None))
                if obj is not before:
                    self._held[name] = number, before = number + 1, obj
                state = objects[name] if name in objects else self.digests.of(obj.state_dict())
                made[name] = number, state, attribute[0]
        return made


def end_process(status: int) -> NoReturn:
    """End this process at once, as a kill would, but leave no process of a loader behind."""
    for child in multiprocessing.active_children():
        child.terminate()
        child.join(5)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def _num_epochs(epoch_counter: Any) -> int:
    """How many epochs a counter has left, where it says so."""
    limit = getattr(epoch_counter, "limit", None)
    if isinstance(limit, int):
        return limit - int(getattr(epoch_counter, "current", 0))
    try:
        return len(epoch_counter)
    except TypeError:
        return _ENDLESS


def _write_nothing(*args: Any, **kwargs: Any) -> None:
    """What a logger does whose file belongs to another run."""
