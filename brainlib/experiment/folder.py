"""The folder of an experiment: the hyperparameters, script and environment that were run, and the results."""

from __future__ import annotations

import importlib.metadata
import io
import itertools
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch

from brainlib.common.files import make_folder, write_atomic
from brainlib.common.logs import logger
from brainlib.common.plain import plain, to_json
from brainlib.distributed.world import if_main_process
from brainlib.experiment.log import experiment_log

__all__ = ["create_experiment_directory", "write_results"]

PathLike: TypeAlias = str | os.PathLike[str]

# The only variables that are written down: others may hold passwords.
VARIABLES = ("CUDA_VISIBLE_DEVICES", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "PYTHONHASHSEED", "WORLD_SIZE")


def create_experiment_directory(
    experiment_directory: PathLike,
    hyperparams_to_save: PathLike | Mapping[str, Any] | None = None,
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
        hyperparams_to_save: the HyperPyYAML file of the experiment, which is written with its references resolved, or a
            dict of plain values.
        overrides: values that replace some of that file, as YAML text or as a dict.
        log_config: not supported; only there to say so.
        save_env_desc: whether to write the versions of Python, torch and all installed packages (about 0.1 s).

    Returns:
        The folder.

    Raises:
        FileNotFoundError: when there is no such hyperparameter file.
        ValueError: when `log_config` is given, or `overrides` without hyperparameters.

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
    folder = Path(experiment_directory)
    resolved = _resolved(hyperparams_to_save, overrides)
    script = _script(sys._getframe(1).f_code.co_filename)
    if not if_main_process():
        return folder

    make_folder(folder)
    if resolved is not None:
        _write_keeping_former(folder / "hyperparams.yaml", resolved)
    if script is not None:
        _write_keeping_former(folder / "train.py", script)
    if save_env_desc:
        _write_keeping_former(folder / "env.txt", _environment())

    experiment_log(folder)
    logger.info("experiment folder: %s", folder)
    return folder


def write_results(folder: PathLike, results: Mapping[str, Any]) -> Path:
    """Write the final numbers of a run to ``results.json``, whole or not at all. The main process writes.

    Args:
        folder: the folder of the experiment.
        results: such as ``{"test": {"accuracy": 0.98, "loss": 0.06}, "seconds": 31.5}``; tensors and numpy values are
            converted, NaN and the infinities become texts.

    Returns:
        The path of the file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     print(write_results(folder, {"test": {"accuracy": torch.tensor(0.5)}}).read_text(), end="")
        {
          "test": {
            "accuracy": 0.5
          }
        }
    """
    path = Path(folder) / "results.json"
    if if_main_process():
        make_folder(path.parent)
        write_atomic(path, to_json(results, indent=2) + "\n")
    return path


def _write_keeping_former(path: Path, text: str) -> None:
    """Write a file; other content that is there already gets a number: ``name.1.suffix``, the newest the highest."""
    data = text.encode("utf-8", "backslashreplace")
    if path.exists():
        if path.read_bytes() == data:
            return
        names = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in itertools.count(1))
        path.rename(next(name for name in names if not name.exists()))
    write_atomic(path, data)


def _resolved(
    hyperparams: PathLike | Mapping[str, Any] | None, overrides: str | Mapping[str, Any] | None
) -> str | None:
    """The hyperparameters as YAML text in which no reference is left."""
    if hyperparams is None:
        if overrides:
            raise ValueError(
                "overrides are given without hyperparams_to_save: there is nothing that they override"
            )
        return None
    from hyperpyyaml import resolve_references

    changes = plain(overrides) if isinstance(overrides, Mapping) else overrides
    if isinstance(hyperparams, Mapping):
        text: str = resolve_references(_yaml(plain(hyperparams)), changes).getvalue()
        return text
    path = Path(hyperparams)
    if not path.is_file():
        raise FileNotFoundError(
            f"hyperparams_to_save: there is no file {str(path)!r} (looked from {os.getcwd()})"
        )
    with open(path, encoding="utf-8") as file:
        text = resolve_references(file, changes).getvalue()
    return text


def _yaml(value: Any) -> str:
    from ruamel.yaml import YAML

    stream = io.StringIO()
    YAML().dump(value, stream)
    return stream.getvalue()


def _script(caller: str) -> str | None:
    """The source of what called us; None where Python does not keep it (standard input)."""
    if os.path.isfile(caller):
        return Path(caller).read_text(encoding="utf-8", errors="backslashreplace")
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None:  # a notebook: the cells run so far, this one included
        cells = [str(cell) for cell in shell.user_ns.get("In", []) if cell]
        return "\n\n".join(f"# %%\n{cell}" for cell in cells) + "\n"
    arguments = list(sys.orig_argv)
    if "-c" in arguments[:-1] and sys.argv[:1] == ["-c"]:
        return arguments[arguments.index("-c") + 1] + "\n"
    return None


def _environment() -> str:
    """What ran it, read without starting a process."""
    distributions = importlib.metadata.distributions()
    packages = {f"{dist.metadata['Name']}=={dist.version}" for dist in distributions if dist.metadata["Name"]}
    lines = [
        f"command: {' '.join(sys.orig_argv)}" if "-c" not in sys.orig_argv else "command: python -c ...",
        f"python: {platform.python_version()} ({sys.executable})",
        f"platform: {platform.platform()}",
        f"torch: {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}",  # type: ignore[no-untyped-call]
        f"threads: {torch.get_num_threads()} of {os.cpu_count()} CPUs",
        *(f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ),
        "",
        *sorted(packages, key=str.lower),
    ]
    return "\n".join(lines) + "\n"
