"""What a recipe leaves, and whether two of its runs are one and the same."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import brainlib as bl

TIMES = frozenset({"seconds", "cpu_seconds"})  # in results.json: what depends on the clock


def results(out: Path) -> dict[str, Any]:
    """What stands in results.json."""
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    return found


def rows_of(out: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, one an epoch, without what depends on the clock."""
    rows = bl.read_metrics(out / "metrics.jsonl", merge_by="epoch")
    return [{key: value for key, value in row.items() if key not in ("time", "ledger")} for row in rows]


def num_rows(out: Path) -> int:
    """How often something was logged so far."""
    path = out / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def num_saved(out: Path) -> int:
    """How many checkpoints there are now."""
    return len(list((out / "save").glob("step-*")))


def assert_same_run(out: Path, uncut: Path, modules: Iterable[str] = ("model",)) -> None:
    """Results, rows and the bits of the weights are the same."""
    found, expected = results(out), results(uncut)
    assert {key: found[key] for key in found.keys() - TIMES} == {
        key: expected[key] for key in expected.keys() - TIMES
    }
    assert rows_of(out) == rows_of(uncut)
    for module in modules:
        weights, wanted = (bl.load_weights(each / "save", module) for each in (out, uncut))
        assert weights.keys() == wanted.keys()
        assert all(torch.equal(weights[name], wanted[name]) for name in wanted), module
