"""A script run many times from one warm process, so that a start takes 50 ms and not 4 s, and can be killed in between.

``python warm.py SCRIPT.py [MODULE]`` imports what scripts need (with a MODULE, by calling its `warm_up`), then reads
requests from standard input, one JSON object a line: ``{"arguments": [...], "output": path}``. For each it forks a
process that runs the script just as ``python SCRIPT.py arguments`` would, with its output in a file. It answers with
two lines: the process id, then, once the process has ended, its exit status (negative: the signal that killed it). The
process leads a group of its own; what it leaves of that when it is killed (the workers of a loader) ends with it.
`WarmScript` is the other end.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

POLL_SECONDS = 0.002


class WarmScript:
    """Runs a script in forked processes; a context manager.

    Args:
        script: path of the script.
        folder: the folder it is started in.
        module: what has the function `warm_up` that imports what the script needs; None: what a recipe needs.
    """

    def __init__(self, script: Path, folder: Path, module: str | None = None) -> None:
        self._command = [sys.executable, __file__, str(script), *([module] if module else [])]
        self._folder = folder

    def __enter__(self) -> WarmScript:
        environment = {**os.environ, "PYTHONPATH": str(self._folder)}
        self._server = subprocess.Popen(
            self._command,
            cwd=self._folder,
            env=environment,
            bufsize=0,  # select must see what readline has not taken
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

    def run(self, *arguments: str, output: Path, kill_when: Callable[[], bool] = lambda: False) -> int:
        """Run the script once; returns its exit status, which is negative where a signal ended it.

        Args:
            arguments: of the command line.
            output: the file that standard output and error are appended to.
            kill_when: asked every few milliseconds; once it is true, the process gets SIGKILL, unless it has ended.
        """
        request = {"arguments": list(arguments), "output": str(output)}
        self._server.stdin.write(json.dumps(request).encode() + b"\n")
        process = int(self._server.stdout.readline())
        while not select.select([self._server.stdout], [], [], POLL_SECONDS)[0]:
            if kill_when():
                os.kill(process, signal.SIGKILL)
                break
        return int(self._server.stdout.readline())


def serve(script: str, module: str | None = None) -> None:
    """The warm process."""
    if module is None:
        _warm_up()
    else:
        importlib.import_module(module).warm_up()
    process = None
    for line in sys.stdin:
        request = json.loads(line)
        if process is not None:
            os.waitpid(process, 0)
        process = os.fork()
        if process == 0:
            _run(script, request["arguments"], request["output"])
        print(process, flush=True)
        # Reaped only when the next request comes: until then nobody else is given this number, and killed for it.
        ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        try:
            os.killpg(process, signal.SIGKILL)
        except ProcessLookupError:  # it was killed before it had its group
            pass
        print(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status, flush=True)


def _warm_up() -> None:
    """Import what takes seconds. No thread may be running when the process forks, so torch gets one thread only."""
    import torch
    from matplotlib.figure import Figure
    from sklearn.datasets import load_digits

    import brainlib

    torch.set_num_threads(1)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([parameter])  # the first optimizer of a process imports a third of torch
    parameter.sum().backward()
    optimizer.step()
    load_digits()
    brainlib.load_hyperpyyaml("seed: 1\nlist: []")
    figure = Figure(layout="constrained")
    figure.subplots().set_title("the first picture of a process reads the fonts")
    figure.savefig(io.BytesIO(), format="png")


def _run(script: str, arguments: list[str], output: str) -> None:
    """In the forked process: become the script."""
    status = 0
    os.setpgid(0, 0)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(0)
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(script)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - as the interpreter does at the end of a script
        traceback.print_exc()
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve(*sys.argv[1:])
