"""Keys that are computed: functions that say what they take and provide, and are called only for what is asked.

    @takes("wav")
    @provides("signal", "loudness")
    def read(wav):
        signal = read_audio(wav)
        yield signal
        yield signal.pow(2).mean().sqrt()    # computed only where the key "loudness" is asked for

Nothing of one item is kept for the next, so an item that fails leaves nothing behind.
"""

from __future__ import annotations

import functools
import inspect
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from brainlib.common.errors import quoted
from brainlib.data.item_cache import ItemCache
from brainlib.data.rows import MISSING, no_such_key

__all__ = ["DynamicItem", "ItemError", "Pipeline", "provides", "takes"]

_END: Any = object()


class ItemError(ValueError):
    """An item of a data set could not be made; the message names the item, the key and the function.

    What the function raised is its ``__cause__``.

    >>> from brainlib.data.dataset import DynamicItemDataset
    >>> data = DynamicItemDataset({"utt1": {"n": 0}})
    >>> data.add_dynamic_item(lambda n: 1 / n, takes="n", provides="inverse")
    >>> data.set_output_keys(["inverse"])
    >>> data[0]
    Traceback (most recent call last):
    ...
    brainlib.data.pipeline.ItemError: the item 'utt1': 'inverse' by <lambda> (...) failed: ZeroDivisionError: ...
    """


class DynamicItem:
    """A function, the keys that it takes as its arguments, and those that it provides; made by `takes` and `provides`.

    It can be called as the function that it was made of.

    Args:
        takes: names of its arguments, in their order.
        func: returns the value of its key, or a tuple of as many values as it has keys; or is a generator, which yields
            them one by one and is gone on with only as far as they are asked for.
        provides: names of what it gives.
        cache: where what it gives is kept, see `DynamicItemDataset.add_dynamic_item`.

    >>> double = DynamicItem(["n"], lambda n: 2 * n, ["doubled"])
    >>> double(4), double.takes, double.provides
    (8, ('n',), ('doubled',))
    """

    def __init__(
        self,
        takes: str | Iterable[str] = (),
        func: Callable[..., Any] | None = None,
        provides: str | Iterable[str] = (),
        cache: ItemCache | None = None,
    ) -> None:
        if not callable(func):
            raise ValueError(f"func is {func!r}; it must be a function")
        self.func, self.cache = func, cache
        self.takes, self.provides = _keys(takes, "takes"), _keys(provides, "provides")
        functools.update_wrapper(self, func, updated=())
        call = vars(type(func)).get("__call__")  # of an object that is called like a function
        self.is_generator = inspect.isgeneratorfunction(func) or inspect.isgeneratorfunction(call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.func(*args, **kwargs)

    def __reduce__(self) -> Any:
        """By its name, where it stands in a module under it: there the function itself has no name any more."""
        name = getattr(self, "__qualname__", "")
        return (
            name if _named(self, name) else (DynamicItem, (self.takes, self.func, self.provides, self.cache))
        )

    def __str__(self) -> str:
        return described(self.func)


def _named(item: DynamicItem, name: str) -> bool:
    found: Any = sys.modules.get(getattr(item, "__module__", None) or "")
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is item


def _keys(keys: str | Iterable[str], what: str) -> tuple[str, ...]:
    found = (keys,) if isinstance(keys, str) else tuple(keys)
    for key in found:
        if not isinstance(key, str) or not key:
            raise ValueError(f"{what} has {key!r}; a key is a string")
    if len(set(found)) != len(found):
        raise ValueError(f"{what} names {quoted(found)}: each key once")
    return found


def described(func: Callable[..., Any]) -> str:
    """A function's name, and where it stands.

    >>> described(lambda: 0)
    '<lambda> (...)'
    """
    name = getattr(func, "__name__", None) or type(func).__name__
    code = getattr(inspect.unwrap(func), "__code__", None)
    return str(name) if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


def takes(*keys: str) -> Callable[[Callable[..., Any]], DynamicItem]:
    """Say which keys a function takes, in the order of its arguments.

    >>> @takes("text")
    ... @provides("words")
    ... def split(text):
    ...     return text.split()
    >>> split.takes, split.provides, split("it costs $5")
    (('text',), ('words',), ['it', 'costs', '$5'])
    """
    return lambda func: _told(func, takes=_keys(keys, "takes"))


def provides(*keys: str) -> Callable[[Callable[..., Any]], DynamicItem]:
    """Say which keys a function provides; see `takes`. Several: it returns a tuple, or is a generator that yields each.

    >>> @takes("n")
    ... @provides("half", "rest")
    ... def halve(n):
    ...     yield n // 2
    ...     yield n % 2
    >>> halve.is_generator
    True
    """
    return lambda func: _told(func, provides=_keys(keys, "provides"))


def _told(func: Any, **what: tuple[str, ...]) -> DynamicItem:
    item = func if isinstance(func, DynamicItem) else DynamicItem((), func, ())
    for name, keys in what.items():
        setattr(item, name, keys)
    return item


class Pipeline:
    """What can be computed from the keys of a row.

    Args:
        row_keys: of the rows, ``id`` among them.
        items: what computes more.

    >>> pipeline = Pipeline(["id", "n"], [DynamicItem("n", lambda n: n + 1, "m"), DynamicItem("m", str, "text")])
    >>> pipeline.compute({"id": "a", "n": 1}.get, ["text"])
    ['2']
    """

    def __init__(self, row_keys: Iterable[str], items: Iterable[DynamicItem] = ()) -> None:
        self.row_keys = tuple(row_keys)
        self.items: dict[str, DynamicItem] = {}  # by what they provide
        for item in items:
            self.add(item)

    @property
    def keys(self) -> list[str]:
        """All that can be asked for."""
        return list(dict.fromkeys([*self.row_keys, *self.items]))

    def add(self, item: DynamicItem) -> None:
        """One more.

        Raises:
            ValueError: it provides nothing, or what is there already.
        """
        if not item.provides:
            raise ValueError(f"{item} provides no key; say which: @provides('signal'), or provides='signal'")
        for key in item.provides:
            if key in self.items:
                raise ValueError(f"{item} provides {key!r}, and so does {self.items[key]}; take another name")
            if key in self.row_keys:
                raise ValueError(f"{item} provides {key!r}, which the rows have already; take another name")
        self.items.update(dict.fromkeys(item.provides, item))

    def check(self, keys: Iterable[str]) -> None:
        """Raise where something that `keys` need is not there, or needs itself.

        Raises:
            ValueError: names the key, and who takes it.
        """
        done: set[str] = set()
        for key in keys:
            self._check(key, (), done)

    def _check(self, key: str, path: tuple[str, ...], done: set[str]) -> None:
        if key in done:
            return
        if key in path:
            raise ValueError(f"the key {key!r} needs itself: {' <- '.join([*path[path.index(key) :], key])}")
        item = self.items.get(key)
        if item is None and key not in self.row_keys:
            taken = f", which {self.items[path[-1]]} takes" if path else ""
            raise ValueError(
                no_such_key(key, self.keys, "this data set")
                + (f" It is needed for {path[-1]!r}{taken}" if path else "")
            )
        for each in item.takes if item is not None else ():
            self._check(each, (*path, key), done)
        done.add(key)

    def row_keys_for(self, item: DynamicItem) -> list[str]:
        """The keys of the row that an item leans on, through whatever it takes."""
        found: dict[str, None] = {}
        open_, seen = [item], {id(item)}
        while open_:
            for key in open_.pop().takes:
                above = self.items.get(key)
                if above is None:
                    found[key] = None
                elif id(above) not in seen:
                    seen.add(id(above))
                    open_.append(above)
        return sorted(found)

    def items_for(self, item: DynamicItem) -> list[DynamicItem]:
        """The item, and all that it leans on."""
        found = [item]
        for each in found:
            for key in each.takes:
                above = self.items.get(key)
                if above is not None and all(above is not known for known in found):
                    found.append(above)
        return found

    def compute(self, row_value: Callable[[str], Any], keys: Sequence[str]) -> list[Any]:
        """The values of `keys` for one item, and nothing beside them that they do not need.

        Args:
            row_value: gives the value of a key of the row.
            keys: what is wanted.

        Raises:
            ItemError: something failed.
        """
        computation = _Computation(self, row_value)
        try:
            return [computation.value(key) for key in keys]
        finally:
            if computation.generators:
                computation.close()


class _Computation:
    """The values of one item, as far as they are known."""

    __slots__ = ("_items", "_pipeline", "_row_value", "_values", "generators")

    def __init__(self, pipeline: Pipeline, row_value: Callable[[str], Any]) -> None:
        self._pipeline, self._items, self._row_value = pipeline, pipeline.items, row_value
        self._values: dict[str, Any] = {}
        self.generators: dict[str, Iterator[Any]] = {}  # by the first key that they provide

    def value(self, key: str) -> Any:
        values = self._values
        if key in values:
            return values[key]
        item = self._items.get(key)
        if item is None:
            value = values[key] = self._row_value(key)
            if value is MISSING:
                raise ItemError(f"the item {self._id()!r} has no {key!r}")
            return value
        if item.cache is not None:
            values.update(self._cached(item))
        elif item.is_generator:
            self._go_on(item, key)
        else:
            self._call(item)
        return values[key]

    def _call(self, item: DynamicItem) -> None:
        args = [self.value(key) for key in item.takes]
        try:
            result = item.func(*args)
        except Exception as error:
            raise self._failed(item, item.provides[0], error) from error
        if len(item.provides) == 1:
            self._values[item.provides[0]] = result
            return
        if not isinstance(result, (tuple, list)) or len(result) != len(item.provides):
            count = f" of {len(result)}" if isinstance(result, (tuple, list)) else ""
            raise ItemError(
                f"the item {self._id()!r}: {item} provides {quoted(item.provides)} and returned a "
                f"{type(result).__name__}{count}; it must return a tuple of {len(item.provides)}, or be a generator"
            )
        self._values.update(zip(item.provides, result, strict=True))

    def _go_on(self, item: DynamicItem, wanted: str) -> None:
        """Go on with a generator until it has given a key."""
        first = item.provides[0]
        if first not in self.generators:
            args = [self.value(key) for key in item.takes]
            self.generators[first] = item.func(*args)
        for number, key in enumerate(item.provides):
            if key in self._values:
                continue
            try:
                value = next(self.generators[first], _END)
            except Exception as error:
                raise self._failed(item, key, error) from error
            if value is _END:
                raise ItemError(
                    f"the item {self._id()!r}: the generator {item} provides {quoted(item.provides)} and yielded "
                    f"{number} of them; it must yield each"
                )
            self._values[key] = value
            if key == wanted:
                return

    def _cached(self, item: DynamicItem) -> Mapping[str, Any]:
        assert item.cache is not None
        leaning = self._pipeline.items_for(item)
        known = {key: self.value(key) for key in self._pipeline.row_keys_for(item)}
        return item.cache.get(
            self._id(), item.provides, known, [each.func for each in leaning], lambda: self._made(item)
        )

    def _made(self, item: DynamicItem) -> dict[str, Any]:
        if item.is_generator:
            self._go_on(item, item.provides[-1])
        else:
            self._call(item)
        return {key: self._values[key] for key in item.provides}

    def _failed(self, item: DynamicItem, key: str, error: Exception) -> ItemError:
        return ItemError(
            f"the item {self._id()!r}: {key!r} by {item} failed: {type(error).__name__}: {error}"
        )

    def _id(self) -> Any:
        return self._row_value("id")

    def close(self) -> None:
        """End generators that were not gone on with to their end."""
        for generator in self.generators.values():
            close = getattr(generator, "close", None)
            if close is not None:
                close()


def why_not_picklable(value: Any) -> str | None:
    """What pickle says where it cannot do it, else None.

    >>> why_not_picklable(len) is None, why_not_picklable(lambda: 0) is None
    (True, False)
    """
    try:
        pickle.dumps(value)
    except Exception as error:  # noqa: BLE001  # the user's objects may raise anything when they are pickled
        return f"{type(error).__name__}: {error}"
    return None
