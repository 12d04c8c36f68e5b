"""What is computed once is kept on disk, and made anew as soon as it would be another."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from brainlib.data.pipeline import DynamicItem

made: list[str] = []


def read(wav: str) -> torch.Tensor:
    made.append("read")
    return torch.tensor([float(number) for number in Path(wav).read_text().split()])


def scaled(signal: torch.Tensor, gain: float) -> Iterator[Any]:
    made.append("scaled")
    yield signal * gain
    yield {"loudness": float(signal.abs().max())}


@pytest.fixture(autouse=True)
def _nothing_made() -> None:
    made.clear()


def sets(folder: Path, gain: float = 2.0, **options: Any) -> bl.DynamicItemDataset:
    wav = folder / "a.wav"
    if not wav.exists():
        wav.write_text("1 2 3")
    data = bl.DynamicItemDataset({"a": {"wav": str(wav), "gain": gain}})
    data.add_dynamic_item(read, takes="wav", provides="signal")
    data.add_dynamic_item(
        scaled, ["signal", "gain"], ["louder", "told"], cache_dir=folder / "cache", **options
    )
    data.set_output_keys(["louder", "told"])
    return data


def test_what_is_kept_is_not_made_again_nor_what_it_takes(tmp_path: Path) -> None:
    first = sets(tmp_path)[0]
    second = sets(tmp_path)[0]
    assert made == ["read", "scaled"]
    assert first["louder"].tolist() == second["louder"].tolist() == [2.0, 4.0, 6.0]
    assert first["told"] == second["told"] == {"loudness": 3.0}
    assert len(list((tmp_path / "cache").rglob("*.pt"))) == 1


def test_what_else_is_asked_for_is_made(tmp_path: Path) -> None:
    data = sets(tmp_path)
    data[0]
    data.set_output_keys(["signal", "louder"])
    assert data[0]["signal"].tolist() == [1.0, 2.0, 3.0]
    assert made == ["read", "scaled", "read"]


def test_a_changed_source_is_seen(tmp_path: Path) -> None:
    sets(tmp_path)[0]
    (tmp_path / "a.wav").write_text("1 2 9")
    os.utime(tmp_path / "a.wav", ns=(1, 1))  # the clock of a disk may be coarse
    assert sets(tmp_path)[0]["louder"].tolist() == [2.0, 4.0, 18.0]
    assert sets(tmp_path, gain=3.0)[0]["louder"].tolist() == [3.0, 6.0, 27.0]
    assert sets(tmp_path, version=2)[0]["louder"].tolist() == [2.0, 4.0, 18.0]
    assert made == ["read", "scaled"] * 4
    assert len(list((tmp_path / "cache").rglob("*"))) == 2, "a folder and a file: what is old is replaced"


def test_a_changed_function_is_seen(tmp_path: Path) -> None:
    def kept_by(func: Any) -> Any:
        data = bl.DynamicItemDataset({"a": {"n": 1}})
        data.add_dynamic_item(func, "n", "m", cache_dir=tmp_path)
        data.set_output_keys(["m"])
        return data[0]["m"]

    def adding(number: int) -> Any:
        return lambda n: n + number

    assert [kept_by(adding(1)), kept_by(adding(1)), kept_by(adding(5))] == [2, 2, 6]
    assert [kept_by(lambda n: n * 3), kept_by(lambda n: n * 4)] == [3, 4]


def test_a_function_above_is_seen(tmp_path: Path) -> None:
    def result(above: Any) -> Any:
        data = bl.DynamicItemDataset({"a": {"n": 1}})
        data.add_dynamic_item(above, "n", "m")
        data.add_dynamic_item(str, "m", "k", cache_dir=tmp_path)
        data.set_output_keys(["k"])
        return data[0]["k"]

    assert [result(lambda n: n + 1), result(lambda n: n + 2)] == ["2", "3"]


@pytest.mark.parametrize("damage", [b"", b"x" * 10, None])
def test_a_damaged_file_is_made_anew(
    tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    sets(tmp_path)[0]
    (path,) = (tmp_path / "cache").rglob("*.pt")
    whole = path.read_bytes()
    path.write_bytes(whole[:-7] + b"?" + whole[-6:] if damage is None else damage)
    with caplog.at_level("WARNING", logger="brainlib"):
        assert sets(tmp_path)[0]["louder"].tolist() == [2.0, 4.0, 6.0]
    assert ("is damaged: made anew" in caplog.text) == (damage is None)
    assert path.read_bytes() == whole


def test_what_the_safe_loader_refuses_is_not_kept(tmp_path: Path) -> None:
    data = bl.DynamicItemDataset({"a": {"n": 1}})
    data.add_dynamic_item(lambda n: Log(), "n", "m", cache_dir=tmp_path)
    data.set_output_keys(["m"])
    with pytest.raises(TypeError, match="what was made for the item 'a' cannot be kept"):
        data[0]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


class Log:
    pass


def test_of_a_view_what_is_seen_is_kept(tmp_path: Path) -> None:
    data = bl.DynamicItemDataset({"a": {"n": 1}})
    data.add_dynamic_item(lambda n: torch.zeros(1_000_000)[:2], "n", "m", cache_dir=tmp_path)
    data.set_output_keys(["m"])
    data[0]
    (path,) = tmp_path.rglob("*.pt")
    assert path.stat().st_size < 10_000


def _fill(folder: str) -> None:
    sets(Path(folder))[0]


def test_processes_may_share_it(tmp_path: Path) -> None:
    sets(tmp_path)
    processes = [
        multiprocessing.get_context("fork").Process(target=_fill, args=(str(tmp_path),)) for _ in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert sets(tmp_path)[0]["louder"].tolist() == [2.0, 4.0, 6.0] and made == []


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(ValueError, match="cache' is a file; name a folder"):
        sets(tmp_path)


def test_a_cached_item_above_another_is_looked_up_when_that_one_is_made(tmp_path: Path) -> None:
    def result(version: int) -> Any:
        data = bl.DynamicItemDataset({"a": {"wav": str(tmp_path / "a.wav")}})
        data.add_dynamic_item(DynamicItem("wav", read, "signal"), cache_dir=tmp_path / "one")
        data.add_dynamic_item(torch.sum, "signal", "total", cache_dir=tmp_path / "two", version=version)
        data.set_output_keys(["total"])
        return data[0]["total"].item()

    (tmp_path / "a.wav").write_text("1 2 3")
    assert [result(1), result(2)] == [6.0, 6.0]
    assert made == ["read"]
