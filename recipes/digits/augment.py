"""Random changes to the training images, so that the model sees each digit a little differently every epoch."""

# Dimensions: B images, C channels, H rows, W columns

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional


class RandomAffine:
    """Turn, scale and shift every image of a batch by its own random amount.

    It draws from torch's global generator, whose state is in every checkpoint: a run that was cut goes on with the very
    same changes.

    Args:
        degrees: turn by up to this much either way; try 5 to 15. More, and a 6 begins to look like a 9 does.
        scale: grow or shrink by up to this share; try 0.05 to 0.15.
        shift: move by up to this share of the image's side, both ways; try 0.03 to 0.1.
    """

    def __init__(self, degrees: float, scale: float, shift: float) -> None:
        self.radians = math.radians(degrees)
        self.scale = scale
        self.shift = shift

    def __call__(self, images_BCHW: Tensor) -> Tensor:
        """New images of the same shape; what comes in from outside the image is paper (0)."""
        size, device = len(images_BCHW), images_BCHW.device
        # Drawn on the CPU: the same numbers whatever device trains.
        turn_B, scale_B, right_B, down_B = (2 * torch.rand(4, size) - 1).to(device)
        turn_B = turn_B * self.radians
        scale_B = 1 + scale_B * self.scale
        matrices = torch.stack(
            [
                torch.stack([scale_B * turn_B.cos(), -scale_B * turn_B.sin(), 2 * self.shift * right_B], 1),
                torch.stack([scale_B * turn_B.sin(), scale_B * turn_B.cos(), 2 * self.shift * down_B], 1),
            ],
            1,
        )
        places = functional.affine_grid(matrices, list(images_BCHW.shape), align_corners=False)
        return functional.grid_sample(images_BCHW, places, align_corners=False)
