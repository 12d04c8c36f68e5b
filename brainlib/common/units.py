"""The one place that converts: seconds and samples, samples and frames, relative lengths and counts.

Time is counted in three units. *Seconds* stand in manifests and options, *samples* in waveforms, *frames* in features.
The length of an item in a padded batch is either a count (integers) or a part of the longest (floats from 0 to 1, as
SpeechBrain has it); every function of brainlib that takes ``lengths`` takes both, through `absolute_lengths`.
"""

from __future__ import annotations

import math
from typing import overload

import torch
from torch import Tensor

__all__ = [
    "absolute_lengths",
    "frames_to_seconds",
    "length_mask",
    "relative_lengths",
    "samples_to_frames",
    "samples_to_seconds",
    "seconds_to_samples",
]


def seconds_to_samples(seconds: float, sample_rate: int) -> int:
    """The sample that is nearest to a time.

    Args:
        seconds: 0 or more.
        sample_rate: in Hz.

    Raises:
        ValueError: for a time that is negative or not finite.

    >>> seconds_to_samples(0.025, 16000), seconds_to_samples(0.025, 22050)
    (400, 551)
    """
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"a time of {seconds!r} seconds: give a number that is 0 or more")
    return round(seconds * sample_rate)


def samples_to_seconds(num_samples: int, sample_rate: int) -> float:
    """How long so many samples are, in seconds.

    >>> samples_to_seconds(400, 16000)
    0.025
    """
    return num_samples / sample_rate


@overload
def samples_to_frames(num_samples: int, hop_samples: int) -> int: ...


@overload
def samples_to_frames(num_samples: Tensor, hop_samples: int) -> Tensor: ...


def samples_to_frames(num_samples: int | Tensor, hop_samples: int) -> int | Tensor:
    """How many frames the features of so many samples have: one at sample 0 and at each hop, 1 + samples // hop.

    Frames are centered: frame n is about the samples around n · hop, with silence before the first and behind the last
    sample.

    >>> samples_to_frames(16000, 160), samples_to_frames(torch.tensor([159, 160]), 160).tolist()
    (101, [1, 2])
    """
    return num_samples // hop_samples + 1


def frames_to_seconds(num_frames: int, hop_samples: int, sample_rate: int) -> float:
    """The time at which frame number `num_frames` (from 0) has its center, in seconds.

    >>> frames_to_seconds(100, 160, 16000)
    1.0
    """
    return num_frames * hop_samples / sample_rate


def absolute_lengths(lengths: Tensor, size: int, num_items: int | None = None) -> Tensor:
    """Lengths as counts, whichever way they were given.

    Args:
        lengths: [batch]; integers are counts and stay, floats are parts of `size`, from 0 to 1, and are rounded to the
            nearest count.
        size: that of the dimension they are lengths of (samples, frames, tokens).
        num_items: of how many items; None: it is not looked at.

    Returns:
        [batch], int64, on the same device.

    Raises:
        ValueError: for more or fewer lengths than items, and for lengths that are out of range. On an accelerator the
            latter is not looked at, since it would wait.

    >>> absolute_lengths(torch.tensor([1.0, 0.5]), 5), absolute_lengths(torch.tensor([5, 2]), 5)
    (tensor([5, 2]), tensor([5, 2]))
    """
    if lengths.dim() != 1:
        raise ValueError(
            f"lengths have the shape {tuple(lengths.shape)}; give one number an item, so [batch]"
        )
    if num_items is not None and len(lengths) != num_items:
        raise ValueError(
            f"there are {len(lengths)} lengths and a batch of {num_items}; give one number an item"
        )
    relative = lengths.is_floating_point()
    if lengths.device.type == "cpu" and len(lengths):
        low, high = lengths.min().item(), lengths.max().item()
        if not (low >= 0 and high <= ((1 + 1e-4) if relative else size)):
            raise ValueError(
                f"lengths go from {low:g} to {high:g}; "
                + ("as parts they lie between 0 and 1" if relative else f"as counts between 0 and {size}")
                + ". Integers are counts, floats are parts of the longest"
            )
    if not relative:
        return lengths.long()
    return (lengths.double() * size).round().long().clamp(max=size)


def relative_lengths(lengths: Tensor, size: int) -> Tensor:
    """Counts as parts of `size`, float32; `absolute_lengths` gives the counts back, up to 2**24.

    >>> relative_lengths(torch.tensor([5, 2]), 5)
    tensor([1.0000, 0.4000])
    """
    return (lengths.double() / size).float()


def length_mask(lengths: Tensor, size: int, num_items: int | None = None) -> Tensor:
    """Where there is something: True up to the length of each item, [batch, size]; arguments as `absolute_lengths`.

    >>> length_mask(torch.tensor([3, 1]), 3).int()
    tensor([[1, 1, 1],
            [1, 0, 0]], dtype=torch.int32)
    """
    counts = absolute_lengths(lengths, size, num_items)
    return torch.arange(size, device=counts.device) < counts.unsqueeze(1)
