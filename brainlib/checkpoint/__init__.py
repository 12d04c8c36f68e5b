"""Checkpoints: what is saved, found, loaded, kept and averaged (docs/checkpoints.md)."""

from brainlib.checkpoint.averaging import average_checkpoints
from brainlib.checkpoint.checkpointer import Checkpointer
from brainlib.checkpoint.errors import CheckpointError, DamagedCheckpointError
from brainlib.checkpoint.hooks import (
    mark_as_loader,
    mark_as_saver,
    mark_as_transfer,
    register_checkpoint_hooks,
)
from brainlib.checkpoint.manifest import Checkpoint
from brainlib.checkpoint.weights import load_weights

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Checkpointer",
    "DamagedCheckpointError",
    "average_checkpoints",
    "load_weights",
    "mark_as_loader",
    "mark_as_saver",
    "mark_as_transfer",
    "register_checkpoint_hooks",
]
