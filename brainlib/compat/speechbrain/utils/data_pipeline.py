"""``speechbrain.utils.data_pipeline``: computed keys of a data set, as brainlib has it."""

from brainlib.compat.fallback import refused
from brainlib.data.pipeline import DynamicItem, provides, takes

__all__ = ["DynamicItem", "provides", "takes"]

__getattr__ = refused(__name__)
