"""``speechbrain.dataio.encoder``: labels as numbers, as brainlib has it."""

from brainlib.compat.fallback import refused
from brainlib.text import CategoricalEncoder, CTCTextEncoder, TextEncoder

__all__ = ["CTCTextEncoder", "CategoricalEncoder", "TextEncoder"]

__getattr__ = refused(__name__)
