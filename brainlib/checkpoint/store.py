"""A folder of checkpoints, each of which is there completely or not at all.

A commit: a temporary folder beside the final name → every file written and synced → the manifest last → the temporary
folder synced → one rename → the parent folder synced. A checkpoint is removed by the same trick backwards: one rename,
then the files. So at every instant what has a final name is complete, and what a killed process left shows in its name.

The store knows bytes, names and sums; what the files mean is not its business.
"""

from __future__ import annotations

import errno
import itertools
import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from brainlib.checkpoint import manifest
from brainlib.checkpoint.errors import CheckpointError, DamagedCheckpointError
from brainlib.checkpoint.journal import RECORDS, seal_of, to_lines
from brainlib.checkpoint.manifest import MANIFEST, Checkpoint, FileSum
from brainlib.common.background import hurried
from brainlib.common.files import DISK, Disk, SummedFile, make_folder, remove_tree, sha256_of
from brainlib.common.logs import logger

__all__ = ["Draft", "Store", "check_name"]

WRITING = ".writing-"  # a commit that is not finished
FORMER = "former"  # with a number: where the checkpoints of an earlier run are
DELETING = ".deleting-"  # a checkpoint that is on its way out
OURS = re.compile(r"(step|commit)-\d{8,}(-\d+)?|CKPT\+.+")  # the final names that the store gives
FOREIGN = "CKPT.yaml"  # what SpeechBrain writes where we have a manifest
IDLE_SECONDS = (
    3600.0  # another machine's temporary in which nothing was written for so long has no writer any more
)
NAME_BYTES = 200  # file systems allow 255 for a name; suffixes of ours need a few


def check_name(name: str, what: str) -> str:
    """Refuses a name that could not be a file's, or that would lead out of its folder.

    Args:
        name: What the user gave.
        what: What it names, for the error.

    Raises:
        CheckpointError: It is not a plain file name.

    >>> check_name("dataloader-TRAIN", "a recoverable")
    'dataloader-TRAIN'
    >>> check_name("a/b", "a checkpoint")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    brainlib.checkpoint.errors.CheckpointError: 'a/b' cannot be the name of a checkpoint: it holds '/'; ...
    """
    wrong = ""
    if not isinstance(name, str) or not name:
        wrong = "it is empty" if name == "" else "it is no string"
    elif found := next((part for part in ("/", "\\", "..") if part in name), None):
        wrong = f"it holds {found!r}"
    elif any(ord(letter) < 32 for letter in name):
        wrong = "it holds a control character"
    elif name.startswith("."):
        wrong = "it begins with a dot"
    elif len(name.encode(errors="surrogatepass")) > NAME_BYTES:
        wrong = f"it is longer than {NAME_BYTES} bytes"
    if wrong:
        raise CheckpointError(
            f"{name!r} cannot be the name of {what}: {wrong}; letters, digits, '-', '_', '.' and '=' are fine"
        )
    return name


# What is wrong with a place for good; a disk that is full or fails for a moment is another matter.
_NO_PLACE = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP
)  # fmt: skip


def _no_place(folder: Path, error: OSError) -> CheckpointError:
    """What a user is told of a folder that cannot be one of checkpoints."""
    above = (folder, *folder.parents)
    blocking = next((each for each in above if os.path.exists(each) and not os.path.isdir(each)), None)
    if blocking is not None:
        why = f"{blocking} is no folder"
    else:
        named = os.fspath(error.filename or folder)
        why = error.strerror or str(error)
        why += f" ({named})" if named != os.fspath(folder) else ""
    return CheckpointError(
        f"checkpoints cannot be kept in {folder}: {why}. Give the Checkpointer a folder that this process may make and "
        "write to; in most hparams files it follows from output_folder or save_folder"
    )


_LAST_COMMITS: dict[str, int] = {}  # by folder: several objects of one process may write into it, in turns


class Draft:
    """A checkpoint that is being written, in its temporary folder; only `Store.commit` makes one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Store(folder)
    ...     with store.draft() as draft:
    ...         with draft.file("a.txt") as file:
    ...             _ = file.write(b"hello")
    ...         checkpoint = store.commit(draft, Checkpoint(draft.path, {}, 0), "step-00000001")
    ...     checkpoint.path.name, list(checkpoint.files)
    ('step-00000001', ['a.txt'])
    """

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self.files: dict[str, FileSum] = {}
        self.committed: Path | None = None  # where it is a checkpoint now
        self._adopted: set[str] = set()
        self._disk = disk

    @contextmanager
    def file(
        self,
        name: str,
        pace: Callable[[], None] = hurried,
        lasting: Callable[[memoryview], bool] | None = None,
    ) -> Iterator[SummedFile]:
        """A new file of the draft, written front to back; synced when left. `pace` and `lasting`: see `SummedFile`."""
        with SummedFile(self.path / name, self._disk, lasting=lasting, pace=pace) as file:
            yield file
        self.files[name] = FileSum(file.size, file.sha256)

    def begin_again(self) -> None:
        """Removes what a try has written that failed; what somebody else wrote, and cannot write again, stays."""
        for entry in list(os.scandir(self.path)):
            if not any(name.split("/")[0] == entry.name for name in self._adopted):
                remove_tree(entry.path, self._disk)
        self.files = {name: told for name, told in self.files.items() if name in self._adopted}

    def adopt(self) -> list[str]:
        """Takes in the files that somebody else wrote into the folder since, syncs them, and returns their names.

        Raises:
            CheckpointError: There is a link or something else that is no file among them.
        """
        new: list[str] = []
        folders = [self.path]
        while folders:
            folder = folders.pop()
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
                name = Path(entry.path).relative_to(self.path).as_posix()
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                elif not entry.is_file(follow_symlinks=False):
                    raise CheckpointError(
                        f"{name} is no regular file; a checkpoint holds its bytes itself, so links cannot be kept"
                    )
                elif name not in self.files:
                    fd = os.open(entry.path, os.O_RDONLY)
                    try:
                        self._disk.fsync(fd)
                    finally:
                        self._disk.close(fd)
                    self.files[name] = FileSum(
                        entry.stat(follow_symlinks=False).st_size, sha256_of(entry.path)
                    )
                    new.append(name)
            if folder != self.path:
                self._disk.fsync_dir(folder)
        self._adopted.update(new)
        return new


class Store:
    """The checkpoints of one folder. Making one touches no disk.

    Args:
        folder: Where the checkpoints are; created by the first commit.
        disk: What it writes through.

    >>> Store("/nowhere/yet").listed()
    []
    """

    def __init__(self, folder: str | os.PathLike[str], disk: Disk = DISK) -> None:
        self.folder = Path(folder)
        self.damaged: dict[str, str] = {}  # folder name → what is wrong, as of the last `listed`
        self._disk = disk
        self._known: dict[
            str, tuple[tuple[int, ...], Checkpoint]
        ] = {}  # folder name → manifest's stat, content
        self._unwritten: list[str] | None = None  # commits that the journal lacks; None: it may be anything
        self._scanned = False
        self._last_commit = 0  # of what was seen here; another Store of this process may know of later ones
        self._said: set[tuple[str, str]] = set()

    # ------------------------------------------------------------------------------------------------------ reading

    def listed(self) -> list[Checkpoint]:
        """All checkpoints with an intact manifest, the newest commit first; warns once of each that has none.

        A manifest is read once and remembered for as long as its file is the same.
        """
        known: dict[str, tuple[tuple[int, ...], Checkpoint]] = {}
        damaged: dict[str, str] = {}
        try:
            entries = list(os.scandir(self.folder))
        except FileNotFoundError:
            entries = []
        for entry in entries:
            name = entry.name
            if name.startswith("."):
                continue
            try:
                stat = os.stat(os.path.join(entry.path, MANIFEST))
            except OSError as error:
                if OURS.fullmatch(name) and os.path.isdir(entry.path):
                    if os.path.exists(os.path.join(entry.path, FOREIGN)):
                        self._say_once(
                            name, "is a SpeechBrain checkpoint, which this folder's listing leaves out"
                        )
                    elif isinstance(error, FileNotFoundError):
                        damaged[name] = f"it has no {MANIFEST}"
                    else:
                        damaged[name] = f"its {MANIFEST} cannot be read ({error})"
                continue
            seal = seal_of(stat)
            if name in self._known and self._known[name][0] == seal:
                known[name] = self._known[name]
                continue
            try:
                known[name] = seal, manifest.read(Path(entry.path))
            except CheckpointError as error:
                if os.path.isdir(entry.path):  # and was not deleted by its run in this very moment
                    damaged[name] = str(error)
        for name, reason in damaged.items():
            self._say_once(name, f"is skipped: {reason}")
        if known.keys() != self._known.keys() or any(
            known[name][0] != self._known[name][0] for name in known
        ):
            self._unwritten = None
        self._known, self.damaged, self._scanned = known, damaged, True
        self._last_commit = max(
            self._last_commit,
            _LAST_COMMITS.get(
                os.path.realpath(self.folder), 0
            ),  # one that is damaged or gone by now has had it
            *(checkpoint.commit for _, checkpoint in known.values()),
        )
        return self.known()

    def known(self) -> list[Checkpoint]:
        """As `listed`, without looking at the folder again: what the last look and this process's own commits say."""
        if not self._scanned or _LAST_COMMITS.get(os.path.realpath(self.folder), 0) > self._last_commit:
            return self.listed()
        found = [checkpoint for _, checkpoint in self._known.values()]
        return sorted(found, key=lambda c: (c.commit, c.time, c.path.name), reverse=True)

    def keep_journal(self, anew: bool = False) -> None:
        """Brings ``records.jsonl`` up to what is known: a new commit is one line more, all else is one step.

        To write all lines at each of a thousand saves would make the last ones slower than the first. A line that is
        torn is seen as such, and read from its manifest.

        Args:
            anew: Whether the file is known to be out of date, whatever this process wrote last.

        Raises:
            OSError: The disk refused; what is there is right, as far as it goes.
        """
        new, self._unwritten = self._unwritten, None  # if something fails, nobody knows what is there
        if new is None or anew:
            if self._known or os.path.exists(self.folder / RECORDS):
                self._rewrite_journal(to_lines(self._known.values()))
        elif new:
            self._append_to_journal(to_lines(self._known[name] for name in new))
        self._unwritten = []

    def _append_to_journal(self, lines: bytes) -> None:
        try:
            fd = self._disk.open_end(self.folder / RECORDS)
        except FileNotFoundError:  # somebody tidied up
            self._rewrite_journal(to_lines(self._known.values()))
            return
        try:
            rest = memoryview(lines)
            while rest:
                rest = rest[self._disk.write(fd, rest) :]
        finally:
            self._disk.close(fd)

    def _rewrite_journal(self, lines: bytes) -> None:
        beside = self.folder / f"{WRITING}{_process_mark()}"
        try:
            with SummedFile(beside, self._disk, synced=False) as file:
                file.write(lines)
            self._disk.rename(beside, self.folder / RECORDS)
        except OSError:
            try:
                self._disk.unlink(beside)
            except OSError:  # the first error is the one to tell; a later run sweeps
                pass
            raise

    @staticmethod
    def check_sizes(checkpoint: Checkpoint) -> None:
        """Raises a DamagedCheckpointError when a file is missing or has another size; reads no content."""
        for name, expected in checkpoint.files.items():
            try:
                stat = os.stat(checkpoint.path / name)
            except OSError as error:
                missing = isinstance(error, FileNotFoundError)
                raise DamagedCheckpointError(
                    f"its {name} is missing" if missing else f"its {name} cannot be read ({error})"
                ) from error
            if stat.st_size != expected.size:
                raise DamagedCheckpointError(
                    f"its {name} has {stat.st_size} bytes and was written with {expected.size}"
                )

    @staticmethod
    def check_sums(checkpoint: Checkpoint, files: tuple[str, ...]) -> None:
        """Raises a DamagedCheckpointError when the content of one of `files` is not what was written."""
        for name in files:
            try:
                found = sha256_of(checkpoint.path / name)
            except OSError as error:
                raise DamagedCheckpointError(f"its {name} cannot be read ({error})") from error
            if found != checkpoint.files[name].sha256:
                raise DamagedCheckpointError(f"its {name} is not what was written (its sum differs)")

    def _say_once(self, name: str, what: str) -> None:
        if (name, what) not in self._said:
            self._said.add((name, what))
            logger.warning("the checkpoint %s %s", self.folder / name, what)

    # ------------------------------------------------------------------------------------------------------ writing

    @contextmanager
    def draft(self) -> Iterator[Draft]:
        """A temporary folder to write a checkpoint into; removed when left without a commit."""
        draft = self.open_draft()
        try:
            yield draft
        finally:
            self.close_draft(draft)

    def make_ready(self) -> None:
        """Makes the folder where it is missing, before there is work that could be lost.

        Raises:
            CheckpointError: It cannot be made, or not be written to. Of a disk that is full the saves will tell.
        """
        try:
            make_folder(self.folder, self._disk)
            if not os.access(self.folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "it cannot be written to", os.fspath(self.folder))
        except OSError as error:
            if error.errno in _NO_PLACE:
                raise _no_place(self.folder, error) from error

    def open_draft(self) -> Draft:
        """A temporary folder to write a checkpoint into; for one that outlives the function which opens it."""
        make_folder(self.folder, self._disk)
        path = self.folder / f"{WRITING}{_process_mark()}"
        self._disk.make_folder(path)
        return Draft(path, self._disk)

    def close_draft(self, draft: Draft) -> None:
        """Removes it unless it was committed."""
        if draft.committed is not None:
            return
        try:
            remove_tree(draft.path, self._disk)
        except OSError as error:  # what stopped the draft is the error to tell; a later run sweeps
            logger.warning("the unfinished checkpoint %s could not be removed (%s)", draft.path, error)

    def commit(self, draft: Draft, checkpoint: Checkpoint, stem: str) -> Checkpoint:
        """Makes a draft a checkpoint: from the return on it survives a power cut, until then there is nothing of it.

        Args:
            draft: With all its files.
            checkpoint: What the manifest is to say; path, commit number and files are filled in here.
            stem: The folder's name; "-2", "-3", … is added when it is taken.
        """
        if not self._scanned:
            self.listed()
        checkpoint = replace(checkpoint, commit=self.next_commit(), files=dict(draft.files))
        with SummedFile(draft.path / MANIFEST, self._disk) as file:
            file.write(manifest.to_bytes(checkpoint))
        self._disk.fsync_dir(draft.path)
        stat = os.stat(draft.path / MANIFEST)
        # Before the rename: interrupted in between, a number is left out, never used twice.
        self._last_commit = _LAST_COMMITS[os.path.realpath(self.folder)] = checkpoint.commit
        final = self._rename_to_free(draft.path, stem)
        draft.committed = final
        checkpoint = checkpoint.at(final)
        self._known[final.name] = seal_of(stat), checkpoint
        if self._unwritten is not None:
            self._unwritten.append(final.name)
        self._disk.fsync_dir(self.folder)
        return checkpoint

    def begin_again(self, draft: Draft) -> None:
        """Makes a draft what it was before a try that failed; what somebody else wrote, and cannot write again, stays.

        A try that failed in its very last call, the sync of the folder, has left a checkpoint that may or may not
        survive a power cut: it is made a draft again.
        """
        if draft.committed is not None:
            self._unwritten = None
            self._disk.rename(draft.committed, draft.path)
            self._known.pop(draft.committed.name, None)
            draft.committed = None
        draft.begin_again()

    def free_name(self, stem: str) -> str:
        """The name that a commit under `stem` gets if nothing else comes in between."""
        number, name = 1, stem
        while os.path.lexists(self.folder / name):
            number += 1
            name = f"{stem}-{number}"
        return name

    def next_commit(self) -> int:
        """The number that the next commit will have."""
        if not self._scanned:
            self.listed()
        return max(self._last_commit, _LAST_COMMITS.get(os.path.realpath(self.folder), 0)) + 1

    def _rename_to_free(self, source: Path, stem: str) -> Path:
        while True:
            target = self.folder / self.free_name(stem)
            try:
                self._disk.rename(source, target)
            except OSError:
                if not os.path.lexists(target):
                    raise
                continue  # another process took the name in this very moment
            return target

    def rename(self, checkpoint: Checkpoint, stem: str) -> Checkpoint:
        """Gives a checkpoint another folder name, or leaves it where it is when that is taken."""
        target = self.folder / stem
        if checkpoint.path == target:
            return checkpoint
        known = self._known.get(stem)
        if known is not None and known[1].commit == checkpoint.commit:  # a try before got as far as that
            self._disk.fsync_dir(self.folder)
            return known[1]
        if os.path.lexists(target):
            return checkpoint
        self._disk.rename(checkpoint.path, target)
        self._unwritten = None
        seal, _ = self._known.pop(checkpoint.path.name)
        self._known[target.name] = seal, checkpoint.at(target)
        self._disk.fsync_dir(self.folder)
        return checkpoint.at(target)

    def set_aside(self) -> Path | None:
        """Moves all checkpoints into a folder of their own inside this one; None where there are none."""
        found = self.listed()
        if not found:
            return None
        number = next(n for n in itertools.count(1) if not os.path.lexists(self.folder / f"{FORMER}.{n}"))
        former = self.folder / f"{FORMER}.{number}"
        self._disk.make_folder(former)
        self._unwritten = None
        for checkpoint in found:
            self._disk.rename(checkpoint.path, former / checkpoint.path.name)
            self._known.pop(checkpoint.path.name, None)
        self._disk.fsync_dir(former)
        self._disk.fsync_dir(self.folder)
        return former

    def delete(self, checkpoint: Checkpoint) -> None:
        """Removes a checkpoint of this folder; no error when it is gone, and another one may have its name by now."""
        if checkpoint.path.parent != self.folder:
            raise CheckpointError(
                f"{checkpoint.path} is not in {self.folder}; a store deletes only what is its own"
            )
        try:
            there = manifest.read(checkpoint.path)
        except CheckpointError:  # gone, or damaged, and to be let go all the same
            there = checkpoint
        if (there.commit, there.time) != (checkpoint.commit, checkpoint.time):
            return
        self._unwritten = None
        out = self.folder / f"{DELETING}{_process_mark()}"
        try:
            self._disk.rename(checkpoint.path, out)
        except FileNotFoundError:
            self._known.pop(checkpoint.path.name, None)
            return
        self._known.pop(checkpoint.path.name, None)
        self._disk.fsync_dir(self.folder)
        try:
            remove_tree(out, self._disk)
        except (
            OSError
        ) as error:  # it is no checkpoint any more; on some network drives an open file stays for a while
            logger.warning("%s could not be removed entirely (%s); a later run sweeps it", out, error)

    def sweep(self) -> list[str]:
        """Removes what processes that are gone left unfinished, says so in a line, and returns the names."""
        try:
            names = [
                entry.name for entry in os.scandir(self.folder) if entry.name.startswith((WRITING, DELETING))
            ]
        except FileNotFoundError:
            return []
        except OSError as error:
            if error.errno in _NO_PLACE:
                raise _no_place(self.folder, error) from error
            raise
        swept = []
        for name in sorted(names):
            mark = name.removeprefix(WRITING).removeprefix(DELETING)
            if _writer_is_gone(mark, self.folder / name):
                try:
                    remove_tree(self.folder / name, self._disk)
                except OSError as error:  # it takes space and is in nobody's way
                    logger.warning("%s, left by a killed process, could not be removed (%s)", name, error)
                    continue
                swept.append(name)
        if swept:
            logger.info(
                "removed %d unfinished checkpoint%s in %s, of a process that ended while it wrote: %s",
                len(swept), "s" if len(swept) > 1 else "", self.folder, ", ".join(swept),
            )  # fmt: skip
        return swept


# ------------------------------------------------------------------------------------------ whose temporary is this?


def _process_mark() -> str:
    """Says who writes: process, its start (a number is given out again after a while), something random, machine."""
    # os.urandom and not `random`: saving must not move the generators of the run.
    return f"{os.getpid()}-{_started(os.getpid())}-{os.urandom(4).hex()}-{platform.node() or 'unknown'}"


def _started(pid: int) -> str:
    """When a process started, in the kernel's ticks; "0" where the system does not say, "" when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "" if Path("/proc/self/stat").exists() else "0"
    except OSError:
        return "0"
    fields = text.rpartition(")")[2].split()  # the name before it, in parentheses, may hold anything
    return "" if fields[0] in "ZX" else fields[19]  # a zombie writes no more


def _writer_is_gone(mark: str, path: Path) -> bool:
    """Whether the process that made a temporary is known to be gone. In doubt: no."""
    parts = mark.split("-", 3)
    if len(parts) < 4 or not parts[0].isdigit():
        return False  # not a name that we give
    pid, started, _, machine = parts
    if machine != (platform.node() or "unknown"):
        return _idle_seconds(path) > IDLE_SECONDS
    if os.name == "nt":  # os.kill would end the process there
        return int(pid) != os.getpid() and _idle_seconds(path) > IDLE_SECONDS
    try:
        os.kill(int(pid), 0)  # sends nothing; it only asks whether there is such a process
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return _started(int(pid)) != started


def _idle_seconds(path: Path) -> float:
    """Seconds since something in a folder was last written."""
    newest = 0.0
    for place in (path, *path.rglob("*")):
        try:
            newest = max(newest, place.lstat().st_mtime)
        except FileNotFoundError:
            continue
    return time.time() - newest
