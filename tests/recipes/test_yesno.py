"""The recipe as its users run it, and its data: found, downloaded, checked, and cut into words."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import brainlib as bl
from brainlib.audio import read_audio, write_audio
from tests.recipes.loading import recipe_module
from tests.recipes.serving import served

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def prepare() -> Iterator[ModuleType]:
    with recipe_module("yesno", "prepare") as module:
        yield module


def test_a_short_run_hears_most_words(data_dir: Callable[[str], Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the recipe draws with matplotlib")
    words = [sys.executable, ROOT / "recipes/yesno/train.py", ROOT / "hparams/yesno/cnn.yaml"]
    words += ["--data_folder", data_dir("yesno"), "--output_folder", tmp_path, "--noprogressbar"]
    words += ["--number_of_epochs", "10"]
    process = subprocess.run(
        words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["test"]["words"] == 240 and found["test"]["WER"] <= 25
    assert set(found) == {"test", "epoch", "seed", "seconds"} and found["seed"] == 1234
    rows = bl.read_metrics(tmp_path / "metrics.jsonl", merge_by="epoch")
    assert [row["epoch"] for row in rows] == list(range(1, 11))
    assert rows[-1]["train"]["loss"] < rows[0]["train"]["loss"] / 4
    errors = (tmp_path / "errors.txt").read_text()
    assert errors.count("ref:") == 30 and f"/ {240}" in errors.splitlines()[0]
    for name in ("curves.png", "emissions.png"):
        assert (tmp_path / name).stat().st_size > 10_000 and str(tmp_path / name) in process.stdout


def test_the_splits_are_those_of_the_corpus(prepare: ModuleType, data_dir: Callable[[str], Path]) -> None:
    splits = prepare.prepare_yesno(data_dir("yesno"))
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 25, "valid": 5, "test": 30}
    names = [name for rows in splits.values() for name in rows]
    assert len(set(names)) == 60
    assert max([*splits["train"], *splits["valid"]]) < min(splits["test"])
    assert splits["test"]["1_0_0_0_0_0_1_1"]["words"] == ["yes", *["no"] * 5, "yes", "yes"]
    assert prepare.describe(splits).splitlines()[2].endswith("29 of them begin with yes")


def test_words_are_drawn_in_any_order(prepare: ModuleType, data_dir: Callable[[str], Path]) -> None:
    shuffled = prepare.ShuffledWords(prepare.prepare_yesno(data_dir("yesno"))["train"])
    assert sum(map(len, shuffled.words.values())) == 8 * (25 - len(shuffled.not_cut))
    assert len(shuffled.not_cut) <= 3
    drawn = set()
    for _ in range(100):
        signal, words = shuffled("any")
        drawn.add(tuple(words))
        assert 0.3 < len(signal) / prepare.SAMPLE_RATE / len(words) < 4
    assert {len(words) for words in drawn} == {1, 2, 3} and {words[0] for words in drawn} == {"yes", "no"}


def test_words_are_cut_in_the_middle_of_pauses(prepare: ModuleType) -> None:
    pause, word = torch.zeros(2400), torch.sin(torch.arange(3200) * 0.5)
    wave = torch.cat([pause, word, pause, word, pause, word])
    segments = prepare.cut_words(wave, 3)
    assert [round(len(each) / 800) for each in segments] == [8.5, 7, 5.5] or all(
        abs(len(each) - expected) < 400 for each, expected in zip(segments, (6800, 5600, 4400), strict=True)
    )
    assert torch.equal(torch.cat(segments), wave)
    assert prepare.cut_words(wave, 4) is None


def test_the_archive_is_downloaded_checked_and_unpacked(
    prepare: ModuleType, data_dir: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for path in sorted((data_dir("yesno") / "audio").glob("*.flac")):
            write_audio(tmp_path / "word.wav", read_audio(path), prepare.SAMPLE_RATE)
            tar.add(tmp_path / "word.wav", f"waves_yesno/{path.stem}.wav")
    archive, folder = packed.getvalue(), tmp_path / "data"
    with served(archive) as address:
        with pytest.raises(ValueError, match="gave something else: its SHA-256 is .* Nothing was kept"):
            prepare._download(folder, address)
        assert not folder.exists()
        monkeypatch.setattr(prepare, "ARCHIVE_SHA256", prepare.hashlib.sha256(archive).hexdigest())
        prepare._download(folder, address)
    assert len(prepare.prepare_yesno(folder)["test"]) == 30
    assert [path.name for path in folder.iterdir()] == ["waves_yesno"]
    with pytest.raises(ValueError, match="There are no recordings in .* gave none: "):
        prepare._download(tmp_path / "other", address)  # the server is gone


def test_other_recordings_are_an_error(
    prepare: ModuleType, data_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="YesNo needs a folder. Give --data_folder DIR"):
        prepare.prepare_yesno(None)
    write_audio(tmp_path / "0_0_0_0_1_1_1_1.wav", torch.zeros(8000), 8000)
    with pytest.raises(ValueError, match=r"YesNo has 60 recordings, and .* has 1\."):
        prepare.prepare_yesno(tmp_path)
    waves = dict.fromkeys(map(str, range(60)), torch.zeros(5))
    with pytest.raises(ValueError, match="are not those of YesNo: their SHA-256 is "):
        prepare.check_content(waves, tmp_path)
