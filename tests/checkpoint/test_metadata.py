"""Metadata: numbers of every make go in, plain ones come out, and strict JSON lies in between."""

from __future__ import annotations

import datetime
import enum
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from brainlib.checkpoint import CheckpointError
from brainlib.checkpoint.metadata import plain
from tests.checkpoint.small import Foreground as Checkpointer
from tests.checkpoint.small import linear


class Phase(enum.IntEnum):
    WARM = 1


@pytest.mark.parametrize(
    ("given", "noted"),
    [
        (np.float64(0.1), 0.1),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array(2.5), 2.5),
        (np.array([2.5]), 2.5),
        (np.array([1, 2]), [1, 2]),
        (torch.tensor(1.5), 1.5),
        (torch.tensor([7]), 7),
        (torch.tensor([[1.0, 2.0]]), [[1.0, 2.0]]),
        (torch.tensor(2.0, requires_grad=True), 2.0),
        ((1, (2, None)), [1, [2, None]]),
        (Phase.WARM, 1),
        (Path("a/b"), "a/b"),
        ({1: "a"}, {"1": "a"}),
        ("nan", "nan"),
        (10**400, 10**400),
        (torch.tensor([]), []),
        (np.str_("x"), "x"),
        (torch.tensor(0.1, dtype=torch.float64), 0.1),
    ],
)
def test_values_of_every_make(tmp_path: Path, given: Any, noted: Any) -> None:
    saved = Checkpointer(tmp_path, {"model": linear()}).save_checkpoint({"value": given})
    (listed,) = Checkpointer(tmp_path).list_checkpoints()
    for meta in (saved.meta, listed.meta):
        assert meta == {"value": noted}
        assert type(meta["value"]) is type(noted)


def test_what_is_not_finite_comes_back_and_the_file_is_strict_json(tmp_path: Path) -> None:
    meta = {
        "loss": math.nan,
        "per class": [1.0, math.inf, {"x": -math.inf}],
        "remark": "nan",
        "words": ["inf", "-inf"],
    }
    checkpoint = Checkpointer(tmp_path, {"model": linear()}).save_checkpoint(meta)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    on_disk = json.loads((checkpoint.path / "manifest.json").read_text(), parse_constant=refuse)
    assert on_disk["meta"]["loss"] == "nan"
    (back,) = (c.meta for c in Checkpointer(tmp_path).list_checkpoints())
    assert math.isnan(back["loss"])
    assert back["per class"] == [1.0, math.inf, {"x": -math.inf}]
    assert (back["remark"], back["words"]) == ("nan", ["inf", "-inf"])


def test_a_numpy_metric_does_not_brick_the_folder(tmp_path: Path) -> None:
    """SpeechBrain §0.6: it saves, and every later listing raises."""
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    for loss in (np.float64(0.5), np.float32(0.25), torch.tensor(0.75)):
        checkpointer.save_checkpoint({"loss": loss})
    assert [c.meta["loss"] for c in checkpointer.find_checkpoints(max_key="loss")] == [0.75, 0.5, 0.25]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (datetime.date(2020, 1, 1), r"meta\['x'\]\[0\] is a datetime.date"),
        ({1, 2}, r"meta\['x'\]\[0\] is a builtins.set"),
        (1j, r"builtins.complex"),
        (torch.tensor(1j), "torch.Tensor"),
        (np.array(["2020"], dtype="datetime64[D]"), "numpy.ndarray"),
        (linear(), "Linear"),
    ],
)
def test_what_cannot_be_noted_is_named_before_anything_is_written(
    tmp_path: Path, value: Any, told: str
) -> None:
    with pytest.raises(CheckpointError, match=told):
        Checkpointer(tmp_path / "save", {"model": linear()}).save_checkpoint({"x": [value]})
    assert not (tmp_path / "save").exists()


def test_keys_that_are_no_strings() -> None:
    assert plain({1: 1, 2.5: 2}) == {"1": 1, "2.5": 2}
    with pytest.raises(CheckpointError, match=r"meta has the key \(1, 2\) \(tuple\); keys are strings"):
        plain({(1, 2): 3})


def test_keys_of_the_user_never_collide_with_ours(tmp_path: Path) -> None:
    meta = {
        "commit": -5,
        "reason": "mine",
        "unixtime": 0,
        "end-of-epoch": "yes",
        "files": [],
        "sha256": "x",
        "meta": {},
    }
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    checkpointer.save_checkpoint(meta)
    (checkpoint,) = Checkpointer(tmp_path).list_checkpoints()
    assert checkpoint.meta == meta
    assert (checkpoint.commit, checkpoint.reason) == (1, "user")


def test_the_callers_dict_is_left_alone_and_not_kept(tmp_path: Path) -> None:
    meta = {"losses": [1.0]}
    checkpoint = Checkpointer(tmp_path, {"model": linear()}).save_checkpoint(meta)
    meta["losses"].append(2.0)
    assert checkpoint.meta == {"losses": [1.0]}


def test_meta_that_is_no_dict(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="meta is a float; a dict from names to values is needed"):
        Checkpointer(tmp_path, {"model": linear()}).save_checkpoint(0.5)  # type: ignore[arg-type]
