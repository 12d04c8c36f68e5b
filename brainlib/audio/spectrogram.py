"""Augmentations of features, [batch, frames, features]: SpecAugment's masks, and the length of a vocal tract."""

from __future__ import annotations

import torch
from torch import Tensor

from brainlib.audio.augmentation import Augmentation

__all__ = ["VTLP", "SpecAugment"]


class SpecAugment(Augmentation):
    """Masks bands of features and stretches of time, each item in its own places.

    Park et al. 2019, "SpecAugment: A simple data augmentation method for automatic speech recognition"
    (https://arxiv.org/abs/1904.08779), without its time warping; `SpeedPerturb` changes the time. The width of a mask
    is drawn from 0 to its greatest, then where it begins, from wherever the whole mask fits into the item.

    Args:
        num_freq_masks: bands that are masked. Try 1 to 2.
        freq_mask_size: the greatest width of one, in features. Try a fifth to a third of them.
        num_time_masks: stretches of time that are masked. Try 1 to 10.
        time_mask_size: the greatest length of one, in frames. Try 20 to 100, and less for single words.
        max_time_part: no stretch is longer than this part of the item, from 0 to 1.
        replace: "zero", which is the mean where features are normalized before; or "mean", that of the item over its
            frames and features.
        prob: as in `Augmentation`.

    Raises:
        ValueError: for numbers out of their range.

    >>> augment = SpecAugment(freq_mask_size=4, time_mask_size=10)
    >>> augment(torch.ones(2, 50, 40), torch.tensor([50, 30])).shape
    torch.Size([2, 50, 40])
    """

    item_dims = 2
    shape = "[batch, frames, features] or [frames, features]"

    def __init__(
        self,
        num_freq_masks: int = 2,
        freq_mask_size: int = 10,
        num_time_masks: int = 2,
        time_mask_size: int = 40,
        max_time_part: float = 0.2,
        replace: str = "zero",
        prob: float = 1.0,
    ) -> None:
        super().__init__(prob)
        for name, value in (
            ("num_freq_masks", num_freq_masks),
            ("freq_mask_size", freq_mask_size),
            ("num_time_masks", num_time_masks),
            ("time_mask_size", time_mask_size),
        ):
            if value < 0:
                raise ValueError(f"{name}={value!r}: 0 or more")
        if not 0 <= max_time_part <= 1:
            raise ValueError(f"max_time_part={max_time_part!r}: a part from 0 to 1")
        if replace not in ("zero", "mean"):
            raise ValueError(f"replace={replace!r}: 'zero' or 'mean'")
        self.num_freq_masks, self.freq_mask_size = num_freq_masks, freq_mask_size
        self.num_time_masks, self.time_mask_size = num_time_masks, time_mask_size
        self.max_time_part = max_time_part
        self.replace = replace

    def augment(self, items: Tensor, counts: Tensor) -> Tensor:
        """Masked features, [B, F, M]."""
        size = torch.full_like(counts, items.shape[2])
        bands = self._masks(
            items, size, self.num_freq_masks, size.clamp(max=self.freq_mask_size), items.shape[2]
        )
        longest = (counts * self.max_time_part).long().clamp(max=self.time_mask_size)
        times = self._masks(items, counts, self.num_time_masks, longest, items.shape[1])
        value = items.new_zeros(len(items))
        if self.replace == "mean":
            inside = torch.arange(items.shape[1], device=items.device) < counts.unsqueeze(1)
            number = counts.clamp(min=1) * items.shape[2]
            value = (items * inside.unsqueeze(-1)).sum(dim=(1, 2)) / number
        hidden = bands.unsqueeze(1) | times.unsqueeze(2)
        return torch.where(hidden, value.reshape(-1, 1, 1), items)

    def _masks(self, items: Tensor, room: Tensor, number: int, greatest: Tensor, size: int) -> Tensor:
        """True where a mask is, [B, size]: widths from 0 to `greatest`, each whole inside of `room`; both are [B]."""
        width = (self.draw(items, 0.0, 1.0, number) * (greatest.unsqueeze(1) + 1)).long()
        first = (self.draw(items, 0.0, 1.0, number) * (room.unsqueeze(1) - width + 1)).long()
        places = torch.arange(size, device=items.device)
        inside = (places >= first.unsqueeze(-1)) & (places < (first + width).unsqueeze(-1))
        return inside.any(dim=1)


class VTLP(Augmentation):
    """Vocal tract length perturbation: stretches the frequency axis of log-mels, each item by a factor of its own.

    Jaitly and Hinton 2013, "Vocal tract length perturbation improves speech recognition". The energy at frequency f
    becomes that at G(f), with G(f) = f · α up to f₀ = f_high · min(α, 1) / α, and from there on a straight line to
    half the rate. There the filters are moved; here features are read between filters, linearly on the mel scale, so
    that it works on a batch. It changes log-mels (`Fbank`), not cepstra.

    Args:
        sample_rate: that of the features, in Hz.
        low: the least α. Try 0.9.
        high: the greatest α. Try 1.1.
        f_min: as in `Fbank`, in Hz.
        f_max: as in `Fbank`, in Hz; None: half the rate.
        f_high: the frequency that covers the important formants, in Hz; None: 0.6 of half the rate, 4800 at 16 kHz.
        prob: as in `Augmentation`.

    Raises:
        ValueError: for numbers out of their range.

    >>> VTLP(sample_rate=8000)(torch.randn(2, 50, 40)).shape
    torch.Size([2, 50, 40])
    """

    item_dims = 2
    shape = "[batch, frames, features] or [frames, features]"

    def __init__(
        self,
        sample_rate: int,
        low: float = 0.9,
        high: float = 1.1,
        f_min: float = 0.0,
        f_max: float | None = None,
        f_high: float | None = None,
        prob: float = 1.0,
    ) -> None:
        super().__init__(prob)
        self.nyquist = sample_rate / 2
        self.f_min = f_min
        self.f_max = self.nyquist if f_max is None else f_max
        self.f_high = 0.6 * self.nyquist if f_high is None else f_high
        self.low, self.high = low, high
        if not 0 < low <= high:
            raise ValueError(f"low={low!r}, high={high!r}: positive, and the first is not the greater one")
        if not 0 <= self.f_min < self.f_max <= self.nyquist:
            raise ValueError(
                f"f_min={f_min!r}, f_max={f_max!r}: between 0 and {self.nyquist:g} Hz, as in Fbank"
            )
        if not 0 < self.f_high < self.nyquist:
            raise ValueError(f"f_high={f_high!r}: between 0 and {self.nyquist:g} Hz, half the rate")

    def augment(self, items: Tensor, counts: Tensor) -> Tensor:
        """Warped features, [B, F, M]."""
        return self.warped(items, self.draw(items, self.low, self.high))

    def warped(self, items: Tensor, alpha: Tensor) -> Tensor:
        """Features with each item's frequency axis stretched by its factor, [B]."""
        number = items.shape[2]
        lowest, highest = (
            _mel(torch.tensor(f, dtype=torch.float64, device=items.device)) for f in (self.f_min, self.f_max)
        )
        width = (highest - lowest) / (number + 1)
        centers = lowest + width * torch.arange(1, number + 1, device=items.device)
        places = (_mel(self._warp(_hertz(centers), alpha.double().unsqueeze(1))) - lowest) / width - 1
        places = places.clamp(0, number - 1)
        below = places.long().clamp(max=max(0, number - 2))
        part = (places - below).to(items.dtype).unsqueeze(1)
        below = below.unsqueeze(1).expand_as(items)
        above = (below + 1).clamp(max=number - 1)
        return torch.lerp(items.gather(2, below), items.gather(2, above), part.expand_as(items))

    def _warp(self, hertz: Tensor, alpha: Tensor) -> Tensor:
        """G of the docstring: [B, M] of [M] and [B, 1]."""
        reached = self.f_high * alpha.clamp(max=1.0)
        slope = (self.nyquist - reached) / (self.nyquist - reached / alpha)
        return torch.where(
            hertz <= reached / alpha, hertz * alpha, self.nyquist - slope * (self.nyquist - hertz)
        )


def _mel(hertz: Tensor) -> Tensor:
    return 2595.0 * torch.log10(1.0 + hertz / 700.0)


def _hertz(mel: Tensor) -> Tensor:
    return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)
