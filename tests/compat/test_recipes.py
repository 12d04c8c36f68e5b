"""Three recipes in SpeechBrain's style, with nothing but their imports changed, as `brainlib port --write` does it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from brainlib.compat.port import port

RECIPES = Path(__file__).parent / "recipes"
ROOT = Path(__file__).resolve().parents[2]
needs_speechbrain = pytest.mark.skipif(
    importlib.util.find_spec("speechbrain") is None,
    reason="its layers are speechbrain's, which is not installed",
)


def run(name: str, folder: Path, *, ported: bool = True) -> str:
    script, text = folder / "train.py", (RECIPES / f"{name}.py").read_text()
    script.write_text(port(text).text if ported else text)
    done = subprocess.run(
        [
            sys.executable,
            script,
            RECIPES / f"{name}.yaml",
            "--output_folder",
            folder / "out",
            "--device",
            "cpu",
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_classification_runs_without_speechbrain(tmp_path: Path) -> None:
    told = run("classification", tmp_path)
    assert "fit 0 is done: 3 epochs, update 9" in told and "evaluating with the weights of" in told
    log = (tmp_path / "out/train_log.txt").read_text()
    assert "Epoch: 3, lr: 0.1" in log and "Epoch loaded: 3" in log, log
    assert "3 labels are written" in told and (tmp_path / "out/save/label_encoder.txt").exists()


@needs_speechbrain
def test_ctc_runs_with_the_layers_of_speechbrain(tmp_path: Path) -> None:
    told = run("ctc", tmp_path)
    assert "epoch 2/2: train loss" in told and "valid WER" in told


@needs_speechbrain
def test_gan_runs_with_a_fit_batch_of_its_own(tmp_path: Path) -> None:
    assert "fit 0 is done: 2 epochs, update 6" in run("gan", tmp_path)


@needs_speechbrain
@pytest.mark.parametrize("name", ["classification", "ctc", "gan"])
def test_they_are_recipes_of_speechbrain(name: str, tmp_path: Path) -> None:
    """As they stand, speechbrain runs them with its own trainer."""
    pytest.importorskip("hyperpyyaml")
    run(name, tmp_path, ported=False)
    assert list((tmp_path / "out/save").glob("CKPT+*"))
