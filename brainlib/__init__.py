"""brainlib: a PyTorch trainer made for speech.

>>> import brainlib as bl
>>> issubclass(bl.Brain, object)
True
"""

from brainlib.brain import Brain
from brainlib.checkpoint import (
    Checkpoint,
    Checkpointer,
    CheckpointError,
    average_checkpoints,
    load_weights,
    mark_as_loader,
    mark_as_saver,
    mark_as_transfer,
    register_checkpoint_hooks,
)
from brainlib.distributed.world import if_main_process, run_on_main
from brainlib.epoch_counter import EpochCounter, EpochCounterWithStopper
from brainlib.extension import Extension, make_extension
from brainlib.options import RunOptions
from brainlib.run_state import RunState
from brainlib.seeding import seed_everything
from brainlib.stage import Stage
from brainlib.triggers import IntervalTrigger, LimitTrigger, Trigger

__version__ = "0.1.0"

__all__ = [
    "Brain",
    "Checkpoint",
    "CheckpointError",
    "Checkpointer",
    "EpochCounter",
    "EpochCounterWithStopper",
    "Extension",
    "IntervalTrigger",
    "LimitTrigger",
    "RunOptions",
    "RunState",
    "Stage",
    "Trigger",
    "average_checkpoints",
    "if_main_process",
    "load_weights",
    "make_extension",
    "mark_as_loader",
    "mark_as_saver",
    "mark_as_transfer",
    "register_checkpoint_hooks",
    "run_on_main",
    "seed_everything",
]
