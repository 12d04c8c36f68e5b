"""``speechbrain.dataio.dataset``: data sets with computed keys, as brainlib has it."""

from brainlib.compat.fallback import refused
from brainlib.data.dataset import DynamicItemDataset, add_dynamic_item, set_output_keys

__all__ = ["DynamicItemDataset", "add_dynamic_item", "set_output_keys"]

__getattr__ = refused(__name__)
