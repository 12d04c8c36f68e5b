"""The options of devices and processes."""

from __future__ import annotations

import dataclasses
from typing import Literal

from brainlib.common.logs import logger
from brainlib.common.option_fields import OptionGroup, option

__all__ = ["DistributedOptions"]

_TORCHRUN = "Start one process a device with torchrun; brainlib finds the others by itself."


@dataclasses.dataclass(frozen=True)
class DistributedOptions(OptionGroup):
    """Where the computation happens.

    >>> DistributedOptions().distributed_backend
    'nccl'
    """

    device: str | None = option(
        None,
        "Where to compute: cpu, cuda, cuda:1, mps, …; null: the accelerator of this process if there is one, else cpu.",
    )
    distributed_backend: Literal["nccl", "gloo", "mpi"] = option(
        "nccl", "How processes talk to each other; read only when there are several."
    )
    distributed_launch: bool = option(
        False,
        "Accepted for old files: whether there are several processes is read from torchrun's environment.",
    )
    find_unused_parameters: bool = option(
        False,
        "Let parameters have no gradient in some steps, at the price of a search in each; no effect in one process.",
    )
    data_parallel_backend: bool = option(False, f"Accepted for old files. {_TORCHRUN}", instead=_TORCHRUN)
    data_parallel_count: int = option(-1, f"Accepted for old files. {_TORCHRUN}", instead=_TORCHRUN)

    def settle(self, explicit: frozenset[str]) -> DistributedOptions:
        """Say when `distributed_launch` was set for nothing."""
        if self.distributed_launch:
            logger.warning(
                "distributed_launch has no effect: torchrun's environment says whether there are several processes."
            )
        return self
