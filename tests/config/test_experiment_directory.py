"""create_experiment_directory: from a script, a notebook, standard input and -c; begun and resumed."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from brainlib.common.logs import logger
from brainlib.config import load_hyperpyyaml
from brainlib.config.experiment_directory import create_experiment_directory
from brainlib.experiment import end_experiment

HPARAMS = """
seed: 7
output_folder: !PLACEHOLDER
save_folder: !ref <output_folder>/save
lr: 0.1
half: !ref <lr> / 2
rate: !new:fractions.Fraction
    numerator: !ref <seed>
"""


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    end_experiment()  # of whoever came before
    handlers = list(logger.handlers)
    yield
    end_experiment()
    assert logger.handlers == handlers


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_hyperparameters_are_resolved_and_load_again(tmp_path: Path) -> None:
    param_file = tmp_path / "cnn.yaml"
    param_file.write_text(HPARAMS)
    folder = tmp_path / "out"
    overrides = {"output_folder": str(folder), "lr": 0.5}
    assert create_experiment_directory(folder, param_file, overrides, save_env_desc=False) == folder

    text = (folder / "hyperparams.yaml").read_text()
    assert "!ref" not in text and f"save_folder: {folder}/save" in text and "half: 0.25" in text
    assert load_hyperpyyaml(text) == load_hyperpyyaml(param_file, overrides)


def test_a_dict_of_values(tmp_path: Path) -> None:
    create_experiment_directory(
        tmp_path, {"lr": 0.1, "folder": tmp_path, "sizes": (1, 2)}, "lr: 0.2", save_env_desc=False
    )
    text = (tmp_path / "hyperparams.yaml").read_text()
    assert load_hyperpyyaml(text) == {"lr": 0.2, "folder": str(tmp_path), "sizes": [1, 2]}


def test_a_resumed_run_goes_on_with_the_log_and_keeps_what_differs(tmp_path: Path) -> None:
    for lr in (0.1, 0.1, 0.2):
        create_experiment_directory(tmp_path, {"lr": lr})
        logger.info("with %s", lr)
    assert names(tmp_path) == [
        "env.txt",
        "hyperparams.1.yaml",
        "hyperparams.yaml",
        "train.py",
        "train_log.txt",
    ]
    assert (tmp_path / "hyperparams.1.yaml").read_text() == "lr: 0.1\n"
    log = (tmp_path / "train_log.txt").read_text()
    assert log.count("INFO experiment folder: ") == 3
    assert [log.count(f"INFO with {lr}") for lr in (0.1, 0.2)] == [2, 1]


def test_two_folders_do_not_mix(tmp_path: Path) -> None:
    for name in ("a", "b"):
        create_experiment_directory(tmp_path / name, save_env_desc=False)
        logger.info("this is %s", name)
    assert "this is b" not in (tmp_path / "a" / "train_log.txt").read_text()
    assert "this is a" not in (tmp_path / "b" / "train_log.txt").read_text()


def test_a_folder_can_be_moved_and_used_again(tmp_path: Path) -> None:
    create_experiment_directory(tmp_path / "a", {"lr": 0.1}, save_env_desc=False)
    end_experiment()
    (tmp_path / "a").rename(tmp_path / "b")
    create_experiment_directory(tmp_path / "b", {"lr": 0.1}, save_env_desc=False)
    logger.info("moved")
    assert names(tmp_path) == ["b"] and names(tmp_path / "b") == [
        "hyperparams.yaml",
        "train.py",
        "train_log.txt",
    ]
    assert "moved" in (tmp_path / "b" / "train_log.txt").read_text()


# --------------------------------------------------------------------------------------- where the code comes from

CODE = """
from brainlib.config.experiment_directory import create_experiment_directory
create_experiment_directory({folder!r}, {{"lr": 0.1}})
"""


def test_from_a_script(tmp_path: Path) -> None:
    script = tmp_path / "finetune.py"
    script.write_text(CODE.format(folder=str(tmp_path / "out")))
    runpy.run_path(str(script), run_name="__main__")
    assert names(tmp_path / "out") == ["env.txt", "hyperparams.yaml", "train.py", "train_log.txt"]
    assert (tmp_path / "out" / "train.py").read_text() == script.read_text()


def test_from_a_command_and_from_standard_input(tmp_path: Path) -> None:
    codes = {name: CODE.format(folder=str(tmp_path / name)) for name in ("command", "stdin")}
    command = subprocess.Popen([sys.executable, "-c", codes["command"]], stderr=subprocess.PIPE, text=True)
    stdin = subprocess.Popen([sys.executable, "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for process, given in ((stdin, codes["stdin"]), (command, None)):
        errors = process.communicate(given)[1]
        assert process.returncode == 0, errors
        assert errors.startswith("brainlib: experiment folder: ")
    assert names(tmp_path / "command") == ["env.txt", "hyperparams.yaml", "train.py", "train_log.txt"]
    assert (tmp_path / "command" / "train.py").read_text().strip() == codes["command"].strip()
    assert names(tmp_path / "stdin") == [
        "env.txt",
        "hyperparams.yaml",
        "train_log.txt",
    ]  # Python keeps no source of it


# ------------------------------------------------------------------------------------------------------------ errors


def test_a_missing_file_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.yaml"):
        create_experiment_directory(tmp_path / "out", tmp_path / "missing.yaml")
    assert names(tmp_path) == []


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"log_config is not supported.*logging\.basicConfig"):
        create_experiment_directory(tmp_path, log_config="log-config.yaml")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="overrides are given without hyperparams_to_save"):
        create_experiment_directory(tmp_path, overrides={"lr": 0.1})
    with pytest.raises(ValueError, match="'lr'"):
        create_experiment_directory(tmp_path, {"lr": 0.1}, {"lrr": 0.1})
    assert names(tmp_path) == []
