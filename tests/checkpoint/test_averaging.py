"""The mean of several checkpoints, and weights without a Checkpointer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from brainlib.checkpoint import Checkpoint, CheckpointError, average_checkpoints, load_weights
from brainlib.checkpoint.averaging import average_state_dicts
from tests.checkpoint.small import Counter, Trainer, fill, linear, value_of
from tests.checkpoint.small import Foreground as Checkpointer


def saved(folder: Path, model: nn.Module, values: tuple[float, ...]) -> list[Checkpoint]:
    checkpointer = Checkpointer(folder, {"model": model})
    for value in values:
        fill(model, value)
        checkpointer.save_checkpoint({"value": value})
    return checkpointer.find_checkpoints()


def test_the_mean_of_two(tmp_path: Path) -> None:
    """SpeechBrain's scenario 8."""
    model = linear()
    averaged = average_checkpoints(saved(tmp_path, model, (0.0, 3.0)), recoverable_name="model")
    model.load_state_dict(averaged)
    assert value_of(model) == 1.5


def test_tied_weights_are_averaged_once_and_stay_tied(tmp_path: Path) -> None:
    """SpeechBrain §0.7: 1, 2, 3 averaged to 3."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    model[1].weight = model[0].weight
    averaged = average_checkpoints(saved(tmp_path, model, (1.0, 2.0, 3.0)), "model")
    assert averaged["0.weight"].item() == averaged["1.weight"].item() == 2.0
    assert averaged["0.weight"].data_ptr() == averaged["1.weight"].data_ptr()


def test_counts_and_masks_are_those_of_the_newest(tmp_path: Path) -> None:
    model = nn.BatchNorm1d(1)
    model.register_buffer("mask", torch.tensor([True]))
    checkpointer = Checkpointer(tmp_path, {"model": model})
    for step in (1, 4):
        model.num_batches_tracked.fill_(step)  # type: ignore[union-attr, operator]
        model.mask.fill_(step == 1)  # type: ignore[operator]
        model.running_mean.fill_(step)  # type: ignore[union-attr, operator]
        checkpointer.save_checkpoint()
    for checkpoints in (checkpointer.find_checkpoints(), checkpointer.find_checkpoints()[::-1]):
        averaged = average_checkpoints(checkpoints, "model")
        assert (averaged["num_batches_tracked"].dtype, averaged["num_batches_tracked"].item()) == (
            torch.int64,
            4,
        )
        assert (averaged["mask"].dtype, averaged["mask"].item()) == (torch.bool, False)
        assert averaged["running_mean"].item() == 2.5


def test_sums_are_taken_in_double_precision() -> None:
    states = [{"w": torch.tensor([value], dtype=torch.float16)} for value in (2048.0, 1.0, 1.0, 1.0)]
    average = average_state_dicts(states)["w"]
    assert average.dtype == torch.float16
    assert average.item() == torch.tensor(2051.0 / 4, dtype=torch.float16).item()


def test_complex_and_empty_and_extra_state() -> None:
    states: list[dict[str, Any]] = [
        {"c": torch.tensor([n * 1j]), "e": torch.empty(0), "x": {"words": n}} for n in (1, 3)
    ]
    averaged = average_state_dicts(states)
    assert averaged["c"].tolist() == [2j]
    assert averaged["e"].shape == (0,)
    assert averaged["x"] == {"words": 1}, "the first, that is the newest"
    assert states[0]["c"].tolist() == [1j], "and the given ones are left alone"


def test_what_does_not_fit_is_named() -> None:
    a, b = {"w": torch.ones(1), "a": torch.ones(1)}, {"w": torch.ones(1), "b": torch.ones(1)}
    with pytest.raises(CheckpointError, match="these are not in all: 'a', 'b'"):
        average_state_dicts([a, b])
    with pytest.raises(CheckpointError, match=r"'w' does not have the same shape in all: \(1,\), \(2,\)"):
        average_state_dicts([{"w": torch.ones(1)}, {"w": torch.ones(2)}])
    with pytest.raises(CheckpointError, match="there is no state dict to average"):
        average_state_dicts([])
    with pytest.raises(CheckpointError, match="there is no checkpoint to average 'model' over"):
        average_checkpoints([], "model")


def test_the_users_own_loader_and_average(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, linear(), (1.0, 2.0, 4.0))
    seen: list[str] = []

    def loader(path: Path) -> dict[str, Any]:
        seen.append(path.name)
        return dict(torch.load(path, weights_only=True))

    largest = average_checkpoints(
        checkpoints, "model", loader, lambda states: max(s["weight"].item() for s in states)
    )
    assert (largest, seen) == (4.0, ["model.pt"] * 3)


def test_device_of_old_code(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    average_checkpoints(saved(tmp_path, linear(), (1.0,)), "model", device="cuda:0")
    assert "device= has no effect in average_checkpoints" in caplog.text


# --------------------------------------------------------------------------------------------------------- load_weights


def test_weights_in_two_lines(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, linear(), (1.0, 2.0))
    for path, expected in ((tmp_path, 2.0), (str(tmp_path), 2.0), (checkpoints[1].path, 1.0)):
        assert load_weights(path, "model")["weight"].item() == expected
    assert load_weights(tmp_path)["bias"].device.type == "cpu"


def test_a_failed_run_is_not_the_newest(tmp_path: Path) -> None:
    model = linear(1.0)
    checkpointer = Checkpointer(tmp_path, {"model": model})
    checkpointer.save_checkpoint()
    fill(model, float("nan"))
    failed = checkpointer.save_checkpoint(reason="error")
    assert load_weights(tmp_path)["weight"].item() == 1.0
    assert load_weights(failed.path)["weight"].isnan().item()


def test_a_module_inside_another_can_be_named(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    checkpointer.attach(
        Trainer(modules=nn.ModuleDict({"model": linear(3.0), "mod": linear(4.0)}), counter=Counter())
    )
    checkpointer.save_checkpoint()
    assert {key: value.item() for key, value in load_weights(tmp_path, "model").items()} == {
        "weight": 3.0,
        "bias": 3.0,
    }
    with pytest.raises(
        CheckpointError,
        match="holds nothing named 'models'; it holds 'modules', 'counter'. Did you mean 'modules'",
    ):
        load_weights(tmp_path, "models")


def test_a_name_inside_two(tmp_path: Path) -> None:
    two = {name: nn.ModuleDict({"model": linear()}) for name in ("a", "b")}
    Checkpointer(tmp_path, two).save_checkpoint()
    with pytest.raises(CheckpointError, match="'model' is a part of 'a', 'b'"):
        load_weights(tmp_path, "model")


def test_places_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match="never does not exist; give a checkpoint's folder or a folder of checkpoints"
    ):
        load_weights(tmp_path / "never")
    with pytest.raises(CheckpointError, match=f"there is no intact checkpoint in {tmp_path}"):
        load_weights(tmp_path)


def test_what_is_no_state_dict(tmp_path: Path) -> None:
    class Odd(Counter):
        def state_dict(self) -> Any:
            return [1, 2]

    Checkpointer(tmp_path, {"odd": Odd()}).save_checkpoint()
    with pytest.raises(CheckpointError, match="'odd' in .* is a list and no state dict"):
        load_weights(tmp_path, "odd")
