"""A model's weights out of a checkpoint, without a Brain, hparams or a Checkpointer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from brainlib.checkpoint import manifest
from brainlib.checkpoint.beside import settled
from brainlib.checkpoint.errors import CheckpointError, DamagedCheckpointError
from brainlib.checkpoint.manifest import MANIFEST, Checkpoint
from brainlib.checkpoint.speechbrain_folder import is_speechbrain, newest_speechbrain, read_speechbrain
from brainlib.checkpoint.states import read_state
from brainlib.checkpoint.store import FOREIGN, Store
from brainlib.common.errors import quoted
from brainlib.common.logs import logger

__all__ = ["checkpoint_at", "load_weights", "nearby"]


def load_weights(path: str | os.PathLike[str], name: str = "model") -> dict[str, Any]:
    """The state dict of one object in a checkpoint, on the CPU; never runs code from the file.

    Args:
        path: A checkpoint's folder, or a folder of checkpoints, of which the newest intact one is taken (not one of a
            run that failed). Those of SpeechBrain's (``CKPT+…``) are read as well.
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
    checkpoint = checkpoint_at(path)
    try:
        return _weights(checkpoint, name)
    except DamagedCheckpointError as error:
        raise DamagedCheckpointError(f"{checkpoint.path} is no intact checkpoint: {error}") from error


def checkpoint_at(path: str | os.PathLike[str]) -> Checkpoint:
    """The checkpoint that a path means: that of this folder, or of a folder of them the newest intact one.

    Nothing there is changed. One of SpeechBrain's has no `files`: there are no sums to compare them with.

    Args:
        path: A folder.

    Raises:
        FileNotFoundError: There is nothing.
        DamagedCheckpointError: It is a checkpoint, and its manifest is torn or altered.
        CheckpointError: There is no intact one.

    >>> import tempfile, torch
    >>> from brainlib.checkpoint import Checkpointer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved = Checkpointer(folder, {"model": torch.nn.Linear(2, 1)}).save_checkpoint()
    ...     checkpoint_at(folder) == checkpoint_at(saved.path) == saved
    True
    """
    folder = settled(path)
    if not folder.exists():
        raise FileNotFoundError(
            f"{folder} does not exist; give a checkpoint's folder or a folder of checkpoints"
        )
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is a file; give a checkpoint's folder or a folder of checkpoints. A file with a state dict is "
            "read by torch.load(path, map_location='cpu', weights_only=True)"
        )
    if (folder / MANIFEST).exists():
        try:
            return manifest.read(folder)
        except DamagedCheckpointError as error:
            raise DamagedCheckpointError(f"{folder} is no intact checkpoint: {error}") from error
    if is_speechbrain(folder):
        return read_speechbrain(folder)
    found = _newest_intact(folder) or newest_speechbrain(folder)
    if found is None:
        raise CheckpointError(
            f"there is no intact checkpoint in {folder}: it is no checkpoint's folder (that has a {MANIFEST}), nor "
            f"does it hold one{nearby(folder)}"
        )
    return found


def nearby(folder: Path) -> str:
    """The end of an error: where checkpoints are, when they are one level down, as in the folder of an experiment.

    >>> nearby(Path("/nowhere"))
    ''
    """
    below = sorted(
        {path.parent.parent.name for name in (MANIFEST, FOREIGN) for path in folder.glob(f"*/*/{name}")}
    )
    return f"; there are in {quoted(below)} inside it" if below else ""


def _newest_intact(folder: Path) -> Checkpoint | None:
    """The first of ours whose bytes are all what was written; warns of those before it."""
    if any(folder.glob(f"*/{FOREIGN}")) and not any(folder.glob(f"*/{MANIFEST}")):
        return None  # SpeechBrain's alone, of each of which the store would say that it leaves it out
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
    return None


def _weights(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    """Of the object with the name; else of the part with the name inside the one module that has it."""
    if name in checkpoint.recoverables:
        return _read(checkpoint, name)
    inside: dict[str, dict[str, Any]] = {}
    for outer, saved in checkpoint.recoverables.items():
        if saved.kind == "module":
            prefix = f"{name}."
            try:
                state = _read(checkpoint, outer)
            except CheckpointError:
                if checkpoint.files:
                    raise
                continue  # of SpeechBrain's: what torch.save wrote need be no state dict
            part = {key[len(prefix) :]: value for key, value in state.items() if str(key).startswith(prefix)}
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
    Store.check_sums(checkpoint, saved.files)  # SpeechBrain notes none
    state = read_state(checkpoint.path / saved.path)
    if not isinstance(state, dict):
        raise CheckpointError(f"{name!r} in {checkpoint.path} is a {type(state).__name__} and no state dict")
    return state
