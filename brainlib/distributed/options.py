"""The options of devices and processes."""

from __future__ import annotations

import dataclasses
from typing import Literal

from brainlib.common.logs import logger
from brainlib.common.option_fields import OptionGroup, Seconds, option

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
        "nccl",
        "How processes on CUDA devices exchange gradients; read only when there are several. On CPUs it is gloo.",
    )
    distributed_launch: bool = option(
        False,
        "Accepted for old files: whether there are several processes is read from torchrun's environment.",
    )
    find_unused_parameters: bool = option(
        False,
        "Let parameters have no gradient in some steps, at the price of a search in each; no effect in one process.",
    )
    parallel: Literal["auto", "ddp"] = option(
        "auto",
        "How several processes train one model. auto: by DDP where a launcher has started several; ddp: the same, and "
        "one process alone is an error.",
        ours=True,
    )
    dist_timeout_seconds: Seconds = option(
        600.0,
        "How long a rank waits for the others in an exchange, before it takes them for stuck and ends. A preparation "
        "inside run_on_main may take longer.",
        ours=True,
        minimum=1,
    )
    static_graph: bool = option(
        False,
        "Promise DDP that each step uses the same parameters in the same way, so that it need not look; no effect in "
        "one process.",
        ours=True,
    )
    gradient_as_bucket_view: bool = option(
        False,
        "Let gradients live in DDP's buckets, which saves a copy of them; no effect in one process.",
        ours=True,
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
