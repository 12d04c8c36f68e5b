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
from torch.utils.data import Dataset, Subset

from brainlib.common.unbroken import unbroken
from brainlib.seeding import note_generators

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
    32-bit seeds alone collide. torch's CPU generator takes 32 bits of a seed, whatever it is given: among 100,000 items
    about one pair gets the same torch draws.
    """
    z = (key + 0x9E3779B97F4A7C15 * (position + 1)) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    z ^= z >> 31
    random.seed(z)
    np.random.seed([z & 0xFFFFFFFF, z >> 32])
    torch.default_generator.manual_seed(z >> 1)


class Read(NamedTuple):
    """What was read, and where it stands: travels with the items to the collate function."""

    items: Any
    place: Place


class SeededDataset(Dataset[Any]):
    """The user's dataset, read item by item at a `Place`. Its attributes are the user's dataset's, to read and to set.

    >>> class Noise(Dataset):
    ...     def __getitem__(self, index):
    ...         return torch.rand(1).item()
    >>> items = SeededDataset(Noise())
    >>> items[Place(0, key=1, position=5)].items == items[Place(7, key=1, position=5)].items
    True
    """

    def __init__(self, dataset: Any) -> None:
        object.__setattr__(self, "_dataset", dataset)
        if _reads_batches(dataset):
            object.__setattr__(self, "__getitems__", self._get_items)

    def __getitem__(self, place: Place) -> Read:
        seed_at(place.key, place.position)
        return Read(self._dataset[place.index], place)

    def _get_items(self, places: list[Place]) -> Read:
        """A dataset that reads a batch at once: seeded once a batch."""
        seed_at(places[0].key, places[0].position)
        return Read(self._dataset.__getitems__([place.index for place in places]), places[0])

    def __getattr__(
        self, name: str
    ) -> Any:  # a worker_init_fn finds the user's dataset under get_worker_info()
        if name in ("_dataset", "__getitems__"):
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

    def __getstate__(self) -> Any:
        return self._dataset

    def __setstate__(self, state: Any) -> None:
        SeededDataset.__init__(self, state)


def _reads_batches(dataset: Any) -> bool:
    """Whether the dataset itself reads batches; a Subset only hands on what the dataset below it does."""
    while isinstance(dataset, Subset) and type(dataset).__getitems__ is Subset.__getitems__:
        dataset = dataset.dataset
    return hasattr(dataset, "__getitems__")


class SeededCollate:
    """The user's collate function, seeded from the place of the batch's first item."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, read: Any) -> Any:
        if isinstance(read, Read):  # a loader that does not batch, or a dataset that does
            items, place = read
        else:
            items, place = [each.items for each in read], read[0].place
        seed_at(place.key ^ _MASK, place.position)  # a stream of its own beside the items'
        return self.collate(items)


def kept_apart(batches: Iterator[Any]) -> Iterator[Any]:
    """`batches`, each fetched with one torch thread while the generators of this process are set aside."""
    threads = torch.get_num_threads()
    end = object()
    while True:
        unbroken.inside = True
        put_back = note_generators()
        torch.set_num_threads(1)
        try:
            unbroken.leave()
            batch = next(batches, end)
        finally:
            unbroken.inside = True
            torch.set_num_threads(threads)
            put_back()
            unbroken.leave()
        if batch is end:
            return
        yield batch
