"""Worlds of several real processes, forked from a warm one: a world of two starts in a tenth of a second.

`Host.run` calls a function of a test module in every process, as a launcher would start a script: with the variables of
the environment that torchrun sets, its own standard output in a file, uncaught errors through ``sys.excepthook``, and
what is registered for the end of a program at its end. Each function returns what JSON can hold.

``python host.py`` is the warm process: it reads a request a line and answers with a line when all have ended.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
POLL_SECONDS = 0.005


@dataclass
class Ended:
    """A process of a world that is over.

    Attributes:
        status: its exit status; negative: the signal that ended it.
        result: what its function returned; None where it did not return.
        output: what it wrote.
        seconds: how long after the start of the world it ended.
    """

    status: int
    result: Any
    output: str
    seconds: float


class Failed(Exception):
    """A world did not end as it should have."""


class Host:
    """A warm process that starts worlds; a context manager.

    Args:
        modules: what it imports besides torch and brainlib, so that its worlds have it.
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules

    def __enter__(self) -> Host:
        self._server = subprocess.Popen(
            [sys.executable, __file__, *self._modules],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stdin.close()
        self._server.wait(60)
        self._server.stdout.close()

    def start(
        self,
        function: Callable[..., Any],
        folder: Path,
        *arguments: Any,
        size: int = 2,
        limit: float = 60.0,
        meddle: Callable[[list[int]], None] | None = None,
        tidy: bool = True,
    ) -> list[Ended]:
        """Run a world to its end, whatever that is.

        Args:
            function: of a module that can be imported; called in each process.
            folder: where outputs and results are written.
            arguments: for the function, as JSON can hold them.
            size: how many processes; 1: one, without the variables of a launcher.
            limit: seconds after which all are killed, and printed where they stood.
            meddle: called again and again with the process numbers while they run.
            tidy: whether what a process has started is ended with it.
        """
        folder.mkdir(parents=True, exist_ok=True)
        request = {
            "module": function.__module__,
            "function": function.__name__,
            "arguments": arguments,
            "folder": str(folder),
            "size": size,
            "limit": limit,
            "tidy": tidy,
        }
        self._server.stdin.write(json.dumps(request).encode() + b"\n")
        pids = json.loads(self._server.stdout.readline())
        try:
            while not select.select([self._server.stdout], [], [], POLL_SECONDS)[0]:
                if meddle is not None:
                    meddle(pids)
        finally:
            answers = json.loads(self._server.stdout.readline())
        worlds = []
        for rank, (status, seconds) in enumerate(answers):
            result = folder / f"result-{rank}.json"
            told = json.loads(result.read_text()) if result.exists() else None
            result.unlink(missing_ok=True)
            output = (folder / f"output-{rank}.txt").read_text(errors="replace")
            worlds.append(Ended(status, told, output, seconds))
        return worlds

    def run(self, function: Callable[..., Any], folder: Path, *arguments: Any, **options: Any) -> list[Any]:
        """Run a world that ends well; returns what each process returned.

        Raises:
            Failed: one of them did not end well.
        """
        ended = self.start(function, folder, *arguments, **options)
        if any(each.status for each in ended):
            told = [
                f"--- rank {rank}: status {each.status}\n{each.output[-3000:]}"
                for rank, each in enumerate(ended)
            ]
            raise Failed("\n".join(["a process has failed:", *told]))
        return [each.result for each in ended]


# ------------------------------------------------------------------------------------------------- the warm process


def serve() -> None:
    """Import what takes seconds, then answer requests."""
    _warm_up()
    for module in sys.argv[1:]:
        importlib.import_module(module)
    for line in sys.stdin:
        request = json.loads(line)
        port, began = _free_port(), time.monotonic()
        pids = [os.fork() or _become(rank, port, request) for rank in range(request["size"])]
        print(json.dumps(pids), flush=True)
        print(json.dumps(_ends(pids, began, request["limit"], request["tidy"])), flush=True)


def _warm_up() -> None:
    import torch
    from torch.nn.parallel import DistributedDataParallel  # noqa: F401

    import brainlib  # noqa: F401

    torch.set_num_threads(1)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([parameter])
    parameter.sum().backward()
    optimizer.step()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


def _ends(pids: list[int], began: float, limit: float, tidy: bool) -> list[tuple[int, float]]:
    ends: dict[int, tuple[int, float]] = {}
    warned = False
    while len(ends) < len(pids):
        time.sleep(POLL_SECONDS)
        for pid in pids:
            if pid in ends:
                continue
            # Reaped only when all have ended: until then nobody else is given this number, and killed for it.
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if ended:
                status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                ends[pid] = (status, time.monotonic() - began)
                if tidy:
                    with contextlib.suppress(ProcessLookupError):  # workers of a loader
                        os.killpg(pid, signal.SIGKILL)
        late = time.monotonic() - began - limit
        for pid in pids:
            if pid not in ends and late > 0 and not warned:
                os.kill(pid, signal.SIGRTMIN)
            if pid not in ends and late > 1:
                os.kill(pid, signal.SIGKILL)
        warned = late > 0
    for pid in pids:
        os.waitpid(pid, 0)
    return [ends[pid] for pid in pids]


def _become(rank: int, port: int, request: dict[str, Any]) -> int:
    """In the forked process: run the function, as a script is run, and end."""
    import faulthandler

    os.setpgid(0, 0)
    folder, status = Path(request["folder"]), 0
    file = os.open(folder / f"output-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(0)
    faulthandler.register(signal.SIGRTMIN, file=2, all_threads=True)
    if request["size"] > 1:
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(request["size"]),
            LOCAL_WORLD_SIZE=str(request["size"]),
            MASTER_ADDR="localhost",
            MASTER_PORT=str(port),
        )
    try:
        function = getattr(importlib.import_module(request["module"]), request["function"])
        result = function(*request["arguments"])
        (folder / f"result-{rank}.json").write_text(json.dumps(result))
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does at the end of a script
        sys.excepthook(*sys.exc_info())
        status = 1
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve()
