"""``speechbrain.utils``: the modules that brainlib has; others from an installed speechbrain."""

from brainlib.compat.fallback import installed
from brainlib.compat.speechbrain.utils import (
    Accuracy,
    checkpoints,
    data_pipeline,
    distributed,
    epoch_loop,
    metric_stats,
    run_opts,
    seed,
    train_logger,
)
from brainlib.compat.speechbrain.utils.seed import seed_everything

__all__ = [
    "Accuracy",
    "checkpoints",
    "data_pipeline",
    "distributed",
    "epoch_loop",
    "metric_stats",
    "run_opts",
    "seed",
    "seed_everything",
    "train_logger",
]

__getattr__ = installed(__name__)
