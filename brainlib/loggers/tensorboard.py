"""TensorBoard event files."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from brainlib.common.logs import logger
from brainlib.loggers.folded import ROWS, FoldedLogger, Row, leaves, need

__all__ = ["TensorboardLogger"]

EVENTS = "events.out.tfevents."
PATIENCE_SECONDS = 5  # how far the clock of the machine before may have been ahead


class TensorboardLogger(FoldedLogger):
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

    notes_all = False

    def __init__(self, save_dir: str | os.PathLike[str]) -> None:
        need("tensorboard", TensorboardLogger, "loggers")
        self.save_dir = Path(save_dir)
        super().__init__(self.save_dir / ROWS)
        self._writer: Any = None

    @property
    def place(self) -> str:
        """The folder."""
        return str(self.save_dir)

    def close(self) -> None:
        """Close the event file and end its thread."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _begin_anew(self, kept: list[Row], gone: list[Row]) -> None:
        """A page drops everything from a step on, whatever its name and axis: what is to stay is written again."""
        self.close()
        first = min(row["x"] for row in gone)
        self._open(purge_step=first)
        for row in kept:
            if row["x"] >= first:
                self._add_all(row)

    def _open(self, purge_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        _wait_for_its_turn(self.save_dir)
        self._writer = SummaryWriter(str(self.save_dir), purge_step=purge_step)

    def _show(self, row: Row) -> None:
        self._add_all(row)
        self._writer.flush()

    def _add_all(self, row: Row) -> None:
        if self._writer is None:
            self._open()
        for tag, value in leaves(row):
            if isinstance(value, (bool, int, float)):
                self._writer.add_scalar(tag, value, row["x"], walltime=row.get("time"))
            elif value is not None:
                self._writer.add_text(tag, str(value), row["x"], walltime=row.get("time"))


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
