"""More than 300 files that were made to do harm: nothing runs, each is a clear error, and memory stays small."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from brainlib.checkpoint.journal import RECORDS, read_records
from tests.checkpoint.hostile import CANARY
from tests.checkpoint.small import Foreground as Checkpointer
from tests.checkpoint.small import linear

ROOT = Path(__file__).parents[2]
SLACK = 24 << 20  # bytes: what the allocator takes at once, whoever asks


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """In a process of its own: the peak of its memory is that of these files."""
    folder = tmp_path_factory.mktemp("hostile")
    done = subprocess.run(
        [sys.executable, "-m", "tests.checkpoint.hostile", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ran = [path for path in (folder / CANARY, ROOT / CANARY) if path.exists()]
    assert not ran, "a payload was run"
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_each_is_a_clear_error(results: list[dict[str, Any]]) -> None:
    assert len(results) >= 300 and len({each["name"] for each in results}) == len(results)
    kinds = ("CheckpointError: ", "DamagedCheckpointError: ", "UnfitCheckpointError: ")
    unclear = [
        (each["name"], each["error"][:200])
        for each in results
        if not each["error"].startswith(kinds)
        or not any(part in each["error"] for part in ("state-", "manifest-"))
    ]
    assert not unclear


def test_memory_stays_within_twice_the_file(results: list[dict[str, Any]]) -> None:
    swollen = [(each["name"], each["grew"]) for each in results if each["grew"] > 2 * each["size"] + SLACK]
    assert not swollen


def test_what_the_errors_say(results: list[dict[str, Any]]) -> None:
    told = {each["name"]: each["error"] for each in results}
    for name, part in {
        "state: reduce torch.zeros": "Unsupported global: GLOBAL torch.zeros was not an allowed global",
        "state: stack os.system": "its data.pkl is of protocol 4, and torch.save writes 2",
        "state: bytearray of int": "it makes a bytearray out of a number",
        "state: FloatTensor of int": "it calls torch.FloatTensor, which no state needs",
        "state: encode hex": "it encodes text in a way that torch.save does not",
        "state: a bomb of deflate in archive/data/0": "in it is compressed, which torch.save never does",
        "state: two pickles": "it holds 2 entries named 'data.pkl' and needs one",
        "state: a bare pickle of os.system": "it is no zip archive, which is what torch.save writes",
        "state: TorchScript": "it is a TorchScript archive: a program, and no state",
        "state: YAML as JSON": "is no JSON that can be read",
        "manifest: a file '../../outside'": "'../../outside' points outside the checkpoint",
        "manifest: huge": "is larger than 67108864 bytes",
        "manifest: deep lists": "its manifest.json is torn",
        "manifest: a later version": "a newer brainlib wrote it",
    }.items():
        assert part in told[name], (name, told[name])


def test_yaml_of_another_trainer_beside_ours_is_never_read(tmp_path: Path) -> None:
    Checkpointer(tmp_path, {"model": linear(1.0)}).save_checkpoint()
    theirs = tmp_path / "CKPT+2024-01-01+00-00-00+00"
    theirs.mkdir()
    (theirs / "CKPT.yaml").write_text(f'!!python/object/apply:os.system ["touch {tmp_path}/{CANARY}"]')
    (theirs / "model.ckpt").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    checkpointer = Checkpointer(tmp_path, {"model": linear(2.0)})
    found = checkpointer.recover_if_possible()
    assert found is not None and found.path.name == "commit-00000001"
    assert not (tmp_path / CANARY).exists()


@pytest.mark.parametrize(
    "line",
    [
        b'"path": "../outside", "commit": 9}',
        b'"path": "..", "commit": 9}',
        b'"path": "/etc", "commit": 9}',
        b'"path": ["a"], "commit": 9}',
        b'"path": "commit-00000001", "commit": ' + b"9" * 10_000 + b"}",
        b'"path": "commit-00000001", "commit": 9, "manifest": 1e400}',
        b'"path": ' + b"[" * 200_000,
        b'"time": !!python/object/apply:os.system ["touch ran"]}',
        b"\xff\xfe\x00\x00}",
        b"",
    ],
    ids=["outside", "above", "absolute", "list", "long", "infinite", "deep", "yaml", "bytes", "empty"],
)
def test_a_hostile_journal_changes_no_listing(tmp_path: Path, line: bytes) -> None:
    Checkpointer(tmp_path, {"model": linear(1.0)}).save_checkpoint()
    (tmp_path / RECORDS).write_bytes(b'{"crc": "%08x", %s\n' % (zlib.crc32(line), line))
    assert [(record.path.name, record.commit) for record in read_records(tmp_path)] == [
        ("commit-00000001", 1)
    ]
    found = Checkpointer(tmp_path, {"model": linear(2.0)}).recover_if_possible()
    assert found is not None and found.commit == 1
