"""Where the numbers of a run go: a line for people, one for programs, a table, TensorBoard, and the pages of others."""

from __future__ import annotations

from brainlib.loggers.base import TrainLogger
from brainlib.loggers.csv import CSVLogger
from brainlib.loggers.file import FileTrainLogger
from brainlib.loggers.jsonl import JsonlLogger, read_metrics
from brainlib.loggers.mlflow import MlflowLogger
from brainlib.loggers.tensorboard import TensorboardLogger
from brainlib.loggers.wandb import WandbLogger

__all__ = [
    "CSVLogger",
    "FileTrainLogger",
    "JsonlLogger",
    "MlflowLogger",
    "TensorboardLogger",
    "TrainLogger",
    "WandbLogger",
    "read_metrics",
]
