"""Runs of a script: each in a fresh interpreter, as ``python SCRIPT HPARAMS ...`` would be, with other folders."""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from brainlib.checkup.elsewhere import Elsewhere
from brainlib.checkup.examine import Start, examine
from brainlib.checkup.report import CheckupError, Report
from brainlib.checkup.session import Plan, Session
from brainlib.config.source import read_tree
from brainlib.config.yaml_nodes import items
from brainlib.onlooker import invite

__all__ = ["become", "doctor_script", "folder_keys"]

# The number of the seed of hashing: it decides the order of a set of texts, and differs from process to process unless
# somebody sets it.
_HASH_SEEDS = {"first": "1", "second": "2"}
_HOME = str(Path(__file__).resolve().parents[2])
_CHILD = (
    "import sys; sys.path.append(sys.argv.pop(1))\n"
    "from brainlib.checkup.script import become; become(sys.argv[1:])"
)


def doctor_script(
    script: str | os.PathLike[str],
    words: Sequence[str] = (),
    *,
    num_batches: int | None = None,
    accumulation: bool = True,
    timeout: float = 300.0,
) -> Report:
    """`doctor` for a script, whose first `fit` is looked at. What comes after that in the script is not run.

    Args:
        script: a file of Python.
        words: what stands behind it on the command line: an hparams file and overrides. Where the file has the keys
            ``output_folder`` and ``save_folder``, they are set to a temporary folder.
        num_batches: as for `doctor`.
        accumulation: as for `doctor`.
        timeout: as for `doctor`.

    Raises:
        CheckupError: the script fails, never trains, or takes too long.
    """
    if not Path(script).is_file():
        raise CheckupError(f"there is no script {os.fspath(script)}")
    if not hasattr(os, "fork"):
        raise CheckupError(
            "the runs are started with fork, which this system does not have: use Linux or macOS"
        )
    keys = folder_keys(words)
    return examine(
        _start_of(Path(script), list(words), keys),
        num_batches=num_batches,
        timeout=timeout,
        at_once=1 if torch.cuda.is_available() else 2,  # one accelerator may not have the memory for two runs
        quiet_loggers=False,
        accumulation=accumulation,
    )


def _start_of(script: Path, words: list[str], keys: dict[str, str]) -> Start:
    def start(name: str, plan: Plan) -> None:
        environment = dict(os.environ)
        environment.setdefault("PYTHONHASHSEED", _HASH_SEEDS.get(name, "3"))
        folders = [f"--{key}={os.path.join(plan.folder, place)}".rstrip("/") for key, place in keys.items()]
        job = json.dumps(dataclasses.asdict(plan))
        command = [sys.executable, "-c", _CHILD, _HOME, job, str(script), *words, *folders]
        os.execve(sys.executable, command, environment)

    return start


def folder_keys(words: Sequence[str]) -> dict[str, str]:
    """The keys of the hparams file that say where a run writes, with a place in the folder that it gets instead.

    >>> folder_keys(["no-such.yaml", "--lr", "0.1"])
    {}
    """
    file = next((word for word in words if not word.startswith("-")), None)
    if file is None or not Path(file).is_file():
        return {}
    try:
        known = {str(key) for key, _, _ in items(read_tree(file).root)}
    except ValueError:  # no hparams file; where it should be one, the script says it better
        return {}
    return {key: place for key, place in (("output_folder", ""), ("save_folder", "save")) if key in known}


def become(words: list[str]) -> None:
    """In the fresh process: run the script, looked at by a session.

    Args:
        words: the plan as JSON, the script, and what stands behind it on the command line.
    """
    plan = Plan(**json.loads(words[0]))
    script, sys.argv = words[1], words[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    session = Session(plan)
    invite(session)
    with Elsewhere(plan.folder) as elsewhere:
        session.elsewhere = elsewhere
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as error:
            if error.code not in (None, 0):
                session.fail(error)
        except BaseException as error:  # noqa: BLE001  # whatever it is: it goes into the trace
            session.fail(error)
