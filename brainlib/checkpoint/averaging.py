"""The mean of several checkpoints' weights, which is often a better model than the best of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from brainlib.checkpoint.beside import settled
from brainlib.checkpoint.errors import CheckpointError
from brainlib.checkpoint.manifest import Checkpoint
from brainlib.checkpoint.weights import load_weights
from brainlib.common.errors import quoted
from brainlib.common.logs import logger

__all__ = ["average_checkpoints", "average_state_dicts"]


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
    same_storage: dict[
        tuple[Any, ...], torch.Tensor
    ] = {}  # tied weights, by where they lie in the first state dict
    for key, value in first.items():
        if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
            averaged[key] = value
            continue
        shapes = {tuple(state[key].shape) for state in states}
        if len(shapes) > 1:
            raise CheckpointError(
                f"{key!r} does not have the same shape in all: {', '.join(map(str, sorted(shapes)))}"
            )
        place = (
            value.untyped_storage().data_ptr(),
            value.storage_offset(),
            value.shape,
            value.stride(),
            value.dtype,
        )
        if value.numel() == 0 or place not in same_storage:
            wide = torch.complex128 if value.is_complex() else torch.float64
            total = torch.zeros_like(value, dtype=wide, device="cpu")
            for state in states:
                total += state[key].detach().to("cpu", wide)
            same_storage[place] = (total / len(states)).to(value.dtype)
        averaged[key] = same_storage[place]
    return averaged
