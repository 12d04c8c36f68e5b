"""Text: labels, characters, phones and words as numbers."""

from brainlib.text.categorical import CategoricalEncoder
from brainlib.text.ctc import CTCTextEncoder, TextEncoder
from brainlib.text.decoding import Hypothesis, PrefixBeamSearch, WordNgram

__all__ = [
    "CTCTextEncoder",
    "CategoricalEncoder",
    "Hypothesis",
    "PrefixBeamSearch",
    "TextEncoder",
    "WordNgram",
]
