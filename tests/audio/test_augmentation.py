"""What is promised of every augmentation, and what each of them does, against formulas and torchaudio."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torchaudio
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from brainlib.audio import (
    MFCC,
    VTLP,
    AddNoise,
    AddReverb,
    Augmentation,
    Deltas,
    DropChunk,
    DropFreq,
    Fbank,
    InputNormalization,
    SpecAugment,
    SpeedPerturb,
    TimeShift,
    exponential_response,
)
from brainlib.common.units import relative_lengths
from brainlib.data.randomness import Place, SeededDataset

RATE = 8000


def recordings() -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(size, generator=generator) for size in (500, 3000, 20_000)]


def rooms() -> list[Tensor]:
    return [response / response.abs().max() for response in recordings()[:2]]


WAVES: dict[str, Callable[[float], Augmentation]] = {
    "white noise": lambda prob: AddNoise(prob=prob),
    "recorded noise": lambda prob: AddNoise(recordings(), prob=prob),
    "reverb": lambda prob: AddReverb(rooms(), prob=prob),
    "shift": lambda prob: TimeShift(0.05, RATE, prob=prob),
    "shift around": lambda prob: TimeShift(0.05, RATE, wrap=True, prob=prob),
    "bands": lambda prob: DropFreq(prob=prob),
    "pieces": lambda prob: DropChunk(prob=prob),
}
FEATURES: dict[str, Callable[[float], Augmentation]] = {
    "SpecAugment": lambda prob: SpecAugment(prob=prob),
    "SpecAugment with means": lambda prob: SpecAugment(replace="mean", prob=prob),
    "VTLP": lambda prob: VTLP(RATE, prob=prob),
}
ALL = {**WAVES, **FEATURES}
COUNTS = torch.tensor([4000, 2500, 3999, 1200])


def batch_for(name: str) -> tuple[Tensor, Tensor]:
    """Items padded with zeros, and their lengths."""
    counts = COUNTS if name in WAVES else COUNTS // 80
    items = torch.randn(4, int(counts.max()), *([] if name in WAVES else [24]))
    for item, count in zip(items, counts.tolist(), strict=True):
        item[count:] = 0
    return items, counts


@pytest.mark.parametrize("name", ALL)
class TestEveryAugmentation:
    def test_changes_items_and_neither_their_padding_nor_the_input(self, name: str) -> None:
        augment = ALL[name](1.0)
        items, counts = batch_for(name)
        kept = items.clone()
        changed = augment(items, counts)
        assert torch.equal(items, kept)
        assert changed.shape == items.shape and changed.dtype == items.dtype and changed.isfinite().all()
        for before, after, count in zip(items, changed, counts.tolist(), strict=True):
            assert not torch.equal(before[:count], after[:count])
            assert not after[count:].any()

    def test_does_nothing_outside_of_training_and_with_probability_0(self, name: str) -> None:
        items, counts = batch_for(name)
        assert torch.equal(ALL[name](1.0).eval()(items, counts), items)
        assert torch.equal(ALL[name](0.0)(items, counts), items)

    def test_chooses_each_item_by_itself(self, name: str) -> None:
        items = batch_for(name)[0][:1].expand(400, *([-1] * (2 if name in FEATURES else 1)))
        items = items[:, :400]
        changed = ALL[name](0.3)(items)
        share = (changed != items).flatten(1).any(dim=1).float().mean()
        assert 0.15 < share < 0.4  # 5 standard deviations; a drawn mask may be empty

    def test_draws_from_torchs_generator_alone(self, name: str) -> None:
        augment, (items, counts) = ALL[name](0.8), batch_for(name)
        torch.manual_seed(5)
        first = augment(items, counts)
        second = augment(items, counts)
        torch.manual_seed(5)
        assert torch.equal(augment(items, counts), first)
        assert not torch.equal(first, second)

    def test_takes_lengths_as_counts_and_as_parts(self, name: str) -> None:
        augment, (items, counts) = ALL[name](1.0), batch_for(name)
        torch.manual_seed(5)
        first = augment(items, counts)
        torch.manual_seed(5)
        assert torch.equal(augment(items, relative_lengths(counts, items.shape[1])), first)

    def test_an_item_is_changed_alike_however_much_it_is_padded(self, name: str) -> None:
        if name == "white noise":
            pytest.skip("white noise is drawn for the padding, too")
        augment, (items, counts) = ALL[name](1.0), batch_for(name)
        padded = torch.cat([items, torch.zeros_like(items)], dim=1)
        torch.manual_seed(5)
        first = augment(items, counts)
        torch.manual_seed(5)
        second = augment(padded, counts)
        assert torch.allclose(second[:, : items.shape[1]], first, atol=1e-4)
        assert not second[:, items.shape[1] :].any()

    def test_takes_a_single_item(self, name: str) -> None:
        augment, (items, _) = ALL[name](1.0), batch_for(name)
        torch.manual_seed(5)
        first = augment(items[:1])
        torch.manual_seed(5)
        assert torch.equal(augment(items[0]), first[0])
        with pytest.raises(ValueError, match=r"the items have the shape \(2, 2, 2, 2\); give \[batch"):
            augment(torch.zeros(2, 2, 2, 2))

    def test_keeps_half_precision(self, name: str) -> None:
        items, counts = batch_for(name)
        assert ALL[name](1.0)(items.double(), counts).dtype == torch.float64

    def test_has_no_state_and_follows_its_module(self, name: str) -> None:
        augment = ALL[name](1.0)
        assert not augment.state_dict()
        assert {buffer.device.type for buffer in augment.to("meta").buffers()} <= {"meta"}

    def test_refuses_a_probability_that_is_none(self, name: str) -> None:
        with pytest.raises(ValueError, match="prob=1.5: a probability from 0 to 1"):
            ALL[name](1.5)


class Augmented(Dataset[Any]):
    def __init__(self, name: str) -> None:
        self.augment = ALL[name](0.9)
        self.items = batch_for(name)[0]

    def __getitem__(self, place: int) -> Tensor:
        return self.augment(self.items[place])

    def __len__(self) -> int:
        return len(self.items)


@pytest.mark.parametrize("name", ["white noise", "bands", "SpecAugment"])
def test_what_an_item_draws_depends_on_its_place_alone(name: str) -> None:
    """As a Brain reads it: whatever the worker, and whatever was read before."""
    dataset = SeededDataset(Augmented(name))
    places = [Place(place, key=99, position=place) for place in range(4)]
    alone = [dataset[place].items for place in places]
    backwards = [dataset[place].items for place in reversed(places)][::-1]
    workers = DataLoader(dataset, sampler=places, batch_size=None, num_workers=2)  # type: ignore[arg-type]
    for expected, other, read in zip(alone, backwards, workers, strict=True):
        assert torch.equal(other, expected) and torch.equal(read.items, expected)


# ---- noise


@pytest.mark.parametrize("noises", [None, recordings()], ids=["white", "recorded"])
def test_the_ratio_of_signal_to_noise_is_as_asked(noises: Any) -> None:
    items, counts = batch_for("white noise")
    noisy = AddNoise(noises, snr_low=12.0, snr_high=12.0)(items, counts)
    for before, after, count in zip(items, noisy, counts.tolist(), strict=True):
        energies = before[:count].square().sum(), (after - before)[:count].square().sum()
        assert math.isclose(10 * math.log10(energies[0] / energies[1]), 12.0, abs_tol=1e-3)


def test_recorded_noise_goes_round_from_where_it_begins() -> None:
    noise = recordings()[0]
    items = torch.ones(1, 2000)
    torch.manual_seed(3)
    noisy = AddNoise([noise], snr_low=0.0, snr_high=0.0)(items)
    added = (noisy - items)[0]
    assert torch.allclose(added[:500], added[500:1000], atol=1e-5)
    begun = [
        k for k in range(500) if torch.corrcoef(torch.stack([noise.roll(-k), added[:500]]))[0, 1] > 0.999
    ]
    assert len(begun) == 1
    expected = torchaudio.functional.add_noise(
        items, noise.roll(-begun[0]).repeat(4).unsqueeze(0), torch.zeros(1)
    )
    assert torch.allclose(noisy, expected, atol=1e-5)


def test_silence_on_either_side_stays_finite() -> None:
    assert not AddNoise()(torch.zeros(2, 100)).any()
    pause = torch.cat([torch.zeros(10_000), torch.ones(1)])
    noisy = AddNoise([pause])(torch.ones(8, 100))
    assert noisy.isfinite().all() and (noisy == 1).all(dim=1).sum() >= 7


@pytest.mark.parametrize(
    "bad", [torch.zeros(5), torch.ones(2, 5), torch.tensor([math.nan]), "rain.wav"], ids=str
)
def test_a_recording_that_is_none_is_refused(bad: Any) -> None:
    with pytest.raises(
        ValueError, match=r"noises\[1\] is .*; give tensors \[time\] that are finite and not silent"
    ):
        AddNoise([torch.ones(5), bad])
    with pytest.raises(ValueError, match=r"responses\[0\] is "):
        AddReverb([bad])
    with pytest.raises(ValueError, match="noises is empty"):
        AddNoise([])
    with pytest.raises(ValueError, match="snr_low=5 is above snr_high=0"):
        AddNoise(snr_low=5, snr_high=0)


# ---- reverberation


def test_reverberation_is_a_convolution_with_the_energy_it_had() -> None:
    response = torch.tensor([0.1, -0.2, 1.0, 0.5, 0.0, 0.25])
    items, counts = batch_for("reverb")
    wet = AddReverb([response])(items, counts)
    for before, after, count in zip(items, wet, counts.tolist(), strict=True):
        expected = np.convolve(before[:count].numpy(), response[2:].numpy())[:count]
        expected *= np.linalg.norm(before[:count].numpy()) / np.linalg.norm(expected)
        assert np.allclose(after[:count].numpy(), expected, atol=1e-4)
    assert not AddReverb([response])(torch.zeros(1, 100)).any()


def test_the_response_of_a_room_falls_by_60_db() -> None:
    response = exponential_response(0.5, RATE)
    assert len(response) == 4000 and response[0] == 1.0
    assert math.isclose(float(response[1:].square().sum()), 1.0, rel_tol=1e-4)
    levels = [10 * math.log10(float(part.square().mean())) for part in response[1:].split(400)[:10]]
    assert abs(levels[0] - levels[9] - 54) < 3  # nine tenths of the time
    with pytest.raises(ValueError, match="reverberation_seconds=0.0 are 0 samples"):
        exponential_response(0.0, RATE)


# ---- speed


def test_speed_is_torchaudios_item_by_item() -> None:
    items, counts = batch_for("shift")
    speeds = [90, 100, 115]
    perturb = SpeedPerturb(16000, speeds)  # 1.15 · 16000 is 18399.999… in floating point
    torch.manual_seed(4)
    drawn = torch.randint(3, (4,)).tolist()
    torch.manual_seed(4)
    waves, lengths = perturb(items, counts)
    assert waves.shape[1] == lengths.max() and not perturb.state_dict()
    assert len(set(drawn)) > 1
    for place, which in enumerate(drawn):
        theirs = torchaudio.functional.resample(items[place, : counts[place]], speeds[which], 100)
        assert lengths[place] == len(theirs) == math.ceil(int(counts[place]) * 100 / speeds[which])
        assert torch.allclose(waves[place, : len(theirs)], theirs, atol=1e-4)
        assert not waves[place, len(theirs) :].any()
    theirs, their_length = torchaudio.functional.speed(items[:1], 16000, 0.9, counts[:1])
    ours, length = SpeedPerturb(16000, [90])(items[:1], counts[:1])
    assert torch.allclose(ours, theirs, atol=1e-4) and torch.equal(length, their_length)


def test_speed_gives_lengths_back_as_it_got_them() -> None:
    items, counts = batch_for("shift")
    perturb = SpeedPerturb(RATE, [80, 125])
    torch.manual_seed(4)
    waves, lengths = perturb(items, counts)
    torch.manual_seed(4)
    again, parts = perturb(items, relative_lengths(counts, items.shape[1]))
    assert torch.equal(again, waves) and torch.equal(parts, relative_lengths(lengths, waves.shape[1]))
    wave, length = perturb(items[0])
    assert wave.dim() == 1 and length == len(wave)
    waves, lengths = perturb.eval()(items, counts)
    assert torch.equal(waves, items) and torch.equal(lengths, counts)
    assert perturb(items)[1].tolist() == [4000] * 4
    for speeds in ([], [0], [0.9]):
        with pytest.raises(ValueError, match="whole percentages above 0, such as"):
            SpeedPerturb(RATE, speeds)  # type: ignore[arg-type]


def test_speeds_that_are_told_are_those_that_are_drawn() -> None:
    items, counts = batch_for("shift")
    perturb = SpeedPerturb(RATE, [80, 125])
    torch.manual_seed(4)
    waves, lengths = perturb(items, counts)
    torch.manual_seed(4)
    speeds = perturb.draw(4)
    assert set(speeds.tolist()) == {80, 125} and perturb.eval().draw(2).tolist() == [100, 100]
    for module in (perturb, perturb.train()):
        again, same_lengths = module.played(items, counts, speeds)
        assert torch.equal(again, waves) and torch.equal(same_lengths, lengths)
    speeds[1] = 100
    mixed, lengths = perturb.played(items, counts, speeds)
    assert torch.equal(mixed[1, : counts[1]], items[1, : counts[1]]) and lengths[1] == counts[1]
    with pytest.raises(ValueError, match=r"speeds=\[90, 110\]: each is 100 or one of \[80, 125\]"):
        perturb.played(items, counts, torch.tensor([110, 100, 90, 80]))


# ---- shifts, bands, pieces


def test_shifts_by_hand() -> None:
    items = torch.arange(1.0, 7.0).repeat(3, 1)
    counts, shift = torch.tensor([6, 4, 6]), torch.tensor([2, 1, -3])
    silent = TimeShift(1.0, RATE).shifted(items, counts, shift)
    assert silent.tolist() == [[0, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 0], [4, 5, 6, 0, 0, 0]]
    around = TimeShift(1.0, RATE, wrap=True).shifted(items, counts, shift)
    assert [around[0].tolist(), around[1, :4].tolist()] == [[5, 6, 1, 2, 3, 4], [4, 1, 2, 3]]
    assert around[2].tolist() == [4, 5, 6, 1, 2, 3]


def test_a_shift_is_never_more_than_half_of_an_item() -> None:
    items = torch.ones(500, 100)
    silent = 100 - TimeShift(10.0, RATE)(items).sum(dim=1)
    assert silent.max() == 50 and silent.min() == 0


def test_a_band_is_dropped_as_the_formula_says() -> None:
    drop = DropFreq(drop_freq_width=0.05)
    time = torch.arange(8000)
    offsets = [0.0, 0.01, 0.025, 0.05, 0.1, 0.3]  # of half the rate
    tones = torch.stack([torch.sin(torch.pi * (0.4 + offset) * time) for offset in offsets])
    left = drop.filtered(tones, drop.notch(torch.full((6,), 0.4), torch.ones(6)))[:, 200:-200]
    levels = left.square().mean(dim=1).sqrt() / tones[:, 200:-200].square().mean(dim=1).sqrt()
    window = np.hanning(81)
    places = np.arange(-40, 41)
    scale = (window * np.cos(np.pi * 0.4 * places) ** 2).sum()
    expected = [
        abs(
            1
            - (window * np.cos(np.pi * 0.4 * places) * np.exp(-1j * np.pi * (0.4 + o) * places)).sum() / scale
        )
        for o in offsets
    ]
    assert np.allclose(levels.numpy(), expected, atol=2e-3)
    assert levels[0] < 1e-3 and abs(levels[2] - 0.5) < 0.01 and levels[4] > 0.98


def test_the_number_of_bands_and_their_places_are_drawn() -> None:
    noise = torch.randn(64, 16000)
    dropped = DropFreq(0.2, 0.8, 2, 2, 0.05)(noise)
    gain = (torch.fft.rfft(dropped).abs() / torch.fft.rfft(noise).abs()).clamp(max=2)
    gain = torch.nn.functional.avg_pool1d(gain.unsqueeze(1), 51, 51).squeeze(1)
    places = torch.linspace(0, 1, gain.shape[1])
    low = gain < 0.3
    assert not low[:, (places < 0.18) | (places > 0.82)].any()
    bands = ((low[:, 1:] & ~low[:, :-1]).sum(dim=1)).float()
    assert 1.5 < bands.mean() <= 2  # two that fall together count once here
    with pytest.raises(ValueError, match="parts of half the rate, from 0 to 1, the lower one first"):
        DropFreq(0.5, 0.4)
    with pytest.raises(ValueError, match="drop_freq_width=0: a part of half the rate"):
        DropFreq(drop_freq_width=0)
    with pytest.raises(ValueError, match="drop_freq_count_low=3, drop_freq_count_high=2"):
        DropFreq(drop_freq_count_low=3, drop_freq_count_high=2)


def test_pieces_have_the_length_and_number_that_was_asked_for() -> None:
    items = torch.ones(300, 1000)
    silent = (DropChunk(50, 80, 1, 1)(items) == 0).float()
    lengths = silent.sum(dim=1)
    assert lengths.min() == 50 and lengths.max() == 80
    assert torch.equal((silent.diff(dim=1).abs().sum(dim=1) <= 2), torch.ones(300, dtype=torch.bool))
    several = (DropChunk(10, 10, 0, 3)(items) == 0).sum(dim=1)
    assert set(several.tolist()) >= {0, 10, 20, 30} and several.max() == 30
    short = DropChunk(500, 500, 1, 1)(torch.ones(50, 100), torch.full((50,), 60))
    assert ((short == 0).sum(dim=1) == 30).all() and (short[:, 60:] == 1).all()


# ---- features


def test_masks_are_drawn_as_the_paper_says() -> None:
    augment = SpecAugment(1, 8, 1, 20, max_time_part=0.5)
    counts = torch.tensor([100, 30] * 1000)
    hidden = augment(torch.ones(2000, 100, 24), counts) == 0
    bands = hidden.all(dim=1) | (hidden & (torch.arange(100) < counts.unsqueeze(1)).unsqueeze(2)).sum(
        dim=1
    ).eq(counts.unsqueeze(1))
    widths = bands.sum(dim=1)
    assert widths.max() == 8 and abs(float(widths.float().mean()) - 4.0) < 0.3  # uniform from 0 to 8
    times = hidden.all(dim=2).sum(dim=1)
    assert times[0::2].max() == 20 and abs(float(times[0::2].float().mean()) - 10.0) < 0.9
    assert times[1::2].max() == 15  # half of 30
    assert not hidden[1::2, 30:].any()
    # each mask is in one piece, and may be anywhere
    assert bands.float().diff(dim=1).clamp(min=0).sum(dim=1).max() <= 1
    assert bands.any(dim=0).all() and hidden[0::2].all(dim=2).any(dim=0).all()


def test_masks_are_filled_with_zeros_or_the_mean_of_the_item() -> None:
    items, counts = batch_for("SpecAugment")
    torch.manual_seed(1)
    zeros = SpecAugment(2, 10, 2, 10)(items, counts)
    torch.manual_seed(1)
    means = SpecAugment(2, 10, 2, 10, replace="mean")(items, counts)
    for place, count in enumerate(counts.tolist()):
        hidden = zeros[place, :count] == 0
        mean = items[place, :count].mean()
        assert hidden.any() and torch.allclose(means[place, :count][hidden], mean, atol=1e-6)
        assert torch.equal(means[place, :count][~hidden], items[place, :count][~hidden])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"num_freq_masks": -1}, "num_freq_masks=-1: 0 or more"),
        ({"time_mask_size": -1}, "time_mask_size=-1: 0 or more"),
        ({"max_time_part": 2}, "max_time_part=2: a part from 0 to 1"),
        ({"replace": "noise"}, "replace='noise': 'zero' or 'mean'"),
    ],
)
def test_masks_that_cannot_be_are_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        SpecAugment(**arguments)


def test_a_mask_larger_than_the_item_covers_it_at_most() -> None:
    masked = SpecAugment(1, 100, 1, 100, max_time_part=1.0)(torch.ones(200, 5, 4))
    assert ((masked == 0).flatten(1).sum(dim=1) == 20).any() and masked.any()


def mel(hertz: float) -> float:
    return 2595 * math.log10(1 + hertz / 700)


def test_warping_moves_energy_as_the_paper_says() -> None:
    """A function that is straight on the mel scale is read exactly, wherever it is read."""
    warp = VTLP(RATE)
    number = 40
    width = mel(4000) / (number + 1)
    centers = [700 * (10 ** (width * (m + 1) / 2595) - 1) for m in range(number)]
    features = torch.tensor([width * (m + 1) for m in range(number)]).repeat(3, 2, 1)
    alphas = [0.9, 1.0, 1.1]
    warped = warp.warped(features, torch.tensor(alphas))
    for place, alpha in enumerate(alphas):
        reached = 2400 * min(alpha, 1)  # f_high is 0.6 of 4000
        for m, hertz in enumerate(centers):
            if hertz <= reached / alpha:
                there = hertz * alpha
            else:
                there = 4000 - (4000 - reached) / (4000 - reached / alpha) * (4000 - hertz)
            expected = min(max(mel(there), width), width * number)
            assert math.isclose(float(warped[place, 1, m]), expected, rel_tol=1e-4), (alpha, hertz)
    assert torch.allclose(warped[1], features[1], rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"low": 1.2, "high": 1.1}, "low=1.2, high=1.1: positive"),
        ({"low": 0}, "low=0, high=1.1: positive"),
        ({"f_high": 4000.0}, "f_high=4000.0: between 0 and 4000 Hz"),
        ({"f_max": 8000.0}, "f_min=0.0, f_max=8000.0: between 0 and 4000 Hz, as in Fbank"),
    ],
)
def test_a_warping_that_cannot_be_is_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        VTLP(RATE, **arguments)


def every_kind() -> list[Any]:
    return [
        SpeedPerturb(8000),
        AddNoise(),
        AddNoise([torch.ones(3)]),
        AddReverb([torch.randn(20)]),
        TimeShift(0.1, 8000),
        DropFreq(),
        DropChunk(),
    ]


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_waves_of_any_floating_point_are_augmented(kind: torch.dtype) -> None:
    for augment in every_kind():
        made = augment(torch.randn(3, 400).to(kind))
        made = made[0] if isinstance(made, tuple) else made
        assert made.dtype == kind and made.isfinite().all(), augment
        with pytest.raises(ValueError, match="floating"):
            augment(torch.ones(3, 400, dtype=torch.int16))


@pytest.mark.parametrize("shape", [(0,), (1, 0), (0, 50), (0, 0), (1,), (1, 1), (2, 2)])
def test_batches_and_items_of_hardly_anything(shape: tuple[int, ...]) -> None:
    for augment in every_kind():
        made = augment(torch.randn(shape))
        made = made[0] if isinstance(made, tuple) else made
        assert made.dim() == len(shape) and made.isfinite().all(), augment
    for features in (Fbank(8000, n_mels=20), MFCC(8000, n_mels=20)):
        made = features(torch.randn(shape))
        assert made.shape[:-2] == shape[:-1] and made.isfinite().all()
        assert Deltas(append=1)(made).shape == (*made.shape[:-1], 2 * made.shape[-1])
    assert Deltas()(torch.zeros(2, 0, 13)).shape == (2, 0, 13)


def test_lengths_are_one_an_item() -> None:
    waves, lengths = torch.randn(3, 400), torch.tensor([400])
    for module in (*every_kind(), Fbank(8000, n_mels=20), Deltas(), InputNormalization("utterance")):
        given = waves if not isinstance(module, (Deltas, InputNormalization)) else torch.randn(3, 400, 2)
        with pytest.raises(ValueError, match="there are 1 lengths and a batch of 3"):
            module(given, lengths)


@pytest.mark.parametrize("snr", [math.nan, math.inf, -math.inf])
def test_a_ratio_that_is_no_number_is_refused(snr: float) -> None:
    with pytest.raises(ValueError, match="finite numbers, in dB"):
        AddNoise(snr_low=snr, snr_high=snr)
