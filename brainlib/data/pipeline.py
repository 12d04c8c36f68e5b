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
        empty: where there is no row, what to say of that when a key is asked for.

    >>> pipeline = Pipeline(["id", "n"], [DynamicItem("n", lambda n: n + 1, "m"), DynamicItem("m", str, "text")])
    >>> pipeline.compute({"id": ["a", "b"], "n": [1, 5]}, 1, ("text",))["text"]
    '6'
    """

    def __init__(
        self, row_keys: Iterable[str], items: Iterable[DynamicItem] = (), empty: str | None = None
    ) -> None:
        self.row_keys = tuple(row_keys)
        self.empty = empty
        self.items: dict[str, DynamicItem] = {}  # by what they provide
        self._plans: dict[tuple[str, ...], Plan] = {}
        for item in items:
            self.add(item)

    def copy(self) -> Pipeline:
        """Another one with the same items, to which other ones can be added."""
        other = Pipeline(self.row_keys, empty=self.empty)
        other.items.update(self.items)
        return other

    @property
    def keys(self) -> list[str]:
        """All that can be asked for."""
        return list(dict.fromkeys([*self.row_keys, *self.items]))

    def add(self, item: DynamicItem) -> None:
        """One more.

        A key of the rows that the item takes it may provide, too, as SpeechBrain's recipes do (``yield word``): handed
        on as it is. The row's value is the one that counts.

        Raises:
            ValueError: it provides nothing, or what is there already.
        """
        if not item.provides:
            raise ValueError(f"{item} provides no key; say which: @provides('signal'), or provides='signal'")
        for key in item.provides:
            if key in self.items:
                raise ValueError(f"{item} provides {key!r}, and so does {self.items[key]}; take another name")
            if key in self.row_keys and (key not in item.takes or set(item.provides) <= set(self.row_keys)):
                raise ValueError(f"{item} provides {key!r}, which the rows have already; take another name")
        self.items.update((key, item) for key in item.provides if key not in self.row_keys)
        self._plans.clear()

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
            told = f"{self.empty}. Asked for was {key!r}." if self.empty else ""
            raise ValueError(
                (told or no_such_key(key, self.keys, "this data set"))
                + (f" It is needed for {path[-1]!r}{taken}" if path else "")
            )
        for each in item.takes if item is not None else ():
            self._check(each, (*path, key), done)
        done.add(key)

    def plan(self, keys: tuple[str, ...]) -> Plan:
        """What has to be done for `keys`; made once and kept."""
        plan = self._plans.get(keys)
        if plan is None:
            self.check(keys)
            plan = self._plans[keys] = Plan(self.items, keys)
        return plan

    def compute(
        self, columns: Mapping[str, Sequence[Any]], number: int, keys: tuple[str, ...]
    ) -> dict[str, Any]:
        """The values of `keys` for one item, and nothing beside them but what they need.

        Args:
            columns: of all rows, by key; ``id`` is one.
            number: of the row.
            keys: what is wanted.

        Raises:
            ItemError: something failed.
        """
        values: dict[str, Any] = {}
        generators: list[tuple[DynamicItem, Any]] = []
        failed: _FailedError | None = None
        try:
            self._run(self._plans.get(keys) or self.plan(keys), columns, number, values, generators)
        except _FailedError as error:
            failed = error
        finally:
            if generators:
                failed = _closed(generators, failed)
        if failed is not None:
            raise ItemError(f"the item {columns['id'][number]!r}{failed}") from failed.__cause__
        return values

    def _run(
        self,
        plan: Plan,
        columns: Mapping[str, Sequence[Any]],
        number: int,
        values: dict[str, Any],
        generators: list[tuple[DynamicItem, Any]],
    ) -> None:
        for key in plan.row_keys:
            value = values[key] = columns[key][number]
            if value is MISSING:
                raise _FailedError(f" has no {key!r}")
        for step in plan.steps:
            item = step.item
            if step.above is not None:
                if not all(key in values for key in item.provides):
                    self._look_up(step, columns, number, values, generators)
                continue
            try:  # one argument and one value are most of all, and this is done for each item
                if step.take is not None:
                    result = step.func(values[step.take])
                else:
                    result = step.func(*[values[key] for key in item.takes])
            except Exception as error:
                raise _failed(item, item.provides[0], error) from error
            if step.give is not None:
                values[step.give] = result
                continue
            handed_on = {key: values[key] for key in step.handed_on}
            if item.is_generator:
                generators.append((item, result))
                _go_on(step, result, values)
            else:
                _take_apart(item, result, values)
            for key, before in handed_on.items():
                if values[key] is not before and values[key] != before:
                    raise _FailedError(
                        f": {item} provides {key!r}, which the row has already, as {values[key]!r} in place of "
                        f"{before!r}; give what it changes another name"
                    )

    def _look_up(
        self,
        step: Step,
        columns: Mapping[str, Sequence[Any]],
        number: int,
        values: dict[str, Any],
        generators: list[tuple[DynamicItem, Any]],
    ) -> None:
        """Take from the disk what a step gives, or else make it, and what it takes."""
        item, above, source = step.item, step.above, step.source
        assert item.cache is not None and above is not None and source is not None

        def make() -> dict[str, Any]:
            made: dict[str, Any] = {}
            self._run(above, columns, number, made, generators)
            return {key: made[key] for key in item.provides}

        known = {key: columns[key][number] for key in source.row_keys}
        functions = [each.item.func for each in source.steps]
        values.update(item.cache.get(columns["id"][number], item.provides, known, functions, make))


class Step:
    """One item, whose arguments are known when it is its turn.

    Attributes:
        item: what is called.
        func: its function.
        take: what it takes where that is one key, else None.
        give: what it provides where that is one key and it is no generator, else None.
        num: how many of the keys of a generator are needed.
        handed_on: the keys of the row that it provides as it takes them.
        above: where its cache is looked at: what has to be done if there is nothing, itself included; else None.
        source: where its cache is looked at: all that its values come from.
    """

    __slots__ = ("above", "func", "give", "handed_on", "item", "num", "source", "take")

    def __init__(
        self, item: DynamicItem, num: int, above: Plan | None = None, source: Plan | None = None
    ) -> None:
        self.item, self.func, self.num, self.above, self.source = item, item.func, num, above, source
        self.handed_on = tuple(key for key in item.provides if key in item.takes)
        self.take = item.takes[0] if len(item.takes) == 1 else None
        self.give = item.provides[0] if len(item.provides) == 1 and not item.is_generator else None


class Plan:
    """What has to be done for some keys, in order.

    Args:
        items: by what they provide.
        keys: what is wanted.
        is_cached: whether the cache of an item is looked at, which spares what it takes; None: wherever there is one.

    Attributes:
        row_keys: which keys of the row are read.
        steps: which items are called then.
    """

    def __init__(
        self,
        items: Mapping[str, DynamicItem],
        keys: Iterable[str],
        is_cached: Callable[[DynamicItem], bool] = lambda item: item.cache is not None,
    ) -> None:
        row_keys: dict[str, None] = {}
        order: dict[int, DynamicItem] = {}
        num: dict[int, int] = {}

        def need(key: str) -> None:
            item = items.get(key)
            if item is None:
                row_keys[key] = None
                return
            num[id(item)] = max(num.get(id(item), 0), item.provides.index(key) + 1)
            if id(item) not in order:
                for each in () if is_cached(item) else item.takes:
                    need(each)
                order[id(item)] = item

        for key in keys:
            need(key)
        self.row_keys = tuple(row_keys)
        self.steps = []
        for which, item in order.items():
            if is_cached(item):
                above = Plan(items, item.provides, _cached_but(item))
                source = Plan(items, item.provides, is_cached=_never)
                self.steps.append(Step(item, num[which], above, source))
            else:
                self.steps.append(Step(item, num[which]))


def _cached_but(item: DynamicItem) -> Callable[[DynamicItem], bool]:
    return lambda each: each.cache is not None and each is not item


def _never(item: DynamicItem) -> bool:
    return False


class _FailedError(Exception):
    """What goes wrong with an item, but for its name."""


def _failed(item: DynamicItem, key: str, error: Exception) -> _FailedError:
    return _FailedError(f": {key!r} by {item} failed: {type(error).__name__}: {error}")


def _closed(
    generators: Iterable[tuple[DynamicItem, Any]], failed: _FailedError | None
) -> _FailedError | None:
    """Close those that were not gone on with to their end, all of them; returns the first thing that went wrong."""
    for item, generator in generators:
        try:
            generator.close()
        except Exception as error:  # noqa: BLE001  # the user's own, of the code behind the last value
            if failed is None:
                failed = _FailedError(f": {item} failed when it was closed: {type(error).__name__}: {error}")
                failed.__cause__ = error
    return failed


def _take_apart(item: DynamicItem, result: Any, values: dict[str, Any]) -> None:
    if not isinstance(result, (tuple, list)) or len(result) != len(item.provides):
        count = f" of {len(result)}" if isinstance(result, (tuple, list)) else ""
        raise _FailedError(
            f": {item} provides {quoted(item.provides)} and returned a {type(result).__name__}{count}; it must return "
            f"a tuple of {len(item.provides)}, or be a generator"
        )
    values.update(zip(item.provides, result, strict=True))


def _go_on(step: Step, generator: Iterator[Any], values: dict[str, Any]) -> None:
    """Take as many values of a generator as are needed."""
    item = step.item
    for number, key in enumerate(item.provides[: step.num]):
        try:
            value = next(generator, _END)
        except Exception as error:
            raise _failed(item, key, error) from error
        if value is _END:
            raise _FailedError(
                f": the generator {item} provides {quoted(item.provides)} and yielded {number} of them; it must yield "
                "each"
            )
        values[key] = value


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
