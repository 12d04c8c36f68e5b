"""A disk that forgets: what is left of recorded calls after a power cut, when nothing counts but what was synced.

A kill keeps what the system has taken, a power cut does not. So the calls of an operation are recorded and played to a
model of a disk, up to each of them. In the model a file's bytes last once the file was synced, and what was created,
renamed or removed in a folder lasts once that folder was. Of all else a system may have kept what it liked: nothing,
everything, or any part of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.disks import Call


@dataclass
class File:
    """Its bytes as they are, and as a power cut would leave them."""

    now: bytearray = field(default_factory=bytearray)
    lasting: bytes = b""


@dataclass
class Folder:
    """Its entries as they are and as they last, and the changes in between, each a step that happens or does not."""

    now: dict[str, File | Folder] = field(default_factory=dict)
    lasting: dict[str, File | Folder] = field(default_factory=dict)
    pending: list[dict[str, File | Folder | None]] = field(
        default_factory=list
    )  # name → what it becomes; None: gone

    def apply(self, change: dict[str, File | Folder | None]) -> None:
        self.pending.append(change)
        _apply(self.now, change)

    def sync(self) -> None:
        self.lasting, self.pending = dict(self.now), []


def _apply(entries: dict[str, File | Folder], change: dict[str, File | Folder | None]) -> None:
    for name, new in change.items():
        if new is None:
            entries.pop(name, None)
        else:
            entries[name] = new


# Which of the changes of a folder that were not synced happened (by their numbers), and how much of a file's bytes.
KeepChanges = Callable[[int], Iterable[int]]
KeepBytes = Callable[[File], bytes]


def outcomes(rng: random.Random) -> Iterator[tuple[str, KeepChanges, KeepBytes]]:
    """What a system may have kept of what was not synced."""

    def some(number: int) -> list[int]:
        return [i for i in range(number) if rng.random() < 0.5]

    def half(file: File) -> bytes:
        return file.lasting + bytes(file.now[len(file.lasting) :])[: (len(file.now) - len(file.lasting)) // 2]

    def zeros(file: File) -> bytes:
        return file.lasting + bytes(len(file.now) - len(file.lasting))

    yield "nothing", lambda number: (), lambda file: file.lasting
    yield "the names, not the bytes", range, lambda file: file.lasting
    yield "the names, and zeros for bytes", range, zeros
    yield "the names, half of the bytes", range, half
    yield "the bytes, not the names", lambda number: (), lambda file: bytes(file.now)
    yield "all but the last change", lambda number: range(max(0, number - 1)), lambda file: file.lasting
    for number in range(3):
        yield f"some of the names ({number})", some, lambda file: file.lasting
    yield "everything", range, lambda file: bytes(file.now)


class Forgetful:
    """The model, from a folder whose content is synced.

    Args:
        home: The folder above everything that the calls touch.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.root = self._read(home)

    def _read(self, path: Path) -> Folder:
        entries: dict[str, File | Folder] = {}
        for entry in path.iterdir():
            if entry.is_dir():
                entries[entry.name] = self._read(entry)
            else:
                data = entry.read_bytes()
                entries[entry.name] = File(bytearray(data), data)
        return Folder(dict(entries), dict(entries))

    def _folder(self, path: Path, make: bool = False) -> Folder:
        folder = self.root
        for name in path.relative_to(self.home).parts:
            if make and name not in folder.now:
                folder.apply({name: Folder()})
            found = folder.now[name]
            assert isinstance(found, Folder)
            folder = found
        return folder

    def play(self, call: Call) -> None:
        """One recorded call."""
        name, path = call.name, call.path
        if name in ("close", "open_end"):
            return
        if name == "fsync_dir":
            self._folder(path).sync()
            return
        by_hook = name == "fsync" and call.data  # the hook's own calls were not seen
        parent = self._folder(path.parent, make=bool(by_hook))
        if name == "make_folder":
            parent.apply({path.name: Folder()})
        elif name == "open_new":
            parent.apply({path.name: File()})
        elif name == "write":
            self._file(parent, path).now.extend(call.data)
        elif by_hook:
            parent.apply({path.name: File(bytearray(call.data), call.data)})
        elif name == "fsync":
            file = self._file(parent, path)
            file.lasting = bytes(file.now)
        elif name == "rename":
            assert call.target is not None
            assert call.target.parent == path.parent
            parent.apply({path.name: None, call.target.name: parent.now[path.name]})
        else:
            parent.apply({path.name: None})

    @staticmethod
    def _file(parent: Folder, path: Path) -> File:
        found = parent.now[path.name]
        assert isinstance(found, File)
        return found

    def after_a_cut(self, keep_changes: KeepChanges, keep_bytes: KeepBytes) -> dict[str, bytes | None]:
        """What is left: the bytes of each file by its path, None for a folder."""
        left: dict[str, bytes | None] = {}
        self._collect(self.root, "", left, keep_changes, keep_bytes)
        return left

    def _collect(
        self,
        folder: Folder,
        place: str,
        left: dict[str, bytes | None],
        keep_changes: KeepChanges,
        keep_bytes: KeepBytes,
    ) -> None:
        entries = dict(folder.lasting)
        for number in keep_changes(len(folder.pending)):
            _apply(entries, folder.pending[number])
        for name, entry in entries.items():
            if isinstance(entry, Folder):
                left[place + name] = None
                self._collect(entry, f"{place}{name}/", left, keep_changes, keep_bytes)
            else:
                left[place + name] = keep_bytes(entry)


def write_out(left: dict[str, bytes | None], target: Path) -> None:
    """Makes a folder of it."""
    target.mkdir()
    for place, data in left.items():
        if data is None:
            (target / place).mkdir()
        else:
            (target / place).write_bytes(data)
