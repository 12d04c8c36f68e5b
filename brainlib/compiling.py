"""How fast the modules are computed: torch.compile in place, TF32, memory formats; each says a line when asked for."""

from __future__ import annotations

import torch

from brainlib.common.errors import nearest, quoted
from brainlib.common.logs import logger
from brainlib.options import RunOptions

__all__ = ["compile_in_place", "set_matmul_precision", "to_channels_last"]


def compile_in_place(modules: torch.nn.ModuleDict, options: RunOptions) -> None:
    """Compile the modules that the options name; keys, attributes and ``isinstance`` stay as they are.

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


def set_matmul_precision(tf32: bool | None) -> None:
    """Let float32 products of CUDA devices run in TF32, or forbid it; None leaves torch as it is.

    This is a setting of the process, so it is made only where the option is given, and said.
    """
    if tf32 is None:
        return
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    logger.info(
        "tf32: float32 products of this process are computed in %s on CUDA", "TF32" if tf32 else "float32"
    )


def to_channels_last(modules: torch.nn.Module) -> None:
    """Put the weights of 2-D convolutions into the memory format ``channels_last``; their outputs follow it.

    >>> conv = torch.nn.Conv2d(3, 8, 3); to_channels_last(conv)
    >>> conv.weight.is_contiguous(memory_format=torch.channels_last)
    True
    """
    modules.to(memory_format=torch.channels_last)
    logger.info("channels_last: weights with four dimensions are in that memory format")
