"""Which weights go into which module when a run begins with the weights of another: a path, read as states by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from brainlib.checkpoint.averaging import record_of_average
from brainlib.checkpoint.beside import settled
from brainlib.checkpoint.errors import CheckpointError, DamagedCheckpointError
from brainlib.checkpoint.manifest import Checkpoint, Saved
from brainlib.checkpoint.recoverables import bare_module
from brainlib.checkpoint.states import read_state
from brainlib.checkpoint.store import Store
from brainlib.checkpoint.weights import checkpoint_at
from brainlib.common.errors import quoted
from brainlib.common.files import sha256_of

__all__ = ["Loaded", "WeightSource", "weight_source"]


@dataclass(frozen=True)
class Loaded:
    """What a warm start has loaded.

    Args:
        path: The checkpoint's folder, or the file.
        names: The modules that have other weights now.
        lacking: The modules of which the source has none; they are as they were.
        sums: The SHA-256 of each file that was read.

    >>> Loaded(Path("save/step-00000100"), ("model",), (), {"model.pt": "2cf24dba"}).names
    ('model',)
    """

    path: Path
    names: tuple[str, ...]
    lacking: tuple[str, ...]
    sums: dict[str, str]


@dataclass(frozen=True)
class WeightSource:
    """Where weights are, in the words of a checkpoint, whatever wrote them.

    Args:
        path: What messages name.
        checkpoint: Which object is in which file; without `files` there are no sums to compare with.
        states: States that are read already; those of the others are in their files.

    >>> WeightSource(Path("save"), Checkpoint(Path("save"), {}, 1)).names
    ()
    """

    path: Path
    checkpoint: Checkpoint
    states: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The objects that are there."""
        return tuple(self.checkpoint.recoverables)

    def sums_of(self, name: str) -> dict[str, str]:
        """The sum of each file of an object, once they were found to be what was written.

        Raises:
            DamagedCheckpointError: They are not.
        """
        saved = self.checkpoint.saved(name)
        if not saved.files:
            path = self.checkpoint.path / saved.path
            return {saved.path: sha256_of(path)} if path.is_file() else {}
        try:
            Store.check_sums(self.checkpoint, saved.files)
        except DamagedCheckpointError as error:
            raise DamagedCheckpointError(f"{self.path} is no intact checkpoint: {error}") from error
        return {file: self.checkpoint.files[file].sha256 for file in saved.files}


def weight_source(path: str | os.PathLike[str], modules: Mapping[str, torch.nn.Module]) -> WeightSource:
    """The weights at a path.

    Args:
        path: A checkpoint's folder; a folder of checkpoints, of which the newest intact one is taken; either of
            SpeechBrain's; or a file with a state dict.
        modules: The modules that want weights, by name. A file does not say whose weights are in it: they are those of
            the module that ``brainlib ckpt average`` noted beside it, or that the file is named after, or of the only
            one; or of several, where each of its keys begins with the name of one.

    Raises:
        FileNotFoundError: There is nothing.
        CheckpointError: There are no weights, or nobody can tell whose they are.

    >>> import tempfile
    >>> model = torch.nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save(model.state_dict(), f"{folder}/epoch-12.pt")
    ...     weight_source(f"{folder}/epoch-12.pt", {"model": model}).names
    ('model',)
    """
    place = settled(path)
    if not place.exists():
        raise FileNotFoundError(
            f"{place} does not exist; give a checkpoint, a folder of checkpoints, or a file with a state dict"
        )
    if place.is_dir():
        checkpoint = checkpoint_at(place)
        return WeightSource(checkpoint.path, checkpoint)
    states = _whose(place, read_state(place), modules)
    saved = {name: Saved("module", place.name, (), "a state dict") for name in states}
    return WeightSource(place, Checkpoint(place.parent, {}, 0, recoverables=saved), states)


def _whose(file: Path, state: Any, modules: Mapping[str, torch.nn.Module]) -> dict[str, Any]:
    """The state dict in a file, by the name of the module whose it is."""
    if not isinstance(state, Mapping) or not all(isinstance(key, str) for key in state):
        raise CheckpointError(
            f"{file} holds a {type(state).__name__} and no state dict, which is a dict from names to tensors"
        )
    if not any(isinstance(value, torch.Tensor) for value in state.values()):
        raise CheckpointError(
            f"{file} holds no tensors, but {quoted(list(state)[:8])}; save the state dict of the module by itself: "
            "torch.save(model.state_dict(), path)"
        )
    record = record_of_average(file)
    if record is not None:
        return {record["name"]: state}
    if file.stem in modules:
        return {file.stem: state}
    parts = {key.partition(".")[0] for key in state}
    divided = len(parts) > 0 and parts <= set(modules) and all("." in key for key in state)
    if len(modules) == 1:
        (name, module), *_ = modules.items()
        if not divided or set(bare_module(module).state_dict()) == set(state):
            return {name: state}
    if divided:
        return {
            part: {key[len(part) + 1 :]: value for key, value in state.items() if key.startswith(f"{part}.")}
            for part in sorted(parts)
        }
    raise CheckpointError(
        f"{file} does not say whose weights it holds, and there are several modules: {quoted(modules)}. Name it after "
        f"one of them, such as {next(iter(modules), 'model')}{file.suffix}, or let each key begin with the name of one "
        "and a dot, as those of brain.modules.state_dict() do"
    )
