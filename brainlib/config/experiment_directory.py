"""The folder of an experiment, made from the hparams file that describes it.

Reading hparams files is the business of this room, so this is where the folder's hyperparameters come from; the rest of
the folder is in ``brainlib.experiment``.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brainlib.common.logs import logger
from brainlib.common.plain import plain
from brainlib.config.hparams_file import dump_hyperpyyaml, resolve_hyperpyyaml
from brainlib.distributed.world import if_main_process
from brainlib.experiment.folder import describe_experiment, script_source
from brainlib.experiment.log import experiment_log

__all__ = ["create_experiment_directory"]


def create_experiment_directory(
    experiment_directory: str | os.PathLike[str],
    hyperparams_to_save: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    overrides: str | Mapping[str, Any] | None = None,
    log_config: None = None,
    save_env_desc: bool = True,
) -> Path:
    """Make the folder of an experiment, write down what is run, and send the library's log into it.

    Works from a script, a notebook, standard input and ``python -c``. Called again on the same folder (the run is
    resumed), the log goes on; a hyperparams.yaml, train.py or env.txt that has changed is replaced, and the former one
    is kept as hyperparams.1.yaml, hyperparams.2.yaml, … Call it on all ranks; the main process writes.

    Args:
        experiment_directory: the folder; made when it is missing.
        hyperparams_to_save: the hparams file of the experiment, which is written with its references filled in, or a
            dict of values.
        overrides: what replaces some of these, as for `load_hyperpyyaml`: YAML text or a dict.
        log_config: not supported; only there to say so.
        save_env_desc: whether to write the versions of Python, torch and all installed packages (about 0.1 s).

    Returns:
        The folder.

    Raises:
        FileNotFoundError: when there is no such hparams file.
        ValueError: when `log_config` is given, `overrides` without hyperparameters, or overrides that match nothing.

    Example:
        >>> import tempfile
        >>> from brainlib.experiment import end_experiment
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = create_experiment_directory(folder, {"lr": 0.1}, overrides="lr: 0.2", save_env_desc=False)
        ...     print(Path(folder, "hyperparams.yaml").read_text(), end="")
        lr: 0.2
        >>> end_experiment()
    """
    if log_config is not None:
        raise ValueError(
            "log_config is not supported: brainlib installs no handlers but its own. Configure logging in your script "
            "(logging.basicConfig, logging.config.dictConfig); everything brainlib says goes to the logger 'brainlib'."
        )
    if overrides and hyperparams_to_save is None:
        raise ValueError(
            "overrides are given without hyperparams_to_save: there is nothing that they override."
        )
    folder = Path(experiment_directory)
    if not if_main_process():
        return folder

    resolved = None
    if isinstance(hyperparams_to_save, Mapping):
        resolved = resolve_hyperpyyaml(io.StringIO(dump_hyperpyyaml(plain(hyperparams_to_save))), overrides)
    elif hyperparams_to_save is not None:
        resolved = resolve_hyperpyyaml(Path(hyperparams_to_save), overrides)
    script = script_source(sys._getframe(1).f_code.co_filename)
    describe_experiment(folder, resolved, script, environment=save_env_desc)

    experiment_log(folder)
    logger.info("experiment folder: %s", folder)
    return folder
