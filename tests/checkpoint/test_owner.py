"""A trainer's own objects: found anew at every save and load, and never saved twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from brainlib.checkpoint import CheckpointError
from tests.checkpoint.small import Counter, Trainer, fill, linear, value_of
from tests.checkpoint.small import Foreground as Checkpointer


def attached(folder: Path, trainer: Trainer, **registered: object) -> Checkpointer:
    checkpointer = Checkpointer(folder, registered)
    checkpointer.attach(trainer)
    return checkpointer


def test_what_is_found_later_is_saved_too(tmp_path: Path) -> None:
    """#1926 of SpeechBrain: the optimizer is made inside fit, long after the checkpointer."""
    trainer = Trainer(model=linear())
    checkpointer = attached(tmp_path, trainer)
    assert sorted(checkpointer.save_checkpoint().recoverables) == ["model"]
    trainer.found["optimizer"] = torch.optim.SGD(trainer.found["model"].parameters(), lr=0.25)  # type: ignore[attr-defined]
    assert sorted(checkpointer.save_checkpoint().recoverables) == ["model", "optimizer"]

    other = Trainer(model=linear(), optimizer=torch.optim.SGD(linear().parameters(), lr=0.5))
    other.found["optimizer"] = torch.optim.SGD(other.found["model"].parameters(), lr=0.5)  # type: ignore[attr-defined]
    attached(tmp_path, other).recover_if_possible()
    assert other.found["optimizer"].param_groups[0]["lr"] == 0.25  # type: ignore[attr-defined]


def test_the_users_registrations_win(tmp_path: Path) -> None:
    model, counter = linear(), Counter(1)
    trainer = Trainer(
        modules=nn.ModuleDict({"model": model}), epochs=counter, model=Counter(2), decoder=linear()
    )
    checkpointer = attached(tmp_path, trainer, model=model, counter=counter)
    saved = checkpointer.save_checkpoint().recoverables
    assert sorted(saved) == ["brain-model", "counter", "decoder", "model"], (
        "modules and epochs are in others already"
    )
    assert saved["brain-model"].class_name.endswith("Counter")
    fill(model, 3.0)
    counter.n = 5
    checkpointer.recover_if_possible()
    assert (value_of(model), counter.n) == (0.0, 1)


def test_a_found_name_that_is_taken_twice(tmp_path: Path) -> None:
    checkpointer = attached(tmp_path, Trainer(x=Counter(3)), **{"x": Counter(1), "brain-x": Counter(2)})
    assert sorted(checkpointer.save_checkpoint().recoverables) == ["brain-brain-x", "brain-x", "x"]


def test_modules_that_are_partly_covered_are_saved(tmp_path: Path) -> None:
    model, head = linear(), linear()
    trainer = Trainer(modules=nn.ModuleDict({"model": model, "head": head}), again=head)
    assert sorted(attached(tmp_path, trainer, model=model).save_checkpoint().recoverables) == [
        "model",
        "modules",
    ]


def test_an_optimizer_knows_names_from_what_is_found(tmp_path: Path) -> None:
    def trainer(order: tuple[str, ...]) -> Trainer:
        modules = nn.ModuleDict({name: nn.Linear(2, 2) for name in ("a", "b")})
        parameters = [parameter for name in order for parameter in modules[name].parameters()]
        return Trainer(modules=modules, optimizer=torch.optim.Adam(parameters))

    first, second = trainer(("a", "b")), trainer(("b", "a"))
    for parameter in first.found["modules"].parameters():  # type: ignore[attr-defined]
        parameter.grad = torch.randn_like(parameter)
    first.found["optimizer"].step()  # type: ignore[attr-defined]
    attached(tmp_path, first).save_checkpoint()
    # Registered by the user this time, so that "modules" is covered; its names help all the same.
    checkpointer = attached(tmp_path, second, **dict(second.found["modules"].items()))  # type: ignore[attr-defined]
    checkpointer.allow_partial_load = True
    checkpointer.recover_if_possible()
    for name, parameter in first.found["modules"].named_parameters():  # type: ignore[attr-defined]
        twin = second.found["modules"].get_parameter(name)  # type: ignore[attr-defined]
        a, b = (t.found["optimizer"].state[p]["exp_avg"] for t, p in ((first, parameter), (second, twin)))  # type: ignore[attr-defined]
        assert torch.equal(a, b)


def test_what_is_found_and_cannot_be_saved_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = attached(tmp_path, Trainer(model=linear(), words=["a"]))
    for _ in range(2):
        assert sorted(checkpointer.save_checkpoint().recoverables) == ["model"]
    checkpointer.recover_if_possible()
    assert caplog.text.count("'words' (builtins.list) is not in the checkpoints") == 1


def test_a_found_name_that_is_no_file_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'a/b' cannot be the name of a recoverable"):
        attached(tmp_path, Trainer(**{"a/b": Counter()})).save_checkpoint()


def test_a_second_owner_replaces_the_first(tmp_path: Path) -> None:
    checkpointer = attached(tmp_path, Trainer(a=Counter()))
    checkpointer.attach(Trainer(b=Counter()))
    assert sorted(checkpointer.save_checkpoint().recoverables) == ["b"]
    checkpointer.attach(None)
    assert sorted(checkpointer.save_checkpoint().recoverables) == []


@pytest.mark.parametrize("closed", [True, False])
def test_the_trainer_knows_whether_the_epoch_is_closed(tmp_path: Path, closed: bool) -> None:
    trainer = Trainer(model=linear())
    trainer.closed, trainer.step = closed, 12
    checkpoint = attached(tmp_path, trainer).save_checkpoint(end_of_epoch=not closed)
    assert checkpoint.end_of_epoch is closed
    assert checkpoint.counters == {"fit": 0, "epoch": 1, "step": 3, "optimizer_step": 12}
    assert (
        Checkpointer(tmp_path / "b", {"m": linear()}).save_checkpoint(end_of_epoch=closed).end_of_epoch
        is closed
    )


def test_evaluating_touches_weights_only(tmp_path: Path) -> None:
    trainer = Trainer(model=linear(1.0), counter=Counter(1), generator=torch.Generator())
    checkpointer = attached(tmp_path, trainer, net=linear(1.0))
    checkpoint = checkpointer.save_checkpoint({"loss": 1.0})
    fill(trainer.found["model"], 2.0)
    fill(checkpointer.recoverables["net"], 2.0)
    trainer.found["counter"].n = 2  # type: ignore[attr-defined]
    trainer.found["new"] = Counter(7)
    trainer.found["generator"].manual_seed(7)  # type: ignore[attr-defined]

    with pytest.raises(ZeroDivisionError), checkpointer.weights_only():
        with checkpointer.weights_only():
            checkpointer.recover_if_possible(min_key="loss")
        checkpointer.load_checkpoint(checkpoint)
        assert value_of(trainer.found["model"]) == 1.0  # type: ignore[arg-type]
        assert value_of(checkpointer.recoverables["net"]) == 1.0  # type: ignore[arg-type]
        assert (trainer.found["counter"].n, trainer.found["generator"].initial_seed()) == (2, 7)  # type: ignore[attr-defined]
        raise ZeroDivisionError
    with pytest.raises(CheckpointError, match="it has no 'new'"):
        checkpointer.recover_if_possible()
    del trainer.found["new"]
    checkpointer.recover_if_possible()
    assert trainer.found["counter"].n == 1  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------- automatic ones, reasons


def reasons(checkpointer: Checkpointer) -> list[str]:
    return [checkpoint.reason for checkpoint in checkpointer.list_checkpoints()]


def test_of_the_automatic_ones_the_two_newest_stay_and_the_users_are_left_alone(tmp_path: Path) -> None:
    checkpointer = attached(tmp_path, Trainer(model=linear()))
    for reason in ("user", "timed", "epoch", "user", "timed", "signal", "error", "end"):
        checkpointer.save_checkpoint(reason=reason)
    assert reasons(checkpointer) == ["end", "error", "signal", "user", "user"]
    other = Checkpointer(tmp_path, {"model": linear()})
    other.save_checkpoint(reason="timed")
    assert reasons(other) == ["timed", "end", "error", "user", "user"], "also after a restart"


def test_the_users_rules_are_about_the_users_own(tmp_path: Path) -> None:
    """An automatic one takes no place among those that the user wants, and is not deleted by his rule."""
    checkpointer = attached(tmp_path, Trainer(model=linear()))
    for _ in range(2):
        checkpointer.save_checkpoint({"loss": 1.0})
        checkpointer.save_checkpoint({"loss": 0.0}, reason="epoch")
    checkpointer.save_and_keep_only({"loss": 2.0}, num_to_keep=2, min_keys=["loss"])
    assert reasons(checkpointer) == ["user", "epoch", "user", "epoch", "user"]
    checkpointer.delete_checkpoints(num_to_keep=0)
    assert reasons(checkpointer) == ["epoch", "epoch"]


def test_what_find_skips_and_what_recovery_sees(tmp_path: Path) -> None:
    checkpointer = attached(tmp_path, Trainer(model=linear()))
    for reason, loss in (("user", 3.0), ("timed", 1.0), ("error", 0.0)):
        checkpointer.save_checkpoint({"loss": loss}, reason=reason)
    assert [c.reason for c in checkpointer.find_checkpoints()] == ["user"]
    assert [c.reason for c in checkpointer.find_checkpoints(include=["timed"])] == ["timed", "user"]
    assert [
        c.reason for c in checkpointer.find_checkpoints(min_key="loss", include=("error", "timed", "signal"))
    ] == ["error", "timed", "user"]
    assert checkpointer.find_checkpoint(min_key="loss").reason == "user"  # type: ignore[union-attr]
    assert checkpointer.recover_if_possible().reason == "timed"  # type: ignore[union-attr]
    assert checkpointer.recover_if_possible(min_key="loss").reason == "user"  # type: ignore[union-attr]
    assert checkpointer.newest().reason == "timed"  # type: ignore[union-attr]


def test_only_a_failed_run_is_no_place_to_go_on_from(tmp_path: Path) -> None:
    checkpointer = attached(tmp_path, Trainer(model=linear()))
    checkpointer.save_checkpoint(reason="error")
    assert checkpointer.recover_if_possible() is None
    assert checkpointer.newest() is None
    assert checkpointer.find_checkpoint(include=["error"]) is not None
