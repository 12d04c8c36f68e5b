"""``brainlib ckpt``: list, show, verify and average checkpoints. Nothing here changes a folder of checkpoints."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brainlib.checkpoint import manifest
from brainlib.checkpoint.averaging import check_average, record_of_average, write_average
from brainlib.checkpoint.errors import CheckpointError, DamagedCheckpointError
from brainlib.checkpoint.journal import Record, read_records
from brainlib.checkpoint.manifest import MANIFEST, Checkpoint
from brainlib.checkpoint.retention import by_metric, rank, require_metric
from brainlib.checkpoint.store import OURS, Store
from brainlib.checkpoint.weights import nearby
from brainlib.common.counted import counted
from brainlib.common.errors import quoted
from brainlib.common.plain import to_json

__all__ = ["add_to"]

WITHOUT_METRICS = frozenset({"timed", "signal", "error"})  # as find_checkpoints leaves them out


def add_to(rooms: Any) -> None:
    """Add ``ckpt`` and its commands to the parser's subcommands."""
    room = rooms.add_parser("ckpt", help="checkpoints: ls, show, verify, average", description=__doc__)
    commands = room.add_subparsers(metavar="ls|show|verify|average", required=True)

    ls = _command(commands, "ls", _ls, "the checkpoints of a folder, the newest first")
    ls.add_argument("folder", type=Path, metavar="FOLDER", help="a folder of checkpoints")

    show = _command(commands, "show", _show, "what a checkpoint says about itself")
    show.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="the folder of one checkpoint, or a file that average wrote",
    )

    verify = _command(commands, "verify", _verify, "read every file and compare its sum")
    verify.add_argument(
        "path", type=Path, metavar="PATH", help="one checkpoint, all of a folder, or a file of average"
    )

    average = _command(
        commands, "average", _average, "write the mean of several checkpoints' weights to a file"
    )
    average.add_argument("folder", type=Path, metavar="FOLDER", help="a folder of checkpoints")
    average.add_argument(
        "--num", type=int, required=True, metavar="N", help="how many: the best, or the newest"
    )
    best = average.add_mutually_exclusive_group()
    best.add_argument(
        "--max_key", "--max-key", metavar="KEY", help="the metric of which the largest are best"
    )
    best.add_argument(
        "--min_key", "--min-key", metavar="KEY", help="the metric of which the smallest are best"
    )
    average.add_argument("--name", default="model", help="the object in the checkpoints (default: model)")
    average.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="a new file: a state dict"
    )


def _command(commands: Any, name: str, run: Any, told: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=told, description=told[0].upper() + told[1:] + "."
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    parser.set_defaults(run=run)
    return parser


# -------------------------------------------------------------------------------------------------------- commands


def _ls(given: argparse.Namespace) -> int:
    if given.json:
        return _ls_json(given.folder)
    folder = _folder(given.folder)
    records = read_records(folder)
    # The journal knows of what is intact alone. Where there is more, the manifests are read, which takes longer.
    broken = _look(folder)[1] if _more_than(records, folder) else {}
    broken.update({record.path.name: wrong for record in records if (wrong := _wrong_size(record))})
    if not records and not broken:
        print(f"there are no checkpoints in {given.folder}{nearby(given.folder)}")
        return 0
    rows: list[tuple[str, ...]] = [
        ("commit", "folder", "reason", "epoch", "updates", "size", "saved at", "metrics")
    ]
    rows += [_row(record) for record in records]
    _print_table(rows)
    for name, reason in broken.items():
        print(f"damaged: {name}: {reason}")
    return int(bool(broken))


def _ls_json(folder: Path) -> int:
    """All that the manifests say."""
    found, broken = _look(folder)
    entries = [{**_entry(c), "damaged": _wrong_sizes(c)} for c in found]
    entries += [{"path": str(folder / name), "damaged": reason} for name, reason in broken.items()]
    print(to_json(entries, indent=1))
    return int(any(entry["damaged"] for entry in entries))


def _show(given: argparse.Namespace) -> int:
    if given.checkpoint.is_file():
        return _show_average(given)
    checkpoint = _read(given.checkpoint)
    wrong = _wrong_sizes(checkpoint)
    if given.json:
        print(to_json({**_entry(checkpoint), **_details(checkpoint), "damaged": wrong}, indent=1))
        return int(wrong is not None)
    entry = _entry(checkpoint)
    for key in (
        "path",
        "commit",
        "reason",
        "snapshot_of",
        "number",
        "name",
        "end_of_epoch",
        "saved_at",
        "world_size",
    ):
        if key in ("snapshot_of", "number") and checkpoint.snapshot_of is None:
            continue
        print(f"{key.replace('_', ' ')}: {_word(entry[key])}")
    print(f"best means: {' '.join(checkpoint.criterion) if checkpoint.criterion else 'not said'}")
    for title, values in (
        ("counters", checkpoint.counters),
        ("meta", checkpoint.meta),
        ("environment", checkpoint.environment),
    ):
        print(f"{title}:" if values else f"{title}: none")
        for key, value in values.items():
            print(f"  {key}: {_word(value)}")
    print("objects:" if checkpoint.recoverables else "objects: none")
    for name, saved in checkpoint.recoverables.items():
        size = sum(checkpoint.files[file].size for file in saved.files)
        print(f"  {name}: {saved.kind}, {saved.class_name}, {saved.path}, {_bytes(size)}")
    if wrong:
        print(f"damaged: {wrong}")
    return int(wrong is not None)


def _show_average(given: argparse.Namespace) -> int:
    record, wrong = _average_at(given.checkpoint), None
    try:
        check_average(given.checkpoint, record)
    except DamagedCheckpointError as error:
        wrong = str(error)
    if given.json:
        print(to_json({"path": str(given.checkpoint), **record, "damaged": wrong}, indent=1))
        return int(wrong is not None)
    print(f"path: {_word(str(given.checkpoint))}")
    print(f"the mean of: {_word(record['name'])}")
    print(f"chosen by: {' '.join(map(str, record['order'])) if record['order'] else 'being the newest'}")
    print("parents:")
    for parent in record["parents"]:
        print(f"  commit {parent['commit']}: {_word(parent['path'])}, {_word(parent['meta'])}")
        for file, total in parent["sums"].items():
            print(f"    {_word(file)}: sha256 {total}")
    if wrong:
        print(f"damaged: {wrong}")
    return int(wrong is not None)


def _verify(given: argparse.Namespace) -> int:
    broken: dict[str, str] = {}
    if given.path.is_file():
        return _verify_average(given)
    if (given.path / MANIFEST).exists() or _is_torn(given.path):
        found = [_read(given.path)]
    else:
        found, broken = _look(given.path)
        if not found and not broken:
            raise CheckpointError(f"there is nothing to verify in {given.path}{nearby(given.path)}")
    results: dict[str, str | None] = {str(given.path / name): reason for name, reason in broken.items()}
    for checkpoint in found:
        results[str(checkpoint.path)] = _wrong_sums(checkpoint)
        if not given.json:  # told one by one: a folder takes as long as its bytes take to read
            print(f"{checkpoint.path}: {results[str(checkpoint.path)] or 'intact'}", flush=True)
    if given.json:
        print(to_json([{"path": path, "damaged": reason} for path, reason in results.items()], indent=1))
    else:
        for name, reason in broken.items():
            print(f"{given.path / name}: {reason}")
        bad = sum(reason is not None for reason in results.values())
        print(f"{len(results) - bad} intact, {bad} damaged")
    return int(any(results.values()))


def _verify_average(given: argparse.Namespace) -> int:
    record, wrong = _average_at(given.path), None
    try:
        check_average(given.path, record)
    except DamagedCheckpointError as error:
        wrong = str(error)
    if given.json:
        print(to_json([{"path": str(given.path), "damaged": wrong}], indent=1))
    else:
        print(f"{given.path}: {wrong or 'intact'}\n{int(not wrong)} intact, {int(bool(wrong))} damaged")
    return int(bool(wrong))


def _average(given: argparse.Namespace) -> int:
    if given.num < 1:
        raise CheckpointError(f"--num is {given.num}; give how many checkpoints to average, at least 1")
    found = [c for c in _look(given.folder)[0] if c.reason not in WITHOUT_METRICS]
    key, order = given.max_key or given.min_key, "max" if given.max_key else "min"
    if key and found:
        require_metric(key, found)
        found = rank(found, by_metric(key, order))
    if len(found) < given.num:
        told = f" with a number as {key!r}" if key else ""
        raise CheckpointError(
            f"--num asks for {given.num}, and there {'is' if len(found) == 1 else 'are'} "
            f"{counted(len(found), 'checkpoint')}{told} in {given.folder}"
            + (
                ". A run keeps several where num_snapshots=N, a Snapshot or save_and_keep_only tells it to"
                if found
                else nearby(given.folder)
            )
        )
    parents = found[: given.num]
    for parent in parents:
        if wrong := _wrong_sizes(parent):
            raise DamagedCheckpointError(f"{parent.path} is no intact checkpoint: {wrong}")
    record = write_average(parents, given.name, given.output, order=(order, key) if key else None)
    if given.json:
        print(to_json({"output": str(given.output), **record}, indent=1))
    else:
        print(f"wrote {given.output}, the mean of {given.name!r} over {quoted(p.path.name for p in parents)}")
    return 0


# -------------------------------------------------------------------------------------------------------- looking


def _folder(folder: Path) -> Path:
    """A folder of checkpoints, absolute."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder; give a folder of checkpoints, such as results/save")
    if (folder / MANIFEST).exists():
        raise CheckpointError(f"{folder} is one checkpoint; give the folder it is in, or use show or verify")
    return Path(os.path.abspath(folder))


def _look(folder: Path) -> tuple[list[Checkpoint], dict[str, str]]:
    """The checkpoints of a folder, the newest first, and what is wrong with those that have no good manifest."""
    store = Store(_folder(folder))
    return store.listed(), dict(store.damaged)


def _more_than(records: Sequence[Record], folder: Path) -> bool:
    """Whether there is something that is or was meant to be a checkpoint and has no record."""
    known = {record.path.name for record in records}
    return any(
        OURS.fullmatch(entry.name) or os.path.exists(f"{entry.path}/{MANIFEST}")
        for entry in list(os.scandir(folder))
        if entry.name not in known and not entry.name.startswith(".")
    )


def _wrong_size(record: Record) -> str | None:
    """What is wrong with the sizes of a checkpoint's files; its manifest is asked where their sum is not as it was."""
    try:
        if _bytes_in(record.path) == record.size:
            return None
        return _wrong_sizes(manifest.read(record.path))
    except (OSError, CheckpointError) as error:
        return str(error) if record.path.exists() else None  # its run may have let it go in this very moment


def _bytes_in(folder: Path | str) -> int:
    """The bytes of all files in a checkpoint's folder but its manifest."""
    return sum(
        _bytes_in(entry.path) if entry.is_dir() else entry.stat().st_size
        for entry in os.scandir(folder)
        if entry.name != MANIFEST
    )


def _average_at(path: Path) -> dict[str, Any]:
    record = record_of_average(path)
    if record is None:
        raise CheckpointError(
            f"{path} is a file without a record: only what average wrote has one, in {path.name}.json beside it"
        )
    return record


def _read(folder: Path) -> Checkpoint:
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder; give the folder of one checkpoint, as ls shows them")
    if not (folder / MANIFEST).exists() and not _is_torn(folder):
        inside = "; it holds checkpoints, so give one of them, as ls shows them" if _look(folder)[0] else ""
        raise CheckpointError(f"{folder} is no checkpoint: it has no {MANIFEST}{inside}")
    try:
        return manifest.read(Path(os.path.abspath(folder)))
    except DamagedCheckpointError as error:
        raise DamagedCheckpointError(f"{folder} is no intact checkpoint: {error}") from error


def _is_torn(folder: Path) -> bool:
    """Whether a folder without a manifest is one of the names that checkpoints have, beside nothing of its own."""
    if not folder.is_dir() or (folder / MANIFEST).exists():
        return False
    store = Store(Path(os.path.abspath(folder)).parent)
    store.listed()
    return Path(os.path.abspath(folder)).name in store.damaged


def _wrong_sizes(checkpoint: Checkpoint) -> str | None:
    try:
        Store.check_sizes(checkpoint)
    except DamagedCheckpointError as error:
        return str(error)
    return None


def _wrong_sums(checkpoint: Checkpoint) -> str | None:
    try:
        Store.check_sizes(checkpoint)
        Store.check_sums(checkpoint, tuple(checkpoint.files))
    except DamagedCheckpointError as error:
        return str(error)
    return None


# -------------------------------------------------------------------------------------------------------- telling


def _entry(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "path": str(checkpoint.path),
        "commit": checkpoint.commit,
        "reason": checkpoint.reason,
        "snapshot_of": checkpoint.snapshot_of,
        "number": checkpoint.number,
        "name": checkpoint.name,
        "end_of_epoch": checkpoint.end_of_epoch,
        "counters": checkpoint.counters,
        "meta": checkpoint.meta,
        "criterion": checkpoint.criterion,
        "time": checkpoint.time,
        "saved_at": _date(checkpoint.time),
        "world_size": checkpoint.world_size,
        "size": _size(checkpoint),
    }


def _details(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "environment": checkpoint.environment,
        "objects": {
            name: {"kind": saved.kind, "class": saved.class_name, "path": saved.path, "files": saved.files}
            for name, saved in checkpoint.recoverables.items()
        },
        "files": {
            name: {"size": file.size, "sha256": file.sha256} for name, file in checkpoint.files.items()
        },
    }


def _row(record: Record) -> tuple[str, ...]:
    numbers = {key: value for key, value in record.metrics.items() if not isinstance(value, bool)}
    return (
        str(record.commit),
        record.path.name,
        _made_by(record),
        "-" if record.epoch is None else str(record.epoch),
        "-" if record.iteration is None else str(record.iteration),
        _bytes(record.size),
        _date(record.time),
        ", ".join(f"{key} {value:.6g}" for key, value in numbers.items()) or "-",
    )


def _made_by(record: Record) -> str:
    """Why it was made; of a Snapshot also which one, and by which, since that is who lets it go."""
    if record.snapshot_of is None:
        return record.reason
    if record.reason == "error":
        return f"error, by {_word(record.snapshot_of)}"
    return f"{record.reason} {record.number} of {_word(record.snapshot_of)}"


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _size(checkpoint: Checkpoint) -> int:
    return sum(file.size for file in checkpoint.files.values())


def _bytes(number: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _word(value: Any) -> str:
    """A value on one line: a name may hold what would be an escape sequence to the terminal."""
    text = value if isinstance(value, str) else to_json(value)
    return text if text.isprintable() else repr(text)
