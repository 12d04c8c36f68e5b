"""What a state may hold: whatever is saved is read back, and what could not be is refused before a byte is written."""

from __future__ import annotations

import collections
import datetime
import enum
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from brainlib.checkpoint import Checkpointer as BackgroundCheckpointer
from brainlib.checkpoint import CheckpointError
from brainlib.checkpoint.states import Memory, as_json, clone, read_state, tidy, write_torch
from brainlib.common.files import CHUNK_BYTES, SummedFile, sha256_of
from tests.checkpoint.small import Foreground as Checkpointer


class Holder:
    """Gives back whatever state it was made with."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


class Color(enum.Enum):
    RED = 1


class MyDict(dict):  # type: ignore[type-arg]
    pass


def through_the_disk(folder: Path, state: Any) -> Any:
    Checkpointer(folder, {"holder": Holder(state)}).save_checkpoint()
    holder = Holder()
    Checkpointer(folder, {"holder": holder}).recover_if_possible()
    return holder.state


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b) or (a != a and b != b)


@pytest.mark.parametrize(
    "state",
    [
        {"a": 1, "b": [True, None, "x", 0.1, 1e-300, 10**30]},
        {"a": (1, 2)},
        {1: "int key"},
        {"nan": math.nan, "inf": -math.inf},
        {"set": {1, 2}},
        {"bytes": b"ab", "z": 1j},
        {"size": torch.Size([2, 3]), "dtype": torch.float16, "device": torch.device("cpu")},
        {},
        [],
        None,
        3,
        "word",
        {
            "deep": [
                {"t": torch.arange(3)},
                (torch.ones(2, dtype=torch.bfloat16), {"x": [torch.tensor(True)]}),
            ]
        },
        collections.OrderedDict(b=1, a=2),
        collections.Counter("abca"),
        {"sparse": torch.eye(2).to_sparse()},
        {"p": torch.nn.Parameter(torch.ones(2))},
        {"unicode": "größe \ud83d\ude00 \n"},
    ],
    ids=lambda state: str(state)[:30].replace("\n", " "),
)
@pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants")
def test_states_come_back_with_their_types(tmp_path: Path, state: Any) -> None:
    if isinstance(state, dict) and "sparse" in state:
        assert torch.equal(through_the_disk(tmp_path, state)["sparse"].to_dense(), torch.eye(2))
    else:
        assert same(through_the_disk(tmp_path, state), state)


def test_states_without_tensors_are_json_that_people_can_read(tmp_path: Path) -> None:
    holders = {
        "counter": Holder({"current": 3}),
        "weights": Holder({"w": torch.ones(1)}),
        "betas": Holder({"betas": (0.9, 0.98)}),
    }
    checkpoint = Checkpointer(tmp_path, holders).save_checkpoint()
    assert sorted(path.name for path in checkpoint.path.iterdir()) == [
        "betas.pt",
        "counter.json",
        "manifest.json",
        "weights.pt",
    ]
    assert (checkpoint.path / "counter.json").read_text() == '{"current": 3}'


@pytest.mark.parametrize(
    "state", [{"a": float("nan")}, {"a": (1,)}, {1: 2}, {"a": b""}, {"a": {1}}, collections.OrderedDict()]
)
def test_what_json_would_change_is_not_json(state: Any) -> None:
    assert as_json(state) is None


@pytest.mark.parametrize(
    ("value", "kind", "hint"),
    [
        (np.int64(1), "numpy.int64", "int(x)"),
        (np.ones(2), "numpy.ndarray", "torch.from_numpy(x)"),
        (np.float32(1), "numpy.float32", "float(x)"),
        (datetime.datetime(2020, 1, 1), "datetime.datetime", "x.isoformat()"),
        (collections.deque([1]), "collections.deque", "list(x)"),
        (collections.defaultdict(int), "collections.defaultdict", "dict(x)"),
        (Color.RED, "Color", "custom_save_hook"),
        (frozenset([1]), "frozenset", "list(x)"),
        (lambda: 1, "builtins.function", "leave them out"),
        (torch.nn.Linear(1, 1), "Linear", "custom_save_hook"),
        (range(3), "builtins.range", "list(x)"),
        (MyDict(a=1), "MyDict", "state_dict()"),
        (Path("a"), "Path", "str(x)"),
        (object(), "builtins.object", "custom_save_hook"),
        (open, "builtins.builtin_function_or_method", "leave them out"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_the_safe_loader_would_refuse_is_refused_at_save(
    tmp_path: Path, value: Any, kind: str, hint: str
) -> None:
    """In a dict, a list or a key: the place and the class are named, and nothing is written."""
    for state, place in (
        ({"a": [1, value]}, "state['a'][1]"),
        ([{"b": value}], "state[0]['b']"),
        (value, "state"),
    ):
        with pytest.raises(CheckpointError) as caught:
            Checkpointer(tmp_path / "save", {"fine": Holder(1), "mine": Holder(state)}).save_checkpoint()
        message = str(caught.value)
        assert f"recoverable 'mine' ({Holder.__module__}.Holder): {place} is a " in message
        assert kind in message
        assert hint in message
        assert not (tmp_path / "save").exists()


def test_an_unsafe_key_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"the key <Color.RED: 1> of state\['a'\] is a .*Color"):
        tidy({"a": {Color.RED: 1}}, "x")


def test_a_state_that_holds_itself_is_refused() -> None:
    state: dict[str, Any] = {"a": []}
    state["a"].append(state)
    with pytest.raises(CheckpointError, match=r"x: state\['a'\]\[0\] contains itself"):
        tidy(state, "x")


def test_the_same_object_twice_is_no_cycle_and_stays_shared(tmp_path: Path) -> None:
    tensor = torch.ones(100_000)
    state = {"a": [tensor], "b": tensor[:10]}
    back = through_the_disk(tmp_path, state)
    assert back["a"][0].data_ptr() == back["b"].data_ptr()


def test_float64_of_numpy_becomes_a_float_and_the_live_state_is_left_alone(tmp_path: Path) -> None:
    """A schedule computed with numpy leaves one in lr, and the bits are the same."""
    state = collections.OrderedDict(
        lr=np.float64(0.1), betas=(np.float64(0.9), 0.98), rest=[{"x": np.float64(1e-300)}]
    )
    back = through_the_disk(tmp_path, state)
    assert back == state
    assert [type(x) for x in (back["lr"], back["betas"][0], back["rest"][0]["x"])] == [float, float, float]
    assert type(state["lr"]) is np.float64


def test_tidy_keeps_what_is_attached_to_a_state_dict() -> None:
    """torch notes the version of each module there, and reads old checkpoints by it."""
    state = torch.nn.BatchNorm1d(2).state_dict()
    state["lr"] = np.float64(0.1)
    assert tidy(state, "x")[0]._metadata == state._metadata  # type: ignore[attr-defined]
    assert clone(state)._metadata == state._metadata  # type: ignore[attr-defined]


def test_a_class_that_the_user_allowed_is_saved(tmp_path: Path) -> None:
    """And refused with a hint where it is not allowed at load."""
    with torch.serialization.safe_globals([Color]):
        state = {"color": Color.RED}
        assert through_the_disk(tmp_path, state) == state
    with pytest.raises(
        CheckpointError, match=r"holder.pt cannot be read by the safe loader .*Color.*add_safe_globals"
    ):
        Checkpointer(tmp_path, {"holder": Holder()}).recover_if_possible()


class Bomb:
    """What a pickle of the wrong kind does when somebody loads it."""

    went_off = False

    def __reduce__(self) -> Any:
        return (setattr, (Bomb, "went_off", True))


def test_loading_never_runs_code(tmp_path: Path) -> None:
    torch.save({"x": Bomb()}, tmp_path / "bomb.pt")
    (tmp_path / "yaml.json").write_text("!!python/object/apply:os.system ['false']")
    with pytest.raises(CheckpointError, match="cannot be read by the safe loader"):
        read_state(tmp_path / "bomb.pt")
    with pytest.raises(ValueError, match="Expecting value"):
        read_state(tmp_path / "yaml.json")
    assert not Bomb.went_off


def test_a_bomb_is_not_even_saved(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"state\['x'\] is a .*Bomb"):
        Checkpointer(tmp_path, {"holder": Holder({"x": Bomb()})}).save_checkpoint()
    assert not Bomb.went_off


def test_clone_shares_nothing() -> None:
    inner = torch.ones(2, requires_grad=True)
    state = {"a": [inner, (inner * 2, {"x": bytearray(b"a")})], "b": collections.Counter("a")}
    copied = clone(state)
    with torch.no_grad():
        inner.zero_()
    state["a"][1][1]["x"] += b"b"
    state["b"]["c"] = 1
    assert torch.equal(copied["a"][0], torch.ones(2))
    assert torch.equal(copied["a"][1][0], 2 * torch.ones(2))
    assert copied["a"][1][1]["x"] == b"a"
    assert copied["b"] == {"a": 1}


def test_only_tensors_are_written_from_memory_that_lasts(tmp_path: Path) -> None:
    """The pickle, copies of strange tensors and the table of contents are gone when torch.save returns."""
    large = torch.arange(CHUNK_BYTES)
    state = {
        "again": {"large": large, "part": large[3:7].t(), "turned": large.view(1024, -1).t()},
        "parameters": [torch.nn.Parameter(torch.ones(CHUNK_BYTES))],
        "conjugate": torch.ones(CHUNK_BYTES, dtype=torch.complex64).conj(),
        "text": "x" * 3 * CHUNK_BYTES,
        "sparse": torch.ones(CHUNK_BYTES).to_sparse(),
        "many": [torch.ones(1) for _ in range(3000)],
        "nowhere": torch.empty(CHUNK_BYTES, device="meta"),
    }
    told = Memory(state)
    assert sorted(size for _, size in told.storages) == [4 * CHUNK_BYTES, 8 * CHUNK_BYTES, 8 * CHUNK_BYTES]
    with SummedFile(tmp_path / "a.pt", lasting=told) as file:
        write_torch(state, file)
    assert file.sha256 == sha256_of(tmp_path / "a.pt")


def test_a_nested_tensor_is_saved_from_a_copy_as_well(tmp_path: Path) -> None:
    """It has no one shape; the copy used to ask for it."""

    class Ragged:
        def __init__(self) -> None:
            self.value = torch.nested.nested_tensor([torch.ones(3), torch.zeros(2)])

        def state_dict(self) -> dict[str, Any]:
            return {"value": self.value}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.value = state["value"]

    ragged = Ragged()
    checkpointer = BackgroundCheckpointer(tmp_path, {"ragged": ragged})
    checkpointer.save_checkpoint()
    ragged.value = ragged.value + 1
    assert checkpointer.recover_if_possible() is not None
    assert [part.tolist() for part in ragged.value.unbind()] == [[1.0] * 3, [0.0] * 2]
