"""Checkpoint hooks of your own: a class whose methods write a file and read it back.

For a class that has `state_dict` and `load_state_dict` none of this is needed. Hooks are for what is better kept in a
format of its own (a tokenizer, an index, a text file)::

    @register_checkpoint_hooks
    class Tokenizer:
        @mark_as_saver
        def _save(self, path): ...
        @mark_as_loader
        def _load(self, path, end_of_epoch): ...

The names are SpeechBrain's. Hooks are inherited, and an overridden method is called in its overridden form.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, overload

from brainlib.common.logs import logger

__all__ = [
    "ClassHooks",
    "LoadHook",
    "SaveHook",
    "check_load_hook",
    "check_save_hook",
    "hooks_of",
    "mark_as_loader",
    "mark_as_saver",
    "mark_as_transfer",
    "register_checkpoint_hooks",
]

SaveHook = Callable[[Any, Path], object]
LoadHook = Callable[[Any, Path, bool], object]

Method = TypeVar("Method", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)

ROLE = "_brainlib_checkpoint_role"  # on a marked method: "saver", "loader" or "transfer"
HOOKS = "_brainlib_checkpoint_hooks"  # on a registered class: ClassHooks


@dataclass(frozen=True)
class ClassHooks:
    """The names of a class's hook methods; the empty string where there is none.

    >>> ClassHooks(saver="_save", loader="_load").transfer
    ''
    """

    saver: str = ""
    loader: str = ""
    transfer: str = ""


def mark_as_saver(method: Method) -> Method:
    """Says that this method, called as ``method(self, path)``, writes the object to `path` (a file or a folder).

    Raises:
        TypeError: It cannot be called so.

    >>> @register_checkpoint_hooks
    ... class Note:
    ...     text = ""
    ...     @mark_as_saver
    ...     def _save(self, path):
    ...         path.write_text(self.text)
    ...     @mark_as_loader
    ...     def _load(self, path, end_of_epoch):
    ...         self.text = path.read_text()
    >>> hooks_of(Note()).saver
    '_save'
    """
    check_save_hook(method, "a method marked with mark_as_saver", "(self, path)")
    return _mark(method, "saver")


def mark_as_loader(method: Method) -> Method:
    """Says that this method, called as ``method(self, path, end_of_epoch)``, reads back what the saver wrote.

    `end_of_epoch` is True when the checkpoint was made with its epoch closed.

    Raises:
        TypeError: It cannot be called so.

    >>> @mark_as_loader  # doctest: +ELLIPSIS
    ... def _load(self, path): ...
    Traceback (most recent call last):
    TypeError: a method marked with mark_as_loader is called as (self, path, end_of_epoch), which _load(self, path) ...
    """
    check_load_hook(method, "a method marked with mark_as_loader", "(self, path, end_of_epoch)")
    return _mark(method, "loader")


def mark_as_transfer(method: Method) -> Method:
    """Says that this method, called as ``method(self, path)``, takes over parameters only (not the state of a run).

    Raises:
        TypeError: It cannot be called so.

    >>> @mark_as_transfer
    ... def _take_over(self, path): ...
    >>> @mark_as_transfer
    ... def _take_over(self): ...
    Traceback (most recent call last):
    TypeError: a method marked with mark_as_transfer is called as (self, path), which _take_over(self) does not take
    """
    check_save_hook(method, "a method marked with mark_as_transfer", "(self, path)")
    return _mark(method, "transfer")


def _mark(method: Method, role: str) -> Method:
    setattr(method, ROLE, role)
    return method


@overload
def register_checkpoint_hooks(cls: Class, *, save_on_main_only: bool = True) -> Class: ...


@overload
def register_checkpoint_hooks(
    cls: None = None, *, save_on_main_only: bool = True
) -> Callable[[Class], Class]: ...


def register_checkpoint_hooks(cls: Any = None, *, save_on_main_only: bool = True) -> Any:
    """Class decorator: objects of this class and its subclasses are saved and loaded by their marked methods.

    Args:
        cls: The class.
        save_on_main_only: Kept for SpeechBrain's callers. Only the main process writes, so False has no effect.

    Raises:
        TypeError: The class, its parents included, lacks a saver or a loader.

    >>> import tempfile
    >>> from brainlib.checkpoint import Checkpointer
    >>> @register_checkpoint_hooks
    ... class Counter:
    ...     count = 0
    ...     @mark_as_saver
    ...     def _save(self, path):
    ...         path.write_text(str(self.count))
    ...     @mark_as_loader
    ...     def _load(self, path, end_of_epoch):
    ...         self.count = int(path.read_text())
    >>> counter = Counter()
    >>> counter.count = 3
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpointer = Checkpointer(folder, {"counter": counter})
    ...     _ = checkpointer.save_checkpoint()
    ...     counter.count = 0
    ...     _ = checkpointer.recover_if_possible()
    >>> counter.count
    3
    """
    if not save_on_main_only:
        logger.warning("save_on_main_only=False has no effect: only the main process writes checkpoints")
    if cls is None:
        return register_checkpoint_hooks
    known: ClassHooks = getattr(cls, HOOKS, ClassHooks())
    names = {"saver": known.saver, "loader": known.loader, "transfer": known.transfer}
    for name, method in vars(cls).items():
        role = getattr(method, ROLE, None)
        if role:
            names[role] = name
    for role in ("saver", "loader"):
        if not names[role]:
            raise TypeError(
                f"{cls.__qualname__} is decorated with register_checkpoint_hooks and has no method marked with "
                f"mark_as_{role}; what is saved has to be loaded, so both are needed"
            )
    setattr(cls, HOOKS, ClassHooks(**names))
    return cls


def hooks_of(obj: object) -> ClassHooks | None:
    """The hooks that an object's class, or the nearest of its parents, was registered with.

    Those that speechbrain registered count, too: some of its layers keep statistics outside of their state_dict.

    >>> hooks_of(object()) is None
    True
    """
    ours: ClassHooks | None = getattr(type(obj), HOOKS, None)
    if ours is None and "speechbrain.utils.checkpoints" in sys.modules:
        return _hooks_of_speechbrain(type(obj))
    return ours


def _hooks_of_speechbrain(cls: type) -> ClassHooks | None:
    """The methods that speechbrain's decorators marked; the marks are attributes of the functions."""
    names: dict[str, str] = {}
    for parent in reversed(cls.__mro__):
        for name, method in vars(parent).items():
            for role in ("saver", "loader", "transfer"):
                if inspect.isfunction(method) and hasattr(method, f"_speechbrain_{role}"):
                    names[role] = name
    return ClassHooks(**names) if {"saver", "loader"} <= names.keys() else None


def check_save_hook(hook: Callable[..., Any], what: str, called_as: str = "(obj, path)") -> None:
    """Raises a TypeError when `hook` cannot be called with an object and a path.

    >>> check_save_hook(lambda obj, path: None, "the save hook of 'model'")
    """
    _check(hook, what, called_as, (object(), Path("path")))


def check_load_hook(
    hook: Callable[..., Any], what: str, called_as: str = "(obj, path, end_of_epoch)"
) -> None:
    """Raises a TypeError when `hook` cannot be called with an object, a path and end_of_epoch.

    >>> check_load_hook(lambda obj, path, end_of_epoch, device=None: None, "the load hook of 'model'")
    """
    _check(hook, what, called_as, (object(), Path("path"), True))


def _check(hook: Callable[..., Any], what: str, called_as: str, arguments: tuple[object, ...]) -> None:
    if not callable(hook):
        raise TypeError(f"{what} is a {type(hook).__name__}; a function is needed, called as {called_as}")
    try:
        signature = inspect.signature(hook)
    except ValueError:  # some built-in functions do not tell; the call will
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        name = getattr(hook, "__name__", type(hook).__name__)
        raise TypeError(f"{what} is called as {called_as}, which {name}{signature} does not take") from error
