"""A debug or benchmark run of each recipe leaves a finished run alone; and env.txt has the threads that it had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.recipes.outcome import num_rows, results
from tests.recipes.warm import WarmScript

pytest.importorskip("sklearn", reason="the warm process imports it for the digits")
pytest.importorskip("matplotlib", reason="the recipes draw with matplotlib")

ROOT = Path(__file__).resolve().parents[2]
TINY = {  # test_digits.py looks at the digits
    "an4": [
        *["characters", "an4", "--num_utterances=4", "--num_warmup=1", "--channels=32", "--hidden_size=32"],
        *["--ngram_weights=[1.0]", "--word_scores=[0.0]"],
    ],
    "spoken_digits": ["digits", "fsdd", "--channels=[8, 8]", "--limit_train_batches=2"],
    "yesno": ["cnn", "yesno", "--items_per_epoch=32"],
}


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a run by name, without those of its trials."""
    paths = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return {str(path): (folder / path).read_bytes() for path in paths if path.parts[0] not in TRIALS}


TRIALS = {"debug": ["--debug"], "benchmark": ["--benchmark_max_step=1"]}


@pytest.mark.parametrize("recipe", TINY)
def test_a_trial_leaves_a_finished_run_alone(
    recipe: str, data_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    name, data, *tiny = TINY[recipe]
    folder, said = tmp_path / "run", tmp_path / "said.txt"
    words = [str(ROOT / f"hparams/{recipe}/{name}.yaml"), "--output_folder", str(folder), "--noprogressbar"]
    words += ["--number_of_epochs=2", "--data_folder", str(data_dir(data)), *tiny]
    with WarmScript(ROOT / "recipes" / recipe / "train.py", ROOT) as script:
        assert script.run(*words, "--num_threads=2", output=said) == 0, said.read_text()
        before = contents(folder)
        assert {"results.json", "metrics.jsonl", "env.txt"} <= before.keys()
        assert b"threads: 2 of " in before["env.txt"]
        for trial, option in TRIALS.items():
            assert script.run(*words, *option, output=said) == 0, said.read_text()
            assert contents(folder) == before
            assert (
                f"{trial}: a few batches only; the files of this run go to {folder / trial}"
                in said.read_text()
            )
            assert results(folder / trial)
            assert f"[{folder / trial}/save]" in (folder / trial / "hyperparams.yaml").read_text()
        assert num_rows(folder / "debug") == 2
