"""What an unquoted word of an hparams file means: a number, a boolean, nothing, or a text.

The rules are YAML 1.2's, with what it gets wrong for experiments put right: every spelling of a number that Python
knows is a number (``.5e3``, ``1e5``), ``None`` is None, a date is a text, and words that different readers of YAML take
for different things (``yes``, ``off``, ``0123``) are not guessed at.
"""

from __future__ import annotations

import re

__all__ = ["AmbiguousWord", "Scalar", "is_tuple", "read_boolean", "read_plain"]

Scalar = str | int | float | bool | None

_NONE = ("", "~", "null", "Null", "NULL", "None")
_BOOLEAN = {"true": True, "false": False}
_OTHER_BOOLEAN = {"yes": True, "on": True, "no": False, "off": False}
# Underscores only between groups of three digits: 1_000 is a number and 2024_01 a name.
_DIGITS = r"(?:[0-9]{1,3}(?:_[0-9]{3})+|[0-9]+)"
_INTEGER = re.compile(rf"[-+]?{_DIGITS}")
_BASED = re.compile(r"[-+]?0(?:x[0-9a-fA-F]+|o[0-7]+|b[01]+)")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_FLOAT = re.compile(rf"[-+]?(?:{_DIGITS}\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"([-+]?)\.(inf|nan)", re.IGNORECASE)


class AmbiguousWord(ValueError):
    """A word that readers of YAML disagree about.

    Attributes:
        boolean: what it means if it is a boolean; None if it can be none.

    >>> AmbiguousWord("no").boolean
    False
    """

    def __init__(self, word: str) -> None:
        self.boolean = read_boolean(word)
        if self.boolean is None:
            advice = f"write {int(word)} for the number, or '{word}', in quotes, for the text"
        else:
            advice = (
                f"write {str(self.boolean).lower()} for the boolean, or '{word}', in quotes, for the word"
            )
        super().__init__(f"{word} means different things to different readers of YAML: {advice}")


def read_plain(word: str) -> Scalar:
    """The value of an unquoted word.

    Raises:
        AmbiguousWord: for yes, no, on, off and for whole numbers that begin with a zero.

    >>> [read_plain(word) for word in ("1e-4", ".5e3", "1_000", "TRUE", "None", "2024-01-02", "1.2.3")]
    [0.0001, 500.0, 1000, True, None, '2024-01-02', '1.2.3']
    """
    if word in _NONE:
        return None
    if word.lower() in _BOOLEAN and word in (word.lower(), word.upper(), word.capitalize()):
        return _BOOLEAN[word.lower()]
    if word.lower() in _OTHER_BOOLEAN or _LEADING_ZERO.fullmatch(word):
        raise AmbiguousWord(word)
    if _INTEGER.fullmatch(word):
        return int(word)
    if _BASED.fullmatch(word):
        return int(word, 0)
    if _FLOAT.fullmatch(word):
        return float(word)
    special = _SPECIAL.fullmatch(word)
    return float("".join(special.groups())) if special else word


def read_boolean(word: str) -> bool | None:
    """A word as a boolean, in any usual spelling; None if it is none of them.

    >>> read_boolean("On"), read_boolean("0"), read_boolean("maybe")
    (True, False, None)
    """
    return {**_BOOLEAN, **_OTHER_BOOLEAN, "1": True, "0": False}.get(word.lower())


def is_tuple(word: str) -> bool:
    """Whether an unquoted word is a tuple: one pair of parentheses around everything.

    >>> is_tuple("(1, (2, 3))"), is_tuple("(a) and (b)")
    (True, False)
    """
    if not (word.startswith("(") and word.endswith(")")):
        return False
    depth = 0
    for index, character in enumerate(word):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return index == len(word) - 1
    return False
