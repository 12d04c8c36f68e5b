"""The command ``brainlib``: looking after what runs have written, from a terminal (docs/checkpoints.md)."""

from brainlib.cli.main import main

__all__ = ["main"]
