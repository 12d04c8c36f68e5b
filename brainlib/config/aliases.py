"""Which names of other packages a tag may carry over to ours. Strings alone: tags import what they name."""

from __future__ import annotations

from collections.abc import Mapping

from brainlib.common.errors import quoted

__all__ = ["SPEECHBRAIN", "aliases_of"]

# What brainlib.compat.speechbrain has, by module; a test compares the two.
SPEECHBRAIN = {
    "speechbrain": (
        "Brain",
        "RunOptions",
        "Stage",
        "create_experiment_directory",
        "parse_arguments",
    ),
    "speechbrain.core": (
        "Brain",
        "Stage",
        "create_experiment_directory",
        "parse_arguments",
    ),
    "speechbrain.dataio.batch": ("PaddedBatch",),
    "speechbrain.dataio.dataio": (
        "read_audio",
        "write_audio",
    ),
    "speechbrain.dataio.dataloader": (
        "SaveableDataLoader",
        "make_dataloader",
    ),
    "speechbrain.dataio.dataset": (
        "DynamicItemDataset",
        "add_dynamic_item",
        "set_output_keys",
    ),
    "speechbrain.dataio.encoder": (
        "CTCTextEncoder",
        "CategoricalEncoder",
        "TextEncoder",
    ),
    "speechbrain.dataio.sampler": (
        "BalancingDataSampler",
        "DynamicBatchSampler",
        "ReproducibleRandomSampler",
        "ReproducibleWeightedRandomSampler",
    ),
    "speechbrain.nnet.schedulers": (
        "NewBobScheduler",
        "update_learning_rate",
    ),
    "speechbrain.utils.Accuracy": ("AccuracyStats",),
    "speechbrain.utils": ("seed_everything",),
    "speechbrain.utils.checkpoints": (
        "Checkpoint",
        "Checkpointer",
        "average_checkpoints",
        "average_state_dicts",
        "mark_as_loader",
        "mark_as_saver",
        "mark_as_transfer",
        "register_checkpoint_hooks",
    ),
    "speechbrain.utils.data_pipeline": (
        "DynamicItem",
        "provides",
        "takes",
    ),
    "speechbrain.utils.distributed": (
        "ddp_init_group",
        "if_main_process",
        "run_on_main",
    ),
    "speechbrain.utils.epoch_loop": (
        "EpochCounter",
        "EpochCounterWithStopper",
    ),
    "speechbrain.utils.metric_stats": (
        "BinaryMetricStats",
        "ClassificationStats",
        "EER",
        "ErrorRateStats",
        "MetricStats",
        "minDCF",
    ),
    "speechbrain.utils.run_opts": ("RunOptions",),
    "speechbrain.utils.seed": ("seed_everything",),
    "speechbrain.utils.train_logger": (
        "FileTrainLogger",
        "TensorboardLogger",
        "TrainLogger",
    ),
}


def aliases_of(given: Mapping[str, str] | str | None) -> Mapping[str, str] | None:
    """The names to replace in tags: a mapping as it is, or that of a package which is known by name.

    Args:
        given: dotted names with what replaces them, or "speechbrain".

    Raises:
        ValueError: for another word.

    >>> aliases_of("speechbrain")["speechbrain.utils.epoch_loop.EpochCounter"]
    'brainlib.compat.speechbrain.utils.epoch_loop.EpochCounter'
    >>> "speechbrain.nnet.linear.Linear" in aliases_of("speechbrain")
    False
    """
    if not isinstance(given, str):
        return given
    if given != "speechbrain":
        raise ValueError(
            f"aliases is {given!r}; there are {quoted(['speechbrain'])}, or give a mapping of names."
        )
    names = (f"{module}.{name}" for module, those in SPEECHBRAIN.items() for name in those)
    return {name: f"brainlib.compat.{name}" for name in names}
