"""What a run says from its start to its end, on a terminal and in a file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from tests.brain.small import Regression

SCRIPT = """
import sys, torch, brainlib as bl

class Fast(bl.Brain):
    def compute_forward(self, batch, stage):
        return self.modules.model(batch)
    def compute_objectives(self, predictions, batch, stage):
        return predictions.square().mean()
    def on_fit_batch_end(self, batch, outputs, loss, should_step):
        if self.step % 100 == 0:
            print(f"mine {self.step}", flush=True)

batches = [torch.ones(1, 2)] * 500
brain = Fast({"model": torch.nn.Linear(2, 1)}, lambda p: torch.optim.SGD(p, 1e-3))
brain.fit(range(2), batches, batches[:1], progressbar=None if sys.argv[1] == "bar" else False)
"""


class Logging(Regression):
    """Logs a metric of its own and chooses by it."""

    ends_in = -1

    def on_fit_batch_end(self, *args: Any) -> None:
        if (self.run_state.epoch, self.step) == (self.ends_in, 2):
            raise KeyboardInterrupt

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        if stage is bl.Stage.VALID:
            score = -abs(stage_loss - 1.0)
            self.hparams.log.log_stats({"epoch": epoch, "lr": 0.1}, None, {"score": score})
            self.checkpointer.save_and_keep_only({"score": score}, max_keys=["score"])


def fitted(folder: Path, cls: Any = Logging, num_epochs: int = 4, ends_in: int = -1, **options: Any) -> Any:
    torch.manual_seed(3)
    brain = cls(
        {"model": torch.nn.Linear(3, 2).double(), "head": torch.nn.Linear(1, 1).requires_grad_(False)},
        lambda p: torch.optim.SGD(p, 0.05),
        hparams={"log": bl.JsonlLogger(folder / "metrics.jsonl"), "seed": 3},
        run_opts={"noprogressbar": True, **options},
        checkpointer=bl.Checkpointer(folder / "save"),
    )
    brain.ends_in = ends_in
    items = [{"x": torch.full((3,), 0.1 * n).double(), "y": torch.ones(2).double()} for n in range(8)]
    loader = {"batch_size": 2}
    brain.fit(
        bl.EpochCounter(num_epochs), items, items[:3], train_loader_kwargs=loader, valid_loader_kwargs=loader
    )
    return brain


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    told = [record.getMessage() for record in caplog.records if record.name == "brainlib"]
    caplog.clear()
    return told


def epoch_lines(told: list[str]) -> list[str]:
    return [re.sub(r"; [\d.]+ s$", "", line) for line in told if line.startswith("epoch ")]


def test_from_start_to_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="brainlib")
    brain = fitted(tmp_path, max_grad_norm=1.5)
    told = said(caplog)
    assert told[:4] == [
        "Logging: model (Linear, 8), head (Linear, 2, 2 of them frozen)",
        "data: train 4 batches (8 items, 2 a batch); valid 2 batches (3 items, 2 a batch)",
        "8 trainable of 10 parameters on cpu in fp32; gradients clipped to norm 1.5; seed 3; "
        "options: max_grad_norm=1.5, noprogressbar=True",
        f"starting from scratch: there is no checkpoint in {tmp_path}/save",
    ]
    lines = epoch_lines(told)
    assert [line.split(":")[0] for line in lines] == ["epoch 1/4", "epoch 2/4", "epoch 3/4", "epoch 4/4"]
    number = r"-?[\d.e-]+"
    assert re.fullmatch(
        rf"epoch 1/4: train loss {number}, valid loss {number}, valid score {number}; lr 0.1", lines[0]
    )
    assert "valid loss" in lines[1] and re.search(r"valid loss [\d.]+ \(-[\d.]+, best\)", lines[1])
    done = told.index("fit 0 is done: 4 epochs, update 16")
    best, where, written, took = told[done + 1 :]
    assert re.fullmatch(rf"best: valid loss {number} in epoch 4, valid score {number} in epoch \d", best)
    newest = brain.checkpointer.newest().path.name
    assert where.startswith(f"checkpoints: {tmp_path}/save, newest {newest}, best (max score) step-")
    assert where.endswith(brain.checkpointer.find_checkpoint(max_key="score").path.name)
    assert written == f"written: {tmp_path}/metrics.jsonl"
    assert took.startswith("the fit took ")


@pytest.mark.parametrize("ends_in", [1, 3])
def test_a_run_that_was_cut_says_the_same_of_its_epochs(
    ends_in: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="brainlib")
    fitted(tmp_path / "uncut")
    uncut = said(caplog)
    with pytest.raises(KeyboardInterrupt):
        fitted(tmp_path / "cut", ends_in=ends_in)
    first = said(caplog)
    assert not any(line.startswith("fit 0 is done") for line in first)
    fitted(tmp_path / "cut")
    second = said(caplog)
    assert epoch_lines(first) + epoch_lines(second) == epoch_lines(uncut)
    assert [line for line in second if line.startswith("best:")] == [
        u for u in uncut if u.startswith("best:")
    ]
    fitted(tmp_path / "cut")
    assert not any(line.startswith(("fit 0 is done", "best:", "epoch")) for line in said(caplog))


def test_a_checkpoint_of_before_there_was_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Older(Logging):
        pass

    brain = fitted(tmp_path, Older, num_epochs=1)
    state = brain._state.state_dict()
    del state["epochs"]
    brain._state.load_state_dict(state)
    assert brain._epochs.best() == []


def run_script(folder: Path, bar: str, **environment: str) -> list[str]:
    """Standard output and error in one file, as `nohup` and schedulers have it."""
    script, log = folder / "script.py", folder / "log.txt"
    script.write_text(SCRIPT)
    with open(log, "wb") as file:
        subprocess.run(
            [sys.executable, script, bar],
            stdout=file,
            stderr=subprocess.STDOUT,
            check=True,
            env={**os.environ, **environment},
            timeout=100,
        )
    data = log.read_bytes()
    assert b"\r" not in data and b"\x1b" not in data
    return data.decode().splitlines()


def test_a_thousand_fast_batches_into_a_file(tmp_path: Path) -> None:
    lines = run_script(tmp_path, "bar")
    bars = [line for line in lines if re.match(r"(train|valid): ", line)]
    assert 4 <= len(bars) < 50
    assert [line for line in lines if "mine" in line] == [f"mine {n}" for n in range(100, 501, 100)] * 2
    others = [line for line in lines if line not in bars and not line.startswith("mine")]
    assert all(line.startswith("brainlib: ") for line in others)
    assert [line.split(":")[1] for line in others if "epoch " in line.split(":")[1]] == [
        " epoch 1/2",
        " epoch 2/2",
    ]


def test_without_a_bar_there_is_no_byte_of_one(tmp_path: Path) -> None:
    lines = run_script(tmp_path, "none", NO_COLOR="1", TERM="dumb")
    assert all(line.startswith(("brainlib: ", "mine ")) for line in lines)
    assert sum(line.startswith("mine ") for line in lines) == 10
