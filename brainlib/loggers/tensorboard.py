"""TensorBoard event files."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from brainlib.attempt import Attempt, Whereabouts, surviving, told_of
from brainlib.common.logs import logger
from brainlib.loggers.base import Groups, Stats, TrainLogger
from brainlib.loggers.jsonl import JsonlLogger, read_metrics

__all__ = ["TensorboardLogger"]

ROWS = "rows.jsonl"
EVENTS = "events.out.tfevents."
PATIENCE_SECONDS = 5  # how far the clock of the machine before may have been ahead


class TensorboardLogger(TrainLogger):
    """Writes stats as TensorBoard scalars ``loss/train``, ``loss/valid``, …, meta values under their own name.

    The horizontal axis is the meta value "step" if there is one, else "epoch" (or what begins with it, such as "epoch
    loaded"), so that a resumed run goes on where it was; else the number of the call. It never runs backwards: where
    the value of a run begins anew (the epochs of a second fit), the axis goes on behind what it had reached.

    Points that a resumed run logs again vanish from the page. What is to be kept of a run is noted in ``rows.jsonl``
    beside the event files.

    Args:
        save_dir: the folder of the event files; made at the first write.

    Raises:
        ImportError: when tensorboard is not installed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log = TensorboardLogger(folder)
        ...     log.log_stats({"epoch": 1, "lr": 1e-3}, train_stats={"loss": 0.5})
        ...     log.close()
        ...     len(list(Path(folder).glob("events.out.tfevents.*")))
        1
    """

    def __init__(self, save_dir: str | os.PathLike[str]) -> None:
        # Asked now, not after the first epoch; imported when used.
        if importlib.util.find_spec("tensorboard") is None:
            raise ImportError("TensorboardLogger needs tensorboard: pip install 'brainlib[loggers]'")
        self.save_dir = Path(save_dir)
        self._writer: Any = None
        self._rows = JsonlLogger(self.save_dir / ROWS)
        self._shown: tuple[Attempt, bool] | None = (
            None  # whose rows the event files show, and whether it was known whence
        )
        self._calls = 0
        self._axes: dict[str, tuple[int, int]] = {}  # name → the last value, and the place where it stands

    def write(self, meta: Stats, groups: Groups) -> None:
        """Write and flush, so that a run which is killed has them."""
        here = self._rows.whereabouts()
        if here is not None and not self._stands(here):
            return
        x = self._place(meta, here is not None)
        self._calls += 1
        if here is not None:
            self._rows.write({"x": x, "meta": meta, "groups": groups}, {})
        self._show(meta, groups, x)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file and end its thread."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _stands(self, here: Whereabouts) -> bool:
        """Whether what is logged now is to be shown; it is not where an attempt repeats what is shown already.

        With the first row of an attempt, what it supersedes is taken off the page.
        """
        attempt = here.attempt
        if self._shown == (attempt, attempt.known) and not attempt.repeats(here.at):
            return True
        path = self._rows.path
        rows = [row for row in read_metrics(path, superseded=True) if _is_ours(row)] if path.exists() else []
        told = [row["run"] for row in rows]
        before, after = surviving(told), surviving([*told, self._rows.told(here)])
        if self._shown != (attempt, attempt.known):
            self._shown = (attempt, attempt.known)
            gone = [
                row["x"] for row, shown, kept in zip(rows, before, after, strict=False) if shown and not kept
            ]
            self._fold_back([row for row, kept in zip(rows, after, strict=False) if kept], gone)
        return after[-1]

    def _fold_back(self, kept: list[dict[str, Any]], gone: list[int]) -> None:
        """Go on behind the rows that are kept, on a page without those that are gone.

        A page drops everything from a step on, whatever its name and axis: what is to stay of it is written once more.
        """
        self._calls = len(kept)
        self._axes = {name: (value, row["x"]) for row in kept for name, value in [self._axis(row["meta"])]}
        if gone:
            self.close()
            self._open(purge_step=min(gone))
            for row in kept:
                if row["x"] >= min(gone):
                    self._show(row["meta"], row["groups"], row["x"], row["time"])

    def _open(self, purge_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        _wait_for_its_turn(self.save_dir)
        self._writer = SummaryWriter(str(self.save_dir), purge_step=purge_step)

    def _place(self, meta: Stats, in_a_run: bool) -> int:
        """Where on the horizontal axis; in a run it never lies before the place of the row before."""
        name, value = self._axis(meta)
        if not in_a_run:
            return value
        last, place = self._axes.get(name, (value, value))
        place += value - last if value >= last else 1
        self._axes[name] = (value, place)
        return place

    def _axis(self, meta: Stats) -> tuple[str, int]:
        whole = {name.lower(): value for name, value in meta.items() if type(value) is int}
        for name in ("step", "epoch", *sorted(whole)):
            if name in whole and (name == "step" or name.startswith("epoch")):
                return name, int(whole[name])
        return "", self._calls

    def _show(self, meta: Stats, groups: Groups, x: int, time: float | None = None) -> None:
        if self._writer is None:
            self._open()
        for name, value in _leaves(meta):
            self._add(name, value, x, time)
        for group, stats in groups.items():
            for name, value in _leaves(stats):
                self._add(f"{name}/{group}", value, x, time)

    def _add(self, tag: str, value: Any, x: int, time: float | None) -> None:
        if isinstance(value, (bool, int, float)):
            self._writer.add_scalar(tag, value, x, walltime=time)
        elif value is not None:
            self._writer.add_text(tag, str(value), x, walltime=time)


def _is_ours(row: dict[str, Any]) -> bool:
    """Whether it is a row as `TensorboardLogger.write` notes it, and not what a damaged disk has left of one."""
    groups = row.get("groups")
    return (
        told_of(row.get("run")) is not None
        and all(type(row.get(key)) in (int, float) for key in ("x", "time"))
        and isinstance(row.get("meta"), dict)
        and isinstance(groups, dict)
        and all(isinstance(group, dict) for group in groups.values())
    )


def _wait_for_its_turn(folder: Path) -> None:
    """TensorBoard reads event files in the order of their names, which begin with the second they were made in."""
    stamps = [path.name.removeprefix(EVENTS).partition(".")[0] for path in folder.glob(f"{EVENTS}*")]
    newest = max((int(stamp) for stamp in stamps if stamp.isdigit()), default=0)
    wait = newest + 1 - time.time()
    if wait > PATIENCE_SECONDS:
        logger.warning(
            "an event file in %s was made %.0f s in the future: what is logged before then is shown in the wrong "
            "order. Set the clock.",
            folder,
            wait,
        )
    elif wait > 0:
        time.sleep(wait)


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Names and single values; lists and dicts inside are opened, their places joined by "/"."""
    if isinstance(value, (dict, list)):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(entry, f"{name}/{key}" if name else str(key))
    else:
        yield name, value
