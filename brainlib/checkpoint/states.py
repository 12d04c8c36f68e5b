"""What a state may hold, and how it becomes a file that the safe loader reads back.

A state is what `state_dict()` returned. It is refused before a byte is written when it holds something that
``torch.load(weights_only=True)`` would not give back: better at the first save than at the resume after a night.
States without tensors are JSON, so that people can read them; all others are ``torch.save`` files.
"""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections import Counter, OrderedDict
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from brainlib.checkpoint.archives import check_archive
from brainlib.checkpoint.errors import CheckpointError
from brainlib.common.background import hurried
from brainlib.common.files import CHUNK_BYTES, SummedFile

__all__ = [
    "Memory",
    "Own",
    "as_json",
    "clone",
    "read_state",
    "refuse_unreadable",
    "refuse_unsafe",
    "tidy",
    "write_torch",
]

# Exactly these types; a subclass may carry anything. (Seen to pass the safe loader of torch 2.14.)
SAFE_LEAVES = frozenset(
    {type(None), bool, int, float, complex, str, bytes, bytearray, torch.Size, torch.dtype, torch.device}
)
SAFE_HOLDERS = frozenset({dict, OrderedDict, Counter, list, tuple, set})
PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})

HINTS = {
    "numpy": "numpy values: float(x), int(x), x.tolist() or torch.from_numpy(x)",
    "datetime": "times: x.isoformat() or x.timestamp()",
    "collections": "a deque or defaultdict: list(x) or dict(x)",
    "pathlib": "paths: str(x)",
    "builtins": "functions and classes are code, not state: leave them out; a frozenset or range: list(x)",
}


class Memory:
    """The memory of the large tensors of a state: what `write_torch` writes from elsewhere is gone when it returns.

    Args:
        state: What `tidy` returned, or a copy of it.

    >>> weight = torch.ones(1 << 20)
    >>> memory = Memory({"weight": weight, "bias": torch.ones(2), "steps": [3]})
    >>> memory(memoryview(weight.numpy()).cast("B")), memory(memoryview(bytes(4 << 20)))
    (True, False)
    """

    def __init__(self, state: Any) -> None:
        self.storages: dict[tuple[int, int], torch.UntypedStorage] = {}  # by address and number of bytes
        waiting = [state]
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict):
                waiting.extend(value.values())
            elif isinstance(value, (list, tuple, set)):
                waiting.extend(value)
            elif (
                type(value) in PLAIN_TENSORS and value.device.type == "cpu" and value.layout is torch.strided
            ):
                storage = value.untyped_storage()
                if storage.nbytes() > CHUNK_BYTES:  # smaller ones are copied on the way
                    self.storages[storage.data_ptr(), storage.nbytes()] = storage

    def __call__(self, piece: memoryview) -> bool:
        """Whether this is all of the memory of one of the tensors."""
        address = np.frombuffer(piece, np.uint8).__array_interface__["data"][0]
        return (address, len(piece)) in self.storages


class Own(dict[str, Any]):
    """A part of a state that we have made ourselves, of names and numbers that nobody changes: nothing to check.

    >>> tidy({"names": Own(first=["weight"])}, "recoverable 'optimizer'")
    ({'names': {'first': ['weight']}}, False)
    """


def tidy(state: Any, where: str, bare: bool = False) -> tuple[Any, bool]:
    """The state with ``numpy.float64`` as `float`: the same bits, and schedules leave them in a learning rate.

    Args:
        state: What `state_dict()` returned; it is left alone.
        where: How an error names the object, such as ``recoverable 'optimizer' (torch.optim.adam.Adam)``.
        bare: Whether a ``torch.nn.Parameter`` in it stands for its numbers alone.

    Returns:
        The same object where nothing had to change; and whether there is something in it that is not plainly safe to
        read back, though a trial says that it is.

    Raises:
        CheckpointError: Something in the state could not be read back; the message names its place and class.

    >>> import numpy
    >>> tidy({"lr": numpy.float64(0.5)}, "recoverable 'schedule'")
    ({'lr': 0.5}, False)
    >>> tidy({"seen": [range(3)]}, "recoverable 'schedule'")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    brainlib.checkpoint.errors.CheckpointError: recoverable 'schedule': state['seen'][0] is a builtins.range, ...
    """
    odd: list[Any] = []
    return _tidy(state, where, "state", set(), odd, bare), bool(odd)


def _tidy(value: Any, where: str, place: str, above: set[int], odd: list[Any], bare: bool) -> Any:
    kind = type(value)
    if kind in SAFE_LEAVES:
        return value
    if kind in PLAIN_TENSORS:
        # Attributes that somebody set on a tensor are pickled with it.
        if value.layout is not torch.strided or value.is_quantized or getattr(value, "__dict__", None):
            refuse_unreadable(value, f"{where}: {place}")
            odd.append(value)
        return value.detach() if bare and kind is torch.nn.Parameter else value
    if kind is Own:
        return dict(value)
    if kind not in SAFE_HOLDERS:
        readable = refuse_unreadable(value, f"{where}: {place}")
        if readable is value:
            odd.append(value)
        return readable
    if id(value) in above:
        raise CheckpointError(
            f"{where}: {place} contains itself; a state is a tree of numbers, strings and tensors"
        )
    above.add(id(value))
    tidied: Any = value
    if isinstance(value, dict):
        for key, item in value.items():
            if type(key) not in SAFE_LEAVES:
                _tidy(key, where, f"the key {key!r} of {place}", above, odd, bare)
            new = _tidy(item, where, f"{place}[{key!r}]", above, odd, bare)
            if new is not item:
                if tidied is value:
                    tidied = copy.copy(value)  # keeps the class and, on an OrderedDict, the attributes
                tidied[key] = new
    else:
        items = list(value)
        new_items = [_tidy(item, where, f"{place}[{i}]", above, odd, bare) for i, item in enumerate(items)]
        if any(new is not item for new, item in zip(new_items, items, strict=True)):
            tidied = kind(new_items)
    above.discard(id(value))
    return tidied


def refuse_unreadable(value: Any, place: str = "something") -> Any:
    """A value of a type that is not known to be safe is saved and read back by itself.

    Args:
        value: Of any type.
        place: How an error names it, such as ``recoverable 'schedule': state['seen']``.

    Returns:
        The value; a ``numpy.float64`` as `float`.

    Raises:
        CheckpointError: The safe loader would not read it back.

    >>> refuse_unreadable(np.float64(0.5))
    0.5
    """
    if type(value) is np.float64:
        return float(value)
    buffer = BytesIO()
    try:
        torch.save(value, buffer)
        buffer.seek(0)
        torch.load(buffer, map_location="cpu", weights_only=True)
    except (
        pickle.PickleError,
        AttributeError,
        TypeError,
        RuntimeError,
        ValueError,
        RecursionError,
        ImportError,
    ) as error:
        kind = type(value)
        hint = HINTS.get(kind.__module__.partition(".")[0])
        raise CheckpointError(
            f"{place} is a {kind.__module__}.{kind.__qualname__}, which the safe loader "
            "(torch.load(weights_only=True)) would not read back, so it is not saved. Let state_dict() return numbers, "
            "strings, lists, dicts and tensors"
            + (f" ({hint})" if hint else "")
            + ", or give the object its own hooks with custom_save_hook and custom_load_hook"
        ) from error
    return value


def as_json(state: Any) -> bytes | None:
    """The state as JSON when JSON gives back exactly the same, types included; else None.

    >>> as_json({"current": 3})
    b'{"current": 3}'
    >>> as_json({"betas": (0.9, 0.98)}) is None  # a tuple would come back as a list
    True
    """
    return json.dumps(state).encode() if _json_exact(state) else None


def _json_exact(value: Any) -> bool:
    kind = type(value)
    if value is None or kind in (bool, int):
        return True
    if kind is str:  # JSON joins the halves of a surrogate pair
        return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)
    if kind is float:
        return math.isfinite(value)
    if kind is list:
        return all(_json_exact(item) for item in value)
    return kind is dict and all(
        type(k) is str and _json_exact(k) and _json_exact(v) for k, v in value.items()
    )


def write_torch(state: Any, file: SummedFile, pace: Callable[[], None] = hurried) -> None:
    """Writes the state with ``torch.save``, every byte through our own file.

    Args:
        state: What `tidy` returned, or a copy of it.
        file: Takes the bytes.
        pace: Is called between objects: pickling many small tensors is all Python, see `background.Pace`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with SummedFile(Path(folder, "a.pt")) as file:
    ...         write_torch({"weight": torch.ones(2)}, file)
    ...     read_state(file.path)
    {'weight': tensor([1., 1.])}
    """

    class Pickler(pickle.Pickler):
        """Pauses between two objects."""

        def reducer_override(self, obj: object) -> Any:
            pace()
            return NotImplemented

    module = pickle if pace is hurried else SimpleNamespace(__name__="pickle", Pickler=Pickler)
    try:
        torch.save(state, file, pickle_module=module)  # type: ignore[arg-type]  # needs write and flush of a file
    except RuntimeError as error:
        first = error.__context__  # torch makes an error about positions of a Ctrl-C, see `SummedFile`
        while first is not None and isinstance(first, Exception):
            first = first.__context__
        if first is not None:
            raise first from None
        raise


def refuse_unsafe(path: Path, where: str) -> None:
    """The last word before a file counts: the bytes as they are name nothing that the safe loader refuses.

    Raises:
        CheckpointError: They do; `tidy` should have seen it, so this is for types that pickle in a way of their own.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"weight": torch.ones(2)}, f"{folder}/a.pt")
    ...     refuse_unsafe(Path(folder, "a.pt"), "recoverable 'a'")
    """
    unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    if unsafe:
        raise CheckpointError(
            f"{where}: its state needs {', '.join(sorted(unsafe))}, which the safe loader "
            "(torch.load(weights_only=True)) would not read back, so it is not saved"
        )


def read_state(path: Path) -> Any:
    """Reads a file that `as_json` or `write_torch` made, tensors on the CPU; never runs code from it.

    Raises:
        CheckpointError: The safe loader refuses what the file holds, or the file asks for more memory than it is large;
            the message says what.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.json").write_text('{"current": 3}')
    ...     read_state(Path(folder, "a.json"))
    {'current': 3}
    """
    if path.suffix == ".json":
        try:
            return json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} is no JSON that can be read ({error})") from error
    check_archive(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (
        pickle.UnpicklingError, RuntimeError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError,
        AssertionError, OverflowError,
    ) as error:  # fmt: skip  # a file that was made by hand fails in any of these
        reason = str(error).strip().splitlines()
        told = next(
            (line.strip() for line in reason if "GLOBAL" in line), reason[0] if reason else repr(error)
        )
        trusted = (
            " If you wrote it and trust it, allow its class with torch.serialization.add_safe_globals before loading"
            if "Unsupported global" in told
            else ""
        )
        raise CheckpointError(
            f"{path} cannot be read by the safe loader (torch.load(weights_only=True)): {told}{trusted}"
        ) from error


def clone(state: Any) -> Any:
    """A copy of a state that shares nothing with the live objects, its tensors on the CPU.

    >>> weight = torch.ones(2)
    >>> copied = clone({"weight": weight})
    >>> _ = weight.zero_()
    >>> copied
    {'weight': tensor([1., 1.])}
    """
    if isinstance(state, torch.Tensor):
        if torch.nn.parameter.is_lazy(state):  # a lazy parameter has no numbers yet
            return state
        held = state.detach()
        return held.to("cpu") if held.device.type != "cpu" else held.clone()
    kind = type(state)
    if kind is dict or kind is OrderedDict:
        copied = copy.copy(state)
        for key, item in state.items():
            copied[key] = clone(item)
        return copied
    if kind is list or kind is tuple:
        return kind(clone(item) for item in state)
    return state if kind in SAFE_LEAVES and kind is not bytearray else copy.deepcopy(state)
