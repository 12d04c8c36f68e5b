"""A real kernel: an interrupt brings the prompt back, and the same cell run again goes on to the same bits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipykernel", reason="needs the extra [notebook]")

from tests.run_notebook import ROOT, kernel_of_this_interpreter

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


class Kernel:
    """A kernel as a notebook sees it."""

    def __init__(self, manager: Any) -> None:
        self._manager, self._client = manager, manager.client()

    async def ready(self) -> None:
        self._client.start_channels()
        await self._client.wait_for_ready(timeout=60)

    async def run(self, code: str, interrupt_at: str | None = None) -> tuple[str, str]:
        """Run a cell; returns how it ended ("ok", or the name of the error) and all that it printed."""
        number, printed, ended = self._client.execute(code), "", "ok"
        while True:
            message = await self._client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != number:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                printed += content["text"]
                if interrupt_at is not None and interrupt_at in printed:
                    interrupt_at = None
                    await self._manager.interrupt_kernel()
            elif kind == "error":
                ended = content["ename"]
                printed += "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                return ended, printed

    def close(self) -> None:
        self._client.stop_channels()


def in_a_kernel(folder: Path, notebook: Callable[[Kernel], Awaitable[None]]) -> None:
    home, here = folder / "home", folder / "here"
    home.mkdir()
    here.mkdir()
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "IPYTHONDIR": str(home), "OMP_NUM_THREADS": "1"}

    async def session() -> None:
        manager = kernel_of_this_interpreter(home)
        await manager.start_kernel(cwd=str(here), env=environment)
        kernel = Kernel(manager)
        try:
            await kernel.ready()
            await notebook(kernel)
        finally:
            kernel.close()
            await manager.shutdown_kernel(now=True)

    asyncio.run(session())


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
