"""A data set whose keys are computed when they are asked for, over the packed rows of a manifest."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from brainlib.common.counted import counted
from brainlib.common.errors import quoted
from brainlib.data import manifests
from brainlib.data.item_cache import ItemCache
from brainlib.data.pipeline import DynamicItem, Pipeline, why_not_picklable
from brainlib.data.rows import Numbers, Rows, short_list, short_mapping

__all__ = ["DynamicItemDataset", "add_dynamic_item", "set_output_keys"]

_MOST_NAMED = 8  # keys in a repr

OutputKeys = Mapping[str, str] | Iterable[str]


class DynamicItemDataset(Dataset[dict[str, Any]]):
    """Items of a corpus: what the manifest says of each, and what your functions make of that.

    An item is a dict of the output keys. What these need is computed when the item is read, and nothing else.

    Args:
        data: a dict from ids to dicts. Usually `from_csv`, `from_json`, `from_jsonl` or `from_kaldi` reads it.
        dynamic_items: functions with `takes` and `provides`.
        output_keys: what an item holds: a list of keys, or a dict from the name outside to the key. None: what the
            rows hold.

    Raises:
        ValueError: for data that is no dict of dicts, or a key that is not there.

    Example:
        >>> from brainlib.data.pipeline import provides, takes
        >>> @takes("text")
        ... @provides("words", "num_words")
        ... def split(text):
        ...     words = text.split()
        ...     yield words
        ...     yield len(words)
        >>> data = DynamicItemDataset(
        ...     {"utt1": {"text": "it costs $5", "duration": 1.5}, "utt2": {"text": "no", "duration": 0.5}},
        ...     dynamic_items=[split],
        ...     output_keys=["id", "words"],
        ... )
        >>> data[0], len(data.filtered_sorted(key_min_value={"duration": 1.0}))
        ({'id': 'utt1', 'words': ['it', 'costs', '$5']}, 1)
    """

    def __init__(
        self,
        data: Mapping[str, Mapping[str, Any]],
        dynamic_items: Iterable[DynamicItem] = (),
        output_keys: OutputKeys = (),
    ) -> None:
        if not isinstance(data, Mapping):
            raise ValueError(
                f"data is a {type(data).__name__}; it must be a dict from ids to dicts, or use "
                "DynamicItemDataset.from_csv, from_json, from_jsonl or from_kaldi"
            )
        self._rows = Rows.of(data)
        self._num_rows = len(self._rows)
        self._numbers: np.ndarray[Any, Any] | None = None  # of the rows that are in this set, if not all are
        self.pipeline = Pipeline(
            self._rows.columns, empty=None if self._num_rows else _empty(self._rows.origin)
        )
        self._outputs: tuple[tuple[tuple[str, str], ...], tuple[str, ...]] = (
            (),
            (),
        )  # (name, key), and the keys
        for item in dynamic_items:
            self.add_dynamic_item(item)
        self.set_output_keys(output_keys)

    # -------------------------------------------------------------------------------------------------- from a manifest
    @classmethod
    def from_csv(
        cls,
        csv_path: str | os.PathLike[str],
        replacements: Mapping[str, Any] | None = None,
        dynamic_items: Iterable[DynamicItem] = (),
        output_keys: OutputKeys = (),
        types: Mapping[str, Callable[[str], Any]] | None = None,
    ) -> DynamicItemDataset:
        """The rows of a CSV file with a column ``ID``; see `brainlib.data.manifests.read_csv`.

        Args:
            csv_path: of the file.
            replacements: what ``$name`` or ``${name}`` stands for: ``{"data_root": "/corpus"}``. Nothing else is
                replaced: ``$5`` in a transcript is text.
            dynamic_items: as above.
            output_keys: as above.
            types: what turns the text of a column into a value, such as ``{"num_words": int}``; ``duration`` is a
                float.
        """
        return cls(manifests.read_csv(csv_path, replacements, types), dynamic_items, output_keys)

    @classmethod
    def from_json(
        cls,
        json_path: str | os.PathLike[str],
        replacements: Mapping[str, Any] | None = None,
        dynamic_items: Iterable[DynamicItem] = (),
        output_keys: OutputKeys = (),
    ) -> DynamicItemDataset:
        """The rows of a JSON file, one object from ids to objects; ``{name}`` is replaced as in `from_csv`."""
        return cls(manifests.read_json(json_path, replacements), dynamic_items, output_keys)

    @classmethod
    def from_jsonl(
        cls,
        jsonl_path: str | os.PathLike[str],
        replacements: Mapping[str, Any] | None = None,
        dynamic_items: Iterable[DynamicItem] = (),
        output_keys: OutputKeys = (),
    ) -> DynamicItemDataset:
        """The rows of a file with an object a line, one key ``id``; ``{name}`` is replaced as in JSON."""
        return cls(manifests.read_jsonl(jsonl_path, replacements), dynamic_items, output_keys)

    @classmethod
    def from_kaldi(
        cls,
        folder: str | os.PathLike[str],
        replacements: Mapping[str, Any] | None = None,
        dynamic_items: Iterable[DynamicItem] = (),
        output_keys: OutputKeys = (),
    ) -> DynamicItemDataset:
        """The items of a Kaldi data folder; see `brainlib.data.manifests.read_kaldi`."""
        return cls(manifests.read_kaldi(folder, replacements), dynamic_items, output_keys)

    # ------------------------------------------------------------------------------------------------------- what is in
    def __len__(self) -> int:
        return len(self._rows) if self._numbers is None else len(self._numbers)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self._numbers is None and type(index) is int and 0 <= index < self._num_rows:
            number = index
        else:
            number = self._number(index)
        pairs, keys = self._outputs
        if not pairs:
            return self._rows.row(number)
        values = self.pipeline.compute(self._rows.columns, number, keys)
        return {name: values[key] for name, key in pairs}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        pairs = [name if name == key else f"{name}={key}" for name, key in self._outputs[0]]
        told = f"items hold {_listed(pairs)}" if pairs else "items hold the rows"
        computed = f"; computed: {_listed(self.pipeline.items)}" if self.pipeline.items else ""
        rows = _listed(self._rows.columns) if self._rows.columns else "nothing"
        return f"{type(self).__name__}({counted(len(self), 'item')}; rows: {rows}{computed}; {told})"

    def _number(self, index: int) -> int:
        index = operator.index(index)
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"the index {index} is not in a data set of {counted(size, 'item')}")
        if index < 0:
            index += size
        return index if self._numbers is None else self._numbers.item(index)

    @property
    def data(self) -> Mapping[str, dict[str, Any]]:
        """The rows of this set by their ids: ``data["utt1"]["text"]``. A row is made when it is asked for."""
        return self._rows if self._numbers is None else _Some(self._rows, self._numbers)

    @property
    def data_ids(self) -> Sequence[str]:
        """The ids, in order."""
        return self._rows.ids if self._numbers is None else _Picked(self._rows.ids, self._numbers)

    def values(self, key: str) -> Any:
        """The values of one key for all items: an array where it is a number of the rows, else a list.

        >>> DynamicItemDataset({"a": {"duration": 1.5}, "b": {"duration": 2.0}}).values("duration")
        array([1.5, 2. ])
        """
        column = self._rows.columns.get(key)
        if isinstance(column, Numbers):
            return column.values if self._numbers is None else column.values[self._numbers]
        with self.output_keys_as([key]):
            return [item[key] for item in self]

    # ------------------------------------------------------------------------------------------------- what is computed
    def add_dynamic_item(
        self,
        func: DynamicItem | Callable[..., Any],
        takes: str | Iterable[str] | None = None,
        provides: str | Iterable[str] | None = None,
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        version: str | int = "",
    ) -> None:
        """Let a function compute keys.

        Args:
            func: made with the decorators `takes` and `provides`, or any function, with the next two.
            takes: the keys that are its arguments.
            provides: the keys that it gives.
            cache_dir: a folder in which what it gives is kept, a file an item. It is made anew where the row, a file
                that the row names (its size or time), or the code of the functions has changed.
            version: of what is kept; another one makes all anew. For what the code of the function does not show.

        Raises:
            ValueError: for a key that is provided already.

        >>> data = DynamicItemDataset({"a": {"n": 1}}, output_keys=["n"])
        >>> data.add_dynamic_item(lambda n: n + 1, takes="n", provides="m")
        >>> data.set_output_keys(["id", "m"])
        >>> data[0]
        {'id': 'a', 'm': 2}
        """
        if (
            not isinstance(func, DynamicItem)
            or takes is not None
            or provides is not None
            or cache_dir is not None
        ):
            known = func if isinstance(func, DynamicItem) else DynamicItem((), func, ())
            func = DynamicItem(
                known.takes if takes is None else takes,
                known.func,
                known.provides if provides is None else provides,
                known.cache if cache_dir is None else ItemCache(cache_dir, version),
            )
        self.pipeline.add(func)

    def set_output_keys(self, keys: OutputKeys) -> None:
        """Say what an item holds.

        Args:
            keys: a list, or a dict from the name outside to the key; an empty one: what the rows hold.

        Raises:
            ValueError: for a key that nothing provides, or one that needs itself.
        """
        if isinstance(keys, str):
            raise ValueError(f"output_keys is {keys!r}; it must be a list of keys: [{keys!r}]")
        pairs = dict(keys) if isinstance(keys, Mapping) else {key: key for key in keys}
        self.pipeline.check(pairs.values())
        self._outputs = tuple(pairs.items()), tuple(pairs.values())

    @contextmanager
    def output_keys_as(self, keys: OutputKeys) -> Iterator[DynamicItemDataset]:
        """Inside, items hold these keys instead.

        >>> data = DynamicItemDataset({"a": {"n": 1}})
        >>> with data.output_keys_as(["n"]):
        ...     data[0]
        {'n': 1}
        """
        kept = self._outputs
        self.set_output_keys(keys)
        try:
            yield self
        finally:
            self._outputs = kept

    # ----------------------------------------------------------------------------------------------------------- parts
    def filtered_sorted(
        self,
        key_min_value: Mapping[str, Any] | None = None,
        key_max_value: Mapping[str, Any] | None = None,
        key_test: Mapping[str, Callable[[Any], Any]] | None = None,
        sort_key: str | None = None,
        reverse: bool = False,
        select_n: int | None = None,
    ) -> DynamicItemDataset:
        """The items that pass, sorted: another set over the same rows, with the same functions and output keys.

        Args:
            key_min_value: from keys to the least value that passes.
            key_max_value: from keys to the largest.
            key_test: from keys to functions of the value that say whether it passes.
            sort_key: what to sort by; None: the order stays. Items with equal values keep their order.
            reverse: from the largest to the smallest.
            select_n: take the first so many that pass, before they are sorted.

        Raises:
            ValueError: for a key that is not there, for a negative number to take, and for values that cannot be
                compared, such as a text with a number: it names the key, the item and both types.

        >>> data = DynamicItemDataset({"a": {"n": 3}, "b": {"n": 1}, "c": {"n": 2}})
        >>> list(data.filtered_sorted(key_min_value={"n": 2}, sort_key="n").data_ids)
        ['c', 'a']
        """
        if select_n is not None and select_n < 0:
            raise ValueError(f"select_n is {select_n!r}; it must be 0 or more, or None for all that pass")
        passing = np.arange(len(self))
        for given, bounds, test in (
            ("key_min_value", key_min_value, operator.ge),
            ("key_max_value", key_max_value, operator.le),
        ):
            for key, bound in (bounds or {}).items():
                passing = passing[self._within(key, test, bound, f"{given}[{key!r}]", passing)]
        if key_test:
            passing = self._one_by_one(passing, key_test, select_n)
        passing = passing[:select_n]
        if sort_key is not None:
            passing = passing[self._sorting(sort_key, passing, reverse)]
        return self.subset(passing)

    def _within(
        self,
        key: str,
        test: Callable[[Any, Any], Any],
        bound: Any,
        given: str,
        indices: np.ndarray[Any, Any],
    ) -> Any:
        """Which of the items have a value on the right side of the bound."""
        column = self._rows.columns.get(key)
        if isinstance(column, Numbers) and _is_number(bound):
            return test(column.values[indices if self._numbers is None else self._numbers[indices]], bound)
        passed = np.zeros(len(indices), bool)
        with self.output_keys_as([key]):
            for at, index in enumerate(indices.tolist()):
                value = self[index][key]
                try:
                    passed[at] = bool(test(value, bound))
                except TypeError as error:
                    raise ValueError(
                        f"the key {key!r} of the item {self.data_ids[index]!r} is {_told(value)}, and {given} is "
                        f"{_told(bound)}: these cannot be compared. {_REMEDY}"
                    ) from error
        return passed

    def _one_by_one(
        self, indices: np.ndarray[Any, Any], tests: Mapping[str, Callable[[Any], Any]], most: int | None
    ) -> np.ndarray[Any, Any]:
        found: list[int] = []
        with self.output_keys_as(list(tests)):
            for index in indices.tolist():
                if most is not None and len(found) >= most:
                    break
                item = self[index]
                if all(test(item[key]) for key, test in tests.items()):
                    found.append(index)
        return np.array(found, np.int64)

    def _sorting(self, key: str, indices: np.ndarray[Any, Any], reverse: bool) -> Any:
        column = self._rows.columns.get(key)
        if isinstance(column, Numbers):
            values = column.values[indices if self._numbers is None else self._numbers[indices]]
            if reverse:  # stable from the end, and turned round, is stable from the front
                return len(values) - 1 - np.argsort(values[::-1], kind="stable")[::-1]
            return np.argsort(values, kind="stable")
        with self.output_keys_as([key]):
            found = [self[index][key] for index in indices.tolist()]
        try:
            return np.array(sorted(range(len(found)), key=found.__getitem__, reverse=reverse), np.int64)
        except TypeError as error:
            one, other = _not_alike(found)
            ids = self.data_ids
            raise ValueError(
                f"the key {key!r} cannot be sorted by: of the item {ids[indices.item(one)]!r} it is "
                f"{_told(found[one])}, and of {ids[indices.item(other)]!r} {_told(found[other])}, which cannot be "
                f"compared. {_REMEDY}"
            ) from error

    def subset(self, items: Iterable[int] | Iterable[str] | Tensor) -> DynamicItemDataset:
        """Some of the items, by their numbers in this set, by a mask (an array, a tensor or a list of booleans), or by
        their ids, in the order given.

        It has the rows of this set, which are not copied, and functions and output keys that are its own from now on.

        Raises:
            IndexError: for a number that is not there.
            KeyError: for an id that is not there.

        >>> data = DynamicItemDataset({"a": {"n": 3}, "b": {"n": 1}, "c": {"n": 2}})
        >>> list(data.subset([2, 0]).data_ids), list(data.subset(["b"]).data_ids)
        (['c', 'a'], ['b'])
        """
        given: Any = items.numpy(force=True) if isinstance(items, Tensor) else items
        if not isinstance(given, np.ndarray):
            given = list(given)
            if given and all(isinstance(each, (bool, np.bool_)) for each in given):
                given = np.array(given)
        if isinstance(given, np.ndarray):
            if len(given) and given.dtype.kind not in "iub":
                raise IndexError(
                    f"the items are an array of {given.dtype}; give numbers, ids, or a mask of booleans"
                )
            if given.dtype == np.bool_ and given.shape != (len(self),):
                raise IndexError(
                    f"the mask has the shape {given.shape}, and the set has {counted(len(self), 'item')}"
                )
            indices = np.flatnonzero(given) if given.dtype == np.bool_ else given.astype(np.int64)
        else:
            if given and all(isinstance(each, str) for each in given):
                numbers = np.fromiter(map(self._rows.number_of, given), np.int64, len(given))
                if self._numbers is not None and not np.isin(numbers, self._numbers).all():
                    gone = next(id_ for id_, n in zip(given, numbers, strict=True) if n not in self._numbers)
                    raise KeyError(f"the id {gone!r} is not in this set")
                return self._over(numbers)
            indices = np.fromiter(map(operator.index, given), np.int64, len(given))
        if len(indices) and not (-len(self) <= indices.min() and indices.max() < len(self)):
            raise IndexError(
                f"the numbers go from {indices.min()} to {indices.max()}, and the set has {counted(len(self), 'item')}"
            )
        indices = np.where(indices < 0, indices + len(self), indices)
        return self._over(indices if self._numbers is None else self._numbers[indices])

    def _over(self, numbers: np.ndarray[Any, Any]) -> DynamicItemDataset:
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._numbers = numbers
        other.pipeline = self.pipeline.copy()
        return other

    # --------------------------------------------------------------------------------------------------------- workers
    def check_picklable(self) -> None:
        """Raise where this set cannot be handed to workers that are not forked.

        Raises:
            ValueError: names the function, and what to do.
        """
        for item in dict.fromkeys(self.pipeline.items.values()):
            reason = why_not_picklable(item)
            if reason is not None:
                raise ValueError(
                    f"the workers of a loader are started by spawn or forkserver, and {item}, which provides "
                    f"{quoted(item.provides)}, cannot be sent to them ({reason}). Define it at the top of a module, or "
                    "give the loader multiprocessing_context='fork', or num_workers=0"
                )


_REMEDY = (
    "Let all items have one type: types={...} of from_csv makes numbers of texts, a dynamic item can do so for others; "
    "key_test leaves out what does not fit"
)


def _empty(origin: str) -> str:
    """What to say of a data set without rows when a key of them is asked for: it is not the key that is wrong."""
    place = f", which come from {origin}" if origin else ""
    return (
        f"the data set is empty: it holds no item, and so no key. Look at its rows{place}: a manifest that is only "
        "begun, a folder without files, a filter that lets nothing through"
    )


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")


def _told(value: Any) -> str:
    text = repr(value)
    return f"of the type {type(value).__name__} ({text if len(text) <= 40 else text[:37] + '...'})"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number, np.bool_))


def _not_alike(values: Sequence[Any]) -> tuple[int, int]:
    """The places of two values that cannot be compared; there are some."""
    for place in range(1, len(values)):
        for other in (0, place - 1):
            try:
                _ = values[other] < values[place]
            except TypeError:
                return other, place
    return 0, len(values) - 1


class _Picked(Sequence[str]):
    """Some ids of many."""

    def __init__(self, ids: Sequence[str], numbers: np.ndarray[Any, Any]) -> None:
        self._ids, self._numbers = ids, numbers

    def __repr__(self) -> str:
        return short_list(self)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._ids[number] for number in self._numbers[index].tolist()]
        return self._ids[self._numbers.item(index)]


class _Some(Mapping[str, dict[str, Any]]):
    """Some rows of many, by their ids."""

    def __init__(self, rows: Rows, numbers: np.ndarray[Any, Any]) -> None:
        self._rows, self._numbers = rows, numbers

    def __repr__(self) -> str:
        return short_mapping(self)

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return (self._rows.ids[number] for number in self._numbers.tolist())

    def __getitem__(self, id_: str) -> dict[str, Any]:
        number = self._rows.number_of(id_)
        if number not in self._numbers:
            raise KeyError(f"the id {id_!r} is not in this set")
        return self._rows.row(number)


def add_dynamic_item(
    datasets: Iterable[DynamicItemDataset],
    func: DynamicItem | Callable[..., Any],
    takes: str | Iterable[str] | None = None,
    provides: str | Iterable[str] | None = None,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    version: str | int = "",
) -> None:
    """Let a function compute keys of several sets; arguments as for `DynamicItemDataset.add_dynamic_item`.

    >>> train, valid = (DynamicItemDataset({"a": {"n": n}}) for n in (1, 2))
    >>> add_dynamic_item([train, valid], lambda n: n + 1, takes="n", provides="m")
    >>> set_output_keys([train, valid], ["m"])
    >>> train[0], valid[0]
    ({'m': 2}, {'m': 3})
    """
    for dataset in _several(datasets):
        dataset.add_dynamic_item(func, takes, provides, cache_dir=cache_dir, version=version)


def set_output_keys(datasets: Iterable[DynamicItemDataset], keys: OutputKeys) -> None:
    """Say what the items of several sets hold; `keys` as for `DynamicItemDataset.set_output_keys`.

    >>> sets = [DynamicItemDataset({"a": {"n": 1}})]
    >>> set_output_keys(sets, {"number": "n"})
    >>> sets[0][0]
    {'number': 1}
    """
    keys = keys if isinstance(keys, (str, Mapping)) else list(keys)
    for dataset in _several(datasets):
        dataset.set_output_keys(keys)


def _several(datasets: Any) -> list[DynamicItemDataset]:
    found = list(datasets.values()) if isinstance(datasets, Mapping) else datasets
    if isinstance(found, DynamicItemDataset):
        raise ValueError("datasets is one data set; give a list of them, or call the method of that one")
    found = list(found)
    for each in found:
        if not isinstance(each, DynamicItemDataset):
            raise ValueError(f"datasets holds a {type(each).__name__}; each must be a DynamicItemDataset")
    return found
