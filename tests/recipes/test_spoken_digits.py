"""The recipe on real speech: what it learns, that a cut run ends as an uncut one, and how its data is got ready."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import runpy
import signal
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest
import torch

import brainlib as bl
from tests.distributed.host import Host
from tests.recipes.outcome import TIMES, results, rows_of

pytest.importorskip("matplotlib", reason="the recipe draws with matplotlib")

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "recipes" / "spoken_digits" / "train.py"
HPARAMS = ROOT / "hparams" / "spoken_digits"
OUTPUTS = {"curves.png", "confusion.png", "mistakes.png", "mistakes.txt", "results.json", "metrics.jsonl"}


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Host("brainlib.audio", "matplotlib.figure") as started:
        yield started


def recipe(*arguments: str) -> None:
    """In a process of its own: the script, from the command line."""
    sys.argv = [str(SCRIPT), *arguments]
    sys.path.insert(0, str(SCRIPT.parent))
    runpy.run_path(str(SCRIPT), run_name="__main__")


def words(name: str, data: Path, out: Path, *arguments: str) -> list[str]:
    places = ["--output_folder", str(out), "--data_folder", str(data)]
    return [str(HPARAMS / f"{name}.yaml"), *places, "--noprogressbar", *arguments]


# ------------------------------------------------------------------------------------------------- what it learns


PLAINLY = "{speed: {speeds: [100]}, noise: {prob: 0.0}, warp: {low: 1.0, high: 1.0}}"  # it learns sooner


@pytest.mark.parametrize(
    ("name", "arguments", "least"),
    [
        ("digits", ("--number_of_epochs", "5", "--modules", PLAINLY), 0.97),
        ("held_out", ("--number_of_epochs", "3", "--hold_out", "theo"), 0.70),
    ],
)
def test_it_hears_most_digits_after_a_few_epochs(
    host: Host,
    tmp_path: Path,
    data_dir: Callable[[str], Path],
    name: str,
    arguments: tuple[str, ...],
    least: float,
) -> None:
    """Far fewer epochs than the recipe asks for: this finds what is broken, not what is a little worse."""
    out = tmp_path / "out"
    host.run(recipe, tmp_path, *words(name, data_dir("fsdd"), out, *arguments), size=1, limit=100)
    found = results(out)
    assert found["test"]["accuracy"] >= least
    assert found["label"] == "digit" and found["seed"] == 1234 and found["seconds"] > 0 < found["cpu_seconds"]
    assert {path.name for path in out.iterdir()} >= OUTPUTS
    told = (out / "mistakes.txt").read_text()
    assert told.startswith(f"accuracy: {found['test']['accuracy']:.4f}\n")
    num_test = sum(1 for _ in open(out / "manifests" / "test.csv")) - 1
    num_wrong = sum(" instead of " in line for line in told.splitlines())
    assert num_wrong == round((1 - found["test"]["accuracy"]) * num_test)


# ------------------------------------------------------------------------------------------------- cut, and again

SHORT = ("--number_of_epochs", "2", "--channels", "[4, 8]", "--train_loader", "{num_workers: 2}")
SAVING = ("--ckpt_interval_steps", "1", "--ckpt_async", "False")
LIMIT = ("--limit_train_batches", "6")


ONE_SPEED = ("--modules", "{speed: {speeds: [100]}, normalize: {num_speakers: 6}}", "--listenings", "null")


@pytest.mark.parametrize(
    ("name", "size", "more"),
    [("speaker", 1, ()), ("speaker", 2, ()), ("held_out", 1, ONE_SPEED)],
    ids=["speaker", "speaker, two ranks", "held out, by voice"],
)
def test_a_cut_run_ends_as_an_uncut_one(
    host: Host, tmp_path: Path, data_dir: Callable[[str], Path], name: str, size: int, more: tuple[str, ...]
) -> None:
    """With workers, augmentation, and batches of a total length; on one process and two."""
    uncut, out = tmp_path / "uncut", tmp_path / "cut"
    arguments = [*words(name, data_dir("fsdd"), uncut, *SHORT, *SAVING, *LIMIT, *more)]
    host.run(recipe, tmp_path, *arguments, size=size)

    def kill(pids: list[int]) -> None:
        if len(list((out / "save").glob("step-*"))) >= 2:  # in the middle of the first epoch
            for pid in pids:
                with suppress(ProcessLookupError):  # this is called again until both are gone
                    os.kill(pid, signal.SIGKILL)

    arguments[2] = str(out)
    ended = host.start(recipe, tmp_path, *arguments, size=size, meddle=kill)
    assert [each.status for each in ended] == [-signal.SIGKILL] * size, ended
    host.run(recipe, tmp_path, *arguments, size=size)

    assert "resumed" in (out / "train_log.txt").read_text()
    found, expected_rows = rows_of(out), rows_of(uncut)
    if size == 2:  # of several ranks a checkpoint holds the counts of the main one
        for row in (found[0], expected_rows[0]):
            del row["train"]["accuracy"]
    assert found == expected_rows and len(found) == 2
    assert {key: value for key, value in results(out).items() if key not in TIMES} == {
        key: value for key, value in results(uncut).items() if key not in TIMES
    }
    weights, expected = (bl.load_weights(each / "save", "model") for each in (out, uncut))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


# ------------------------------------------------------------------------------------------------------- its data


@pytest.fixture(scope="module")
def prepare() -> ModuleType:
    """recipes/spoken_digits/prepare.py, under a name that no other recipe's prepare.py has."""
    spec = importlib.util.spec_from_file_location("spoken_digits_prepare", SCRIPT.with_name("prepare.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("hold_out", "valid_speaker", "counts"),
    [
        (None, None, {"train": 2520, "valid": 180, "test": 300}),
        ("theo", None, {"train": 2350, "valid": 150, "test": 500}),
        ("theo", "lucas", {"train": 2000, "valid": 500, "test": 500}),
    ],
)
def test_every_recording_is_in_one_part(
    prepare: ModuleType,
    tmp_path: Path,
    data_dir: Callable[[str], Path],
    hold_out: str | None,
    valid_speaker: str | None,
    counts: dict[str, int],
) -> None:
    told = prepare.prepare_spoken_digits(data_dir("fsdd"), tmp_path, hold_out, valid_speaker)
    parts = {name: rows(tmp_path / f"{name}.csv") for name in counts}
    assert {name: len(part) for name, part in parts.items()} == counts
    assert len({row["ID"] for part in parts.values() for row in part}) == 3000
    for part in parts.values():
        assert len(set(Counter(row["digit"] for row in part).values())) == 1, "as many of each digit"
    where = {name: {row["speaker"] for row in part} for name, part in parts.items()}
    if hold_out is None:
        assert {row["take"] for row in parts["test"]} == set("01234")
        assert len(where["train"]) == len(where["valid"]) == len(where["test"]) == 6
    else:
        assert where["test"] == {hold_out} and hold_out not in where["train"] | where["valid"]
    if valid_speaker is not None:
        assert where["valid"] == {valid_speaker} and valid_speaker not in where["train"]
    assert told.splitlines()[2].startswith(f"test    {counts['test']} recordings,")


@pytest.mark.parametrize(
    ("hold_out", "valid_speaker", "message"),
    [
        (
            "george ",
            None,
            "hold_out is 'george ', and the speakers are george, jackson, lucas, nicolas, theo, yw",
        ),
        (None, "bob", "valid_speaker is 'bob', and the speakers are george"),
        ("theo", "theo", "hold_out and valid_speaker are both 'theo': choices would be made on the test"),
    ],
)
def test_speakers_who_are_not_there(
    prepare: ModuleType, tmp_path: Path, hold_out: str | None, valid_speaker: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        prepare.prepare_spoken_digits(tmp_path, tmp_path, hold_out, valid_speaker)


def test_other_recordings_are_refused(prepare: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "recordings").mkdir()
    (tmp_path / "recordings" / "0_theo_0.wav").write_bytes(b"RIFF")
    with pytest.raises(
        ValueError, match=r"holds 1 recordings whose SHA-256 is \w+. The results are those of 3000"
    ):
        prepare.prepare_spoken_digits(tmp_path, tmp_path / "manifests")


def archive(path: Path, contents: dict[str, bytes]) -> str:
    with tarfile.open(path, "w:gz") as packed:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    return path.as_uri()


def test_recordings_come_from_the_first_address_that_has_the_right_ones(
    prepare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = {"0_theo_0.wav": b"zero", "1_theo_0.wav": b"one"}
    inside = {f"set-1/recordings/{name}": content for name, content in right.items()}
    others = {"set-1/README.md": b"", "set-1/recordings/notes.txt": b"", "set-1/old/2_theo_0.wav": b""}
    addresses = [
        (tmp_path / "down").as_uri(),
        archive(tmp_path / "wrong.tar.gz", {**inside, "set-1/recordings/1_theo_0.wav": b"two"}),
        archive(tmp_path / "right.tar.gz", {**inside, **others}),
    ]
    (tmp_path / "torn.tar.gz").write_bytes((tmp_path / "right.tar.gz").read_bytes()[:60])
    addresses.insert(2, (tmp_path / "torn.tar.gz").as_uri())
    monkeypatch.setattr(prepare, "ADDRESSES", addresses)
    monkeypatch.setattr(prepare, "SHA256", prepare.sum_of(right))
    recordings = tmp_path / "data" / "recordings"
    prepare.download(recordings)
    assert {path.name: path.read_bytes() for path in recordings.iterdir()} == right
    assert [path.name for path in recordings.parent.iterdir()] == ["recordings"]
    prepare.check(recordings)

    monkeypatch.setattr(prepare, "ADDRESSES", addresses[:3])
    with pytest.raises(ValueError) as caught:
        prepare.download(tmp_path / "more" / "recordings")
    lines = str(caught.value).splitlines()
    assert len(lines) == 5 and "down" in lines[1] and "2 recordings with SHA-256" in lines[2]
    assert lines[4].endswith("name the folder that holds them: --data_folder DIR.")
    assert not (tmp_path / "more").exists()


def test_the_sum_is_that_of_the_shell(prepare: ModuleType) -> None:
    # printf a > 0_a_0.wav; printf b > 1_a_0.wav; LC_ALL=C sha256sum *.wav | sha256sum
    assert prepare.sum_of({"1_a_0.wav": b"b", "0_a_0.wav": b"a"}).startswith("da511c54bc642521")


# ------------------------------------------------------------------------------------------------------ the table


def test_the_table_has_means_and_the_worst_of_the_folds(
    prepare: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of runs that are finished, so that none is made."""
    monkeypatch.setitem(sys.modules, "prepare", prepare)
    run_all = runpy.run_path(str(SCRIPT.with_name("run_all.py")))
    for seed in (1, 2):
        for number, (name, _, words) in enumerate(run_all["runs"]()):
            folder = tmp_path / f"{name.replace(', ', '-').replace(' ', '-')}-seed{seed}"
            folder.mkdir()
            result = {"test": {"accuracy": 0.9 + number / 100 + seed / 1000}, "seed": seed}
            result |= {"hold_out": words[-1] if words else None, "seconds": 20.0, "cpu_seconds": 10.0 * seed}
            (folder / "results.json").write_text(json.dumps(result))
    run_all["main"]([str(tmp_path), "--seeds", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| test accuracy, % | mean | seed 1 | seed 2 | CPU s | s |"
    assert lines[2] == "| digits, official split | 90.15 | 90.10 | 90.20 | 15 | 20 |"
    assert lines[9].startswith("| digits, yweweler held out | 97.15 |")
    assert lines[10:] == [
        "| mean of the six | 94.65 | 94.60 | 94.70 |  |  |",
        "| worst of the six | 92.15 | 92.10 | 92.20 |  |  |",
    ]
    assert set(json.loads((tmp_path / "results.json").read_text())) == {
        name for name, *_ in run_all["runs"]()
    }
    assert [words for *_, words in run_all["runs"](choose=True)][:2] == [
        ("--hold_out", "yweweler", "--valid_speaker", "george"),
        ("--hold_out", "george", "--valid_speaker", "jackson"),
    ]
