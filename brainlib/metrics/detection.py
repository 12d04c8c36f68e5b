"""Detection: equal error rate, least detection cost, and what a threshold does. In n log n, and memory in n."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from brainlib.common.counted import counted
from brainlib.metrics.metric import Metric, field_of, numbers_of, plain_ids, plain_numbers

__all__ = ["EER", "BinaryMetricStats", "minDCF"]


def EER(positive_scores: Any, negative_scores: Any) -> tuple[float, float]:
    """The equal error rate: where as many are falsely accepted as are falsely rejected, and the threshold for it.

    A score above the threshold is accepted. Where no threshold makes the two rates equal, it is the mean of both where
    they are closest.

    Args:
        positive_scores: of the pairs that belong together; a tensor, an array or a list.
        negative_scores: of those that do not.

    Returns:
        The rate, from 0 to 1, and the threshold, halfway between two scores.

    Raises:
        ValueError: for no scores, or some that are not numbers.

    >>> EER([0.9, 0.8, 0.4], [0.1, 0.5, 0.3])
    (0.3333333333333333, 0.45)
    """
    misses, false_alarms, thresholds = _rates(positive_scores, negative_scores)
    best = int(np.abs(misses - false_alarms).argmin())
    return float((misses[best] + false_alarms[best]) / 2), float(thresholds[best])


def minDCF(
    positive_scores: Any,
    negative_scores: Any,
    c_miss: float = 1.0,
    c_fa: float = 1.0,
    p_target: float = 0.01,
    normalized: bool = False,
) -> tuple[float, float]:
    """The least detection cost over all thresholds, c_miss · P(miss) · p + c_fa · P(false alarm) · (1 - p).

    NIST's speaker recognition evaluations, https://www.nist.gov/itl/iad/mig/speaker-recognition.

    Args:
        positive_scores: as in `EER`.
        negative_scores: as in `EER`.
        c_miss: what a miss costs.
        c_fa: what a false alarm costs.
        p_target: how often a pair belongs together, p.
        normalized: whether the cost is divided by that of always saying the same, min(c_miss · p, c_fa · (1 - p)).

    Returns:
        The cost, and the threshold.

    Raises:
        ValueError: as `EER`; and for a p that is not between 0 and 1, or costs that are not positive.

    >>> cost, threshold = minDCF([0.9, 0.8, 0.4], [0.1, 0.5, 0.3], p_target=0.5)
    >>> round(cost, 4), threshold
    (0.1667, 0.35)
    """
    if not 0 < p_target < 1:
        raise ValueError(f"p_target={p_target!r}: a probability between 0 and 1")
    if not (0 < c_miss < math.inf and 0 < c_fa < math.inf):
        raise ValueError(f"c_miss={c_miss!r}, c_fa={c_fa!r}: costs above 0, and finite")
    misses, false_alarms, thresholds = _rates(positive_scores, negative_scores)
    costs = c_miss * misses * p_target + c_fa * false_alarms * (1 - p_target)
    best = int(costs.argmin())
    default = min(c_miss * p_target, c_fa * (1 - p_target)) if normalized else 1.0
    return float(costs[best]) / default, float(thresholds[best])


class BinaryMetricStats(Metric):
    """Yes or no: equal error rate, least cost, and the counts at a threshold.

    Args:
        positive_label: the label that means yes; every other one means no.

    Attributes:
        ids: of the items.
        scores: of each; the higher, the more it is a yes.
        labels: 1 for yes, 0 for no.

    >>> stats = BinaryMetricStats()
    >>> stats.append(list("abcd"), torch.tensor([0.9, 0.7, 0.6, 0.2]), torch.tensor([1, 1, 0, 0]))
    >>> stats.summarize("EER"), stats.summarize("F-score", threshold=0.5)
    (0.0, 0.8)
    """

    kept = ("ids", "scores", "labels")

    def __init__(self, positive_label: Any = 1) -> None:
        self.positive_label = positive_label
        super().__init__()

    def clear(self) -> None:
        self.ids: list[Any] = []
        self.scores: list[float] = []
        self.labels: list[int] = []
        self._waiting: list[tuple[Tensor, Tensor]] = []  # scores and labels that may still be on a device

    def settle(self) -> None:
        self.scores += plain_numbers([scores for scores, _ in self._waiting])
        self.labels += [int(label) for label in plain_numbers([labels for _, labels in self._waiting])]
        self._waiting = []

    def append(self, ids: Iterable[Any], scores: Any, labels: Any) -> None:
        """Count a batch; tensors are not read back from the device.

        Args:
            ids: one an item.
            scores: [batch].
            labels: [batch].

        Raises:
            ValueError: the numbers of items differ.
        """
        scores = numbers_of(scores).flatten()
        positive = (
            (labels == self.positive_label).flatten()
            if isinstance(labels, Tensor)
            else torch.tensor([label == self.positive_label for label in labels])
        )
        if len(positive) != len(scores):
            raise ValueError(
                f"{counted(len(positive), 'label')} and {counted(len(scores), 'score')}: one of each an item"
            )
        self.ids += plain_ids(ids, len(scores), "scores")
        self._waiting.append((scores.detach(), positive))

    def summarize(self, field: str | None = None, threshold: float | None = None, beta: float = 1.0) -> Any:
        """All of it, or one field, under SpeechBrain's names.

        ``EER``, ``minDCF`` (as `minDCF` by default), ``threshold``, and at that: ``TP``, ``TN``, ``FP``, ``FN``,
        ``FAR``, ``FRR``, ``precision``, ``recall``, ``F-score``, and Matthews' correlation coefficient ``MCC``. A
        ratio of nothing is 0.

        Args:
            field: one of these.
            threshold: scores above it count as yes; None: that of the EER.
            beta: how much more recall weighs than precision in the F-score.

        Raises:
            ValueError: nothing was appended, or nothing of one of the two kinds, or there is no such field.
        """
        self.settle()
        scores, labels = np.array(self.scores), np.array(self.labels, dtype=bool)
        eer, at = EER(scores[labels], scores[~labels])
        threshold = at if threshold is None else threshold
        accepted = scores > threshold
        tp, fp = int((accepted & labels).sum()), int((accepted & ~labels).sum())
        fn, tn = int(labels.sum()) - tp, int((~labels).sum()) - fp
        weight = beta**2
        summary = {
            "EER": eer,
            "minDCF": minDCF(scores[labels], scores[~labels])[0],
            "threshold": threshold,
            "TP": tp,
            "TN": tn,
            "FP": fp,
            "FN": fn,
            "FAR": _ratio(fp, fp + tn),
            "FRR": _ratio(fn, tp + fn),
            "precision": _ratio(tp, tp + fp),
            "recall": _ratio(tp, tp + fn),
            "F-score": _ratio((1 + weight) * tp, (1 + weight) * tp + weight * fn + fp),
            "MCC": _ratio(tp * tn - fp * fn, math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))),
        }
        return field_of(summary, field)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _rates(positive_scores: Any, negative_scores: Any) -> tuple[Any, Any, Any]:
    """Of every threshold that makes a difference: the share of misses, that of false alarms, and the threshold."""
    positive, negative = (_sorted(scores, what) for scores, what in (
        (positive_scores, "positive_scores"), (negative_scores, "negative_scores")
    ))  # fmt: skip
    cuts = np.unique(np.concatenate([positive, negative]))
    # Between two neighbors every threshold does the same; below all of them everything is accepted.
    cuts = np.concatenate([[np.nextafter(cuts[0], -np.inf)], cuts])
    misses = np.searchsorted(positive, cuts, side="right") / len(positive)
    false_alarms = (len(negative) - np.searchsorted(negative, cuts, side="right")) / len(negative)
    between = cuts.copy()
    between[1:-1] = cuts[1:-1] + (cuts[2:] - cuts[1:-1]) / 2
    return misses, false_alarms, between


def _sorted(scores: Any, what: str) -> Any:
    values = (
        scores.detach().cpu().double().numpy() if isinstance(scores, Tensor) else np.asarray(scores, float)
    )
    values = np.sort(values.ravel())
    if not len(values):
        raise ValueError(f"{what} is empty: scores of both kinds are needed")
    if np.isnan(values[-1]) or np.isinf(values[[0, -1]]).any():
        raise ValueError(f"{what} holds scores that are no finite numbers")
    return values
