"""A real kernel: an interrupt brings the prompt back, and the same cell run again goes on to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipykernel", reason="needs the extra [notebook]")

from tests.kernel import Kernel, in_a_kernel

SETUP = """
import sys, time
import torch
torch.set_num_threads(1)
import brainlib as bl
from tests.contracts.brains import Plain, InnerFit, Items, SHUFFLED, VALID, ending, make

class Slow(Items):
    seconds = 0.0
    def __getitem__(self, index):
        print("item", flush=True)
        time.sleep(self.seconds)
        return super().__getitem__(index)

class Told(STYLE):
    def compute_objectives(self, predictions, batch, stage):
        if not getattr(self, "inside", False):
            print(stage.name, self.step, flush=True)
            time.sleep(PAUSE)
        return super().compute_objectives(predictions, batch, stage)

PAUSE = 0.0
reference = make(Told, **OPTIONS)
items, loader = Slow(), {**SHUFFLED, "num_workers": WORKERS}
reference.fit(range(2), items, VALID, train_loader_kwargs=loader)
brain = make(Told, bl.Checkpointer("save") if SAVES else None, **OPTIONS)
PAUSE, Slow.seconds = 0.1, ITEM_SECONDS
"""
CELL = "brain.fit(range(2), items, VALID, train_loader_kwargs=loader)"
QUICKLY = "PAUSE = Slow.seconds = 0.0"
SAME = "assert ending(brain) == ending(reference); print('the same')"


def setup(style: str, saves: bool, workers: int = 0, item_seconds: float = 0.0, **options: Any) -> str:
    given = {"SAVES": saves, "WORKERS": workers, "ITEM_SECONDS": item_seconds, "OPTIONS": options}
    lines = [f"{name} = {value!r}" for name, value in given.items()]
    return "\n".join([*lines, SETUP.replace("STYLE", style)])


@pytest.mark.parametrize("saves", [False, True], ids=["no checkpointer", "checkpointer"])
@pytest.mark.parametrize("style", ["Plain", "InnerFit"])
def test_interrupted_again_and_again(style: str, saves: bool, tmp_path: Path) -> None:
    """In training, in validation and in the second epoch; the kernel lives, and nothing is trained on twice."""

    async def notebook(kernel: Kernel) -> None:
        assert (await kernel.run(setup(style, saves, grad_accumulation_factor=3)))[0] == "ok"
        for moment in ("TRAIN 2", "VALID 2", "TRAIN 3"):
            ended, printed = await kernel.run(CELL, interrupt_at=moment)
            assert ended == "KeyboardInterrupt", printed
            assert "stopped by SIGINT" in printed
        assert (await kernel.run(QUICKLY))[0] == "ok"
        ended, printed = await kernel.run(CELL)
        assert ended == "ok", printed
        assert await kernel.run(SAME) == ("ok", "the same\n")

    in_a_kernel(tmp_path, notebook)


@pytest.mark.parametrize("workers", [0, 2])
def test_interrupted_while_it_waits_for_data(workers: int, tmp_path: Path) -> None:
    async def notebook(kernel: Kernel) -> None:
        assert (await kernel.run(setup("Plain", False, workers, item_seconds=60.0)))[0] == "ok"
        ended, printed = await kernel.run(CELL, interrupt_at="item")
        assert ended == "KeyboardInterrupt" and "TRAIN 1" not in printed, printed
        assert (await kernel.run(QUICKLY))[0] == "ok"
        assert (await kernel.run(CELL))[0] == "ok"
        assert await kernel.run(SAME) == ("ok", "the same\n")
        alive = "import multiprocessing; print(multiprocessing.active_children())"
        assert await kernel.run(alive) == ("ok", "[]\n")

    in_a_kernel(tmp_path, notebook)
