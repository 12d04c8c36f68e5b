"""What a checkpoint says about itself: ``manifest.json``, written last, so that a folder without one is no checkpoint.

It holds the size and SHA-256 of every file, and its own: a torn or altered manifest is seen as such.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib.metadata
import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import torch

from brainlib.checkpoint.beside import settled
from brainlib.checkpoint.errors import CheckpointError, DamagedCheckpointError
from brainlib.checkpoint.metadata import restore_nonfinite, without_nonfinite
from brainlib.common.errors import nearest, quoted

__all__ = [
    "AUTOMATIC",
    "MANIFEST",
    "REASONS",
    "Checkpoint",
    "FileSum",
    "Saved",
    "environment",
    "from_bytes",
    "read",
    "to_bytes",
]

MANIFEST = "manifest.json"
FORMAT = "brainlib-checkpoint"
VERSION = 1  # raised when an older reader would misread what a newer writer wrote
LARGEST_MANIFEST = 1 << 26  # bytes; real ones are a few kilobytes, a larger one is not read into memory

# Why a checkpoint was made. "user": by the user's own call. "epoch" and "end": the trainer, at a closed epoch and at
# the end of fit. "timed" and "signal": the trainer, inside an epoch. "snapshot": a `Snapshot`, which looks after
# its own. "error": a snapshot of a run that failed.
REASONS = ("user", "epoch", "end", "timed", "signal", "snapshot", "error")
AUTOMATIC = (
    "epoch",
    "end",
    "timed",
    "signal",
)  # of these the newest is kept; the user's go by the user's rules


@dataclass(frozen=True)
class FileSum:
    """The size in bytes and the SHA-256 of a file.

    >>> FileSum(5, "2cf24dba").size
    5
    """

    size: int
    sha256: str


@dataclass(frozen=True)
class Saved:
    """How one object was saved.

    Args:
        kind: "module", "optimizer", …; "hook" when the object wrote its own files.
        path: Its file in the checkpoint's folder, or what its hook was given to write to.
        files: All files that belong to it, with "/" between folders.
        class_name: The object's class, for people and error messages; never used to make an object.

    >>> Saved("module", "model.pt", ("model.pt",), "torch.nn.modules.linear.Linear").kind
    'module'
    """

    kind: str
    path: str
    files: tuple[str, ...]
    class_name: str


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on the disk. Two are equal when they are the same folder and commit.

    Args:
        path: Its folder.
        meta: What the user noted at the save; nothing of ours is mixed in.
        commit: Orders the checkpoints of a folder, whatever the clock says: one more than the largest there is.
        reason: Why it was made, one of `REASONS`.
        name: The name it was saved under; None for an unnamed one.
        end_of_epoch: Whether its epoch was closed.
        counters: The trainer's counters (fit, epoch, step, optimizer_step); empty without a trainer.
        time: Seconds since 1970 by the clock of that machine; for people, nothing is decided by it.
        criterion: ("min" or "max", metric) where the save declared what "best" means.
        recoverables: How each object was saved, by name.
        files: The size and sum of every file, by its path inside the folder.
        environment: What exactness depends on: the torch build, the CPU type, the number of threads, …
        world_size: The number of processes of that run.
        snapshot_of: The name of the `Snapshot` that made it and alone may let it go; None for all others.
        number: Which one of that `Snapshot` it is, from 1, those counted that were not written; else 0.
        writer: For the Checkpointer: what `wait` asks.

    A save returns it at once and writes in the background: until `wait` returns, its folder may not be there yet, and
    `files` is empty. A copy by `copy` waits for the same write. One that was pickled before that was over looks for the
    checkpoint on the disk, since the process that has it may be another one.

    >>> import tempfile
    >>> from brainlib.checkpoint import Checkpointer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpointer = Checkpointer(folder, {"model": torch.nn.Linear(2, 1)})
    ...     checkpoint = checkpointer.save_checkpoint(meta={"loss": 0.5}).wait()
    >>> checkpoint.path.name, checkpoint.meta, checkpoint.commit, checkpoint.reason
    ('commit-00000001', {'loss': 0.5}, 1, 'user')
    """

    path: Path
    meta: dict[str, Any] = field(compare=False)
    commit: int
    reason: str = "user"
    name: str | None = None
    end_of_epoch: bool = True
    counters: dict[str, int] = field(default_factory=dict, compare=False)
    time: float = 0.0
    criterion: tuple[str, str] | None = None
    recoverables: dict[str, Saved] = field(default_factory=dict, compare=False)
    files: dict[str, FileSum] = field(default_factory=dict, compare=False)
    environment: dict[str, Any] = field(default_factory=dict, compare=False)
    world_size: int = 1
    snapshot_of: str | None = None
    number: int = 0
    writer: Callable[[], None] | None = field(default=None, compare=False, repr=False)
    # Of an instance: whether what is known only once it is written has been told.
    _is_told: ClassVar[bool] = False

    def wait(self) -> Checkpoint:
        """Returns the checkpoint itself when all of it is on the disk; at once for one that was found there.

        With several ranks the main one writes: on the others it returns at once.

        Raises:
            CheckpointError, OSError: It could not be written; what the message says holds for this very one. Or this
                is a copy that was pickled while another process wrote it, and it is not on the disk.
        """
        if self.writer is not None:
            self.writer()
        return self

    def fill(self, written: Checkpoint) -> None:
        """For the Checkpointer: takes over what is known only once it is written."""
        for name in ("path", "commit"):  # the ones that were foretold, unless another process came in between
            object.__setattr__(self, name, getattr(written, name))
        self.files.update(written.files)
        self.recoverables.update(written.recoverables)
        object.__setattr__(self, "_is_told", True)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "writer": None, "_is_told": self._is_told or self.writer is None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self._is_told:  # nobody here can be asked
            object.__setattr__(self, "writer", self._look)

    def __copy__(self) -> Checkpoint:
        return self._twin(lambda value: value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Checkpoint:
        return self._twin(lambda value: copy.deepcopy(value, memo))

    def _twin(self, copied: Callable[[Any], Any]) -> Checkpoint:
        """A copy in the same process: it waits for the same write, and then learns what came of it."""
        twin = replace(
            self,
            **{key: copied(getattr(self, key)) for key in ("meta", "counters", "environment")},
            files=dict(self.files),
            recoverables=dict(self.recoverables),
        )
        if self.writer is not None:

            def wait_and_learn() -> None:
                self.wait()
                twin.fill(self)

            object.__setattr__(twin, "writer", wait_and_learn)
            object.__setattr__(twin, "_is_told", self._is_told)
        return twin

    def _look(self) -> None:
        """For a copy that was pickled before the checkpoint was written: `wait`, as far as that is possible here."""
        settled(self.path)  # in the process that writes it there is a thread to wait for
        try:
            written = read(self.path)
        except DamagedCheckpointError as error:
            raise CheckpointError(
                f"{self.path} is not there, or not yet: {error}. This is a copy that was pickled while the checkpoint "
                "was being written, and only the process that writes it can wait for it: call wait() there, and pickle "
                "it then"
            ) from error
        if written != self:
            raise CheckpointError(
                f"{self.path} is another checkpoint (commit {written.commit}) than the one that this copy was pickled "
                f"of (commit {self.commit}): call wait() before a checkpoint is pickled"
            )
        self.fill(written)
        object.__setattr__(self, "writer", None)

    @property
    def paramfiles(self) -> dict[str, Path]:
        """The file of each object, by the object's name (SpeechBrain's word); waits for them to be written."""
        self.wait()
        return {name: self.path / saved.path for name, saved in self.recoverables.items()}

    def saved(self, name: str) -> Saved:
        """How the object `name` was saved.

        Raises:
            CheckpointError: It is not in this checkpoint; the message lists what is.
        """
        self.wait()
        if name not in self.recoverables:
            raise CheckpointError(
                f"{self.path} holds nothing named {name!r}; it holds {quoted(self.recoverables)}."
                + nearest(name, self.recoverables)
            )
        return self.recoverables[name]

    def at(self, path: Path) -> Checkpoint:
        """The same checkpoint in another place."""
        return replace(self, path=path)


def to_bytes(checkpoint: Checkpoint) -> bytes:
    """The manifest's text, its own sum included; strict JSON.

    >>> b"NaN" in to_bytes(Checkpoint(Path("a"), {"loss": float("nan")}, 1))
    False
    """
    meta, nonfinite = without_nonfinite(checkpoint.meta)
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "commit": checkpoint.commit,
        "name": checkpoint.name,
        "reason": checkpoint.reason,
        "end_of_epoch": checkpoint.end_of_epoch,
        "counters": checkpoint.counters,
        "meta": meta,
        "meta_nonfinite": nonfinite,
        "criterion": list(checkpoint.criterion) if checkpoint.criterion else None,
        "time": checkpoint.time,
        "world_size": checkpoint.world_size,
        "snapshot_of": checkpoint.snapshot_of,
        "number": checkpoint.number,
        "environment": checkpoint.environment,
        "recoverables": {
            name: {"kind": s.kind, "path": s.path, "files": list(s.files), "class": s.class_name}
            for name, s in checkpoint.recoverables.items()
        },
        "files": {name: {"size": s.size, "sha256": s.sha256} for name, s in checkpoint.files.items()},
    }
    content["sha256"] = _sum(content)
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def from_bytes(data: bytes, path: Path) -> Checkpoint:
    """The checkpoint that a manifest describes.

    Args:
        data: The manifest's bytes.
        path: The checkpoint's folder.

    Raises:
        DamagedCheckpointError: It is torn or altered.
        CheckpointError: A newer brainlib wrote it.

    >>> from_bytes(to_bytes(Checkpoint(Path("a"), {"loss": float("nan")}, 7)), Path("b")).meta
    {'loss': nan}
    >>> from_bytes(b'{"format": "brainlib-che', Path("b"))
    Traceback (most recent call last):
    brainlib.checkpoint.errors.DamagedCheckpointError: its manifest.json is torn
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpointError(f"its {MANIFEST} is torn") from error
    if not isinstance(content, dict) or content.pop("sha256", None) != _sum(content):
        raise DamagedCheckpointError(f"its {MANIFEST} is not what was written (its sum differs)")
    if content.get("format") != FORMAT:
        raise DamagedCheckpointError(f"its {MANIFEST} is of another format ({content.get('format')!r})")
    if not isinstance(content.get("version"), int):
        raise DamagedCheckpointError(f"its {MANIFEST} has no format version")
    if content["version"] > VERSION:
        raise CheckpointError(
            f"{path}: its {MANIFEST} has format version {content['version']} and this brainlib reads up to {VERSION}; "
            "a newer brainlib wrote it"
        )
    try:
        checkpoint = Checkpoint(
            path=path,
            meta=restore_nonfinite(_a(dict, content["meta"]), content["meta_nonfinite"]),
            commit=int(content["commit"]),
            reason=_a(str, content["reason"]),
            name=_a(str, content["name"], or_none=True),
            end_of_epoch=bool(content["end_of_epoch"]),
            counters={str(key): int(value) for key, value in content["counters"].items()},
            time=float(content["time"]),
            criterion=(_a(str, content["criterion"][0]), _a(str, content["criterion"][1]))
            if content["criterion"]
            else None,
            recoverables={
                name: Saved(
                    s["kind"], _inside(s["path"]), tuple(_inside(file) for file in s["files"]), s["class"]
                )
                for name, s in content["recoverables"].items()
            },
            files={
                _inside(name): FileSum(int(s["size"]), str(s["sha256"]))
                for name, s in content["files"].items()
            },
            environment=dict(content["environment"]),
            world_size=int(content["world_size"]),
            snapshot_of=_a(str, content.get("snapshot_of"), or_none=True),  # the first manifests had neither
            number=int(content.get("number", 0)),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise DamagedCheckpointError(
            f"its {MANIFEST} lacks something or holds a wrong type ({error!r})"
        ) from error
    for name, saved in checkpoint.recoverables.items():
        if not set(saved.files) <= set(checkpoint.files):
            raise DamagedCheckpointError(f"its {MANIFEST} gives no sums for the files of {name!r}")
    return checkpoint


def read(folder: Path) -> Checkpoint:
    """Reads the manifest of a checkpoint's folder.

    Raises:
        DamagedCheckpointError: There is none, or it is torn or altered.

    >>> read(Path("/nowhere"))
    Traceback (most recent call last):
    brainlib.checkpoint.errors.DamagedCheckpointError: it has no manifest.json
    """
    try:
        with open(folder / MANIFEST, "rb") as file:
            data = file.read(LARGEST_MANIFEST + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DamagedCheckpointError(f"it has no {MANIFEST}") from error
    except OSError as error:
        raise DamagedCheckpointError(f"its {MANIFEST} cannot be read ({error})") from error
    if len(data) > LARGEST_MANIFEST:
        raise DamagedCheckpointError(f"its {MANIFEST} is larger than {LARGEST_MANIFEST} bytes")
    return from_bytes(data, folder)


def _sum(content: dict[str, Any]) -> str:
    """The sum of all but the sum: sorted keys, no spaces, so that indentation and order play no part."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _a(kind: type, value: Any, or_none: bool = False) -> Any:
    """The value, if it is of the type that this brainlib writes there."""
    if isinstance(value, kind) or (or_none and value is None):
        return value
    raise TypeError(f"{value!r:.40} is no {kind.__name__}")


def _inside(name: Any) -> str:
    """A file name that stays inside the checkpoint's folder, whoever wrote the manifest."""
    pure = PurePosixPath(name)
    if not pure.parts or pure.is_absolute() or ".." in pure.parts or "\\" in name or "\0" in name:
        raise ValueError(f"{name!r} points outside the checkpoint")
    return str(name)


@functools.cache
def _versions() -> dict[str, Any]:
    try:
        own = importlib.metadata.version("brainlib")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        own = "unknown"
    return {
        "brainlib": own,
        "torch": torch.__version__,
        "torch_build": torch.version.git_version,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def environment() -> dict[str, Any]:
    """What exactness depends on and this layer knows: versions, the CPU type, the number of threads.

    >>> environment()["threads"] == torch.get_num_threads()
    True
    """
    return {**_versions(), "threads": torch.get_num_threads()}


def now() -> float:
    """The wall clock in seconds, for people."""
    return time.time()
