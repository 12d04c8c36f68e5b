"""One line an epoch, for people."""

from __future__ import annotations

import os
from pathlib import Path

from brainlib.attempt import whereabouts
from brainlib.common.lines import append_line
from brainlib.common.logs import take_file
from brainlib.loggers.base import Groups, Stats, TrainLogger, one_line

__all__ = ["FileTrainLogger"]


class FileTrainLogger(TrainLogger):
    """Appends one line to a text file each time it is told something, and one where a run goes on.

    Recipes of SpeechBrain's give it ``train_log.txt`` in the folder of the experiment. Then what brainlib says goes to
    ``log.txt`` beside it.

    Args:
        save_file: the file; made, with its folder, at the first line.
        precision: digits after the point, 0 or more; try 2.

    Raises:
        ValueError: for a negative precision.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log = FileTrainLogger(f"{folder}/train_stats.txt")
        ...     log.log_stats({"epoch": 3, "lr": 1e-3}, {"loss": 0.52}, {"loss": 0.614, "accuracy": 0.93})
        ...     print(Path(folder, "train_stats.txt").read_text(), end="")
        epoch: 3, lr: 1.00e-03 - train loss: 0.52 - valid loss: 0.61, valid accuracy: 0.93
    """

    def __init__(self, save_file: str | os.PathLike[str], precision: int = 2) -> None:
        if precision < 0:
            raise ValueError(f"precision={precision}: give the number of digits after the point, 0 or more")
        self.save_file = Path(save_file)
        self.precision = precision
        take_file(self.save_file)
        self._wrote = False

    @property
    def place(self) -> str:
        """The file."""
        return str(self.save_file)

    def write(self, meta: Stats, groups: Groups) -> None:
        """Append the line."""
        self._announce()
        append_line(self.save_file, one_line(meta, groups, self.precision))
        self._wrote = True

    def _announce(self) -> None:
        """Before the first line of an attempt: where it goes on. Nobody has to wonder why epochs stand there twice."""
        here, path = whereabouts(self.save_file), self.save_file.absolute()
        if here is None or not here.attempt.known or path in here.attempt.announced:
            return
        attempt = here.attempt
        attempt.announced.add(path)
        if attempt.origin is not None:
            append_line(path, f"--- {attempt.said}; lines above that come after this are superseded")
        elif not self._wrote and path.exists():
            append_line(path, f"--- {attempt.said}")
