"""The folder of an experiment: the hyperparameters, script and environment that were run, and the results."""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch

from brainlib.common.files import make_folder, write_atomic
from brainlib.common.notebook import shell
from brainlib.common.plain import to_json
from brainlib.distributed.world import if_main_process

__all__ = ["describe_experiment", "former_hyperparams", "script_source", "write_results"]

PathLike: TypeAlias = str | os.PathLike[str]

# The only variables that are written down: others may hold passwords.
VARIABLES = ("CUDA_VISIBLE_DEVICES", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "PYTHONHASHSEED", "WORLD_SIZE")


def describe_experiment(
    folder: PathLike, hyperparams: str | None = None, script: str | None = None, environment: bool = True
) -> None:
    """Write down what is run. A file that is there with other content is kept under a number.

    Args:
        folder: the folder of the experiment; made when it is missing.
        hyperparams: the text for ``hyperparams.yaml``; None for no such file.
        script: the text for ``train.py``; None for no such file.
        environment: whether to write ``env.txt``: the versions of Python, torch and all installed packages.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     describe_experiment(folder, "lr: 0.1", environment=False)
        ...     describe_experiment(folder, "lr: 0.2", environment=False)
        ...     sorted((path.name, path.read_text()) for path in Path(folder).iterdir())
        [('hyperparams.1.yaml', 'lr: 0.1'), ('hyperparams.yaml', 'lr: 0.2')]
    """
    folder = Path(folder)
    make_folder(folder)
    if hyperparams is not None:
        _write_keeping_former(folder / "hyperparams.yaml", hyperparams)
    if script is not None:
        _write_keeping_former(folder / "train.py", script)
    if environment:
        _write_keeping_former(folder / "env.txt", _environment())


def former_hyperparams(folder: PathLike, seconds: float) -> Path | None:
    """The file with the hyperparameters of a moment, where another has taken its place since then.

    Args:
        folder: the folder of the experiment.
        seconds: the moment, in seconds since 1970. Files are known by when they were written, so that of a copied
            folder nothing is said.

    Example:
        >>> import tempfile, time
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     describe_experiment(folder, "lr: 0.1", environment=False)
        ...     os.utime(Path(folder, "hyperparams.yaml"), (1e9, 1e9))
        ...     describe_experiment(folder, "lr: 0.2", environment=False)
        ...     former_hyperparams(folder, 2e9) is None, former_hyperparams(folder, 1.1e9).name
        (True, 'hyperparams.1.yaml')
    """
    current = Path(folder) / "hyperparams.yaml"
    written = {path: path.stat().st_mtime for path in Path(folder).glob("hyperparams.*yaml")}
    there = [path for path in sorted(written, key=written.__getitem__) if written[path] <= seconds]
    return there[-1] if there and there[-1] != current else None


def script_source(filename: str) -> str | None:
    """The source of the code that Python says is in `filename`; None where it is not kept (standard input).

    In a notebook, these are the cells run so far.

    >>> "def getenv(" in (script_source(os.__file__) or "")
    True
    """
    if os.path.isfile(filename):
        return Path(filename).read_text(encoding="utf-8", errors="backslashreplace")
    if (ipython := shell()) is not None:
        cells = [str(cell) for cell in ipython.user_ns.get("In", []) if cell]
        return "\n\n".join(f"# %%\n{cell}" for cell in cells) + "\n"
    if sys.argv[:1] == ["-c"] and "-c" in sys.orig_argv[:-1]:
        return sys.orig_argv[sys.orig_argv.index("-c") + 1] + "\n"
    return None


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


def _environment() -> str:
    """What ran it, read without starting a process."""
    distributions = importlib.metadata.distributions()
    packages = {
        f"{dist.metadata['Name']}=={dist.version}" for dist in distributions if "Name" in dist.metadata
    }
    lines = [
        f"command: {shlex.join(sys.orig_argv)}" if "-c" not in sys.orig_argv else "command: python -c ...",
        f"python: {platform.python_version()} ({sys.executable})",
        # Not platform.platform(): it starts `uname -p`.
        f"platform: {platform.system()} {platform.release()} {platform.machine()}",
        f"torch: {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}",  # type: ignore[no-untyped-call]
        f"threads: {torch.get_num_threads()} of {os.cpu_count()} CPUs",
        *(f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ),
        "",
        *sorted(packages, key=str.lower),
    ]
    return "\n".join(lines) + "\n"
