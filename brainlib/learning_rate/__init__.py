"""Applying learning-rate schedules to the optimizers of a Brain."""

from brainlib.learning_rate.extension import LearningRate

__all__ = ["LearningRate"]
