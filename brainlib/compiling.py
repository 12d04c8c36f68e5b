"""torch.compile, in place: keys, attributes and ``isinstance`` of the modules stay as they are."""

from __future__ import annotations

import torch

from brainlib.common.errors import nearest, quoted
from brainlib.common.logs import logger
from brainlib.options import RunOptions

__all__ = ["compile_in_place"]


def compile_in_place(modules: torch.nn.ModuleDict, options: RunOptions) -> None:
    """Compile the modules that the options name; they are compiled at their first call.

    Raises:
        ValueError: When ``compile_module_keys`` names a module that is not there.
    """
    if not options.compile:
        return
    keys = list(modules) if options.compile_module_keys is None else options.compile_module_keys
    for key in keys:
        if key not in modules:
            raise ValueError(
                f"compile_module_keys names {key!r}; the modules are {quoted(modules)}.{nearest(key, list(modules))}"
            )
        modules[key].compile(
            mode=options.compile_mode,
            fullgraph=options.compile_using_fullgraph,
            dynamic=True if options.compile_using_dynamic_shape_tracing else None,
        )
    logger.info("compiled in place at their first call: %s", quoted(keys))
