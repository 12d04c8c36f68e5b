"""`Checkpointer.load_modules`: the weights of another run in the live modules, all of them or none."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import brainlib as bl
from brainlib.checkpoint import CheckpointError, DamagedCheckpointError
from brainlib.checkpoint.averaging import write_average
from brainlib.common.files import sha256_of
from tests.checkpoint.small import Counter, Trainer, fill, linear, value_of
from tests.checkpoint.small import Foreground as Checkpointer
from tests.checkpoint.test_speechbrain_folder import speechbrain_checkpoint


def taker(**modules: Any) -> Checkpointer:
    """A checkpointer whose folder must never be touched."""
    return Checkpointer("/nowhere/ever", modules)


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in folder.rglob("*")}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two checkpoints with a model, a head and a counter; weights 1 and 2."""
    model, head = linear(), linear()
    checkpointer = Checkpointer(tmp_path / "source", {"model": model, "head": head, "counter": Counter(5)})
    for value in (1.0, 2.0):
        fill(model, value)
        fill(head, value + 10)
        checkpointer.save_checkpoint()
    return tmp_path / "source"


# ------------------------------------------------------------------------------------------------------ what it takes


def test_from_one_checkpoint_and_from_the_newest_of_a_folder(source: Path) -> None:
    before = files_of(source)
    for path, value in ((source, 2.0), (str(source), 2.0), (source / "commit-00000001", 1.0)):
        model, head = linear(), linear()
        loaded = taker(model=model, head=head).load_modules(path)
        assert (value_of(model), value_of(head)) == (value, value + 10)
        assert (loaded.names, loaded.lacking) == (("model", "head"), ())
        assert loaded.path == (source / "commit-00000002" if value == 2.0 else source / "commit-00000001")
        assert loaded.sums == {name: sha256_of(loaded.path / name) for name in ("model.pt", "head.pt")}
    assert files_of(source) == before


def test_nothing_but_modules(source: Path) -> None:
    counter, model = Counter(7), linear()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    taker(model=model, counter=counter, optimizer=optimizer).load_modules(source)
    assert (value_of(model), counter.n, optimizer.param_groups[0]["lr"]) == (2.0, 7, 0.5)
    assert not optimizer.state


def test_what_an_owner_holds_by_the_names_of_its_checkpoints(source: Path) -> None:
    model, head = linear(), linear()
    checkpointer = taker(model=model)  # registered under a name, and found under another
    checkpointer.attach(Trainer(modules=nn.ModuleDict({"x": model}), head=head))
    assert checkpointer.load_modules(source).names == ("model", "head")
    assert (value_of(model), value_of(head)) == (2.0, 12.0)


def test_one_that_is_not_there_stays_as_it_is(source: Path) -> None:
    model, other = linear(), linear(5.0)
    loaded = taker(model=model, other=other, loss=nn.MSELoss()).load_modules(source)
    assert (loaded.names, loaded.lacking) == (("model",), ("other",)), "the loss has no weights to miss"
    assert (value_of(model), value_of(other)) == (2.0, 5.0)


def test_from_speechbrain(tmp_path: Path) -> None:
    save = tmp_path / "save"
    for name, value, unixtime in (("a", 1.0, 100.5), ("b", 2.0, 300.5), ("c", 3.0, 200.5)):
        speechbrain_checkpoint(save / f"CKPT+{name}", {"model": linear(value)}, unixtime)
    before = files_of(save)
    for path, value in ((save, 2.0), (save / "CKPT+c", 3.0), (save / "CKPT+c" / "model.ckpt", 3.0)):
        model = linear()
        loaded = taker(model=model).load_modules(path)
        assert value_of(model) == value
        assert list(loaded.sums) == ["model.ckpt"] and len(loaded.sums["model.ckpt"]) == 64
    assert files_of(save) == before


def test_a_module_with_hooks_of_its_own_reads_its_file(tmp_path: Path) -> None:
    @bl.register_checkpoint_hooks
    class Odd(nn.Linear):
        @bl.mark_as_saver
        def _save(self, path: Path) -> None:
            path.write_text(str(self.weight.item()))

        @bl.mark_as_loader
        def _load(self, path: Path, end_of_epoch: bool) -> None:
            with torch.no_grad():
                self.weight.fill_(float(path.read_text()))

    odd = Odd(1, 1)
    fill(odd, 4.0)
    Checkpointer(tmp_path / "ours", {"odd": odd}).save_checkpoint()
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "CKPT.yaml").write_text("unixtime: 1.5\n")
    (theirs / "odd.ckpt").write_text("6.0")
    for path, value in ((tmp_path / "ours", 4.0), (theirs, 6.0)):
        live = Odd(1, 1)
        taker(odd=live).load_modules(path)
        assert live.weight.item() == value
    (theirs / "odd.ckpt").write_text("nan")
    live = Odd(1, 1)
    before = live.weight.item()
    with pytest.raises(
        CheckpointError, match="all is as it was before.*'weight' there hold values that are not"
    ):
        taker(odd=live).load_modules(theirs)
    assert live.weight.item() == before


# --------------------------------------------------------------------------------------------- a file with a state dict


def test_a_file_for_the_only_module(tmp_path: Path) -> None:
    torch.save(linear(3.0).state_dict(), tmp_path / "epoch 12.pt")
    model = linear()
    loaded = taker(anything=model).load_modules(tmp_path / "epoch 12.pt")
    assert (value_of(model), loaded.names, loaded.path) == (3.0, ("anything",), tmp_path / "epoch 12.pt")
    assert loaded.sums == {"epoch 12.pt": sha256_of(tmp_path / "epoch 12.pt")}


def test_a_file_that_is_named_after_a_module(tmp_path: Path) -> None:
    torch.save(linear(3.0).state_dict(), tmp_path / "head.pt")
    model, head = linear(1.0), linear(1.0)
    loaded = taker(model=model, head=head).load_modules(tmp_path / "head.pt")
    assert (value_of(model), value_of(head), loaded.lacking) == (1.0, 3.0, ("model",))


def test_a_file_of_all_modules(tmp_path: Path) -> None:
    """``torch.save(brain.modules.state_dict(), path)``."""
    torch.save(nn.ModuleDict({"model": linear(2.0), "head": linear(3.0)}).state_dict(), tmp_path / "all.pt")
    model, head, other = linear(), linear(), linear(9.0)
    loaded = taker(model=model, head=head, other=other).load_modules(tmp_path / "all.pt")
    assert (value_of(model), value_of(head), loaded.lacking) == (2.0, 3.0, ("other",))
    torch.save(nn.ModuleDict({"model": linear(4.0)}).state_dict(), tmp_path / "one.pt")
    taker(model=model).load_modules(tmp_path / "one.pt")
    assert value_of(model) == 4.0


def test_a_module_that_has_a_part_of_its_own_name(tmp_path: Path) -> None:
    """Its keys look like those of all modules, and are its own."""
    inner = nn.ModuleDict({"model": linear(2.0)})
    torch.save(inner.state_dict(), tmp_path / "epoch.pt")
    live = nn.ModuleDict({"model": linear()})
    taker(model=live).load_modules(tmp_path / "epoch.pt")
    assert value_of(live) == 2.0


def test_an_average_knows_whose_it_is(source: Path, tmp_path: Path) -> None:
    parents = Checkpointer(source).find_checkpoints()
    write_average(parents, "head", tmp_path / "mean.pt")
    model, head = linear(5.0), linear()
    loaded = taker(model=model, head=head).load_modules(tmp_path / "mean.pt")
    assert (value_of(model), value_of(head), loaded.names) == (5.0, 11.5, ("head",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "file.pt holds a list and no state dict"),
        ({1: torch.ones(1)}, "file.pt holds a dict and no state dict, which is a dict from names to tensors"),
        (
            {"model": {"weight": torch.ones(1)}, "epoch": 3},
            r"file.pt holds no tensors, but 'model', 'epoch'; save the state dict of the module by itself",
        ),
        (
            linear().state_dict(),
            "does not say whose weights it holds, and there are several modules: 'model', 'head'",
        ),
    ],
)
def test_a_file_of_which_nobody_can_tell(content: Any, message: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "file.pt")
    with pytest.raises(CheckpointError, match=message):
        taker(model=linear(), head=linear()).load_modules(tmp_path / "file.pt")


# ----------------------------------------------------------------------------------------------------- all or nothing


def test_all_that_does_not_fit_is_one_message_and_nothing_is_loaded(source: Path) -> None:
    model = linear(7.0)
    wide = nn.Sequential(nn.Linear(2, 1))
    with pytest.raises(CheckpointError) as caught:
        taker(model=model, head=wide).load_modules(source)
    told = str(caught.value)
    for part in (
        f"the weights in {source}/commit-00000002 do not fit, so nothing was loaded:",
        "recoverable 'head' (torch.nn.modules.container.Sequential): missing in the checkpoint: '0.weight', '0.bias'",
        "unknown here: 'weight', 'bias'",
        'bl.load_weights(path, "name") gives the state dict',
    ):
        assert part in told
    assert value_of(model) == 7.0
    with pytest.raises(
        CheckpointError, match=r"'weight' has shape \(1, 1\) in the checkpoint and \(1, 3\) here"
    ):
        taker(model=model, head=nn.Linear(3, 1)).load_modules(source)
    assert value_of(model) == 7.0


def test_none_of_them_is_an_error_that_lists_what_there_is(source: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        taker(encoder=linear(), decoder=linear()).load_modules(source)
    assert "holds weights of none of the modules here, which are 'encoder', 'decoder'" in str(caught.value)
    assert "it holds 'model', 'head', 'counter'" in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(value: float, tmp_path: Path) -> None:
    Checkpointer(tmp_path, {"a": linear(1.0), "b": linear(value)}).save_checkpoint()
    a, b = linear(5.0), linear(6.0)
    with pytest.raises(
        CheckpointError, match="parameters 'weight', 'bias' there hold values that are not finite"
    ):
        taker(a=a, b=b).load_modules(tmp_path)
    assert (value_of(a), value_of(b)) == (5.0, 6.0)


def test_an_infinity_in_a_buffer_is_a_mask(tmp_path: Path) -> None:
    model = linear(1.0)
    model.register_buffer("mask", torch.tensor([0.0, float("-inf")]))
    Checkpointer(tmp_path, {"model": model}).save_checkpoint()
    live = linear()
    live.register_buffer("mask", torch.zeros(2))
    taker(model=live).load_modules(tmp_path)
    assert live.mask.tolist() == [0.0, float("-inf")]  # type: ignore[operator, union-attr]


def test_under_a_name_that_is_no_module_there(source: Path) -> None:
    with pytest.raises(CheckpointError, match="'counter' .*: the checkpoint holds a object"):
        taker(counter=linear()).load_modules(source)


# ------------------------------------------------------------------------------------------------------------- damage


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_damaged_one_is_refused_and_in_a_folder_passed_over(
    source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flip(source / "commit-00000002" / "head.pt")
    model, head = linear(5.0), linear(5.0)
    with pytest.raises(
        DamagedCheckpointError, match="commit-00000002 is no intact checkpoint: its head.pt is not"
    ):
        taker(model=model, head=head).load_modules(source / "commit-00000002")
    assert (value_of(model), value_of(head)) == (5.0, 5.0)
    taker(model=model, head=head).load_modules(source)
    assert (value_of(model), value_of(head)) == (1.0, 11.0)
    assert "commit-00000002 is skipped: its head.pt" in caplog.text


def test_what_is_not_asked_for_may_be_damaged(source: Path) -> None:
    """A copy of the weights alone, made by hand from a checkpoint of many gigabytes."""
    (source / "commit-00000002" / "counter.json").unlink()
    model = linear()
    taker(model=model).load_modules(source / "commit-00000002")
    assert value_of(model) == 2.0


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match="never does not exist; give a checkpoint, a folder of checkpoints, or"
    ):
        taker(model=linear()).load_modules(tmp_path / "never")
    with pytest.raises(CheckpointError, match="there is no intact checkpoint in"):
        taker(model=linear()).load_modules(tmp_path)


def test_a_moved_source(source: Path, tmp_path: Path) -> None:
    shutil.move(source, tmp_path / "a name")
    model = linear()
    loaded = taker(model=model).load_modules(tmp_path / "a name")
    assert value_of(model) == 2.0 and loaded.path.parent == tmp_path / "a name"
