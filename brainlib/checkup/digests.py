"""Digests: a few letters for the bits of a value, so that two runs can be compared in files."""

from __future__ import annotations

import enum
import hashlib
import itertools
import os
import random
from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Digests"]

_MOST_ITEMS = 5000  # of a container that are looked at
_LARGE = 1 << 22  # elements: of a larger tensor a sample is taken where a sample will do


class Digests:
    """Makes digests. Equal bits give equal digests; paths inside `folder` are told without it, so that runs in
    different folders can be compared.

    Args:
        folder: where the run writes.

    >>> digests = Digests("/tmp/a")
    >>> digests.of("/tmp/a/save") == Digests("/tmp/b").of("/tmp/b/save")
    True
    >>> digests.of(torch.ones(2)) == digests.of(torch.ones(2)), digests.of(1) == digests.of(1.0)
    (True, False)
    """

    def __init__(self, folder: str = "") -> None:
        self._folder = folder

    def of(self, value: Any, *, sampled: bool = False) -> str:
        """The digest of any value; `sampled`: of a very large tensor a sample is enough."""
        sha = hashlib.blake2b(digest_size=8)
        self._feed(sha, value, 0, sampled)
        return sha.hexdigest()

    def rows(self, tensor: Tensor) -> list[str]:
        """One digest for each entry of the first dimension.

        >>> len(set(Digests().rows(torch.tensor([[1, 2], [3, 4], [1, 2]]))))
        2
        """
        flat = bytes_of(tensor).reshape(tensor.shape[0], -1)
        return [hashlib.blake2b(row.tobytes(), digest_size=8).hexdigest() for row in flat]

    def text(self, value: object) -> str:
        """A string without the folder of the run in it."""
        return str(value).replace(self._folder, "<folder>") if self._folder else str(value)

    def _feed(self, sha: Any, value: Any, depth: int, sampled: bool) -> None:
        def put(*parts: object) -> None:
            sha.update(("\0".join(map(str, parts)) + "\1").encode(errors="surrogatepass"))

        kind = type(value).__name__
        if depth > 20:
            put("deep", kind)
        elif isinstance(value, Tensor):
            put("tensor", value.dtype, tuple(value.shape))
            sha.update(bytes_of(value, sampled))
        elif isinstance(value, np.ndarray):
            put("array", value.dtype, value.shape)
            if value.dtype.hasobject:
                self._feed(sha, value.ravel()[:_MOST_ITEMS].tolist(), depth + 1, sampled)
            else:
                sha.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
        elif isinstance(value, (str, os.PathLike)):
            put("text", self.text(value))
        elif value is None or isinstance(value, (bool, int, float, complex, bytes, np.generic, enum.Enum)):
            put(kind, repr(value))
        elif isinstance(value, (torch.dtype, torch.device, torch.Size, slice, range)):
            put(kind, repr(value))
        elif (state := generator_state(value)) is not None:
            put(kind)
            self._feed(sha, state, depth + 1, sampled)
        elif isinstance(value, Mapping):
            put(kind, len(value))
            for key, each in itertools.islice(value.items(), _MOST_ITEMS):
                self._feed(sha, key, depth + 1, sampled)
                self._feed(sha, each, depth + 1, sampled)
        elif isinstance(value, (list, tuple, Set)) or kind == "deque":
            put(kind, len(value))
            for each in itertools.islice(
                value, _MOST_ITEMS
            ):  # a set in its order: that is what a loop over it sees
                self._feed(sha, each, depth + 1, sampled)
        else:
            put("some", kind)


def generator_state(value: Any) -> Any:
    """The state of a random generator object; None for what is none.

    >>> generator_state(random.Random(1)) == generator_state(random.Random(1)), generator_state(1)
    (True, None)
    """
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else value.getstate()
    if isinstance(value, np.random.RandomState):
        return value.get_state(legacy=False)
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    return None


def bytes_of(tensor: Tensor, sampled: bool = False) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a tensor, wherever it is; those of a sample where that will do and it is very large.

    >>> bytes_of(torch.tensor([1], dtype=torch.int16))
    array([1, 0], dtype=uint8)
    """
    value = tensor.detach()
    if torch.nn.parameter.is_lazy(tensor) or value.device.type == "meta":
        return np.zeros(0, dtype=np.uint8)
    if value.layout != torch.strided:
        value = value.to_dense()
    if value.is_quantized:
        value = value.dequantize()
    if sampled and value.numel() > _LARGE:
        value = value.reshape(-1)[:: value.numel() // _LARGE + 1]
    value = value.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return value.view(torch.uint8).numpy() if value.numel() else np.zeros(0, dtype=np.uint8)
