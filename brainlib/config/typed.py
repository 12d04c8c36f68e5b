"""What was typed on a command line, remembered beside the YAML that it became.

YAML has no word for "a name without a value" or for "a text that the shell's user did not quote", and a line number of
a text that nobody wrote helps nobody. So the overrides that `parse_arguments` returns carry both along.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, TypeAlias

__all__ = ["How", "Typed", "TypedOverrides", "metavar", "spelled"]

How: TypeAlias = Literal["alone", "word", "yaml"]


@dataclasses.dataclass(frozen=True)
class Typed:
    """Where a node comes from, in place of a line of a file.

    Attributes:
        name: as on the command line: ``--lr``.
        how: "alone": the name without a value; "word": the value as it was typed; "yaml": the value is YAML.

    >>> Typed("--lr", "word").name
    '--lr'
    """

    name: str
    how: How


class TypedOverrides(str):
    r"""Overrides as YAML text, one key after the other, that know how each was typed.

    Args:
        values: for each key how it was typed, and its value as YAML.
        keys: how each key is spelled in YAML.

    >>> overrides = TypedOverrides({"lr": ("word", "0.1")}, {"lr": "lr"})
    >>> overrides, overrides.typed
    ('lr: 0.1\n', (Typed(name='--lr', how='word'),))
    """

    typed: tuple[Typed, ...]  # in the order of the keys
    _values: dict[str, tuple[How, str]]
    _keys: dict[str, str]

    def __new__(cls, values: Mapping[str, tuple[How, str]], keys: Mapping[str, str]) -> TypedOverrides:
        made = super().__new__(
            cls, "".join(f"{keys[name]}: {value}\n" for name, (_, value) in values.items())
        )
        made.typed = tuple(Typed(f"--{name}", how) for name, (how, _) in values.items())
        made._values, made._keys = dict(values), dict(keys)
        return made

    def with_value(self, name: str, text: str) -> TypedOverrides:
        r"""These, and one more in place of what was typed for this key, if anything was.

        >>> TypedOverrides({"lr": ("word", "0.1")}, {"lr": "lr"}).with_value("out", "no: 1")
        'lr: 0.1\n"out": "no: 1"\n'
        """
        value: tuple[How, str] = ("word", spelled(text))
        return TypedOverrides({**self._values, name: value}, {**self._keys, name: spelled(name)})


def spelled(text: str) -> str:
    r"""A text in double quotes, as YAML reads them.

    >>> print(spelled('say "no"'))
    "say \"no\""
    """
    written = (
        f"\\{each}" if each in '"\\' else each if each.isprintable() else f"\\U{ord(each):08x}"
        for each in text
    )
    return f'"{"".join(written)}"'


def metavar(key: str) -> str:
    """What stands for a value in a usage line.

    >>> metavar("output_folder"), metavar("lr")
    ('DIR', 'VALUE')
    """
    for word, name in (
        ("dir", "DIR"),
        ("folder", "DIR"),
        ("file", "FILE"),
        ("path", "PATH"),
        ("num", "NUMBER"),
    ):
        if word in key.lower():
            return name
    return "VALUE"
