"""What is written about a run, and what is kept of the run before."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import brainlib as bl
from brainlib.checkpoint import CheckpointError
from brainlib.experiment import describe_experiment, end_experiment, script_source, write_results
from tests.brain.small import batches, small


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_changed_file_is_replaced_and_the_former_kept(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    for text in ("lr: 1\n", "lr: 1\n", "lr: 2\n", "lr: 3\n"):
        describe_experiment(folder, text, script="pass\n", environment=False)
    assert files(folder) == {
        "hyperparams.1.yaml": "lr: 1\n",
        "hyperparams.2.yaml": "lr: 2\n",
        "hyperparams.yaml": "lr: 3\n",
        "train.py": "pass\n",
    }


def test_the_environment_without_starting_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("subprocess.Popen.__init__", refuse)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("MY_PASSWORD", "secret")
    describe_experiment(tmp_path)
    describe_experiment(tmp_path)
    (text,) = files(tmp_path).values()
    lines = text.splitlines()
    assert f"torch=={importlib.metadata.version('torch')}" in lines
    assert "OMP_NUM_THREADS=3" in lines and f"torch: {torch.__version__}" in text
    assert lines[0].startswith("command: ") and "secret" not in text


def test_the_command_can_be_pasted_into_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["python", "train.py", "--optimizer", "!name:torch.optim.SGD {lr: 0.1}", "--out", "a folder"]
    monkeypatch.setattr(sys, "orig_argv", words)
    describe_experiment(tmp_path)
    command = (tmp_path / "env.txt").read_text().splitlines()[0].removeprefix("command: ")
    assert shlex.split(command) == words
    assert command.startswith("python train.py --optimizer '!name:")


# ------------------------------------------------------------------------------------------------------------ script


def test_a_script_is_its_file_whatever_its_encoding(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(b"# caf\xe9\n")
    assert script_source(str(script)) == "# caf\\xe9\n"


def test_a_notebook_is_the_cells_run_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace(user_ns={"In": ["", "import brainlib as bl", "x = 1\ny = 2"]})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[arg-type]
    source = script_source("/tmp/ipykernel_1/123.py")
    assert source == "# %%\nimport brainlib as bl\n\n# %%\nx = 1\ny = 2\n"


# ----------------------------------------------------------------------------------------------------------- results


def test_results_are_strict_json_and_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_results(folder, {"test": {"accuracy": 0.1}})
    path = write_results(
        folder, {"test": {"accuracy": torch.tensor(0.5), "loss": np.float32("nan")}, "seconds": 3}
    )
    assert path == folder / "results.json"
    assert json.loads(path.read_text()) == {"test": {"accuracy": 0.5, "loss": "nan"}, "seconds": 3}
    assert [entry.name for entry in folder.iterdir()] == ["results.json"]


def test_a_refused_start_names_the_hyperparameters_of_the_run(tmp_path: Path) -> None:
    """It has put its own hyperparams.yaml in their place by then, and so has another that was refused."""

    def start(width: int, folder: Path = tmp_path) -> None:
        try:
            bl.create_experiment_directory(folder, {"width": width}, save_env_desc=False)
            checkpointer = bl.Checkpointer(folder / "save")
            small(
                model=torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.Linear(width, 2)).double(),
                checkpointer=checkpointer,
            ).fit(range(1), batches(2))
        finally:
            end_experiment()

    start(4)
    for width in (5, 6):
        with pytest.raises(CheckpointError, match="does not fit, so nothing was loaded") as error:
            start(width)
        assert f"{tmp_path / 'hyperparams.1.yaml'} is what step-00000001 was trained with" in str(error.value)
    assert (tmp_path / "hyperparams.1.yaml").read_text() == "width: 4\n"
    start(4)
    copied = tmp_path / "copied"
    shutil.copytree(tmp_path / "save", copied / "save")
    with pytest.raises(CheckpointError) as error:
        start(5, copied)
    assert "was trained with" not in str(error.value)
