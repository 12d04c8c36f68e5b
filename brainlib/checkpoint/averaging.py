"""The mean of several checkpoints' weights, which is often a better model than the best of them."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from brainlib.checkpoint.beside import settled
from brainlib.checkpoint.errors import CheckpointError, DamagedCheckpointError
from brainlib.checkpoint.manifest import Checkpoint
from brainlib.checkpoint.weights import load_weights
from brainlib.common.errors import quoted
from brainlib.common.files import sha256_of, write_atomic
from brainlib.common.logs import logger
from brainlib.common.plain import from_json, to_json

__all__ = [
    "average_checkpoints",
    "average_state_dicts",
    "check_average",
    "record_of_average",
    "write_average",
]

FORMAT = "brainlib-average"
VERSION = 1
LARGEST_RECORD = 1 << 26  # bytes; real ones are a few kilobytes


def average_checkpoints(
    checkpoint_list: Sequence[Checkpoint],
    recoverable_name: str,
    parameter_loader: Callable[[Path], Mapping[str, Any]] | None = None,
    averager: Callable[[Sequence[Mapping[str, Any]]], Any] | None = None,
    *,
    device: object = None,
) -> Any:
    """The average of one object's weights over several checkpoints, as a state dict on the CPU.

    Args:
        checkpoint_list: What `find_checkpoints` returned, in any order.
        recoverable_name: The object's name in them, such as "model".
        parameter_loader: Reads a state dict from a file, for objects that wrote it in a way of their own.
        averager: Takes the state dicts, the newest first; by default `average_state_dicts`.
        device: Taken for the sake of old code; it has no effect.

    Raises:
        CheckpointError: There are none, one is damaged, or they do not fit each other.

    >>> import tempfile
    >>> from brainlib.checkpoint import Checkpointer
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpointer = Checkpointer(folder, {"model": model})
    ...     for value in (1.0, 2.0, 3.0):
    ...         _ = torch.nn.init.constant_(model.weight, value)
    ...         _ = checkpointer.save_checkpoint()
    ...     average_checkpoints(checkpointer.find_checkpoints(), "model")["weight"]
    tensor([[2.]])
    """
    if device is not None:
        logger.warning(
            "device= has no effect in average_checkpoints: the average is on the CPU, load_state_dict moves it"
        )
    if not checkpoint_list:
        raise CheckpointError(
            f"there is no checkpoint to average {recoverable_name!r} over; find_checkpoints found none"
        )
    newest_first = sorted(checkpoint_list, key=lambda checkpoint: -checkpoint.commit)
    if parameter_loader is not None:
        states = [
            parameter_loader(settled(checkpoint.path) / checkpoint.saved(recoverable_name).path)
            for checkpoint in newest_first
        ]
    else:
        states = [load_weights(checkpoint.path, recoverable_name) for checkpoint in newest_first]
    return (averager or average_state_dicts)(states)


def average_state_dicts(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of several state dicts: sums are taken in double precision, tied weights stay tied.

    Integers and booleans (counters, masks) and what is no tensor cannot be averaged; they are those of the first.

    Args:
        states: With the same keys and shapes, the newest first.

    Raises:
        CheckpointError: Keys or shapes differ; the message lists them.

    >>> old = {"weight": torch.tensor([1.0]), "steps": torch.tensor(3), "mask": torch.tensor([True])}
    >>> new = {"weight": torch.tensor([2.0]), "steps": torch.tensor(8), "mask": torch.tensor([False])}
    >>> average_state_dicts([new, old])
    {'weight': tensor([1.5000]), 'steps': tensor(8), 'mask': tensor([False])}
    """
    if not states:
        raise CheckpointError("there is no state dict to average")
    first = states[0]
    for state in states[1:]:
        if set(state) != set(first):
            differing = sorted(set(state) ^ set(first))
            raise CheckpointError(
                f"the state dicts do not have the same names; these are not in all: {quoted(differing)}"
            )
    averaged: dict[str, Any] = {}
    done: dict[
        tuple[Any, ...], torch.Tensor
    ] = {}  # what is tied, by where it lies in every one of the state dicts
    for key, value in first.items():
        if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
            averaged[key] = value
            continue
        tensors = [state[key] for state in states]
        kinds = {
            f"{tuple(t.shape)}" if isinstance(t, torch.Tensor) else f"a {type(t).__name__}" for t in tensors
        }
        if len(kinds) > 1:
            raise CheckpointError(f"{key!r} does not have the same shape in all: {', '.join(sorted(kinds))}")
        places = tuple(map(_place, tensors))
        if value.numel() == 0 or places not in done:
            wide = torch.complex128 if value.is_complex() else torch.float64
            total = torch.zeros_like(value, dtype=wide, device="cpu")
            for tensor in tensors:
                total += tensor.detach().to("cpu", wide)
            done[places] = (total / len(states)).to(value.dtype)
        averaged[key] = done[places]
    return averaged


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Where a tensor's numbers lie: two names of one weight have the same place."""
    start = tensor.untyped_storage().data_ptr()
    return start, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


# --------------------------------------------------------------------------------------- an average that is a file


def write_average(
    checkpoints: Sequence[Checkpoint],
    name: str,
    output: str | os.PathLike[str],
    *,
    order: tuple[str, str] | None = None,
) -> dict[str, Any]:
    """Writes the average of one object's weights as a file, and beside it ``<file>.json``, which tells what it is.

    The file is a state dict, for ``torch.load(..., weights_only=True)`` and for the run option ``init_from``.

    Args:
        checkpoints: What `find_checkpoints` returned.
        name: The object's name in them.
        output: A new file, such as ``average.pt``.
        order: ("min" or "max", metric) where these are the best by one, for the record.

    Returns:
        The record: the file's sum, and of each parent its path (from where the record lies), its commit number, its
        metadata, and the sums of the files that were averaged.

    Raises:
        CheckpointError: As for `average_checkpoints`; or something is there already.

    >>> import tempfile
    >>> from brainlib.checkpoint import Checkpointer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpointer = Checkpointer(folder + "/save", {"model": torch.nn.Linear(2, 1)})
    ...     parents = [checkpointer.save_checkpoint(), checkpointer.save_checkpoint()]
    ...     record = write_average(parents, "model", folder + "/average.pt")
    ...     [parent["path"] for parent in record["parents"]]
    ['save/commit-00000001', 'save/commit-00000002']
    """
    path = Path(os.path.abspath(os.fspath(output)))
    for place in (path, _record_path(path)):
        # A record of ours without its weights was left by a process that was killed between the two.
        if place.exists() and (place == path or record_of_average(path) is None):
            raise CheckpointError(f"{place} exists already; give the name of a new file, or remove it")
    state = average_checkpoints(checkpoints, name)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    data = buffer.getvalue()
    home = os.path.realpath(path.parent)
    record = {
        "format": FORMAT,
        "version": VERSION,
        "name": name,
        "order": list(order) if order else None,
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "parents": [
            {
                "path": Path(os.path.relpath(os.path.realpath(parent.path), home)).as_posix(),
                "commit": parent.commit,
                "meta": parent.meta,
                "sums": {file: parent.files[file].sha256 for file in parent.saved(name).files},
            }
            for parent in checkpoints
        ],
    }
    write_atomic(
        _record_path(path), to_json(record, indent=1) + "\n"
    )  # first: weights always have their record
    write_atomic(path, data)
    return record


def record_of_average(path: Path) -> dict[str, Any] | None:
    """What `write_average` noted beside a file; None where there is nothing, or somebody else's.

    >>> record_of_average(Path("/nowhere/average.pt")) is None
    True
    """
    try:
        with open(_record_path(path), "rb") as file:
            record = from_json(file.read(LARGEST_RECORD))
    except (OSError, ValueError, RecursionError):
        return None
    ours = isinstance(record, dict) and record.get("format") == FORMAT and record.get("version") == VERSION
    return record if ours and isinstance(record.get("name"), str) else None


def check_average(path: Path, record: Mapping[str, Any]) -> None:
    """Raises when a file is not the one that its record was written for.

    Raises:
        DamagedCheckpointError: It has another size or sum.
    """
    if path.stat().st_size != record.get("size"):
        raise DamagedCheckpointError(
            f"it has {path.stat().st_size} bytes and was written with {record.get('size')}"
        )
    if sha256_of(path) != record.get("sha256"):
        raise DamagedCheckpointError("it is not what was written (its sum differs)")


def _record_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")
