"""A property that gives way: an attribute of the same name on the object wins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

__all__ = ["asked"]

T = TypeVar("T")


class asked(Generic[T]):  # a decorator, named like `property`
    """Computes a value where it is asked for, as `property` does, but can be assigned over.

    A class that people subclass must not forbid them a name.

    >>> class Run:
    ...     @asked
    ...     def step(self):
    ...         return 3
    >>> run = Run(); run.step
    3
    >>> run.step = "mine"; run.step
    'mine'
    """

    def __init__(self, method: Callable[[Any], T]) -> None:
        self.method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, obj: None, kind: type | None = None) -> asked[T]: ...

    @overload
    def __get__(self, obj: object, kind: type | None = None) -> T: ...

    def __get__(self, obj: object | None, kind: type | None = None) -> Any:
        return self if obj is None else self.method(obj)
