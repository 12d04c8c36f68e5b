"""`brainlib ckpt` on real folders: what it prints, its exit status, and that it changes nothing."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from brainlib.checkpoint import manifest
from brainlib.cli import main
from tests.brain.small import Regression, batches, sgd
from tests.brain.small import linear as regression_model
from tests.checkpoint.small import Counter, Trainer, fill, linear
from tests.checkpoint.small import Foreground as Checkpointer

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four checkpoints with the weights 1, 2, 3 and 4."""
    place = tmp_path / "results" / "save"
    model = linear()
    trainer = Trainer(model=model, counter=Counter(3))
    checkpointer = Checkpointer(place)
    checkpointer.attach(trainer)
    for value, loss in ((1.0, 0.5), (2.0, math.nan), (3.0, 0.25)):
        fill(model, value)
        trainer.step += 100
        checkpointer.save_checkpoint({"loss": loss, "remark": "warm"})
    fill(model, 4.0)
    trainer.step += 50
    checkpointer.save_checkpoint(reason="timed")
    return place


def snapshot_of(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in folder.rglob("*")}


def brainlib(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = main(["ckpt", *map(str, words)])
    told = capsys.readouterr()
    return status, told.out, told.err


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_ls(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot_of(folder)
    status, out, err = brainlib(capsys, "ls", folder)
    lines = [line.split() for line in out.splitlines()]
    assert (status, err) == (0, "")
    assert lines[0] == ["commit", "folder", "reason", "epoch", "updates", "size", "saved", "at", "metrics"]
    assert [line[:5] for line in lines[1:]] == [
        ["4", "step-00000350", "timed", "1", "350"],
        ["3", "step-00000300", "user", "1", "300"],
        ["2", "step-00000200", "user", "1", "200"],
        ["1", "step-00000100", "user", "1", "100"],
    ]
    assert [line[-2:] for line in lines[2:]] == [["loss", "0.25"], ["loss", "nan"], ["loss", "0.5"]]
    assert snapshot_of(folder) == before


def test_ls_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = brainlib(capsys, "ls", folder, "--json")
    entries = json.loads(out)
    assert status == 0 and [entry["commit"] for entry in entries] == [4, 3, 2, 1]
    assert entries[2]["meta"] == {"loss": "nan", "remark": "warm"} and entries[2]["damaged"] is None
    assert entries[1]["counters"]["optimizer_step"] == 300


@pytest.fixture
def folder_of_snapshots(tmp_path: Path) -> Path:
    """What a run leaves with two Snapshots, one of them at an error, its own automatic saves and one of the script."""

    class Failing(Regression):
        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
            if epoch == 2:
                raise RuntimeError("no")
            if epoch == 0:
                self.checkpointer.save_checkpoint({"mine": 1.0}, name="first")

    brain = Failing(
        {"model": regression_model()},
        sgd,
        run_opts={"noprogressbar": True},
        checkpointer=bl.Checkpointer(tmp_path / "save", background=False),
        extensions=[
            bl.Snapshot(max_size=1, trigger=(2, "step"), name="two words"),
            bl.Snapshot(snapshot_on_error=True),
        ],
    )
    with pytest.raises(RuntimeError, match="no"):
        brain.fit(range(3), batches(2, 2, 2))
    return tmp_path / "save"


def test_ls_says_whose_a_checkpoint_is(
    folder_of_snapshots: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:  # it is in the journal
        patch.setattr(manifest, "read", lambda path: pytest.fail(f"read the manifest of {path}"))
        status, out, _ = brainlib(capsys, "ls", folder_of_snapshots)
    assert status == 0
    reasons = [re.split("  +", line)[2] for line in out.splitlines()]
    listed = bl.Checkpointer(folder_of_snapshots).list_checkpoints()
    assert reasons == [
        "reason",
        *(
            f"error, by {c.snapshot_of}"
            if c.reason == "error"
            else f"snapshot {c.number} of {c.snapshot_of}"
            if c.reason == "snapshot"
            else c.reason
            for c in listed
        ),
    ]
    assert {"error, by Snapshot", "user", "snapshot 1 of Snapshot", "snapshot 2 of Snapshot"} <= set(reasons)
    assert sum(reason.endswith(" of two words") for reason in reasons) == 1
    entries = json.loads(brainlib(capsys, "ls", folder_of_snapshots, "--json")[1])
    assert [(e["snapshot_of"], e["number"]) for e in entries] == [(c.snapshot_of, c.number) for c in listed]
    mine = next(c for c in listed if c.snapshot_of == "two words")
    assert f"snapshot of: two words\nnumber: {mine.number}\n" in brainlib(capsys, "show", mine.path)[1]
    user = next(c for c in listed if c.reason == "user")
    assert "snapshot of" not in brainlib(capsys, "show", user.path)[1]


def test_ls_of_a_journal_that_does_not_know_of_snapshots(
    folder_of_snapshots: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines of an older version: the manifests are asked, and nothing is changed."""
    whole = brainlib(capsys, "ls", folder_of_snapshots)
    journal = folder_of_snapshots / "records.jsonl"
    older = b""
    for line in journal.read_bytes().splitlines():
        known = {k: v for k, v in json.loads(line).items() if k not in ("crc", "snapshot_of", "number")}
        rest = json.dumps(known).encode()[1:]
        older += b'{"crc": "%08x", %s\n' % (zlib.crc32(rest), rest)
    journal.write_bytes(older)
    before = snapshot_of(folder_of_snapshots)
    assert brainlib(capsys, "ls", folder_of_snapshots) == whole
    assert snapshot_of(folder_of_snapshots) == before


def test_a_name_of_a_snapshot_may_hold_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Checkpointer(tmp_path, {"model": linear()}).save_checkpoint(reason="snapshot", snapshot=("\x1b[2J", 1))
    assert "snapshot 1 of '\\x1b[2J'" in brainlib(capsys, "ls", tmp_path)[1]


def test_ls_tells_what_is_damaged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "step-00000100" / "manifest.json").write_text('{"format": "brainlib-che')
    os.truncate(folder / "step-00000200" / "model.pt", 10)
    status, out, err = brainlib(capsys, "ls", folder)
    assert status == 1 and err == ""
    assert "damaged: step-00000100: its manifest.json is torn" in out
    assert "damaged: step-00000200: its model.pt has 10 bytes and was written with" in out
    status, out, _ = brainlib(capsys, "ls", folder, "--json")
    assert status == 1 and sum(entry["damaged"] is not None for entry in json.loads(out)) == 2


def test_ls_reads_no_manifest_of_an_intact_folder(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands are listed from records.jsonl; and it says the same without that file."""
    (folder / "notes").mkdir()
    (folder / "notes" / "remark.txt").touch()
    monkeypatch.setattr(manifest, "read", lambda path: pytest.fail(f"read the manifest of {path}"))
    with_journal = brainlib(capsys, "ls", folder)
    monkeypatch.undo()
    (folder / "records.jsonl").unlink()
    assert brainlib(capsys, "ls", folder) == with_journal and with_journal[0] == 0
    assert not (folder / "records.jsonl").exists(), "it changes nothing"


def test_ls_looks_into_the_folders_that_a_hook_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def save(obj: Any, path: Path) -> None:
        (path / "deep").mkdir(parents=True)
        (path / "deep" / "a.txt").write_text("hello")

    def load(obj: Any, path: Path, end_of_epoch: bool) -> None:
        pass

    checkpointer = Checkpointer(tmp_path)
    checkpointer.add_recoverable("odd", object(), load, save)
    saved = checkpointer.save_checkpoint()
    assert brainlib(capsys, "ls", tmp_path)[0] == 0
    (saved.path / "remark.txt").write_text("somebody's")
    assert brainlib(capsys, "ls", tmp_path)[0] == 0, "what was added is no damage"
    (saved.path / "odd.ckpt" / "deep" / "a.txt").write_text("hell")
    status, out, _ = brainlib(capsys, "ls", tmp_path)
    assert status == 1 and "its odd.ckpt/deep/a.txt has 4 bytes and was written with 5" in out


def test_ls_of_a_moved_and_of_a_copied_folder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = brainlib(capsys, "ls", folder)
    for place in (
        folder.rename(tmp_path / "moved"),
        Path(shutil.copytree(tmp_path / "moved", tmp_path / "copy")),
    ):
        assert brainlib(capsys, "ls", place) == before


def test_ls_where_there_is_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = brainlib(capsys, "ls", folder.parent)
    assert status == 0
    assert f"there are no checkpoints in {folder.parent}; there are in 'save' inside it" in out


def test_show(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = brainlib(capsys, "show", folder / "step-00000300")
    assert (status, err) == (0, "")
    for line in (
        "commit: 3",
        "reason: user",
        "  optimizer_step: 300",
        "  loss: 0.25",
        "  remark: warm",
        "best means: not said",
    ):
        assert line in out.splitlines()
    assert "  model: module, torch.nn.modules.linear.Linear, model.pt, " in out
    status, out, _ = brainlib(capsys, "show", folder / "step-00000300", "--json")
    told = json.loads(out)
    assert told["objects"]["counter"]["kind"] == "object" and set(told["files"]) == {
        "counter.json",
        "model.pt",
    }
    (folder / "step-00000300" / "model.pt").unlink()
    status, out, _ = brainlib(capsys, "show", folder / "step-00000300")
    assert status == 1 and "damaged: its model.pt is missing" in out


def test_show_prints_no_escape_sequences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = Checkpointer(tmp_path, {"model": linear()}).save_checkpoint({"remark": "\x1b[2Jgone"})
    _, out, _ = brainlib(capsys, "show", saved.path)
    assert "\x1b" not in out and "  remark: '\\x1b[2Jgone'" in out


def test_verify_reads_every_byte(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot_of(folder)
    status, out, _ = brainlib(capsys, "verify", folder)
    assert status == 0 and out.splitlines()[-1] == "4 intact, 0 damaged" and snapshot_of(folder) == before
    flip(folder / "step-00000200" / "model.pt")
    (folder / "step-00000100" / "manifest.json").unlink()
    status, out, _ = brainlib(capsys, "verify", folder)
    assert status == 1
    assert out.splitlines()[1:] == [
        f"{folder}/step-00000300: intact",
        f"{folder}/step-00000200: its model.pt is not what was written (its sum differs)",
        f"{folder}/step-00000100: it has no manifest.json",
        "2 intact, 2 damaged",
    ]
    status, out, _ = brainlib(capsys, "verify", folder, "--json")
    assert status == 1 and sum(entry["damaged"] is None for entry in json.loads(out)) == 2


def test_verify_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = folder / "step-00000200"
    assert brainlib(capsys, "verify", one)[:2] == (0, f"{one}: intact\n1 intact, 0 damaged\n")
    flip(one / "counter.json")
    assert brainlib(capsys, "verify", one)[0] == 1
    (one / "manifest.json").unlink()
    status, _, err = brainlib(capsys, "verify", one)
    assert status == 1 and err == f"brainlib: {one} is no intact checkpoint: it has no manifest.json\n"


def test_verify_nothing_is_not_all_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = brainlib(capsys, "verify", tmp_path)
    assert status == 2 and err == f"brainlib: there is nothing to verify in {tmp_path}\n"


@pytest.mark.parametrize(
    ("order", "expected", "parents"),
    [([], 2.5, [3, 2]), (["--min_key", "loss"], 2.0, [3, 1]), (["--max-key", "loss"], 2.0, [1, 3])],
)
def test_average(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    order: list[str],
    expected: float,
    parents: Any,
) -> None:
    before = snapshot_of(folder)
    output = tmp_path / "mean.pt"
    status, out, err = brainlib(capsys, "average", folder, "--num", 2, *order, "--output", output)
    assert (status, err) == (0, "") and out.startswith(f"wrote {output}, the mean of 'model' over 'step-")
    model = torch.nn.Linear(1, 1)
    model.load_state_dict(torch.load(output, weights_only=True))
    assert model.weight.item() == expected
    record = json.loads(Path(f"{output}.json").read_text())
    assert [parent["commit"] for parent in record["parents"]] == parents
    assert snapshot_of(folder) == before


def test_show_and_verify_tell_the_parents_of_an_average(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = folder.parent / "mean.pt"
    brainlib(capsys, "average", folder, "--num", 2, "--min_key", "loss", "--output", output)
    status, out, err = brainlib(capsys, "show", output)
    total = json.loads((folder / "step-00000300" / "manifest.json").read_text())["files"]["model.pt"][
        "sha256"
    ]
    assert (status, err) == (0, "")
    assert out.splitlines()[:6] == [
        f"path: {output}",
        "the mean of: model",
        "chosen by: min loss",
        "parents:",
        '  commit 3: save/step-00000300, {"loss": 0.25, "remark": "warm"}',
        f"    model.pt: sha256 {total}",
    ]
    status, out, _ = brainlib(capsys, "show", output, "--json")
    told = json.loads(out)
    assert status == 0 and told["damaged"] is None
    assert [parent["path"] for parent in told["parents"]] == ["save/step-00000300", "save/step-00000100"]
    assert brainlib(capsys, "verify", output)[:2] == (0, f"{output}: intact\n1 intact, 0 damaged\n")

    flip(output)
    status, out, _ = brainlib(capsys, "show", output)
    assert status == 1 and out.splitlines()[-1] == "damaged: it is not what was written (its sum differs)"
    assert brainlib(capsys, "verify", output)[0] == brainlib(capsys, "verify", output, "--json")[0] == 1
    for command in ("show", "verify"):
        status, _, err = brainlib(capsys, command, folder / "records.jsonl")
        assert status == 2 and "is a file without a record: only what average wrote has one" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num", "4"], "--num asks for 4, and there are 3 checkpoints in "),
        (
            ["--num", "4"],
            "A run keeps several where num_snapshots=N, a Snapshot or save_and_keep_only tells it to",
        ),
        (["--num", "3", "--min_key", "loss"], "there are 2 checkpoints with a number as 'loss' in "),
        (
            ["--num", "1", "--min_key", "los"],
            "no checkpoint has the metric 'los'. Those there are: 'loss'. Did you mean",
        ),
        (["--num", "0"], "--num is 0; give how many checkpoints to average, at least 1"),
        (["--num", "1", "--name", "modle"], "holds nothing named 'modle'; it holds 'model', 'counter'"),
        (
            ["--num", "1", "--output", "taken"],
            "taken exists already; give the name of a new file, or remove it",
        ),
    ],
)
def test_average_says_what_is_wrong(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    words: list[str], message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("taken").touch()
    status, _, err = brainlib(capsys, "average", folder, "--output", "new", *words)
    assert status == 2 and message in err
    assert not Path("new").exists() and Path("taken").read_bytes() == b""


def test_average_refuses_damage(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(folder / "step-00000300" / "model.pt")
    status, _, err = brainlib(capsys, "average", folder, "--num", 2, "--output", tmp_path / "new")
    assert (
        status == 1 and "step-00000300 is no intact checkpoint: its model.pt is not what was written" in err
    )
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ls", "nowhere"], "nowhere is no folder; give a folder of checkpoints"),
        (["show", "nowhere"], "nowhere is no folder; give the folder of one checkpoint"),
        (
            ["ls", "save/step-00000100"],
            "save/step-00000100 is one checkpoint; give the folder it is in, or use show or",
        ),
        (
            ["show", "save"],
            "save is no checkpoint: it has no manifest.json; it holds checkpoints, so give one of them",
        ),
    ],
)
def test_what_is_no_folder_of_checkpoints(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(folder.parent)
    status, out, err = brainlib(capsys, *words)
    assert (status, out) == (2, "") and message in err


def test_the_console_script_leads_here(folder: Path) -> None:
    root = Path(__file__).parents[2]
    scripts = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"]
    module, function = scripts["brainlib"].split(":")
    code = f"import sys; from {module} import {function}; sys.exit({function}())"
    flip(folder / "step-00000200" / "model.pt")
    words = [sys.executable, "-c", code, "ckpt", "verify", str(folder)]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "3 intact, 1 damaged" in done.stdout, done.stderr


def test_the_package_leads_here_too(folder: Path) -> None:
    words = [sys.executable, "-m", "brainlib", "ckpt", "show", str(folder / "nothing")]
    done = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("brainlib: "), done.stderr


def test_a_reader_that_has_gone_ends_it_quietly(tmp_path: Path) -> None:
    checkpoint = bl.Checkpointer(tmp_path, {"model": torch.nn.Linear(2, 1)}).save_checkpoint().wait()
    reader, writer = os.pipe()
    os.close(reader)
    shown = subprocess.run(
        [sys.executable, "-m", "brainlib", "ckpt", "show", str(checkpoint.path)],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert (shown.returncode, shown.stderr) == (128 + signal.SIGPIPE, "")
