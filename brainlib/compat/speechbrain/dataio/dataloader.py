"""``speechbrain.dataio.dataloader``: loaders that know their position, as brainlib has it."""

from brainlib.compat.fallback import refused
from brainlib.data.loader import SaveableDataLoader, make_dataloader

__all__ = ["SaveableDataLoader", "make_dataloader"]

__getattr__ = refused(__name__)
