"""What is wrong with a loss that could not be used."""

from __future__ import annotations

from typing import Any

from torch import Tensor

__all__ = ["check_loss"]


def check_loss(loss: Any, giver: str, needs_graph: bool = True) -> None:
    """Raise an error that says more than torch does, where it can; asked only after something has failed.

    Args:
        loss: what `giver` returned.
        giver: who returned it, for the message: ``"compute_objectives of MyBrain"``.
        needs_graph: whether a backward is to follow.

    Raises:
        ValueError: if the loss is no tensor, no scalar, no real number, or has no graph.

    Example:
        >>> import torch
        >>> check_loss(torch.ones(3), "compute_objectives of MyBrain")
        Traceback (most recent call last):
        ...
        ValueError: compute_objectives of MyBrain returned a tensor of shape [3]; the loss must be a scalar. ...
    """
    if not isinstance(loss, Tensor):
        raise ValueError(
            f"{giver} returned a {type(loss).__name__} ({loss!r}); it must return the loss as a tensor, so "
            f"that gradients "
            "can flow"
        ) from None
    if loss.numel() != 1:
        raise ValueError(
            f"{giver} returned a tensor of shape {list(loss.shape)}; the loss must be a scalar. Reduce it, "
            f"for example with "
            ".mean(), and let loss_weight say how many items that is a mean over."
        ) from None
    if loss.is_complex() or (needs_graph and not loss.is_floating_point()):
        raise ValueError(
            f"{giver} returned a loss of the type {loss.dtype}; it must be a real number in floating point, such as "
            "torch.float32. Of a complex one take .abs() or .real; a count has no gradient that could be followed."
        ) from None
    if needs_graph and not loss.requires_grad:
        raise ValueError(
            f"{giver} returned a loss without a graph: nothing in it depends on a parameter that requires a "
            f"gradient. Look "
            "for .detach(), .item(), torch.no_grad(), or modules that are all frozen; to train without "
            "gradients override "
            "fit_batch."
        ) from None
