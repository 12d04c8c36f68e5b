"""MetricStats: any score of an item, kept by its id."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from typing import Any, TextIO

import torch
from torch import Tensor

from brainlib.metrics.metric import Metric, field_of, mean, numbers_of, plain_ids, plain_numbers, stream_to

__all__ = ["MetricStats"]


class MetricStats(Metric):
    """The scores that a function gives to items: their mean, the least and the greatest, each with its id.

    Args:
        metric: called with what `append` gets; returns a score an item, [batch] (a loss with ``reduction="none"``,
            and its mean over what belongs to an item).
        batch_eval: whether it takes batches. If not, it is called for each item, with the item's part of every
            positional argument, and returns one number.

    Attributes:
        ids: of the items.
        scores: of each a float.

    >>> stats = MetricStats(lambda guess, target: (guess - target).abs())
    >>> stats.append(["a", "b"], torch.tensor([1.0, 4.0]), torch.tensor([1.5, 2.0]))
    >>> stats.summarize("average"), stats.summarize("max_id")
    (1.25, 'b')
    """

    kept = ("ids", "scores")

    def __init__(self, metric: Callable[..., Any], batch_eval: bool = True) -> None:
        self.metric = metric
        self.batch_eval = batch_eval
        super().__init__()

    def clear(self) -> None:
        self.ids: list[Any] = []
        self.scores: list[float] = []
        self._waiting: list[Tensor] = []  # scores that may still be on a device

    def settle(self) -> None:
        self.scores += plain_numbers(self._waiting)
        self._waiting = []

    def append(self, ids: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        """Score a batch; nothing is read back from the device.

        Args:
            ids: one an item.
            *args: for the metric.
            **kwargs: for the metric.

        Raises:
            ValueError: the scores are not one an item.
        """
        ids = list(ids) if not isinstance(ids, (str, Tensor)) else ids
        if self.batch_eval:
            scores = self.metric(*args, **kwargs)
        else:
            count = len(args[0])
            scores = [self.metric(*(arg[place] for arg in args), **kwargs) for place in range(count)]
        if isinstance(scores, list):
            scores = torch.stack([numbers_of(each).double() for each in scores]) if scores else torch.empty(0)
        tensor = numbers_of(scores)
        if tensor.dim() != 1:
            raise ValueError(
                f"the metric returned scores of the shape {tuple(tensor.shape)}; one number an item is needed, "
                '[batch]. A loss gives them with reduction="none", or take its mean over all dimensions but the first'
            )
        self.ids += plain_ids(ids, len(tensor), "scores")
        self._waiting.append(tensor.detach())

    def summarize(self, field: str | None = None) -> Any:
        """A dict of ``average``, ``min_score``, ``min_id``, ``max_score`` and ``max_id``, or one of them.

        An average over a score that is not a number is not one; it is neither the least nor the greatest.

        Raises:
            ValueError: nothing was appended, or there is no such field.
        """
        self.settle()
        if not self.ids:
            raise ValueError("there are no scores: nothing was appended since the last clear()")
        ranked = sorted(
            ((score, str(name), name) for name, score in zip(self.ids, self.scores, strict=True)),
            key=lambda each: each[:2],
        )
        ranked = [each for each in ranked if not math.isnan(each[0])] or ranked
        highest = next(each for each in ranked if each[0] == ranked[-1][0] or math.isnan(each[0]))
        summary = {
            "average": mean(self.scores),
            "min_score": ranked[0][0],
            "min_id": ranked[0][2],
            "max_score": highest[0],
            "max_id": highest[2],
        }
        return field_of(summary, field)

    def write_stats(self, filestream: str | os.PathLike[str] | TextIO) -> None:
        """Write the summary, then a line an item, in the order of their ids.

        Args:
            filestream: a path, or something with `write`.

        Raises:
            ValueError: nothing was appended.
        """
        summary = self.summarize()
        with stream_to(filestream) as stream:
            for name, value in summary.items():
                stream.write(f"{name}: {value}\n")
            stream.write("=" * 80 + "\n")
            for name, score in sorted(
                zip(self.ids, self.scores, strict=True), key=lambda each: (str(each[0]), each[1])
            ):
                stream.write(f"{name}: {score}\n")
