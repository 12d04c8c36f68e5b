"""``speechbrain.utils.epoch_loop``: counters of epochs, as brainlib has it."""

from brainlib.compat.fallback import refused
from brainlib.epoch_counter import EpochCounter, EpochCounterWithStopper

__all__ = ["EpochCounter", "EpochCounterWithStopper"]

__getattr__ = refused(__name__)
