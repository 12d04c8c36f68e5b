"""``speechbrain.utils.Accuracy``: accuracy, as brainlib has it."""

from brainlib.compat.fallback import installed
from brainlib.metrics import AccuracyStats

__all__ = ["AccuracyStats"]

__getattr__ = installed(__name__)
