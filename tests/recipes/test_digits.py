"""The recipe as its users run it: from the command line, with the choices of its YAML, killed and started again."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import brainlib as bl
from tests.recipes.outcome import assert_same_run, num_rows, results, rows_of
from tests.recipes.warm import WarmScript

pytest.importorskip("sklearn", reason="the embedded digits come inside scikit-learn")
pytest.importorskip("matplotlib", reason="the recipe draws with matplotlib")

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "recipes" / "digits" / "train.py"
HPARAMS = ROOT / "hparams" / "digits"
PICTURES = ("curves.png", "confusion.png", "mistakes.png")


@pytest.fixture(scope="module")
def recipe() -> Iterator[Callable[..., int]]:
    """`recipe("mlp", out, "--lr", "0.1")` runs the script in a process of its own, output to out/output.txt."""
    with WarmScript(SCRIPT, ROOT) as script:

        def run(name: str, out: Path, *arguments: str, kill_when: Callable[[], bool] = lambda: False) -> int:
            out.mkdir(exist_ok=True)
            words = [
                str(HPARAMS / f"{name}.yaml"),  # a path of its own where the name is absolute
                "--output_folder",
                str(out),
                "--noprogressbar",
                *arguments,
            ]
            return script.run(*words, output=out / "output.txt", kill_when=kill_when)

        yield run


def output(out: Path) -> str:
    return (out / "output.txt").read_text()


def pixels(path: Path) -> np.ndarray:
    """What a PNG shows, [rows, columns, channels]; reads the format itself, and checks every sum in it."""
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    place, chunks = 8, []
    while place < len(content):
        (size,), kind = struct.unpack(">I", content[place : place + 4]), content[place + 4 : place + 8]
        data = content[place + 8 : place + 8 + size]
        (total,) = struct.unpack(">I", content[place + 8 + size : place + 12 + size])
        assert zlib.crc32(kind + data) == total
        chunks.append((kind, data))
        place += 12 + size
    assert chunks[0][0] == b"IHDR" and chunks[-1][0] == b"IEND"
    from matplotlib.image import imread

    return imread(path)


# ------------------------------------------------------------------------------------------------- the whole recipe


def test_the_command_of_the_readme_reaches_the_accuracy_it_promises(tmp_path: Path) -> None:
    words = [sys.executable, SCRIPT, HPARAMS / "cnn.yaml", "--output_folder", tmp_path, "--noprogressbar"]
    process = subprocess.run(
        words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )

    assert process.returncode == 0, process.stderr
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["test"]["accuracy"] >= 0.975
    assert 0 < found["test"]["loss"] < 0.2
    assert 0 < found["seconds"] < 60
    assert set(found) == {"test", "epoch", "checkpoint", "seed", "seconds"} and found["seed"] == 1234
    assert f"test accuracy {found['test']['accuracy']:.4f}" in process.stdout
    for name in PICTURES:
        assert str(tmp_path / name) in process.stdout
    assert {path.name for path in tmp_path.iterdir()} == {
        *PICTURES, "hyperparams.yaml", "train.py", "env.txt", "train_log.txt", "metrics.jsonl", "results.json", "save",
    }  # fmt: skip

    rows = bl.read_metrics(tmp_path / "metrics.jsonl", merge_by="epoch")
    assert [row["epoch"] for row in rows] == list(range(1, 31))
    assert all(set(row) >= {"train", "valid", "test", "lr"} for row in rows)
    assert rows[-1]["train"]["accuracy"] > 0.98 > rows[0]["train"]["accuracy"]
    # the rate that was used: an epoch has 20 updates, and the one after the last would have had 0
    for row in rows:
        assert row["lr"] == pytest.approx(3e-3 * (1 - (20 * row["epoch"] - 1) / 600))
    # the weights that were evaluated are those of the best epoch on valid, the newest of several
    best = max(rows, key=lambda row: (row["valid"]["accuracy"], row["epoch"]))
    assert found["test"]["accuracy"] == best["test"]["accuracy"]
    assert found["epoch"] == best["epoch"]
    assert (
        found["checkpoint"] == f"step-{20 * best['epoch']:08d}"
        and (tmp_path / "save" / found["checkpoint"]).is_dir()
    )


@pytest.mark.parametrize(
    ("name", "floor", "arguments"),
    [
        ("softmax", 0.60, []),
        ("softmax", 0.50, ["--augment", "!new:augment.RandomAffine {degrees: 8, scale: 0.1, shift: 0.06}"]),
        ("mlp", 0.20, []),
        ("mlp", 0.20, ["--loss", "!new:losses.SquaredError", "--number_of_epochs", "8"]),
        ("mlp", 0.20, ["--optimizer", "!name:torch.optim.SGD {lr: 0.3}"]),
        ("mlp", 0.20, ["--optimizer", "!name:torch.optim.SGD {lr: !ref <lr>, momentum: 0.9}", "--lr", "0.1"]),
        ("mlp", 0.20, ["--optimizer", "!name:torch.optim.Adagrad {lr: 0.02}"]),
        ("mlp", 0.20, ["--schedule", "!name:brainlib.update.schedules.Cosine {num_warmup: 20}"]),
        ("mlp", 0.20, ["--l2", "1e-2", "--l2_on", "*.weight"]),
        ("mlp", 0.20, ["--train_loader", "{batch_size: 64, shuffle: True, num_workers: 1}"]),
        ("cnn", 0.20, ["--augment", "null", "--watch_test", "false"]),
    ],
    ids=[
        "softmax",
        "augment",
        "mlp",
        "squared-error",
        "sgd",
        "momentum",
        "adagrad",
        "cosine",
        "l2",
        "workers",
        "no-augment",
    ],
)
def test_each_choice_of_the_yaml_trains(
    recipe: Callable[..., int], tmp_path: Path, name: str, floor: float, arguments: list[str]
) -> None:
    assert recipe(name, tmp_path, "--number_of_epochs", "2", *arguments) == 0, output(tmp_path)
    assert results(tmp_path)["test"]["accuracy"] > floor
    row = bl.read_metrics(tmp_path / "metrics.jsonl")[-1]
    assert ("test" in row) == ("--watch_test" not in arguments)


def test_every_choice_that_a_comment_shows_is_tried_above() -> None:
    text = Path(__file__).read_text()
    for path in HPARAMS.glob("*.yaml"):
        choices = re.findall(r"^# ([a-z]\w*): (\S+)", path.read_text(), flags=re.MULTILINE)
        assert {"dataset", "augment", "train_loader", "loss", "optimizer", "schedule"} == {
            key for key, _ in choices
        }
        for key, value in choices:
            assert f'"--{key}"' in text and value.rstrip("{") in text


def test_l2_without_a_parameter_names_those_there_are(recipe: Callable[..., int], tmp_path: Path) -> None:
    assert recipe("softmax", tmp_path, "--l2_on", "*.wieght") == 1
    message = (
        "l2_on is '*.wieght', which fits the name of no parameter. There are: layers.1.weight, layers.1.bias."
    )
    assert message in output(tmp_path)


def test_l2_is_on_the_chosen_parameters(recipe: Callable[..., int], tmp_path: Path) -> None:
    # So strong that it takes what it is on to nothing; the biases are spared and learn how frequent the digits are.
    strong = ["--l2", "100", "--number_of_epochs", "1", "--optimizer", "!name:torch.optim.SGD {lr: 0.01}"]
    assert recipe("softmax", tmp_path, "--l2_on", "*.weight", *strong) == 0, output(tmp_path)
    weights = bl.load_weights(tmp_path / "save", "model")
    assert weights["layers.1.weight"].abs().max() < 1e-3 < weights["layers.1.bias"].abs().max()


def test_mnist_is_read_from_its_folder(
    recipe: Callable[..., int], tmp_path: Path, data_dir: Callable[[str], Path]
) -> None:
    arguments = ["--dataset", "mnist", "--data_folder", str(data_dir("mnist")), "--number_of_epochs", "1"]
    assert (
        recipe("softmax", tmp_path, *arguments, "--limit_train_batches", "60", "--watch_test", "false") == 0
    )
    assert "train  54999 images of 28 x 28" in output(tmp_path)
    assert results(tmp_path)["test"]["accuracy"] > 0.6
    # a debug run reads two batches of the test: the pictures are of what it read
    assert recipe("softmax", tmp_path, *arguments, "--debug", "--watch_test", "false") == 0, output(tmp_path)
    assert (tmp_path / "debug" / "confusion.png").exists()


# ------------------------------------------------------------------------------------------------------ the pictures


def test_pictures_are_pngs_with_something_to_see(recipe: Callable[..., int], tmp_path: Path) -> None:
    assert recipe("softmax", tmp_path, "--number_of_epochs", "2") == 0, output(tmp_path)
    for name in PICTURES:
        image = pixels(tmp_path / name)
        rows, columns, _ = image.shape
        assert 250 < rows < 1000 and 400 < columns < 1400, name
        inked = (image[..., :3] < 0.9).any(axis=2)
        assert 0.01 < inked.mean() < 0.9, name
        assert inked[: rows // 2].any() and inked[rows // 2 :].any(), name
        assert len(np.unique(image.reshape(-1, image.shape[2]), axis=0)) > 50, name


@pytest.mark.parametrize("num_wrong", [0, 1, 3, 7, 30])
def test_mistakes_are_as_wide_as_there_are_mistakes(tmp_path: Path, num_wrong: int) -> None:
    plots = plots_of_the_recipe()
    images, labels = torch.rand(40, 1, 8, 8), torch.arange(40) % 10
    digits = labels.clone()
    digits[:num_wrong] = (digits[:num_wrong] + 1) % 10
    plots.plot_mistakes(images, labels, digits, torch.linspace(1, 0, 40), tmp_path / "mistakes.png")
    image = pixels(tmp_path / "mistakes.png")[..., :3]
    inked = (image < 0.9).any(axis=2).any(axis=0).nonzero()[0]  # columns with something in them
    margins = inked[0], image.shape[1] - 1 - inked[-1]
    assert max(margins) < image.shape[1] / 3 and abs(margins[0] - margins[1]) < image.shape[1] / 8


def test_curves_mark_the_tested_epoch(tmp_path: Path) -> None:
    plots = plots_of_the_recipe()
    rows = [
        {"epoch": n, **{group: {"loss": 1 / n, "accuracy": 1 - 1 / n} for group in ("train", "valid")}}
        for n in (1, 2, 3)
    ]
    pictures = []
    for epoch in (None, 2, 3):
        plots.plot_curves(rows, tmp_path / "curves.png", "a title", epoch)
        pictures.append(pixels(tmp_path / "curves.png").tobytes())
    assert len(set(pictures)) == 3


def plots_of_the_recipe() -> ModuleType:
    spec = importlib.util.spec_from_file_location("digits_plots", SCRIPT.with_name("plots.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ------------------------------------------------------------------------------------------- trying out, and testing


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a run by name, without what the console showed and what a debug run left."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "output.txt"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if "debug" not in path.parts}


def test_a_debug_run_leaves_a_finished_one_alone(recipe: Callable[..., int], tmp_path: Path) -> None:
    assert recipe("softmax", tmp_path, "--number_of_epochs", "3", "--num_threads", "2") == 0, output(tmp_path)
    before = contents(tmp_path)
    assert b"threads: 2 of " in before["env.txt"]
    for _ in range(2):
        assert recipe("softmax", tmp_path, "--number_of_epochs", "3", "--debug") == 0, output(tmp_path)
    assert contents(tmp_path) == before

    trial = tmp_path / "debug"
    assert output(tmp_path).count(f"debug: a few batches only; the files of this run go to {trial}") == 2
    assert {path.name for path in trial.iterdir()} >= {
        *PICTURES,
        "metrics.jsonl",
        "results.json",
        "train_log.txt",
    }
    assert num_rows(trial) == 2  # of the second; those of the first are gone
    assert str(trial / "results.json") in output(tmp_path)

    # The option may stand in the hparams file as well, and checkpoints may be wanted.
    hparams = tmp_path / "debug.yaml"
    text = (HPARAMS / "softmax.yaml").read_text()
    hparams.write_text(text + "run_opts: {debug: True, debug_persistently: True, debug_epochs: 1}\n")
    del before["train_log.txt"]
    assert recipe(str(hparams.with_suffix("")), tmp_path) == 0, output(tmp_path)
    assert {name: file for name, file in contents(tmp_path).items() if name in before} == before
    assert len(list((trial / "save").glob("step-*"))) == 1


def test_testing_a_finished_run_again_keeps_what_the_training_wrote(
    recipe: Callable[..., int], tmp_path: Path
) -> None:
    assert recipe("softmax", tmp_path, "--number_of_epochs", "2") == 0, output(tmp_path)
    before, metrics = results(tmp_path), (tmp_path / "metrics.jsonl").read_bytes()
    assert recipe("softmax", tmp_path, "--number_of_epochs", "2", "--test_only", "--seed", "5") == 0, output(
        tmp_path
    )
    assert results(tmp_path) == before and before["seconds"] > 0 and before["seed"] == 1234
    assert (tmp_path / "metrics.jsonl").read_bytes() == metrics


def test_testing_without_training_says_so_and_draws_what_it_can(
    recipe: Callable[..., int], tmp_path: Path
) -> None:
    assert recipe("softmax", tmp_path, "--test_only", "--seed", "5") == 0, output(tmp_path)
    found = results(tmp_path)
    assert found["test"]["accuracy"] < 0.5
    assert {key: found[key] for key in found if key != "test"} == {
        "epoch": None,
        "checkpoint": None,
        "seed": 5,
    }
    assert not (tmp_path / "curves.png").exists() and (tmp_path / "confusion.png").exists()
    assert "evaluating with the current weights: there is no checkpoint" in output(tmp_path)
    assert "s of training" not in output(tmp_path)


# ------------------------------------------------------------------------------------------------- killed, and again

# Not beside training: which saves are put off there depends on the clock, and so does the name "step-00000160-2".
KILL_ARGUMENTS = ("--number_of_epochs", "8", "--ckpt_interval_steps", "7", "--ckpt_async", "False")


def saved_weights(out: Path) -> dict[str, torch.Tensor]:
    return bl.load_weights(out / "save", "model")


@pytest.fixture(scope="module")
def uncut(recipe: Callable[..., int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("uncut")
    assert recipe("cnn", out, *KILL_ARGUMENTS) == 0, output(out)
    return out


def test_killed_at_four_moments_it_goes_on_and_ends_the_same(
    recipe: Callable[..., int], tmp_path: Path, uncut: Path
) -> None:
    moments: list[Callable[[], bool]] = [
        lambda: (
            (tmp_path / "save").exists() and any((tmp_path / "save").glob("step-*"))
        ),  # inside the first epoch
        lambda: num_rows(tmp_path) >= 2,  # between logging and saving, or just after
        lambda: num_rows(tmp_path) >= 5,
        lambda: (tmp_path / "curves.png").exists(),  # trained, evaluated, not yet written down
    ]
    for number, moment in enumerate(moments):
        assert recipe("cnn", tmp_path, *KILL_ARGUMENTS, kill_when=moment) == -9, (number, output(tmp_path))
        assert not (tmp_path / "results.json").exists()
    assert recipe("cnn", tmp_path, *KILL_ARGUMENTS) == 0, output(tmp_path)

    assert_same_run(tmp_path, uncut)
    said = output(tmp_path)
    assert said.count("starting from scratch") == 1
    assert said.count("resumed") == 4
    assert "Warning" not in said and "warning" not in said
    assert results(tmp_path)["seconds"] > 0


@pytest.mark.parametrize("seed", range(int(os.environ.get("BRAINLIB_KILL_RUNS", "2"))))
def test_killed_at_random_moments_it_ends_the_same(
    recipe: Callable[..., int], tmp_path: Path, uncut: Path, seed: int
) -> None:
    """Two runs of four kills, the second with its loader in the background; BRAINLIB_KILL_RUNS=20 asks for twenty."""
    delays = random.Random(seed)
    arguments = (*KILL_ARGUMENTS, "--train_loader", f"{{num_workers: {seed % 2}}}")
    for _ in range(4):
        until = time.monotonic() + delays.uniform(0.1, 1.0)
        status = recipe("cnn", tmp_path, *arguments, kill_when=lambda until=until: time.monotonic() > until)
        assert status in (0, -9), output(tmp_path)  # 0: it was done before
    assert recipe("cnn", tmp_path, *arguments) == 0, output(tmp_path)
    assert_same_run(tmp_path, uncut)


def test_a_finished_run_started_again_trains_no_more_and_says_the_same(
    recipe: Callable[..., int], tmp_path: Path
) -> None:
    assert recipe("softmax", tmp_path, "--number_of_epochs", "2") == 0
    before, rows = results(tmp_path), num_rows(tmp_path)
    assert recipe("softmax", tmp_path, "--number_of_epochs", "2") == 0
    assert results(tmp_path)["test"] == before["test"]
    assert results(tmp_path)["seconds"] == pytest.approx(before["seconds"], abs=1.0)
    assert num_rows(tmp_path) == rows
    assert "nothing to do" in output(tmp_path)


def test_more_epochs_add_the_difference(recipe: Callable[..., int], tmp_path: Path) -> None:
    assert recipe("softmax", tmp_path, "--number_of_epochs", "2") == 0
    assert recipe("softmax", tmp_path, "--number_of_epochs", "3") == 0
    epochs = [row["epoch"] for row in rows_of(tmp_path)]
    assert epochs == [1, 2, 3]
    assert all(before < after for before, after in pairwise(epochs))


def test_the_seed_decides_everything(recipe: Callable[..., int], tmp_path: Path) -> None:
    runs = {}
    for folder, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        out = tmp_path / folder
        assert recipe("mlp", out, "--number_of_epochs", "2", "--seed", seed) == 0, output(out)
        runs[folder] = (rows_of(out), saved_weights(out))
    assert runs["a"][0] == runs["b"][0] and runs["a"][0] != runs["c"][0]
    assert all(torch.equal(runs["a"][1][name], runs["b"][1][name]) for name in runs["a"][1])


def test_checks_profile_and_benchmark_are_flags(recipe: Callable[..., int], tmp_path: Path) -> None:
    flags = [
        "--check_content",
        "all",
        "--sanity_valid_batches",
        "1",
        "--overfit_batches",
        "4",
        "--detect_anomaly",
    ]
    profile = ["--profiler-options", "batch_range=[2, 4]; exit_on_finished=false"]
    short = ["--number_of_epochs", "2", "--noprogressbar"]
    assert recipe("mlp", tmp_path, *short, *flags, *profile) == 0, output(tmp_path)
    assert "weight: grad" in (tmp_path / "checks.txt").read_text()
    assert (tmp_path / "profile.rank0.cycle0.json").exists()
    assert "sanity validation: 1 batch went through" in output(tmp_path)
    before = contents(tmp_path)

    assert recipe("mlp", tmp_path, *short, "--benchmark_max_step", "7", "--benchmark_batch_size", "16") == 0
    line = next(each for each in output(tmp_path).splitlines() if each.startswith('{"benchmark"'))
    assert (line.count('"updates": 7'), line.count('"batch_size": 16')) == (1, 1)
    after = {name: data for name, data in contents(tmp_path).items() if not name.startswith("benchmark/")}
    assert after == before

    assert recipe("mlp", tmp_path / "rates", "--find_lr", "True") == 0
    assert "try lr 0.0" in output(tmp_path / "rates")
    assert pixels(tmp_path / "rates" / "learning_rates.png").size > 10_000
