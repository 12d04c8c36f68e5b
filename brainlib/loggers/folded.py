"""What loggers have in common that show points over an axis and must show each once, also of a run that was cut.

Each row is noted in a file of its own beside what is shown. The notes lose nothing; what is shown follows them.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

from brainlib.attempt import Attempt, Whereabouts, surviving, told_of
from brainlib.loggers.base import Groups, Stats, TrainLogger
from brainlib.loggers.jsonl import JsonlLogger, read_metrics

__all__ = ["ROWS", "FoldedLogger", "leaves", "need", "scalars"]

ROWS = "rows.jsonl"

Row = dict[str, Any]  # "x", "meta", "groups", "time", and "run" where it was logged in one


class FoldedLogger(TrainLogger):
    """Notes rows and shows those that stand. A variant says how: `_show`, and `_begin_anew` where some stand no more.

    The axis is the meta value "step" if there is one, else "epoch" (or what begins with it, such as "epoch loaded"),
    so that a resumed run goes on where it was; else the number of the call. It never runs backwards: where the value
    of a run begins anew (the epochs of a second fit), the axis goes on behind what it had reached.

    Args:
        notes: the file of the notes; made, with its folder, at the first row.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> class Points(FoldedLogger):
        ...     def _show(self, row):
        ...         print(row["x"], scalars(row))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Points(Path(folder, "rows.jsonl")).log_stats({"epoch": 3}, train_stats={"loss": 0.5})
        3 {'epoch': 3.0, 'loss/train': 0.5}
    """

    notes_all = True  # whether rows are noted, too, that were logged outside of a run: these always stand

    def __init__(self, notes: str | os.PathLike[str]) -> None:
        self._rows = JsonlLogger(notes)
        # Whose rows are shown, and whether it was known whence it goes on.
        self._shown: tuple[Attempt, bool] | None = None
        self._calls = 0
        self._axes: dict[str, tuple[int, int]] = {}  # name → the last value, and the place where it stands

    def write(self, meta: Stats, groups: Groups) -> None:
        """Note the row and show it, so that a run which is killed has it."""
        here = self._rows.whereabouts()
        if here is not None and not self._stands(here):
            return
        x = self._place(meta, here is not None)
        self._calls += 1
        row: Row = {"x": x, "meta": meta, "groups": groups}
        if self.notes_all or here is not None:
            self._rows.write(row, {})
        self._show(row)

    def noted(self) -> list[Row]:
        """The rows that stand."""
        return self._read(superseded=False)

    def _read(self, superseded: bool) -> list[Row]:
        path = self._rows.path
        rows = read_metrics(path, superseded=superseded) if path.exists() else []
        rows = [row for row in rows if _is_whole(row)]
        return [row for row in rows if not superseded or "run" not in row or told_of(row["run"]) is not None]

    def _show(self, row: Row) -> None:
        """Show one row more; "time" is in it where it was logged before."""
        raise NotImplementedError

    def _begin_anew(self, kept: list[Row], gone: list[Row]) -> None:
        """Let what is shown be `kept`, without `gone`."""

    def _stands(self, here: Whereabouts) -> bool:
        """Whether what is logged now is to be shown; it is not where an attempt repeats what is shown already.

        With the first row of an attempt, what it supersedes is taken off the page.
        """
        attempt = here.attempt
        if self._shown == (attempt, attempt.known) and not attempt.repeats(here.at):
            return True
        rows = self._read(superseded=True)
        told = [row.get("run") for row in rows]
        before, after = surviving(told), surviving([*told, self._rows.told(here)])
        if self._shown != (attempt, attempt.known):
            self._shown = (attempt, attempt.known)
            gone = [row for row, shown, kept in zip(rows, before, after, strict=False) if shown and not kept]
            self._fold_back([row for row, kept in zip(rows, after, strict=False) if kept], gone)
        return after[-1]

    def _fold_back(self, kept: list[Row], gone: list[Row]) -> None:
        """Go on behind the rows that are kept, on a page without those that are gone."""
        self._calls = len(kept)
        in_runs = [row for row in kept if "run" in row]
        self._axes = {name: (value, row["x"]) for row in in_runs for name, value in [self._axis(row["meta"])]}
        if gone:
            self._begin_anew(kept, gone)

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


def _is_whole(row: Row) -> bool:
    """Whether it is a row as `FoldedLogger.write` notes it, and not what a damaged disk has left of one."""
    groups = row.get("groups")
    return (
        all(type(row.get(key)) in (int, float) for key in ("x", "time"))
        and isinstance(row.get("meta"), dict)
        and isinstance(groups, dict)
        and all(isinstance(group, dict) for group in groups.values())
    )


def leaves(row: Row) -> Iterator[tuple[str, Any]]:
    """Names and single values of a row: meta values under their own name, stats as ``loss/train``.

    Lists and dicts inside are opened, their places joined by "/".

    >>> dict(leaves({"meta": {"epoch": 1}, "groups": {"valid": {"loss": 0.5, "classes": {"a": 1.0}}}}))
    {'epoch': 1, 'loss/valid': 0.5, 'classes/a/valid': 1.0}
    """
    yield from _opened(row["meta"])
    for group, stats in row["groups"].items():
        for name, value in _opened(stats):
            yield f"{name}/{group}", value


def scalars(row: Row) -> dict[str, float]:
    """Of the leaves of a row those that are numbers.

    >>> scalars({"meta": {"epoch": 1, "note": "warm"}, "groups": {}})
    {'epoch': 1.0}
    """
    return {name: float(value) for name, value in leaves(row) if isinstance(value, (bool, int, float))}


def need(package: str, cls: type, extra: str) -> None:
    """Refuse to make a logger whose package is not installed. Asked at once, not after the first epoch.

    Raises:
        ImportError: it is not; the message names the extra to install.

    >>> need("no_such_package", FoldedLogger, "loggers")
    Traceback (most recent call last):
    ...
    ImportError: FoldedLogger needs no_such_package: pip install 'brainlib[loggers]'
    """
    spec = importlib.util.find_spec(package)
    if (
        spec is None or spec.origin is None
    ):  # a folder of that name where the script was started is no package
        raise ImportError(f"{cls.__name__} needs {package}: pip install 'brainlib[{extra}]'")


def _opened(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, (dict, list)):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _opened(entry, f"{name}/{key}" if name else str(key))
    else:
        yield name, value
