"""Where a run begins: `resume` and `init_from`, what is said, and what an evaluation alone makes of them."""

from __future__ import annotations

import copy
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from brainlib.checkpoint.averaging import write_average
from brainlib.snapshot import Snapshot
from tests.brain.small import Regression, batches, linear, same, sgd, small, weights
from tests.checkpoint.test_speechbrain_folder import speechbrain_checkpoint

DATA = batches(4, 4)
TEST = batches(5, 2, seed=4)


@pytest.fixture(autouse=True)
def _everything_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="brainlib")


def run(folder: Path | None, num_epochs: int = 2, cls: Any = Regression, **options: Any) -> Any:
    """A script: two updates an epoch."""
    brain = small(cls, checkpointer=None if folder is None else bl.Checkpointer(folder), **options)
    brain.fit(range(num_epochs), DATA)
    return brain


def lines(caplog: pytest.LogCaptureFixture, *begins: str) -> list[str]:
    """What was said since it was asked last, of one of these beginnings."""
    told = [r.getMessage() for r in caplog.records]
    caplog.clear()
    return [line for line in told if line.startswith(begins)]


STARTS = ("resumed from", "warm start", "starting from scratch")
HEADS = (*STARTS, "resume", "init_from", "going back")


def wide() -> torch.nn.Module:
    return torch.nn.Linear(4, 2).double()


def scaled(factor: float) -> torch.nn.Linear:
    """The usual model with other weights."""
    model = torch.nn.Linear(3, 2).double()
    torch.nn.init.constant_(model.weight, factor)
    torch.nn.init.constant_(model.bias, factor)
    return model


# ------------------------------------------------------------------------------------------- three starts, told apart


def test_one_line_tells_the_three_apart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    run(other)
    assert lines(caplog, *STARTS) == [f"starting from scratch: there is no checkpoint in {other}"]
    run(own, 1, init_from=other)
    assert lines(caplog, *STARTS) == [
        f"warm start from {other}/step-00000004: weights of 'model'; optimizers, schedules and counters start afresh"
    ]
    run(own, 2)
    assert lines(caplog, *STARTS) == [f"resumed from {own}/step-00000002: fit 0, 1 epoch closed, update 2"]


def test_a_path_is_taken_as_text_as_path_from_the_file_and_from_the_command_line(tmp_path: Path) -> None:
    other = run(tmp_path / "other")
    _, typed, _ = bl.parse_arguments(["x.yaml", "--init-from", str(tmp_path / "other")])
    section = {"run_opts": {"init_from": str(tmp_path / "other")}}
    for options in ({"init_from": tmp_path / "other"}, dict(typed), {"hparams": section}):
        brain = small(opt_class=None, **options)
        brain.fit(range(1), DATA)
        assert same(weights(brain), weights(other))


# ---------------------------------------------------------------------------------------------------------- resume


def test_never_begins_from_scratch_and_sets_aside_what_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = run(tmp_path)
    caplog.clear()
    again = run(tmp_path, resume="never", model=scaled(0.5))
    assert again.optimizer_step == 4 and not same(weights(first), weights(again))
    warning, line = lines(caplog, *HEADS)
    assert warning == (
        f"resume is 'never', and {tmp_path} held checkpoints of an earlier run: they are in {tmp_path}/former.1 now. "
        "Started again with 'never', this run begins from scratch, too."
    )
    assert line == "starting from scratch: resume is 'never'"
    assert same(weights(first), bl.load_weights(tmp_path / "former.1", "model").values()), (
        "nothing of it is lost"
    )
    assert bl.Checkpointer(tmp_path).newest().path.name == "step-00000004"
    run(tmp_path, resume="never")
    assert len(bl.Checkpointer(tmp_path / "former.2").list_checkpoints()) == 2
    again = run(tmp_path, resume="never", model=scaled(0.5))
    resumed = run(tmp_path)
    assert same(weights(resumed), weights(again)), "the newest is that of the later run"


def test_never_in_an_empty_folder_warns_of_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path / "new", resume="never")
    assert lines(caplog, *HEADS) == ["starting from scratch: resume is 'never'"]


@pytest.mark.parametrize("what", ["checkpoint", "folder", "relative"])
def test_a_path_outside_counts_until_the_run_has_a_checkpoint_of_its_own(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other, own = tmp_path / "other", tmp_path / "own"
    run(other)
    path = {"checkpoint": other / "step-00000002", "folder": other, "relative": Path("other/step-00000002")}[
        what
    ]
    start = 4 if what == "folder" else 2
    before = sorted(str(p) for p in other.rglob("*"))
    caplog.clear()
    brain = run(own, 3, resume=path)
    (line,) = lines(caplog, *HEADS)
    assert line.startswith(f"resumed from {other}/step-0000000{start}: ")
    assert line.endswith(f", update {start}; as resume={path} asks")
    assert brain.optimizer_step == 6 and same(weights(brain), weights(run(None, 3)))
    assert sorted(str(p) for p in other.rglob("*")) == before

    shutil.rmtree(other)  # the same command line is right also where that is gone
    caplog.clear()
    brain = run(own, 4, resume=path)
    (line,) = lines(caplog, *HEADS)
    assert line == (
        f"resumed from {own}/step-00000006: fit 0, 3 epochs closed, update 6; it began at resume={path}"
    )
    assert same(weights(brain), weights(run(None, 4)))
    caplog.clear()
    run(own, 5)
    assert lines(caplog, *HEADS) == [f"resumed from {own}/step-00000008: fit 0, 4 epochs closed, update 8"]
    run(own, 6, resume=path)
    assert lines(caplog, *HEADS)[0].endswith(f"; it began at resume={path}"), (
        "passed on from checkpoint to checkpoint"
    )


def test_a_path_outside_has_no_effect_on_another_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path / "other", 3)
    run(tmp_path / "own", 1)
    caplog.clear()
    brain = run(tmp_path / "own", 1, resume=tmp_path / "other")
    warning, line = lines(caplog, *HEADS)
    assert warning == (
        f"resume={tmp_path}/other has no effect: {tmp_path}/own has checkpoints of its own, and the run goes on from "
        "the newest of them. To begin there, give a new folder."
    )
    assert line.startswith(f"resumed from {tmp_path}/own/step-00000002: ") and brain.optimizer_step == 2


@pytest.mark.parametrize("option", ["resume", "init_from"])
@pytest.mark.parametrize("place", ["other", "other/step-00000004", "own", "own/step-00000004"])
def test_a_relative_path_is_one_from_where_the_brain_was_made(
    option: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the folder of a Checkpointer is; scripts change their working directory in between."""
    for name in ("other", "own"):
        run(tmp_path / name)
    own = tmp_path / ("own" if option == "resume" and place.startswith("own") else "third")
    (tmp_path / "below").mkdir()
    for _ in range(2):
        monkeypatch.chdir(tmp_path)
        brain = small(Regression, checkpointer=bl.Checkpointer(own), **{option: place})
        monkeypatch.chdir(tmp_path / "below")
        brain.fit(range(3), DATA)
        assert brain.optimizer_step == 6
    assert list((tmp_path / "below").iterdir()) == []


def test_the_own_folder_as_a_path_is_auto(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "own")
    run(tmp_path / "own", 1)
    for path in (tmp_path / "own", f"{tmp_path}/own/", tmp_path / "link"):
        caplog.clear()
        run(tmp_path / "own", 1, resume=path)
        assert lines(caplog, *HEADS) == [
            f"resumed from {tmp_path}/own/step-00000002: fit 0, 1 epoch closed, update 2"
        ]


def test_a_path_inside_goes_back_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run that is cut after it went back is started again with the same arguments, and must get on."""
    run(tmp_path, 3, num_snapshots=-1)
    back = tmp_path / "step-00000002"
    caplog.clear()
    brain = run(tmp_path, 4, num_snapshots=-1, resume=back)
    line, warning = sorted(lines(caplog, *HEADS), reverse=True)
    assert line.endswith(f"1 epoch closed, update 2; as resume={back} asks")
    assert warning.startswith(
        f"going back to {back}: 'step-00000006', 'step-00000004', which were made later, stay"
    )
    assert same(weights(brain), weights(run(None, 4)))
    assert bl.Checkpointer(tmp_path).newest().path.name == "step-00000008"

    caplog.clear()
    brain = run(tmp_path, 5, num_snapshots=-1, resume=back)
    assert lines(caplog, *HEADS) == [
        f"resumed from {tmp_path}/step-00000008: fit 0, 4 epochs closed, update 8; it had gone back to resume={back} "
        "before"
    ]
    assert same(weights(brain), weights(run(None, 5)))


def test_back_to_another_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path, 3, num_snapshots=-1)
    run(tmp_path, 3, num_snapshots=-1, resume=tmp_path / "step-00000002")
    caplog.clear()
    run(tmp_path, 3, num_snapshots=-1, resume=tmp_path / "step-00000004")
    assert lines(caplog, "resumed")[0].startswith(f"resumed from {tmp_path}/step-00000004: ")


@pytest.mark.parametrize("moved", [False, True])
def test_what_was_gone_back_to_may_be_let_go(
    moved: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The newest two are kept: with the same command line the run gets on all the same, also in a moved folder."""
    place = tmp_path / "a"
    run(place, 2)
    run(place, 4, resume=place / "step-00000002")
    assert not (place / "step-00000002").exists()
    if moved:
        place.rename(tmp_path / "b")
        place = tmp_path / "b"
    caplog.clear()
    brain = run(place, 5, resume=place / "step-00000002")
    assert "it had gone back to" in lines(caplog, "resumed")[0] and brain.optimizer_step == 10


def test_the_one_gone_back_to_comes_before_what_was_made_without_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All of the new branch is damaged: it is begun again, and not taken for the old one."""
    run(tmp_path, 3, num_snapshots=-1)
    run(tmp_path, 4, num_snapshots=-1, resume=tmp_path / "step-00000002")
    for checkpoint in bl.Checkpointer(tmp_path).list_checkpoints()[:3]:
        os.truncate(checkpoint.path / "model.pt", 10)
    caplog.clear()
    run(tmp_path, 4, num_snapshots=-1, resume=tmp_path / "step-00000002")
    assert lines(caplog, "resumed")[0].endswith(f"update 2; as resume={tmp_path}/step-00000002 asks")


def test_a_damaged_newest_in_a_folder_outside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path / "other", 2)
    os.truncate(tmp_path / "other" / "step-00000004" / "model.pt", 10)
    brain = run(tmp_path / "own", 3, resume=tmp_path / "other")
    assert "step-00000004 is skipped: its model.pt has 10 bytes" in caplog.text
    assert brain.optimizer_step == 6 and same(weights(brain), weights(run(None, 3)))
    with pytest.raises(
        bl.CheckpointError, match="step-00000004 is no intact checkpoint: its model.pt has 10"
    ):
        run(tmp_path / "new", resume=tmp_path / "other" / "step-00000004")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "nevr",
            "resume='nevr': there is no such path; give 'auto', 'never', or the path .* Did you mean 'never'?",
        ),
        ("/nowhere/at/all", "resume='/nowhere/at/all': there is no such path; .* In .*own there are: none"),
    ],
)
def test_a_path_that_leads_nowhere(word: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "own", resume=word)


def test_the_state_at_an_error_is_resumed_where_its_path_is_given(tmp_path: Path) -> None:
    class Failing(Regression):
        def on_fit_batch_start(self, batch: Any, should_step: bool) -> None:
            if self.optimizer_step == 3:
                raise KeyError("the disk is gone")

    class Looking(Regression):
        def on_fit_batch_start(self, batch: Any, should_step: bool) -> None:
            self.seen = [*getattr(self, "seen", []), self.optimizer_step]

    def brain(cls: Any, folder: Path, **options: Any) -> Any:
        return cls(
            {"model": linear()}, sgd, {"seed": 0}, {"noprogressbar": True, **options}, bl.Checkpointer(folder),
            extensions=[Snapshot(snapshot_on_error=True, name="s")],
        )  # fmt: skip

    with pytest.raises(KeyError):
        brain(Failing, tmp_path / "own").fit(range(3), DATA)
    failed = next(c for c in bl.Checkpointer(tmp_path / "own").list_checkpoints() if c.reason == "error")
    for place, updates in ((tmp_path / "own", 2), (failed.path, 3)):
        again = brain(Looking, tmp_path / f"from {updates}", resume=place)
        again.fit(range(3), DATA)
        assert again.seen[0] == updates and same(weights(again), weights(run(None, 3)))


def test_paths_that_are_no_checkpoint(tmp_path: Path) -> None:
    run(tmp_path / "other" / "save", 1)
    with pytest.raises(bl.CheckpointError, match="no intact checkpoint in .*; there are in 'save' inside it"):
        run(tmp_path / "own", resume=tmp_path / "other")
    speechbrain_checkpoint(tmp_path / "theirs" / "CKPT+a", {"model": scaled(1.0)})
    with pytest.raises(
        bl.CheckpointError, match="a checkpoint of SpeechBrain's.* give init_from='.*' instead of resume"
    ):
        run(tmp_path / "own", resume=tmp_path / "theirs")
    with pytest.raises(ValueError, match="option 'resume' is empty; it is 'auto', 'never' or a path"):
        run(tmp_path / "own", resume=" ")


def test_another_models_says_how_to_take_the_weights(tmp_path: Path) -> None:
    run(tmp_path / "other", 1)
    bl.Checkpointer(tmp_path / "alone", {"model": scaled(1.0)}).save_checkpoint()  # without a Brain
    for path, told in ((tmp_path / "other", "'weight' has shape"), (tmp_path / "alone", "it has no 'brain'")):
        model = scaled(1.0) if path.name == "alone" else wide()
        with pytest.raises(bl.CheckpointError, match=told) as caught:
            run(tmp_path / "own", resume=path, model=model)
        assert f"give init_from={str(path)!r} instead of resume" in str(caught.value)


def test_a_path_without_a_checkpointer(tmp_path: Path) -> None:
    run(tmp_path / "other", 1)
    with pytest.raises(ValueError, match="needs a Brain with a checkpointer.* give init_from='"):
        run(None, resume=tmp_path / "other")
    with pytest.raises(ValueError, match="needs a Brain with a checkpointer.* give init_from='"):
        small(resume=tmp_path / "other").evaluate(TEST)
    assert run(None, resume="never").optimizer_step == run(None, resume="auto").optimizer_step == 4


# -------------------------------------------------------------------------------------------------------- init_from


@pytest.mark.parametrize(
    "what", ["checkpoint", "folder", "SpeechBrain", "SpeechBrain's save", "average", "file"]
)
def test_weights_alone_from_wherever_they_are(what: str, tmp_path: Path) -> None:
    """The run is then that of a model which had these weights when it was made."""
    other = run(tmp_path / "ours", 3, num_snapshots=-1)
    theirs = speechbrain_checkpoint(tmp_path / "theirs" / "CKPT+a", {"model": scaled(0.3)})
    parents = bl.Checkpointer(tmp_path / "ours").find_checkpoints()
    write_average(parents, "model", tmp_path / "mean.pt")
    torch.save(scaled(0.2).state_dict(), tmp_path / "file.pt")
    path, expected = {
        "checkpoint": (tmp_path / "ours" / "step-00000006", copy.deepcopy(other.modules.model)),
        "folder": (tmp_path / "ours", copy.deepcopy(other.modules.model)),
        "SpeechBrain": (theirs, scaled(0.3)),
        "SpeechBrain's save": (theirs.parent, scaled(0.3)),
        "average": (tmp_path / "mean.pt", scaled(0.0)),
        "file": (tmp_path / "file.pt", scaled(0.2)),
    }[what]
    if what == "average":
        expected.load_state_dict(bl.average_checkpoints(parents, "model"))
    reference = run(None, model=expected)
    for folder in (None, tmp_path / "own"):
        brain = run(folder, init_from=path)
        assert brain.optimizer_step == 4 and same(weights(brain), weights(reference))


def test_the_optimizer_starts_afresh(tmp_path: Path) -> None:
    def adam(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.01)

    other = run(tmp_path / "other", 3, opt_class=adam)
    seen: list[Any] = []

    class Looking(Regression):
        def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
            seen.append((len(self.optimizer.state), self.optimizer_step, weights(self)))

    run(tmp_path / "own", 1, Looking, opt_class=adam, init_from=tmp_path / "other")
    assert seen[0][:2] == (0, 0) and same(seen[0][2], weights(other))


def test_a_run_that_is_started_again_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path / "other", 3)
    other, own = tmp_path / "other", tmp_path / "own"
    run(own, 1, init_from=other)
    shutil.rmtree(other)
    caplog.clear()
    run(own, 2, init_from=other)
    assert lines(caplog, *HEADS) == [
        f"resumed from {own}/step-00000002: fit 0, 1 epoch closed, update 2; init_from={other} was applied when the "
        "run began"
    ]
    run(own, 3)
    caplog.clear()
    run(own, 4, init_from=other)
    assert lines(caplog, *HEADS)[0].endswith("was applied when the run began"), (
        "also after a start without it"
    )
    run(own, 4, init_from="elsewhere")
    warning = lines(caplog, "init_from")[0]
    assert warning == (
        f"init_from=elsewhere has no effect: the run goes on from {own}/step-00000008, and it began with the weights "
        f"of {other}. To begin with other weights, give a new folder."
    )


def test_it_has_no_effect_on_a_run_that_began_without_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path / "own", 1)
    caplog.clear()
    brain = run(tmp_path / "own", 2, init_from="/nowhere")
    assert "and it began without init_from. To begin with" in lines(caplog, "init_from")[0]
    assert same(weights(brain), weights(run(None, 2)))


def test_resume_never_and_init_from_is_a_warm_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = run(tmp_path / "other", 3)
    run(tmp_path / "own", 1)
    caplog.clear()
    brain = run(tmp_path / "own", 2, init_from=tmp_path / "other", resume="never")
    assert [line.split(" ")[0] for line in lines(caplog, *HEADS)] == ["resume", "warm"]
    assert same(weights(brain), weights(run(None, 2, model=run(None, 3).modules.model)))
    assert other.optimizer_step == 6


def test_resume_with_a_path_comes_before_init_from(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path / "other", 2)
    caplog.clear()
    brain = run(tmp_path / "own", 3, resume=tmp_path / "other", init_from="/nowhere")
    assert "and it began without init_from" in lines(caplog, "init_from")[0]
    assert same(weights(brain), weights(run(None, 3)))


def test_what_the_source_lacks_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path / "other", 1)
    head = torch.nn.Linear(2, 2).double()
    caplog.clear()
    brain = Regression(
        {"model": scaled(1.0), "head": head},
        None,
        run_opts={"noprogressbar": True, "init_from": tmp_path / "other"},
    )
    brain.fit(range(1), DATA)
    warning, line = lines(caplog, *HEADS)
    assert warning == (
        f"init_from: there are no weights of 'head' in {tmp_path}/other/step-00000002, so these are as they were made"
    )
    assert "weights of 'model'; " in line


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "other", 1)
    model = wide()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(bl.CheckpointError, match="do not fit, so nothing was loaded"):
        run(tmp_path / "own", init_from=tmp_path / "other", model=model)
    assert all(torch.equal(model.state_dict()[key], before[key]) for key in before)
    with pytest.raises(
        ValueError, match="init_from='/nowhere': there is no such path; give a checkpoint, a folder"
    ):
        run(tmp_path / "own", init_from="/nowhere")
    assert not (tmp_path / "own").exists()


def test_every_checkpoint_notes_what_the_run_began_from(tmp_path: Path) -> None:
    run(tmp_path / "other", 1)
    run(tmp_path / "own", 2, init_from=tmp_path / "other")
    run(tmp_path / "third", 3, resume=tmp_path / "own")
    source = bl.Checkpointer(tmp_path / "other").newest()
    for checkpoint in bl.Checkpointer(tmp_path / "third").list_checkpoints():
        began = checkpoint.environment["began"]
        assert began["init_from"] == {
            "path": str(tmp_path / "other"),
            "name": "step-00000002",
            "sums": {"model.pt": source.files["model.pt"].sha256},
        }
        assert (began["resume"]["path"], began["resume"]["commit"]) == (str(tmp_path / "own"), 2)
    assert "began" not in source.environment


def test_an_on_fit_start_that_calls_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path / "other", 1)

    class Alone(Regression):
        def on_fit_start(self) -> None:
            if self.optimizer is None:
                self.init_optimizers()

    caplog.clear()
    brain = run(None, 2, Alone, init_from=tmp_path / "other")
    assert lines(caplog, *HEADS) == [
        f"init_from={tmp_path}/other has no effect: your on_fit_start does not call super().on_fit_start(), which "
        "loads it",
        "starting from scratch: without a checkpointer nothing is saved",
    ]
    assert same(weights(brain), weights(run(None, 2)))
    trained = weights(brain)
    assert brain.evaluate(TEST) == brain.evaluate(TEST, checkpoint="current") and same(
        trained, weights(brain)
    )


# ----------------------------------------------------------------------------------------- an evaluation without a fit


def loss_of(values: list[torch.Tensor]) -> float:
    model = small()
    with torch.no_grad():
        for parameter, value in zip(model.modules.parameters(), values, strict=True):
            parameter.copy_(value)
    return float(model.evaluate(TEST))


def test_an_evaluation_alone_has_the_weights_of_the_beginning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    right = loss_of(weights(run(tmp_path / "other", 3)))
    for folder in (None, tmp_path / "own"):
        for options in ({"init_from": tmp_path / "other"}, {"resume": tmp_path / "other"}):
            if folder is None and "resume" in options:
                continue
            checkpointer = None if folder is None else bl.Checkpointer(folder)
            brain = small(checkpointer=checkpointer, test_only=True, **options)
            brain.fit(range(1), DATA)  # is skipped
            before = weights(brain)
            caplog.clear()
            assert brain.evaluate(TEST) == brain.evaluate(TEST, checkpoint="current") == right
            assert lines(caplog, "evaluating") == 2 * [
                f"evaluating with the weights of {tmp_path}/other/step-00000006, with which a fit would begin"
            ]
            predicted = brain.predict([TEST[0]])[0]
            assert torch.equal(predicted, run(None, 3).modules.model(TEST[0]["x"]).detach())
            assert same(weights(brain), before), "and it leaves no trace"
            assert brain.optimizer is None and brain.optimizer_step == 0
    assert not (tmp_path / "own").exists()


def test_checkpoints_of_the_run_come_first(tmp_path: Path) -> None:
    run(tmp_path / "other", 3)
    own = run(tmp_path / "own", 1)
    for options in ({"init_from": tmp_path / "other"}, {"resume": tmp_path / "other"}, {"resume": "never"}):
        brain = small(checkpointer=bl.Checkpointer(tmp_path / "own"), model=scaled(0.5), **options)
        assert brain.evaluate(TEST) == loss_of(weights(own))
        assert brain.evaluate(TEST, checkpoint="current") == loss_of(weights(brain))


def test_after_a_fit_the_current_weights_are_those_of_the_fit(tmp_path: Path) -> None:
    run(tmp_path / "other", 3)
    brain = run(None, 2, init_from=tmp_path / "other")
    assert brain.evaluate(TEST) == loss_of(weights(brain))
    brain.fit(range(2), DATA)
    assert brain.evaluate(TEST) == loss_of(weights(brain))


def test_an_evaluation_before_the_fit_does_not_disturb_it(tmp_path: Path) -> None:
    run(tmp_path / "other", 3)
    looked = small(init_from=tmp_path / "other")
    looked.evaluate(TEST)
    looked.fit(range(2), DATA)
    assert same(weights(looked), weights(run(None, 2, init_from=tmp_path / "other")))


def test_debug_leaves_the_real_folder_alone(tmp_path: Path) -> None:
    run(tmp_path / "own", 1)
    other = run(tmp_path / "other", 3)
    brain = run(tmp_path / "own", 1, debug=True, opt_class=None, init_from=tmp_path / "other")
    assert same(weights(brain), weights(other))
