"""``speechbrain.utils.train_logger``: loggers, as brainlib has it."""

from brainlib.compat.fallback import refused
from brainlib.loggers import FileTrainLogger, TensorboardLogger, TrainLogger

__all__ = ["FileTrainLogger", "TensorboardLogger", "TrainLogger"]

__getattr__ = refused(__name__)
