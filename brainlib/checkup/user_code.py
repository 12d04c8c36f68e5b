"""What is the user's own code, and what it reads: told by its names, without running any of it."""

from __future__ import annotations

import dis
import functools
import inspect
import os
import sys
import sysconfig
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

__all__ = ["function_of", "is_users", "methods_of", "names_read", "nested", "suspicious_calls"]

_LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STANDARD = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})

# Names that make a value differ from one process, moment or folder to the next, and what they are.
_CHANGING = {
    "time": "the time",
    "time_ns": "the time",
    "perf_counter": "the time",
    "perf_counter_ns": "the time",
    "monotonic": "the time",
    "monotonic_ns": "the time",
    "now": "the time",
    "utcnow": "the time",
    "urandom": "the system's random numbers",
    "getrandom": "the system's random numbers",
    "SystemRandom": "the system's random numbers",
    "token_bytes": "the system's random numbers",
    "token_hex": "the system's random numbers",
    "uuid1": "the system's random numbers",
    "uuid4": "the system's random numbers",
    "default_rng": "a generator that is made without a seed, if none is given",
    "seed": "a seed, which is drawn from the system if none is given",
    "getpid": "the number of the process",
    "hash": "hash(), which differs between processes for texts",
    "id": "id(), which differs between processes",
    "set": "the order of a set, which differs between processes for texts",
    "frozenset": "the order of a set, which differs between processes for texts",
    "listdir": "the order of a folder, which the file system decides",
    "scandir": "the order of a folder, which the file system decides",
    "iterdir": "the order of a folder, which the file system decides",
    "glob": "the order of a folder, which the file system decides",
    "rglob": "the order of a folder, which the file system decides",
}


@functools.cache
def is_users(file: str) -> bool:
    """Whether a file of Python code is the user's own: not brainlib's, Python's or an installed package's.

    >>> is_users("/home/me/train.py"), is_users(os.__file__), is_users("<string>")
    (True, False, True)
    """
    path = os.path.realpath(file)
    if "site-packages" in path or "dist-packages" in path or path.startswith(_LIBRARY):
        return False
    return not path.startswith(_STANDARD)


def is_users_class(cls: type) -> bool:
    """Whether a class is the user's own."""
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if file is None:  # built in, or a script that was typed in
        return cls.__module__ == "__main__"
    return is_users(file)


def is_users_module(module: ModuleType) -> bool:
    """Whether a module is the user's own."""
    file = getattr(module, "__file__", None)
    return file is not None and is_users(file)


def function_of(value: Any) -> FunctionType | None:
    """The Python function in a method, a partial or a decorated function; None where there is none.

    >>> function_of(functools.partial(is_users, "x")).__name__
    'is_users'
    """
    while True:
        if isinstance(value, (staticmethod, classmethod, MethodType)):
            value = value.__func__
        elif isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, property):
            value = value.fget
        elif not isinstance(value, FunctionType) and hasattr(value, "__wrapped__"):
            value = inspect.unwrap(value)
        else:
            return value if isinstance(value, FunctionType) else None


def methods_of(cls: type) -> Iterator[FunctionType]:
    """The methods of `cls` that are the user's own; of one that is overridden also those that it may call by super().

    >>> list(methods_of(dict))
    []
    """
    hidden: set[str] = set()
    for base in cls.__mro__:
        for name, value in vars(base).items():
            function = function_of(value)
            if function is None or name in hidden:
                continue
            if "super" not in names_used(function):
                hidden.add(name)
            if is_users_class(base) and is_users(function.__code__.co_filename):
                yield function


def nested(code: CodeType) -> Iterator[CodeType]:
    """A piece of code and those inside it: comprehensions, lambdas, inner functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested(constant)


def names_used(function: FunctionType) -> set[str]:
    """Every global name and attribute that a function mentions.

    >>> sorted(names_used(is_users_module))
    ['getattr', 'is_users']
    """
    return {name for code in nested(function.__code__) for name in code.co_names}


def names_read(function: FunctionType) -> set[str]:
    """The attributes and globals that a function reads; what it only assigns is not among them.

    >>> class Counter:
    ...     def count(self):
    ...         self.first = self.second
    >>> sorted(names_read(Counter.count))
    ['second']
    """
    return {
        str(each.argval)
        for code in nested(function.__code__)
        for each in dis.get_instructions(code)
        if each.opname.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME"))
    }


def suspicious_calls(function: FunctionType) -> list[str]:
    """What a function may depend on that differs from one process to the next.

    >>> def order():
    ...     return os.urandom(2)
    >>> suspicious_calls(order)
    ["the system's random numbers (urandom)"]
    """
    found: dict[str, list[str]] = {}
    for name in sorted(names_used(function) & _CHANGING.keys()):
        found.setdefault(_CHANGING[name], []).append(name)
    if any(
        each.opname in ("BUILD_SET", "SET_ADD")
        for code in nested(function.__code__)
        for each in dis.get_instructions(code)
    ):
        found.setdefault(_CHANGING["set"], []).append("{...}")
    return [f"{what} ({', '.join(names)})" for what, names in found.items()]
