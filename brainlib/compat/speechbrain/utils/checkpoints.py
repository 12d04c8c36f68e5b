"""``speechbrain.utils.checkpoints``: checkpoints and their hooks, as brainlib has it."""

from brainlib.checkpoint import (
    Checkpoint,
    Checkpointer,
    average_checkpoints,
    mark_as_loader,
    mark_as_saver,
    mark_as_transfer,
    register_checkpoint_hooks,
)
from brainlib.checkpoint.averaging import average_state_dicts
from brainlib.compat.fallback import refused

__all__ = [
    "Checkpoint",
    "Checkpointer",
    "average_checkpoints",
    "average_state_dicts",
    "mark_as_loader",
    "mark_as_saver",
    "mark_as_transfer",
    "register_checkpoint_hooks",
]

__getattr__ = refused(__name__)
