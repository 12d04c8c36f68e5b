"""Sources: whatever the user hands to ``fit`` or ``evaluate``, as batches of any epoch from any position.

===========================================  ===========================================================================
given                                        read as
===========================================  ===========================================================================
list or tuple, no loader options             ready batches, in order (`ReadyBatches`)
Dataset, or a list with loader options       a DataLoader made by ``make_dataloader``, then as the next line
``DataLoader`` over a map-style dataset      rebuilt from its public attributes round an `EpochOrder` (`LoaderBatches`)
``DataLoader`` over an iterable dataset,     used as it is; a position is reached by reading on (`IterableBatches`)
subclass of ``DataLoader``, other iterable
===========================================  ===========================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from brainlib.common.counted import counted
from brainlib.common.logs import logger
from brainlib.data.order import PlannedOrder, drawn_apart, order_of
from brainlib.data.randomness import SeededCollate, SeededDataset, kept_apart
from brainlib.data.share import ALL, Share
from brainlib.data.stacking import does_batch, explained
from brainlib.data.workers import WorkerInit, check_workers, workers_start
from brainlib.seeding import derive

__all__ = ["BatchSource", "Lookahead", "check_set", "is_ready", "only_one_is_batched", "source_of"]


class BatchSource:
    """A stage's batches. The base class is the simple case: a sequence of ready batches.

    >>> source = BatchSource(["a", "b", "c"], name="train_set")
    >>> source.num_batches, list(source.read(seed=0, epoch=0, start=1))
    (3, ['b', 'c'])
    """

    num_batches: int | None  # of the epoch that was read last; None: not known
    num_workers = 0  # processes that read

    def __init__(self, batches: Sequence[Any], name: str) -> None:
        self.name = name
        self._batches = batches
        self.num_batches = len(batches)

    is_dealt = False  # whether what it is made of gives each rank its own already

    def read(self, seed: int, epoch: int, start: int = 0, share: Share = ALL) -> Iterator[Any]:
        """The batches of epoch number `epoch` (counted from 0) from batch `start` on; `seed` decides a shuffled order.

        Of these, the ones in `share`; `start` counts those of all ranks.
        """
        return share.deal(islice(self._batches, start, None))

    def abandon(self) -> None:
        """What is being read is not needed any more, nor what was read ahead: do not wait for it."""

    def fingerprint(self) -> dict[str, int]:
        """What a resume inside an epoch must find unchanged for its position to mean the same."""
        return {"batches": len(self._batches)}

    def empty_message(self, epoch: int) -> str:
        """What to tell who gave a source without batches."""
        return f"{self.name} is empty: it holds no batch. Give at least one, or None where a set is optional."


class IterableBatches(BatchSource):
    """Any iterable: a position is reached by reading the batches before it and throwing them away."""

    def __init__(self, batches: Iterable[Any], name: str) -> None:
        self.name = name
        self._iterable = batches
        self.num_batches = None
        self.num_workers = batches.num_workers if isinstance(batches, DataLoader) else 0

    def read(self, seed: int, epoch: int, start: int = 0, share: Share = ALL) -> Iterator[Any]:
        if hasattr(self._iterable, "set_epoch"):
            self._iterable.set_epoch(epoch)
        # Drawn apart one by one: what it draws is a function of (seed, epoch), and what training draws does not move.
        batches = drawn_apart(self._iterable, derive(seed, epoch, "iterable"), chunk_size=1)
        if start:
            logger.info(
                "%s cannot be entered in the middle: reading %s to get there",
                self.name,
                counted(start, "batch", "batches"),
            )
        return share.deal(islice(batches, start, None))

    def fingerprint(self) -> dict[str, int]:
        return {}

    def empty_message(self, epoch: int) -> str:
        if epoch > 0 and iter(self._iterable) is self._iterable:
            return (
                f"{self.name} is an iterator that was used up in the first epoch: epoch number {epoch + 1} "
                f"of this fit got no "
                "batch. Give something that can be iterated again: a list, a Dataset, a DataLoader, or an object whose "
                "__iter__ starts anew."
            )
        return super().empty_message(epoch)


class LoaderBatches(BatchSource):
    """A DataLoader over a map-style dataset, rebuilt so that its order is a function of (seed, epoch)."""

    def __init__(self, loader: DataLoader[Any], name: str) -> None:
        self.name = name
        self._order = order_of(loader)
        self._generator = (
            torch.Generator()
        )  # the workers' base seed: never drawn from the training's own stream
        self._num_items = len(loader.dataset) if hasattr(loader.dataset, "__len__") else None
        self._batch_size = loader.batch_size
        self.num_batches = self._order.num_batches
        self.is_dealt = self._order.is_dealt
        options: dict[str, Any] = {
            option: getattr(loader, option)
            for option in (
                "num_workers",
                "pin_memory",
                "timeout",
                "multiprocessing_context",
                "persistent_workers",
                "prefetch_factor",
                "in_order",
            )
        }
        if loader.num_workers > 0:
            options["worker_init_fn"] = WorkerInit(loader.worker_init_fn)
        if loader.batch_sampler is None:
            options |= {"batch_size": None, "sampler": self._order}
        else:
            options |= {"batch_sampler": self._order}
        self.num_workers = loader.num_workers
        check_workers(loader)
        self._reading: Iterator[Any] | None = None
        self._loader: DataLoader[Any] = DataLoader(
            SeededDataset(loader.dataset),
            generator=self._generator,
            collate_fn=SeededCollate(explained(loader.collate_fn)),
            **options,
        )

    def read(self, seed: int, epoch: int, start: int = 0, share: Share = ALL) -> Iterator[Any]:
        self._order.seed, self._order.epoch, self._order.start = seed, epoch, start
        self._order.share = share
        self.num_batches = self._order.num_batches
        if self.is_dealt:
            self._order.start, self._order.share = start // share.size, ALL
        self._generator.manual_seed(derive(seed, epoch, "workers"))
        with workers_start(self._loader.multiprocessing_context):
            batches = self._reading = iter(self._loader)
        return batches if self.num_workers else kept_apart(batches)

    def abandon(self) -> None:
        # torch waits up to five seconds for each worker to end its item, and knows no other way. The thread that pins
        # memory has to end before them: it would wait for a worker that died while it wrote.
        batches, self._reading = self._reading, None
        if not self._loader.pin_memory:
            for worker in getattr(batches, "_workers", ()):
                worker.terminate()
        shut_down = getattr(batches, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()

    def fingerprint(self) -> dict[str, int]:
        known = {}
        if self._num_items is not None:
            known["items"] = self._num_items
        if self._batch_size is not None:
            known["batch_size"] = self._batch_size
        if isinstance(self._order, PlannedOrder):
            return known | self._order.fingerprint()
        if self.num_batches is not None:
            known["batches"] = self.num_batches
        return known

    def empty_message(self, epoch: int) -> str:
        items = "items of unknown number" if self._num_items is None else counted(self._num_items, "item")
        return (
            f"{self.name} is empty: a loader over {items} with "
            f"batch_size={self._batch_size} gave no batch. "
            "With drop_last=True fewer items than one batch are none."
        )


class Lookahead:
    """An iterator that can tell whether the batch in hand is the last one, by reading one ahead when asked.

    >>> batches = Lookahead(iter("ab"))
    >>> [(batch, batches.is_last()) for batch in batches]
    [('a', False), ('b', True)]
    """

    _NOTHING = object()

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        self._ahead: Any = self._NOTHING

    def __iter__(self) -> Lookahead:
        return self

    def __next__(self) -> Any:
        if self._ahead is not self._NOTHING:
            batch, self._ahead = self._ahead, self._NOTHING
            return batch
        return next(self._iterator)

    def is_last(self) -> bool:
        """Whether no batch follows."""
        if self._ahead is self._NOTHING:
            self._ahead = next(self._iterator, self._NOTHING)
        return self._ahead is self._NOTHING


def is_ready(data: Any, loader_kwargs: Mapping[str, Any] | None) -> bool:
    """Whether `data` is batches already, rather than a dataset of items that a loader has to batch."""
    if isinstance(data, DataLoader):
        return True
    if isinstance(data, Dataset) or loader_kwargs:
        return False
    if isinstance(data, (list, tuple)):
        return True
    return not (hasattr(data, "__getitem__") and hasattr(data, "__len__"))


def only_one_is_batched(train: Any, train_kwargs: Any, valid: Any, valid_kwargs: Any) -> str | None:
    """What to warn of where two lists hold the same kind of thing, and one is read as items, the other as batches.

    A batch has one dimension more than an item, or is another kind of thing, so only one of the two can be right.

    Args:
        train: what was given as train_set.
        train_kwargs: the loader options for it, if any.
        valid: what was given as valid_set.
        valid_kwargs: the loader options for it, if any.

    >>> item = {"x": torch.zeros(3)}
    >>> only_one_is_batched([item], {"batch_size": 2}, [item], None)
    'valid_set is a list of the same kind of things as train_set, and has no loader options: ...'
    >>> only_one_is_batched([item], {"batch_size": 2}, [{"x": torch.zeros(1, 3)}], None) is None
    True
    """
    both = all(isinstance(each, (list, tuple)) and each for each in (train, valid))
    batched, valid_batched = (bool(each) and does_batch(each) for each in (train_kwargs, valid_kwargs))
    if not both or batched == valid_batched or _kind(train[0]) != _kind(valid[0]):
        return None
    bare, other = ("valid_set", "train_set") if batched else ("train_set", "valid_set")
    return (
        f"{bare} is a list of the same kind of things as {other}, and has no loader options: each of them is taken for "
        f"a batch, and not for an item. If they are items, give {bare.replace('_set', '_loader_kwargs')}, such as "
        '{"batch_size": 16}.'
    )


def _kind(value: Any) -> Any:
    """What tells an item from a batch: types, keys and numbers of dimensions."""
    if isinstance(value, Mapping):
        return type(value), {key: _kind(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return type(value), [_kind(each) for each in value]
    if isinstance(value, list):
        return list, _kind(value[0]) if value else None
    return type(value), getattr(value, "ndim", None)


def check_set(data: Any, name: str) -> None:
    """Refuse what is neither a dataset nor batches.

    >>> check_set({"input": 1}, "train_set")
    Traceback (most recent call last):
    ...
    TypeError: train_set is a dict; it must be a Dataset, a DataLoader, or a list or other iterable of batches. ...
    """
    readable = hasattr(data, "__iter__") or hasattr(data, "__getitem__")
    if isinstance(data, (str, bytes, Mapping)) or not readable:
        raise TypeError(
            f"{name} is a {type(data).__name__}; it must be a Dataset, a DataLoader, or a list or other iterable of "
            "batches. One batch alone goes into a list: [batch]."
        )


def source_of(data: Any, name: str) -> BatchSource:
    """The source for ready batches or a loader; see the module's table.

    Raises:
        ValueError: For an empty sequence or a loader over an empty dataset.
        TypeError: For what is neither: a dict, a string, a number.
    """
    source: BatchSource
    if isinstance(data, DataLoader):
        rebuilt = type(data) is DataLoader or getattr(data, "keeps_position", False)
        plain = rebuilt and not isinstance(data.dataset, IterableDataset)
        source = LoaderBatches(data, name) if plain else IterableBatches(data, name)
    elif isinstance(data, Sequence):
        source = BatchSource(data, name)
    else:
        source = IterableBatches(data, name)
    if source.num_batches == 0:
        raise ValueError(source.empty_message(0))
    return source
