"""The folder of an experiment: what was run, what was said, what came out."""

from __future__ import annotations

from brainlib.experiment.folder import describe_experiment, script_source, write_results
from brainlib.experiment.log import current_experiment, end_experiment, experiment_log, in_experiment

__all__ = [
    "current_experiment",
    "describe_experiment",
    "end_experiment",
    "experiment_log",
    "in_experiment",
    "script_source",
    "write_results",
]
