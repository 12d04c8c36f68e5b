"""AccuracyStats and ClassificationStats: how often a class was right, and which was taken for which."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import Any, TextIO

import torch
from torch import Tensor

from brainlib.common.units import absolute_lengths, length_mask
from brainlib.metrics.metric import Metric, field_of, mean, plain_ids, stream_to

__all__ = ["AccuracyStats", "ClassificationStats"]


class AccuracyStats(Metric):
    """The share of items, or of places in sequences, whose likeliest class is the right one.

    Attributes:
        correct: how many were right.
        total: of how many.

    >>> stats = AccuracyStats()
    >>> stats.append(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    >>> stats.summarize()
    0.5
    """

    kept = ("correct", "total")

    def clear(self) -> None:
        self.correct = 0
        self.total = 0
        self._waiting: list[Tensor] = []  # pairs of counts that may still be on a device

    def settle(self) -> None:
        if self._waiting:
            correct, total = torch.stack(self._waiting).sum(dim=0).tolist()
            self.correct, self.total, self._waiting = self.correct + correct, self.total + total, []

    def append(self, log_probabilities: Tensor, targets: Tensor, length: Tensor | None = None) -> None:
        """Count a batch; nothing is read back from the device.

        Args:
            log_probabilities: [batch, classes] or [batch, time, classes]; whatever grows with the probability.
            targets: [batch] or [batch, time], integers.
            length: [batch], counts of places or parts of the longest; what is behind them does not count.

        Raises:
            ValueError: the shapes do not belong together.
        """
        if log_probabilities.shape[:-1] != targets.shape or targets.dim() not in (1, 2):
            raise ValueError(
                f"scores of the shape {tuple(log_probabilities.shape)}, targets of the shape {tuple(targets.shape)}: "
                "give [batch, classes] and [batch], or [batch, time, classes] and [batch, time]"
            )
        highest, classes = log_probabilities.max(dim=-1)
        right = (
            classes == targets
        ) & ~highest.isnan()  # a NaN would be the highest, and right where it stands
        inside = torch.ones_like(right)
        if length is not None:
            if targets.dim() != 2:
                raise ValueError("lengths belong to sequences, and the targets are [batch]")
            inside = length_mask(
                absolute_lengths(length, targets.shape[1], len(targets)).to(targets.device), targets.shape[1]
            )
        self._waiting.append(torch.stack([(right & inside).sum(), inside.sum()]))

    def summarize(self) -> float:
        """The accuracy, from 0 to 1.

        Raises:
            ValueError: nothing was appended.
        """
        self.settle()
        if not self.total:
            raise ValueError("there is no accuracy: nothing was appended since the last clear()")
        return self.correct / self.total


class ClassificationStats(Metric):
    """Accuracy, precision, recall and F-score of classes, and the confusion matrix.

    Attributes:
        ids: of the items.
        predictions: of each its class.
        targets: the right ones.

    >>> stats = ClassificationStats()
    >>> stats.append(["a", "b", "c"], ["cat", "cat", "dog"], ["cat", "dog", "dog"])
    >>> stats.summarize("classwise_accuracy"), stats.summarize("confusion_matrix")["dog"]
    ({'cat': 1.0, 'dog': 0.5}, {'cat': 1, 'dog': 1})
    """

    kept = ("ids", "predictions", "targets")

    def clear(self) -> None:
        self.ids: list[Any] = []
        self.predictions: list[Any] = []
        self.targets: list[Any] = []

    def append(self, ids: Iterable[Any], predictions: Any, targets: Any) -> None:
        """Count a batch. A tensor is read from its device here.

        Args:
            ids: one an item.
            predictions: classes, as text or numbers, in a list or a tensor [batch].
            targets: the right ones, in the same form.

        Raises:
            ValueError: the numbers of items differ.
        """
        for name, given in (("predictions", predictions), ("targets", targets)):
            if isinstance(given, Tensor) and given.dim() != 1:
                raise ValueError(f"{name} have the shape {tuple(given.shape)}; give a class an item, [batch]")
        told = plain_ids(predictions, len(targets), "targets")
        right = plain_ids(targets, len(targets), "targets")
        self.ids += plain_ids(ids, len(right), "targets")
        self.predictions += told
        self.targets += right

    def summarize(self, field: str | None = None) -> Any:
        """All of it, or one field.

        ``accuracy``; ``macro_f_score``, the mean over classes; and by class, in their order, ``classwise_total``,
        ``classwise_correct``, ``classwise_accuracy`` (which is the recall), ``precision``, ``recall`` and ``f_score``,
        2PR / (P + R). A class that was never predicted has precision 0, one that never occurs recall 0.
        ``confusion_matrix[target][prediction]`` counts.

        Raises:
            ValueError: nothing was appended, or there is no such field.
        """
        if not self.ids:
            raise ValueError("there is nothing to sum up: nothing was appended since the last clear()")
        pairs = Counter(zip(self.targets, self.predictions, strict=True))
        total, told = Counter(self.targets), Counter(self.predictions)
        classes = _in_order({*total, *told})
        correct = {each: pairs[each, each] for each in classes}
        precision = {each: correct[each] / max(told[each], 1) for each in classes}
        recall = {each: correct[each] / max(total[each], 1) for each in classes}
        f_score = {each: 2 * correct[each] / (told[each] + total[each]) for each in classes}
        summary = {
            "accuracy": sum(correct.values()) / len(self.ids),
            "macro_f_score": mean(f_score.values()),
            "classwise_total": {each: total[each] for each in classes},
            "classwise_correct": correct,
            "classwise_accuracy": {each: recall[each] for each in classes if total[each]},
            "precision": precision,
            "recall": recall,
            "f_score": f_score,
            "confusion_matrix": {row: {each: pairs[row, each] for each in classes} for row in classes},
        }
        return field_of(summary, field)

    def write_stats(self, filestream: str | os.PathLike[str] | TextIO) -> None:
        """Write the accuracy, the classes, the confusion matrix (a row a target), and the items that were wrong.

        Args:
            filestream: a path, or something with `write`.

        Raises:
            ValueError: nothing was appended.
        """
        found = self.summarize()
        classes = list(found["confusion_matrix"])
        rows = [["class", "items", "precision", "recall", "f_score"]]
        rows += [
            [
                str(each),
                str(found["classwise_total"][each]),
                *(f"{found[name][each]:.4f}" for name in rows[0][2:]),
            ]
            for each in classes
        ]
        matrix = [["", *map(str, classes)]]
        matrix += [
            [str(row), *(str(found["confusion_matrix"][row][each]) for each in classes)] for row in classes
        ]
        wrong = sorted(
            (str(name), str(told), str(right))
            for name, told, right in zip(self.ids, self.predictions, self.targets, strict=True)
            if told != right
        )
        with stream_to(filestream) as stream:
            stream.write(f"accuracy: {found['accuracy']:.4f}\nmacro_f_score: {found['macro_f_score']:.4f}\n")
            for table in (rows, matrix):
                stream.write("=" * 80 + "\n")
                widths = [max(map(len, column)) for column in zip(*table, strict=True)]
                for row in table:
                    first, *others = (
                        cell.rjust(width) if place else cell.ljust(width)
                        for place, (cell, width) in enumerate(zip(row, widths, strict=True))
                    )
                    stream.write("  ".join([first, *others]).rstrip() + "\n")
            stream.write("=" * 80 + "\n")
            for name, told, right in wrong:
                stream.write(f"{name}: {told} instead of {right}\n")


def _in_order(classes: set[Any]) -> list[Any]:
    """Numbers by size, then texts, then whatever else there is."""

    def place(each: Any) -> tuple[int, float, str]:
        if isinstance(each, (int, float)):
            return 0, each, ""
        return (1 if isinstance(each, str) else 2), 0, str(each)

    return sorted(classes, key=place)
