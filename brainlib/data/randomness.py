"""What an item draws: a function of (seed, epoch, position in the epoch), whatever the worker and the history.

A dataset that augments draws from the process-wide generators of Python, numpy and torch. Left alone, what it
gets depends on which worker reads it and on what was read before, so that a resumed run sees other data. Here each
item is read with all three generators freshly seeded from its place, and each collate call from the place of its
batch. In the training process itself the generators are put back afterwards, and the fetch runs with one torch
thread, as a worker's does: sums over long waves differ in the last bit between one thread and two.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

from brainlib.seeding import preserved_generators

__all__ = ["Place", "SeededCollate", "SeededDataset", "kept_apart"]

_MASK = (1 << 64) - 1


class Place(NamedTuple):
    """Where an item stands: what the loader hands to the dataset in place of the bare index."""

    index: Any  # what the user's dataset is asked for
    key: int  # of the epoch, 64 bits
    position: int  # in the epoch's global order


def seed_at(key: int, position: int) -> None:
    """Seed the three process-wide generators from 64 bits of (key, position).

    SplitMix64 (Steele, Lea, Flood 2014) spreads neighbors; numpy is seeded with the array of both halves, because its
    32-bit seeds alone collide.
    """
    z = (key + 0x9E3779B97F4A7C15 * (position + 1)) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    z ^= z >> 31
    random.seed(z)
    np.random.seed([z & 0xFFFFFFFF, z >> 32])
    torch.default_generator.manual_seed(z >> 1)


class SeededDataset(Dataset[Any]):
    """The user's dataset, read item by item at a `Place`.

    >>> class Noise(Dataset):
    ...     def __getitem__(self, index):
    ...         return torch.rand(1).item()
    >>> items = SeededDataset(Noise())
    >>> items[Place(0, key=1, position=5)][0] == items[Place(7, key=1, position=5)][0]
    True
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        if hasattr(dataset, "__getitems__"):  # a dataset that reads a batch at once: seeded once a batch
            self.__getitems__ = self._get_items

    def __getitem__(self, place: Place) -> tuple[Any, Place]:
        seed_at(place.key, place.position)
        return self.dataset[place.index], place

    def _get_items(self, places: list[Place]) -> list[tuple[Any, Place]]:
        seed_at(places[0].key, places[0].position)
        items = self.dataset.__getitems__([place.index for place in places])
        return list(zip(items, places, strict=True))


class SeededCollate:
    """The user's collate function, seeded from the place of the batch's first item."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, read: Any) -> Any:
        if isinstance(read, tuple):  # a loader that does not batch
            items, place = read
        else:
            items, place = [item for item, _ in read], read[0][1]
        seed_at(place.key ^ _MASK, place.position)  # a stream of its own beside the items'
        return self.collate(items)


def kept_apart(batches: Iterator[Any]) -> Iterator[Any]:
    """`batches`, each fetched with one torch thread while the generators of this process are set aside."""
    threads = torch.get_num_threads()
    end = object()
    while True:
        with preserved_generators():
            torch.set_num_threads(1)
            try:
                batch = next(batches, end)
            finally:
                torch.set_num_threads(threads)
        if batch is end:
            return
        yield batch
