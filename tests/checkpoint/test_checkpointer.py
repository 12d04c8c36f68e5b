"""The Checkpointer as a user calls it: saving, finding, keeping, names, log lines."""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path

import pytest
import torch

from brainlib.checkpoint import Checkpoint, CheckpointError, DamagedCheckpointError
from tests.checkpoint.small import Counter, Trainer, fill, linear, value_of
from tests.checkpoint.small import Foreground as Checkpointer


def metas(checkpointer: Checkpointer, key: str = "loss") -> list[object]:
    return [checkpoint.meta.get(key) for checkpoint in checkpointer.list_checkpoints()]


def test_the_scenario_of_speechbrain(tmp_path: Path) -> None:
    """Their test 4: nothing there, save, list, recover, newest, custom importance, missing, partial, named."""
    model = linear(1.0)
    checkpointer = Checkpointer(tmp_path / "save", {"model": model})
    assert not checkpointer.recover_if_possible()
    assert not (tmp_path / "save").exists()

    first = checkpointer.save_checkpoint({"loss": 2.0})
    assert checkpointer.list_checkpoints() == [first]
    assert first.paramfiles["model"].is_file()
    fill(model, 2.0)
    second = checkpointer.save_checkpoint({"loss": 1.0})
    fill(model, 0.0)
    assert checkpointer.recover_if_possible() == second
    assert value_of(model) == 2.0
    assert checkpointer.recover_if_possible(importance_key=lambda c: c.meta["loss"]) == first
    assert value_of(model) == 1.0
    assert checkpointer.recover_if_possible(min_key="loss") == second
    assert checkpointer.recover_if_possible(ckpt_predicate=lambda c: c.meta["loss"] > 1.5) == first
    assert checkpointer.recover_if_possible(ckpt_predicate=lambda c: False) is None

    other = linear(7.0)
    checkpointer.add_recoverable("other", other)
    with pytest.raises(
        CheckpointError, match=r"it has no 'other' \(torch.nn.modules.linear.Linear\); it holds 'model'"
    ):
        checkpointer.recover_if_possible()
    checkpointer.allow_partial_load = True
    assert checkpointer.recover_if_possible() == second
    assert (value_of(model), value_of(other)) == (2.0, 7.0)

    named = checkpointer.save_checkpoint(name="named")
    assert named.path.name == "CKPT+named"
    assert checkpointer.find_checkpoint(ckpt_predicate=lambda c: c.name == "named") == named
    fill(other, 0.0)
    checkpointer.load_checkpoint(named)
    assert value_of(other) == 7.0


def test_missing_objects_are_said_or_optional(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Checkpointer(tmp_path, {"model": linear()}).save_checkpoint()
    partial = Checkpointer(tmp_path, {"model": linear(), "counter": Counter(3)}, allow_partial_load=True)
    partial.recover_if_possible()
    assert "has no 'counter' (tests.checkpoint.small.Counter), which stays as it is" in caplog.text

    optional = Checkpointer(tmp_path, {"model": linear()})
    optional.add_recoverable("counter", Counter(3), optional_load=True)
    caplog.clear()
    assert optional.recover_if_possible() is not None
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_objects_that_nobody_asks_for_stay_in_the_file(tmp_path: Path) -> None:
    Checkpointer(tmp_path, {"model": linear(3.0), "counter": Counter(3)}).save_checkpoint()
    model = linear()
    assert Checkpointer(tmp_path, {"model": model}).recover_if_possible() is not None
    assert value_of(model) == 3.0


# ------------------------------------------------------------------------------------------------------- what is kept


def test_deletion_as_speechbrain_has_it(tmp_path: Path) -> None:
    """Their test 6: the default keeps the newest; 0 empties; keys, importance and predicate together."""
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    for epoch in range(3):
        checkpointer.save_checkpoint({"epoch": epoch})
    checkpointer.delete_checkpoints()
    assert metas(checkpointer, "epoch") == [2]
    checkpointer.delete_checkpoints(num_to_keep=0)
    assert metas(checkpointer) == []

    for epoch, (foo, bar) in enumerate([(10, 5), (9, 4), (8, 7), (7, 6)]):
        checkpointer.save_checkpoint({"epoch": epoch, "foo": foo, "bar": bar})
    checkpointer.delete_checkpoints(
        num_to_keep=1,
        max_keys=["foo"],
        importance_keys=[lambda c: c.meta["bar"]],
        ckpt_predicate=lambda c: c.meta["epoch"] != 1,
    )
    assert metas(checkpointer, "epoch") == [2, 1, 0], (
        "the best foo, the best bar, and the one that the predicate protects"
    )


def test_two_orders_keep_both_winners_and_ties_go_to_the_newest(tmp_path: Path) -> None:
    """Their test 7."""
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    for epoch, (error, accuracy) in enumerate([(5, 0.5), (3, 0.5), (3, 0.9), (4, 0.9), (4, 0.1)]):
        checkpointer.save_and_keep_only(
            {"epoch": epoch, "error": error, "acc": accuracy},
            keep_recent=False,
            min_keys=["error"],
            max_keys=["acc"],
        )
    assert metas(checkpointer, "epoch") == [3, 2]
    assert [c.meta["epoch"] for c in checkpointer.find_checkpoints(min_key="error")] == [2, 3]
    assert [
        c.meta["epoch"] for c in checkpointer.find_checkpoints(min_key="error", max_num_checkpoints=1)
    ] == [2]
    assert [c.meta["epoch"] for c in checkpointer.find_checkpoints(max_num_checkpoints=1)] == [3]
    assert checkpointer.find_checkpoints(max_num_checkpoints=0) == []


def test_arguments_of_one_call_do_not_leak_into_the_next(tmp_path: Path) -> None:
    """SpeechBrain §0.4: a default list grew, and keep_recent=False stopped working after a first True."""
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    mine: list[object] = []
    for loss in (0.1, 0.3, 0.2):
        checkpointer.save_and_keep_only({"loss": loss}, importance_keys=mine, min_keys=["loss"])  # type: ignore[arg-type]
    assert mine == []
    assert metas(checkpointer) == [0.2, 0.1]
    checkpointer.save_and_keep_only({"loss": 0.5}, keep_recent=False, min_keys=["loss"])
    assert metas(checkpointer) == [0.1]
    import inspect

    for method in (Checkpointer.save_and_keep_only, Checkpointer.delete_checkpoints, Checkpointer.__init__):
        for parameter in inspect.signature(method).parameters.values():
            assert not isinstance(parameter.default, (list, dict, set)), parameter


def test_nan_is_neither_best_nor_in_the_way(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    for loss in (0.1, math.nan, 0.9, math.nan, 0.5):
        checkpointer.save_checkpoint({"loss": loss})
    checkpointer.save_checkpoint({})
    assert [c.meta["loss"] for c in checkpointer.find_checkpoints(min_key="loss")] == [0.1, 0.5, 0.9]
    assert checkpointer.find_checkpoint(max_key="loss").meta["loss"] == 0.9  # type: ignore[union-attr]


def test_one_key_may_be_given_as_a_word(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    for loss in (0.1, 0.3):
        checkpointer.save_and_keep_only({"loss": loss}, keep_recent=False, min_keys="loss")
    assert metas(checkpointer) == [0.1]


def test_a_misspelt_metric_is_an_error_after_the_weights_are_safe(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    checkpointer.save_checkpoint({"loss": 0.5})
    with pytest.raises(
        CheckpointError,
        match="no checkpoint has the metric 'los'. Those there are: 'WER', 'loss'. Did you mean 'loss'",
    ):
        checkpointer.save_and_keep_only({"loss": 0.7, "WER": 3}, min_keys=["los"])
    assert metas(checkpointer) == [0.7, 0.5], "saved, and nothing deleted"
    with pytest.raises(CheckpointError, match="no checkpoint has the metric 'wer'"):
        checkpointer.find_checkpoint(min_key="wer")
    with pytest.raises(CheckpointError, match="no checkpoint has the metric 'wer'"):
        checkpointer.recover_if_possible(max_key="wer")


def test_nothing_there_is_no_error_whatever_the_metric(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    assert checkpointer.find_checkpoint(min_key="loss") is None
    assert checkpointer.recover_if_possible(min_key="loss") is None
    assert checkpointer.newest() is None
    checkpointer.delete_checkpoints(min_keys=["loss"])


def test_two_orders_at_once_are_an_error(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    for find in (
        checkpointer.find_checkpoint,
        checkpointer.find_checkpoints,
        checkpointer.recover_if_possible,
    ):
        with pytest.raises(CheckpointError, match="max_key and min_key were given; one order at a time"):
            find(max_key="a", min_key="b")
        with pytest.raises(CheckpointError, match="importance_key and min_key were given"):
            find(importance_key=lambda c: 1, min_key="b")


@pytest.mark.parametrize("number", [-2, 1.5, "all", None])
def test_num_to_keep_that_makes_no_sense(tmp_path: Path, number: object) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    with pytest.raises(
        CheckpointError, match="num_to_keep is .*; give how many to keep, 0 for none or -1 for all"
    ):
        checkpointer.save_and_keep_only(num_to_keep=number)  # type: ignore[arg-type]
    assert not checkpointer.list_checkpoints()


def test_a_thousand_saves_cost_like_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: looking at the folder does not grow with what was saved and deleted before."""
    checkpointer = Checkpointer(tmp_path, {"counter": Counter()})
    stats: list[int] = []
    real = os.stat

    def counting(*args: object, **kwargs: object) -> os.stat_result:
        stats[-1] += 1
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", counting)
    for loss in range(30):
        stats.append(0)
        checkpointer.save_and_keep_only({"loss": loss}, min_keys=["loss"])
    assert stats[5] == stats[-1]


# ---------------------------------------------------------------------------------------------------------------- names


def test_a_name_means_one_checkpoint_the_newest(tmp_path: Path) -> None:
    model = linear(1.0)
    checkpointer = Checkpointer(tmp_path, {"model": model, "counter": Counter()})
    checkpointer.save_checkpoint(name="best")
    fill(model, 2.0)
    Checkpointer(tmp_path, {"model": model}).save_checkpoint(name="best")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["CKPT+best", "records.jsonl"]
    (only,) = checkpointer.list_checkpoints()
    assert (only.commit, only.name, list(only.recoverables)) == (2, "best", ["model"]), (
        "and nothing of the older one in it"
    )
    fill(model, 0.0)
    Checkpointer(tmp_path, {"model": model}).load_checkpoint(tmp_path / "CKPT+best")
    assert value_of(model) == 2.0


def test_the_folders_of_steps(tmp_path: Path) -> None:
    trainer = Trainer(model=linear())
    checkpointer = Checkpointer(tmp_path)
    checkpointer.attach(trainer)
    for step in (9, 10, 10, 10, 123_456_789):
        trainer.step = step
        checkpointer.save_checkpoint()
    names = [checkpoint.path.name for checkpoint in checkpointer.list_checkpoints()]
    assert names == ["step-123456789", "step-00000010-3", "step-00000010-2", "step-00000010", "step-00000009"]


def test_names_that_differ_by_case_only_get_files_of_their_own(tmp_path: Path) -> None:
    """macOS and Windows do not tell "Model.pt" from "model.pt"."""
    objects = {"model": linear(1.0), "Model": linear(2.0), "MODEL": linear(3.0), "manifest": Counter(4)}
    checkpoint = Checkpointer(tmp_path, objects).save_checkpoint()
    files = [path.name for path in checkpoint.path.iterdir()]
    assert len({name.casefold() for name in files}) == len(files) == 5
    fresh = {"model": linear(), "Model": linear(), "MODEL": linear(), "manifest": Counter()}
    Checkpointer(tmp_path, fresh).recover_if_possible()
    assert [value_of(fresh[name]) for name in ("model", "Model", "MODEL")] == [1.0, 2.0, 3.0]  # type: ignore[arg-type]
    assert fresh["manifest"].n == 4  # type: ignore[union-attr]


def test_a_name_that_is_registered_again_means_the_new_object(tmp_path: Path) -> None:
    old, new = linear(1.0), linear(2.0)
    checkpointer = Checkpointer(tmp_path, {"model": old})
    checkpointer.add_recoverables({"model": new})
    checkpointer.save_checkpoint()
    fill(new, 0.0)
    checkpointer.recover_if_possible()
    assert (value_of(old), value_of(new)) == (1.0, 2.0)
    assert dict(checkpointer.recoverables) == {"model": new}
    with pytest.raises(TypeError):
        checkpointer.recoverables["model"] = old  # type: ignore[index]


# ------------------------------------------------------------------------------------------------- the folder, criteria


def test_the_folder_can_be_changed_until_it_is_used(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path / "a", {"model": linear()})
    checkpointer.checkpoints_dir = tmp_path / "b"  # type: ignore[assignment]
    checkpointer.save_checkpoint()
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    with pytest.raises(CheckpointError, match=r"has worked in .*b already; make a new one for .*c"):
        checkpointer.checkpoints_dir = tmp_path / "c"  # type: ignore[assignment]


def test_a_relative_folder_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpointer = Checkpointer("save", {"model": linear()})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert checkpointer.save_checkpoint().path.parent == tmp_path / "save"


def test_one_that_a_namesake_has_replaced_is_gone(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    first = checkpointer.save_checkpoint({"n": 1}, name="best")
    second = checkpointer.save_checkpoint({"n": 2}, name="best")
    assert first.path == second.path
    checkpointer.delete(first)
    assert [checkpoint.meta["n"] for checkpoint in checkpointer.list_checkpoints()] == [2]
    checkpointer.delete(second)
    assert checkpointer.list_checkpoints() == []


def test_the_criterion_is_the_last_declared_one_and_survives_a_restart(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    assert checkpointer.declared_criterion() is None
    checkpointer.save_checkpoint({"acc": 0.1})
    assert checkpointer.declared_criterion() is None
    checkpointer.save_and_keep_only({"acc": 0.5, "loss": 1.0}, max_keys=["acc"])
    assert checkpointer.declared_criterion() == Checkpointer(tmp_path).declared_criterion() == ("max", "acc")
    checkpointer.save_and_keep_only({"acc": 0.5, "loss": 1.0}, max_keys=["acc"], min_keys=["loss"])
    assert checkpointer.declared_criterion() == Checkpointer(tmp_path).declared_criterion() == ("min", "loss")
    checkpointer.save_checkpoint(reason="end")
    checkpointer.delete_checkpoints(num_to_keep=0)
    assert Checkpointer(tmp_path).declared_criterion() == ("min", "loss"), "an automatic save knows it too"


def test_the_environment_stands_in_the_manifest(tmp_path: Path) -> None:
    class Knowing(Trainer):
        def environment(self) -> dict[str, object]:
            return {"compiled": ["model"]}

    checkpointer = Checkpointer(tmp_path)
    checkpointer.attach(Knowing(model=linear()))
    checkpointer.save_checkpoint()
    (checkpoint,) = Checkpointer(tmp_path).list_checkpoints()
    environment = checkpoint.environment
    assert environment["torch"] == torch.__version__
    assert environment["threads"] == torch.get_num_threads()
    assert environment["cpu"] == torch.backends.cpu.get_cpu_capability()
    assert environment["compiled"] == ["model"]
    assert checkpoint.world_size == 1


# ------------------------------------------------------------------------------------------------------- log and compat


def test_the_line_of_a_save(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    with caplog.at_level(logging.DEBUG, "brainlib"):
        for reason in ("user", "epoch", "timed"):
            checkpointer.save_checkpoint(reason=reason)
        checkpointer.save_checkpoint(verbosity=logging.DEBUG)
    levels = [record.levelname for record in caplog.records if "saved the checkpoint" in record.getMessage()]
    assert levels == ["INFO", "DEBUG", "DEBUG", "DEBUG"]
    assert f"saved the checkpoint {tmp_path / 'commit-00000001'}" in caplog.text


def test_device_is_taken_once_with_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    checkpoint = checkpointer.save_checkpoint()
    for _ in range(2):
        checkpointer.recover_if_possible(device=torch.device("cpu"))
        checkpointer.load_checkpoint(checkpoint, device="cpu")
    assert caplog.text.count("device= has no effect") == 1


@pytest.mark.parametrize("reason", ["manual", "", None])
def test_reasons_that_there_are_not(tmp_path: Path, reason: object) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    with pytest.raises(
        CheckpointError, match="it is one of 'user', 'epoch', 'end', 'timed', 'signal', 'snapshot', 'error'"
    ):
        checkpointer.save_checkpoint(reason=reason)  # type: ignore[arg-type]
    with pytest.raises(
        CheckpointError, match="include holds 'time'; the reasons are .* Did you mean 'timed'"
    ):
        checkpointer.find_checkpoints(include=["time"])


def test_equal_means_the_same_folder_and_commit(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    a, b = checkpointer.save_checkpoint({"x": 1}), checkpointer.save_checkpoint({"x": 1})
    assert a != b
    assert Checkpointer(tmp_path).list_checkpoints() == [b, a]
    assert {a, b} == set(Checkpointer(tmp_path).list_checkpoints())


def test_loading_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = linear(3.0)
    checkpoint = Checkpointer(tmp_path / "a", {"model": model}).save_checkpoint()
    monkeypatch.chdir(tmp_path)
    other = linear()
    loader = Checkpointer(tmp_path / "b", {"model": other})
    assert loader.loaded is None
    for path in (checkpoint.path, str(checkpoint.path), f"a/{checkpoint.path.name}"):
        fill(other, 0.0)
        assert loader.load_checkpoint(path) == checkpoint
        assert value_of(other) == 3.0
    assert loader.loaded == checkpoint

    with pytest.raises(
        CheckpointError, match="'step-3' is no checkpoint's folder; there are: 'commit-00000001'"
    ):
        Checkpointer(tmp_path / "a", {"model": model}).load_checkpoint("step-3")
    with pytest.raises(DamagedCheckpointError, match="a is no intact checkpoint: it has no manifest.json"):
        loader.load_checkpoint(tmp_path / "a")


def test_a_checkpoint_knows_its_objects(tmp_path: Path) -> None:
    checkpoint = Checkpointer(tmp_path, {"model": linear()}).save_checkpoint()
    assert checkpoint.saved("model").class_name == "torch.nn.modules.linear.Linear"
    with pytest.raises(
        CheckpointError, match="holds nothing named 'modle'; it holds 'model'. Did you mean 'model'"
    ):
        checkpoint.saved("modle")
    assert isinstance(checkpoint, Checkpoint)
    assert repr(Checkpointer("x", {"model": linear()})).endswith("x', recoverables=['model'])")
