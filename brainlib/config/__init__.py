"""Experiments described in files, and changed from the command line."""

from brainlib.config.command_line import parse_arguments
from brainlib.config.hparams_file import dump_hyperpyyaml, load_hyperpyyaml, resolve_hyperpyyaml

__all__ = ["dump_hyperpyyaml", "load_hyperpyyaml", "parse_arguments", "resolve_hyperpyyaml"]
