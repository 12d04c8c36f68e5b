"""The reader that docs/checkpoint-format.md prints, as it is printed there, against checkpoints of every kind."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from brainlib.checkpoint.manifest import REASONS, VERSION, Checkpoint, to_bytes
from tests.checkpoint.small import Foreground as Checkpointer
from tests.checkpoint.small import linear

PAGE = (Path(__file__).parents[2] / "docs" / "checkpoint-format.md").read_text(encoding="utf-8")
READER = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]


@pytest.fixture(scope="module")
def reader() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(READER, "docs/checkpoint-format.md", "exec"), names)
    return names


class Holder:
    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        one = one.detach().float() if one.dtype == torch.bfloat16 else one.detach()
        return (
            isinstance(two, np.ndarray)
            and np.array_equal(one.numpy(), two)
            and one.numpy().dtype == two.dtype
        )
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two, strict=True))
    if isinstance(one, torch.dtype):
        return str(one) == f"torch.{two}"
    return bool(one == two)


def test_it_is_short_and_needs_no_torch() -> None:
    assert len(READER.splitlines()) <= 60
    imported = re.findall(r"^(?:import|from) (.*)$", READER, re.MULTILINE)
    assert imported == ["collections, hashlib, io, json, pathlib, pickle, zipfile", "numpy as np"]


def test_every_type_of_tensor_and_value(reader: dict[str, Any], tmp_path: Path) -> None:
    names = "float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128 uint16 uint32"
    types = [getattr(torch, name) for name in names.split()]
    whole = torch.arange(12.0).reshape(3, 4)
    state = {
        **{str(kind): torch.tensor([0, 1, 1]).to(kind) for kind in types},
        "a scalar": torch.tensor(2.5),
        "nothing": torch.zeros(0, 3),
        "turned": whole.t(),
        "a part": whole[1:, ::2],
        "expanded": torch.ones(1, 2).expand(5, 2),
        "a parameter": torch.nn.Parameter(torch.rand(2)),
        "values": [1, 2.5, "text", b"\x00\xff", None, True, (1, 2), {3}, 1j, 10**30],
        "type": torch.float32,
        "size": torch.Size([2, 3]),
    }
    saved = Checkpointer(tmp_path, {"state": Holder(state)}).save_checkpoint()
    manifest = reader["read_manifest"](saved.path)
    read = reader["State"](saved.path / manifest["recoverables"]["state"]["path"]).load()
    wrong = [key for key in state if not same(state[key], read[key])]
    assert not wrong


def test_models_optimizers_and_json(reader: dict[str, Any], tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(2, 3)).sum().backward()
    optimizer.step()
    objects = {
        "model": model,
        "optimizer": optimizer,
        "counter": Holder({"n": 3}),
        "generator": torch.Generator(),
    }
    saved = Checkpointer(tmp_path, objects).save_checkpoint({"loss": float("nan")})
    manifest = reader["read_manifest"](saved.path)
    assert manifest["meta"] == {"loss": "nan"} and manifest["meta_nonfinite"] == [["loss"]]
    for name in ("model", "optimizer", "generator"):
        path = saved.path / manifest["recoverables"][name]["path"]
        assert same(torch.load(path, weights_only=True), reader["State"](path).load()), name
    assert json.loads((saved.path / "counter.json").read_text()) == {"n": 3}


def test_damage_is_seen(reader: dict[str, Any], tmp_path: Path) -> None:
    saved = Checkpointer(tmp_path, {"model": linear(1.0)}).save_checkpoint()
    path = saved.path / "model.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="model.pt is damaged"):
        reader["read_manifest"](saved.path)


def test_it_runs_nothing_that_a_file_asks_for(reader: dict[str, Any], tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return exec, ("open('ran', 'w')",)

    path = tmp_path / "evil.pt"
    torch.save({"weight": Evil()}, path)
    with pytest.raises(pickle.UnpicklingError, match="the file wants __builtin__.exec, which no state needs"):
        reader["State"](path).load()
    torch.save(torch.rand(2), path)
    with (
        zipfile.ZipFile(path) as archive,
        zipfile.ZipFile(tmp_path / "b.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in archive.namelist():
            packed.writestr(name, archive.read(name))
    with pytest.raises(ValueError, match="an entry is compressed"):
        reader["State"](tmp_path / "b.pt").load()


def test_a_tensor_that_reaches_out_of_its_storage_is_refused(reader: dict[str, Any], tmp_path: Path) -> None:
    state = reader["State"].__new__(reader["State"])
    state.order = "<"
    for offset, shape, strides in (
        (0, (3,), (1,)),
        (1, (2,), (1,)),
        (0, (2,), (-1,)),
        (-1, (1,), (1,)),
        (0, (2,), (9,)),
    ):
        with pytest.raises(ValueError):
            state.tensor(("FloatStorage", bytes(8)), offset, shape, strides, False, None)


def test_the_page_names_every_field_and_reason() -> None:
    manifest = json.loads(to_bytes(Checkpoint(Path("a"), {}, 1)))
    missing = [field for field in manifest if f"| `{field}` |" not in PAGE]
    missing += [reason for reason in REASONS if f"`{reason}`" not in PAGE]
    assert not missing and f"`{VERSION}`; a reader" in PAGE


def test_the_reader_works_where_torch_is_absent(tmp_path: Path) -> None:
    saved = Checkpointer(tmp_path, {"model": linear(2.0)}).save_checkpoint()
    code = f"import sys; sys.modules['torch'] = None\n{READER}\nprint(State({str(saved.path / 'model.pt')!r}).load())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "array([[2.]], dtype=float32)" in done.stdout, done.stderr
