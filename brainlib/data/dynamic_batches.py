"""Batches of as many items as fit into a total length: short ones many, long ones few.

What is padded costs time and memory and teaches nothing, so items of like lengths are batched together; what always
comes together, or in the order of its length, trains worse. Both are had in three steps, anew each epoch:

1. Items go into buckets by length. A few of them (`mix`) ride in a bucket of longer ones: over the epochs each item
   meets a large part of all others, and since it is shorter than they, it alone is padded for it.
2. In a bucket items are shuffled and cut into batches that cannot exceed the total. What is left over rides in the next
   longer bucket where it fits into one batch, so that hardly a bucket ends in a small one.
3. Batches of like length form groups, and the groups are shuffled. Ranks that share a round then have even work.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence, Sized
from typing import Any

import numpy as np
import torch

from brainlib.common.counted import counted
from brainlib.common.errors import quoted
from brainlib.common.logs import logger
from brainlib.data.batch_report import BatchReport
from brainlib.data.buckets import learn_edges
from brainlib.data.dataset import DynamicItemDataset
from brainlib.data.plan import BatchPlan, PlannedBatchSampler, generator_for

__all__ = ["DynamicBatchSampler"]

Array = np.ndarray[Any, Any]

_MIX = 0.04  # share of the items that ride in a bucket of longer ones
_REACH = 0.3  # how far up, as a share of all items by length
_MOST_BUCKETS = 50
_BATCHES_A_BUCKET = 4  # at least, unless told otherwise: fewer would be the same batches each epoch
_MOST_ALIKE = 8  # batches in a group
_GROUPS = 200  # at least, or batches are not grouped: the order of few groups would be an order of lengths
_LAPS = 16  # parts of an epoch that have the lengths of the whole


class DynamicBatchSampler(PlannedBatchSampler):
    """Batches of a total length, for a loader's ``batch_sampler``.

    The length of a batch is that of its longest item times the number of its items, padding included: what is computed.
    It never exceeds `max_batch_length`. The order of an epoch is a function of (seed, epoch), and can be entered
    anywhere.

    Args:
        dataset: a `DynamicItemDataset`, or anything with a length.
        max_batch_length: the most that a batch may have, in the unit of the lengths. Try what fits into memory; look at
            `find_worst_batches`.
        num_buckets: None: up to 50, as many as have four batches each.
        length_func: a key of the rows, or a function from a row (a dict) to a length. Not asked where `lengths_list` is
            given.
        shuffle: whether items are shuffled; without, they are batched in the order of their lengths.
        batch_ordering: "random", "ascending" or "descending" by length. Descending shows at once what fits into memory.
        max_batch_ex: the most items in a batch; None: no limit.
        bucket_boundaries: upper edges of the buckets, instead of learnt ones.
        lengths_list: the lengths, one an item.
        seed: None: that of the run.
        epoch: which one comes next, counted from 0.
        drop_last: whether the one batch that may not be full is left out.
        over_long: what to do with items that are longer than `max_batch_length`: "error", or "drop", which says which.
        mix: share of the items that ride in a bucket of longer ones. More mixes better and pads more.
        num_alike: how many batches of like length come one after another, for so many ranks to have even work. None: 8
            where an epoch has 1600 batches or more, less for less.

    Raises:
        ValueError: for lengths that are not positive, an item that is too long, or options that do not fit.

    Example:
        >>> lengths = [1.0, 1.2, 3.0, 2.9, 1.1, 3.1, 1.3]
        >>> sampler = DynamicBatchSampler(range(7), 6.5, num_buckets=2, lengths_list=lengths, shuffle=False)
        >>> sorted(sampler)
        [[0, 4, 1, 6], [3, 2], [5]]
        >>> print(sampler.report())  # doctest: +ELLIPSIS
        7 items in 3 batches...
    """

    def __init__(
        self,
        dataset: Sized,
        max_batch_length: float,
        num_buckets: int | None = None,
        length_func: str | Callable[[dict[str, Any]], float] = "duration",
        shuffle: bool = True,
        batch_ordering: str = "random",
        max_batch_ex: int | None = None,
        bucket_boundaries: Sequence[float] = (),
        lengths_list: Sequence[float] | None = None,
        seed: int | None = None,
        epoch: int = 0,
        drop_last: bool = False,
        *,
        over_long: str = "error",
        mix: float = _MIX,
        num_alike: int | None = None,
    ) -> None:
        super().__init__((), seed, epoch)
        _check_options(max_batch_length, num_buckets, batch_ordering, max_batch_ex, over_long, mix, num_alike)
        self.max_batch_length, self.max_batch_ex = float(max_batch_length), max_batch_ex
        self.shuffle, self.batch_ordering, self.drop_last = shuffle, batch_ordering, drop_last
        self.mix = mix if shuffle else 0.0
        self.shuffles = shuffle or batch_ordering == "random"
        self.lengths = _lengths_of(dataset, length_func, lengths_list)
        self.dropped = self._drop(dataset, over_long)
        kept = np.flatnonzero(self.lengths <= self.max_batch_length)
        self._items = kept[np.argsort(self.lengths[kept], kind="stable")]  # by length
        lengths = self.lengths[self._items]
        self.bucket_boundaries = self._edges(lengths, num_buckets, bucket_boundaries)
        self._bucket = np.searchsorted(self.bucket_boundaries, lengths)  # of each of `_items`
        tops = lengths[np.append(np.flatnonzero(np.diff(self._bucket)), len(lengths) - 1)]
        self._bucket = np.searchsorted(tops, lengths)  # numbered anew: none is empty
        self._sizes = np.minimum(self._fitting(tops), max_batch_ex or len(lengths))
        num_batches = int((np.bincount(self._bucket) / self._sizes).sum())
        self.num_alike = num_alike or max(1, min(_MOST_ALIKE, num_batches // _GROUPS))

    def _what(self) -> str:
        most = "" if self.max_batch_ex is None else f", of {counted(self.max_batch_ex, 'item')} at most"
        dropped = f", {len(self.dropped)} dropped" if self.dropped else ""
        return (
            f"{counted(len(self._items), 'item')}{dropped}, batches of a length up to {self.max_batch_length:g}{most}, "
            f"{counted(len(self._sizes), 'bucket')}"
        )

    def _fitting(self, tops: Array) -> Array:
        """How many items of a length fit into a batch."""
        sizes = np.floor(self.max_batch_length / tops).astype(np.int64)
        return np.where(
            sizes * tops > self.max_batch_length, sizes - 1, sizes
        )  # the division may have rounded up

    def _drop(self, dataset: Any, over_long: str) -> list[Any]:
        """What is too long, by its names."""
        indices = np.flatnonzero(self.lengths > self.max_batch_length).tolist()
        names = [_name(dataset, index) for index in indices]
        if not indices:
            return names
        longest = ", ".join(
            f"{name!r} ({self.lengths[i]:g})" for name, i in list(zip(names, indices, strict=True))[:8]
        )
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        of_all, verb = counted(len(self.lengths), "item"), "is" if len(names) == 1 else "are"
        told = f"{len(names)} of {of_all} {verb} longer than max_batch_length={self.max_batch_length:g}"
        if over_long == "error":
            raise ValueError(
                f"{told}: {longest}{more}. Raise max_batch_length, filter them out, or drop them with over_long='drop'"
            )
        if len(names) == len(self.lengths):
            raise ValueError(
                f"all items are longer than max_batch_length={self.max_batch_length:g}: {longest}{more}"
            )
        logger.warning("%s and dropped: %s%s", told, longest, more)
        return names

    def _edges(self, lengths: Array, num_buckets: int | None, given: Sequence[float]) -> Array:
        if len(given):
            edges = np.unique(np.asarray(given, np.float64))
            return np.append(edges[edges < lengths[-1]], lengths[-1])
        if num_buckets is None:
            num_batches = np.ceil(lengths.sum() / self.max_batch_length)
            if self.max_batch_ex is not None:
                num_batches = max(num_batches, len(lengths) / self.max_batch_ex)
            num_buckets = int(min(_MOST_BUCKETS, max(1, num_batches // _BATCHES_A_BUCKET)))
        return learn_edges(lengths, num_buckets)

    # -------------------------------------------------------------------------------------------------------- the order
    def plan(self, seed: int, epoch: int) -> BatchPlan:
        generator = generator_for(seed, epoch, "batches")
        batches = self._cut(*self._in_buckets(generator))
        return self._arranged(*batches, generator)

    def _in_buckets(self, generator: torch.Generator) -> tuple[Array, Array]:
        """The items bucket by bucket, and how many each has."""
        items, bucket = self._items, self._bucket
        if not self.shuffle:
            return items, np.bincount(bucket, minlength=len(self._sizes))
        num = len(items)
        if self.mix:
            riding = np.flatnonzero((torch.rand(num, generator=generator) < self.mix).numpy())
            ahead = torch.rand(len(riding), generator=generator).numpy() * (_REACH * num)
            bucket = bucket.copy()
            bucket[riding] = self._bucket[np.minimum(riding + ahead.astype(np.int64), num - 1)]
        shuffled = torch.randperm(num, generator=generator).numpy()
        order = shuffled[np.argsort(bucket[shuffled], kind="stable")]
        return items[order], np.bincount(bucket, minlength=len(self._sizes))

    def _cut(self, items: Array, counts: Array) -> tuple[Array, Array]:
        """The items, and the sizes of batches; what is left of a bucket leads the next one, which is longer."""
        sizes: list[Array] = []
        left = 0
        for count, size in zip(counts.tolist(), self._sizes.tolist(), strict=True):
            if left > size:  # it would take more than a batch there
                sizes.append(np.array([left]))
                left = 0
            num, left = divmod(left + count, size)
            sizes.append(np.full(num, size))
        if left:
            if self.drop_last:
                items = items[: len(items) - left]
            else:
                sizes.append(np.array([left]))
        return items, np.concatenate(sizes)

    def _arranged(self, items: Array, sizes: Array, generator: torch.Generator) -> BatchPlan:
        """The batches, which come from short to long, in the order of the epoch."""
        num = len(sizes)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        if self.batch_ordering == "random":
            order = _in_groups(num, self.num_alike, generator)
        else:
            order = np.arange(num) if self.batch_ordering == "ascending" else np.arange(num)[::-1]
        sizes = sizes[order]
        ends = np.cumsum(sizes)
        # Position p of the epoch is in batch b: its item is the one that is as far behind the old start of b.
        moved = np.repeat(starts[:-1][order] - (ends - sizes), sizes)
        return BatchPlan(items[np.arange(len(moved)) + moved], np.concatenate([[0], ends]))

    def fingerprint(self) -> dict[str, int]:
        told = f"{self.max_batch_length} {self.max_batch_ex} {self.shuffle} {self.batch_ordering} {self.drop_last}"
        told += f" {self.mix} {self.num_alike} {self.seed} {self._sizes.tolist()}"
        return {
            "items": len(self._items),
            "lengths": zlib.crc32(self.lengths.tobytes()),
            "dynamic batches": zlib.crc32(told.encode()),
        }

    def report(self, num_ranks: int = 1, epoch: int | None = None) -> BatchReport:
        """What the batches of an epoch are like: how much is padded, how many there are, how even the work is.

        Args:
            num_ranks: among how many ranks they are dealt out.
            epoch: None: the one that comes next.
        """
        plan = self.planned(self.own_seed(), self.epoch if epoch is None else epoch)
        return BatchReport.of(plan, self.lengths, num_ranks, len(self.dropped), self.max_batch_length)


def _spread(num: int, generator: torch.Generator) -> Array:
    """An order of `num` groups, which come from short to long, in which each part of the epoch has all lengths.

    Of each so many neighbors one goes to each part of the epoch, and within a part the order is random.
    """
    laps = -(-num // _LAPS)
    part = torch.rand(laps, _LAPS, generator=generator).argsort(1).reshape(-1)[:num]
    within = torch.rand(num, generator=generator, dtype=torch.float64)
    return (part + within).argsort(stable=True).numpy()


def _in_groups(num: int, size: int, generator: torch.Generator) -> Array:
    """An order of `num` batches, which come from short to long, in groups of this size.

    Where they do not divide, some batches drawn at random come last: a smaller group in between would shift the rounds
    of ranks against the groups that follow.
    """
    drawn = torch.randperm(num, generator=generator).numpy()
    extra, grouped = drawn[: num % size], np.sort(drawn[num % size :])
    return np.concatenate([grouped.reshape(-1, size)[_spread(num // size, generator)].reshape(-1), extra])


def _name(dataset: Any, index: int) -> Any:
    return dataset.data_ids[index] if isinstance(dataset, DynamicItemDataset) else index


def _numbers(dataset: DynamicItemDataset, key: str) -> Array:
    values = dataset.values(key)
    try:
        return np.asarray(values, np.float64)
    except (ValueError, TypeError) as error:
        number, value = next(each for each in enumerate(values) if not isinstance(each[1], (int, float)))
        raise ValueError(
            f"length_func names the key {key!r}, and of the item {_name(dataset, number)!r} it is {value!r}, which is "
            "no number. types={...} of from_csv makes numbers of texts"
        ) from error


def _lengths_of(
    dataset: Any, length_func: str | Callable[[dict[str, Any]], float], given: Sequence[float] | None
) -> Array:
    if given is not None:
        lengths = np.asarray(given, np.float64)
        if lengths.ndim != 1 or len(lengths) != len(dataset):
            raise ValueError(
                f"lengths_list has {counted(len(lengths), 'entry', 'entries')}, and the data set "
                f"{counted(len(dataset), 'item')}"
            )
    elif isinstance(length_func, str):
        if not isinstance(dataset, DynamicItemDataset):
            raise ValueError(
                f"dataset is a {type(dataset).__name__}, of which the lengths are not known: give lengths_list"
            )
        lengths = _numbers(dataset, length_func)
    else:
        rows = (
            map(dataset.data.__getitem__, dataset.data_ids)
            if isinstance(dataset, DynamicItemDataset)
            else dataset
        )
        lengths = np.fromiter(map(length_func, rows), np.float64, len(dataset))
    if not len(lengths):
        raise ValueError("the data set is empty: there is nothing to batch")
    wrong = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
    if len(wrong):
        names = quoted([_name(dataset, index) for index in wrong[:8].tolist()])
        raise ValueError(
            f"{counted(len(wrong), 'item has', 'items have')} a length that is no positive number: {names} (the first: "
            f"{lengths[wrong[0]]}). "
            "Filter them out, or correct the manifest"
        )
    return lengths


def _check_options(
    max_batch_length: float,
    num_buckets: int | None,
    batch_ordering: str,
    max_batch_ex: int | None,
    over_long: str,
    mix: float,
    num_alike: int | None,
) -> None:
    if not 0 < max_batch_length < np.inf:
        raise ValueError(f"max_batch_length is {max_batch_length!r}; it must be a positive number")
    for name, value in (
        ("num_buckets", num_buckets),
        ("max_batch_ex", max_batch_ex),
        ("num_alike", num_alike),
    ):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value!r}; it must be at least 1, or None")
    if batch_ordering not in ("random", "ascending", "descending"):
        raise ValueError(
            f"batch_ordering is {batch_ordering!r}; it must be 'random', 'ascending' or 'descending'"
        )
    if over_long not in ("error", "drop"):
        raise ValueError(f"over_long is {over_long!r}; it must be 'error' or 'drop'")
    if not 0 <= mix <= 1:
        raise ValueError(f"mix is {mix!r}; it must be a share from 0 to 1")
