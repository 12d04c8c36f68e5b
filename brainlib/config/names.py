"""From the dotted name in a tag to the Python object, with errors that say what is wrong."""

from __future__ import annotations

import builtins
import importlib
import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from brainlib.common.errors import nearest, quoted

__all__ = ["NameNotFound", "WrongArguments", "check_arguments", "locate", "renamed"]


class NameNotFound(ImportError):
    """A dotted name that names nothing, as opposed to an error inside a module that it names.

    >>> issubclass(NameNotFound, ImportError)
    True
    """


class WrongArguments(ValueError):
    """Arguments that do not go with what they are for, as opposed to an error inside the call.

    >>> issubclass(WrongArguments, ValueError)
    True
    """


def renamed(name: str, aliases: Mapping[str, str] | None) -> str:
    """A dotted name after the longest alias that is its beginning was replaced.

    >>> renamed("old.nnet.Linear", {"old": "new", "old.nnet": "torch.nn"})
    'torch.nn.Linear'
    """
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        beginning = ".".join(parts[:cut])
        if aliases and beginning in aliases:
            return ".".join([aliases[beginning], *parts[cut:]])
    return name


def locate(name: str) -> Any:
    """Import what a dotted name names: a module, or something inside one.

    Raises:
        NameNotFound: there is no such module, or nothing of that name in it. An error that happens *inside* a module
            while it is imported comes out as it is.

    >>> locate("collections.Counter")
    <class 'collections.Counter'>
    >>> locate("torch.nn.Liner")
    Traceback (most recent call last):
    ...
    brainlib.config.names.NameNotFound: there is no 'Liner' in torch.nn. Did you mean 'Linear'?
    """
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        raise NameNotFound(f"{name!r} is not the dotted name of something in Python")
    for cut in range(len(parts), 0, -1):
        module = _import(".".join(parts[:cut]))
        if module is not None:
            return _inside(module, parts[cut:])
    if hasattr(builtins, parts[0]):
        return _inside(builtins, parts)
    raise NameNotFound(
        f"there is no module {parts[0]!r}, in which {name} would be. Is its package installed, or its folder "
        "on PYTHONPATH?"
    )


def _import(name: str) -> ModuleType | None:
    """The module, or None if there is none of that name; errors inside it come out."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            return None
        raise  # a module that *it* imports is missing


def _inside(found: Any, attributes: list[str]) -> Any:
    path = found.__name__
    for attribute in attributes:
        if not hasattr(found, attribute):
            raise NameNotFound(f"there is no {attribute!r} in {path}.{nearest(attribute, dir(found))}")
        found = getattr(found, attribute)
        path += f".{attribute}"
    return found


def check_arguments(
    target: Any, name: str, args: list[Any], kwargs: dict[str, Any], *, partial: bool = False
) -> None:
    """Compare arguments with a signature before the call, so that a mistake in the file is told from one in the code.

    Args:
        target: what will be called.
        name: what the file calls it.
        args: positional arguments.
        kwargs: keyword arguments.
        partial: whether more arguments come later (``!name:``).

    Raises:
        WrongArguments: an argument is unknown, missing or one too many.

    >>> check_arguments(divmod, "divmod", [1, 2], {})
    >>> check_arguments(lambda width: None, "f", [], {"widht": 1})
    Traceback (most recent call last):
    ...
    brainlib.config.names.WrongArguments: f takes no argument 'widht'. Did you mean 'width'? It takes 'width'.
    """
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return  # some builtins do not tell
    parameters = signature.parameters
    if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        by_name = [
            key
            for key, each in parameters.items()
            if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        ]
        for key in kwargs:
            if key not in by_name:
                raise WrongArguments(
                    f"{name} takes no argument {key!r}.{nearest(key, by_name)} It takes {quoted(by_name)}."
                )
    try:
        (signature.bind_partial if partial else signature.bind)(*args, **kwargs)
    except TypeError as error:
        raise WrongArguments(
            f"{name} cannot be called like this: {error}. It takes {name}{signature}."
        ) from None
