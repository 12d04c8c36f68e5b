"""The command ``brainlib``: looking after runs from a terminal (docs/checkpoints.md, docs/doctor.md)."""

from brainlib.cli.main import main

__all__ = ["main"]
