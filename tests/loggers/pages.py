"""What stands on the pages of others, read back from their own files with their own readers."""

from __future__ import annotations

import csv
import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

Curves = dict[str, list[tuple[int, float]]]


def skip_without(logger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip where the package is not installed; let it stay on this machine, and quiet, where it is."""
    if logger in ("mlflow", "wandb"):
        pytest.importorskip(logger)
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


def checked(curves: Curves) -> Curves:
    """Of each curve, the steps never run backwards."""
    for tag, points in curves.items():
        steps = [step for step, _ in points]
        assert steps == sorted(steps), f"the steps of {tag} run backwards: {steps}"
    return curves


def of_tensorboard(folder: Path) -> Curves:
    """Its own reader of event files drops what a restart has purged."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    tags = events.Tags()["scalars"]
    return checked({tag: [(point.step, point.value) for point in events.Scalars(tag)] for tag in tags})


def of_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a table."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def runs_of_mlflow(uri: str, experiment: str) -> list[Any]:
    """All runs of an experiment, oldest first."""
    from mlflow.tracking.client import MlflowClient

    client = MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    return sorted(client.search_runs([found.experiment_id]), key=lambda run: run.info.start_time)


def of_mlflow(folder: Path, uri: str) -> Curves:
    """The curves of the run that is logged into."""
    from mlflow.tracking.client import MlflowClient

    client = MlflowClient(uri)
    run_id = json.loads((folder / "mlflow_run.json").read_text())["ids"][-1]
    curves = {}
    for name in client.get_run(run_id).data.metrics:
        points = sorted(client.get_metric_history(run_id, name), key=lambda point: point.timestamp)
        curves[name] = [(point.step, point.value) for point in points]
    return checked(curves)


def history_of_wandb(folder: Path) -> list[dict[str, Any]]:
    """The rows of the run that is logged into, from all its files, as they would be uploaded one after the other."""
    run_id = json.loads((folder / "wandb_run.json").read_text())["ids"][-1]
    rows = []
    for path in sorted(folder.glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb")):
        for record in records_of_wandb(path):
            if record.WhichOneof("record_type") == "history":
                items = {"/".join(item.nested_key) or item.key: item for item in record.history.item}
                rows.append({key: json.loads(item.value_json) for key, item in items.items()})
    return rows


def records_of_wandb(path: Path) -> list[Any]:
    """What is in a file of theirs, which their service goes on writing for a moment when a run was finished."""
    from wandb.proto import wandb_internal_pb2

    patience = time.monotonic() + 30
    while True:
        records = []
        for data in leveldb_records(path.read_bytes()):
            records.append(wandb_internal_pb2.Record())
            records[-1].ParseFromString(data)
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            return records
        assert time.monotonic() < patience, f"{path} is not finished"
        time.sleep(0.1)


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """The records of a log as LevelDB writes it, behind the seven bytes with which theirs begins.

    https://github.com/google/leveldb/blob/main/doc/log_format.md: blocks of 32 KiB; before each piece a checksum, a
    length and whether it is a whole record (1), or its first (2), a middle (3) or its last (4) piece.
    """
    assert data[:4] == b":W&B"
    at, parts = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # too little is left of the block for another piece
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def of_wandb(folder: Path) -> Curves:
    """The curves of that run, over the axis that the plots have."""
    rows = history_of_wandb(folder)
    steps = [row["_step"] for row in rows]
    assert steps == sorted(set(steps)), f"they refuse rows whose steps run backwards: {steps}"
    curves: Curves = {}
    for row in rows:
        for name, value in row.items():
            if not name.startswith("_") and name != "x" and isinstance(value, (int, float)):
                curves.setdefault(name, []).append((row["x"], value))
    return checked(curves)
