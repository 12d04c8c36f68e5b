"""Evaluating with the weights of a checkpoint: which one, and how the weights of the run come back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from brainlib.common.errors import nearest
from brainlib.common.logs import logger
from brainlib.distributed.group import from_main

if TYPE_CHECKING:
    from brainlib.brain_state import BrainState
    from brainlib.checkpoint.checkpointer import Checkpointer

__all__ = ["load_for_evaluation", "preserved_buffers", "preserved_weights"]


@contextmanager
def preserved_weights(objects: Iterable[Any]) -> Iterator[None]:
    """Whatever is loaded into the modules among `objects` inside is taken back afterwards, in place.

    >>> model = torch.nn.Linear(2, 1); before = model.weight.detach().clone()
    >>> with preserved_weights([model]):
    ...     _ = model.weight.data.zero_()
    >>> torch.equal(model.weight, before)
    True
    """
    modules = {id(each): each for each in objects if isinstance(each, torch.nn.Module)}.values()
    kept = [
        (
            module,
            {
                key: value.clone() if isinstance(value, Tensor) else value
                for key, value in module.state_dict().items()
            },
        )
        for module in modules
    ]
    try:
        yield
    finally:
        for module, state in kept:
            module.load_state_dict(state)


@contextmanager
def preserved_buffers(modules: torch.nn.Module) -> Iterator[None]:
    """The buffers of `modules`, also those that no state dict holds, are afterwards what they were.

    >>> norm = torch.nn.BatchNorm1d(1)
    >>> with preserved_buffers(norm):
    ...     _ = norm(torch.ones(2, 1))
    >>> norm.running_mean
    tensor([0.])
    """
    kept = [
        (module, name, buffer, buffer.clone())
        for module in modules.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and not torch.nn.parameter.is_lazy(buffer)
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, buffer, value in kept:
                module._buffers[name] = buffer
                buffer.copy_(value)


def load_for_evaluation(
    checkpointer: Checkpointer | None,
    choice: Any,
    max_key: str | None = None,
    min_key: str | None = None,
    state: BrainState | None = None,
) -> None:
    """Load what an evaluation should use, or leave the current weights; a line says which.

    A damaged checkpoint is passed over with a warning, and the next by the same rule is taken. Before the first fit,
    the current weights are those with which it would begin: `init_from` counts for an evaluation alone, too.

    Args:
        checkpointer: the Brain's, or None.
        choice: "best", "last", "current" or a path. None: by `max_key` or `min_key`; without a key by the criterion
            that was declared last, else the newest.
        max_key: the metric whose largest value decides.
        min_key: the metric whose smallest value decides.
        state: the Brain's, which knows where a run would begin.

    Raises:
        ValueError: when a choice needs what is not there: a checkpointer, a checkpoint, or a criterion for "best".
    """
    if choice == "current":
        _take_current(checkpointer, state)
        return
    if checkpointer is None:
        if choice is not None:
            raise ValueError(f"checkpoint={choice!r} needs a Brain with a checkpointer; this one has none")
        if max_key is not None or min_key is not None:
            logger.warning(
                "evaluating with the current weights: %s has no effect, because this Brain has no checkpointer",
                f"max_key={max_key!r}" if max_key is not None else f"min_key={min_key!r}",
            )
        _take_current(checkpointer, state, quiet=True)
        return
    if choice not in (None, "best", "last"):
        if not os.path.exists(choice if isinstance(choice, (str, os.PathLike)) else choice.path):
            raise ValueError(
                f"checkpoint={choice!r}: there is no such path; give 'best', 'last', 'current', or the path of a "
                f"checkpoint.{nearest(str(choice), ('best', 'last', 'current'))}"
            )
        found = checkpointer.load_checkpoint(choice)
        logger.info("evaluating with the weights of %s", found.path)
        return

    criterion = checkpointer.declared_criterion()
    if choice == "last":
        max_key = min_key = None
    elif max_key is None and min_key is None:
        if criterion is not None and (choice == "best" or not _lacks(checkpointer, criterion[1])):
            max_key, min_key = (criterion[1], None) if criterion[0] == "max" else (None, criterion[1])
        elif choice == "best":
            raise ValueError(_no_criterion(checkpointer))
    loaded = checkpointer.recover_if_possible(max_key=max_key, min_key=min_key)
    if loaded is not None:
        why = f"largest {max_key}" if max_key is not None else "newest"
        why = f"smallest {min_key}" if min_key is not None else why
        logger.info("evaluating with the weights of %s (%s)", loaded.path, why)
    elif choice is not None:
        raise ValueError(f"checkpoint={choice!r}: {_none_of(checkpointer, max_key or min_key)}")
    else:
        _take_current(checkpointer, state, f": {_none_of(checkpointer, max_key or min_key)}")


def _no_criterion(checkpointer: Checkpointer) -> str:
    if rules := checkpointer.best_of_snapshots:
        told = " or ".join(f"{order}_key={key!r}" for order, key in rules)
        return (
            f"checkpoint='best' could mean several things, since Snapshots keep the best by {len(rules)} metrics: give "
            f"evaluate {told} instead"
        )
    return (
        "checkpoint='best' needs a criterion, and none was declared: save with save_and_keep_only(..., "
        "min_keys=[...]) or max_keys=[...], or with Snapshot(best=[...]), or give evaluate a max_key or min_key"
    )


def _lacks(checkpointer: Checkpointer, key: str) -> bool:
    """Whether there are checkpoints and none has the metric: that of a Snapshot which was never due."""
    found = from_main(checkpointer.find_checkpoints)
    return bool(found) and all(each.meta.get(key) is None for each in found)


def _none_of(checkpointer: Checkpointer, key: str | None) -> str:
    """Why none was found: those that a trainer makes on its way carry no metric, so that they are never "best"."""
    listed = [] if key is None else from_main(checkpointer.list_checkpoints)
    there = [each for each in listed if each.reason != "error"]
    if not there:
        return f"there is no checkpoint in {checkpointer.checkpoints_dir}"
    return (
        f"no checkpoint in {checkpointer.checkpoints_dir} carries {key!r}; the newest there, {there[0].path.name}, was "
        "made inside an epoch or by a signal: a run goes on from it, and checkpoint='last' evaluates with it"
    )


def _take_current(
    checkpointer: Checkpointer | None, state: BrainState | None, why: str = "", quiet: bool = False
) -> None:
    """The weights as they are; before the first fit, those with which it would begin."""
    first = None if state is None else state.origin.lend(checkpointer, state)
    if first is not None:
        logger.info("evaluating with the weights of %s, with which a fit would begin", first)
    elif not quiet:
        logger.info("evaluating with the current weights%s", why)
