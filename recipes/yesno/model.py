"""A small convolutional network from features to the logarithms of probabilities of tokens, frame by frame."""

# Dimensions: B recordings, F frames, M features, T frames of the output, N tokens

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class WordCnn(nn.Module):
    """Convolutions over time; the first ones halve the number of frames. It sees half a second, about one word.

    Args:
        num_features: of a frame.
        num_tokens: the blank and the words.
        channels: of the layers.
        strides: of the layers.
        kernel_size: of all, in frames of their input.
        dropout: between the layers.
    """

    def __init__(
        self,
        num_features: int,
        num_tokens: int,
        channels: Sequence[int] = (64, 64, 64),
        strides: Sequence[int] = (2, 2, 1),
        kernel_size: int = 7,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = num_features
        for number, stride in zip(channels, strides, strict=True):
            layers += [
                # batch norm has a bias of its own
                nn.Conv1d(before, number, kernel_size, stride, kernel_size // 2, bias=False),
                nn.BatchNorm1d(number),
                nn.ReLU(),
                nn.Dropout(dropout),
            ]
            before = number
        self.layers = nn.Sequential(*layers, nn.Conv1d(before, num_tokens, 1))
        self.strides = list(strides)

    def forward(self, features_BFM: Tensor) -> Tensor:
        """Logarithms of probabilities, [B, T, N]."""
        return self.layers(features_BFM.transpose(1, 2)).transpose(1, 2).log_softmax(-1)

    def num_frames(self, counts: Tensor) -> Tensor:
        """How many frames of the output so many frames of features become."""
        for stride in self.strides:
            counts = torch.div(counts + stride - 1, stride, rounding_mode="floor")
        return counts
