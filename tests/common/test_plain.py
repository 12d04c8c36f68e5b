"""Values of a run as plain Python and strict JSON."""

from __future__ import annotations

import enum
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from brainlib.common.plain import from_json, plain, to_json


class Color(enum.IntEnum):
    RED = 3


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.tensor(2), 2),
        (torch.tensor([0.5], requires_grad=True), 0.5),
        (torch.tensor([[1, 2]]), [[1, 2]]),
        (torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
        (np.float32(0.25), 0.25),
        (np.float64(0.25), 0.25),
        (np.bool_(True), True),
        (np.arange(2), [0, 1]),
        (Color.RED, 3),
        (Path("a/b"), "a/b"),
        ((1, {"x": {2}}), [1, {"x": [2]}]),
        ({1: None}, {"1": None}),
        (torch.device("cpu"), "cpu"),
    ],
)
def test_values_become_plain(value: object, expected: object) -> None:
    result = plain(value)
    assert result == expected and type(result) is type(expected)
    assert json.loads(json.dumps(result)) == expected


def test_json_is_strict_and_comes_back() -> None:
    text = to_json({"a": math.nan, "b": [math.inf, -math.inf, 1.0]})
    assert text == '{"a": "nan", "b": ["inf", "-inf", 1.0]}'
    back = from_json(text)
    assert math.isnan(back["a"]) and back["b"] == [math.inf, -math.inf, 1.0]
