"""What a worker process of a loader does about signals."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["WorkerInit", "workers_start"]

_POSIX = os.name == "posix"
_FOR_THE_WHOLE_JOB = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1) if _POSIX else ()


@contextmanager
def workers_start(context: Any = None) -> Iterator[None]:
    """Inside, processes are started that hear of no signal before their `WorkerInit` has said what is to be done then.

    Args:
        context: of multiprocessing, None for the default. A forkserver would keep what is blocked when it is started
            for all that it ever starts, so nothing is blocked for one.

    >>> with workers_start():
    ...     signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    True
    """
    if not _POSIX or (context or multiprocessing).get_start_method() == "forkserver":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_WHOLE_JOB)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WorkerInit:
    """The first thing that a worker does, before the user's own ``worker_init_fn``.

    Ctrl-C in a terminal, and a scheduler's warning, come to all processes of a job. The training process decides what
    happens then, and stops its workers itself; SIGTERM ends them, as torch has it. They do not outlive it: the system
    kills them when it ends, also one that is busy (torch lets it finish first) or hangs.

    Args:
        then: the user's, or None.

    >>> WorkerInit(None).then is None
    True
    """

    def __init__(self, then: Callable[[int], Any] | None) -> None:
        self.then = then

    def __call__(self, worker_id: int) -> None:
        """In the worker."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if _POSIX:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_THE_WHOLE_JOB)
        end_with_parent = getattr(torch.multiprocessing, "_prctl_pr_set_pdeathsig", None)
        if end_with_parent is not None:
            end_with_parent(signal.SIGKILL)
        if self.then is not None:
            self.then(worker_id)
