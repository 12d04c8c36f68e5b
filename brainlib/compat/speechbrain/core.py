"""``speechbrain.core``: the Brain and what a script begins with, as brainlib has it."""

from brainlib.brain import Brain
from brainlib.compat.fallback import refused
from brainlib.config import parse_arguments
from brainlib.config.experiment_directory import create_experiment_directory
from brainlib.stage import Stage

__all__ = ["Brain", "Stage", "create_experiment_directory", "parse_arguments"]

__getattr__ = refused(__name__)
