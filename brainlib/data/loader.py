"""Loaders: items read into batches, by workers if asked for, and a loader that knows where it stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, Subset

from brainlib.common.counted import counted
from brainlib.data.dataset import DynamicItemDataset
from brainlib.data.padded_batch import PaddedBatch
from brainlib.data.sources import BatchSource, IterableBatches, LoaderBatches
from brainlib.data.stacking import does_batch, stacked
from brainlib.seeding import last_seed

__all__ = ["SaveableDataLoader", "make_dataloader"]


def make_dataloader(dataset: Any, **options: Any) -> DataLoader[Any]:
    """A `DataLoader`; of a `DynamicItemDataset` it makes a `PaddedBatch` of the items, unless ``collate_fn`` is given.

    >>> data = DynamicItemDataset({"a": {"n": 1}, "b": {"n": 2}})
    >>> [batch.n for batch in make_dataloader(data, batch_size=2)]
    [tensor([1, 2])]
    """
    return DataLoader(dataset, **_with_collate(dataset, options))


def _with_collate(dataset: Any, options: dict[str, Any]) -> dict[str, Any]:
    inner = dataset
    while isinstance(inner, Subset):
        inner = inner.dataset
    if does_batch(options) and options.get("collate_fn") is None:
        return {**options, "collate_fn": PaddedBatch if isinstance(inner, DynamicItemDataset) else stacked}
    return options


def _told(dataset: Any) -> str:
    """What is loaded, in a word or two."""
    known = hasattr(type(dataset), "__len__")
    return (
        f"{counted(len(dataset), 'item')} of a {type(dataset).__name__}" if known else type(dataset).__name__
    )


class _Plainly:
    """A loader over a stream, iterated as torch does it."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return DataLoader.__iter__(self._loader)


class SaveableDataLoader(DataLoader[Any]):
    """A `DataLoader` that knows where it stands, for loops of your own; a Brain keeps the position of loaders itself.

    Its order, and what each item draws at random, are functions of (seed, epoch), as for a Brain, so that a loop that
    was cut goes on with the batches that would have come. Iterating it is one epoch; the next time it is the next one.
    Batches that were read ahead and not handed out do not count.

    Args:
        dataset: as for `DataLoader`. Of a `DynamicItemDataset` it makes a `PaddedBatch`, unless ``collate_fn`` is
            given. A stream (IterableDataset) is read from its beginning to get to a position.
        seed: None: that of `seed_everything`, else 0.
        options: those of `DataLoader`.

    >>> loader = SaveableDataLoader(range(6), batch_size=2, shuffle=True, seed=1)
    >>> whole = [batch.tolist() for batch in loader]
    >>> again = SaveableDataLoader(range(6), batch_size=2, shuffle=True, seed=1)
    >>> batches = iter(again); first = next(batches).tolist(); state = again.state_dict()
    >>> rest = SaveableDataLoader(range(6), batch_size=2, shuffle=True, seed=1)
    >>> rest.load_state_dict(state)
    >>> [first] + [batch.tolist() for batch in rest] == whole
    True
    """

    keeps_position = True  # a Brain may take its parts and read them in an order of its own

    def __init__(self, dataset: Any, *args: Any, seed: int | None = None, **options: Any) -> None:
        super().__init__(dataset, *args, **(options if args else _with_collate(dataset, options)))
        self._seed = seed
        self._epoch = self._position = 0
        self._source: BatchSource | None = None

    def __repr__(self) -> str:
        size = "batches of the sampler" if self.batch_size is None else f"{self.batch_size} a batch"
        workers = f", {counted(self.num_workers, 'worker')}" if self.num_workers else ""
        where = f"epoch {self._epoch}, batch {self._position}"
        return f"{type(self).__name__}({_told(self.dataset)}, {size}{workers}; stands at {where})"

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch, counted from 0, the next time it is iterated."""
        self._epoch, self._position = int(epoch), 0

    def __iter__(self) -> Any:
        return self._counted(self._opened().read(self._seed_now(), self._epoch, self._position))

    def _opened(self) -> BatchSource:
        if self._source is None:
            stream = isinstance(self.dataset, IterableDataset)
            self._source = (
                IterableBatches(_Plainly(self), "loader") if stream else LoaderBatches(self, "loader")
            )
        return self._source

    def _seed_now(self) -> int:
        return self._seed if self._seed is not None else last_seed() or 0

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self._position += 1
            yield batch
        self._epoch, self._position = self._epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: the epoch, how many batches of it were handed out, and what that leans on."""
        return {
            "epoch": self._epoch,
            "batches": self._position,
            "seed": self._seed_now(),
            "data": self._opened().fingerprint(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there the next time it is iterated.

        Raises:
            ValueError: for other data, another batch size, or a state that is none of its own.
        """
        wanted = {"epoch", "batches", "seed", "data"}
        if set(state) != wanted:
            raise ValueError(
                f"the state of a loader has the keys {sorted(wanted)}, and this one has {sorted(state)}"
            )
        data = self.state_dict()["data"]
        if state["batches"] and data != state["data"]:
            raise ValueError(
                f"the data changed in the middle of an epoch: the loader had {state['data']}, now it has {data}. Go on "
                "with the same data and batch size, or begin an epoch with set_epoch"
            )
        self._seed, self._epoch, self._position = state["seed"], state["epoch"], state["batches"]
