"""What a checkpoint holds of a Brain beside its modules, optimizers and schedulers: the one list of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from brainlib.announcements import say_which_hparams_differ
from brainlib.common.logs import logger
from brainlib.seeding import generator_states, set_generator_states

if TYPE_CHECKING:
    from brainlib.brain import Brain
    from brainlib.checkpoint.checkpointer import Checkpointer

__all__ = ["MID_EPOCH_VALIDATION", "BrainState", "has_state", "warn_of_unsaved"]

MID_EPOCH_VALIDATION = "mid_epoch_validation"  # the extension behind the option valid_interval_steps
_VERSION = 1


class BrainState:
    """The Brain's own entry in a checkpoint: counters, generators, pending gradients, the views of the counters.

    Generators are put back by `restore_generators`, which the Brain calls last: loading other objects may draw.
    """

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        self._generators: dict[str, Any] | None = None
        self.saved_point: tuple[int, int, int] | None = (
            None  # of the newest checkpoint this process wrote or read
        )
        self.loaded = False

    def state_dict(self) -> dict[str, Any]:
        """Everything, as it will be at the resume point that a checkpoint taken now carries."""
        brain = self._brain
        brain._settle_verdict()
        run, closed = brain._outer.run, brain._outer.closing
        return {
            "version": _VERSION,
            "seed": brain._seed,
            "hparams": plain_hparams(brain.hparams),
            "run": run.state_dict(closed),
            "data": brain._outer.fingerprint,
            "epoch_counter": _state_of(brain._outer.epoch_counter),
            "extensions": brain._extensions.state_dict(),
            "gradients": {} if closed else pending_gradients(brain),
            "extra": brain.get_extra_state(),
            "generators": generator_states(),
        }

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
        if brain._seed is not None and state["seed"] != brain._seed:
            logger.warning(
                "the checkpoint was made with seed %s, this start asks for seed %s: going on with %s, so "
                "that the run stays the same",
                state["seed"],
                brain._seed,
                state["seed"],
            )
        say_which_hparams_differ(state["hparams"], plain_hparams(brain.hparams))
        brain._seed = state["seed"]
        brain._outer.fingerprint = state["data"]
        brain._loaded_counter = state[
            "epoch_counter"
        ]  # of the fit that is open: the one that starts may be an earlier one
        here = brain._extensions.state_dict()
        extensions = state["extensions"].items()  # ours comes and goes with its option; the user's are strict
        brain._extensions.load_state_dict(
            {k: v for k, v in extensions if k in here or k != MID_EPOCH_VALIDATION}
        )
        put_gradients(brain, state["gradients"])
        brain.set_extra_state(state["extra"])
        self._generators = state["generators"]
        self.loaded = True

    def restore_generators(self) -> None:
        """Put the generators back where the checkpoint found them; nothing to do without a loaded one."""
        if self._generators is not None:
            set_generator_states(self._generators)


def warn_of_unsaved(brain: Brain, checkpointer: Checkpointer) -> None:
    """Name, in one warning, what is trained or has state and is in no checkpoint."""
    saved = [*checkpointer.recoverables.values(), *brain.found_recoverables().values()]
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
        if has_state(value) and not any(value is each for each in saved) and not _covered(value, held)
        if value is not checkpointer and value is not brain._outer.epoch_counter
    ]
    if lost:
        logger.warning(
            "no checkpoint holds %s, and a resumed run will not have it: put modules into `modules`, make other "
            "objects attributes of the Brain, or register them with checkpointer.add_recoverable(name, object)",
            ", ".join(lost),
        )


def _covered(value: Any, held: set[int]) -> bool:
    return isinstance(value, torch.nn.Module) and all(id(param) in held for param in value.parameters())


def has_state(value: Any) -> bool:
    """Whether an object has state that a checkpoint can hold."""
    if isinstance(value, torch.Generator):
        return True
    return not isinstance(value, type) and hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def plain_hparams(hparams: Any) -> dict[str, Any]:
    """The numbers, words and switches of the experiment; paths may change with a move of the folder, seeds
    are told apart.

    >>> from types import SimpleNamespace
    >>> plain_hparams(SimpleNamespace(lr=0.1, output_folder="results/x", model=object(), seed=1))
    {'lr': 0.1}
    """
    return {
        key: value
        for key, value in vars(hparams).items()
        if key != "seed"
        and isinstance(value, (bool, int, float, str))
        and not (isinstance(value, str) and "/" in value)
    }


def _state_of(counter: Any) -> Any:
    return counter.state_dict() if hasattr(counter, "state_dict") else None


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
