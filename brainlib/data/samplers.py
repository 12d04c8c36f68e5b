"""Samplers of items: an order that is a function of (seed, epoch), so that it is the same after a restart.

Each takes `seed`, which is best left out: a Brain then gives the seed of its run, and tells the epoch. Outside of a
Brain the seed is that of `seed_everything`, else 0, and ``set_epoch`` is yours to call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from brainlib.common.counted import counted
from brainlib.data.dataset import DynamicItemDataset
from brainlib.data.plan import _Epochs, generator_for

__all__ = [
    "BalancingDataSampler",
    "ReproducibleRandomSampler",
    "ReproducibleWeightedRandomSampler",
]


class ReproducibleRandomSampler(_Epochs, Sampler[int]):
    """All items in random order, another one each epoch. The base of the others, which override `order`.

    Args:
        data_source: the data set, or anything with a length.
        seed: None: that of the run.
        epoch: which one comes next, counted from 0.
        replacement: whether an item may come more than once.
        num_samples: how many an epoch has; None: as many as there are items.

    Raises:
        ValueError: for a number of samples that cannot be drawn.

    >>> sampler = ReproducibleRandomSampler(range(5), seed=1)
    >>> first = list(sampler); sampler.set_epoch(1); second = list(sampler); sampler.set_epoch(0)
    >>> sorted(first), first == list(sampler), first == second
    ([0, 1, 2, 3, 4], True, False)
    """

    def __init__(
        self,
        data_source: Sized,
        seed: int | None = None,
        epoch: int = 0,
        replacement: bool = False,
        num_samples: int | None = None,
    ) -> None:
        self.seed, self.epoch, self.replacement = seed, epoch, replacement
        self.num_items = len(data_source)
        self.num_samples = self.num_items if num_samples is None else num_samples
        most = self.num_items if not replacement else None
        if self.num_samples < 1 or (most is not None and self.num_samples > most):
            allowed = "at least 1" if most is None else f"from 1 to {most}, or replacement=True"
            raise ValueError(f"num_samples is {self.num_samples}; it must be {allowed}")

    def _what(self) -> str:
        drawn = "" if self.num_samples == self.num_items else f"{self.num_samples} of "
        return f"{drawn}{counted(self.num_items, 'item')}{', with replacement' if self.replacement else ''}"

    def order(self, seed: int, epoch: int) -> np.ndarray[Any, Any]:
        """The indices of an epoch, int64: a function of both arguments."""
        generator = generator_for(seed, epoch, "sampler")
        if self.replacement:
            return torch.randint(self.num_items, (self.num_samples,), generator=generator).numpy()
        return torch.randperm(self.num_items, generator=generator)[: self.num_samples].numpy()

    def ordered(self, seed: int, epoch: int) -> np.ndarray[Any, Any]:
        """The same; a seed of its own stays in charge."""
        return self.order(seed if self.seed is None else self.seed, epoch)

    def fingerprint(self) -> dict[str, int]:
        """What must be the same for a position in an epoch to mean the same."""
        return {"items": self.num_items, "samples": self.num_samples}

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        self._note_walk(True)
        return iter(self.ordered(self.own_seed(), self.epoch).tolist())


class ReproducibleWeightedRandomSampler(ReproducibleRandomSampler):
    """Items drawn with probabilities that are proportional to their weights.

    Args:
        weights: one an item, not negative, of any sum.
        num_samples: how many an epoch has.
        replacement: whether an item may come more than once. Without, the weights are those of the first draw; later
            ones are among what is left (Efraimidis and Spirakis 2006).
        seed: None: that of the run.
        epoch: which one comes next, counted from 0.

    Raises:
        ValueError: for weights that are negative, not finite or all zero.

    >>> sampler = ReproducibleWeightedRandomSampler([0.0, 1.0, 0.0], num_samples=3)
    >>> list(sampler)
    [1, 1, 1]
    """

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        seed: int | None = None,
        epoch: int = 0,
    ) -> None:
        self.weights = torch.as_tensor(weights, dtype=torch.float64)
        if self.weights.shape == (0,):
            raise ValueError("there are no weights: the data set is empty, and there is nothing to draw")
        if (
            self.weights.dim() != 1
            or not bool((self.weights >= 0).all())
            or not 0 < float(self.weights.sum()) < np.inf
        ):
            raise ValueError(
                "weights must be a list of numbers, one an item, none negative and not all of them zero"
            )
        super().__init__(self.weights, seed, epoch, replacement, num_samples)
        num_possible = int((self.weights > 0).sum())
        if not replacement and num_samples > num_possible:
            raise ValueError(
                f"num_samples is {num_samples}, and {counted(num_possible, 'item has', 'items have')} a weight: "
                "each can be drawn once. Draw "
                "fewer, or with replacement=True"
            )

    def order(self, seed: int, epoch: int) -> np.ndarray[Any, Any]:
        generator = generator_for(seed, epoch, "sampler")
        if self.replacement:
            sums = self.weights.cumsum(0)
            drawn = torch.rand(self.num_samples, generator=generator, dtype=torch.float64) * sums[-1]
            # right: an item without a weight is never met, also where 0.0 is drawn
            return torch.searchsorted(sums, drawn, right=True).clamp_(max=len(sums) - 1).numpy()
        waits = (
            torch.empty(self.num_items, dtype=torch.float64).exponential_(generator=generator) / self.weights
        )
        return waits.argsort(stable=True)[: self.num_samples].numpy()


class BalancingDataSampler(ReproducibleWeightedRandomSampler):
    """Items drawn so that each value of a key comes equally often: speakers, languages, labels.

    Args:
        dataset: a `DynamicItemDataset`, or a list of dicts.
        key: whose values are balanced.
        num_samples: how many an epoch has; None: as many as there are items.
        replacement: whether an item may come more than once; without, an epoch of all items cannot be balanced.
        seed: None: that of the run.
        epoch: which one comes next, counted from 0.

    >>> data = DynamicItemDataset({"a": {"spk": "x"}, "b": {"spk": "x"}, "c": {"spk": "y"}})
    >>> BalancingDataSampler(data, "spk").weights
    tensor([0.5000, 0.5000, 1.0000], dtype=torch.float64)
    """

    def __init__(
        self,
        dataset: Any,
        key: str,
        num_samples: int | None = None,
        replacement: bool = True,
        seed: int | None = None,
        epoch: int = 0,
    ) -> None:
        values = (
            dataset.values(key)
            if isinstance(dataset, DynamicItemDataset)
            else [item[key] for item in dataset]
        )
        values = [value.item() if hasattr(value, "item") else value for value in values]
        try:
            counts = Counter(values)
        except TypeError as error:
            kinds = sorted({type(value).__name__ for value in values})
            raise ValueError(
                f"the values of {key!r} are of the type {', '.join(kinds)}; they must be texts, numbers or tuples, "
                "which can be counted"
            ) from error
        self.key, self.num_values = key, len(counts)
        weights = [1.0 / counts[value] for value in values]
        super().__init__(
            weights, len(weights) if num_samples is None else num_samples, replacement, seed, epoch
        )

    def _what(self) -> str:
        return f"{super()._what()}, {counted(self.num_values, 'value')} of {self.key!r} alike"
