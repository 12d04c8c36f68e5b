from __future__ import annotations

import math
import random
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

from brainlib.metrics import EER, BinaryMetricStats, minDCF


def rates(positive: Any, negative: Any, threshold: float) -> tuple[float, float]:
    """From the definition: what is above the threshold is accepted."""
    misses = sum(score <= threshold for score in positive) / len(positive)
    false_alarms = sum(score > threshold for score in negative) / len(negative)
    return misses, false_alarms


def draws(decimals: int) -> tuple[list[float], list[float]]:
    """With few decimals there are many ties."""
    positive = [round(random.gauss(0.5, 1), decimals) for _ in range(random.randrange(1, 30))]
    negative = [round(random.gauss(-0.5, 1), decimals) for _ in range(random.randrange(1, 30))]
    return positive, negative


@pytest.mark.parametrize("decimals", [0, 1, 12])
def test_both_by_their_definitions(decimals: int) -> None:
    for _ in range(100):
        positive, negative = draws(decimals)
        thresholds = [-99.0, *positive, *negative]
        eer, at = EER(positive, negative)
        closest = min(abs(m - f) for m, f in (rates(positive, negative, t) for t in thresholds))
        misses, false_alarms = rates(positive, negative, at)
        assert eer == pytest.approx((misses + false_alarms) / 2)
        assert abs(misses - false_alarms) == pytest.approx(closest)
        for p in (0.01, 0.5):
            cost, at = minDCF(positive, negative, c_miss=10, c_fa=2, p_target=p)
            costs = [
                10 * m * p + 2 * f * (1 - p) for m, f in (rates(positive, negative, t) for t in thresholds)
            ]
            assert cost == pytest.approx(min(costs))
            misses, false_alarms = rates(positive, negative, at)
            assert cost == pytest.approx(10 * misses * p + 2 * false_alarms * (1 - p))


def test_the_order_and_the_kind_of_scores_make_no_difference() -> None:
    positive, negative = torch.randn(200) + 1, torch.randn(300)
    expected = EER(positive, negative)
    assert EER(positive.flip(0), negative[torch.randperm(300)]) == expected
    assert EER(positive.numpy(), negative.tolist()) == expected


def test_extremes() -> None:
    assert EER([2.0, 3.0], [0.0, 1.0]) == (0.0, 1.5)
    assert EER([0.0], [1.0])[0] == 1.0
    assert EER([1.0, 1.0], [1.0])[0] == 0.5
    assert minDCF([0.0], [1.0])[0] == 0.01  # better to say no at all times
    assert minDCF([0.0], [1.0], normalized=True)[0] == 1.0
    cost, threshold = minDCF([0.0], [1.0], p_target=0.999)
    assert cost == pytest.approx(0.001) and threshold < 0  # better to say yes


@pytest.mark.parametrize(
    ("positive", "negative", "told"),
    [
        ([], [1.0], "positive_scores is empty: scores of both kinds are needed"),
        ([1.0], [], "negative_scores is empty"),
        ([1.0, math.nan], [1.0], "positive_scores holds scores that are no finite numbers"),
        ([1.0], [-math.inf, 1.0], "negative_scores holds scores that are no finite numbers"),
    ],
)
def test_scores_that_are_none_are_refused(positive: Any, negative: Any, told: str) -> None:
    for measure in (EER, minDCF):
        with pytest.raises(ValueError, match=told):
            measure(positive, negative)


def test_costs_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="p_target=1: a probability between 0 and 1"):
        minDCF([1.0], [0.0], p_target=1)
    with pytest.raises(ValueError, match="c_miss=0, c_fa=1.0: costs above 0"):
        minDCF([1.0], [0.0], c_miss=0)
    for cost in (math.nan, math.inf):
        with pytest.raises(ValueError, match="costs above 0, and finite"):
            minDCF([1.0], [0.0], c_fa=cost)


def test_a_million_trials_need_memory_in_proportion() -> None:
    """All thresholds against all scores would be terabytes."""
    generator = np.random.default_rng(0)
    positive, negative = generator.normal(1, 1, 200_000), generator.normal(-1, 1, 800_000)
    tracemalloc.start()
    eer, threshold = EER(positive, negative)
    cost, _ = minDCF(positive, negative)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 150e6
    assert eer == pytest.approx(0.5 * math.erfc(1 / math.sqrt(2)), abs=2e-3) and abs(threshold) < 0.02
    assert 0.004 < cost < 0.01


def test_counts_at_a_threshold() -> None:
    stats = BinaryMetricStats(positive_label="same")
    stats.append([1, 2, 3, 4, 5], [0.9, 0.8, 0.2, 0.7, 0.1], ["same", "same", "same", "other", "other"])
    found = stats.summarize(threshold=0.5)
    assert [found[name] for name in ("TP", "FN", "FP", "TN")] == [2, 1, 1, 1]
    assert found["precision"] == found["recall"] == found["F-score"] == pytest.approx(2 / 3)
    assert found["FAR"] == 0.5 and found["FRR"] == pytest.approx(1 / 3)
    assert found["MCC"] == pytest.approx((2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2))
    assert stats.summarize("F-score", threshold=0.5, beta=2.0) == pytest.approx(5 * 2 / (5 * 2 + 4 * 1 + 1))
    assert stats.summarize("precision", threshold=2.0) == 0.0
    assert stats.summarize("threshold") == EER([0.9, 0.8, 0.2], [0.7, 0.1])[1]
    with pytest.raises(ValueError, match="1 label and 2 scores: one of each an item"):
        stats.append([1, 2], [0.1, 0.2], ["same"])
