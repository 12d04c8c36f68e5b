"""A run that was killed and resumed reads like one that was not: each thing that was logged is there once."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import brainlib as bl
from tests.contracts.brains import SEVEN, VALID, Plain, make, ready_batches
from tests.loggers import pages
from tests.loggers.diary import CUSTOM, Plan, curves_of, rows, run
from tests.recipes.warm import WarmScript

ROOT = Path(__file__).resolve().parents[2]
LOGS = ("metrics.jsonl", "losses.jsonl")
KILLED, STOPPED = -9, 128 + 15

Read = dict[str, list[dict[str, Any]]]


class Cut(BaseException):
    """The end of the process, as far as the Brain can tell."""


def cut() -> None:
    raise Cut


def read(folder: Path) -> Read:
    return {name: rows(folder / name) for name in LOGS}


def again(folder: Path, plan: Plan) -> Plan:
    """For the next start: other initial weights, so that what is right at the end came from a checkpoint."""
    return replace(plan, global_seed=991 if any((folder / "save").glob("step-*")) else plan.global_seed)


def lives(folder: Path, plan: Plan, *last_moments: int) -> Read:
    """What stands in the logs of a run that was cut at these moments of its lives, and then was not."""
    for last in last_moments:
        with pytest.raises(Cut):
            run(folder, replace(again(folder, plan), last_moment=last), end=cut)
    run(folder, again(folder, plan))
    return read(folder)


# -------------------------------------------------------------------------------------------------------- cut anywhere

# How it saves, and at which moments it is cut: others in each row, so that together they are most of them.
PLANS: dict[str, tuple[Plan, range]] = {
    **{
        f"{cls.__name__}, every three updates": (
            Plan(cls.__name__, options={"ckpt_async": False, "ckpt_interval_steps": 3}),
            range(1 + 5 * number, 200, 35),
        )
        for number, cls in enumerate(SEVEN)
    },
    "every update": (Plan(options={"ckpt_async": False, "ckpt_interval_steps": 1}), range(2, 200, 20)),
    "windows of three": (
        Plan(options={"ckpt_async": False, "ckpt_interval_steps": 1, "grad_accumulation_factor": 3}),
        range(4, 200, 20),
    ),
    "each epoch": (Plan(), range(6, 200, 16)),
    "last line of the hook": (Plan(saves="valid"), range(8, 200, 16)),
    "in an inner fit's Brain": (Plan("InnerFit", saves="valid"), range(12, 200, 16)),
    "first line of the hook": (Plan(saves="before logging"), range(10, 200, 15)),
    "inside windows": (Plan(saves="batch", options={"grad_accumulation_factor": 3}), range(14, 200, 16)),
    "validation in mid-epoch": (
        Plan(options={"ckpt_async": False, "ckpt_interval_steps": 1, "valid_interval_steps": 2}),
        range(16, 200, 20),
    ),
    **{
        f"{cls.__name__}, saved in a batch, before what is due there": (
            Plan(cls.__name__, saves="batch", options={"valid_interval_steps": 3}),
            range(2 + 3 * number, 200, 20),
        )
        for number, cls in enumerate(SEVEN)
        if cls.__name__ not in CUSTOM
    },
    "windows of two, saved in a batch, before what is due there": (
        Plan(saves="batch", options={"valid_interval_steps": 1, "grad_accumulation_factor": 2}),
        range(5, 200, 20),
    ),
    "saved in a validation in mid-epoch": (
        Plan(saves="valid", options={"valid_interval_steps": 2}),
        range(3, 200, 20),
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_cut_anywhere_and_resumed(name: str, tmp_path: Path) -> None:
    plan, moments = PLANS[name]
    num_moments = run(tmp_path / "uncut", plan).number
    expected = read(tmp_path / "uncut")
    assert num_moments > 80 and [len(expected[log]) for log in LOGS] >= [30, 4]
    for last in range(moments.start, num_moments + 1, moments.step):
        assert lives(tmp_path / str(last), plan, last) == expected, f"cut at moment {last} of {num_moments}"


@pytest.mark.parametrize("seed", range(4))
def test_cut_several_times(seed: int, tmp_path: Path) -> None:
    plan = Plan(options={"ckpt_async": False, "ckpt_interval_steps": 2, "valid_interval_steps": 4})
    draw = random.Random(seed)
    last_moments = [draw.randrange(1, 40) for _ in range(5)]
    run(tmp_path / "uncut", plan)
    assert lives(tmp_path / "cut", plan, *last_moments) == read(tmp_path / "uncut"), last_moments
    numbers = [row["run"]["attempt"] for row in bl.read_metrics(tmp_path / "cut" / LOGS[0], superseded=True)]
    assert numbers == sorted(numbers) and numbers[-1] == 6


def test_cut_before_the_first_checkpoint(tmp_path: Path) -> None:
    plan = Plan()
    run(tmp_path / "uncut", plan)
    assert lives(tmp_path / "cut", plan, 12) == read(tmp_path / "uncut")
    found = bl.read_metrics(tmp_path / "cut" / "metrics.jsonl", superseded=True)
    second = [row for row in found if row["run"]["attempt"] == 2]
    assert len(second) == len(bl.read_metrics(tmp_path / "cut" / "metrics.jsonl")) < len(found)


def test_a_damaged_checkpoint_takes_what_came_after_the_one_before_it(tmp_path: Path) -> None:
    plan = Plan(options={"ckpt_async": False, "ckpt_interval_steps": 3})
    run(tmp_path / "uncut", plan)
    with pytest.raises(Cut):
        run(tmp_path / "cut", replace(plan, last_moment=50), end=cut)
    newest = bl.Checkpointer(tmp_path / "cut" / "save").list_checkpoints()[0]
    (newest.path / "model.pt").write_bytes(b"no model")
    assert lives(tmp_path / "cut", plan) == read(tmp_path / "uncut")


def test_a_finished_run_started_again(tmp_path: Path) -> None:
    """It trains no more, evaluates once more, and each evaluation is there once."""
    expected = lives(tmp_path, Plan())
    assert lives(tmp_path, Plan()) == expected
    assert lives(tmp_path, Plan()) == expected


# --------------------------------------------------------------------------------------------- processes, really killed


@pytest.fixture(scope="module")
def script() -> Iterator[WarmScript]:
    with WarmScript(ROOT / "tests" / "loggers" / "diary.py", ROOT) as warm:
        yield warm


def start(script: WarmScript, folder: Path, plan: Plan) -> int:
    folder.mkdir(exist_ok=True)
    status = script.run(str(folder), json.dumps(asdict(plan)), output=folder / "output.txt")
    assert status in (0, KILLED, STOPPED), (folder / "output.txt").read_text()
    return status


def test_killed_processes(script: WarmScript, tmp_path: Path) -> None:
    plan = Plan(options={"ckpt_async": False, "ckpt_interval_steps": 3}, saves="valid")
    assert start(script, tmp_path / "uncut", plan) == 0
    for number, last_moments in enumerate([(5,), (31, 2), (44, 17)]):
        folder = tmp_path / str(number)
        for last in last_moments:
            assert start(script, folder, replace(again(folder, plan), last_moment=last)) == KILLED
        assert start(script, folder, again(folder, plan)) == 0
        assert read(folder) == read(tmp_path / "uncut"), last_moments


def test_stopped_processes(script: WarmScript, tmp_path: Path) -> None:
    """SIGTERM in hooks, in validations at the end of an epoch and inside of one, which are then done again."""
    plan = Plan(options={"valid_interval_steps": 2})
    assert start(script, tmp_path / "uncut", plan) == 0
    for number, last_moments in enumerate([(6, 9), (13, 17), (16, 40), (35, 25), (37, 3 + 11), (39,)]):
        folder = tmp_path / str(number)
        for last in last_moments:
            stopping = replace(again(folder, plan), last_moment=last, signal="SIGTERM")
            assert start(script, folder, stopping) == STOPPED, (last_moments, last)
        assert start(script, folder, again(folder, plan)) == 0
        assert read(folder) == read(tmp_path / "uncut"), last_moments


def test_killed_while_checkpoints_are_written_beside_training(script: WarmScript, tmp_path: Path) -> None:
    plan = Plan(options={"ckpt_async": True, "ckpt_interval_steps": 1})
    assert start(script, tmp_path / "uncut", plan) == 0
    for number, last_moments in enumerate([(10, 21), (52, 12), (75, 30)]):
        folder = tmp_path / str(number)
        for last in last_moments:
            assert start(script, folder, replace(again(folder, plan), last_moment=last)) == KILLED
        assert start(script, folder, again(folder, plan)) == 0
        assert read(folder) == read(tmp_path / "uncut"), last_moments


def test_killed_in_the_middle_of_a_line(script: WarmScript, tmp_path: Path) -> None:
    """Half a line swallows neither the line before it nor the next attempt's first."""
    plan = Plan(options={"ckpt_async": False, "ckpt_interval_steps": 1})
    assert start(script, tmp_path / "uncut", plan) == 0
    for torn in (1, 4, 11):
        folder = tmp_path / str(torn)
        assert start(script, folder, replace(plan, torn=torn)) == KILLED
        assert not (folder / "metrics.jsonl").read_bytes().endswith(b"\n")
        assert start(script, folder, again(folder, plan)) == 0
        assert read(folder) == read(tmp_path / "uncut")


def test_without_a_checkpointer_a_run_that_is_started_again_takes_the_place_of_the_former(
    script: WarmScript, tmp_path: Path
) -> None:
    plan = Plan(checkpoints=False)
    assert start(script, tmp_path / "uncut", plan) == 0
    assert start(script, tmp_path / "cut", replace(plan, last_moment=40)) == KILLED
    assert start(script, tmp_path / "cut", plan) == 0
    assert read(tmp_path / "cut") == read(tmp_path / "uncut")
    marks = [
        line for line in (tmp_path / "cut" / "log.txt").read_text().splitlines() if line.startswith("---")
    ]
    assert marks == ["--- started from scratch"]


def test_killed_from_outside_while_it_logs(script: WarmScript, tmp_path: Path) -> None:
    plan = Plan(options={"ckpt_async": False, "ckpt_interval_steps": 2})
    assert start(script, tmp_path / "uncut", plan) == 0
    folder, log = tmp_path / "cut", tmp_path / "cut" / "metrics.jsonl"
    folder.mkdir()
    for least in (3, 9, 14, 20):
        words = str(folder), json.dumps(asdict(again(folder, plan)))
        status = script.run(
            *words,
            output=folder / "output.txt",
            kill_when=lambda least=least: log.exists() and log.read_bytes().count(b"\n") >= least,
        )
        assert status in (0, KILLED)
    assert start(script, folder, again(folder, plan)) == 0
    assert read(folder) == read(tmp_path / "uncut")


# -------------------------------------------------------------------------------------------------------- TensorBoard


def page(folder: Path) -> pages.Curves:
    return pages.of_tensorboard(folder / "events")


@pytest.mark.parametrize("last_moments", [(5,), (53,), (52, 38), (85, 9), (95,)], ids=str)
def test_a_page_of_tensorboard_shows_each_point_once(last_moments: tuple[int, ...], tmp_path: Path) -> None:
    """Two axes in one folder, two fits whose epochs begin anew, and points that a purge takes of the other axis."""
    plan = Plan(tensorboard=True, saves="valid", options={"ckpt_async": False, "ckpt_interval_steps": 4})
    lives(tmp_path / "uncut", plan)
    lives(tmp_path / "cut", plan, *last_moments)
    expected = page(tmp_path / "uncut")
    assert [step for step, _ in expected["batch loss/train"]] == list(range(1, 16))
    assert [step for step, _ in expected["loss/train"]] == [0, 1, 2]
    assert page(tmp_path / "cut") == expected


def test_a_killed_process_and_tensorboard(script: WarmScript, tmp_path: Path) -> None:
    plan, cut = (
        Plan(tensorboard=True, options={"ckpt_async": False, "ckpt_interval_steps": 4}),
        tmp_path / "cut",
    )
    assert start(script, tmp_path / "uncut", plan) == 0
    for last in (37, 20):
        assert start(script, cut, replace(again(cut, plan), last_moment=last)) == KILLED
    assert start(script, cut, again(cut, plan)) == 0
    assert page(cut) == page(tmp_path / "uncut")


def test_a_clock_that_was_set_back_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "events.out.tfevents.9000000000.here.1.0").write_bytes(b"")
    log = bl.TensorboardLogger(tmp_path)
    log.log_stats({"epoch": 1}, {"loss": 0.5})
    log.close()
    assert (
        "in the future: what is logged before then is shown in the wrong order. Set the clock." in caplog.text
    )


# ------------------------------------------------------------------------------------------ tables, and pages of others


def shown(kind: str, folder: Path) -> Any:
    """What is read back of the curves, from the files of whoever keeps them."""
    if kind == "csv":
        return pages.of_csv(folder / "curves" / "curves.csv")
    if kind == "mlflow":
        return pages.of_mlflow(folder / "curves", f"file:{folder}/mlruns")
    return pages.of_wandb(folder / "curves")


@pytest.mark.parametrize("last_moments", [(5,), (52, 38), (85, 9), (95,)], ids=str)
@pytest.mark.parametrize("kind", ["csv", "mlflow", "wandb"])
def test_others_show_each_point_once_too(
    kind: str, last_moments: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages.skip_without(kind, monkeypatch)
    plan = Plan(
        tensorboard=True, curves=kind, saves="valid", options={"ckpt_async": False, "ckpt_interval_steps": 4}
    )
    lives(tmp_path / "uncut", plan)
    lives(tmp_path / "cut", plan, *last_moments)
    expected = shown(kind, tmp_path / "uncut")
    assert len(expected) > 4
    assert shown(kind, tmp_path / "cut") == expected


def test_several_at_once_tell_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that are installed, cut in the second epoch and resumed."""
    kinds = [kind for kind in ("csv", "mlflow", "tensorboard", "wandb") if find_spec(kind) is not None]
    for kind in kinds:
        if kind in ("mlflow", "wandb"):
            pages.skip_without(kind, monkeypatch)

    class Ends(Plain):
        at = -1

        def on_fit_batch_end(self, *args: Any) -> None:
            if self.optimizer_step == self.at:
                raise KeyboardInterrupt

    def fit(at: int) -> None:
        brain = make(Ends, bl.Checkpointer(tmp_path / "save"))
        brain.at = at
        brain.loggers = [bl.JsonlLogger(tmp_path / "metrics.jsonl")]
        brain.loggers += [curves_of(kind, tmp_path / kind) for kind in kinds]
        try:
            brain.fit(range(3), ready_batches(), VALID)
        finally:
            for log in brain.loggers:
                log.close()

    with pytest.raises(KeyboardInterrupt):
        fit(at=8)
    fit(at=-1)
    expected = [(row["epoch"], row["valid"]["loss"]) for row in bl.read_metrics(tmp_path / "metrics.jsonl")]
    assert [epoch for epoch, _ in expected] == [0, 1, 2]
    for kind in kinds:
        if kind == "csv":
            table = shown(kind, tmp_path / kind)
            told = [(int(row["epoch"]), float(row["loss/valid"])) for row in table]
        else:
            curves = page(tmp_path / kind) if kind == "tensorboard" else shown(kind, tmp_path / kind)
            told = curves["loss/valid"]
        assert [epoch for epoch, _ in told] == [0, 1, 2], kind
        assert [loss for _, loss in told] == pytest.approx([loss for _, loss in expected]), kind


def test_a_killed_process_and_a_table(script: WarmScript, tmp_path: Path) -> None:
    plan, cut = (
        Plan(tensorboard=True, curves="csv", options={"ckpt_async": False, "ckpt_interval_steps": 4}),
        tmp_path / "cut",
    )
    assert start(script, tmp_path / "uncut", plan) == 0
    for last in (37, 20):
        assert start(script, cut, replace(again(cut, plan), last_moment=last)) == KILLED
    assert start(script, cut, again(cut, plan)) == 0
    assert shown("csv", cut) == shown("csv", tmp_path / "uncut")


def test_from_scratch_in_a_used_folder_nothing_is_lost(script: WarmScript, tmp_path: Path) -> None:
    plan = Plan(tensorboard=True, curves="csv", checkpoints=False)
    table, log = tmp_path / "curves" / "curves.csv", tmp_path / "metrics.jsonl"
    assert start(script, tmp_path, replace(plan, last_moment=60)) == KILLED
    first, rows_before = table.read_bytes(), bl.read_metrics(log, superseded=True)
    assert start(script, tmp_path, replace(plan, global_seed=991)) == 0
    assert (tmp_path / "curves" / "curves.1.csv").read_bytes() == first
    assert bl.read_metrics(log, superseded=True)[: len(rows_before)] == rows_before
    noted = bl.read_metrics(tmp_path / "curves" / "curves.rows.jsonl", superseded=True)
    assert len(noted) == len(first.splitlines()) - 1 + len(pages.of_csv(table))


def test_the_former_run_of_mlflow_is_kept_and_says_what_came_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages.skip_without("mlflow", monkeypatch)
    plan = Plan(tensorboard=True, curves="mlflow", options={"ckpt_async": False, "ckpt_interval_steps": 4})
    lives(tmp_path, plan, 52)
    former, latter = pages.runs_of_mlflow(f"file:{tmp_path}/mlruns", "diary")
    assert former.data.tags["brainlib.superseded_by"] == latter.info.run_id
    assert latter.data.tags["brainlib.supersedes"] == former.info.run_id
    assert (former.info.status, latter.info.status) == ("KILLED", "FINISHED")
    assert former.data.metrics


# --------------------------------------------------------------------------------------------------------- for people


def test_the_line_for_people_says_that_the_run_was_resumed(tmp_path: Path) -> None:
    plan = Plan(options={"ckpt_async": False, "ckpt_interval_steps": 3})
    lives(tmp_path, plan, 12, 50, 35)
    marks = [line for line in (tmp_path / "log.txt").read_text().splitlines() if line.startswith("---")]
    assert marks == [
        "--- resumed from step-00000009: fit 0, epoch 2, after batch 4, update 9; "
        "lines above that come after this are superseded",
        "--- resumed from step-00000012: fit 1, epoch 1, after batch 2, update 12; "
        "lines above that come after this are superseded",
    ]
