"""A table for spreadsheets and pandas."""

from __future__ import annotations

import csv
import io
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from brainlib.common.files import write_atomic
from brainlib.common.lines import append_line
from brainlib.loggers.folded import FoldedLogger, Row, leaves

__all__ = ["CSVLogger"]


class CSVLogger(FoldedLogger):
    """Writes a row to a CSV file each time it is told something; the columns are those of all rows.

    Columns are called ``epoch``, ``loss/train``, ``loss/valid``, …; lists and dicts have a column for each entry. A new
    column is put behind the others, and the rows above it have nothing there. Rows that a resumed run logs again are
    taken out; where a run begins from scratch in a file that is there, that file is kept under a number:
    ``metrics.1.csv``, the newest the highest. What was logged stands in ``metrics.rows.jsonl`` beside it, all of it,
    and the table is made from there: one that was changed or removed is made anew.

    Args:
        save_file: the file, usually ``metrics.csv``; made, with its folder, at the first row.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log = CSVLogger(f"{folder}/metrics.csv")
        ...     log.log_stats({"epoch": 1}, train_stats={"loss": 0.5})
        ...     log.log_stats({"epoch": 2}, train_stats={"loss": 0.25}, valid_stats={"loss": 0.75})
        ...     print(log.save_file.read_text(), end="")
        epoch,loss/train,loss/valid
        1,0.5,
        2,0.25,0.75
    """

    def __init__(self, save_file: str | os.PathLike[str]) -> None:
        self.save_file = Path(save_file)
        super().__init__(self.save_file.with_name(f"{self.save_file.stem}.rows.jsonl"))
        self._columns: list[str] | None = None  # of the file; None: to be made from the notes

    @property
    def place(self) -> str:
        """The file."""
        return str(self.save_file)

    def close(self) -> None:
        """The next row makes the file anew."""
        self._columns = None

    def _show(self, row: Row) -> None:
        values = dict(leaves(row))
        if self._columns is None or not values.keys() <= set(self._columns) or not self.save_file.exists():
            self._write_all(self.noted())
        else:
            append_line(self.save_file, _line([values.get(name) for name in self._columns]))

    def _begin_anew(self, kept: list[Row], gone: list[Row]) -> None:
        if self.save_file.exists() and not any("run" in row for row in kept):
            names = (
                self.save_file.with_name(f"{self.save_file.stem}.{number}{self.save_file.suffix}")
                for number in itertools.count(1)
            )
            self.save_file.rename(next(name for name in names if not name.exists()))
        self._columns = None

    def _write_all(self, rows: list[Row]) -> None:
        table = [dict(leaves(row)) for row in rows]
        self._columns = list(dict.fromkeys(name for values in table for name in values))
        lines = [
            _line(self._columns),
            *(_line([values.get(name) for name in self._columns]) for values in table),
        ]
        write_atomic(self.save_file, "".join(f"{line}\n" for line in lines))


def _line(values: Sequence[object]) -> str:
    """A line without its end; a text of several lines becomes one, so that a line is a row."""
    text = io.StringIO()
    shown = [" ".join(value.splitlines()) if isinstance(value, str) else value for value in values]
    csv.writer(text, lineterminator="").writerow(shown)
    return text.getvalue()
