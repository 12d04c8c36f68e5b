"""``records.jsonl``: one line a checkpoint, so that thousands are listed without reading thousands of manifests.

It is a cache and nothing else: what a line says counts only while the manifest it was made from is the same file, and
what has no line is read from its manifest. So a journal that is torn, altered, out of date or missing costs time and
never a checkpoint. It is not synced: it can be made anew at any time.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from brainlib.checkpoint import manifest
from brainlib.checkpoint.beside import settled
from brainlib.checkpoint.errors import CheckpointError
from brainlib.checkpoint.manifest import MANIFEST, Checkpoint

__all__ = ["RECORDS", "Record", "Seal", "from_journal", "read_records", "record_of", "seal_of", "to_lines"]

RECORDS = "records.jsonl"
LARGEST_JOURNAL = 1 << 28  # bytes, about a million checkpoints; a larger one is not read into memory
Seal = tuple[
    int, ...
]  # of a manifest: when it was written, its size and its inode; another file has another seal


@dataclass(frozen=True)
class Record:
    """What a listing tells of a checkpoint.

    Args:
        path: Its folder.
        commit: Its place in the order of all commits.
        time: Seconds since 1970 by the clock of that machine; nothing is decided by it.
        iteration: The number of updates; None without a trainer.
        epoch: The number of closed epochs of the fit; None without a trainer.
        reason: Why it was made, one of `manifest.REASONS`.
        name: The name it was saved under; None for an unnamed one.
        size: The bytes of its files together, without the manifest.
        metrics: The numbers in its metadata.
        snapshot_of: The name of the `Snapshot` that made it; None for all others.
        number: Which one of that `Snapshot` it is, from 1; else 0.

    >>> import tempfile, torch
    >>> from brainlib.checkpoint import Checkpointer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpointer = Checkpointer(folder, {"model": torch.nn.Linear(2, 1)})
    ...     _ = checkpointer.save_checkpoint({"loss": 0.5, "remark": "warm"})
    ...     [(record.path.name, record.metrics) for record in checkpointer.records()]
    [('commit-00000001', {'loss': 0.5})]
    """

    path: Path
    commit: int
    time: float
    iteration: int | None
    epoch: int | None
    reason: str
    name: str | None
    size: int
    metrics: dict[str, float] = field(compare=False)
    snapshot_of: str | None = None
    number: int = 0


def record_of(checkpoint: Checkpoint) -> Record:
    """What a listing tells of it."""
    return Record(
        path=checkpoint.path,
        commit=checkpoint.commit,
        time=checkpoint.time,
        iteration=checkpoint.counters.get("optimizer_step"),
        epoch=checkpoint.counters.get("epoch"),
        reason=checkpoint.reason,
        name=checkpoint.name,
        size=sum(file.size for file in checkpoint.files.values()),
        metrics={key: value for key, value in checkpoint.meta.items() if _is_number(value)},
        snapshot_of=checkpoint.snapshot_of,
        number=checkpoint.number,
    )


def _is_number(value: object) -> bool:
    """One that others can compare: a whole number of hundreds of digits is none."""
    return isinstance(value, float) or (isinstance(value, int) and value.bit_length() < 1000)


def to_line(checkpoint: Checkpoint, seal: Seal) -> bytes:
    """A line of the journal. Numbers that JSON does not have are strings ("nan"), as in ``metrics.jsonl``."""
    record = record_of(checkpoint)
    text = json.dumps(
        {
            "time": record.time,
            "path": record.path.name,
            "iteration": record.iteration,
            "epoch": record.epoch,
            "reason": record.reason,
            "snapshot_of": record.snapshot_of,
            "number": record.number,
            "metrics": {
                key: value if not isinstance(value, float) or math.isfinite(value) else str(value)
                for key, value in record.metrics.items()
            },
            "name": record.name,
            "size": record.size,
            "commit": record.commit,
            "manifest": seal,
        },
        allow_nan=False,
    ).encode()
    rest = text[1:]
    return b'{"crc": "%08x", %s\n' % (zlib.crc32(rest), rest)


def to_lines(sealed: Iterable[tuple[Seal, Checkpoint]]) -> bytes:
    """The lines of checkpoints, the oldest first.

    Args:
        sealed: Checkpoints with the seals of their manifests.

    >>> to_lines([((1, 2, 3), Checkpoint(Path("commit-00000007"), {"loss": 0.5}, 7))])[:22]
    b'{"crc": "c80791af", "t'
    """
    return b"".join(to_line(c, seal) for seal, c in sorted(sealed, key=lambda item: item[1].commit))


def from_line(line: bytes, folder: Path) -> tuple[Seal, Record] | None:
    """What a line says; None for one that is torn or altered."""
    if line[:9] != b'{"crc": "' or line[17:20] != b'", ' or line[9:17] != b"%08x" % zlib.crc32(line[20:]):
        return None
    try:
        content = json.loads(line)
        name = content["path"]
        if name != os.path.basename(name):
            return None
        return tuple(content["manifest"]), Record(
            path=folder / name,
            commit=int(content["commit"]),
            time=float(content["time"]),
            iteration=content["iteration"],
            epoch=content["epoch"],
            reason=content["reason"],
            name=content["name"],
            size=int(content["size"]),
            metrics={
                key: float(value) if isinstance(value, str) else value
                for key, value in content["metrics"].items()
            },
            snapshot_of=content["snapshot_of"],
            number=int(content["number"]),
        )
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ):  # somebody else, or an older version, wrote it
        return None


def from_journal(folder: Path) -> tuple[list[Record], list[str]]:
    """What its lines tell of the checkpoints that are there, newest first, and the names of those without a line."""
    lines: dict[str, tuple[Seal, Record]] = {}
    try:
        with open(folder / RECORDS, "rb") as file:
            for line in file.read(LARGEST_JOURNAL).split(b"\n"):
                if found := from_line(line, folder):
                    lines[found[1].path.name] = found
    except OSError:
        pass  # a cache that is not there or cannot be read; the manifests are
    records, without_line = [], []
    try:
        names = [entry.name for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except FileNotFoundError:
        names = []
    for name in names:
        try:
            stat = os.stat(f"{folder}/{name}/{MANIFEST}")
        except OSError:
            continue
        line_of = lines.get(name)
        if line_of is not None and line_of[0] == seal_of(stat):
            records.append(line_of[1])
        else:
            without_line.append(name)
    return _newest_first(records), without_line


def read_records(folder: str | os.PathLike[str]) -> list[Record]:
    """All checkpoints of a folder that have an intact manifest, the newest first; changes nothing there.

    Args:
        folder: The folder of checkpoints.

    >>> read_records("/nowhere/yet")
    []
    """
    home = settled(folder)
    records, without_line = from_journal(home)
    if not without_line:
        return records
    for name in without_line:
        try:
            records.append(record_of(manifest.read(home / name)))
        except CheckpointError:
            continue
    return _newest_first(records)


def _newest_first(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda r: (r.commit, r.time, r.path.name), reverse=True)


def seal_of(stat: os.stat_result) -> Seal:
    """What tells a manifest's file from another one under the same name, without reading it."""
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
