"""What a profiler is told: one text ``key=value; key=value``, a mapping, or nothing."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from brainlib.common.errors import nearest, quoted
from brainlib.common.logs import logger
from brainlib.common.option_fields import same_name

__all__ = ["ProfilerOptions"]

_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")
_ABOUT_THE_TRACE = ("state", "sorted_key", "tracer_option")
_MANY = 200  # updates: a trace of more is dear to write and hard to open


def _range(value: Any) -> tuple[int, int] | None:
    if isinstance(value, str):
        inside = value.strip()
        if inside[:1] + inside[-1:] in ("[]", "()"):
            inside = inside[1:-1]
        value = inside.split(",")
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        return None
    first, last = _count(value[0]), _count(value[1])
    return None if first is None or last is None or not 0 <= first < last else (first, last)


def _count(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _at_least_one(value: Any) -> int | None:
    number = _count(value)
    return None if number is None or number < 1 else number


def _flag(value: Any) -> bool | None:
    word = str(value).strip().lower() if isinstance(value, (bool, int, str)) else ""
    return True if word in _TRUE else False if word in _FALSE else None


def _one_of(*words: str) -> Callable[[Any], str | None]:
    def read(value: Any) -> str | None:
        return next((w for w in words if isinstance(value, str) and w.lower() == value.lower()), None)

    return read


def _path(value: Any) -> str | None:
    text = str(value) if hasattr(value, "__fspath__") else value
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        return None
    is_folder = text.endswith(os.sep) or os.path.basename(text) in (".", "..")
    return os.path.join(text, "profile") if is_folder else text


_STATES = ("CPU", "GPU", "All")
_SORTED_KEYS = ("calls", "total", "max", "min", "ave")
_TRACER_OPTIONS = ("Default", "OpDetail", "AllOpDetail")

# How each key is read (None: refused), and what it takes, in words.
_READERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "batch_range": (_range, "[a, b] with whole numbers 0 <= a < b: updates a to b-1 of the fit, counted from 0"),
    "repeat": (_at_least_one, "a whole number, at least 1"),
    "state": (_one_of(*_STATES), f"one of {quoted(_STATES)}"),
    "sorted_key": (_one_of(*_SORTED_KEYS), f"one of {quoted(_SORTED_KEYS)}"),
    "tracer_option": (_one_of(*_TRACER_OPTIONS), f"one of {quoted(_TRACER_OPTIONS)}"),
    "profile_path": (_path, "a path: what the names of the files begin with"),
    "timer_only": (_flag, "true or false"),
    "exit_on_finished": (_flag, "true or false"),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ProfilerOptions:
    """What a profiler records, and where it writes it.

    Args:
        batch_range: ``[a, b]``: the updates a to b-1 of the fit, counted from 0. The one before a is the warm-up.
        repeat: how many such ranges are recorded, back to back, each into files of its own.
        state: what is recorded: "CPU", "GPU" (kernels alone), or "All".
        sorted_key: what the table of operators is sorted by: "calls", "total", "max", "min" or "ave" time.
        tracer_option: "Default": operators, phases and modules; "OpDetail": and the shapes of inputs; "AllOpDetail":
            and Python's stacks, memory and floating point operations, in a trace that is many times larger.
        profile_path: what the names of the files begin with, or, with ``/`` at its end, a folder for ``profile``; None:
            ``profile`` in the output folder of the experiment, else in the current folder. Nothing is overwritten: a
            second run writes ``profile-2``.
        timer_only: only the clock: throughput and phases, no trace.
        exit_on_finished: end the fit after the last range; it returns to whoever called it.

    Raises:
        ValueError: for a value that a key does not take.

    Example:
        >>> options = ProfilerOptions.read("batch_range=[50, 60]; profile_path='model a.profile';")
        >>> options.batch_range, options.profile_path, options.sorted_key
        ((50, 60), 'model a.profile', 'total')
        >>> ProfilerOptions.read(None) is None, ProfilerOptions.read("") == ProfilerOptions()
        (True, True)
    """

    batch_range: tuple[int, int] = (10, 20)
    repeat: int = 1
    state: str = "All"
    sorted_key: str = "total"
    tracer_option: str = "Default"
    profile_path: str | None = None
    timer_only: bool = False
    exit_on_finished: bool = True

    def __post_init__(self) -> None:
        for key, (read, takes) in _READERS.items():
            given = getattr(self, key)
            if key == "profile_path" and given is None:
                continue
            value = read(given)
            if value is None:
                words = {"state": _STATES, "sorted_key": _SORTED_KEYS, "tracer_option": _TRACER_OPTIONS}
                hint = nearest(given, words.get(key, ())) if isinstance(given, str) else ""
                raise ValueError(f"profiler option {key!r} is {given!r}, but it takes {takes}.{hint}")
            object.__setattr__(self, key, value)
        first, last = self.batch_range
        if last - first > _MANY and not self.timer_only:
            logger.warning(
                "profiler: batch_range=[%d, %d] records %d updates; the trace may be too large to open. Ten are "
                "usually enough; timer_only=true measures any number.",
                first, last, last - first,
            )  # fmt: skip

    @classmethod
    def read(
        cls, given: str | Mapping[str, Any] | ProfilerOptions | None, **defaults: Any
    ) -> ProfilerOptions | None:
        """From a text, a mapping, or what it is already; None is None, and an empty text is all defaults.

        Args:
            given: as a text, ``key=value`` pairs with ``;`` between them. Spaces round them do not count, a last
                ``;`` neither; a value may hold ``=``, and in quotes also ``;``.
            defaults: for keys that are not given.

        Raises:
            ValueError: for an unknown key, a value that a key does not take, a key that is given twice, or what is no
                pair.
        """
        if given is None or isinstance(given, ProfilerOptions):
            return given
        if isinstance(given, str):
            pairs = _pairs_of(given)
        elif isinstance(given, Mapping):
            pairs = [(str(key), value) for key, value in given.items()]
        else:
            raise ValueError(
                f"the profiler options are {given!r}; they are a text such as 'batch_range=[10, 20]; state=CPU', or "
                "a mapping"
            )
        values: dict[str, Any] = {}
        for spelled, value in pairs:
            key = same_name(spelled)
            if key not in _READERS:
                raise ValueError(
                    f"there is no profiler option {spelled!r}; there are {quoted(_READERS)}.{nearest(key, _READERS)}"
                )
            if key in values:
                raise ValueError(f"profiler option {key!r} is given twice; give it once")
            if value is None and key != "profile_path":
                raise ValueError(f"profiler option {key!r} is None, but it takes {_READERS[key][1]}.")
            values[key] = value
        options = cls(**{**defaults, **values})
        useless = [key for key in _ABOUT_THE_TRACE if key in values]
        if options.timer_only and useless:
            logger.warning("profiler: %s has no effect with timer_only", quoted(useless))
        return options

    @property
    def end(self) -> int:
        """The number of updates after which the last range is over.

        >>> ProfilerOptions(batch_range=(2, 5), repeat=3).end
        11
        """
        first, last = self.batch_range
        return first + self.repeat * (last - first)


def _pairs_of(text: str) -> list[tuple[str, str]]:
    pairs = []
    for part in _split(text):
        key, sign, value = part.partition("=")
        if not part.strip():
            continue
        if not sign or not key.strip():
            raise ValueError(
                f"the profiler options hold {part.strip()!r}, which is no key=value; write them as "
                f"'batch_range=[10, 20]; state=CPU'. The keys are {quoted(_READERS)}."
            )
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        pairs.append((key.strip(), value))
    return pairs


def _split(text: str) -> list[str]:
    """At each ``;`` that is not in quotes. A quote counts where a value begins with it, so that a path may hold one."""
    parts, current, quote = [], "", ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"" and current.rstrip().endswith("="):
            quote = letter
        elif letter == ";":
            parts.append(current)
            current = ""
            continue
        current += letter
    if quote:
        raise ValueError(f"the profiler options {text!r} open a quote {quote} and do not close it")
    return [*parts, current]
