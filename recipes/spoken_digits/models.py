"""A small convolutional network for single words, and what comes before it."""

# Dimensions: B batch, T samples, C channels, F frames, M features of a frame, N classes

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from brainlib.audio import length_mask


class Level(nn.Module):
    """Gives each wave the same power: speakers sit near to a microphone or far from it.

    Args:
        rms: root of the mean square that each gets, over its own length.
    """

    def __init__(self, rms: float = 0.1) -> None:
        super().__init__()
        self.rms = rms

    def forward(self, waves_BT: Tensor, num_samples_B: Tensor) -> Tensor:
        """Waves of the same shape; behind the end of each they are 0 before and after."""
        power_B = waves_BT.square().sum(1) / num_samples_B
        return waves_BT * (self.rms / power_B.sqrt().clamp(min=1e-5)).unsqueeze(1)


class WordCnn(nn.Module):
    """Convolutions of 3 x 3 over log-mels, each with batch norm and pooling; then mean and maximum over time.

    What comes out for an item does not depend on what it is batched with: behind its end there are zeros after each
    layer, and both poolings leave them out.

    Args:
        num_mels: features of a frame.
        num_classes: outputs.
        channels: after each convolution. Each pools by 2 over time and frequency, so 4 of them take 32 mels to 2.
        dropout: share of the values set to zero in training before the last layer; try 0.1 to 0.5.
    """

    def __init__(
        self,
        num_mels: int,
        num_classes: int,
        channels: Sequence[int] = (16, 32, 64, 96),
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList()
        num_before, size = 1, num_mels
        for num_channels in channels:
            # batch norm has a bias of its own
            convolution = nn.Conv2d(num_before, num_channels, kernel_size=3, padding=1, bias=False)
            self.convolutions.append(nn.Sequential(convolution, nn.BatchNorm2d(num_channels)))
            num_before, size = num_channels, -(-size // 2)
        self.pool = nn.MaxPool2d(2, ceil_mode=True)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(2 * num_before * size, num_classes)
        self.to(memory_format=torch.channels_last)  # a third faster on a CPU

    def forward(self, features_BFM: Tensor, num_frames_B: Tensor) -> Tensor:
        """Outputs of shape [B, N]; no softmax, the loss does that."""
        values_BCFM, num_B = features_BFM.unsqueeze(1), num_frames_B
        mask_B1F1 = length_mask(num_B, values_BCFM.shape[2])[:, None, :, None]
        values_BCFM = values_BCFM * mask_B1F1
        for convolution in self.convolutions:
            # ReLU after the pooling: the same numbers, and a quarter of the work.
            values_BCFM = self.pool(convolution(values_BCFM) * mask_B1F1).relu()
            num_B = torch.div(num_B + 1, 2, rounding_mode="floor")
            mask_B1F1 = mask_B1F1[:, :, ::2]
        values_BCF = values_BCFM.transpose(2, 3).flatten(1, 2)
        mean_BC = values_BCF.sum(2) / num_B.unsqueeze(1)
        return self.output(self.dropout(torch.cat([mean_BC, values_BCF.amax(2)], 1)))
