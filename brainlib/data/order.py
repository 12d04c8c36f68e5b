"""The order of an epoch: a function of (seed, epoch), which can be entered at any batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from brainlib.common.unbroken import unbroken
from brainlib.data.plan import BatchPlan, PlannedBatchSampler
from brainlib.data.randomness import Place
from brainlib.data.samplers import ReproducibleRandomSampler
from brainlib.data.share import ALL
from brainlib.seeding import derive, note_generators, seed_generators

__all__ = ["EpochOrder", "PlainOrder", "PlannedOrder", "drawn_apart", "order_of"]

_CHUNK = 64  # batches drawn at once from a user's sampler: the generators are exchanged once a chunk


class EpochOrder(Sampler[Any]):
    """What a loader iterates for its indices: set `seed`, `epoch` and `start`, then iterate from batch `start` on.

    This base class walks any sampler, of batches, or of items where a loader does not batch. The sampler is told the
    epoch if it has ``set_epoch``. Its random draws come from streams derived from (seed, epoch), a generator of its own
    included, so that they neither depend on what the training drew before nor move it. Batches before `start` are
    skipped as lists of indices: no item is read for them.
    """

    num_batches: int | None = None  # of the epoch that is set, where it can be relied on

    def __init__(self, sampler: Iterable[Any]) -> None:
        self.sampler = sampler
        self.batched = True  # whether an element is a list of indices, or one
        self.seed = 0
        self.epoch = 0
        self.start = 0  # batches of all ranks before it
        self.share = ALL
        self._samplers = [each for each in (sampler, getattr(sampler, "sampler", None)) if each is not None]
        held = [value for each in self._samplers for value in getattr(each, "__dict__", {}).values()]
        self._torch_generators = [(g, g.initial_seed()) for g in held if isinstance(g, torch.Generator)]
        self._other_generators = [
            g for g in held if isinstance(g, (random.Random, np.random.Generator, np.random.RandomState))
        ]

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]  # a sampler without a length raises its own TypeError

    def __iter__(self) -> Iterator[Any]:
        """The elements from `start` on that are this rank's, each index with its `Place` in the epoch."""
        return self.share.deal(self._placed())

    def _placed(self) -> Iterator[Any]:
        key, position = derive(self.seed, self.epoch, "items"), 0
        for number, element in enumerate(self.indices()):
            size = len(element) if self.batched else 1
            if number >= self.start:
                if self.batched:
                    yield [Place(index, key, position + i) for i, index in enumerate(element)]
                else:
                    yield Place(element, key, position)
            position += size

    @property
    def is_dealt(self) -> bool:
        """Whether the sampler itself gives each rank its own, so that nothing is left to deal."""
        return any(isinstance(each, DistributedSampler) for each in self._samplers)

    def indices(self) -> Iterator[Any]:
        """What the sampler gives in this epoch, from its beginning."""
        for sampler in self._samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(self.epoch)
        for (
            generator,
            seed,
        ) in self._torch_generators:  # the user's seed stays in charge of the user's generator
            generator.manual_seed(derive(seed, self.epoch))
        for each in self._other_generators:
            _seed_again(each, derive(self.seed, self.epoch, "sampler"))
        return drawn_apart(self.sampler, derive(self.seed, self.epoch, "order"))


class PlainOrder(EpochOrder):
    """The order of a plain loader: as it stands or shuffled, cut into batches; entered at any batch at once.

    >>> order = PlainOrder(5, batch_size=2, shuffle=False, drop_last=False)
    >>> order.num_batches, list(order.indices())
    (3, [[0, 1], [2, 3], [4]])
    >>> order.start = 2; [[(place.index, place.position) for place in batch] for batch in order]
    [[(4, 4)]]
    """

    def __init__(
        self, num_items: int, batch_size: int, shuffle: bool, drop_last: bool, own_seed: int | None = None
    ) -> None:
        super().__init__(())
        self.num_items, self.batch_size, self.shuffle = num_items, batch_size, shuffle
        self.own_seed = (
            own_seed  # of a generator that the user gave the loader: it stays in charge of the order
        )
        self.num_batches = num_items // batch_size if drop_last else -(-num_items // batch_size)

    def __len__(self) -> int:
        assert self.num_batches is not None
        return self.num_batches

    def _placed(self) -> Iterator[list[Place]]:
        key, size = derive(self.seed, self.epoch, "items"), self.batch_size
        for number, batch in enumerate(self.indices(self.start), self.start):
            yield [Place(index, key, number * size + i) for i, index in enumerate(batch)]

    def indices(self, start: int = 0) -> Iterator[list[int]]:
        size = self.batch_size
        if not self.shuffle:
            for k in range(start, len(self)):
                yield list(range(k * size, min((k + 1) * size, self.num_items)))
            return
        seed = self.seed if self.own_seed is None else self.own_seed
        generator = torch.Generator().manual_seed(derive(seed, self.epoch, "order"))
        permutation = torch.randperm(self.num_items, generator=generator)
        for k in range(start, len(self)):
            yield permutation[k * size : (k + 1) * size].tolist()


class PlannedOrder(EpochOrder):
    """The order of a sampler of ours, which decides all batches of an epoch at once; entered at any batch at once.

    >>> order = PlannedOrder(PlannedBatchSampler([[4, 2], [0], [1, 3]]))
    >>> order.start = 1; [[(place.index, place.position) for place in batch] for batch in order]
    [[(0, 2)], [(1, 3), (3, 4)]]
    """

    def __init__(
        self,
        sampler: PlannedBatchSampler | ReproducibleRandomSampler,
        batch_size: int | None = None,
        drop_last: bool = False,
    ) -> None:
        """Of batches, or of items that are cut into batches; ``batch_size=None``: a loader that does not batch."""
        super().__init__(sampler)
        self.planned, self.batch_size, self.drop_last = sampler, batch_size, drop_last
        self.batched = batch_size is not None or isinstance(sampler, PlannedBatchSampler)

    @property
    def num_batches(self) -> int:  # type: ignore[override]  # it may differ from epoch to epoch
        return len(self._plan())

    def __len__(self) -> int:
        return self.num_batches

    def _plan(self) -> BatchPlan:
        self.planned.set_epoch(self.epoch)
        if isinstance(self.planned, PlannedBatchSampler):
            return self.planned.planned(self.seed, self.epoch)
        return BatchPlan.cut(
            self.planned.ordered(self.seed, self.epoch), self.batch_size or 1, self.drop_last
        )

    def _placed(self) -> Iterator[Any]:
        plan, key = self._plan(), derive(self.seed, self.epoch, "items")
        for number in range(self.start, len(plan)):
            first = int(plan.starts[number])
            places = [Place(index, key, first + i) for i, index in enumerate(plan.batch(number))]
            yield places if self.batched else places[0]

    def indices(self) -> Iterator[Any]:
        plan = self._plan()
        for number in range(len(plan)):
            batch = plan.batch(number)
            yield batch if self.batched else batch[0]

    def fingerprint(self) -> dict[str, int]:
        """What must be the same for a position in an epoch to mean the same."""
        return self.planned.fingerprint()


def order_of(loader: DataLoader[Any]) -> EpochOrder:
    """The order that a loader over a map-style dataset asks for, from its public attributes."""
    batches = loader.batch_sampler
    if batches is None:
        if isinstance(loader.sampler, ReproducibleRandomSampler):
            return PlannedOrder(loader.sampler)
        order = EpochOrder(loader.sampler)
        order.batched = False
        return order
    if isinstance(batches, PlannedBatchSampler):
        return PlannedOrder(batches)
    sampler = getattr(batches, "sampler", None)
    if type(batches) is BatchSampler:
        if isinstance(sampler, ReproducibleRandomSampler):
            return PlannedOrder(sampler, batches.batch_size, batches.drop_last)
        num_items = len(loader.dataset)  # type: ignore[arg-type]  # map-style, as the caller has checked
        if type(sampler) is SequentialSampler:
            return PlainOrder(num_items, batches.batch_size, False, batches.drop_last)
        if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == num_items:
            own_seed = None if sampler.generator is None else sampler.generator.initial_seed()
            return PlainOrder(num_items, batches.batch_size, True, batches.drop_last, own_seed)
    return EpochOrder(batches)


def _seed_again(generator: random.Random | np.random.Generator | np.random.RandomState, seed: int) -> None:
    """Python's and numpy's generators do not tell their seed: theirs is derived from the run's."""
    if isinstance(generator, random.Random):
        generator.seed(seed)
    elif isinstance(generator, np.random.RandomState):
        generator.seed([seed & 0xFFFFFFFF, seed >> 32])
    else:
        generator.bit_generator.state = type(generator.bit_generator)(seed).state


def drawn_apart(sampler: Iterable[Any], seed: int, chunk_size: int = _CHUNK) -> Iterator[Any]:
    """The items of `sampler`, drawn while the process-wide generators stand in a stream of their own."""
    iterator: Iterator[Any] | None = None
    inside: Callable[[], None] | None = None  # puts the generators into that stream
    while True:
        unbroken.inside = True
        put_back = note_generators()
        try:
            if inside is None:
                seed_generators(seed)
            else:
                inside()
            unbroken.leave()
            if iterator is None:
                iterator = iter(sampler)
            chunk = list(islice(iterator, chunk_size))
            unbroken.inside = True
            inside = note_generators()
        finally:
            unbroken.inside = True
            put_back()
            unbroken.leave()
        yield from chunk
        if len(chunk) < chunk_size:
            return
