"""The interface of a logger; a variant says where the numbers go and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brainlib.attempt import hear
from brainlib.common.logs import logger
from brainlib.common.plain import plain
from brainlib.distributed.world import if_main_process

__all__ = ["Groups", "Stats", "TrainLogger", "one_line"]

Stats = dict[str, Any]  # name → number, text, list or dict
Groups = dict[str, Stats]  # "train", "valid", "test" → what was measured there


class TrainLogger:
    """Keeps the numbers of a run. This one keeps nothing; a variant overrides `write`.

    Constructing a logger touches no disk.

    Example:
        >>> class Remember(TrainLogger):
        ...     def write(self, meta, groups):
        ...         self.last = meta, groups
        >>> log = Remember()
        >>> log.log_stats({"epoch": 1}, train_stats={"loss": 0.5})
        >>> log.last
        ({'epoch': 1}, {'train': {'loss': 0.5}})
    """

    def log_stats(
        self,
        stats_meta: Mapping[str, Any],
        train_stats: Mapping[str, Any] | None = None,
        valid_stats: Mapping[str, Any] | None = None,
        test_stats: Mapping[str, Any] | None = None,
        verbose: bool = False,
    ) -> None:
        """Log what was measured. Call it on all ranks; the main process writes.

        Args:
            stats_meta: what the numbers belong to: ``{"epoch": 3, "lr": 1e-3}``.
            train_stats: measured in training: ``{"loss": 0.52}``.
            valid_stats: measured in validation.
            test_stats: measured in the test.
            verbose: also say it in a line of the library's log.

        Values are numbers, texts, lists or dicts; tensors and numpy values are converted. The three dicts are optional:
        a group that is not given is not written.
        """
        if not if_main_process():
            return
        given = {"train": train_stats, "valid": valid_stats, "test": test_stats}
        meta: Stats = plain(dict(stats_meta))
        groups: Groups = {name: plain(dict(stats)) for name, stats in given.items() if stats is not None}
        if verbose:
            logger.info("%s", one_line(meta, groups))
        self.write(meta, groups)
        hear(self.place, meta, groups)

    @property
    def place(self) -> str:
        """Where people find what it has written: a path or an address; empty where that is nowhere."""
        return ""

    def write(self, meta: Stats, groups: Groups) -> None:
        """Write plain values somewhere; main process only.

        Args:
            meta: what the numbers belong to.
            groups: the stats that were given, by "train", "valid" and "test".
        """

    def close(self) -> None:
        """Let go of files and threads. Logging afterwards opens them again."""


def one_line(meta: Stats, groups: Groups, precision: int = 4) -> str:
    """All numbers as one line for people.

    >>> one_line({"epoch": 3, "lr": 1e-3}, {"train": {"loss": 0.52}, "valid": {"loss": 0.614, "accuracy": 0.93}})
    'epoch: 3, lr: 1.0000e-03 - train loss: 0.5200 - valid loss: 0.6140, valid accuracy: 0.9300'
    """
    parts = [_joined(meta, "", precision)] if meta else []
    parts += [_joined(stats, f"{name} ", precision) for name, stats in groups.items()]
    return " - ".join(parts)


def _joined(stats: Stats, prefix: str, precision: int) -> str:
    return ", ".join(f"{prefix}{name}: {_text(value, precision)}" for name, value in stats.items())


def _text(value: Any, precision: int) -> str:
    if isinstance(value, float):
        plainly = value == 0 or 0.1 <= abs(value) < 10_000
        return f"{value:.{precision}f}" if plainly else f"{value:.{precision}e}"
    if isinstance(value, list):
        return "[" + ", ".join(_text(entry, precision) for entry in value) + "]"
    if isinstance(value, dict):
        return "{" + _joined(value, "", precision) + "}"
    return " ".join(str(value).split())  # a text with line breaks must not become several lines
