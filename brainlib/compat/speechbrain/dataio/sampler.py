"""``speechbrain.dataio.sampler``: orders of items and batches, as brainlib has it."""

from brainlib.compat.fallback import refused
from brainlib.data.dynamic_batches import DynamicBatchSampler
from brainlib.data.samplers import (
    BalancingDataSampler,
    ReproducibleRandomSampler,
    ReproducibleWeightedRandomSampler,
)

__all__ = [
    "BalancingDataSampler",
    "DynamicBatchSampler",
    "ReproducibleRandomSampler",
    "ReproducibleWeightedRandomSampler",
]

__getattr__ = refused(__name__)
