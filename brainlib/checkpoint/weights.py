"""A model's weights out of a checkpoint, without a Brain, hparams or a Checkpointer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from brainlib.checkpoint import manifest
from brainlib.checkpoint.beside import settled
from brainlib.checkpoint.errors import CheckpointError, DamagedCheckpointError
from brainlib.checkpoint.manifest import MANIFEST, Checkpoint
from brainlib.checkpoint.states import read_state
from brainlib.checkpoint.store import Store
from brainlib.common.errors import quoted
from brainlib.common.logs import logger

__all__ = ["load_weights"]


def load_weights(path: str | os.PathLike[str], name: str = "model") -> dict[str, Any]:
    """The state dict of one object in a checkpoint, on the CPU; never runs code from the file.

    Args:
        path: A checkpoint's folder, or a folder of checkpoints, of which the newest intact one is taken (not one of a
            run that failed).
        name: The object's name in the checkpoint. A module that is saved inside another (a Brain's modules) can be
            named as well: its weights come without the prefix.

    Raises:
        FileNotFoundError: There is no such folder.
        DamagedCheckpointError: The files are not those that were written.
        CheckpointError: No checkpoint there, or none of its objects has the name; the message lists what there is.

    >>> import tempfile, torch
    >>> from brainlib.checkpoint import Checkpointer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Checkpointer(folder, {"model": torch.nn.Linear(2, 1)}).save_checkpoint()
    ...     model = torch.nn.Linear(2, 1)
    ...     model.load_state_dict(load_weights(folder, "model"))
    <All keys matched successfully>
    """
    folder = settled(path)
    if not folder.exists():
        raise FileNotFoundError(
            f"{folder} does not exist; give a checkpoint's folder or a folder of checkpoints"
        )
    checkpoint = _checkpoint_at(folder)
    try:
        return _weights(checkpoint, name)
    except DamagedCheckpointError as error:
        raise DamagedCheckpointError(f"{checkpoint.path} is no intact checkpoint: {error}") from error


def _checkpoint_at(folder: Path) -> Checkpoint:
    if (folder / MANIFEST).exists():
        try:
            return manifest.read(folder)
        except DamagedCheckpointError as error:
            raise DamagedCheckpointError(f"{folder} is no intact checkpoint: {error}") from error
    store = Store(folder)
    for checkpoint in store.listed():
        if checkpoint.reason == "error":
            continue
        try:
            store.check_sizes(checkpoint)
            store.check_sums(checkpoint, tuple(checkpoint.files))
        except DamagedCheckpointError as error:
            logger.warning("the checkpoint %s is skipped: %s", checkpoint.path, error)
            continue
        return checkpoint
    raise CheckpointError(
        f"there is no intact checkpoint in {folder}: it is no checkpoint's folder (that has a {MANIFEST}), nor does it "
        "hold one"
    )


def _weights(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    """Of the object with the name; else of the part with the name inside the one module that has it."""
    if name in checkpoint.recoverables:
        return _read(checkpoint, name)
    inside: dict[str, dict[str, Any]] = {}
    for outer, saved in checkpoint.recoverables.items():
        if saved.kind == "module":
            prefix = f"{name}."
            state = _read(checkpoint, outer)
            part = {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}
            if part:
                inside[outer] = part
    if len(inside) > 1:
        raise CheckpointError(
            f"{name!r} is a part of {quoted(inside)} in {checkpoint.path}; load one of these whole and pick from it"
        )
    if not inside:
        checkpoint.saved(name)  # raises, and lists what is there
    return next(iter(inside.values()))


def _read(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    saved = checkpoint.saved(name)
    if saved.kind == "hook" and saved.files != (saved.path,):
        raise CheckpointError(
            f"{name!r} in {checkpoint.path} was saved by a hook of its own class, as {quoted(saved.files)}; only that "
            "reads it"
        )
    Store.check_sizes(checkpoint)
    Store.check_sums(checkpoint, saved.files)
    state = read_state(checkpoint.path / saved.path)
    if not isinstance(state, dict):
        raise CheckpointError(f"{name!r} in {checkpoint.path} is a {type(state).__name__} and no state dict")
    return state
