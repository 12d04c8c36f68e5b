"""What a checkpoint holds of a Brain, and where it says the run stands: the one list of it.

`BrainState` is what a Checkpointer sees of a Brain. It is an entry of the checkpoint itself (counters,
generators, pending gradients, …), and it names the other entries: modules, optimizers, schedulers and
whatever else with state is found.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from brainlib.announcements import say_which_hparams_differ, standing
from brainlib.attempt import At, Attempt, Moment, Whereabouts, label_of
from brainlib.checkpoint.recoverables import bare_module, nonfinite_among
from brainlib.common.counted import counted
from brainlib.common.errors import quoted
from brainlib.common.logs import logger
from brainlib.found import attributes_of, found_in, has_state, own_generators
from brainlib.origin import Origin
from brainlib.seeding import derive, derived_states, generator_states, set_generator_states

if TYPE_CHECKING:
    from brainlib.brain import Brain
    from brainlib.checkpoint.checkpointer import Checkpoint, Checkpointer

__all__ = ["MID_EPOCH_VALIDATION", "NUM_SNAPSHOTS", "BrainState", "warn_of_unsaved"]

MID_EPOCH_VALIDATION = "mid_epoch_validation"  # the extension behind the option valid_interval_steps
NUM_SNAPSHOTS = "num_snapshots"  # the one behind the option of this name
_VERSION = 1


class BrainState:
    """The Brain as a checkpoint holds it.

    Generators are put back by `restore_generators`, which the Brain calls last: loading other objects may draw.
    """

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        self.origin = Origin(brain._options.checkpoint_options)
        self._generators: dict[str, Any] | None = None
        self._attempt: Attempt | None = None
        self.reopens = False  # whether the open epoch's on_stage_start is run once more
        self.loaded = False
        self.parts: list[Any] = []  # during a save, on the main rank: what each rank alone knows
        self.window_buffers: dict[str, Tensor] = {}  # of the window that was open in what was loaded last

    # ---- where the run stands

    def counters(self) -> dict[str, int]:
        """Where the run stands, as it is written into a manifest."""
        self._brain._settle_verdict()
        run = self._brain._outer.run
        fit, epoch, step = run.point(self._brain._outer.closing)
        step -= self._has_untrained_batch()
        return {"fit": fit, "epoch": epoch, "step": step, "optimizer_step": run.optimizer_step}

    def closes_epoch(self) -> bool:
        """Whether a checkpoint taken now stands for a closed epoch: in the last hook of it, and between epochs."""
        return self._brain._outer.closing or self._brain._outer.run.step == 0

    # ---- where the run stands, as its logs tell it

    @property
    def attempt(self) -> Attempt:
        """This life of the run."""
        if self._attempt is None:
            checkpointer = self._brain.checkpointer
            self._attempt = (
                Attempt(label=label_of(type(self._brain).__name__))
                if checkpointer is None
                else Attempt(checkpointer.checkpoints_dir)
            )
        return self._attempt

    def begin_attempt(self) -> None:
        """An outer fit takes its place: the first of the process, or one that was interrupted in it."""
        brain, run = self._brain, self._brain._outer.run
        interrupted = self.attempt.known and run.fit == brain._fits_done and brain._pending is None
        if self.attempt.known and not interrupted:
            return
        origin = (*run.point(), Moment.BATCH if run.unfired else Moment.DUE)
        self.reopens = run.step > 0
        if interrupted:
            self._attempt = self.attempt.goes_on(origin, f"goes on: {standing(run)}")
        elif brain._pending is not None:
            self.attempt.begin(origin, f"resumed from {brain._pending.path.name}: {standing(run)}")
        else:
            self.attempt.begin(None, "started from scratch")

    def whereabouts(self) -> Whereabouts:
        """Where something is logged that is logged now."""
        outer = self._brain._outer
        return Whereabouts(self.attempt, self._place(), outer.run.optimizer_step, outer.epoch_ledger)

    def hear(self, place: str, meta: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]) -> None:
        """Something was logged, and may belong into the line of the epoch."""
        self._brain._epochs.hear(place, meta, groups)

    def _place(self) -> At:
        brain, outer = self._brain, self._brain._outer
        run = outer.run
        in_its_fit = brain._fitting and run.fit == brain._fits_done and brain._pending is None
        if not in_its_fit or not self.attempt.known:
            return (brain._fits_done, -1, 0, Moment.BATCH)
        fit, epoch, step = run.point(outer.closing)
        if self.reopens:
            return (fit, epoch, 0, Moment.BEYOND)
        if outer.closing:
            return (fit, epoch, step, Moment.BATCH)
        if brain._extensions.firing:
            return (fit, epoch, step, Moment.DUE)
        return (fit, epoch, step, Moment.BEYOND if outer.batch is None else Moment.BATCH)

    # ---- what the manifest tells beside it

    def _has_untrained_batch(self) -> bool:
        """Whether the batch in hand is not trained on yet (a save at the beginning of it): it is not counted then."""
        outer = self._brain._outer
        if not outer.run.in_hand or outer.watch.stepped:
            return False
        return outer.gradients_before in (None, self._brain._optimizers.mark())

    def _has_uncounted_step(self) -> bool:
        """Whether a fit_batch of the user's has stepped and saves before it returns, after which it is counted."""
        outer = self._brain._outer
        counted = outer.run.optimizer_step != outer.updates_before
        return outer.run.in_hand and outer.watch.stepped and not counted

    def loads_again(self, checkpoint: Checkpoint) -> bool:
        """Whether this checkpoint will be applied once more, after code that may yet make what it holds.

        That code is a later fit of the script, or the on_stage_start of the epoch that was cut.
        """
        counters, brain = checkpoint.counters, self._brain
        if brain._scope.strict or "fit" not in counters:
            return False
        return counters["fit"] > brain._fits_done or counters["step"] > 0

    def environment(self) -> dict[str, Any]:
        """What else the bits of a run depend on: the forms of the optimizers, whether modules are compiled, and what
        the run began from where that was not from scratch.
        """
        forms = {
            name: f"{type(optimizer).__name__}{' fused' if optimizer.defaults.get('fused') else ''}"
            for name, optimizer in self._brain._optimizers.found.items()
        }
        began = {"began": self.origin.record} if self.origin.record else {}
        return {"optimizers": forms, "compile": self._brain._options.compile, **began}

    # ---- the other entries of a checkpoint

    def found_recoverables(self) -> dict[str, Any]:
        """What else a checkpoint holds, by name: asked anew at each save and load, since hooks may add to it.

        Names are those of attributes; where two objects would have one name, the later gets a number.
        """
        brain, found = self._brain, {"brain": self}
        candidates = [
            *brain.modules.items(),
            *found_in(attributes_of(brain, without=brain._own_names)),
            *([("optimizer", brain.optimizer)] if brain.optimizer is not None else []),
            *([("scaler", brain.scaler)] if brain.scaler.is_enabled() else []),
            *brain.optimizers_dict.items(),
        ]
        taken = {id(self)}
        for name, obj in candidates:
            if id(obj) in taken or obj is brain.checkpointer:
                continue
            taken.add(id(obj))
            unique, number = name, 1
            while unique in found:
                number += 1
                unique = f"{name}-{number}"
            found[unique] = obj
        return found

    def refuse(self, states: dict[str, tuple[Any, Any]]) -> None:
        """Refuse a checkpoint with broken weights, before it is written; may be called beside training.

        Args:
            states: objects and the copies of their states, by name.
        """
        trained = {id(param) for param in self._brain.modules.parameters()}
        refuse_nonfinite(
            {
                f"{name}.{key}": state[key]
                for name, (obj, state) in states.items()
                if isinstance(obj, torch.nn.Module) and isinstance(state, dict)
                for key, param in bare_module(obj).named_parameters(remove_duplicate=False)
                if id(param) in trained and isinstance(state.get(key), Tensor)
            }
        )

    # ---- this entry

    def state_dict(self) -> dict[str, Any]:
        """Everything, as it will be at the resume point that a checkpoint taken now carries."""
        brain = self._brain
        brain._settle_verdict()
        self.attempt.sync()
        run, closed = brain._outer.run, brain._outer.closing
        if run.recorded and run.verdict is None and brain.should_step and brain._fitting and run.micro:
            raise ValueError(
                "a checkpoint cannot be made between the backward and the step of an update (in freeze_optimizers or a "
                "hook of an optimizer): save in on_fit_batch_end"
            )
        if brain._scope.inner:
            brain._say_once(
                "inner save",
                "a checkpoint is made inside a fit that a hook has called: it stands for where the outer fit is, and a "
                "run resumed from it runs the inner fit again",
            )
        counters = run.state_dict(closed)
        if not closed and self._has_untrained_batch():
            counters["step"] -= 1
            counters["cursor"] -= run.num_ranks
            counters["micro"] -= 1
            counters["unfired"] = False  # what was due after the batch before has been done
        if not closed and self._has_uncounted_step():
            counters["optimizer_step"] += 1
            counters["unfired"] = True
        return {
            "version": _VERSION,
            "seed": brain._seed,
            "hparams": plain_hparams(brain.hparams),
            "run": counters,
            "data": brain._outer.fingerprint,
            "epoch_counter": _state_of(brain._outer.epoch_counter),
            "extensions": brain._extensions.state_dict(),
            "gradients": {} if closed else pending_gradients(brain),
            "window_buffers": brain._outer.buffers.state_dict() if run.micro and not closed else {},
            "frozen": [n for n, param in brain.modules.named_parameters() if not param.requires_grad],
            "extra": brain.get_extra_state(),
            "generators": generator_states(),
            "own_generators": {name: _generator_state(g) for name, g in self._own_generators().items()},
            "num_ranks": run.num_ranks,
            "ranks": self.parts,
            "ledger": brain._run_ledger.state(),
            "epochs": brain._epochs.state(),
            "closed_epochs": brain._epochs.state_of_closed(),
        }

    # ---- what each rank alone knows

    def part(self) -> dict[str, Any]:
        """Generators, and what the open window has summed up here; the rest is the same on all ranks."""
        brain, run = self._brain, self._brain._outer.run
        brain._ranks.check_alike(brain.modules, "when a checkpoint was made")
        open_window = bool(run.micro) and not brain._outer.closing
        return {
            "generators": generator_states(),
            "own_generators": {name: _generator_state(g) for name, g in self._own_generators().items()},
            "pending": [[float(loss), weight] for loss, weight in run.pending] if open_window else [],
            "weight": run.weight if open_window else 0.0,
            "gradients": pending_gradients(brain) if open_window and not brain._world.is_main else {},
            "buffers": dict(brain.modules.named_buffers())
            if open_window and not brain._world.is_main
            else {},
        }

    def _load_part(self, state: dict[str, Any]) -> None:
        """Of a rank other than the main one, and of a run that goes on with another number of ranks."""
        brain, run, parts = self._brain, self._brain._outer.run, state["ranks"]
        size, before = brain._world.size, state["num_ranks"]
        if size == before and not parts:
            return  # kept in memory, by this rank
        if size != before and run.micro:
            raise ValueError(
                f"this checkpoint was made inside an update by {counted(before, 'rank')}, and this run has "
                f"{counted(size, 'rank')}: the gradients of "
                "an open update belong to its ranks. Go on with as many, or from a checkpoint at the end of an update "
                "(the trainer's own are made there)"
            )
        if brain._world.is_main:
            return
        if brain._world.rank >= len(parts):
            point = [state["run"][name] for name in ("fit", "epoch", "cursor")]
            self._generators = derived_states(derive(state["seed"], "rank", brain._world.rank, *point))
            return
        part = parts[brain._world.rank]
        self._generators = part["generators"]
        for name, generator in self._own_generators().items():
            if name in part["own_generators"]:
                _set_generator(generator, part["own_generators"][name])
        if run.micro:
            run.pending = [(loss, weight) for loss, weight in part["pending"]]
            run.weight = part["weight"]
            put_gradients(brain, part["gradients"])
            with torch.no_grad():
                for name, buffer in brain.modules.named_buffers():
                    if name in part["buffers"]:
                        buffer.copy_(part["buffers"][name])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put it back; unknown versions and keys are refused before anything moves."""
        brain = self._brain
        if state.get("version") != _VERSION:
            raise ValueError(
                f"the state of the Brain in this checkpoint has version {state.get('version')!r}; this brainlib reads "
                f"version {_VERSION}. Continue the run with the brainlib that wrote it, or start from its "
                f"weights alone."
            )
        brain._outer.run.load_state_dict(state["run"])
        brain._run_ledger.load(state.get("ledger"))  # not in checkpoints of before there was one
        # Neither is in checkpoints of before there was a line.
        brain._epochs.load(state.get("epochs"), state.get("closed_epochs"))
        if not self.loaded:  # later loads apply the same checkpoint once more
            self._say_what_differs(state)
        brain._seed = state["seed"]
        brain._outer.fingerprint = state["data"]
        # Of the fit that is open: the one that starts may be an earlier one.
        brain._loaded_counter = state["epoch_counter"]
        here = brain._extensions.state_dict()
        extensions = state["extensions"].items()  # ours comes and goes with its option; the user's are strict
        brain._extensions.load_state_dict(
            {k: v for k, v in extensions if k in here or k not in (MID_EPOCH_VALIDATION, NUM_SNAPSHOTS)}
        )
        for name, param in brain.modules.named_parameters():
            param.requires_grad_(name not in state["frozen"])
        put_gradients(brain, state["gradients"])
        self.window_buffers = state["window_buffers"]
        brain.set_extra_state(state["extra"])
        self._generators = state["generators"]
        for name, generator in self._own_generators().items():
            if name in state["own_generators"]:
                _set_generator(generator, state["own_generators"][name])
        self._load_part(state)
        self.loaded = True

    def restore_generators(self) -> None:
        """Put the generators back where the checkpoint found them; nothing to do without a loaded one."""
        if self._generators is not None:
            set_generator_states(self._generators)

    def _own_generators(self) -> dict[str, Any]:
        return own_generators(attributes_of(self._brain, without=self._brain._own_names))

    def _say_what_differs(self, state: dict[str, Any]) -> None:
        seed = self._brain._seed
        if seed is not None and state["seed"] != seed:
            logger.warning(
                "the checkpoint was made with seed %s, this start asks for seed %s: going on with %s, so that the run "
                "stays the same",
                state["seed"],
                seed,
                state["seed"],
            )
        say_which_hparams_differ(state["hparams"], plain_hparams(self._brain.hparams))


def refuse_nonfinite(params: dict[str, Tensor]) -> None:
    """A checkpoint with broken weights would only be found out when it is needed.

    >>> refuse_nonfinite({"weight": torch.tensor([float("nan")])})
    Traceback (most recent call last):
    ...
    ValueError: no checkpoint is made, because the parameters 'weight' hold values that are not finite. ...
    """
    broken = nonfinite_among(params)
    if not broken:
        return
    raise ValueError(
        f"no checkpoint is made, because the parameters {quoted(broken)} hold values that are not finite. The older "
        "checkpoints are intact: go on from one of them with a lower learning rate, and look for what wrote these "
        "values past the guard of the update."
    )


def warn_of_unsaved(brain: Brain, checkpointer: Checkpointer) -> None:
    """Name, in one warning, what is trained or has state and is in no checkpoint."""
    saved = [*checkpointer.recoverables.values(), *brain._state.found_recoverables().values()]
    modules = [each for each in saved if isinstance(each, torch.nn.Module)]
    held = {id(param) for module in modules for param in module.parameters()}
    lost = [
        f"parameter {place} of shape {list(param.shape)}"
        for place, param in _named_parameters(brain).items()
        if param.requires_grad and id(param) not in held
    ]
    lost += [
        f"hparams.{key} ({type(value).__name__})"
        for key, value in vars(brain.hparams).items()
        if has_state(value) and not _covered(value, held)
        if not any(value is each for each in (*saved, checkpointer, *_held_by(brain)))
    ]
    if lost:
        logger.warning(
            "no checkpoint holds %s, and a resumed run will not have it: put modules into `modules`, make other "
            "objects attributes of the Brain, or register them with checkpointer.add_recoverable(name, object)",
            ", ".join(lost),
        )


def _held_by(brain: Brain) -> list[Any]:
    """What hangs on the Brain and looks after its own state, whatever key of hparams it stands under as well."""
    extensions = list(brain._extensions)
    inside = [
        obj for each in extensions for _, obj in found_in(attributes_of(each))
    ]  # a schedule, such as NewBob
    return [*extensions, *inside, *brain.loggers, brain._profiler, brain._outer.epoch_counter]


def _covered(value: Any, held: set[int]) -> bool:
    return isinstance(value, torch.nn.Module) and all(id(param) in held for param in value.parameters())


def plain_hparams(hparams: Any) -> dict[str, Any]:
    """The numbers, words and switches of the experiment. Paths may change with a move, and the seed is told apart.

    >>> from types import SimpleNamespace
    >>> plain_hparams(SimpleNamespace(lr=0.1, output_folder="results/x", model=object(), seed=1))
    {'lr': 0.1}
    """
    return {
        key: value
        for key, value in vars(hparams).items()
        if isinstance(value, (bool, int, float)) or (isinstance(value, str) and "/" not in value)
        if key != "seed"
    }


def _state_of(counter: Any) -> Any:
    return counter.state_dict() if hasattr(counter, "state_dict") else None


def _generator_state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        version, words, gauss = generator.getstate()
        return {"python": [version, list(words), gauss]}
    if isinstance(generator, np.random.RandomState):
        return {"legacy": _plain(generator.get_state(legacy=False))}
    return {"numpy": _plain(generator.bit_generator.state)}


def _plain(value: Any) -> Any:
    """A bit generator's state without numpy in it: the safe loader reads it back."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    return str(value) if isinstance(value, int) and abs(value) >= 2**63 else value


def _from_plain(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"array", "dtype"}:
        return np.array(value["array"], dtype=value["dtype"])
    if isinstance(value, dict):
        return {key: _from_plain(each) for key, each in value.items()}
    return int(value) if isinstance(value, str) and value.isdigit() else value


def _set_generator(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        version, words, gauss = state["python"]
        generator.setstate((version, tuple(words), gauss))
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(_from_plain(state["legacy"]))
    else:
        generator.bit_generator.state = _from_plain(state["numpy"])


def _named_parameters(brain: Brain) -> dict[str, Any]:
    """Every parameter that may hold a pending gradient: of the modules, and what only an optimizer knows."""
    named = dict(brain.modules.named_parameters())
    known = {id(param) for param in named.values()}
    for name, optimizer in brain._optimizers.found.items():
        for g, group in enumerate(optimizer.param_groups):
            for p, param in enumerate(group["params"]):
                if id(param) not in known:
                    named[f"{name}/{g}/{p}"] = param
                    known.add(id(param))
    return named


def pending_gradients(brain: Brain) -> dict[str, Tensor]:
    """The gradients there are, by name; stale ones too, because an overridden ``fit_batch`` may lean on them."""
    return {name: param.grad for name, param in _named_parameters(brain).items() if param.grad is not None}


def put_gradients(brain: Brain, gradients: dict[str, Tensor]) -> None:
    """Gradients as they were; parameters without one have none."""
    for name, param in _named_parameters(brain).items():
        grad = gradients.get(name)
        param.grad = None if grad is None else grad.to(device=param.device, dtype=param.dtype, copy=True)
