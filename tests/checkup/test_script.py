"""`brainlib doctor` on scripts: the digits recipe, and what only fresh processes can show."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from brainlib.checkup.examine import examine
from brainlib.checkup.report import CheckupError, Report
from brainlib.checkup.script import become, doctor_script, folder_keys
from brainlib.checkup.session import Plan
from brainlib.cli import main

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import sys
from pathlib import Path
import torch
import brainlib as bl
from beside import Simple

file, run_opts, overrides = bl.parse_arguments()
hparams = bl.load_hyperpyyaml(file, overrides)
folder = Path(hparams["output_folder"])
bl.create_experiment_directory(folder, file, overrides, save_env_desc=False)
{before}
model = torch.nn.Linear(3, 1)
brain = Simple(
    {{"model": model}}, lambda p: torch.optim.SGD(p, 0.1), hparams, {{"noprogressbar": True, **run_opts}},
    bl.Checkpointer(hparams["save_folder"]),
)
{fit}
(folder / "done.txt").write_text("this line is not reached")
"""

BESIDE = """
import torch
import brainlib as bl

class Words(torch.utils.data.Dataset):
    def __init__(self):
        self.words = list({"alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"})
    def __len__(self):
        return len(self.words)
    def __getitem__(self, index):
        word = self.words[index]
        return {"id": word, "x": torch.tensor([len(word), ord(word[0]) % 7, ord(word[1]) % 5]).float()}

class Simple(bl.Brain):
    def compute_forward(self, batch, stage):
        return self.modules.model(batch["x"])
    def compute_objectives(self, predictions, batch, stage):
        return (predictions - 1).pow(2).mean()
"""

HPARAMS = """
seed: 1
__set_seed: !apply:brainlib.seed_everything [!ref <seed>]
output_folder: !PLACEHOLDER
save_folder: elsewhere/save
"""

ON_WORDS = 'from beside import Words\nbrain.fit(range(5), Words(), train_loader_kwargs={"batch_size": 2})'
ON_BATCHES = 'brain.fit(range(5), [{"x": torch.rand(4, 3)} for _ in range(4)])'


def written(folder: Path, fit: str, before: str = "") -> tuple[Path, Path]:
    (folder / "beside.py").write_text(BESIDE)
    (folder / "train.py").write_text(SCRIPT.format(fit=fit, before=before))
    (folder / "hparams.yaml").write_text(HPARAMS)
    return folder / "train.py", folder / "hparams.yaml"


def in_forks(script: Path, *words: str) -> Report:
    """As `doctor_script` does it, in copies of this process: a fresh interpreter takes three seconds."""

    torch.optim.SGD([torch.zeros(1)], 0.1)  # the first optimizer of a process imports a third of torch

    def start(name: str, plan: Plan) -> None:
        job = json.dumps(dataclasses.asdict(plan))
        folders = [f"--{key}={plan.folder}/{place}" for key, place in folder_keys(words).items()]
        become([job, str(script), *words, *folders])

    return examine(start, num_batches=None, timeout=60, at_once=2, quiet_loggers=False, accumulation=True)


def test_the_digits_recipe_is_passed_in_silence(tmp_path: Path) -> None:
    pytest.importorskip("sklearn.datasets", reason="the embedded digits come inside scikit-learn")
    pytest.importorskip("matplotlib.figure", reason="the recipe draws with matplotlib")
    recipe, hparams = ROOT / "recipes" / "digits" / "train.py", ROOT / "hparams" / "digits" / "cnn.yaml"
    report = in_forks(recipe, str(hparams), "--output_folder", str(tmp_path / "out"))
    assert report and report.findings == [], str(report)
    assert [text for name, text in report.checks if name != "accumulation"] == [
        "equal bits in 10 batches of 3 epochs",
        "after epoch 1: equal bits to the end",
        "after batch 2 of epoch 2: equal bits to the end",
    ]
    assert "same gradient" in dict(report.checks)["accumulation"]
    assert not (tmp_path / "out").exists()


def test_the_order_of_a_set_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the same in processes that were forked, and another in each that was started."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    script, hparams = written(tmp_path, ON_WORDS)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert main(["doctor", str(script), str(hparams), "--output_folder", str(tmp_path / "out")]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "1. same again: batch 1 of epoch 1" in told and "the order differs" in told
    assert "train_set.words" in told and "Words.__init__ uses the order of a set" in told
    assert told.endswith("s") and "1 found" in told
    # Not a trace of it but Python's own.
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != "__pycache__"} == before


def test_a_script_is_run_up_to_its_fit_in_folders_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script, hparams = written(tmp_path, ON_BATCHES)
    report = in_forks(script, str(hparams), "--output_folder", "mine")
    assert report, str(report)
    assert report.notes == []
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {
        "beside.py",
        "train.py",
        "hparams.yaml",
    }


def test_a_file_that_the_script_writes_elsewhere_is_told(tmp_path: Path) -> None:
    script, hparams = written(tmp_path, ON_BATCHES, f"Path({str(tmp_path)!r}, 'mine.txt').write_text('x')")
    (note,) = in_forks(script, str(hparams)).notes
    assert note == f"the script also wrote to {tmp_path / 'mine.txt'}"


@pytest.mark.parametrize(
    ("fit", "words", "message"),
    [
        ("pass", [], "the script ended, and there was no fit in it that trains"),
        ("brain.fit(range(5), [])", [], r"the run itself fails:\n(.|\n)*ValueError: train_set is empty"),
        (ON_BATCHES, ["--no_such_key", "1"], r"the run itself fails:\n(.|\n)*no_such_key"),
        ("raise SystemExit(4)", [], r"the run itself fails:\n(.|\n)*SystemExit: 4"),
        (ON_BATCHES, ["--test_only"], "there was no fit in it that trains"),
    ],
)
def test_a_script_that_cannot_be_examined(tmp_path: Path, fit: str, words: list[str], message: str) -> None:
    script, hparams = written(tmp_path, fit)
    with pytest.raises(CheckupError, match=message):
        in_forks(script, str(hparams), *words)


def test_there_is_no_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CheckupError, match="there is no script"):
        doctor_script(tmp_path / "train.py")
    assert main(["doctor", str(tmp_path / "train.py"), "hparams.yaml"]) == 2
    assert "brainlib: there is no script" in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert "SCRIPT HPARAMS" in told and "--no_accumulation" in told and "Exit status: 0 nothing found" in told
