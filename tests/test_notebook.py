"""A real kernel: one line an epoch, a curve that stays in its cell, an interrupt, and code that is edited meanwhile."""

from __future__ import annotations

import base64
import os
import shutil
import time
from pathlib import Path

import pytest

pytest.importorskip("ipykernel", reason="needs the extra [notebook]")
pytest.importorskip("matplotlib", reason="needs the extra [notebook]")

from tests.kernel import Kernel, in_a_kernel
from tests.run_notebook import ROOT
from tests.screen import on_the_page

MODULE = """
import torch, time
import brainlib as bl

class Net(torch.nn.Linear):
    pass

class Edited(bl.Brain):
    def compute_forward(self, batch, stage):
        time.sleep(PAUSE)
        return self.modules.model(batch["x"])

    def compute_objectives(self, predictions, batch, stage):
        if "WORD" and stage is bl.Stage.TRAIN:
            print("WORD", self.step, flush=True)
        return predictions.square().mean()

PAUSE = 0.05

def make(folder=None, *extensions):
    bl.seed_everything(1)
    return Edited(
        {"model": Net(3, 1)}, lambda p: torch.optim.Adam(p, 0.01), hparams={"seed": 1}, extensions=extensions,
        checkpointer=None if folder is None else bl.Checkpointer(folder),
    )

def batches():
    return [torch.full((4, 3), float(n)) for n in range(6)]
"""
IMPORT = "from my_brain import *"
BATCHES = "data = [{'x': each} for each in batches()]"
POINTS = "print(curve.figure().axes[0].lines[0].get_xdata().tolist())"


def write(word: str, folder: Path) -> None:
    """The user's module."""
    (folder / "my_brain.py").write_text(MODULE.replace("WORD", word))


def edit(path: Path, text: str) -> None:
    """As an editor leaves it, later: a reload looks at the time of the file."""
    path.write_text(text)
    stamp = time.time() + 10
    os.utime(path, (stamp, stamp))


def test_one_line_an_epoch_and_a_curve_in_each_cell_that_trains(tmp_path: Path) -> None:
    async def notebook(kernel: Kernel) -> None:
        await kernel.run(f"{IMPORT}; {BATCHES}")
        assert (await kernel.run("curve = bl.LiveCurve(seconds=0); brain = make(None, curve)"))[0] == "ok"
        for last in (3, 6):
            ended, printed = await kernel.run("brain.fit(range(3), data, data)")
            assert ended == "ok", printed
            lines = on_the_page(printed)
            assert "\r" in printed and not [line for line in lines if "batch/s" in line], "a bar has stayed"
            told = [line.split(":")[1].strip() for line in lines if "/3: " in line]
            assert told == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
            kinds = [kind for kind, _ in kernel.shown]
            assert kinds[0] == "display_data" and set(kinds[1:]) == {"update_display_data"}, kinds
            assert len({content["transient"]["display_id"] for _, content in kernel.shown}) == 1
            picture = base64.b64decode(kernel.shown[-1][1]["data"]["image/png"])
            assert picture.startswith(b"\x89PNG") and len(picture) > 5_000
            assert await kernel.run(POINTS) == ("ok", f"{list(range(1, last + 1))}\n")
        await kernel.run("curve")
        assert [kind for kind, _ in kernel.shown] == ["execute_result"]
        assert "image/png" in kernel.shown[0][1]["data"]
        assert await kernel.run("import sys; print('ipywidgets' in sys.modules)") == ("ok", "False\n")

    (tmp_path / "here").mkdir()
    write("", tmp_path / "here")
    in_a_kernel(tmp_path, notebook)


def test_an_interrupted_cell_goes_on_with_its_curve(tmp_path: Path) -> None:
    async def notebook(kernel: Kernel) -> None:
        await kernel.run(f"{IMPORT}; {BATCHES}")
        await kernel.run("curve = bl.LiveCurve(seconds=0); brain, alone = make(None, curve), make()")
        ended, printed = await kernel.run("brain.fit(range(3), data)", interrupt_at="epoch 1/3")
        assert ended == "KeyboardInterrupt" and len(kernel.shown) >= 1, printed
        ended, printed = await kernel.run("brain.fit(range(3), data)")
        assert ended == "ok" and kernel.shown[0][0] == "display_data", printed
        assert await kernel.run(POINTS) == ("ok", "[1, 2, 3]\n")
        await kernel.run("alone.fit(range(3), data)")
        same = "print(torch.equal(brain.modules.model.weight, alone.modules.model.weight))"
        assert await kernel.run(same) == ("ok", "True\n")

    (tmp_path / "here").mkdir()
    write("batch", tmp_path / "here")
    in_a_kernel(tmp_path, notebook)


def test_code_that_is_edited_under_autoreload_is_used_and_the_run_goes_on(tmp_path: Path) -> None:
    """The user's module is edited between two cells, and so is every file of brainlib, as by a pull."""
    here = tmp_path / "here"
    here.mkdir()
    write("before", here)
    shutil.copytree(ROOT / "brainlib", here / "brainlib", ignore=shutil.ignore_patterns("__pycache__"))
    begin = "import os, sys; sys.path.insert(0, os.getcwd())\n%load_ext autoreload\n%autoreload 2\n" + IMPORT

    async def notebook(kernel: Kernel) -> None:
        for cell in (
            begin,
            BATCHES,
            "curve = bl.LiveCurve(seconds=0); brain, alone = make('save', curve), make()",
        ):
            ended, printed = await kernel.run(cell)
            assert ended == "ok", printed
        ended, printed = await kernel.run("brain.fit(range(3), data, data)", interrupt_at="before 3")
        assert ended == "KeyboardInterrupt", printed
        edit(here / "my_brain.py", MODULE.replace("WORD", "after"))
        for path in (here / "brainlib").rglob("*.py"):
            edit(path, path.read_text() + "\nEDITED = True\n")
        ended, printed = await kernel.run("brain.fit(range(3), data, data)")
        assert ended == "ok" and "after 6" in printed and "before" not in printed, printed
        assert printed.count("epoch 3/3") == 1, "each line once"
        assert await kernel.run("print(bl.stage.EDITED, bl.brain.EDITED)") == ("ok", "True True\n")
        await kernel.run("alone.fit(range(3), data, data)")
        same = "print(torch.equal(brain.modules.model.weight, alone.modules.model.weight))"
        assert await kernel.run(same) == ("ok", "True\n")
        again = "brain = make('save', curve); brain.fit(range(4), data, data)"
        ended, printed = await kernel.run(again)
        assert ended == "ok" and "resumed from" in printed and printed.count("after 1\n") == 1, printed
        assert await kernel.run(POINTS) == ("ok", "[1, 2, 3, 4]\n")

    in_a_kernel(tmp_path, notebook)
