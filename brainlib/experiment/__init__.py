"""The folder of an experiment: what was run, what was said, what came out."""

from __future__ import annotations

from brainlib.experiment.folder import create_experiment_directory, write_results
from brainlib.experiment.log import current_experiment, end_experiment, experiment_log, in_experiment

__all__ = [
    "create_experiment_directory",
    "current_experiment",
    "end_experiment",
    "experiment_log",
    "in_experiment",
    "write_results",
]
