"""metrics.jsonl: one JSON object a line, for programs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from brainlib.common.errors import quoted
from brainlib.common.lines import append_line
from brainlib.common.logs import logger
from brainlib.common.plain import from_json, to_json
from brainlib.loggers.base import Groups, Stats, TrainLogger

__all__ = ["JsonlLogger", "read_metrics"]

OWN_KEYS = ("train", "valid", "test", "time")


class JsonlLogger(TrainLogger):
    """Appends one JSON object to a file each time it is told something.

    The object holds the meta values at its top, the stats under "train", "valid" and "test", and under "time" the
    seconds since 1970. It is strict JSON: NaN and the infinities are the texts "nan", "inf" and "-inf", which
    `read_metrics` turns back into numbers.

    Args:
        path: the file, usually ``metrics.jsonl`` in the folder of the experiment; made, with its folder, at the first
            line.
        clock: a function that returns seconds since 1970; tests pass their own.

    Raises:
        ValueError: when a meta value is called "train", "valid", "test" or "time".

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log = JsonlLogger(f"{folder}/metrics.jsonl", clock=lambda: 0.0)
        ...     log.log_stats({"epoch": 1}, train_stats={"loss": float("nan")})
        ...     print(Path(folder, "metrics.jsonl").read_text(), end="")
        {"epoch": 1, "train": {"loss": "nan"}, "time": 0.0}
    """

    def __init__(self, path: str | os.PathLike[str], *, clock: Callable[[], float] = time.time) -> None:
        self.path = Path(path)
        self._clock = clock

    def write(self, meta: Stats, groups: Groups) -> None:
        """Append the object."""
        if taken := [key for key in meta if key in OWN_KEYS]:
            raise ValueError(
                f"stats_meta has the keys {quoted(taken)}, which {self.path.name} uses itself; its own keys are "
                f"{quoted(OWN_KEYS)}. Give yours another name."
            )
        append_line(self.path, to_json({**meta, **groups, "time": round(self._clock(), 3)}))


def read_metrics(path: str | os.PathLike[str], merge_by: str | Sequence[str] = ()) -> list[dict[str, Any]]:
    """The rows of a ``metrics.jsonl``, oldest first.

    A line that is not whole (the process died while it wrote) is left out, with a warning.

    Args:
        path: the file.
        merge_by: meta keys that tell rows apart, such as "epoch". Rows that agree in all of them become one, in the
            place of the first; where they have a value in common, the later one counts. This joins what several callers
            logged about an epoch, and an epoch that was logged again because the run was cut before it was saved. Rows
            without these keys are kept as they are.

    Raises:
        FileNotFoundError: when there is no such file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log = JsonlLogger(f"{folder}/metrics.jsonl", clock=lambda: 0.0)
        ...     log.log_stats({"epoch": 1}, train_stats={"loss": 2.0})
        ...     log.log_stats({"epoch": 1}, valid_stats={"loss": 3.0})
        ...     read_metrics(log.path, merge_by="epoch")
        [{'epoch': 1, 'train': {'loss': 2.0}, 'time': 0.0, 'valid': {'loss': 3.0}}]
    """
    path = Path(path)
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = from_json(line)
        except ValueError:  # also what is not UTF-8
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            logger.warning("%s: line %d is not whole and is left out", path, number)
    keys = (merge_by,) if isinstance(merge_by, str) else tuple(merge_by)
    return _merged(rows, keys) if keys else rows


def _merged(rows: list[dict[str, Any]], keys: tuple[str, ...]) -> list[dict[str, Any]]:
    merged: list[dict[str, Any]] = []
    places: dict[str, int] = {}
    for row in rows:
        identity = to_json([row.get(key) for key in keys])
        if not all(key in row for key in keys):
            merged.append(row)
        elif identity not in places:
            places[identity] = len(merged)
            merged.append(row)
        else:
            target = merged[places[identity]]
            for key, value in row.items():
                both = isinstance(value, dict) and isinstance(target.get(key), dict)
                target[key] = {**target[key], **value} if both else value
    return merged
