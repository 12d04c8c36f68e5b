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

if TYPE_CHECKING:
    from brainlib.checkpoint.checkpointer import Checkpointer

__all__ = ["choose_checkpoint", "preserved_weights"]


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


def choose_checkpoint(
    checkpointer: Checkpointer | None, choice: Any, max_key: str | None = None, min_key: str | None = None
) -> Any:
    """What an evaluation should load: a checkpoint, a path, or None for the current weights. A line says which.

    Args:
        checkpointer: the Brain's, or None.
        choice: "best", "last", "current" or a path. None: by `max_key` or `min_key`; without a key by the criterion
            that was declared last, else the newest.
        max_key: the metric whose largest value decides.
        min_key: the metric whose smallest value decides.

    Raises:
        ValueError: when a choice needs what is not there: a checkpointer, a checkpoint, or a criterion for "best".
    """
    if choice == "current":
        logger.info("evaluating with the current weights")
        return None
    if checkpointer is None:
        if choice is not None:
            raise ValueError(f"checkpoint={choice!r} needs a Brain with a checkpointer; this one has none")
        if max_key is not None or min_key is not None:
            logger.warning(
                "evaluating with the current weights: %s has no effect, because this Brain has no checkpointer",
                f"max_key={max_key!r}" if max_key is not None else f"min_key={min_key!r}",
            )
        return None
    if choice not in (None, "best", "last"):
        if not os.path.exists(choice if isinstance(choice, (str, os.PathLike)) else choice.path):
            raise ValueError(
                f"checkpoint={choice!r}: there is no such path; give 'best', 'last', 'current', or the path of a "
                f"checkpoint.{nearest(str(choice), ('best', 'last', 'current'))}"
            )
        logger.info("evaluating with the weights of %s", choice)
        return choice
    criterion = checkpointer.declared_criterion()
    if max_key is not None or min_key is not None:
        order, key = ("max", max_key) if max_key is not None else ("min", min_key)
    elif choice == "last":
        order, key = "", None
    elif criterion is not None:
        order, key = criterion
    elif choice == "best":
        raise ValueError(
            "checkpoint='best' needs a criterion, and none was declared: save with save_and_keep_only(..., "
            "min_keys=[...]) or "
            "max_keys=[...], or give evaluate a max_key or min_key"
        )
    else:
        order, key = "", None

    if key is None:
        found = checkpointer.newest()
    elif order == "max":
        found = checkpointer.find_checkpoint(max_key=key)
    else:
        found = checkpointer.find_checkpoint(min_key=key)
    if found is not None:
        why = "newest" if key is None else f"{'largest' if order == 'max' else 'smallest'} {key}"
        logger.info("evaluating with the weights of %s (%s)", found.path, why)
    elif choice is not None:
        raise ValueError(f"checkpoint={choice!r}: there is no checkpoint in {checkpointer.checkpoints_dir}")
    else:
        logger.info(
            "evaluating with the current weights: there is no checkpoint in %s", checkpointer.checkpoints_dir
        )
    return found
