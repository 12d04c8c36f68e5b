"""Seeds and generator states: every random stream of a run, set, derived, saved and put back in one place.

The *seed of a run* is the hparams key ``seed``. Everything that must not depend on history (the order of an epoch, the
seeds of loader workers) is derived from it with `derive`; everything that draws from a process-wide stream (dropout,
augmentation in the training process) is saved by `generator_states` and put back by `set_generator_states`, or, where
no file has to hold it, by `note_generators`.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from brainlib.global_numpy import numpy_state, set_numpy_state

__all__ = [
    "derive",
    "derived_states",
    "draw_seed",
    "generator_states",
    "last_seed",
    "note_generators",
    "preserved_generators",
    "seed_everything",
    "seed_generators",
    "set_generator_states",
]

_last_seed: int | None = None


def seed_everything(seed: int = 0) -> int:
    """Seed Python's, numpy's and torch's global generators, and remember the seed as the one of runs that name none.

    Args:
        seed: 0 ≤ seed < 2**63. numpy's global generator and torch's on the CPU take the low 32 bits of it.

    Returns:
        The seed, so that a YAML line can hold it: ``__set_seed: !apply:brainlib.seed_everything [!ref <seed>]``.

    Raises:
        ValueError: if the seed is no integer in that range. It is never replaced by another silently.

    Example:
        >>> seed_everything(1234)
        1234
        >>> a = torch.rand(2); _ = seed_everything(1234); torch.equal(a, torch.rand(2))
        True
    """
    global _last_seed
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= int(seed) < 2**63:
        raise ValueError(f"seed is {seed!r}; it must be an integer with 0 <= seed < 2**63")
    seed_generators(int(seed))
    _last_seed = int(seed)
    return _last_seed


def seed_generators(seed: int) -> None:
    """Seed the three global generators; what `seed_everything` does, without remembering the seed as the run's."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def last_seed() -> int | None:
    """The seed that `seed_everything` was last given in this process, or None."""
    return _last_seed


def draw_seed() -> int:
    """A fresh seed from the operating system; no generator of the run moves."""
    return int.from_bytes(os.urandom(8), "little") >> 1


def derive(*parts: int | str) -> int:
    """A 63-bit seed that is a function of its parts alone, such as (seed, epoch, position).

    64 bits of BLAKE2b, because 32-bit seeds collide: among 100,000 of them about one pair is equal.

    >>> derive(1, 2) == derive(1, 2), derive(1, 2) == derive(2, 1), derive(1, 23) == derive(12, 3)
    (True, False, False)
    """
    text = "\0".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator_states() -> dict[str, Any]:
    """The states of all process-wide generators as tensors, numbers and lists, so that the safe loader
    reads them back.
    """
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    states: dict[str, Any] = {
        "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
        "numpy": {
            "name": str(name),
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
        "torch": torch.get_rng_state(),
        "cuda": [],
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def set_generator_states(states: dict[str, Any]) -> None:
    """Put back what `generator_states` returned.

    CUDA states are put back as far as devices are at hand: a run that moves from two devices to one keeps the first.
    """
    python, numpy_ = states["python"], states["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    keys = numpy_["keys"].numpy().astype(np.uint32)
    np.random.set_state((numpy_["name"], keys, numpy_["position"], numpy_["has_gauss"], numpy_["cached"]))
    torch.set_rng_state(states["torch"])
    if torch.cuda.is_available():
        for index, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, index)


def derived_states(seed: int) -> dict[str, Any]:
    """The states that the generators have once they are seeded; the live ones stay as they are.

    >>> derived_states(3)["torch"].equal(derived_states(3)["torch"])
    True
    """
    with preserved_generators():
        seed_generators(seed)
        return generator_states()


def note_generators() -> Callable[[], None]:
    """Notes where the process-wide generators stand, for as long as this process lives; what it returns puts them back.

    It takes a fifth of the time of `generator_states`, whose form a file can hold.

    >>> put_back = note_generators(); a = torch.rand(1)
    >>> put_back(); torch.equal(a, torch.rand(1))
    True
    """
    python, numpy_, torch_ = random.getstate(), numpy_state(), torch.get_rng_state()
    cuda = []
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        cuda = torch.cuda.get_rng_state_all()

    def put_back() -> None:
        random.setstate(python)
        set_numpy_state(numpy_)
        torch.set_rng_state(torch_)
        for index, state in enumerate(cuda):
            torch.cuda.set_rng_state(state, index)

    return put_back


@contextmanager
def preserved_generators() -> Iterator[None]:
    """Whatever is drawn inside leaves every process-wide generator as it was.

    >>> _ = torch.manual_seed(0); a = torch.rand(1)
    >>> _ = torch.manual_seed(0)
    >>> with preserved_generators():
    ...     _ = torch.rand(100)
    >>> torch.equal(a, torch.rand(1))
    True
    """
    put_back = note_generators()
    try:
        yield
    finally:
        put_back()
