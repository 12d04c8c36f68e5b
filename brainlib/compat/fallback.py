"""What stands behind a module of ``brainlib.compat.speechbrain`` for names that brainlib does not have.

Layers, losses and helpers work as they are, so they come from an installed speechbrain. What belongs to its trainer
would not work with ours, and some of it would fail late, so it is refused by name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

__all__ = ["installed", "refused"]

_OURS = "brainlib.compat."


def installed(module: str) -> Callable[[str], Any]:
    """A module's ``__getattr__`` that answers with what an installed speechbrain has under the same path.

    Args:
        module: the ``__name__`` of the module in `brainlib.compat`.

    Returns:
        A function that raises an `AttributeError` where there is no such name, and where speechbrain is not installed.

    >>> installed("brainlib.compat.speechbrain.nnet")("_private")
    Traceback (most recent call last):
    ...
    AttributeError: module 'brainlib.compat.speechbrain.nnet' has no attribute '_private'
    """

    def look(name: str) -> Any:
        if name.startswith("_"):  # asked for by tools that look whether there is one
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        theirs = module.removeprefix(_OURS)
        try:
            found = importlib.import_module(theirs)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "speechbrain":
                raise  # something that speechbrain itself needs
            raise AttributeError(
                f"brainlib has no {theirs}.{name}, and there is no installed speechbrain to take it from. Layers stay "
                "those of speechbrain: `pip install speechbrain`."
            ) from error
        if not hasattr(found, name):
            try:
                return importlib.import_module(f"{theirs}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{theirs}.{name}":
                    raise
                raise AttributeError(f"neither brainlib nor speechbrain has {theirs}.{name}") from error
        return getattr(found, name)

    return look


def refused(module: str) -> Callable[[str], Any]:
    """A module's ``__getattr__`` where the rest of speechbrain's module belongs to its own trainer.

    Args:
        module: the ``__name__`` of the module in `brainlib.compat`.

    Returns:
        A function that raises an `AttributeError`.

    >>> refused("brainlib.compat.speechbrain.core")("Trainer")
    Traceback (most recent call last):
    ...
    AttributeError: brainlib has no speechbrain.core.Trainer. docs/porting.md says what there is instead; ...
    """

    def refuse(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        theirs = module.removeprefix(_OURS)
        raise AttributeError(
            f"brainlib has no {theirs}.{name}. docs/porting.md says what there is instead; if it does not lean on "
            f"speechbrain's trainer, import it from there: `from {theirs} import {name}`."
        )

    return refuse
