"""brainlib: a PyTorch trainer made for speech.

>>> import brainlib as bl
>>> bl.Stage.TRAIN.name
'TRAIN'
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
from brainlib.checks.anomaly import AnomalyFound
from brainlib.checks.find_lr import find_lr
from brainlib.checks.inspector import Inspector
from brainlib.checkup import doctor
from brainlib.config import dump_hyperpyyaml, load_hyperpyyaml, parse_arguments
from brainlib.config.experiment_directory import create_experiment_directory
from brainlib.config.trial import set_trial_apart
from brainlib.data.batch_report import find_worst_batches
from brainlib.data.dataset import DynamicItemDataset, add_dynamic_item, set_output_keys
from brainlib.data.dynamic_batches import DynamicBatchSampler
from brainlib.data.loader import SaveableDataLoader
from brainlib.data.padded_batch import PaddedBatch, PaddedData
from brainlib.data.pipeline import ItemError, provides, takes
from brainlib.data.samplers import (
    BalancingDataSampler,
    ReproducibleRandomSampler,
    ReproducibleWeightedRandomSampler,
)
from brainlib.distributed.group import ddp_init_group, gather, run_on_main
from brainlib.distributed.launch import spawn
from brainlib.distributed.world import if_main_process
from brainlib.ema import EMA, load_average
from brainlib.epoch_counter import EpochCounter, EpochCounterWithStopper
from brainlib.experiment import write_results
from brainlib.extension import Extension, make_extension
from brainlib.learning_rate import LearningRate
from brainlib.live_curve import LiveCurve
from brainlib.loggers import (
    CSVLogger,
    FileTrainLogger,
    JsonlLogger,
    MlflowLogger,
    TensorboardLogger,
    TrainLogger,
    WandbLogger,
    read_metrics,
)
from brainlib.metrics import (
    EER,
    AccuracyStats,
    BinaryMetricStats,
    ClassificationStats,
    ErrorRateStats,
    MetricStats,
    minDCF,
)
from brainlib.options import RunOptions
from brainlib.profiling.profiler import Profiler, add_profiler_step
from brainlib.profiling.settings import ProfilerOptions
from brainlib.run_state import RunState
from brainlib.seeding import seed_everything
from brainlib.snapshot import Snapshot
from brainlib.stage import Stage
from brainlib.stopping.endings import Stopped
from brainlib.text import CategoricalEncoder, CTCTextEncoder, TextEncoder
from brainlib.triggers import IntervalTrigger, LimitTrigger, Trigger
from brainlib.update.schedules import NewBob, Noam, Plateau, WarmUp, update_learning_rate

__version__ = "0.1.0"

__all__ = [
    "EER",
    "EMA",
    "AccuracyStats",
    "AnomalyFound",
    "BalancingDataSampler",
    "BinaryMetricStats",
    "Brain",
    "CSVLogger",
    "CTCTextEncoder",
    "CategoricalEncoder",
    "Checkpoint",
    "CheckpointError",
    "Checkpointer",
    "ClassificationStats",
    "DynamicBatchSampler",
    "DynamicItemDataset",
    "EpochCounter",
    "EpochCounterWithStopper",
    "ErrorRateStats",
    "Extension",
    "FileTrainLogger",
    "Inspector",
    "IntervalTrigger",
    "ItemError",
    "JsonlLogger",
    "LearningRate",
    "LimitTrigger",
    "LiveCurve",
    "MetricStats",
    "MlflowLogger",
    "NewBob",
    "Noam",
    "PaddedBatch",
    "PaddedData",
    "Plateau",
    "Profiler",
    "ProfilerOptions",
    "ReproducibleRandomSampler",
    "ReproducibleWeightedRandomSampler",
    "RunOptions",
    "RunState",
    "SaveableDataLoader",
    "Snapshot",
    "Stage",
    "Stopped",
    "TensorboardLogger",
    "TextEncoder",
    "TrainLogger",
    "Trigger",
    "WandbLogger",
    "WarmUp",
    "add_dynamic_item",
    "add_profiler_step",
    "average_checkpoints",
    "create_experiment_directory",
    "ddp_init_group",
    "doctor",
    "dump_hyperpyyaml",
    "find_lr",
    "find_worst_batches",
    "gather",
    "if_main_process",
    "load_average",
    "load_hyperpyyaml",
    "load_weights",
    "make_extension",
    "mark_as_loader",
    "mark_as_saver",
    "mark_as_transfer",
    "minDCF",
    "parse_arguments",
    "provides",
    "read_metrics",
    "register_checkpoint_hooks",
    "run_on_main",
    "seed_everything",
    "set_output_keys",
    "set_trial_apart",
    "spawn",
    "takes",
    "update_learning_rate",
    "write_results",
]
