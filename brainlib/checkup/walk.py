"""A walk over everything that a training run can change and a checkpoint may not hold.

It begins at the attributes of the Brain, the hparams, the extensions and the data, goes into containers and objects,
and follows the user's own functions to the global names and closures that they use. What it brings back is a flat list:
where, what kind of thing, a digest of its value. It calls nothing of the user's but ``state_dict``.
"""

from __future__ import annotations

import collections
import enum
import functools
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Set
from types import BuiltinFunctionType, BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from brainlib.checkup.digests import Digests, generator_state
from brainlib.checkup.user_code import (
    is_users,
    is_users_class,
    is_users_module,
    methods_of,
    names_used,
)
from brainlib.common.logs import logger
from brainlib.found import has_state

__all__ = ["Leaf", "Walk", "class_values"]

_MOST_LEAVES = 50_000
_DEEPEST = 10
_LISTED = 64  # entries of a container that are looked at one by one; a larger one is one leaf

_FOREIGN = 3  # levels that an object of an installed package counts: what it consists of is its own business
_OPAQUE = frozenset(
    {"brainlib", "builtins", "_io", "re", "weakref", "threading", "_thread", "multiprocessing"}
)

_SCALARS = (bool, int, float, complex, str, bytes, np.generic, enum.Enum, os.PathLike, type(None))
_TORCH_VALUES = (torch.dtype, torch.device, torch.Size, slice, range)
_SKIPPED = (
    type, ModuleType, BuiltinFunctionType, BuiltinMethodType, logging.Logger, logging.Handler, threading.Thread,
    type(threading.Lock()), type(threading.RLock()),
)  # fmt: skip


class Leaf(NamedTuple):
    """One thing that has a value."""

    digest: str
    kind: str  # "parameter", "object", "generator", "value", "container" or "iterator"
    shown: str  # for a reader
    owner: str  # the path of the module or object that it is a part of
    root: str  # where the walk came from


class Walk:
    """What is reached from the roots, each object once and under the first path that leads to it.

    Args:
        digests: makes the digests.
        without: objects that are looked after elsewhere: nothing below them is walked.

    Attributes:
        leaves: by path.
        functions: the user's own functions that were met, with the root that led there.

    >>> walk = Walk(Digests())
    >>> walk.root("brain.stats", {"best": 0.5, "names": ["a"]})
    >>> {path: leaf.shown for path, leaf in walk.leaves.items()}
    {'brain.stats': 'dict of 2', "brain.stats['best']": '0.5', "brain.stats['names']": 'list of 1', ...}
    """

    def __init__(self, digests: Digests, without: list[Any] | None = None) -> None:
        self.leaves: dict[str, Leaf] = {}
        self.functions: dict[FunctionType, str] = {}
        self._digests = digests
        self._seen: dict[int, Any] = {
            id(each): each for each in without or []
        }  # kept alive, so that an id stays its own
        self._classes: set[type] = set()
        self._named: dict[str, Any] = {}  # globals and closures
        self._root = ""

    def root(self, path: str, value: Any) -> None:
        """Walk from here."""
        self._root = path
        self._visit(path, value, 0, path)

    def modules(self, path: str, modules: torch.nn.Module) -> None:
        """Walk modules whose weights are traced elsewhere: a momentum, a count, a cache that stands on one."""
        self._root = path
        self._visit_module(path, modules, 0, traced=True)

    def methods(self, path: str, cls: type) -> None:
        """Walk the class attributes of the user's own bases of `cls`, and note their methods."""
        self._root = path
        self._note_class(cls)

    def follow_functions(self) -> None:
        """Walk the closures and the global names that the functions met so far use, and those that these lead to."""
        examined: set[FunctionType] = set()
        while todo := [f for f in self.functions if f not in examined]:
            for function in todo:
                examined.add(function)
                self._root = self.functions[function]
                self._follow(function)

    # ------------------------------------------------------------------------------------------------- what it meets

    def _visit(self, path: str, value: Any, depth: int, owner: str) -> None:
        if len(self.leaves) >= _MOST_LEAVES or depth > _DEEPEST:
            return
        if isinstance(value, _SCALARS) or isinstance(value, _TORCH_VALUES):
            self._leaf(path, value, "value", self._digests.text(_short(value)), owner)
            return
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        try:
            self._visit_new(path, value, depth, owner)
        except Exception as error:  # noqa: BLE001  # objects of the user's may answer anything when they are looked at
            logger.debug("%s could not be looked at: %r", path, error)

    def _visit_new(self, path: str, value: Any, depth: int, owner: str) -> None:
        if isinstance(value, type):
            self._note_class(value)
        elif isinstance(value, _SKIPPED):
            return
        elif isinstance(value, torch.nn.Module):
            self._visit_module(path, value, depth)
        elif isinstance(value, (Tensor, np.ndarray)):
            self._leaf(path, value, "value", _short(value), owner, sampled=True)
        elif generator_state(value) is not None:
            self._leaf(path, value, "generator", type(value).__name__, path)
        elif isinstance(value, Optimizer):
            self._leaf(path, value.state_dict(), "object", type(value).__name__, path)
        elif isinstance(value, functools.partial):
            for place, each in enumerate(value.args):
                self._visit(f"{path}.args[{place}]", each, depth + 1, owner)
            for key, each in value.keywords.items():
                self._visit(f"{path}.keywords[{key!r}]", each, depth + 1, owner)
            self._visit(path, value.func, depth + 1, owner)
        elif isinstance(value, MethodType):
            self._visit(f"{path}.__self__", value.__self__, depth + 1, owner)
            if isinstance(value.__func__, FunctionType):
                self._note(value.__func__)
        elif isinstance(value, FunctionType):
            self._note(value)
        elif isinstance(value, (Mapping, list, tuple, Set, collections.deque)):
            self._visit_container(path, value, depth, owner)
        elif hasattr(type(value), "__next__") and not hasattr(value, "__dict__"):
            self.leaves[path] = Leaf(type(value).__name__, "iterator", type(value).__name__, path, self._root)
        else:
            self._visit_object(path, value, depth, owner)

    def _visit_module(self, path: str, module: torch.nn.Module, depth: int, traced: bool = False) -> None:
        """Weights and buffers, and whatever else stands on a module and its parts: a momentum, a count, a cache."""
        for name, part in module.named_modules():
            place = f"{path}.{name}" if name else path
            self._seen[id(part)] = part
            self._note_class(type(part))
            if not traced:
                for key, tensor in (*part._parameters.items(), *part._buffers.items()):
                    if tensor is not None:
                        self._leaf(f"{place}.{key}", tensor, "parameter", type(module).__name__, path)
            for key, each in vars(part).items():
                if not key.startswith("_"):
                    self._visit(f"{place}.{key}", each, depth + 1, place)

    def _visit_container(self, path: str, value: Any, depth: int, owner: str) -> None:
        shown = f"{type(value).__name__} of {len(value)}"
        if len(value) > _LISTED:
            self._leaf(path, value, "container", shown, owner, sampled=True)
            return
        keys = list(value) if isinstance(value, Mapping) else []
        self._leaf(
            path, [len(value), [k for k in keys if isinstance(k, _SCALARS)]], "container", shown, owner
        )
        if isinstance(value, Set):
            if all(isinstance(each, _SCALARS) for each in value):
                self._leaf(path, value, "container", shown, owner)
            return
        for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            self._visit(f"{path}[{self._digests.text(_short(key))}]", each, depth + 1, owner)

    def _visit_object(self, path: str, value: Any, depth: int, owner: str) -> None:
        cls = type(value)
        self._note_class(cls)
        if has_state(value):
            self._leaf(path, value.state_dict(), "object", cls.__name__, path)
            if not is_users_class(cls):
                return
            owner = path
        if cls.__module__.partition(".")[0] in _OPAQUE:
            return
        deeper = depth + (1 if is_users_class(cls) else _FOREIGN)
        for name, each in _attributes_of(value):
            self._visit(f"{path}.{name}", each, deeper, owner)

    def _leaf(self, path: str, value: Any, kind: str, shown: str, owner: str, sampled: bool = False) -> None:
        digest = self._digests.of(value, sampled=sampled)
        self.leaves[path] = Leaf(digest, kind, shown, owner, self._root)

    # ------------------------------------------------------------------------------------------------ code of the user

    def _note(self, function: FunctionType) -> None:
        if is_users(function.__code__.co_filename):
            self.functions.setdefault(function, self._root)

    def _note_class(self, cls: type) -> None:
        for base in cls.__mro__:
            if base in self._classes or not is_users_class(base):
                continue
            self._classes.add(base)
            for name, value in class_values(base, inherited=False):
                self._visit(f"{base.__name__}.{name}", value, 1, f"{base.__name__}.{name}")
        for function in methods_of(cls):
            self._note(function)

    def _follow(self, function: FunctionType) -> None:
        names = names_used(function)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            self._visit_named(f"closure variable {name}", value)
        for name in sorted(names & function.__globals__.keys()):
            value = function.__globals__[name]
            if isinstance(value, ModuleType):
                if is_users_module(value):
                    for inner in sorted(names & vars(value).keys()):
                        self._visit_named(f"global {value.__name__}.{inner}", vars(value)[inner])
            else:
                self._visit_named(f"global {name}", value)

    def _visit_named(self, path: str, value: Any) -> None:
        number, unique = 1, path
        while (
            unique in self._named and self._named[unique] is not value
        ):  # two modules may each have a global `rng`
            number += 1
            unique = f"{path} ({number})"
        if unique not in self._named:
            self._named[unique] = value
            self._visit(unique, value, 0, unique)


def class_values(cls: type, inherited: bool = True) -> Iterator[tuple[str, Any]]:
    """The class attributes of the user's own classes that are no code.

    >>> list(class_values(dict))
    []
    """
    known: set[str] = set()
    for base in cls.__mro__ if inherited else (cls,):
        for name, value in vars(base).items() if is_users_class(base) else ():
            if name not in known and not name.startswith("__"):
                known.add(name)
                if not callable(value) and not hasattr(value, "__get__"):
                    yield name, value


def _attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Attributes in ``__dict__`` and slots; nothing is computed for it."""
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict):
        yield from list(own.items())
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            descriptor: Any = cls.__dict__.get(name)
            if name not in ("__dict__", "__weakref__") and hasattr(descriptor, "__get__"):
                try:
                    yield name, descriptor.__get__(value)
                except AttributeError:
                    continue


def _short(value: Any) -> str:
    """A value in a few letters."""
    if isinstance(value, (Tensor, np.ndarray)):
        if value.shape in ((), (1,)) and not (isinstance(value, Tensor) and value.device.type == "meta"):
            return repr(value.reshape(-1)[0].item())
        return f"{'tensor' if isinstance(value, Tensor) else 'array'} {list(value.shape)}"
    text = f"{type(value).__name__}.{value.name}" if isinstance(value, enum.Enum) else repr(value)
    return text if len(text) <= 60 else f"{text[:56]} ..."
