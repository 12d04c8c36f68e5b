"""What a piece of code leaves behind in this process: it is named, and put back where that is possible."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess

import torch

# Variables that a library sets once and for all while it is imported: nobody's leak, wherever the import happens first.
SET_BY_IMPORTS = ("PYTEST_", "KMP_", "TORCHINDUCTOR_", "TRITON_", "PYDEVD_", "TF_CPP_", "GRPC_")


@contextmanager
def find_leftovers(found: list[str], *, grace: float = 2.0) -> Iterator[None]:
    """Append to `found` one phrase for each thing that the block left behind.

    Args:
        found: filled when the block ends.
        grace: seconds that a thread or process which was told to end may still take to do so.
    """
    threads, processes = set(threading.enumerate()), set(multiprocessing.active_children())
    environment, folder = dict(os.environ), os.getcwd()
    handlers = list(logging.getLogger().handlers)
    grad_mode, dtype = torch.is_grad_enabled(), torch.get_default_dtype()

    yield

    found += [f"the thread {thread.name!r}" for thread in _threads_since(threads, grace)]
    found += [f"the process {process.name!r}" for process in _processes_since(processes, grace)]

    for name in sorted(environment.keys() | os.environ.keys()):
        before, after = environment.get(name), os.environ.get(name)
        if before == after or name.startswith(SET_BY_IMPORTS):
            continue
        found.append(f"the environment variable {name} (was {before!r}, is {after!r})")
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before

    if (now := _current_folder()) != folder:
        found.append(f"the current folder (was {folder}, is {now})")
        os.chdir(folder)

    for handler in [h for h in logging.getLogger().handlers if h not in handlers]:
        found.append(f"a handler of the root logger, {handler!r}")
        logging.getLogger().removeHandler(handler)

    if torch.is_grad_enabled() != grad_mode:
        found.append(f"gradients switched {'off' if grad_mode else 'on'}")
        torch.set_grad_enabled(grad_mode)
    if torch.get_default_dtype() != dtype:
        found.append(f"the default dtype {torch.get_default_dtype()}")
        torch.set_default_dtype(dtype)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        found.append("a process group")
        torch.distributed.destroy_process_group()


def _threads_since(before: set[threading.Thread], grace: float) -> list[threading.Thread]:
    """Threads that would keep the interpreter from ending."""
    started = [t for t in threading.enumerate() if t not in before and not t.daemon]
    for thread in started:
        thread.join(grace)
    return [thread for thread in started if thread.is_alive()]


def _processes_since(before: set[BaseProcess], grace: float) -> list[BaseProcess]:
    """Child processes. Loader workers go when their iterator does, so garbage is collected first."""
    if not set(multiprocessing.active_children()) - before:
        return []
    gc.collect()
    deadline = time.monotonic() + grace
    while (started := set(multiprocessing.active_children()) - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    return sorted(started, key=lambda process: process.name)


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "gone"
