"""metrics.jsonl: one JSON object a line, for programs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from brainlib.attempt import Attempt, Whereabouts, surviving, told_of, whereabouts
from brainlib.common.errors import quoted
from brainlib.common.lines import append_line
from brainlib.common.logs import logger
from brainlib.common.plain import from_json, to_json
from brainlib.loggers.base import Groups, Stats, TrainLogger

__all__ = ["JsonlLogger", "read_metrics"]

OWN_KEYS = ("train", "valid", "test", "time", "run", "ledger")


class JsonlLogger(TrainLogger):
    """Appends one JSON object to a file each time it is told something.

    The object holds the meta values at its top, the stats under "train", "valid" and "test", and under "time" the
    seconds since 1970. What is logged in a run of a Brain says under "run" where it belongs, so that `read_metrics` can
    leave out what a resumed run has logged anew; what is logged where an epoch closes has the ledger of that epoch
    under "ledger". It is strict JSON: NaN and the infinities are the texts "nan", "inf"
    and "-inf", which `read_metrics` turns back into numbers.

    Args:
        path: the file, usually ``metrics.jsonl`` in the folder of the experiment; made, with its folder, at the first
            line.
        clock: a function that returns seconds since 1970; tests pass their own.

    Raises:
        ValueError: when a meta value is called "train", "valid", "test", "time", "run" or "ledger".

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

    @property
    def place(self) -> str:
        """The file."""
        return str(self.path)

    def write(self, meta: Stats, groups: Groups) -> None:
        """Append the object."""
        if taken := [key for key in meta if key in OWN_KEYS]:
            raise ValueError(
                f"stats_meta has the keys {quoted(taken)}, which {self.path.name} uses itself; its own keys are "
                f"{quoted(OWN_KEYS)}. Give yours another name."
            )
        row = {**meta, **groups, "time": round(self._clock(), 3)}
        here = self.whereabouts()
        if here is not None:
            row["run"] = self.told(here)
            if here.ledger is not None:
                row["ledger"] = here.ledger
        append_line(self.path, to_json(row))

    def whereabouts(self) -> Whereabouts | None:
        """Where in a run a row belongs that is logged now."""
        return whereabouts(self.path, is_its=lambda attempt: self._number_of(attempt) > 1)

    def told(self, here: Whereabouts) -> dict[str, Any]:
        """What stands under "run" then; `surviving` reads it."""
        attempt = here.attempt
        told = {"name": attempt.name_in(self.path.parent), "attempt": self._number_of(attempt)}
        if attempt.known:
            told["from"] = attempt.origin
        return {**told, "at": here.at, "optimizer_step": here.optimizer_step}

    def _number_of(self, attempt: Attempt) -> int:
        """Which attempt of its run it is in this file, from 1."""
        path = self.path.absolute()
        if path not in attempt.numbers:
            attempt.numbers[path] = _last_attempt(path, attempt.name_in(self.path.parent)) + 1
        return attempt.numbers[path]


def read_metrics(
    path: str | os.PathLike[str], merge_by: str | Sequence[str] = (), *, superseded: bool = False
) -> list[dict[str, Any]]:
    """The rows of a ``metrics.jsonl`` that stand, oldest first.

    A run that was killed and resumed has logged again what came after the checkpoint: each row is here once, with the
    values that the run went on with. A line that is not whole (the process died while it wrote) is left out, with a
    warning. Rows that were logged outside of a Brain, or by a brainlib that did not count attempts, all stand.

    Args:
        path: the file.
        merge_by: meta keys that tell rows apart, such as "epoch". Rows of one fit that agree in all of them become one,
            in the place of the first; where they have a value in common, the later one counts. This joins what several
            callers logged about an epoch. Rows without these keys are kept as they are.
        superseded: whether the rows that no longer stand are wanted, too: every row of the file, as it stands there.
            Otherwise "attempt" and "from" are not under "run", so that only "time" and "ledger" tell the rows of a run
            that was cut from those of one that was not.

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
        row = _row(line)
        if row is not None:
            rows.append(row)
        elif line.strip():
            logger.warning("%s: line %d is not whole and is left out", path, number)
    if not superseded:
        stands = surviving([row.get("run") for row in rows])
        rows = [row for row, kept in zip(rows, stands, strict=True) if kept]
    keys = (merge_by,) if isinstance(merge_by, str) else tuple(merge_by)
    rows = _merged(rows, keys) if keys else rows
    return rows if superseded else [_without_attempt(row) for row in rows]


def _without_attempt(row: dict[str, Any]) -> dict[str, Any]:
    told = told_of(row.get("run"))
    if told is None:
        return row
    return {**row, "run": {key: value for key, value in told.items() if key not in ("attempt", "from")}}


def _row(line: bytes) -> dict[str, Any] | None:
    """The object on a line; None for one that is empty or not whole."""
    try:
        row = from_json(line)
    except (ValueError, RecursionError):  # also what is not UTF-8
        return None
    return row if isinstance(row, dict) else None


def _last_attempt(path: Path, name: str) -> int:
    """The number of the newest attempt of this run in the file; 0 when there is none."""
    if not path.exists():
        return 0
    for line in reversed(path.read_bytes().split(b"\n")):
        told = told_of((_row(line) or {}).get("run"))
        if told is not None and told["name"] == name:
            return int(told["attempt"])
    return 0


def _fit_of(row: dict[str, Any]) -> Any:
    """Run and fit that a row is about; what was logged after a fit is about that one."""
    told = told_of(row.get("run"))
    if told is None:
        return None
    fit, epoch = told["at"][:2]
    return [told["name"], fit - 1 if epoch < 0 < fit else fit]


def _merged(rows: list[dict[str, Any]], keys: tuple[str, ...]) -> list[dict[str, Any]]:
    merged: list[dict[str, Any]] = []
    places: dict[str, int] = {}
    for row in rows:
        identity = to_json([_fit_of(row), *(row.get(key) for key in keys)])
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
