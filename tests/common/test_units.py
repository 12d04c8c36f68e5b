from __future__ import annotations

import pytest
import torch

from brainlib.common.units import (
    absolute_lengths,
    frames_to_seconds,
    length_mask,
    relative_lengths,
    samples_to_frames,
    samples_to_seconds,
    seconds_to_samples,
)


def test_seconds_and_samples_there_and_back() -> None:
    for rate in (8000, 11025, 16000, 22050, 44100):
        for samples in (0, 1, 399, 400, 12_345_678):
            assert seconds_to_samples(samples_to_seconds(samples, rate), rate) == samples
    assert seconds_to_samples(0.07, 16000) == 1120  # 0.07 · 16000 is a little more than 1120


@pytest.mark.parametrize("seconds", [-0.1, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=f"a time of {seconds!r} seconds: give a number that is 0 or more"):
        seconds_to_samples(seconds, 8000)


def test_frames_stand_at_each_hop() -> None:
    assert [samples_to_frames(n, 80) for n in (0, 79, 80, 8000)] == [1, 1, 2, 101]
    assert frames_to_seconds(100, 80, 8000) == 1.0


def test_counts_survive_as_parts_of_the_longest() -> None:
    for size in (1, 3, 7, 999, 35_000, 1_000_003):
        counts = torch.randint(0, size + 1, (1000,))
        assert torch.equal(absolute_lengths(relative_lengths(counts, size), size), counts)


def test_both_kinds_of_lengths_mask_alike() -> None:
    expected = torch.tensor([[True, True, True, True], [True, False, False, False], [False] * 4])
    assert torch.equal(length_mask(torch.tensor([4, 1, 0]), 4), expected)
    assert torch.equal(length_mask(torch.tensor([1.0, 0.25, 0.0]), 4), expected)


def test_lengths_out_of_range_are_refused() -> None:
    with pytest.raises(
        ValueError, match="lengths go from 1 to 5; as counts between 0 and 4. Integers are counts"
    ):
        absolute_lengths(torch.tensor([1, 5]), 4)
    with pytest.raises(ValueError, match="lengths go from 0.5 to 400; as parts they lie between 0 and 1"):
        absolute_lengths(torch.tensor([0.5, 400.0]), 400)
    with pytest.raises(ValueError, match=r"as parts"):
        absolute_lengths(torch.tensor([float("nan")]), 4)
    with pytest.raises(ValueError, match=r"the shape \(2, 1\); give one number an item, so \[batch\]"):
        absolute_lengths(torch.ones(2, 1), 4)
