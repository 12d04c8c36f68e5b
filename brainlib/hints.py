"""What brainlib knows of an error in a user's code: added to its message when the run ends by it, so no step pays."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from brainlib.common.errors import nearest, quoted

__all__ = ["hinting"]


@contextmanager
def hinting(modules: torch.nn.ModuleDict) -> Iterator[None]:
    """Inside, an error that has to do with what is not there says what there is.

    Args:
        modules: those of the Brain.

    >>> modules = torch.nn.ModuleDict({"encoder": torch.nn.Linear(2, 1)})
    >>> with hinting(modules):
    ...     modules.encodr
    Traceback (most recent call last):
    ...
    AttributeError: 'ModuleDict' object has no attribute 'encodr' (self.modules has 'encoder'. Did you mean 'encoder'?)
    """
    try:
        yield
    except Exception as error:
        hint = _hint(error, modules)
        if hint and error.args and isinstance(error.args[0], str):
            error.args = (f"{error.args[0]} ({hint})", *error.args[1:])
        raise


def _hint(error: Exception, modules: torch.nn.ModuleDict) -> str:
    if isinstance(error, AttributeError) and getattr(error, "obj", None) is modules:
        return f"self.modules has {quoted(modules)}.{nearest(str(error.name), modules)}"
    for frame, _ in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if code.co_name == "compute_objectives" and code.co_argcount > 1:
            if frame.f_locals.get(code.co_varnames[1], 0) is None:
                return "compute_forward returned None: has it no `return`?"
    return ""
