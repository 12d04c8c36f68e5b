"""Computed values kept on disk, a file an item: complete or not there, and made anew when their source changed."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from brainlib.common.files import DISK, SummedFile
from brainlib.common.logs import logger

__all__ = ["ItemCache"]

_SIZE = 32  # bytes of a digest


class ItemCache:
    """A folder of computed values.

    A file counts as long as what its values came from is the same: what the row says; of a path to a file in it, the
    size and the time of the last change; the code of the functions. What a function reads besides, such as global
    variables or attributes, is not seen: raise `version` when it changes. What is drawn at random is frozen.

    Args:
        folder: is made where it is not there. It may be shared by processes and runs.
        version: any text or number; another one makes all values anew.

    >>> cache = ItemCache("cache")
    >>> made = []
    >>> def make():
    ...     made.append(1)
    ...     return {"signal": torch.ones(2)}
    >>> for _ in range(2):
    ...     values = cache.get("utt1", ("signal",), {"wav": "a.wav"}, [make], make)
    >>> values, len(made)
    ({'signal': tensor([1., 1.])}, 1)
    """

    def __init__(self, folder: str | os.PathLike[str], version: str | int = "") -> None:
        self.folder, self.version = Path(folder), version
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"the cache folder {str(self.folder)!r} is a file; name a folder")

    def get(
        self,
        id_: str,
        keys: Sequence[str],
        known: Mapping[str, Any],
        functions: Sequence[Callable[..., Any]],
        make: Callable[[], dict[str, Any]],
    ) -> dict[str, Any]:
        """The values of an item: those on the disk, or what `make` returns, which is then kept.

        Args:
            id_: of the item.
            keys: of the values.
            known: what of the row they come from.
            functions: what they are made with.
            make: makes them.
        """
        name = _digest("\0".join([id_, *keys]).encode("utf-8", "surrogatepass"))[:16].hex()
        path = self.folder / name[:2] / f"{name}.pt"
        source = self._source(known, functions)
        values = self._read(path, source)
        if values is None:
            values = make()
            self._write(path, source, values, id_)
        return values

    def _source(self, known: Mapping[str, Any], functions: Sequence[Callable[..., Any]]) -> bytes:
        told = [repr(self.version), *(part for func in functions for part in _code_of(func))]
        for key in sorted(known):
            value = known[key]
            told += [key, repr(value)]
            if isinstance(value, str) and value:
                try:
                    stat = os.stat(value)
                    told.append(f"{stat.st_size} {stat.st_mtime_ns}")
                except (OSError, ValueError):
                    pass  # it is no path
        return _digest("\0".join(told).encode("utf-8", "surrogatepass"))

    @staticmethod
    def _read(path: Path, source: bytes) -> dict[str, Any] | None:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        if data[:_SIZE] != source:
            return None
        content = data[2 * _SIZE :]
        if data[_SIZE : 2 * _SIZE] != _digest(content):
            logger.warning("%s is damaged: made anew", path)
            return None
        values: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
        return values

    @staticmethod
    def _write(path: Path, source: bytes, values: dict[str, Any], id_: str) -> None:
        buffer = io.BytesIO()
        # A view is saved with all that it is a view of: only what is seen is kept.
        torch.save({key: _owned(value) for key, value in values.items()}, buffer)
        content = buffer.getvalue()
        try:
            torch.load(io.BytesIO(content), weights_only=True)
        except pickle.UnpicklingError as error:
            raise TypeError(
                f"what was made for the item {id_!r} cannot be kept, because the safe loader does not read it back: "
                f"{str(error).splitlines()[0]} Cache tensors, numbers, texts, and lists and dicts of these"
            ) from error
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
        try:
            with SummedFile(beside, synced=False) as file:
                file.write(source + _digest(content) + content)
            DISK.rename(beside, path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


def _owned(value: Any) -> Any:
    if (
        isinstance(value, torch.Tensor)
        and value.numel() < value.untyped_storage().nbytes() // value.element_size()
    ):
        return value.clone()
    return value


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_SIZE).digest()


def _code_of(func: Any) -> Iterator[str]:
    """What of a function decides what it returns, as far as that can be seen."""
    yield f"{getattr(func, '__module__', '')}.{getattr(func, '__qualname__', type(func).__qualname__)}"
    while hasattr(func, "__wrapped__"):
        func = func.__wrapped__
    code = getattr(func, "__code__", None)
    if code is not None:
        yield from _words(code)
        yield repr(getattr(func, "__defaults__", None))
        for cell in getattr(func, "__closure__", None) or ():
            content = cell.cell_contents
            if isinstance(content, (str, int, float, bool, bytes, type(None))):
                yield repr(content)


def _words(code: types.CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _words(constant)
        else:  # the order of a set differs from process to process
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
