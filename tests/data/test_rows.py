"""Packed rows: small, and shared by forked processes however often they are read."""

from __future__ import annotations

import gc
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import brainlib as bl
from brainlib.data.rows import Rows, RowsBuilder

NUM = 100_000


def private() -> int:
    """Bytes that this process has written and shares with nobody. (``Anonymous`` counts what is shared as well.)"""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) * 1024
    raise OSError("no line Private_Dirty")


def grown_in_a_child(read: Callable[[int], object]) -> int:
    """How much a forked process grows by as many reads as there are rows."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        gc.freeze()
        before = private()
        for _ in range(NUM):
            read(random.randrange(NUM))
        os.write(writes, str(private() - before).encode())
        os._exit(0)
    os.close(writes)
    with open(reads) as file:
        grown = int(file.read())
    os.waitpid(child, 0)
    return grown


@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux, to know pages that are shared"
)
def test_forked_processes_share_the_rows() -> None:
    plain = [{"id": f"utt{n:07}", "wav": f"/corpus/{n:07}.wav", "words": [n, n]} for n in range(NUM)]
    data = bl.DynamicItemDataset({row["id"]: {k: v for k, v in row.items() if k != "id"} for row in plain})
    assert data[7] == plain[7]
    assert grown_in_a_child(data.__getitem__) < 2 << 20
    assert grown_in_a_child(lambda n: dict(plain[n])) > 20 << 20, "as it is with a list of dicts"


def test_what_a_row_costs() -> None:
    rows = Rows.of({f"utt{n:07}": {"text": "x" * 30, "duration": 1.5} for n in range(10_000)})
    assert len(pickle.dumps(rows)) / 10_000 < 10 + 30 + 2 * 4 + 8 + 1


def test_a_row_is_found_by_its_id() -> None:
    rows = Rows.of({f"utt{n}": {"n": n} for n in range(2000)})
    assert [rows[f"utt{n}"]["n"] for n in (0, 1999, 77)] == [0, 1999, 77]
    assert "utt5" in rows and "utt2000" not in rows
    with pytest.raises(KeyError, match="there is no row with the id 'utt2000'"):
        rows["utt2000"]
    assert pickle.loads(pickle.dumps(rows))["utt7"] == {"id": "utt7", "n": 7}


def test_a_column_may_begin_late_and_change_its_kind() -> None:
    builder = RowsBuilder()
    builder.add(["a", "b"], [{"n": 1}, {"n": 2}])
    builder.add(["c"], [{"n": 2.5, "t": "x"}])
    builder.add(["d"], [{"n": True}])
    builder.add(["e"], [{"n": {1, 2}}])
    builder.add(["f"], [{"n": 6}])
    assert list(builder.rows().values()) == [
        {"id": "a", "n": 1},
        {"id": "b", "n": 2},
        {"id": "c", "n": 2.5, "t": "x"},
        {"id": "d", "n": True},
        {"id": "e", "n": {1, 2}},
        {"id": "f", "n": 6},
    ]


def test_an_id_that_is_there_twice() -> None:
    builder = RowsBuilder("corpus")
    builder.add(["a", "b"], [{}, {}])
    builder.add(["a"], [{}])
    with pytest.raises(ValueError, match="the id 'a' is there twice: rows 1 and 3"):
        builder.rows()


def test_no_rows() -> None:
    assert len(bl.DynamicItemDataset({})) == 0
