"""Features of waveforms: Fbank, MFCC and Deltas, batched, on the device they are moved to.

What comes out for an item does not depend on the batch it is in: frames near an end see silence, never the padding of
the batch or a mirror of the signal, and no level is relative to the loudest. Letters: B batch, T time in samples,
F frames, M features of a frame.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torchaudio.functional import compute_deltas, create_dct
from torchaudio.transforms import MelSpectrogram

from brainlib.common.counted import counted
from brainlib.common.units import absolute_lengths, length_mask, samples_to_frames, seconds_to_samples

__all__ = ["MFCC", "Deltas", "Fbank"]


class Fbank(nn.Module):
    """Logarithms of mel filter bank energies.

    log(mel · |STFT|² + floor), with a periodic Hann window and triangular filters of the HTK mel scale
    (2595 log10(1 + f / 700)) that reach 1 in their middle. Frame n is centered on sample n · hop.

    Args:
        sample_rate: of the waveforms, in Hz.
        n_mels: filters, so features of a frame. Try 40 to 80 for 16 kHz, 24 to 40 for 8 kHz.
        n_fft: points of the Fourier transform; None: the next power of two from the window on.
        win_length: of the window, in milliseconds.
        hop_length: from a frame to the next, in milliseconds.
        f_min: where the lowest filter begins, in Hz.
        f_max: where the highest ends, in Hz; None: at half the rate.
        floor: is added to the energies, so that silence has a logarithm; 1e-6 is near the noise of 16 bits.

    Raises:
        ValueError: for numbers out of their range, or a filter so narrow that it catches no point of the transform.

    Attributes:
        hop_samples: from a frame to the next, in samples.

    >>> fbank = Fbank(sample_rate=8000, n_mels=24)
    >>> waves, lengths = torch.randn(2, 8000), torch.tensor([8000, 4000])
    >>> fbank(waves, lengths).shape, fbank.num_frames(lengths)
    (torch.Size([2, 101, 24]), tensor([101,  51]))
    """

    def __init__(
        self,
        sample_rate: int = 16000,
        n_mels: int = 40,
        n_fft: int | None = None,
        win_length: float = 25.0,
        hop_length: float = 10.0,
        f_min: float = 0.0,
        f_max: float | None = None,
        floor: float = 1e-6,
    ) -> None:
        super().__init__()
        window = seconds_to_samples(win_length / 1000, sample_rate)
        self.hop_samples = seconds_to_samples(hop_length / 1000, sample_rate)
        points = n_fft or 1 << max(window - 1, 1).bit_length()
        top = sample_rate / 2 if f_max is None else f_max
        for wrong, told in (
            (
                window < 2,
                f"win_length={win_length!r} ms are {counted(window, 'sample')}; at least 2 are needed",
            ),
            (
                self.hop_samples < 1,
                f"hop_length={hop_length!r} ms are {counted(self.hop_samples, 'sample')}; at least 1 is needed",
            ),
            (
                points < window,
                f"n_fft={points} is less than the window of {window} samples ({win_length!r} ms)",
            ),
            (n_mels < 1, f"n_mels={n_mels!r}: at least 1"),
            (floor <= 0, f"floor={floor!r}: above 0"),
            (
                not 0 <= f_min < top <= sample_rate / 2,
                f"filters from f_min={f_min!r} to f_max={top!r} Hz; they lie between 0 and "
                f"{sample_rate / 2:g} Hz, half the rate",
            ),
        ):
            if wrong:
                raise ValueError(told)
        self.sample_rate = sample_rate
        self.n_mels = n_mels
        self.floor = floor
        self._pad = (points // 2, points - points // 2)  # silence, the same for every length
        self.mel_spectrogram: Any = _mel_spectrogram(
            sample_rate, points, window, self.hop_samples, f_min, top, n_mels
        )

    def forward(self, waves: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Features of waveforms.

        Args:
            waves: [B, T], or [T] for a single one; padded with zeros.
            lengths: [B], counts of samples or parts of T; features behind an item's end become 0. None: all is signal.

        Returns:
            float32, [B, F, M] (or [F, M]) with F = T // hop + 1, also under autocast.
        """
        if waves.dim() not in (1, 2):
            raise ValueError(f"waves have the shape {tuple(waves.shape)}; give [batch, time] or [time]")
        if waves.dim() == 1:
            return self.forward(waves.unsqueeze(0)).squeeze(0)
        if not len(waves):
            waves = waves.new_zeros(1, waves.shape[1])  # torch transforms no batch of nothing
            return self.forward(waves)[:0]
        with torch.autocast(waves.device.type, enabled=False):
            features = self._features(waves.float())
        if lengths is None:
            return features
        frames = self.num_frames(absolute_lengths(lengths, waves.shape[1], len(waves)))
        return features * length_mask(frames, features.shape[1]).unsqueeze(-1)

    def num_frames(self, num_samples: Tensor) -> Tensor:
        """How many frames so many samples become, [B] of [B]."""
        return samples_to_frames(num_samples, self.hop_samples)

    def _features(self, waves: Tensor) -> Tensor:
        energies = self.mel_spectrogram(nn.functional.pad(waves, self._pad))
        return torch.log(energies + self.floor).transpose(1, 2)


class MFCC(Fbank):
    """Mel-frequency cepstral coefficients: the orthonormal DCT-II of `Fbank`, of which the first `n_mfcc` stay.

    Davis and Mermelstein 1980, "Comparison of parametric representations for monosyllabic word recognition".

    Args:
        sample_rate: of the waveforms, in Hz.
        n_mfcc: coefficients of a frame, at most n_mels. Try 13 to 20.
        n_mels: filters. Try 23 to 40.
        **others: as `Fbank`.

    Raises:
        ValueError: as `Fbank`, and for more coefficients than filters.

    >>> MFCC(sample_rate=8000, n_mfcc=13)(torch.randn(2, 8000)).shape
    torch.Size([2, 101, 13])
    """

    dct: Tensor

    def __init__(self, sample_rate: int = 16000, n_mfcc: int = 13, n_mels: int = 24, **others: Any) -> None:
        super().__init__(sample_rate, n_mels, **others)
        if not 1 <= n_mfcc <= n_mels:
            raise ValueError(f"n_mfcc={n_mfcc!r}: between 1 and n_mels={n_mels}")
        self.n_mfcc = n_mfcc
        self.register_buffer("dct", create_dct(n_mfcc, n_mels, "ortho"), persistent=False)

    def _features(self, waves: Tensor) -> Tensor:
        return super()._features(waves) @ self.dct


class Deltas(nn.Module):
    """How features change over time, by regression: Σ n (c(t+n) - c(t-n)) / (2 Σ n²), n from 1 to (window - 1) / 2.

    Before its first and behind its last frame an item goes on as it begins and ends. The formula is (5.16) of the HTK
    book. The deltas of deltas are Deltas()(deltas).

    Args:
        window_length: frames that are looked at, an odd number from 3 on.
        append: how many orders are put behind the features themselves: 1 for deltas, 2 for deltas and their deltas;
            0: the deltas alone are returned.

    Raises:
        ValueError: for an even window or one below 3, or another number of orders.

    >>> features = torch.randn(2, 101, 13)
    >>> Deltas()(features).shape, Deltas(append=2)(features).shape
    (torch.Size([2, 101, 13]), torch.Size([2, 101, 39]))
    """

    def __init__(self, window_length: int = 5, append: int = 0) -> None:
        super().__init__()
        if window_length < 3 or window_length % 2 == 0:
            raise ValueError(f"window_length={window_length!r}: an odd number of frames, from 3 on")
        if append not in (0, 1, 2):
            raise ValueError(f"append={append!r}: 0, 1 or 2")
        self.window_length = window_length
        self.append = append

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Deltas, or features with their deltas.

        Args:
            features: [B, F, M], or [F, M] for a single item.
            lengths: [B], counts of frames or parts of F; what is behind an item's end becomes 0. None: all is signal.

        Returns:
            [B, F, M · (1 + append)], in the type of the features.
        """
        if features.dim() == 2:
            return self.forward(features.unsqueeze(0)).squeeze(0)
        if not features.numel():
            return features.new_zeros(*features.shape[:-1], features.shape[-1] * (1 + self.append))
        counts = None if lengths is None else absolute_lengths(lengths, features.shape[1], len(features))
        parts = [features]
        for _ in range(max(1, self.append)):
            parts.append(self._once(parts[-1], counts))
        result = torch.cat(parts, dim=-1) if self.append else parts[-1]
        if counts is None:
            return result
        return result * length_mask(counts, features.shape[1]).unsqueeze(-1)

    def _once(self, features: Tensor, counts: Tensor | None) -> Tensor:
        if counts is not None:  # the last frame of each item, from there on
            places = torch.arange(features.shape[1], device=features.device)
            last = (counts - 1).clamp(min=0).unsqueeze(1)
            index = torch.minimum(places, last).unsqueeze(-1).expand_as(features)
            features = features.gather(1, index)
        return compute_deltas(features.transpose(1, 2), self.window_length).transpose(1, 2)  # type: ignore[no-any-return]


def _mel_spectrogram(
    sample_rate: int, points: int, window: int, hop: int, f_min: float, f_max: float, n_mels: int
) -> Any:
    """[B, M, F] from padded waves; what torchaudio only warns of, a filter without a point, is an error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="At least one mel filterbank")
        made = MelSpectrogram(
            sample_rate=sample_rate,
            n_fft=points,
            win_length=window,
            hop_length=hop,
            f_min=f_min,
            f_max=f_max,
            n_mels=n_mels,
            center=False,
            power=2.0,
        )
    empty = (made.mel_scale.fb.sum(dim=0) == 0).nonzero().flatten().tolist()
    if empty:
        raise ValueError(
            f"n_mels={n_mels}: {len(empty)} of the filters (number {empty[0]} is the first) catch no point of a "
            f"transform of {points} points at {sample_rate} Hz. Take fewer filters, a larger n_fft or a higher f_min"
        )
    for part, name in ((made.spectrogram, "window"), (made.mel_scale, "fb")):
        part.register_buffer(name, getattr(part, name), persistent=False)  # constants are no state
    return made
