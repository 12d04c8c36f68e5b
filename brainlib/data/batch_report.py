"""What the batches of an epoch are like, and which of them ask the most of the memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from brainlib.common.counted import counted
from brainlib.data.plan import BatchPlan

__all__ = ["BatchReport", "find_worst_batches"]

Array = np.ndarray[Any, Any]


def _padded(plan: BatchPlan, lengths: Array) -> tuple[Array, Array, Array]:
    """Of each batch: how many items, the longest, and the sum of the lengths."""
    of_items = lengths[plan.indices]
    begins = plan.starts[:-1]
    return np.diff(plan.starts), np.maximum.reduceat(of_items, begins), np.add.reduceat(of_items, begins)


@dataclass(frozen=True)
class BatchReport:
    """The batches of one epoch in numbers; as text, a few lines. Lengths are in the unit of the data set's.

    Attributes:
        num_items: in all batches.
        num_dropped: items that were too long and left out.
        num_batches: how many there are.
        padding: share of what is computed that is padding.
        longest: length of the largest batch, padding included.
        mean: of all batches.
        limit: what was allowed, or None.
        num_ranks: among how many the batches are dealt out.
        imbalance: how much longer the slowest rank of each round takes than all would with even work.
        sizes: least, mean and most items in a batch.

    >>> report = BatchReport.of(BatchPlan.of([[0, 1], [2]]), np.array([1.0, 2.0, 4.0]))
    >>> report.num_batches, report.longest, round(report.padding, 3), report.sizes
    (2, 4.0, 0.125, (1, 1.5, 2))
    """

    num_items: int
    num_dropped: int
    num_batches: int
    padding: float
    longest: float
    mean: float
    limit: float | None
    num_ranks: int
    imbalance: float
    sizes: tuple[int, float, int]

    @classmethod
    def of(
        cls,
        plan: BatchPlan,
        lengths: Array,
        num_ranks: int = 1,
        num_dropped: int = 0,
        limit: float | None = None,
    ) -> BatchReport:
        """The report for a plan, given the length of each item."""
        sizes, tops, sums = _padded(plan, np.asarray(lengths, np.float64))
        padded = sizes * tops
        rounds = padded[: len(padded) // num_ranks * num_ranks].reshape(-1, num_ranks)
        even = rounds.mean(axis=1).sum()
        return cls(
            num_items=len(plan.indices),
            num_dropped=num_dropped,
            num_batches=len(plan),
            padding=float(1 - sums.sum() / padded.sum()),
            longest=float(padded.max()),
            mean=float(padded.mean()),
            limit=limit,
            num_ranks=num_ranks,
            imbalance=float(rounds.max(axis=1).sum() / even - 1) if even else 0.0,
            sizes=(int(sizes.min()), float(sizes.mean()), int(sizes.max())),
        )

    def __str__(self) -> str:
        least, mean, most = self.sizes
        lines = [
            f"{counted(self.num_items, 'item')} in {counted(self.num_batches, 'batch', 'batches')} "
            f"of {least} to {most}, {mean:.1f} on average"
            + (f"; {counted(self.num_dropped, 'item')} dropped" if self.num_dropped else ""),
            f"padding {100 * self.padding:.1f} %, length of a batch {self.mean:g} on average, {self.longest:g} at most"
            + (f", {self.limit:g} allowed" if self.limit is not None else ""),
        ]
        if self.num_ranks > 1:
            lines.append(
                f"{self.num_ranks} ranks, the slowest of a round {100 * self.imbalance:.1f} % over even work"
            )
        return "\n".join(lines)


def find_worst_batches(sampler: Any, epoch: int | None = None) -> dict[str, list[int]]:
    """The batches that ask the most of the memory: try them first, and what does not fit fails in the first minute.

    Args:
        sampler: a `DynamicBatchSampler`.
        epoch: of which epoch; None: the one that comes next.

    Returns:
        The indices of the batch with the ``longest total``, padding included, with the ``longest item``, with the
        ``most items``, and with the ``most padding``; the largest in other respects where several are equal.

    >>> from brainlib.data.dynamic_batches import DynamicBatchSampler
    >>> sampler = DynamicBatchSampler(range(4), 6.0, 2, lengths_list=[1.0, 1.0, 1.0, 5.0], shuffle=False)
    >>> worst = find_worst_batches(sampler)
    >>> worst["longest item"], worst["most items"]
    ([3], [0, 1, 2])
    """
    plan = sampler.planned(sampler.own_seed(), sampler.epoch if epoch is None else epoch)
    sizes, tops, sums = _padded(plan, sampler.lengths)
    total = sizes * tops
    wanted = {"longest total": total, "longest item": tops, "most items": sizes, "most padding": total - sums}
    return {name: plan.batch(int(np.lexsort((total, value))[-1])) for name, value in wanted.items()}
