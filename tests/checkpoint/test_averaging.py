"""The mean of several checkpoints, and weights without a Checkpointer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from brainlib.checkpoint import (
    Checkpoint,
    CheckpointError,
    DamagedCheckpointError,
    average_checkpoints,
    load_weights,
)
from brainlib.checkpoint.averaging import (
    average_state_dicts,
    check_average,
    record_of_average,
    write_average,
)
from brainlib.common.files import sha256_of
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


def test_weights_that_are_tied_in_some_are_averaged_each(tmp_path: Path) -> None:
    """Tied by a later version of the model: the older checkpoint has two values, and both count."""
    one = torch.tensor([4.0])
    tied, free = {"a": one, "b": one}, {"a": torch.tensor([2.0]), "b": torch.tensor([0.0])}
    assert {key: value.item() for key, value in average_state_dicts([tied, free]).items()} == {
        "a": 3.0,
        "b": 2.0,
    }
    assert {key: value.item() for key, value in average_state_dicts([free, tied]).items()} == {
        "a": 3.0,
        "b": 2.0,
    }


def test_views_of_one_storage_are_not_tied() -> None:
    both = torch.tensor([1.0, 5.0])
    state = {"a": both[:1], "b": both[1:]}
    assert [v.item() for v in average_state_dicts([state, state]).values()] == [1.0, 5.0]


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
    with pytest.raises(CheckpointError, match=r"'w' does not have the same shape in all: \(1,\), a float"):
        average_state_dicts([{"w": torch.ones(1)}, {"w": 3.0}])
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


# ------------------------------------------------------------------------------------------------ an average as a file


def test_a_file_and_its_parents(tmp_path: Path) -> None:
    model = nn.BatchNorm1d(2)
    model.register_buffer("mask", torch.tensor([True]))
    checkpointer = Checkpointer(tmp_path / "run" / "save", {"model": model})
    for step, loss in ((1, 0.5), (4, float("nan")), (5, 0.1)):
        fill(model, float(step))
        model.num_batches_tracked.fill_(step)  # type: ignore[union-attr, operator]
        checkpointer.save_checkpoint({"loss": loss})
    best = checkpointer.find_checkpoints(min_key="loss")
    output = tmp_path / "run" / "average.pt"
    record = write_average(best, "model", output, order=("min", "loss"))

    state = torch.load(output, weights_only=True)
    assert state["weight"].tolist() == [3.0, 3.0]
    assert (state["num_batches_tracked"].item(), state["num_batches_tracked"].dtype) == (5, torch.int64)
    assert state["mask"].tolist() == [True]
    assert record["parents"] == [
        {
            "path": f"save/commit-0000000{commit}",
            "commit": commit,
            "meta": {"loss": loss},
            "sums": {"model.pt": sha256_of(tmp_path / f"run/save/commit-0000000{commit}/model.pt")},
        }
        for commit, loss in ((3, 0.1), (1, 0.5))
    ]
    assert (record["name"], record["order"], record["sha256"]) == (
        "model",
        ["min", "loss"],
        sha256_of(output),
    )

    moved = (tmp_path / "run").rename(tmp_path / "moved")
    assert record_of_average(moved / "average.pt") == record
    check_average(moved / "average.pt", record)
    assert all((moved / parent["path"]).is_dir() for parent in record["parents"])


def test_tied_weights_stay_tied_in_the_file(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    model[1].weight = model[0].weight
    write_average(saved(tmp_path / "save", model, (1.0, 2.0, 6.0)), "model", tmp_path / "average.pt")
    state = torch.load(tmp_path / "average.pt", weights_only=True)
    assert state["0.weight"].item() == 3.0 and state["0.weight"].data_ptr() == state["1.weight"].data_ptr()


def test_nothing_is_written_over(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path / "save", linear(), (1.0, 2.0))
    output = tmp_path / "average.pt"
    output.write_text("mine")
    with pytest.raises(
        CheckpointError, match="average.pt exists already; give the name of a new file, or remove it"
    ):
        write_average(checkpoints, "model", output)
    output.rename(f"{output}.json")
    with pytest.raises(CheckpointError, match="average.pt.json exists already"):
        write_average(checkpoints, "model", output)
    assert Path(f"{output}.json").read_text() == "mine" and not output.exists()


def test_a_record_whose_weights_were_never_written_is_in_nobodys_way(tmp_path: Path) -> None:
    """A kill between the two files."""
    checkpoints = saved(tmp_path / "save", linear(), (1.0, 2.0))
    output = tmp_path / "average.pt"
    write_average(checkpoints[:1], "model", output)
    output.unlink()
    record = write_average(checkpoints, "model", output)
    assert len(record["parents"]) == 2 and record_of_average(output) == record


def test_a_file_that_was_changed_is_seen(tmp_path: Path) -> None:
    output = tmp_path / "average.pt"
    record = write_average(saved(tmp_path / "save", linear(), (1.0, 2.0)), "model", output)
    data = bytearray(output.read_bytes())
    data[len(data) // 2] ^= 1
    output.write_bytes(data)
    with pytest.raises(DamagedCheckpointError, match="it is not what was written"):
        check_average(output, record)
    output.write_bytes(data[:-1])
    with pytest.raises(DamagedCheckpointError, match="bytes and was written with"):
        check_average(output, record)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"name": "model"}', "[" * 100_000, '{"format": "brainlib-average"}']
)
def test_what_is_no_record_of_ours(text: str, tmp_path: Path) -> None:
    (tmp_path / "average.pt.json").write_text(text)
    assert record_of_average(tmp_path / "average.pt") is None


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
