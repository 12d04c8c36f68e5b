"""Where a debug or benchmark run writes: into a folder of its own, so that it can be tried beside a real run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brainlib.common.errors import quoted
from brainlib.common.logs import logger
from brainlib.common.option_fields import same_name
from brainlib.config.hparams_file import unbuilt_values
from brainlib.distributed.world import if_main_process
from brainlib.options import RunOptions

__all__ = ["set_trial_apart"]

_ASKED = ("debug", "debug_persistently", "benchmark_max_step")


def set_trial_apart(
    param_file: str | os.PathLike[str],
    run_opts: Mapping[str, Any] | None = None,
    overrides: str | Mapping[str, Any] | None = None,
    key: str = "output_folder",
) -> str | Mapping[str, Any] | None:
    r"""Let a debug or benchmark run write into a folder inside that of the experiment, which it leaves alone.

    Call it between `parse_arguments` and `load_hyperpyyaml`, on all ranks. Where the options `debug` or
    `benchmark_max_step` are set, on the command line or in the file, the folder becomes ``<output_folder>/debug`` or
    ``<output_folder>/benchmark``, and with it every path that the file makes of it (``!ref <output_folder>/save``); a
    line says so. A path that is written out in the file, or in the script, stays where it is. Nothing of the file is
    built. The metrics.jsonl of an earlier trial is removed, because a trial begins from scratch; not with
    `debug_persistently`, with which it goes on.

    Args:
        param_file: the hparams file.
        run_opts: the options of the command line.
        overrides: as for `load_hyperpyyaml`.
        key: what the file calls the folder.

    Returns:
        The overrides to load the file with, and to give to `create_experiment_directory`; of any other run they are
        those that were given.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: something in the file or in the overrides is wrong; or, for a trial, the file has no such key, or
            one that is no text; or whether it is a trial cannot be told without building objects.

    Example:
        >>> import tempfile
        >>> from brainlib.config import load_hyperpyyaml
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "cnn.yaml")
        ...     _ = file.write_text("output_folder: results/cnn\nsave: !ref <output_folder>/save\n")
        ...     load_hyperpyyaml(file, set_trial_apart(file, {"debug": True}))
        {'output_folder': 'results/cnn/debug', 'save': 'results/cnn/debug/save'}
    """
    values, computed = unbuilt_values(param_file, overrides)
    unknown = [name for name in computed if same_name(name) in ("run_opts", *_ASKED)]
    if unknown:
        raise ValueError(
            f"{os.fspath(param_file)}: {quoted(unknown)} comes from an object, and has to be known before objects are "
            "built, because it decides in which folder they write. Write its value, or give it on the command line."
        )
    options = RunOptions.resolve(run_opts, values)
    if not options.debug and options.benchmark_max_step is None:
        return overrides
    name = "debug" if options.debug else "benchmark"
    given = values.get(key)
    if not isinstance(given, str):
        is_there = f"has {given!r} there" if key in values else "has no such key"
        is_there = "computes it by an object" if key in computed else is_there
        raise ValueError(
            f"a {name} run gets a folder of its own inside the one that the key {key!r} names, and "
            f"{os.fspath(param_file)} {is_there}. Give it as a text, or call set_trial_apart with "
            "key=, the name of the key that has the folder."
        )
    folder = Path(given) / name
    persistently = options.debug and options.debug_persistently
    if if_main_process():
        if not persistently:  # it starts from scratch, and so do its curves
            (folder / "metrics.jsonl").unlink(missing_ok=True)
        logger.info("%s: a few batches only; the files of this run go to %s", name, folder)
    from brainlib.config.overrides import overrides_with  # ruamel only where it is needed

    return overrides_with(overrides, key, str(folder))
