"""The recipe as its users run it on a few utterances, and its parts: data, augmentation, model, tokens."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import brainlib as bl
from brainlib.text.decoding import WordNgram
from tests.recipes.loading import recipe_module
from tests.recipes.serving import served

ROOT = Path(__file__).resolve().parents[2]
DICTIONARY = {
    "SIX": [("S", "IH", "K", "S")],
    "OH": [("OW",)],
    "O": [("OW",)],
    "A": [("AH",), ("EY",)],
}


@pytest.fixture(scope="module")
def prepare() -> Iterator[ModuleType]:
    with recipe_module("an4", "prepare") as module:
        yield module


@pytest.fixture(scope="module")
def units() -> Iterator[ModuleType]:
    with recipe_module("an4", "units") as module:
        yield module


@pytest.mark.parametrize("name", ["characters", "phones"])
def test_a_short_run_learns_a_few_utterances(
    data_dir: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    pytest.importorskip("matplotlib", reason="the recipe draws with matplotlib")
    words = [sys.executable, ROOT / "recipes/an4/train.py", ROOT / f"hparams/an4/{name}.yaml"]
    words += ["--data_folder", data_dir("an4"), "--output_folder", tmp_path, "--noprogressbar"]
    words += ["--num_utterances", "4", "--number_of_epochs", "20", "--num_warmup", "2"]
    words += ["--channels", "32", "--hidden_size", "32", "--lr", "5e-3"]
    words += ["--ngram_weights", "[1.0]", "--word_scores", "[0.0]"]
    process = subprocess.run(
        words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    found = json.loads((tmp_path / "results.json").read_text())
    assert set(found["test"]) == {"greedy", "lexicon", "n-gram"}
    assert found["chosen_on_valid"] == {"ngram_weight": 1.0, "word_score": 0.0}
    rows = bl.read_metrics(tmp_path / "metrics.jsonl", merge_by="epoch")
    assert [row["epoch"] for row in rows] == list(range(1, 21))
    assert rows[-1]["train"]["loss"] < 0.7 * rows[0]["train"]["loss"]
    for kind, counts in found["test"].items():
        errors = (tmp_path / f"errors_{kind}.txt").read_text()
        assert errors.startswith(f"%WER {counts['WER']:.2f} [ {counts['errors']} / {counts['words']}, ")
        assert errors.count("ref:") == 4
    for picture in ("curves.png", "confusions.png"):
        assert (tmp_path / picture).stat().st_size > 10_000 and str(tmp_path / picture) in process.stdout


# ---------------------------------------------------------------------------------------------------------- the data


def test_no_speaker_is_in_two_splits(prepare: ModuleType, data_dir: Callable[[str], Path]) -> None:
    corpus = prepare.prepare_an4(data_dir("an4"))
    assert {name: len(split) for name, split in corpus.splits.items()} == {
        "train": 820,
        "valid": 128,
        "test": 130,
    }
    speakers = [{each.speaker for each in split} for split in corpus.splits.values()]
    assert [len(each) for each in speakers] == [64, 10, 10] and len(set.union(*speakers)) == 84
    words = {word for split in corpus.splits.values() for each in split for word in each.text.split()}
    assert words <= set(corpus.dictionary)
    assert corpus.dictionary["A"] == [("AH",), ("EY",)]
    assert sum(len(each.text.split()) for each in corpus.splits["test"]) == 773


def test_the_archive_is_downloaded_and_gives_the_same_corpus(
    prepare: ModuleType, data_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    known = prepare.prepare_an4(data_dir("an4"))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:

        def add(name: str, content: bytes) -> None:
            member = tarfile.TarInfo(f"repository-5e478f0/an4/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))

        lines = {"train": [], "test": []}
        for each in (each for split in known.splits.values() for each in split):
            folder = "an4test_clstk" if each.split == "test" else "an4_clstk"
            values = each.frames.flatten().numpy()
            content = struct.pack(">i", len(values)) + values.astype(">f4").tobytes()
            add(f"feat/{folder}/{each.speaker}/{each.name}.mfc", content)
            lines[each.split].append(f"<s> {each.text} </s> ({each.name})")
        for split, texts in lines.items():
            add(f"etc/an4_{split}.transcription", "\n".join(texts).encode())
        add("etc/an4.dic", (data_dir("an4") / "an4.dic").read_bytes())
        add("README", b"not asked for")
    with served(packed.getvalue()) as address:
        prepare._download(tmp_path, address)
    assert {path.name for path in tmp_path.iterdir()} == {
        "an4_mfcc.npz",
        "manifest_mfcc.csv",
        "an4.dic",
    }
    again = prepare.prepare_an4(tmp_path)
    assert [each.name for each in again.splits["valid"]] == [each.name for each in known.splits["valid"]]
    with pytest.raises(ValueError, match="does not have an4_mfcc.npz.* gave nothing: "):
        prepare._download(tmp_path / "other", address)  # the server is gone


def test_another_corpus_is_an_error(prepare: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="AN4 needs a folder. Give --data_folder DIR"):
        prepare.prepare_an4(None)
    few = [prepare.Utterance("an1-abcd-b", "train", "YES", torch.zeros(3, 13))]
    with pytest.raises(ValueError, match=r"AN4 has 948 utterances for train, and .* has 1\."):
        prepare.check_content(few, DICTIONARY, tmp_path)
    others = [
        prepare.Utterance(f"an{i}-abcd-b", split, "YES", torch.zeros(3, 13))
        for split, number in prepare.COUNTS.items()
        for i in range(number)
    ]
    with pytest.raises(ValueError, match="is not that of AN4: its SHA-256 is "):
        prepare.check_content(others, DICTIONARY, tmp_path)


@pytest.mark.parametrize("order", ["<", ">"])
def test_mfc_files_are_read_in_either_order_of_bytes(prepare: ModuleType, order: str) -> None:
    values = [float(i) for i in range(26)]
    frames = prepare.read_mfc(struct.pack(f"{order}i26f", 26, *values), "a.mfc")
    assert frames.shape == (2, 13) and frames.flatten().tolist() == values


@pytest.mark.parametrize("content", [b"", b"abc", struct.pack("<i26f", 27, *[0.0] * 26)])
def test_a_broken_mfc_file_is_named(prepare: ModuleType, content: bytes) -> None:
    with pytest.raises(ValueError, match=r"feat/a.mfc is no file of 13 MFCCs: it has \d+ bytes"):
        prepare.read_mfc(content, "feat/a.mfc")


# ------------------------------------------------------------------------------------------- augmentation and model


def test_cepstra_come_back_from_log_mels() -> None:
    with recipe_module("an4", "augment") as augment:
        cepstra, counts = torch.randn(2, 20, 13), torch.tensor([20, 12])
        cepstra[1, 12:] = 0
        still = augment.CepstralAugment(warp=0.0, speed=0.0)
        assert torch.allclose(still(cepstra, counts)[0], cepstra, atol=1e-5)
        moving = augment.CepstralAugment(warp=0.2, speed=0.2)
        changed, new_counts = moving(cepstra, counts)
        assert changed.shape[1] == new_counts.max() and not torch.equal(new_counts, counts)
        assert changed[0, new_counts[0] :].abs().sum() == changed[1, new_counts[1] :].abs().sum() == 0
        same, same_counts = moving.eval()(cepstra, counts)
        assert same is cepstra and same_counts is counts


def test_twice_the_speed_takes_every_second_place() -> None:
    with recipe_module("an4", "augment") as augment:
        module = augment.CepstralAugment(speed=0.5)
        line = torch.arange(100.0).reshape(1, 100, 1).expand(1, 100, 13)
        changed, counts = module._at_another_speed(line, torch.tensor([100]))
        steps = changed[0, 1:-1, 0].diff()
        assert torch.allclose(steps, torch.full_like(steps, 100 / counts.item()), atol=1e-3)


def test_what_comes_out_does_not_depend_on_the_batch() -> None:
    with recipe_module("an4", "model") as model:
        network = model.ConvBlstm(39, 10, channels=8, hidden_size=6).eval()
        features, counts = torch.randn(3, 50, 39), torch.tensor([50, 31, 14])
        for item, count in zip(features, counts, strict=True):
            item[count:] = 0
        together, frames = network(features, counts), network.num_frames(counts)
        assert together.shape == (3, 13, 10) and frames.tolist() == [13, 8, 4]
        for item, count, output, number in zip(features, counts, together, frames, strict=True):
            alone = network(item[None, :count], count[None])[0]
            assert len(alone) == number and torch.allclose(alone, output[:number], atol=1e-5)


# ------------------------------------------------------------------------------------------------------------ tokens


def test_characters_are_read_as_they_stand(units: ModuleType) -> None:
    characters = units.Characters(DICTIONARY)
    assert characters.spell("A SIX") == ["A", "_", "S", "I", "X"]
    assert characters.read(["_", "A", "_", "_", "S", "X", "_"]) == ["A", "SX"]


def test_phones_are_read_as_the_most_frequent_word_that_sounds_most_like_them(units: ModuleType) -> None:
    phones = units.Phones(DICTIONARY, ["SIX O", "O O OH"])
    assert phones.spell("A SIX") == ["AH", "_", "S", "IH", "K", "S"]
    assert phones.read(["EY", "_", "OW", "_", "S", "IH", "S"]) == ["A", "O", "SIX"]
    assert units.Phones(DICTIONARY, ["OH"]).read(["OW"]) == ["OH"]


def test_the_search_finds_words_of_the_dictionary(units: ModuleType) -> None:
    for kind, said in ((units.Characters, "OOH"), (units.Phones, ["OW"])):
        tokens = kind(DICTIONARY, ["OH"])
        encoder = units.make_encoder(tokens)
        log_probs = torch.full((6, len(encoder)), -9.0)
        for frame, token in enumerate([*said, "_", *tokens.spell("SIX")][:6]):
            log_probs[frame, encoder.encode_label(token)] = 0.0
        ngram = WordNgram([["OH", "SIX"]] * 5, 2, vocabulary=DICTIONARY)
        assert units.make_search(tokens, encoder, ngram)(log_probs)[0] == "OH"
