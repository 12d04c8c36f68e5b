"""TensorBoard event files."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from brainlib.loggers.base import Groups, Stats, TrainLogger

__all__ = ["TensorboardLogger"]


class TensorboardLogger(TrainLogger):
    """Writes stats as TensorBoard scalars ``loss/train``, ``loss/valid``, …, meta values under their own name.

    The horizontal axis is the meta value "step" if there is one, else "epoch" (or what begins with it, such as "epoch
    loaded"), so that a resumed run goes on where it was; else the number of the call.

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
        self._calls = 0

    def write(self, meta: Stats, groups: Groups) -> None:
        """Write and flush, so that a run which is killed has them."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.save_dir))
        x = self._place(meta)
        self._calls += 1
        for name, value in _leaves(meta):
            self._add(name, value, x)
        for group, stats in groups.items():
            for name, value in _leaves(stats):
                self._add(f"{name}/{group}", value, x)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file and end its thread."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _place(self, meta: Stats) -> int:
        whole = {name.lower(): value for name, value in meta.items() if type(value) is int}
        for name in ("step", "epoch", *sorted(whole)):
            if name in whole and (name == "step" or name.startswith("epoch")):
                return int(whole[name])
        return self._calls

    def _add(self, tag: str, value: Any, x: int) -> None:
        if isinstance(value, (bool, int, float)):
            self._writer.add_scalar(tag, value, x)
        elif value is not None:
            self._writer.add_text(tag, str(value), x)


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Names and single values; lists and dicts inside are opened, their places joined by "/"."""
    if isinstance(value, (dict, list)):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(entry, f"{name}/{key}" if name else str(key))
    else:
        yield name, value
