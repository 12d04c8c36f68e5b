"""A checkpoint in memory: what a run changes, as it was at one moment, to be put back in the same process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from brainlib.checkpoint.errors import CheckpointError
from brainlib.checkpoint.recoverables import ParameterNames, Recoverable
from brainlib.checkpoint.states import clone

__all__ = ["Held"]

Gather = Callable[[], tuple[Sequence[Recoverable], ParameterNames]]


class Held:
    """Copies of all states, tensors on the CPU. Objects with hooks of their own write to temporary files.

    Args:
        gather: returns what takes part, and the names of parameters. Asked again at `put_back`, which goes by names: an
            object that has been replaced meanwhile gets the state of the one before it.

    Raises:
        CheckpointError: Something does not give its state, or there is not enough memory; the message says what.

    >>> from brainlib.checkpoint import Checkpointer
    >>> model = torch.nn.Linear(2, 1)
    >>> before = model.weight.detach().clone()
    >>> held = Checkpointer("never-written", {"model": model}).hold()
    >>> _ = model.weight.data.zero_()
    >>> held.put_back(); torch.equal(model.weight, before)
    True
    """

    def __init__(self, gather: Gather) -> None:
        self._gather = gather
        self._files: tempfile.TemporaryDirectory[str] | None = None
        self._states: dict[str, Any] = {}
        recoverables, names = gather()
        live: dict[str, Any] = {}
        for recoverable in recoverables:
            try:
                if recoverable.saver is None:
                    live[recoverable.name] = recoverable.kind.state(recoverable.obj, names)
                elif recoverable.loader is not None:
                    recoverable.saver(recoverable.obj, self._path(recoverable.name))
            except Exception as error:
                raise CheckpointError(f"{recoverable.told} failed to give its state: {error!r}") from error
        needed, free = _num_bytes(live), _free_memory()
        if free is not None and needed > free / 2:
            raise CheckpointError(
                f"{needed / 1e9:.1f} GB would be copied, and {free / 1e9:.1f} GB of memory are free"
            )
        self._states = {name: clone(state) for name, state in live.items()}

    def put_back(self) -> None:
        """Make everything what it was.

        Raises:
            CheckpointError: An object did not take its state; those before it have theirs.
        """
        recoverables, names = self._gather()
        for recoverable in recoverables:
            obj, kind = recoverable.obj, recoverable.kind
            try:
                if recoverable.name in self._states:
                    state = clone(
                        self._states[recoverable.name]
                    )  # optimizers keep the tensors that they are given
                    if problems := kind.problems(obj, state, names):
                        raise CheckpointError("; ".join(problems))
                    kind.apply(obj, state, names)
                elif recoverable.loader is not None and self._path(recoverable.name).exists():
                    recoverable.loader(obj, self._path(recoverable.name), False)
            except Exception as error:
                raise CheckpointError(f"{recoverable.told} could not be put back: {error}") from error

    def _path(self, name: str) -> Path:
        if self._files is None:
            self._files = tempfile.TemporaryDirectory(prefix="brainlib-held-")
        return Path(self._files.name) / name


def _num_bytes(state: Any) -> int:
    """What the tensors of a state take; one that stands in it twice is counted twice, for it is copied twice."""
    if isinstance(state, torch.Tensor):
        return 0 if torch.nn.parameter.is_lazy(state) else state.numel() * state.element_size()
    if isinstance(state, dict):
        return sum(_num_bytes(each) for each in state.values())
    return sum(_num_bytes(each) for each in state) if isinstance(state, (list, tuple)) else 0


def _free_memory() -> int | None:
    """Bytes that this process may still take; None where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            free = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None
    try:  # the limit of a container
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
    except OSError:
        return free
    return free if limit == "max" else min(free, int(limit) - used)
