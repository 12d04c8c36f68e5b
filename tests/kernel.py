"""A real kernel, as a notebook sees it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.run_notebook import ROOT, kernel_of_this_interpreter


class Kernel:
    """A kernel as a notebook sees it."""

    def __init__(self, manager: Any) -> None:
        self._manager, self._client = manager, manager.client()
        self.shown: list[
            tuple[str, dict[str, Any]]
        ] = []  # by the last cell: the kind of message, and its content

    async def ready(self) -> None:
        self._client.start_channels()
        await self._client.wait_for_ready(timeout=60)

    async def run(self, code: str, interrupt_at: str | None = None) -> tuple[str, str]:
        """Run a cell; returns how it ended ("ok", or the name of the error) and all that it printed."""
        number, printed, ended = self._client.execute(code), "", "ok"
        self.shown = []
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
            elif kind in ("display_data", "update_display_data", "execute_result"):
                self.shown.append((kind, content))
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
    here.mkdir(exist_ok=True)
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
