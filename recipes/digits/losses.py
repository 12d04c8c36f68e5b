"""Two ways to learn digits: as ten classes, or as one number.

Each says how many outputs it needs and how to read them.
"""

# Dimensions: B images, N outputs

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


class CrossEntropy:
    """The usual loss for classes: one output for each digit, compared through a softmax."""

    num_outputs = 10

    def __call__(self, outputs_BN: Tensor, labels_B: Tensor) -> Tensor:
        """The mean loss over the batch."""
        return functional.cross_entropy(outputs_BN, labels_B)

    def read(self, outputs_BN: Tensor) -> tuple[Tensor, Tensor]:
        """The digit that the outputs stand for and the confidence in it, 0 to 1, for each image."""
        confidences_B, digits_B = outputs_BN.softmax(1).max(1)
        return digits_B, confidences_B


class SquaredError:
    """Regression: one output whose value is the digit. It works, and is worse: to this loss an 8 is almost a 9."""

    num_outputs = 1

    def __call__(self, outputs_BN: Tensor, labels_B: Tensor) -> Tensor:
        """The mean squared error over the batch."""
        return functional.mse_loss(outputs_BN.squeeze(1), labels_B.to(outputs_BN.dtype))

    def read(self, outputs_BN: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest digit, and 1 where the output hits it exactly down to 0 where it is half way to the next."""
        values_B = outputs_BN.squeeze(1)
        digits_B = values_B.round().clamp(0, 9)
        confidences_B = (1 - 2 * (values_B - digits_B).abs()).clamp(min=0)
        return digits_B.to(torch.int64), confidences_B
