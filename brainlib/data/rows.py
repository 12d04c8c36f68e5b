"""Rows of a manifest, packed: a million of them are a few arrays, which forked workers share and never copy.

A list of a million dicts is tens of millions of Python objects. Each has a counter of its references in it, so reading
one writes to its page, and every forked worker ends with a copy of all of them. Here a column of texts is one piece
of bytes and one array of where each text ends; a column of numbers is an array. A row costs the bytes of its texts,
4 bytes a text and 8 a number.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from brainlib.common.errors import nearest, quoted

__all__ = ["MISSING", "Rows", "RowsBuilder"]


class _Missing:
    def __reduce__(self) -> str:  # a copy, in another process too, is the same object
        return "MISSING"


MISSING: Any = _Missing()  # stands where a row does not have a key

_CHUNK = 512  # rows that are packed together
_PLAIN = (str, int, float, bool, type(None), list, dict, tuple)


# ------------------------------------------------------------------------------------------------------------- columns
class Texts(Sequence[str]):
    """Strings: their bytes, and where each ends."""

    def __init__(self, blob: bytes, lengths: np.ndarray[Any, Any]) -> None:
        self._blob = blob
        ends = np.zeros(len(lengths) + 1, np.uintc if len(blob) < 1 << 32 else np.int64)
        np.cumsum(lengths, out=ends[1:])
        self._ends = array(
            "I" if ends.dtype == np.uintc else "q"
        )  # an index of it costs half of one of numpy's
        self._ends.frombytes(ends.tobytes())

    def __repr__(self) -> str:
        return short_list(self)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: Any) -> Any:
        data = self._blob[self._ends[number] : self._ends[number + 1]]
        try:
            return data.decode()
        except UnicodeDecodeError:  # half a surrogate pair, which JSON can hold
            return data.decode("utf-8", "surrogatepass")


class Numbers(Sequence[Any]):
    """Numbers of one kind."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, number: Any) -> Any:
        return self.values.item(number)


class Plain(Texts):
    """Lists, dicts, None, values of several kinds, and gaps."""

    def __getitem__(self, number: Any) -> Any:
        data = self._blob[self._ends[number] : self._ends[number + 1]]
        # These bytes were written by `_plain` in this program; nothing that comes from a file is unpickled.
        return pickle.loads(data) if data else MISSING


class _Growing:
    """A column to which values are added. It holds two buffers that grow, so that no memory is left in pieces."""

    def __init__(self) -> None:
        self._kind: Any = (
            None  # a type of number, `Texts`, `Plain`, or `list`: then the values stay as they are
        )
        self._blob = bytearray()
        self._lengths = array("I")
        self._values: list[Any] = []

    def add(self, values: list[Any]) -> None:
        if self._kind is list:
            self._values += values
            return
        kind, blob, lengths = _pack(values)
        if self._kind is None:
            self._kind = kind
        if kind is not self._kind:
            kind, blob, lengths = _plain(values)
        if kind is not self._kind:  # it cannot stay what it was; at most twice
            values = [*self.column(), *values]
            self._kind, blob, lengths = _plain(values)
            self._blob, self._lengths = bytearray(), array("I")
        if self._kind is list:
            self._values = values
        self._blob += blob
        self._lengths.extend(lengths)

    def column(self) -> Sequence[Any]:
        if self._kind is list:
            return self._values
        if self._kind in _DTYPES:
            return Numbers(np.frombuffer(self._blob, _DTYPES[self._kind]).copy())
        made: Texts = self._kind(bytes(self._blob), np.frombuffer(self._lengths, np.uintc))
        return made


_DTYPES: dict[Any, Any] = {int: np.int64, float: np.float64, bool: np.bool_}


def _pack(values: list[Any]) -> tuple[Any, bytes, Iterable[int]]:
    """Values as bytes: of which kind they are, the bytes, and the length of each where they differ."""
    kinds = set(map(type, values))
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is str:
        text = "".join(values)
        data = text.encode("utf-8", "surrogatepass")
        if len(data) == len(text):  # all of it is ASCII
            return Texts, data, map(len, values)
        return Texts, data, [len(value.encode("utf-8", "surrogatepass")) for value in values]
    if kind in _DTYPES:
        try:
            return kind, np.array(values, _DTYPES[kind]).tobytes(), ()
        except OverflowError:
            pass
    return _plain(values)


def _plain(values: list[Any]) -> tuple[Any, bytes, Iterable[int]]:
    if all(value is MISSING or isinstance(value, _PLAIN) for value in values):
        try:
            parts = [b"" if value is MISSING else pickle.dumps(value, 5) for value in values]
            return Plain, b"".join(parts), map(len, parts)
        except (pickle.PicklingError, AttributeError, TypeError):
            pass
    return list, b"", ()


# ---------------------------------------------------------------------------------------------------------------- rows
class Rows(Mapping[str, dict[str, Any]]):
    """The rows of a manifest by their ids, in its order: a mapping from id to a dict, made when it is asked for.

    Args:
        ids: of the rows.
        columns: one entry a row under each key; the ids join them under ``id``.
        origin: where they come from, for messages.

    >>> rows = Rows.of({"utt1": {"wav": "a.wav", "duration": 1.5}, "utt2": {"wav": "b.wav", "duration": 2.0}})
    >>> rows["utt2"], list(rows), rows.columns["duration"][0], rows.number_of("utt2")
    ({'id': 'utt2', 'wav': 'b.wav', 'duration': 2.0}, ['utt1', 'utt2'], 1.5, 1)
    """

    def __init__(self, ids: Sequence[str], columns: Mapping[str, Sequence[Any]], origin: str = "") -> None:
        self.ids, self.origin = ids, origin
        self.columns: dict[str, Sequence[Any]] = {"id": ids, **columns}
        self._by_hash: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None = None

    @classmethod
    def of(cls, data: Mapping[str, Mapping[str, Any]], origin: str = "") -> Rows:
        """Pack a dict from id to row.

        Raises:
            ValueError: for a row that is no dict, or has an ``id`` that is another.
        """
        if isinstance(data, Rows):
            return data
        builder = RowsBuilder(origin)
        ids = list(data)
        for start in range(0, len(ids), _CHUNK):
            chunk = ids[start : start + _CHUNK]
            builder.add(chunk, [_checked(each, data[each]) for each in chunk])
        return builder.rows()

    def __repr__(self) -> str:
        return short_mapping(self)

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __getitem__(self, id_: str) -> dict[str, Any]:
        return self.row(self.number_of(id_))

    def row(self, number: int) -> dict[str, Any]:
        """The row with this number, counted from 0; ``id`` is one of its keys."""
        values = {key: column[number] for key, column in self.columns.items()}
        return {key: value for key, value in values.items() if value is not MISSING}

    def number_of(self, id_: str) -> int:
        """The number of the row with this id.

        Raises:
            KeyError: there is none.
        """
        if self._by_hash is None:
            hashes = self._hashes()
            order = np.argsort(hashes, kind="stable").astype(np.uint32 if len(hashes) < 1 << 32 else np.int64)
            self._by_hash = hashes[order], order
        hashes, order = self._by_hash
        wanted = hash(id_)
        place = int(np.searchsorted(hashes, wanted))
        while place < len(hashes) and hashes[place] == wanted:
            number = int(order[place])
            if self.ids[number] == id_:
                return number
            place += 1
        raise KeyError(f"there is no row with the id {id_!r}" + (f" in {self.origin}" if self.origin else ""))

    def _hashes(self) -> np.ndarray[Any, Any]:
        return np.fromiter(map(hash, self.ids), np.int64, len(self.ids))

    def twice(self) -> tuple[int, int]:
        """The numbers of two rows with the same id; there are such rows."""
        first: dict[str, int] = {}
        return next((first[id_], n) for n, id_ in enumerate(self.ids) if first.setdefault(id_, n) != n)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_by_hash": None}  # the hash of a text differs from process to process


def _checked(id_: Any, row: Any) -> Mapping[Any, Any]:
    if not isinstance(id_, str) or not id_:
        raise ValueError(f"an id is {id_!r}; it must be a string that is not empty")
    if not isinstance(row, Mapping):
        raise ValueError(
            f"the row of {id_!r} is a {type(row).__name__}; it must be a dict from keys to values"
        )
    if "id" in row:
        if row["id"] != id_:
            raise ValueError(
                f"the row of {id_!r} has the key 'id' with the value {row['id']!r}: leave it out, the id of a row is "
                "what it is filed under"
            )
        return {key: value for key, value in row.items() if key != "id"}
    return row


class RowsBuilder:
    """Packs rows as they come in, so that never all of them are Python objects.

    Args:
        origin: where they come from, for messages.
        same_id: is told the numbers of two rows with the same id, and returns what to say.

    >>> builder = RowsBuilder()
    >>> builder.add(["a", "b"], [{"n": 1}, {"n": 2, "text": "two"}])
    >>> builder.rows()["b"]
    {'id': 'b', 'n': 2, 'text': 'two'}
    """

    def __init__(self, origin: str = "", same_id: Callable[[int, int], str] | None = None) -> None:
        self._origin = origin
        self._same_id = same_id or (lambda first, second: f"rows {first + 1} and {second + 1}")
        self._ids = _Growing()
        self._hashes = array("q")
        self._columns: dict[str, _Growing] = {}
        self.num_rows = 0

    def add(self, ids: list[str], rows: Sequence[Mapping[str, Any]]) -> None:
        """Some more rows; each may have keys of its own."""
        keys = list(rows[0]) if rows else []
        if sum(map(len, rows)) != len(keys) * len(rows) or not all(map(set(keys).issuperset, rows)):
            keys = list(dict.fromkeys(key for row in rows for key in row))
            self.add_columns(ids, {key: [row.get(key, MISSING) for row in rows] for key in keys})
        else:
            self.add_columns(ids, {key: [row[key] for row in rows] for key in keys})

    def add_columns(self, ids: list[str], columns: Mapping[str, list[Any]]) -> None:
        """Some more rows, column by column."""
        if not ids:
            return
        for key in columns:
            if key not in self._columns:
                self._columns[key] = _Growing()
                if self.num_rows:
                    self._columns[key].add([MISSING] * self.num_rows)
        for key, column in self._columns.items():
            column.add(columns[key] if key in columns else [MISSING] * len(ids))
        self._ids.add(ids)
        self._hashes.extend(map(hash, ids))
        self.num_rows += len(ids)

    def rows(self) -> Rows:
        """All of them.

        Raises:
            ValueError: two have the same id.
        """
        ids = self._ids.column() if self.num_rows else []
        columns = {key: self._columns.pop(key).column() for key in list(self._columns)}
        rows = Rows(ids, columns, self._origin)
        hashes = np.frombuffer(self._hashes, np.int64)
        hashes.sort()  # in place: memory that is needed for a moment stays with the process, too
        if (hashes[1:] == hashes[:-1]).any() and len(set(rows.ids)) < len(rows):
            twice = rows.twice()
            raise ValueError(
                f"the id {rows.ids[twice[0]]!r} is there twice: {self._same_id(*twice)}. An id names one item; make "
                "them different"
            )
        return rows


_MOST_SHOWN = 3  # in a repr


def short_list(values: Sequence[Any]) -> str:
    """The first few of many values, as a repr.

    >>> short_list(range(1000)), short_list("ab")
    ('[0, 1, 2, ... 1000 in all]', "['a', 'b']")
    """
    shown = ", ".join(repr(values[number]) for number in range(min(len(values), _MOST_SHOWN)))
    return f"[{shown}]" if len(values) <= _MOST_SHOWN else f"[{shown}, ... {len(values)} in all]"


def short_mapping(rows: Mapping[str, Any]) -> str:
    """The ids of a few of many rows, as a repr.

    >>> short_mapping({"a": {"n": 1}})
    "{'a': {...}}"
    """
    shown = ", ".join(f"{id_!r}: {{...}}" for id_ in islice(rows, _MOST_SHOWN))
    return f"{{{shown}}}" if len(rows) <= _MOST_SHOWN else f"{{{shown}, ... {len(rows)} in all}}"


def no_such_key(key: str, known: Sequence[str], what: str) -> str:
    """The message for a key that is not there.

    >>> no_such_key("wavs", ["id", "wav"], "this data set")
    "there is no key 'wavs' in this data set; there are 'id', 'wav'. Did you mean 'wav'?"
    """
    return f"there is no key {key!r} in {what}; there are {quoted(known)}.{nearest(key, known)}"
