"""One dataclass field is one run option: its type, its default, what it accepts and the sentence that explains it.

A value may come from a Python dict, from an hparams file or, as text, from a command line. All of them pass through
`Option.read`, so an option has one type whatever way it took. Everything else that knows about options (the help, the
docs page, the error messages) is read off the same fields, which is why a new option is one line in one dataclass:

    grad_clip: float | None = option(5.0, "Largest norm of the gradient.", minimum=0)

The type is the annotation. Understood are ``bool``, ``int``, ``float``, ``str``, ``Literal["a", "b"]``, ``list[str]``,
``dict[str, str]``, `Seconds` (a length of time), `Settings` (several in one text), and each of these with ``| None``.
"""

from __future__ import annotations

import dataclasses
import math
import os
import types
import typing
from collections.abc import Mapping
from typing import Any

from brainlib.common.durations import meant_by, seconds_of
from brainlib.common.errors import nearest, quoted

__all__ = ["Option", "OptionGroup", "Seconds", "Settings", "option", "options_of", "same_name"]

_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")
_NONE = ("none", "null", "~", "")


class Seconds(float):
    """The type of an option that is a length of time: it may be written as 12:00:00 or 1-12:00:00, and is a float.

    >>> import dataclasses
    >>> @dataclasses.dataclass(frozen=True)
    ... class Tea(OptionGroup):
    ...     time: Seconds = option(180.0, "How long it stands.")
    >>> options_of(Tea)[0].read("0:03:30", "the command line")
    210.0
    """


class Settings(str):
    """The type of an option that is several settings in one text, ``key=value; key=value``.

    A mapping becomes such a text. An empty text is a value: the settings, all at their defaults.

    >>> import dataclasses
    >>> @dataclasses.dataclass(frozen=True)
    ... class Tea(OptionGroup):
    ...     brewing: Settings | None = option(None, "How it is brewed.")
    >>> (brewing,) = options_of(Tea)
    >>> brewing.read({"cups": [1, 2], "pot": "a; b"}, "run_opts"), brewing.read("", "the command line")
    ("cups=[1, 2]; pot='a; b'", '')
    """


@dataclasses.dataclass(frozen=True)
class _Details:
    """What `option` remembers about a field until the class exists and the annotation can be read."""

    help: str
    ours: bool
    minimum: float | None
    instead: str


def option(
    default: Any, help: str, *, ours: bool = False, minimum: float | None = None, instead: str = ""
) -> Any:
    """Declare one run option as a dataclass field.

    Args:
        default: the value when nobody says anything.
        help: one or two sentences for ``--help`` and the docs page; say the unit.
        ours: True for a name that SpeechBrain does not have. Such a name is read from ``run_opts:`` in an hparams
            file and never from its top level, where it would capture a key of the user's.
        minimum: the smallest number accepted.
        instead: for a name that is only accepted so that old files load: what to use in its place. Any other value
            than the default is then an error that says so.

    >>> import dataclasses
    >>> @dataclasses.dataclass(frozen=True)
    ... class Tea(OptionGroup):
    ...     cups: int = option(2, "How many cups.", minimum=1)
    >>> Tea().cups
    2
    """
    details = _Details(" ".join(help.split()), ours, minimum, instead)
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata={"option": details})
    return dataclasses.field(default=default, metadata={"option": details})


@dataclasses.dataclass(frozen=True)
class OptionGroup:
    """The options of one collaborator: a frozen dataclass of `option` fields, and room for what they mean together."""

    def settle(self, explicit: frozenset[str]) -> OptionGroup:
        """Return the group with implied values filled in; warn about what has no effect; refuse what contradicts.

        Called once, after every source has been read.

        Args:
            explicit: the options that somebody set, of any group.

        >>> OptionGroup().settle(frozenset())
        OptionGroup()
        """
        return self


@dataclasses.dataclass(frozen=True)
class Option:
    """One option as the outside sees it: enough to read a value, print a help line or write a row of the docs.

    >>> import dataclasses
    >>> @dataclasses.dataclass(frozen=True)
    ... class Tea(OptionGroup):
    ...     sugar: bool = option(False, "Whether to add sugar.")
    >>> (sugar,) = options_of(Tea)
    >>> sugar.read("yes", "the command line"), sugar.read(0, "run_opts")
    (True, False)
    """

    name: str
    group: type[OptionGroup]
    kind: Any
    optional: bool
    default: Any
    help: str
    ours: bool
    minimum: float | None
    instead: str

    @property
    def is_flag(self) -> bool:
        """True for a boolean: on a command line it may stand without a value."""
        return self.kind is bool

    @property
    def is_list(self) -> bool:
        """True for a list of names: on a command line it takes every value up to the next option."""
        return bool(self.kind == list[str])

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a ``Literal``, else nothing."""
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is typing.Literal else ()

    @property
    def takes(self) -> str:
        """What the option accepts, in words, for messages and docs."""
        if self.choices:
            words = "one of " + quoted(self.choices)
        else:
            words = {
                bool: "true or false",
                int: "a whole number",
                float: "a number",
                str: "a text",
                Seconds: "seconds, or days-hours:minutes:seconds, such as 0:30:00",
                Settings: "a text such as key=value; key=value",
            }.get(self.kind, "a list of names" if self.is_list else "names with values")
        if self.minimum is not None:
            words += f", at least {self.minimum:g}"
        return words + (", or null" if self.optional else "")

    @property
    def default_in_words(self) -> str:
        """The default as an hparams file spells it."""
        if isinstance(self.default, dict):
            return ",".join(f"{key}={value}" for key, value in self.default.items())
        if self.default is None or self.is_flag:
            return {None: "null", True: "true", False: "false"}[self.default]
        return str(self.default)

    def read(self, value: Any, where: str) -> Any:
        """Turn a value from any source into this option's one type.

        Args:
            value: what was given: a Python object or a text.
            where: where it was given ("run_opts", "the command line", …), for the message.

        Raises:
            ValueError: the value is not what the option takes.
        """
        scalar = getattr(value, "item", None)
        if callable(scalar) and getattr(value, "ndim", None) == 0:
            value = scalar()  # numpy's and torch's scalars are as good as Python's
        result = self._convert(value)
        if result is _REFUSED or (self.minimum is not None and result is not None and result < self.minimum):
            raise ValueError(
                f"The option {self.name!r} ({where}) is {value!r}, but it takes {self.takes}.{self._hint(value)}"
            )
        if self.instead and result != self.default:
            raise ValueError(
                f"The option {self.name!r} ({where}) is {value!r}, but brainlib has no such thing. {self.instead}"
            )
        return result

    def _hint(self, value: Any) -> str:
        """What a refused value may have meant, as a sentence with a space before it."""
        if not isinstance(value, str):
            return ""
        if self.kind is Seconds:
            meant = meant_by(value)
            return f" {meant[0].upper()}{meant[1:]}." if meant else ""
        return nearest(value, self.choices) if self.choices else ""

    def _convert(self, value: Any) -> Any:
        none = _NONE[:-1] if self.kind is Settings else _NONE
        if value is None or (self.optional and isinstance(value, str) and value.strip().lower() in none):
            return None if self.optional else _REFUSED
        if self.choices:
            return value if value in self.choices else _REFUSED
        return _CONVERTERS.get(self.kind, _text)(value)


class _Refused:
    """The answer of a converter to a value that it does not take (None is an ordinary answer)."""


_REFUSED = _Refused()


def _flag(value: Any) -> Any:
    word = str(value).strip().lower() if isinstance(value, (bool, int, str)) else ""
    return True if word in _TRUE else False if word in _FALSE else _REFUSED


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return _REFUSED
    try:
        number = float(value)
    except ValueError:
        return _REFUSED
    return _REFUSED if math.isnan(number) else number


def _count(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = _number(value)  # "12", and 1e3, which YAML reads as a float
    return int(number) if isinstance(number, float) and number.is_integer() else _REFUSED


def _seconds(value: Any) -> Any:
    number = seconds_of(value) if isinstance(value, str) else value
    return _REFUSED if number is None else _number(number)


def _text(value: Any) -> Any:
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    return value if isinstance(value, str) else _REFUSED


def _settings(value: Any) -> Any:
    if isinstance(value, Mapping):
        pairs = ((str(key), str(each)) for key, each in value.items() if each is not None)
        return "; ".join(f"{key}={_in_quotes(each)}" for key, each in pairs)
    return value if isinstance(value, str) else _REFUSED


def _in_quotes(text: str) -> str:
    if ";" not in text and text == text.strip() and text[:1] not in "'\"":
        return text
    return f'"{text}"' if "'" in text else f"'{text}'"


def _names(value: Any) -> Any:
    if isinstance(value, str):
        value = [
            name.strip().strip("'\"") for name in value.strip().removeprefix("[").removesuffix("]").split(",")
        ]
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        return _REFUSED
    return [name for name in value if name]


def _pairs(value: Any) -> Any:
    if isinstance(value, str):  # train=GREEN,valid=BLUE
        pairs = [pair.partition("=") for pair in value.split(",")]
        value = {key.strip(): text.strip() for key, sign, text in pairs if sign}
        if len(value) != len(pairs):
            return _REFUSED
    if not isinstance(value, Mapping) or not all(isinstance(x, str) for pair in value.items() for x in pair):
        return _REFUSED
    return dict(value)


_CONVERTERS: dict[Any, Any] = {
    bool: _flag,
    int: _count,
    float: _number,
    str: _text,
    Seconds: _seconds,
    Settings: _settings,
    list[str]: _names,
    dict[str, str]: _pairs,
}


def options_of(group: type[OptionGroup]) -> tuple[Option, ...]:
    """The options that a group declares, in the order of the file.

    >>> import dataclasses
    >>> @dataclasses.dataclass(frozen=True)
    ... class Tea(OptionGroup):
    ...     milk: float | None = option(None, "Milk, in milliliters.", minimum=0)
    >>> [(each.name, each.takes) for each in options_of(Tea)]
    [('milk', 'a number, at least 0, or null')]
    """
    hints = typing.get_type_hints(group)
    found = []
    for field in dataclasses.fields(group):
        details: _Details = field.metadata["option"]
        kind, optional = _without_none(hints[field.name])
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        found.append(Option(field.name, group, kind, optional, default, **dataclasses.asdict(details)))
    return tuple(found)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    rest = [each for each in typing.get_args(hint) if each is not type(None)]
    assert len(rest) == 1, f"an option has one type, perhaps with None, not {hint}"
    return rest[0], True


def same_name(name: str) -> str:
    """The one spelling under which names are compared: dashes and underscores are alike.

    >>> same_name("max-grad-norm")
    'max_grad_norm'
    """
    return name.replace("-", "_")
