"""Text: labels, characters, phones and words as numbers."""

from brainlib.text.categorical import CategoricalEncoder
from brainlib.text.ctc import CTCTextEncoder, TextEncoder

__all__ = ["CTCTextEncoder", "CategoricalEncoder", "TextEncoder"]
