"""Manifests: the files that list a corpus, read into packed `Rows`. Each error names the file and the line.

=============  =====================================================================================================
CSV            a line of column names, one of them ``ID``; then a line an item. ``duration`` is a number, all else text
JSON           ``{"utt1": {"wav": "a.wav", "duration": 1.5}, ...}``
JSON lines     a line an item: ``{"id": "utt1", "wav": "a.wav", "duration": 1.5}``
Kaldi folder   ``wav.scp`` and, where they are there, ``segments``, ``text``, ``utt2spk``, ``utt2dur``, ``spk2gender``
=============  =====================================================================================================

What stands in a transcript is text: ``$5`` and ``{laughs}`` stay as they are. Only the names given as `replacements`
are replaced: ``$data_root`` or ``${data_root}`` in CSV and Kaldi files, ``{data_root}`` in JSON, as in SpeechBrain.
"""

from __future__ import annotations

import csv
import difflib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from brainlib.common.counted import counted
from brainlib.common.errors import quoted
from brainlib.common.logs import logger
from brainlib.data.rows import MISSING, Rows, RowsBuilder

__all__ = ["read_csv", "read_json", "read_jsonl", "read_kaldi"]

PathLike = str | os.PathLike[str]
Replacements = Mapping[str, Any]

_CHUNK = 512  # rows that are read and packed together: of more, the garbage collector takes half of the time
_ID_NAMES = ("ID", "id")
_MOST_PLACEHOLDERS = 5  # that are named in a warning


# ----------------------------------------------------------------------------------------------------------------- CSV
def read_csv(
    path: PathLike,
    replacements: Replacements | None = None,
    types: Mapping[str, Callable[[str], Any]] | None = None,
) -> Rows:
    r"""Read a CSV file.

    Args:
        path: of the file, UTF-8.
        replacements: what ``$name`` stands for, for each name.
        types: what turns the text of a column into a value, such as ``{"num_words": int}``. ``duration`` is a float
            unless this says otherwise.

    Raises:
        ValueError: for a line that cannot be read as a row, an id that is empty or there twice, a value that is of
            another type.

    >>> _ = Path("corpus.csv").write_text("ID,duration,wav,text\nutt1,1.5,$data_root/1.wav,it costs $5\n")
    >>> read_csv("corpus.csv", {"data_root": "/corpus"})["utt1"]
    {'id': 'utt1', 'duration': 1.5, 'wav': '/corpus/1.wav', 'text': 'it costs $5'}
    """
    types = {"duration": float, **(types or {})}
    name = os.fspath(path)
    replace = _replacer(replacements, _DOLLARS, name)
    lines = _Lines(name, _csv_lines)
    with _open(name) as file:
        reader = csv.reader(file, skipinitialspace=True, strict=True)
        builder = RowsBuilder(name, lines.of_two)
        with _csv_errors(name, reader):
            names = next(reader, None)
        _check_names(name, names)
        assert names is not None
        unknown = [key for key in types if key not in names and key != "duration"]
        if unknown:
            raise ValueError(f"{name} has no column {quoted(unknown)}; it has {quoted(names)}")
        id_name = next(each for each in _ID_NAMES if each in names)
        while True:
            with _csv_errors(name, reader):
                rows = list(islice(reader, _CHUNK))
            if not rows:
                if replace is not None:
                    replace.say_unused()
                return builder.rows()
            if set(map(len, rows)) != {len(names)}:
                rows = [row for row in rows if row]  # empty lines
                for number, row in enumerate(rows, builder.num_rows):
                    if len(row) != len(names):
                        raise ValueError(
                            f"{lines.told(number)} has {counted(len(row), 'field')}, and the header "
                            f"has {counted(len(names), 'column')}. A text with a comma, a quote "
                            "or a line break in it stands in double quotes"
                        )
                if not rows:
                    continue
            columns: dict[str, list[Any]] = {
                key: list(column) for key, column in zip(names, zip(*rows, strict=True), strict=True)
            }
            for key, column in columns.items():
                if replace is not None:
                    columns[key] = column = [replace(value) for value in column]
                if key in types:
                    columns[key] = _typed(column, types[key], key, lines.after(builder.num_rows))
            ids = columns.pop(id_name)
            if "" in ids:
                raise ValueError(
                    f"{lines.told(builder.num_rows + ids.index(''))}: the column {id_name!r} is empty"
                )
            builder.add_columns(ids, columns)


def _check_names(path: str, names: list[str] | None) -> None:
    if not names:
        raise ValueError(f"{path} is empty; its first line must name the columns, one of them ID")
    if sum(each in names for each in _ID_NAMES) != 1:
        raise ValueError(
            f"{path}, line 1 names the columns {quoted(names)}; just one of them must be ID or id"
        )
    twice = sorted({key for key in names if names.count(key) > 1})
    if twice:
        raise ValueError(f"{path}, line 1 names the column {quoted(twice)} more than once")


def _typed(column: list[str], make: Callable[[str], Any], key: str, where: Callable[[int], str]) -> list[Any]:
    try:
        return list(map(make, column))
    except (ValueError, TypeError, KeyError):
        for at, value in enumerate(column):
            try:
                make(value)
            except (ValueError, TypeError, KeyError) as error:
                made = getattr(make, "__name__", str(make))
                raise ValueError(f"{where(at)}: {key!r} is {value!r}, which is no {made}") from error
        raise


def _csv_lines(path: str) -> Iterator[int]:
    """The line on which each row begins."""
    with _open(path) as file:
        reader = csv.reader(file, skipinitialspace=True)
        next(reader)
        before = reader.line_num
        for row in reader:
            if row:
                yield before + 1
            before = reader.line_num


@contextmanager
def _csv_errors(path: str, reader: Any) -> Iterator[None]:
    try:
        yield
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from error
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from error


# ---------------------------------------------------------------------------------------------------------------- JSON
def read_json(path: PathLike, replacements: Replacements | None = None) -> Rows:
    """Read a JSON file: one object, from ids to objects.

    Args:
        path: of the file.
        replacements: what ``{name}`` stands for, for each name.

    Raises:
        ValueError: for what is no JSON, no object of objects, or has an id or a key twice.

    >>> _ = Path("corpus.json").write_text('{"utt1": {"wav": "{data_root}/1.wav", "text": "{laughs} no"}}')
    >>> read_json("corpus.json", {"data_root": "/corpus"})["utt1"]
    {'id': 'utt1', 'wav': '/corpus/1.wav', 'text': '{laughs} no'}
    """
    name = os.fspath(path)
    replace = _replacer(replacements, _BRACES, name)
    with _open(name) as file:
        try:
            data = json.load(file, object_pairs_hook=lambda pairs: _once(pairs, name))
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{name}, line {error.lineno}, column {error.colno}: this is no JSON: {error.msg}"
            ) from error
        except UnicodeDecodeError as error:
            raise _not_utf8(name, error) from error
    if not isinstance(data, dict):
        raise ValueError(f"{name} holds a {type(data).__name__}; it must hold an object, from ids to objects")
    if replace is not None:
        data = {id_: _deep(row, replace) for id_, row in data.items()}
        replace.say_unused()
    try:
        return Rows.of(data, name)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _once(pairs: list[tuple[str, Any]], path: str) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"{path}: the key {twice!r} is there twice in one object")
    return made


def read_jsonl(path: PathLike, replacements: Replacements | None = None) -> Rows:
    r"""Read JSON lines: an object a line, with ``id`` (or ``ID``) as one of its keys.

    Args:
        path: of the file.
        replacements: what ``{name}`` stands for, for each name.

    Raises:
        ValueError: for a line that is no JSON object or has no id, or an id that is there twice.

    >>> _ = Path("corpus.jsonl").write_text('{"id": "utt1", "text": "it costs $5"}\n')
    >>> read_jsonl("corpus.jsonl")["utt1"]
    {'id': 'utt1', 'text': 'it costs $5'}
    """
    name = os.fspath(path)
    replace = _replacer(replacements, _BRACES, name)
    lines = _Lines(name, _full_lines)
    builder = RowsBuilder(name, lines.of_two)
    with _open(name) as file:
        while True:
            try:
                chunk = list(islice(file, _CHUNK))
            except UnicodeDecodeError as error:
                raise _not_utf8(name, error) from error
            if not chunk:
                if replace is not None:
                    replace.say_unused()
                return builder.rows()
            chunk = [line for line in chunk if not line.isspace()]
            rows = _objects(chunk, lines.after(builder.num_rows))
            if replace is not None:
                rows = [_deep(row, replace) for row in rows]
            ids = [row.pop("id", MISSING) for row in rows]
            if MISSING in ids:
                ids = [
                    row.pop("ID", MISSING) if id_ is MISSING else id_
                    for id_, row in zip(ids, rows, strict=True)
                ]
            if set(map(type, ids)) - {str} or "" in ids:
                at = next(at for at, id_ in enumerate(ids) if not isinstance(id_, str) or not id_)
                told = "there is no 'id'" if ids[at] is MISSING else f"'id' is {ids[at]!r}"
                raise ValueError(
                    f"{lines.told(builder.num_rows + at)}: {told}; each line must have one, a string"
                )
            builder.add(ids, rows)


def _objects(lines: list[str], where: Callable[[int], str]) -> list[dict[str, Any]]:
    """The objects of some lines; all at once, which is twice as fast, and one by one where that cannot be."""
    try:
        rows = json.loads("[" + ",".join(lines) + "]")
        if len(rows) == len(lines) and set(map(type, rows)) <= {dict}:
            return rows  # type: ignore[no-any-return]
    except json.JSONDecodeError:
        pass
    rows = []
    for at, line in enumerate(lines):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{where(at)}, column {error.colno}: this is no JSON: {error.msg}") from error
        if not isinstance(rows[-1], dict):
            raise ValueError(f"{where(at)} holds a {type(rows[-1]).__name__}; each line must hold an object")
    return rows


def _full_lines(path: str) -> Iterator[int]:
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            if not line.isspace():
                yield number


# --------------------------------------------------------------------------------------------------------------- Kaldi
_KALDI_KEYS = {"text": "text", "utt2spk": "spk", "utt2dur": "duration"}


def read_kaldi(folder: PathLike, replacements: Replacements | None = None) -> Rows:
    r"""Read a data folder as Kaldi, ESPnet and others have it.

    Args:
        folder: with ``wav.scp``, from ids to paths. With ``segments`` an item is a part of a recording: ``wav`` is that
            of the recording, ``start`` and ``stop`` are seconds. ``text``, ``utt2spk``, ``utt2dur`` become the keys
            ``text``, ``spk``, ``duration``, ``spk2gender`` becomes ``gender``; any other ``utt2NAME`` the text NAME.
        replacements: what ``$name`` stands for in paths, for each name.

    Raises:
        ValueError: for a path that is a command (it ends in ``|``: nothing is run to read data; write the files out
            first), and for an item that one of the files has and another one lacks.

    >>> Path("data").mkdir()
    >>> _ = Path("data/wav.scp").write_text("utt1 $root/1.wav\n"), Path("data/text").write_text("utt1 it costs $5\n")
    >>> read_kaldi("data", {"root": "/corpus"})["utt1"]
    {'id': 'utt1', 'wav': '/corpus/1.wav', 'text': 'it costs $5'}
    """
    home = Path(folder)
    replace = _replacer(replacements, _DOLLARS, str(home / "wav.scp"))
    if not (home / "wav.scp").is_file():
        raise ValueError(f"there is no wav.scp in {os.fspath(folder)}; a Kaldi folder has at least that file")
    wavs: dict[str, str] = {}
    for id_, path in _table(home / "wav.scp", wanted="a path").items():
        if path.endswith("|") or path.startswith("|"):
            raise ValueError(
                f"{home / 'wav.scp'}: the recording {id_!r} is the command {path!r}. Nothing is run to read data: "
                "write the audio to files first, and name these"
            )
        wavs[id_] = path if replace is None else replace(path)
    if replace is not None:
        replace.say_unused()
    rows: dict[str, dict[str, Any]]
    if (home / "segments").is_file():
        rows = dict(_segments(home / "segments", wavs))
    else:
        rows = {id_: {"wav": path} for id_, path in wavs.items()}
    for file in sorted(home.iterdir()):
        key = _KALDI_KEYS.get(file.name, file.name[4:] if file.name.startswith("utt2") else None)
        if key is None or not file.is_file():
            continue
        values = _table(file, wanted="a value" if key != "text" else None)
        _same_ids(rows, values, file, home / ("segments" if (home / "segments").is_file() else "wav.scp"))
        for id_, value in values.items():
            rows[id_][key] = _number(value, file, id_) if key == "duration" else value
    if (home / "spk2gender").is_file():
        genders = _table(home / "spk2gender", wanted="a value")
        for id_, row in rows.items():
            if row.get("spk", id_) not in genders:
                raise ValueError(
                    f"{home / 'spk2gender'} lacks the speaker {row.get('spk', id_)!r} of the item {id_!r}"
                )
            row["gender"] = genders[row.get("spk", id_)]
    return Rows.of(rows, str(home))


def _table(path: Path, wanted: str | None) -> dict[str, str]:
    found: dict[str, str] = {}
    with _open(str(path)) as file:
        try:
            for number, line in enumerate(file, 1):
                id_, value = [*line.split(None, 1), "", ""][:2]
                if not id_:
                    continue
                if wanted and not value:
                    raise ValueError(f"{path}, line {number}: behind {id_!r} there must be {wanted}")
                if id_ in found:
                    raise ValueError(f"{path}, line {number}: the id {id_!r} is there twice")
                found[id_] = value.strip()
        except UnicodeDecodeError as error:
            raise _not_utf8(str(path), error) from error
    return found


def _segments(path: Path, wavs: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for id_, told in _table(path, wanted="a recording, a start and a stop").items():
        parts = told.split()
        if len(parts) < 3:
            raise ValueError(
                f"{path}: the item {id_!r} has {told!r}; it must be a recording, a start and a stop"
            )
        if parts[0] not in wavs:
            raise ValueError(f"{path}: the item {id_!r} is a part of {parts[0]!r}, which is not in wav.scp")
        start, stop = (_number(each, path, id_) for each in parts[1:3])
        if not 0 <= start < stop:
            raise ValueError(
                f"{path}: the item {id_!r} goes from {start} to {stop} s; it must end after it starts"
            )
        yield id_, {"wav": wavs[parts[0]], "start": start, "stop": stop, "duration": stop - start}


def _same_ids(rows: Mapping[str, Any], values: Mapping[str, Any], file: Path, first: Path) -> None:
    for one, other, name, lacking in ((rows, values, first, file), (values, rows, file, first)):
        gone = [id_ for id_ in one if id_ not in other]
        if gone:
            more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
            raise ValueError(f"{lacking} lacks the item {gone[0]!r}{more}, which {name.name} has")


def _number(text: str, path: Path, id_: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{path}: the item {id_!r} has {text!r}, which is no number") from None


# -------------------------------------------------------------------------------------------------------------- shared
def _open(path: str) -> Any:
    return open(path, encoding="utf-8-sig", newline="")


def _not_utf8(path: str, error: UnicodeDecodeError) -> ValueError:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as here:
                return ValueError(
                    f"{path}, line {number} is not UTF-8: byte {here.start + 1} of it is {here.object[here.start]:#04x}"
                )
    return ValueError(f"{path} is not UTF-8: {error}")


class _Lines:
    """On which line of its file a row stands: read again, since it is asked for in errors alone."""

    def __init__(self, path: str, begin: Callable[[str], Iterator[int]]) -> None:
        self._path, self._begin = path, begin

    def of(self, number: int) -> int:
        return next(islice(self._begin(self._path), number, None))

    def told(self, number: int) -> str:
        return f"{self._path}, line {self.of(number)}"

    def after(self, num_rows: int) -> Callable[[int], str]:
        return lambda at: self.told(num_rows + at)

    def of_two(self, first: int, second: int) -> str:
        return f"on lines {self.of(first)} and {self.of(second)} of {self._path}"


# How a name stands in a text: $name or ${name} where texts are plain, {name} in JSON.
_DOLLARS = r"\$(?:(NAMES)(?![A-Za-z0-9_])|\{(NAMES)\})", "$", ("${0}", "${{{0}}}")
_BRACES = r"\{(NAMES)\}", "{", ("{{{0}}}",)
_A_PLACEHOLDER = re.compile(r"\$?\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)")


class _Replacer:
    """Replaces names by what they stand for, and nothing else."""

    def __init__(self, replacements: Replacements, way: tuple[str, str, tuple[str, ...]], file: str) -> None:
        pattern, self._mark, self._forms = way
        for name in replacements:
            if not isinstance(name, str) or not name.isidentifier():
                raise ValueError(
                    f"replacements has the name {name!r}; a name is made of letters, digits and underscores"
                )
        self._texts = {
            name: os.fspath(value) if isinstance(value, os.PathLike) else str(value)
            for name, value in replacements.items()
        }
        self._find = re.compile(pattern.replace("NAMES", "|".join(map(re.escape, self._texts)))).sub
        self._file = file
        self._used: set[str] = set()

    def __call__(self, text: str) -> str:
        return self._find(self._text_of, text) if self._mark in text else text

    def _text_of(self, match: re.Match[str]) -> str:
        name = next(group for group in match.groups() if group)
        self._used.add(name)
        return self._texts[name]

    def say_unused(self) -> None:
        """Warn of names that stand nowhere in the file, and name what there looks most like each."""
        unused = [name for name in self._texts if name not in self._used]
        if not unused:
            return
        there = self._placeholders()
        for name in unused:
            forms = " or ".join(form.format(name) for form in self._forms)
            by_lower = {each.lower(): text for each, text in there.items()}
            close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
            if close:
                hint = f"the nearest that it has is {by_lower[close[0]]}"
            elif there:
                hint = "it has " + ", ".join(list(there.values())[:_MOST_PLACEHOLDERS])
                hint += "" if len(there) <= _MOST_PLACEHOLDERS else ", ..."
            else:
                hint = "it has none at all"
            logger.warning(
                "the replacement %r has no effect: %s has no placeholder %s; %s",
                name,
                self._file,
                forms,
                hint,
            )

    def _placeholders(self) -> dict[str, str]:
        """What else in the file looks like one, by its name, as it stands there."""
        found: dict[str, str] = {}
        with _open(self._file) as file:
            for line in file:
                if "$" in line or "{" in line:
                    for match in _A_PLACEHOLDER.finditer(line):
                        if (name := match[1] or match[2]) not in self._used:
                            found.setdefault(name, match[0])
        return found


def _replacer(
    replacements: Replacements | None, way: tuple[str, str, tuple[str, ...]], file: str
) -> _Replacer | None:
    """What replaces the names in what is read from a file; None where there is nothing to replace."""
    return _Replacer(replacements, way, file) if replacements else None


def _deep(value: Any, replace: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return replace(value)
    if isinstance(value, dict):
        return {key: _deep(each, replace) for key, each in value.items()}
    if isinstance(value, list):
        return [_deep(each, replace) for each in value]
    return value
