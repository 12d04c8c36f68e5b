"""Damaged files, and loads that fail half-way: the next one is taken, or the live objects are as they were."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from brainlib.checkpoint import CheckpointError, DamagedCheckpointError, load_weights
from tests.checkpoint.small import Counter, fill, linear, value_of
from tests.checkpoint.small import Foreground as Checkpointer


def two(folder: Path) -> tuple[Checkpointer, nn.Linear, Path, Path]:
    """A folder with an older and a newer checkpoint."""
    model = linear(1.0)
    checkpointer = Checkpointer(folder, {"model": model, "counter": Counter(1)})
    older = checkpointer.save_checkpoint({"loss": 1.0}).path
    fill(model, 2.0)
    newer = checkpointer.save_checkpoint({"loss": 0.5}).path
    fill(model, 0.0)
    return Checkpointer(folder, {"model": model, "counter": Counter(0)}), model, older, newer


def cut(path: Path, to: int = 10) -> None:
    path.write_bytes(path.read_bytes()[:to])


def flip(path: Path, at: int = -20) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a missing file": (lambda c: (c / "model.pt").unlink(), "its model.pt is missing"),
    "a missing manifest": (lambda c: (c / "manifest.json").unlink(), "it has no manifest.json"),
    "a file cut short": (
        lambda c: cut(c / "model.pt"),
        r"its model.pt has 10 bytes and was written with \d+",
    ),
    "a bit": (lambda c: flip(c / "model.pt"), r"its model.pt is not what was written \(its sum differs\)"),
    "a bit in JSON": (lambda c: flip(c / "counter.json", 3), r"its counter.json is not what was written"),
    "a torn manifest": (lambda c: cut(c / "manifest.json", 50), "its manifest.json is torn"),
    "an empty manifest": (lambda c: cut(c / "manifest.json", 0), "its manifest.json is torn"),
    "a folder for a file": (lambda c: ((c / "model.pt").unlink(), (c / "model.pt").mkdir()), "its model.pt"),
    "everything": (lambda c: [path.unlink() for path in c.iterdir()], "it has no manifest.json"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_one_before_is_used_and_it_is_said(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """SpeechBrain §0.5 dies on the first four."""
    checkpointer, model, older, newer = two(tmp_path)
    do, told = DAMAGES[damage]
    do(newer)
    recovered = checkpointer.recover_if_possible()
    assert recovered is not None
    assert recovered.path == older
    assert checkpointer.loaded == recovered
    assert value_of(model) == 1.0
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert re.fullmatch(rf"the checkpoint {re.escape(str(newer))} is skipped: .*{told}.*", warning)


@pytest.mark.parametrize("damage", DAMAGES)
def test_if_all_are_damaged_nothing_starts_from_scratch(tmp_path: Path, damage: str) -> None:
    checkpointer, model, older, newer = two(tmp_path)
    do, told = DAMAGES[damage]
    do(newer)
    do(older)
    for recover in (
        checkpointer.recover_if_possible,
        lambda: Checkpointer(tmp_path, {"model": model, "counter": Counter()}).recover_if_possible(
            min_key="loss"
        ),
    ):
        with pytest.raises(
            CheckpointError, match=f"all checkpoints in {tmp_path} that could be loaded are damaged"
        ):
            recover()
    assert value_of(model) == 0.0
    with pytest.raises(DamagedCheckpointError, match=rf"{newer} is no intact checkpoint: .*{told}"):
        checkpointer.load_checkpoint(newer)


def test_finding_passes_over_what_is_not_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpointer, _, older, newer = two(tmp_path)
    (newer / "model.pt").unlink()
    assert checkpointer.find_checkpoint(min_key="loss").path == older  # type: ignore[union-attr]
    assert checkpointer.newest().path == older  # type: ignore[union-attr]
    assert "its model.pt is missing" in caplog.text
    (older / "model.pt").unlink()
    for find in (checkpointer.find_checkpoint, checkpointer.newest):
        with pytest.raises(CheckpointError, match="are damaged"):
            find()  # type: ignore[operator]


def test_a_damaged_best_is_followed_by_the_second(tmp_path: Path) -> None:
    checkpointer, model, older, newer = two(tmp_path)
    flip(newer / "model.pt")
    assert checkpointer.recover_if_possible(min_key="loss").path == older  # type: ignore[union-attr]
    assert value_of(model) == 1.0


def test_damage_to_what_is_not_needed_is_no_matter_for_evaluation(tmp_path: Path) -> None:
    """Sizes always count; a sum counts where the file is read."""
    checkpointer, model, _, newer = two(tmp_path)
    flip(newer / "counter.json", 3)
    with checkpointer.weights_only():
        assert checkpointer.recover_if_possible().path == newer  # type: ignore[union-attr]
    assert value_of(model) == 2.0


def test_truncations_and_flips_anywhere_are_seen(tmp_path: Path) -> None:
    """60 places over all files: what is damaged is never loaded, and the older one always is."""
    rng = random.Random(3)
    source = tmp_path / "source"
    two(source)
    names = sorted(path.name for path in (source / "commit-00000002").iterdir())
    for number in range(60):
        folder = tmp_path / str(number)
        shutil.copytree(source, folder)
        path = folder / "commit-00000002" / names[number % len(names)]
        size = path.stat().st_size
        if number % 2:
            flip(path, rng.randrange(size))
        else:
            cut(path, rng.randrange(size))
        model = linear(0.0)
        recovered = Checkpointer(folder, {"model": model, "counter": Counter()}).recover_if_possible()
        assert recovered is not None
        assert (recovered.commit, value_of(model)) == (1, 1.0), path


# ------------------------------------------------------------------------------------------- loads that fail half-way


class Stubborn(Counter):
    """Fails after it has changed itself."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if state["n"] == 13:
            raise RuntimeError("thirteen is unlucky")


def everything() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    return {
        "model": model,
        "optimizer": optimizer,
        "schedule": torch.optim.lr_scheduler.StepLR(optimizer, 1),
        "scaler": torch.amp.GradScaler("cpu", init_scale=2.0),
        "generator": torch.Generator().manual_seed(1),
        "counter": Counter(1),
        "text": {"n": 1},
        "unlucky": Stubborn(1),
    }


def trained(objects: dict[str, Any], n: int) -> None:
    for _ in range(n):
        objects["model"](torch.randn(4, 2)).sum().backward()
        objects["optimizer"].step()
        objects["schedule"].step()
    objects["scaler"].load_state_dict({**objects["scaler"].state_dict(), "scale": 64.0})
    objects["generator"].manual_seed(n)
    for name in ("counter", "unlucky"):
        objects[name].n = n
    objects["text"]["n"] = n


def save_text(obj: Any, path: Path) -> None:
    path.write_text(str(obj["n"]))


def load_text(obj: Any, path: Path, end_of_epoch: bool) -> None:
    obj["n"] = int(path.read_text())


def state_of(objects: dict[str, Any]) -> list[Any]:
    model, optimizer = objects["model"], objects["optimizer"]
    return [
        [value.tolist() for value in model.state_dict().values()],
        [[s["exp_avg"].tolist(), s["step"].item()] for s in optimizer.state.values()],
        [group["lr"] for group in optimizer.param_groups],
        objects["schedule"].state_dict(),
        objects["scaler"].state_dict(),
        objects["generator"].get_state().tolist(),
        objects["counter"].n,
        objects["unlucky"].n,
        objects["text"],
    ]


@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_load_that_fails_puts_everything_back(tmp_path: Path, steps_before: int) -> None:
    hooks = {"text": load_text}, {"text": save_text}
    saved = everything()
    trained(saved, 13)
    Checkpointer(tmp_path, saved, *hooks).save_checkpoint()

    live = everything()
    if steps_before:
        trained(live, steps_before)
    before = state_of(live)
    checkpointer = Checkpointer(tmp_path, live, *hooks)
    with pytest.raises(CheckpointError) as caught:
        checkpointer.recover_if_possible()
    assert "recoverable 'unlucky' (tests.checkpoint.test_damage.Stubborn) could not be loaded from" in str(
        caught.value
    )
    assert str(caught.value).endswith("; all is as it was before: RuntimeError: thirteen is unlucky")
    assert state_of(live) == before
    assert checkpointer.loaded is None
    trained(live, 1)

    trained(saved, 3)
    Checkpointer(tmp_path, saved, *hooks).save_checkpoint()
    checkpointer.recover_if_possible()
    assert state_of(live)[5:] == state_of(saved)[5:]


def test_an_interrupt_while_loading_puts_everything_back_and_stays_one(tmp_path: Path) -> None:
    class Interrupted(Counter):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            if state["n"]:
                raise KeyboardInterrupt

    Checkpointer(tmp_path, {"model": linear(1.0), "counter": Interrupted(1)}).save_checkpoint()
    model = linear(5.0)
    with pytest.raises(KeyboardInterrupt):
        Checkpointer(tmp_path, {"model": model, "counter": Interrupted()}).recover_if_possible()
    assert value_of(model) == 5.0


def test_what_cannot_be_put_back_is_named(tmp_path: Path) -> None:
    """An object that has no state before its first load cannot say what it was."""

    class Empty(Counter):
        def state_dict(self) -> dict[str, Any]:
            if self.n == 0:
                raise AttributeError("not fitted yet")
            return super().state_dict()

    Checkpointer(tmp_path, {"empty": Empty(3), "unlucky": Stubborn(13)}).save_checkpoint()
    with pytest.raises(CheckpointError, match="all is as it was, but for 'empty': RuntimeError"):
        Checkpointer(tmp_path, {"empty": Empty(), "unlucky": Stubborn()}).recover_if_possible()
    empty = Empty()
    assert Checkpointer(tmp_path, {"empty": empty}).recover_if_possible() is not None
    assert empty.n == 3


def test_an_object_that_fails_to_give_its_state_is_named(tmp_path: Path) -> None:
    class Broken(Counter):
        def state_dict(self) -> dict[str, Any]:
            raise KeyError("n")

    with pytest.raises(
        CheckpointError, match=r"recoverable 'broken' \(.*Broken\) failed to give its state: KeyError\('n'\)"
    ):
        Checkpointer(tmp_path, {"model": linear(), "broken": Broken()}).save_checkpoint()
    assert list(tmp_path.iterdir()) == []


def test_weights_of_a_damaged_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, _, older, newer = two(tmp_path)
    flip(newer / "model.pt")
    assert load_weights(tmp_path, "model")["weight"].item() == 1.0
    assert "its model.pt is not what was written" in caplog.text
    with pytest.raises(
        DamagedCheckpointError, match=f"{newer} is no intact checkpoint: its model.pt is not what was written"
    ):
        load_weights(newer, "model")
    (older / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=f"there is no intact checkpoint in {tmp_path}"):
        load_weights(tmp_path, "model")
