"""What a worker process of a loader does about signals."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from brainlib.data.pipeline import why_not_picklable

__all__ = ["WorkerInit", "check_workers", "workers_start"]

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
        gc.freeze()  # the collector would write to each object of the training process, and copy its page
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if _POSIX:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_THE_WHOLE_JOB)
        end_with_parent = getattr(torch.multiprocessing, "_prctl_pr_set_pdeathsig", None)
        if end_with_parent is not None:
            end_with_parent(signal.SIGKILL)
        if self.then is not None:
            self.then(worker_id)


def check_workers(loader: DataLoader[Any]) -> None:
    """Refuse a loader whose workers would be sent what cannot be sent, before any of them is started.

    Raises:
        ValueError: names what cannot be pickled, and what to do.

    >>> check_workers(DataLoader([1], num_workers=1, collate_fn=lambda items: items, multiprocessing_context="spawn"))
    Traceback (most recent call last):
    ...
    ValueError: the workers of a loader are started by spawn, and its collate_fn cannot be sent to them (...). ...
    """
    if not loader.num_workers:
        return
    method = (loader.multiprocessing_context or multiprocessing).get_start_method()
    if method == "fork":
        return
    dataset: Any = loader.dataset
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    if hasattr(dataset, "check_picklable"):
        dataset.check_picklable()
    for name, value in (("collate_fn", loader.collate_fn), ("worker_init_fn", loader.worker_init_fn)):
        reason = why_not_picklable(value)
        if reason is not None:
            raise ValueError(
                f"the workers of a loader are started by {method}, and its {name} cannot be sent to them ({reason}). "
                "Define it at the top of a module, or give multiprocessing_context='fork', or num_workers=0"
            )
