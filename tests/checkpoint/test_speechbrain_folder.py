"""Checkpoints of SpeechBrain's, written here by hand in the form that SpeechBrain 1.1 gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from brainlib.checkpoint import Checkpointer, CheckpointError, load_weights
from brainlib.checkpoint.speechbrain_folder import newest_speechbrain, read_speechbrain
from brainlib.checkpoint.weights import checkpoint_at
from tests.checkpoint.small import linear

META = """# yamllint disable
WER: 12.5
end-of-epoch: true
unixtime: {unixtime}
"""


def speechbrain_checkpoint(
    folder: Path, modules: dict[str, torch.nn.Module], unixtime: float = 1700000000.25, meta: str = META
) -> Path:
    """As `Checkpointer.save_checkpoint` of SpeechBrain leaves it, with the files of a usual recipe."""
    folder.mkdir(parents=True)
    (folder / "CKPT.yaml").write_text(meta.format(unixtime=unixtime))
    for name, module in modules.items():
        torch.save(module.state_dict(), folder / f"{name}.ckpt")
    optimizer = torch.optim.Adam([p for module in modules.values() for p in module.parameters()])
    torch.save(optimizer.state_dict(), folder / "optimizer.ckpt")
    (folder / "brain.ckpt").write_text("avg_train_loss: 0.0\noptimizer_step: 300\nstep: 0\n")
    (folder / "counter.ckpt").write_text("3")
    (folder / "dataloader-TRAIN.ckpt").write_text("None")
    return folder


def test_weights_of_one(tmp_path: Path) -> None:
    one = speechbrain_checkpoint(tmp_path / "CKPT+2023-11-14+22-13-20+00", {"model": linear(3.0)})
    for path in (one, str(one), tmp_path):
        assert {key: value.item() for key, value in load_weights(path, "model").items()} == {
            "weight": 3.0,
            "bias": 3.0,
        }


def test_what_is_in_one(tmp_path: Path) -> None:
    one = speechbrain_checkpoint(tmp_path / "CKPT+a", {"model": linear()})
    read = read_speechbrain(one)
    assert (read.time, read.end_of_epoch, read.files) == (1700000000.25, True, {})
    assert {name: saved.kind for name, saved in read.recoverables.items()} == {
        "brain": "object",
        "counter": "object",
        "dataloader-TRAIN": "object",
        "model": "module",
        "optimizer": "module",  # a file of torch.save's all the same
    }
    (one / "CKPT.yaml").write_text("end-of-epoch: false\nunixtime: 1.7e9\n")
    assert (read_speechbrain(one).end_of_epoch, read_speechbrain(one).time) == (False, 1.7e9)


def test_a_part_of_a_module_can_be_named(tmp_path: Path) -> None:
    """Recipes save all their modules as one list."""
    parts = torch.nn.ModuleDict({"encoder": linear(1.0), "decoder": linear(2.0)})
    speechbrain_checkpoint(tmp_path / "CKPT+a", {"model": parts})
    assert load_weights(tmp_path, "decoder")["weight"].item() == 2.0
    with pytest.raises(CheckpointError, match="'modle'; it holds 'brain', 'counter', .* mean 'model'"):
        load_weights(tmp_path, "modle")


def test_the_newest_is_the_one_with_the_latest_time(tmp_path: Path) -> None:
    """Not the name, in which the local time stands, and not the file system's time."""
    for name, value, unixtime in (
        ("a", 1.0, 1700000300.5),
        ("b", 2.0, 1700000900.5),
        ("c", 3.0, 1700000600.5),
    ):
        speechbrain_checkpoint(tmp_path / f"CKPT+{name}", {"model": linear(value)}, unixtime)
    assert load_weights(tmp_path)["weight"].item() == 2.0


@pytest.mark.parametrize("how", ["no meta", "empty meta", "cut file", "empty file", "folder as meta"])
def test_a_save_that_was_killed_is_skipped(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SpeechBrain writes its CKPT.yaml first, so that such a one looks complete to it."""
    speechbrain_checkpoint(tmp_path / "CKPT+a", {"model": linear(1.0)}, 1.0)
    torn = speechbrain_checkpoint(tmp_path / "CKPT+b", {"model": linear(2.0)}, 2.0)
    if how == "empty meta":
        (torn / "CKPT.yaml").write_bytes(b"")
    elif how == "cut file":
        (torn / "model.ckpt").write_bytes((torn / "model.ckpt").read_bytes()[:-100])
    elif how == "empty file":
        (torn / "model.ckpt").write_bytes(b"")
    else:
        (torn / "CKPT.yaml").unlink()
        if how == "folder as meta":
            (torn / "CKPT.yaml").mkdir()
    assert load_weights(tmp_path)["weight"].item() == 1.0
    if "meta" not in how or how == "empty meta":
        assert f"{torn} is skipped: its " in caplog.text
        assert "so its save was not finished" in caplog.text


def test_nothing_in_its_yaml_is_executed(tmp_path: Path) -> None:
    evil = META + f"metric: !!python/object/apply:os.mkdir ['{tmp_path / 'made'}']\n"
    one = speechbrain_checkpoint(tmp_path / "save" / "CKPT+a", {"model": linear(1.0)}, meta=evil)
    assert load_weights(tmp_path / "save")["weight"].item() == 1.0
    assert load_weights(one)["weight"].item() == 1.0
    assert not (tmp_path / "made").exists()


def test_nothing_in_its_files_is_executed(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return exec, (f"import os; os.mkdir({str(tmp_path / 'made')!r})",)

    one = speechbrain_checkpoint(tmp_path / "CKPT+a", {"model": linear(1.0)})
    torch.save({"weight": Evil()}, one / "model.ckpt")
    with pytest.raises(CheckpointError, match="cannot be read by the safe loader"):
        load_weights(one)
    assert not (tmp_path / "made").exists()


def test_an_object_that_torch_did_not_write(tmp_path: Path) -> None:
    one = speechbrain_checkpoint(tmp_path / "CKPT+a", {"model": linear()})
    with pytest.raises(CheckpointError, match="counter.ckpt is not loaded: it is no zip archive"):
        load_weights(one, "counter")


def test_ours_come_first_in_a_folder_of_both(tmp_path: Path) -> None:
    speechbrain_checkpoint(tmp_path / "CKPT+a", {"model": linear(1.0)})
    Checkpointer(tmp_path, {"model": linear(2.0)}).save_checkpoint()
    assert load_weights(tmp_path)["weight"].item() == 2.0


def test_the_folder_above_is_an_error_that_says_where(tmp_path: Path) -> None:
    speechbrain_checkpoint(tmp_path / "save" / "CKPT+a", {"model": linear(1.0)})
    with pytest.raises(CheckpointError, match="nor does it hold one; there are in 'save' inside it"):
        checkpoint_at(tmp_path)


def test_places_without_any(tmp_path: Path) -> None:
    assert newest_speechbrain(tmp_path) is None and newest_speechbrain(tmp_path / "never") is None
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="file is a file; .* is read by torch.load"):
        load_weights(tmp_path / "file")
