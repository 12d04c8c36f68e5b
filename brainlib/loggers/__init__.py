"""Where the numbers of a run go: a human line an epoch, a JSON line an epoch, TensorBoard."""

from __future__ import annotations

from brainlib.loggers.base import TrainLogger
from brainlib.loggers.file import FileTrainLogger
from brainlib.loggers.jsonl import JsonlLogger, read_metrics
from brainlib.loggers.tensorboard import TensorboardLogger

__all__ = ["FileTrainLogger", "JsonlLogger", "TensorboardLogger", "TrainLogger", "read_metrics"]
