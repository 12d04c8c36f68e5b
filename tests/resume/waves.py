"""What the runs of this folder train on: waves that are augmented at random wherever that can be done, and a model that
has what a resume could lose (convolution, running statistics, dropout, a recurrent net).

A wave is so long that torch would sum it with several threads where it is allowed several, in an order that depends on
their number; the mean and the deviation that it is normalized by are such sums.
"""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn

from tests.contracts.brains import NUM_TARGETS, Batch

NUM_SAMPLES = 64_000
NUM_BLOCKS = 40  # frames of the model


class Waves(torch.utils.data.Dataset[Batch]):
    """Items ``{"id": int, "x": [64,000] samples, "y": [3]}``; another version of each, every time it is read."""

    def __init__(self, num_items: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(num_items, NUM_SAMPLES, generator=generator)
        self.y = torch.rand(num_items, NUM_TARGETS, generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Batch:
        wave = torch.roll(self.x[index], int(np.random.randint(NUM_SAMPLES)))
        wave = wave * random.uniform(0.5, 2.0) + torch.rand(NUM_BLOCKS).repeat_interleave(
            NUM_SAMPLES // NUM_BLOCKS
        )
        wave = (wave - wave.mean()) / wave.std()
        return {"id": torch.tensor(index), "x": wave, "y": self.y[index]}


def collate(items: list[Batch]) -> Batch:
    """Stacked, with a stretch of the batch silenced and noise added."""
    batch = {key: torch.stack([item[key] for item in items]) for key in items[0]}
    start = random.randrange(NUM_SAMPLES // 2)
    batch["x"][:, start : start + int(np.random.randint(NUM_SAMPLES // 2))] = 0.0
    batch["x"] += 0.1 * torch.rand(len(items), 1)
    return batch


def ready_waves(sizes: tuple[int, ...], seed: int) -> list[Batch]:
    """Ready batches of these sizes, without augmentation."""
    waves = Waves(sum(sizes), seed)
    return [
        {"x": x, "y": y}
        for x, y in zip(torch.split(waves.x, sizes), torch.split(waves.y, sizes), strict=True)
    ]


class Frames(nn.Module):
    """[batch, samples] → [batch, frames, channels]: a convolution and running statistics."""

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        size = NUM_SAMPLES // NUM_BLOCKS
        self.conv = nn.Conv1d(1, num_channels, size, stride=size)
        self.norm = nn.BatchNorm1d(num_channels)

    def forward(self, wave: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(wave.unsqueeze(1)))).transpose(1, 2)


class Memory(nn.Module):
    """[batch, frames, channels] → [batch, width]: what an LSTM holds after the last frame."""

    def __init__(self, num_channels: int, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(num_channels, width, batch_first=True)

    def forward(self, frames: Tensor) -> Tensor:
        outputs: Tensor = self.lstm(frames)[0]
        return outputs[:, -1]


def listener() -> nn.Sequential:
    return nn.Sequential(Frames(6), nn.Dropout(0.2), Memory(6, 8), nn.Dropout(0.3), nn.Linear(8, NUM_TARGETS))
