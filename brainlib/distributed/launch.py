"""Starting several processes on one machine: thin over torch's own elastic agent, which torchrun is a front of, too."""

from __future__ import annotations

import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from brainlib.common.counted import counted
from brainlib.common.errors import nearest

__all__ = ["launch", "spawn"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_VARIABLES = ("TORCHELASTIC_SIGNALS_TO_HANDLE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")


def spawn(
    fn: Callable[..., Any],
    nprocs: int = 2,
    *,
    args: Sequence[Any] = (),
    devices: str | None = None,
    log_dir: str | None = None,
) -> list[Any]:
    """Call `fn` in `nprocs` processes that train together; for scripts and notebooks. Returns when all are done.

    Inside, a Brain finds the others by itself. If one process fails, all are ended.

    Args:
        fn: what every process does: makes a Brain and calls `fit`, say. In a script it is defined at the top level of
            a file, and `spawn` is called under ``if __name__ == "__main__":``.
        nprocs: how many processes; on GPUs one a device.
        args: for `fn`.
        devices: numbers of the GPUs to use, such as "4,5"; by default the first ones.
        log_dir: a folder that gets a file for the output of each process; by default they all write to the terminal.

    Returns:
        What `fn` returned in each, in the order of the ranks.

    Raises:
        ValueError: for a number of processes that does not fit the devices.
        torch.distributed.elastic.multiprocessing.errors.ChildFailedError: one has failed; the message names it.

    Example::

        def train():
            brain = SimpleBrain({"model": model()}, opt_class=adam)
            brain.fit(range(10), train_set)
            return brain.avg_train_loss

        if __name__ == "__main__":
            bl.spawn(train, nprocs=2)

    >>> spawn(print, 2, devices="4")
    Traceback (most recent call last):
    ...
    ValueError: devices names 1 (4) for 2 processes: one a device
    """
    in_notebook = not hasattr(
        sys.modules["__main__"], "__file__"
    )  # what is defined there cannot be imported elsewhere
    returned = _run(fn, list(args), nprocs, devices, log_dir, start_method="fork" if in_notebook else "spawn")
    return [returned[rank] for rank in range(nprocs)]


def launch(
    script: str,
    words: Sequence[str],
    nprocs: int = 2,
    *,
    devices: str | None = None,
    log_dir: str | None = None,
    max_restarts: int = 0,
    shutdown_seconds: int = 5,
) -> None:
    """Run a script in several processes, as torchrun does.

    Args:
        script: the path of the script.
        words: what stands behind it on the command line, passed on as it is.
        nprocs: how many processes.
        devices: as for `spawn`.
        log_dir: as for `spawn`.
        max_restarts: how often all are started again after one has failed.
        shutdown_seconds: how long the others may take to end then, before they are killed.

    Raises:
        FileNotFoundError: there is no such script; nothing was started.
        Exception: as `spawn`.

    >>> launch("no-such-script.py", [])
    Traceback (most recent call last):
    ...
    FileNotFoundError: there is no script no-such-script.py
    """
    path = Path(script)
    if not (path.is_file() or (path / "__main__.py").is_file()):  # Python runs such a folder, too
        beside = [each.name for each in path.parent.glob("*.py")]
        raise FileNotFoundError(f"there is no script {script}.{nearest(path.name, beside)}".removesuffix("."))
    command = ["-u", script, *words]
    _run(sys.executable, command, nprocs, devices, log_dir, max_restarts, shutdown_seconds)


def _run(
    entry: Callable[..., Any] | str,
    args: list[Any],
    nprocs: int,
    devices: str | None,
    log_dir: str | None,
    max_restarts: int = 0,
    shutdown_seconds: int = 5,
    start_method: str = "spawn",
) -> dict[int, Any]:
    if nprocs < 1:
        raise ValueError(f"{counted(nprocs, 'process', 'processes')} cannot train; give a number from 1 on")
    numbers = [number.strip() for number in devices.split(",")] if devices else []
    if numbers and len(numbers) != nprocs:
        raise ValueError(
            f"devices names {len(numbers)} ({devices}) for {counted(nprocs, 'process', 'processes')}: one a device"
        )

    # Half a second to import, and only those who launch need it.
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig, launch_agent

    logs = (
        DefaultLogsSpecs()
        if log_dir is None
        else DefaultLogsSpecs(log_dir, tee=Std.ALL, local_ranks_filter={0})
    )
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nprocs,
        run_id=uuid.uuid4().hex[:8],
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=max_restarts,
        logs_specs=logs,
        start_method=start_method,
        shutdown_timeout=shutdown_seconds,
    )
    with _as_before():
        if numbers:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(numbers)
        if nprocs > 1:
            os.environ.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // nprocs, 1)))
        return launch_agent(config, entry, args)


@contextmanager
def _as_before() -> Iterator[None]:
    """The agent sets signal handlers and a variable of the environment, and leaves them; here they come back."""
    environment = {name: os.environ.get(name) for name in _VARIABLES}
    in_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS} if in_main else {}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None:
                signal.signal(number, handler)
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
