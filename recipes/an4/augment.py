"""Augmentation of cepstra: back to log-mels, where voices can be warped and bands masked, and to cepstra again."""

# Dimensions: B utterances, F frames, M cepstra, N mel filters

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from brainlib.audio import VTLP, SpecAugment


class CepstralAugment(nn.Module):
    """Another voice, another speed, and masks, for utterances given as cepstra. Outside of training nothing is changed.

    Sphinx's cepstra are c_i = 1/N Σ_n m_n cos(π i (n + 1/2) / N) of log-mels m. Of 40 filters 13 cepstra keep what
    is smooth over frequency, and m_n ≈ c_0 + 2 Σ_i c_i cos(π i (n + 1/2) / N) gives that back. There SpecAugment and
    vocal tract length perturbation do what they do on log-mels; then the cepstra of the result are taken.

    Args:
        num_cepstra: M.
        num_mels: N, the filters that the cepstra were made from.
        f_min: where the lowest begins, in Hz.
        f_max: where the highest ends, in Hz.
        warp: frequencies are stretched by up to this share, up or down. Try 0.1 to 0.2; 0 is off.
        speed: so is time. Try 0.1; 0 is off.
        masks: of log-mels, in which 0 is the mean; they should be short, since a masked word cannot be guessed.
    """

    idct: Tensor
    dct: Tensor

    def __init__(
        self,
        num_cepstra: int = 13,
        num_mels: int = 40,
        f_min: float = 130.0,
        f_max: float = 6800.0,
        warp: float = 0.15,
        speed: float = 0.12,
        masks: SpecAugment | None = None,
    ) -> None:
        super().__init__()
        places = (torch.arange(num_mels) + 0.5) * math.pi / num_mels
        cosines = torch.cos(torch.arange(num_cepstra).unsqueeze(1) * places)
        self.register_buffer("dct", (cosines / num_mels).T.contiguous(), persistent=False)
        cosines[1:] *= 2
        self.register_buffer("idct", cosines, persistent=False)
        self.warp = VTLP(16000, 1 - warp, 1 + warp, f_min=f_min, f_max=f_max)
        self.speed = speed
        self.masks = nn.Identity() if masks is None else masks
        self.has_masks = masks is not None

    def forward(self, cepstra_BFM: Tensor, counts_B: Tensor) -> tuple[Tensor, Tensor]:
        """Changed cepstra, [B, F', M], and how many frames each utterance has now; what is behind an end is 0."""
        if not self.training:
            return cepstra_BFM, counts_B
        if self.speed:
            cepstra_BFM, counts_B = self._at_another_speed(cepstra_BFM, counts_B)
        mels = self.warp(cepstra_BFM @ self.idct, counts_B)
        if self.has_masks:
            mels = self.masks(mels, counts_B)
        return mels @ self.dct, counts_B

    def _at_another_speed(self, cepstra_BFM: Tensor, counts_B: Tensor) -> tuple[Tensor, Tensor]:
        """Frames between frames, read off the straight line between them."""
        factors = 1 + self.speed * (2 * torch.rand(len(counts_B)) - 1)
        new_counts = (counts_B.cpu() / factors).round().long().clamp(min=1).to(counts_B.device)
        places = torch.arange(int(new_counts.max()), device=counts_B.device) + 0.5
        steps = counts_B / new_counts
        places = (places * steps.unsqueeze(1) - 0.5).clamp(min=0)
        places = torch.minimum(places, (counts_B - 1).unsqueeze(1))
        below = places.long()
        above = torch.minimum(below + 1, (counts_B - 1).unsqueeze(1))
        share = (places - below).unsqueeze(-1)
        index = (len(cepstra_BFM), places.shape[1], cepstra_BFM.shape[2])
        read = torch.lerp(
            cepstra_BFM.gather(1, below.unsqueeze(-1).expand(index)),
            cepstra_BFM.gather(1, above.unsqueeze(-1).expand(index)),
            share,
        )
        inside = torch.arange(places.shape[1], device=counts_B.device) < new_counts.unsqueeze(1)
        return read * inside.unsqueeze(-1), new_counts
