"""Augmentations of waveforms, [batch, time]: speed, noise, reverberation, shifts, missing bands and missing pieces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchaudio.functional import add_noise, fftconvolve
from torchaudio.transforms import Resample

from brainlib.audio.augmentation import Augmentation
from brainlib.common.counted import counted
from brainlib.common.units import absolute_lengths, length_mask, relative_lengths, seconds_to_samples

__all__ = [
    "AddNoise",
    "AddReverb",
    "DropChunk",
    "DropFreq",
    "SpeedPerturb",
    "TimeShift",
    "exponential_response",
]


class SpeedPerturb(nn.Module):
    """Plays each item faster or slower, which changes its length, its pitch and its formants.

    Ko et al. 2015, "Audio augmentation for speech recognition". By torchaudio's resampling.

    Args:
        orig_freq: the rate of the waveforms, in Hz.
        speeds: whole percentages, one of which is drawn for each item; 100 leaves it as it is.

    Raises:
        ValueError: for no speeds, or speeds that are no positive whole numbers.

    >>> waves, lengths = SpeedPerturb(8000, speeds=[50])(torch.randn(2, 100), torch.tensor([100, 60]))
    >>> waves.shape, lengths
    (torch.Size([2, 200]), tensor([200, 120]))
    """

    def __init__(self, orig_freq: int, speeds: Sequence[int] = (90, 100, 110)) -> None:
        super().__init__()
        if not speeds or not all(isinstance(speed, int) and speed > 0 for speed in speeds):
            raise ValueError(f"speeds={list(speeds)!r}: whole percentages above 0, such as [90, 100, 110]")
        self.orig_freq = orig_freq
        self.speeds = list(speeds)
        # The ratio is that of whole numbers: 1.15 · 16000 is a little less than 18400, and the kernel would be huge.
        self.players = nn.ModuleList(Resample(speed, 100) for speed in self.speeds)
        for player in self.players:
            for name, kernel in list(player.named_buffers()):
                player.register_buffer(name, kernel, persistent=False)  # constants are no state

    def forward(self, waves: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Waves at another speed, and their lengths; outside of training mode both as they are.

        Args:
            waves: [B, T], or [T] for a single one; padded with zeros.
            lengths: [B], counts of samples or parts of T. None: all is signal.

        Returns:
            [B, longest], padded with zeros; and [B] lengths, parts where parts were given and counts otherwise.

        Raises:
            ValueError: for another number of dimensions, waves that are no floating-point numbers, or lengths that are
                not one an item.
        """
        if waves.dim() == 1:
            waves, counts = self.forward(waves.unsqueeze(0), None if lengths is None else lengths.reshape(1))
            return waves[0], counts[0]
        if lengths is None:
            lengths = torch.full((len(waves),), waves.shape[1], dtype=torch.int64, device=waves.device)
        return self.played(waves, lengths, self.draw(len(waves)))

    def draw(self, num_items: int) -> Tensor:
        """The speed of each of so many items, as percentages, int64, [num_items], on the CPU; outside of training
        mode 100.

        >>> SpeedPerturb(8000).eval().draw(3)
        tensor([100, 100, 100])
        """
        if not self.training:
            return torch.full((num_items,), 100)
        return torch.tensor(self.speeds)[torch.randint(len(self.speeds), (num_items,))]

    def played(self, waves: Tensor, lengths: Tensor, speeds: Tensor) -> tuple[Tensor, Tensor]:
        """Each item at a speed that is told, in training mode and outside of it.

        Args:
            waves: [B, T], padded with zeros.
            lengths: [B], counts of samples or parts of T.
            speeds: [B], percentages, each 100 or one of `speeds`.

        Raises:
            ValueError: for another speed.

        >>> SpeedPerturb(8000, [50]).played(torch.ones(2, 100), torch.tensor([60, 60]), torch.tensor([50, 100]))[1]
        tensor([120,  60])
        """
        if waves.dim() != 2 or not waves.is_floating_point():
            raise ValueError(
                f"SpeedPerturb: the waves have the shape {tuple(waves.shape)} and the type {waves.dtype}; give "
                "[batch, time] or [time] in floating point"
            )
        told = speeds.tolist()
        if unknown := sorted(set(told) - {100, *self.speeds}):
            raise ValueError(f"speeds={unknown}: each is 100 or one of {self.speeds}")
        parts = lengths.is_floating_point()
        counts = absolute_lengths(lengths, waves.shape[1], len(waves))
        if set(told) <= {100} or not waves.numel():
            return waves, lengths
        counts = counts.cpu()  # the new sizes have to be known here
        played: list[Tensor] = list(waves)
        new_counts = counts.clone()
        for speed, player in zip(self.speeds, self.players, strict=True):
            places = [place for place, each in enumerate(told) if each == speed]
            if places and speed != 100:
                new_counts[places] = -(-counts[places] * 100 // speed)
                kind = next(player.buffers()).dtype  # of the kernel
                for place, wave in zip(places, player(waves[places].to(kind)), strict=True):
                    played[place] = wave
        size = int(new_counts.max())
        result = waves.new_zeros(len(waves), size)
        for place, (wave, count) in enumerate(zip(played, new_counts.tolist(), strict=True)):
            result[place, :count] = wave[:count]
        new = relative_lengths(new_counts, size) if parts else new_counts
        return result, new.to(lengths.device)


class AddNoise(Augmentation):
    """Adds noise at a signal-to-noise ratio, drawn for each item, over the item's own length.

    Energies are those of the whole item and of the noise that falls on it. A noise that is shorter goes round; where it
    begins is drawn. By torchaudio's `add_noise`.

    Args:
        noises: recordings, each float32 [time] at the rate of the waveforms, as `read_audio` gives them; they are kept
            on the module's device, and not saved. None: white noise.
        snr_low: the least ratio, in dB. Try 0 to 10.
        snr_high: the greatest, in dB. Try 15 to 40.
        prob: as in `Augmentation`.

    Raises:
        ValueError: for no recordings, one that is empty or silent or no [time], or limits the wrong way round.

    >>> AddNoise(snr_low=10, snr_high=10)(torch.ones(2, 100)).shape
    torch.Size([2, 100])
    """

    bank: Tensor
    firsts: Tensor
    sizes: Tensor

    def __init__(
        self,
        noises: Sequence[Tensor] | None = None,
        snr_low: float = 5.0,
        snr_high: float = 30.0,
        prob: float = 1.0,
    ) -> None:
        super().__init__(prob)
        if snr_low > snr_high:
            raise ValueError(f"snr_low={snr_low!r} is above snr_high={snr_high!r}")
        if not (math.isfinite(snr_low) and math.isfinite(snr_high)):
            raise ValueError(f"snr_low={snr_low!r}, snr_high={snr_high!r}: finite numbers, in dB")
        self.snr_low, self.snr_high = snr_low, snr_high
        self.num_noises = 0 if noises is None else len(noises)
        if noises is not None:
            _check_bank("noises", noises)
            sizes = torch.tensor([len(noise) for noise in noises])
            self.register_buffer("bank", torch.cat([noise.float() for noise in noises]), persistent=False)
            self.register_buffer("firsts", sizes.cumsum(0) - sizes, persistent=False)
            self.register_buffer("sizes", sizes, persistent=False)

    def augment(self, items: Tensor, counts: Tensor) -> Tensor:
        """Noisy waves, [B, T]."""
        snr = self.draw(items, self.snr_low, self.snr_high).to(items.dtype)
        noise = self._noise(items)
        noisy: Tensor = add_noise(items, noise, snr, counts)
        inside = length_mask(counts, items.shape[1])
        heard = ((noise * inside) != 0).any(
            dim=1, keepdim=True
        )  # a pause in a recording has no ratio to anything
        return torch.where(heard, noisy, items)

    def _noise(self, items: Tensor) -> Tensor:
        if not self.num_noises:
            return torch.randn_like(items)
        which = self.draw_whole(items, 0, self.num_noises - 1)
        size = self.sizes[which].unsqueeze(1)
        first = (self.draw(items, 0.0, 1.0).unsqueeze(1) * size).long()
        places = (first + torch.arange(items.shape[1], device=items.device)) % size
        return self.bank[self.firsts[which].unsqueeze(1) + places].to(items.dtype)


class AddReverb(Augmentation):
    """Puts each item into a room: convolves it with an impulse response, and gives it back the energy that it had.

    A response is taken from its largest value on, so that speech stays where it was; what rings on behind the end of
    the item is cut off. Ko et al. 2017, "A study on data augmentation of reverberant speech for robust speech
    recognition".

    Args:
        responses: room impulse responses, each float32 [time] at the rate of the waveforms; one is drawn for each item.
            They are kept on the module's device, and not saved. `exponential_response` makes simple ones.
        prob: as in `Augmentation`.

    Raises:
        ValueError: for no responses, or one that is empty or silent or no [time].

    >>> rooms = [exponential_response(0.3, 8000)]
    >>> AddReverb(rooms, prob=0.5)(torch.randn(2, 8000)).shape
    torch.Size([2, 8000])
    """

    bank: Tensor

    def __init__(self, responses: Sequence[Tensor], prob: float = 1.0) -> None:
        super().__init__(prob)
        _check_bank("responses", responses)
        direct = [response.float()[int(response.abs().argmax()) :] for response in responses]
        bank = nn.utils.rnn.pad_sequence(direct, batch_first=True)
        self.register_buffer("bank", bank, persistent=False)

    def augment(self, items: Tensor, counts: Tensor) -> Tensor:
        """Reverberant waves, [B, T]."""
        inside = length_mask(counts, items.shape[1])
        response = self.bank[self.draw_whole(items, 0, len(self.bank) - 1)].to(items.dtype)
        wet: Tensor = fftconvolve(items * inside, response)[:, : items.shape[1]] * inside
        before = torch.linalg.vector_norm(items * inside, dim=1, keepdim=True)
        after = torch.linalg.vector_norm(wet, dim=1, keepdim=True)
        gain: Tensor = before / after.clamp(min=torch.finfo(wet.dtype).tiny)
        return wet * gain


def exponential_response(reverberation_seconds: float, sample_rate: int) -> Tensor:
    """A simple room impulse response: the direct sound, then Gaussian noise that falls by 60 dB in the given time.

    h(0) = 1, h(t) = g n(t) 10^(-3 t / T60), with g such that the reverberation has the energy of the direct sound.
    Polack's model (1988); drawn from torch's CPU generator.

    Args:
        reverberation_seconds: T60, in seconds. Try 0.1 to 1.
        sample_rate: in Hz.

    Returns:
        float32, [time], as long as T60.

    Raises:
        ValueError: for a time of less than two samples.

    >>> exponential_response(0.25, 8000).shape
    torch.Size([2000])
    """
    size = seconds_to_samples(reverberation_seconds, sample_rate)
    if size < 2:
        raise ValueError(
            f"reverberation_seconds={reverberation_seconds!r} are {counted(size, 'sample')}; at least 2 are needed"
        )
    tail = torch.randn(size) * 10.0 ** (-3.0 * torch.arange(size) / size)
    tail[0] = 0.0
    tail /= torch.linalg.vector_norm(tail)
    tail[0] = 1.0
    return tail


class TimeShift(Augmentation):
    """Moves each item earlier or later in its own length; silence comes in, or what went out.

    Args:
        max_seconds: the greatest shift either way, in seconds; never more than half of an item.
        sample_rate: in Hz.
        wrap: whether what goes out at one end comes in at the other. If not, it is silence.
        prob: as in `Augmentation`.

    Raises:
        ValueError: for a shift that is negative.

    >>> TimeShift(0.1, 8000)(torch.randn(2, 8000)).shape
    torch.Size([2, 8000])
    """

    def __init__(self, max_seconds: float, sample_rate: int, wrap: bool = False, prob: float = 1.0) -> None:
        super().__init__(prob)
        self.max_samples = seconds_to_samples(max_seconds, sample_rate)
        self.wrap = wrap

    def augment(self, items: Tensor, counts: Tensor) -> Tensor:
        """Shifted waves, [B, T]."""
        most = (counts // 2).clamp(max=self.max_samples)
        shift = (self.draw(items, -1.0, 1.0) * (most + 1)).long()  # toward 0, so `most` itself is reached
        return self.shifted(items, counts, shift)

    def shifted(self, items: Tensor, counts: Tensor, shift: Tensor) -> Tensor:
        """Waves moved by so many samples, [B], later where that is positive."""
        places = torch.arange(items.shape[1], device=items.device) - shift.unsqueeze(1)
        size = counts.clamp(min=1).unsqueeze(1)
        if self.wrap:
            return items.gather(1, places % size)
        inside = (places >= 0) & (places < size)
        return items.gather(1, places.clamp(min=0).minimum(size - 1)) * inside


class DropFreq(Augmentation):
    """Takes narrow bands out of each item, as a bad channel does.

    A band is taken out by subtracting what a band pass lets through, w(n) cos(2π f n) with a Hann window w, scaled to 1
    at f. So nothing is left at f itself, and half at the band's edges. Frequencies and widths are parts of half the
    rate, as in SpeechBrain.

    Args:
        drop_freq_low: the lowest middle of a band, from 0.
        drop_freq_high: the highest, up to 1.
        drop_freq_count_low: the fewest bands of an item.
        drop_freq_count_high: the most.
        drop_freq_width: of a band. Try 0.02 to 0.1: the filter has 4 / width points.
        prob: as in `Augmentation`.

    Raises:
        ValueError: for numbers out of their range.

    >>> DropFreq()(torch.randn(2, 8000)).shape
    torch.Size([2, 8000])
    """

    window: Tensor

    def __init__(
        self,
        drop_freq_low: float = 0.0,
        drop_freq_high: float = 1.0,
        drop_freq_count_low: int = 1,
        drop_freq_count_high: int = 3,
        drop_freq_width: float = 0.05,
        prob: float = 1.0,
    ) -> None:
        super().__init__(prob)
        if not 0 <= drop_freq_low <= drop_freq_high <= 1:
            raise ValueError(
                f"drop_freq_low={drop_freq_low!r}, drop_freq_high={drop_freq_high!r}: parts of half the rate, "
                "from 0 to 1, the lower one first"
            )
        _check_counts("drop_freq_count", drop_freq_count_low, drop_freq_count_high)
        if not 0 < drop_freq_width <= 1:
            raise ValueError(
                f"drop_freq_width={drop_freq_width!r}: a part of half the rate, above 0, up to 1"
            )
        self.low, self.high = drop_freq_low, drop_freq_high
        self.count_low, self.count_high = drop_freq_count_low, drop_freq_count_high
        half = round(2 / drop_freq_width)
        self.register_buffer("window", torch.hann_window(2 * half + 1, periodic=False), persistent=False)

    def augment(self, items: Tensor, counts: Tensor) -> Tensor:
        """Waves with bands missing, [B, T]."""
        frequencies = self.draw(items, self.low, self.high, self.count_high)
        number = self.draw_whole(items, self.count_low, self.count_high)
        kernel = self.window.new_ones(len(items), 1)
        for place in range(self.count_high):  # short filters first, so that the waves are filtered once
            notch = self.notch(frequencies[:, place], place < number)
            kernel = fftconvolve(kernel, notch)
        return self.filtered(items * length_mask(counts, items.shape[1]), kernel)

    def notch(self, frequencies: Tensor, on: Tensor) -> Tensor:
        """Filters that take out the band around one frequency each, [B], a part of half the rate; or, off, nothing."""
        half = len(self.window) // 2
        places = torch.arange(-half, half + 1, device=frequencies.device)
        carrier = torch.cos(torch.pi * frequencies.unsqueeze(1) * places)
        band = self.window * carrier
        band = band / (band * carrier).sum(dim=1, keepdim=True)
        return (places == 0).to(band.dtype) - band * on.unsqueeze(1)

    def filtered(self, items: Tensor, kernel: Tensor) -> Tensor:
        """Waves through a filter each, [B, odd], that is centered: nothing is delayed."""
        half = kernel.shape[1] // 2
        passed: Tensor = fftconvolve(items, kernel.to(items.dtype))
        return passed[:, half : half + items.shape[1]]


class DropChunk(Augmentation):
    """Silences pieces of each item, as lost packets do.

    Args:
        drop_length_low: the shortest piece, in samples.
        drop_length_high: the longest, in samples; no piece is longer than half of its item.
        drop_count_low: the fewest pieces of an item.
        drop_count_high: the most.
        prob: as in `Augmentation`.

    Raises:
        ValueError: for numbers out of their range.

    >>> int((DropChunk(10, 10, 1, 1)(torch.ones(2, 100)) == 0).sum())
    20
    """

    def __init__(
        self,
        drop_length_low: int = 100,
        drop_length_high: int = 1000,
        drop_count_low: int = 1,
        drop_count_high: int = 3,
        prob: float = 1.0,
    ) -> None:
        super().__init__(prob)
        _check_counts("drop_length", drop_length_low, drop_length_high)
        _check_counts("drop_count", drop_count_low, drop_count_high)
        self.length_low, self.length_high = drop_length_low, drop_length_high
        self.count_low, self.count_high = drop_count_low, drop_count_high

    def augment(self, items: Tensor, counts: Tensor) -> Tensor:
        """Waves with pieces missing, [B, T]."""
        room = counts.unsqueeze(1)
        length = self.draw_whole(items, self.length_low, self.length_high, self.count_high)
        length = length.minimum(room // 2)
        first = (self.draw(items, 0.0, 1.0, self.count_high) * (room - length + 1)).long()
        number = self.draw_whole(items, self.count_low, self.count_high).unsqueeze(1)
        length = torch.where(torch.arange(self.count_high, device=items.device) < number, length, 0)
        places = torch.arange(items.shape[1], device=items.device)
        dropped = (places >= first.unsqueeze(-1)) & (places < (first + length).unsqueeze(-1))
        return items.masked_fill(dropped.any(dim=1), 0.0)


def _check_counts(name: str, low: int, high: int) -> None:
    if not 0 <= low <= high:
        raise ValueError(f"{name}_low={low!r}, {name}_high={high!r}: 0 or more, the lower one first")


def _check_bank(name: str, waves: Sequence[Any]) -> None:
    if not len(waves):
        raise ValueError(f"{name} is empty: give at least one recording")
    for place, wave in enumerate(waves):
        if not isinstance(wave, Tensor) or wave.dim() != 1 or not wave.any() or not wave.isfinite().all():
            told = f"of shape {tuple(wave.shape)}" if isinstance(wave, Tensor) else f"a {type(wave).__name__}"
            raise ValueError(
                f"{name}[{place}] is {told}; give tensors [time] that are finite and not silent, as read_audio returns"
            )
