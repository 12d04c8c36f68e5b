from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torchaudio
from torch import Tensor

from brainlib.audio import MFCC, Deltas, Fbank
from brainlib.common.units import relative_lengths

RATE = 8000


def torchaudios(**others: Any) -> dict[str, Any]:
    return {"n_fft": 256, "win_length": 200, "hop_length": 80, "pad_mode": "constant", **others}


def test_fbank_is_torchaudios_with_silence_at_the_ends() -> None:
    waves = 0.1 * torch.randn(3, 8000)
    theirs = torchaudio.transforms.MelSpectrogram(RATE, n_mels=24, **torchaudios())(waves)
    ours = Fbank(RATE, n_mels=24)(waves)
    assert ours.shape == (3, 101, 24)
    assert torch.allclose(ours, torch.log(theirs + 1e-6).transpose(1, 2), atol=1e-5)


def test_mfcc_is_torchaudios() -> None:
    waves = 0.1 * torch.randn(3, 8000)
    theirs = torchaudio.transforms.MFCC(
        RATE, n_mfcc=13, log_mels=True, melkwargs=torchaudios(n_mels=24, f_min=20.0)
    )(waves)
    assert torch.allclose(MFCC(RATE, f_min=20.0)(waves), theirs.transpose(1, 2), atol=1e-4)


def test_fbank_by_its_formula() -> None:
    """One frame in numpy, from the definitions alone."""
    wave = np.random.default_rng(0).standard_normal(2000) * 0.1
    frame = np.pad(wave, 128)[10 * 80 : 10 * 80 + 256]  # the tenth
    window = np.zeros(256)
    window[28:228] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(200) / 200)
    power = np.abs(np.fft.rfft(frame * window)) ** 2
    mel = np.linspace(0, 2595 * math.log10(1 + 4000 / 700), 26)
    corners = 700 * (10 ** (mel / 2595) - 1)
    hertz = np.arange(129) * RATE / 256
    up = (hertz[:, None] - corners[:-2]) / (corners[1:-1] - corners[:-2])
    down = (corners[2:] - hertz[:, None]) / (corners[2:] - corners[1:-1])
    expected = np.log(power @ np.maximum(0, np.minimum(up, down)) + 1e-6)
    ours = Fbank(RATE, n_mels=24)(torch.tensor(wave))[10]
    assert np.allclose(ours.numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("extract", [Fbank(RATE, 24), MFCC(RATE), Fbank(RATE, 24, n_fft=301)], ids=str)
def test_an_item_has_the_same_features_alone_and_in_a_batch(extract: Fbank) -> None:
    counts = torch.tensor([8000, 4000, 3999, 1])
    waves = [0.1 * torch.randn(int(count)) for count in counts]
    batch = torch.nn.utils.rnn.pad_sequence(waves, batch_first=True)
    for lengths in (counts, relative_lengths(counts, 8000)):
        features = extract(batch, lengths)
        frames = extract.num_frames(counts)
        assert frames.tolist() == [101, 51, 50, 1]
        for place, (wave, number) in enumerate(zip(waves, frames.tolist(), strict=True)):
            alone = extract(wave)
            assert len(alone) == number
            assert torch.allclose(features[place, :number], alone, atol=1e-4)
            assert not features[place, number:].any()


def test_a_tone_is_loudest_in_its_filter() -> None:
    fbank = Fbank(RATE, n_mels=24)
    centers = torch.linspace(0, 2595 * math.log10(1 + 4000 / 700), 26)[1:-1]
    for number in (3, 10, 20):
        hertz = 700 * (10 ** (float(centers[number]) / 2595) - 1)
        tone = torch.sin(2 * torch.pi * hertz * torch.arange(8000) / RATE)
        assert fbank(tone)[50].argmax() == number


def test_features_are_float32_also_under_autocast_and_have_no_state() -> None:
    fbank = Fbank(RATE, 24)
    waves = torch.randn(2, 800)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(fbank(waves), fbank(waves.double().float()))
        assert fbank(waves).dtype == torch.float32
    assert not fbank.state_dict() and not MFCC(RATE).state_dict()
    assert {buffer.device.type for buffer in MFCC(RATE).to("meta").buffers()} == {"meta"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"win_length": 0.1}, "win_length=0.1 ms are 1 sample; at least 2 are needed"),
        ({"hop_length": 0.01}, "hop_length=0.01 ms are 0 samples"),
        ({"n_fft": 100}, "n_fft=100 is less than the window of 200 samples"),
        ({"n_mels": 0}, "n_mels=0: at least 1"),
        ({"floor": 0.0}, "floor=0.0: above 0"),
        ({"f_max": 5000.0}, "filters from f_min=0.0 to f_max=5000.0 Hz; they lie between 0 and 4000 Hz"),
        ({"f_min": 4000.0}, "half the rate"),
        ({"n_mels": 128}, "of the filters .* catch no point of a transform of 256 points at 8000 Hz"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Fbank(RATE, **arguments)


def test_more_of_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="n_mfcc=30: between 1 and n_mels=24"):
        MFCC(RATE, n_mfcc=30)
    with pytest.raises(
        ValueError, match=r"waves have the shape \(2, 1, 80\); give \[batch, time\] or \[time\]"
    ):
        Fbank(RATE, 24)(torch.zeros(2, 1, 80))
    with pytest.raises(ValueError, match="window_length=4: an odd number of frames"):
        Deltas(4)
    with pytest.raises(ValueError, match="append=3: 0, 1 or 2"):
        Deltas(append=3)


def test_deltas_are_torchaudios_and_their_formula() -> None:
    features = torch.randn(2, 30, 5)
    deltas = Deltas(window_length=5)(features)
    theirs = torchaudio.functional.compute_deltas(features.transpose(1, 2), 5).transpose(1, 2)
    assert torch.equal(deltas, theirs)
    by_hand = (features[:, 11] - features[:, 9] + 2 * (features[:, 12] - features[:, 8])) / 10
    assert torch.allclose(deltas[:, 10], by_hand, atol=1e-6)
    line = torch.arange(30.0).reshape(1, 30, 1) * 3
    assert torch.allclose(Deltas()(line)[:, 2:-2], torch.tensor(3.0))


def test_deltas_of_an_item_are_the_same_alone_and_in_a_batch() -> None:
    deltas = Deltas(append=2)
    counts = torch.tensor([30, 17, 1])
    features: Tensor = torch.randn(3, 30, 5)  # also what is behind the ends
    batch = deltas(features, counts)
    assert batch.shape == (3, 30, 15)
    for place, count in enumerate(counts.tolist()):
        assert torch.allclose(batch[place, :count], deltas(features[place, :count]), atol=1e-6)
        assert not batch[place, count:].any()
