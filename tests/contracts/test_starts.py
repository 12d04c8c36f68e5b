"""Whatever a run began from, it is one run: the seven, killed in real processes and started again with the same
command line, end with the bits of a run that nobody touched. Moving and renaming folders changes nothing.
"""

from __future__ import annotations

import functools
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from brainlib.checkpoint.journal import read_records
from tests.contracts.brains import (
    SEVEN,
    VALID,
    Plain,
    digest,
    ending,
    make,
    train,
    two_fits,
)
from tests.recipes.warm import WarmScript

ROOT = Path(__file__).resolve().parents[2]
OTHER_SEED = 991
OPTIONS = {"ckpt_interval_steps": 1, "ckpt_async": False, "grad_accumulation_factor": 3}
seven = pytest.mark.parametrize("cls", SEVEN, ids=lambda cls: cls.__name__)


class Cut(BaseException):
    """The end of the process, as far as the Brain can tell."""


@functools.cache
def uncut(cls: type[Plain]) -> dict[str, Any]:
    return as_json(ending(two_fits(make(cls, grad_accumulation_factor=3))))


def as_json(end: dict[str, Any]) -> dict[str, Any]:
    """As it comes out of another process: tuples are lists, and every bit of a float is kept."""
    found: dict[str, Any] = json.loads(json.dumps(end))
    return found


def same_ending(end: dict[str, Any], reference: dict[str, Any]) -> bool:
    """Equal bits and counts, and equal losses in the epochs that the last process closed."""
    epochs = len(end["trace"])
    return {**end, "trace": reference["trace"][len(reference["trace"]) - epochs :]} == reference | {
        "trace": end["trace"]
    }


@pytest.fixture(scope="module")
def job() -> Iterator[WarmScript]:
    with WarmScript(ROOT / "tests" / "contracts" / "starts_job.py", ROOT) as script:
        yield script


@pytest.fixture
def process(job: WarmScript, tmp_path: Path) -> Callable[..., tuple[dict[str, Any] | None, str]]:
    """Runs the script once; returns its ending (None: it was killed), and what it said."""

    def run(
        cls: type[Plain], folder: Path, *, kill: int = 0, seed: int = OTHER_SEED, **options: Any
    ) -> tuple[dict[str, Any] | None, str]:
        output, said = tmp_path / "ending.json", tmp_path / "said.txt"
        for path in (output, said):
            path.unlink(missing_ok=True)
        request = {
            "style": cls.__name__, "folder": str(folder), "seed": seed, "kill": kill, "output": str(output),
            "options": {name: str(value) for name, value in options.items()},
        }  # fmt: skip
        status = job.run(json.dumps(request), output=said)
        assert status == (-signal.SIGKILL if kill else 0), said.read_text()
        return None if kill else json.loads(output.read_text()), said.read_text()

    return run


# ------------------------------------------------------------------------------- resume=PATH, from outside the folder


@seven
def test_resumed_from_a_path_outside_killed_and_started_again(
    cls: type[Plain], process: Any, tmp_path: Path
) -> None:
    other, own = tmp_path / "other", tmp_path / "own"
    process(cls, other, kill=5, seed=3)
    before = {str(p): p.stat().st_mtime_ns for p in other.rglob("*")}
    _, said = process(cls, own, kill=5, resume=other)
    assert f"resumed from {other}/step-" in said and f"; as resume={other} asks" in said
    assert {str(p): p.stat().st_mtime_ns for p in other.rglob("*")} == before, "nothing is written there"
    shutil.rmtree(other)
    end, said = process(cls, own, resume=other)
    assert f"resumed from {own}/step-" in said and f"; it began at resume={other}" in said
    assert same_ending(end, uncut(cls)) and len(end["trace"]) < 3


@seven
def test_killed_while_it_writes_beside_training(cls: type[Plain], process: Any, tmp_path: Path) -> None:
    """Nobody knows which checkpoint was the last that came to its end: the bits are the same."""
    other, own = tmp_path / "other", tmp_path / "own"
    process(cls, other, seed=3, ckpt_async=True, num_snapshots=-1)  # to its end
    first = min(bl.Checkpointer(other).find_checkpoints(), key=lambda c: c.commit).path
    for kill in (3, 2):
        process(cls, own, kill=kill, resume=first, ckpt_async=True, num_snapshots=-1)
    end, _ = process(cls, own, resume=first, ckpt_async=True, num_snapshots=-1)
    assert same_ending(end, uncut(cls))


@seven
def test_back_to_a_checkpoint_of_the_own_folder_killed_and_started_again(
    cls: type[Plain], process: Any, tmp_path: Path
) -> None:
    process(cls, tmp_path / "save", seed=3, num_snapshots=-1)  # to its end
    first = min(bl.Checkpointer(tmp_path / "save").find_checkpoints(), key=lambda c: c.commit)
    assert first.counters["epoch"] == 1
    process(cls, tmp_path / "save", kill=4, num_snapshots=-1, resume=first.path)
    end, said = process(cls, tmp_path / "save", num_snapshots=-1, resume=first.path)
    assert f"; it had gone back to resume={first.path} before" in said
    assert same_ending(end, uncut(cls)) and 0 < len(end["trace"]) < 3


# ------------------------------------------------------------------------------------------------------- a warm start


@functools.cache
def warm_reference(cls: type[Plain]) -> dict[str, Any]:
    """A run whose models have the weights of another before the Brain is made."""
    source = train(make(cls, global_seed=17))
    brain = make(cls, grad_accumulation_factor=3)
    brain.modules.load_state_dict(source.modules.state_dict())
    return as_json(ending(two_fits(brain)))


@seven
def test_begun_with_the_weights_of_another_killed_and_started_again(
    cls: type[Plain], process: Any, tmp_path: Path
) -> None:
    source, own = tmp_path / "source", tmp_path / "own"
    train(make(cls, bl.Checkpointer(source), global_seed=17))
    _, said = process(cls, own, kill=8, seed=3, init_from=source)
    names = ", ".join(f"'{name}'" for name in cls.build())
    assert f": weights of {names}; optimizers, schedules and counters start afresh" in said
    shutil.rmtree(source)
    end, said = process(cls, own, init_from=source)
    assert f"; init_from={source} was applied when the run began" in said
    assert same_ending(end, warm_reference(cls))


@seven
def test_a_warm_start_needs_no_checkpointer(cls: type[Plain], tmp_path: Path) -> None:
    train(make(cls, bl.Checkpointer(tmp_path), global_seed=17))
    brain = make(cls, grad_accumulation_factor=3, init_from=str(tmp_path))
    assert as_json(ending(two_fits(brain))) == warm_reference(cls)


@seven
def test_never_is_from_scratch(cls: type[Plain], tmp_path: Path) -> None:
    train(make(cls, bl.Checkpointer(tmp_path), global_seed=17), num_epochs=1)
    brain = make(cls, bl.Checkpointer(tmp_path), resume="never", **OPTIONS)
    assert as_json(ending(two_fits(brain))) == uncut(cls)


# ---------------------------------------------------------------------------------------------- moved, renamed, copied


class Saving(Plain):
    """The idiom of recipes: its own checkpoints with a metric, and "best" by it."""

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        super().on_stage_end(stage, stage_loss, epoch)
        if stage == bl.Stage.VALID and self.checkpointer is not None:
            self.checkpointer.save_and_keep_only({"loss": stage_loss, "epoch": epoch}, min_keys=["loss"])


def cut_before(brain: Plain, number: int) -> None:
    original, calls = brain.compute_forward, 0

    def compute_forward(batch: Any, stage: bl.Stage) -> torch.Tensor:
        nonlocal calls
        calls += stage == bl.Stage.TRAIN and not getattr(brain, "inside", False)
        if calls == number:
            raise Cut
        return original(batch, stage)

    brain.compute_forward = compute_forward  # type: ignore[method-assign]


def move(folder: Path) -> Path:
    target = folder.parent.parent / "elsewhere" / "under another name"
    target.parent.mkdir()
    return Path(shutil.move(folder, target))


def rename(folder: Path) -> Path:
    return folder.rename(folder.with_name("new"))


def copy(folder: Path) -> Path:
    return Path(shutil.copytree(folder, folder.with_name("copy")))


moves = pytest.mark.parametrize("moved", [move, rename, copy])


@seven
def test_a_moved_run_goes_on(cls: type[Plain], tmp_path: Path) -> None:
    first = make(cls, bl.Checkpointer(tmp_path / "results" / "save"), **OPTIONS)
    cut_before(first, 8)
    with pytest.raises(Cut):
        two_fits(first)
    place = move(tmp_path / "results" / "save")
    second = two_fits(make(cls, bl.Checkpointer(place), global_seed=OTHER_SEED, **OPTIONS))
    end = ending(second)
    assert as_json({**end, "trace": first.trace + end["trace"]}) == uncut(cls)
    assert not (tmp_path / "results" / "save").exists()


@moves
def test_all_that_is_asked_of_a_moved_folder_is_as_before(
    moved: Callable[[Path], Path], tmp_path: Path
) -> None:
    """Listing, finding, "best" in an evaluation, weights, and the Snapshots, which go on where they were."""
    home = tmp_path / "results" / "save"
    options = {"num_snapshots": 2, "global_seed": 3}
    brain = train(make(Saving, bl.Checkpointer(home), **options), num_epochs=4)

    def told(folder: Path) -> dict[str, Any]:
        checkpointer = bl.Checkpointer(folder)
        again = make(Saving, checkpointer, global_seed=OTHER_SEED)
        return {
            "listed": [(c.path.name, c.commit, c.reason, c.meta) for c in checkpointer.list_checkpoints()],
            "inside": all(c.path.parent == folder for c in checkpointer.list_checkpoints()),
            "records": [(r.path.name, r.commit, r.metrics) for r in read_records(folder)],
            "best": checkpointer.find_checkpoint(min_key="loss").path.name,
            "criterion": checkpointer.declared_criterion(),
            "loss of the best": again.evaluate(VALID),
            "loss of the last": again.evaluate(VALID, checkpoint="last"),
            "weights": {k: v.tolist() for k, v in bl.load_weights(folder, "model").items()},
        }

    before = told(home)
    assert before["inside"] and before["loss of the last"] == brain.trace[-1][2]
    place = moved(home)
    assert told(place) == before

    # Both go on: the one that was moved, and one that was not.
    reference = train(make(Saving, **options), num_epochs=6)
    again = train(make(Saving, bl.Checkpointer(place), num_snapshots=2, global_seed=OTHER_SEED), num_epochs=6)
    assert digest(again) == digest(reference)
    snapshots = [c for c in bl.Checkpointer(place).list_checkpoints() if c.reason == "snapshot"]
    assert [(c.number, c.counters["epoch"]) for c in snapshots] == [(6, 6), (5, 5)]


@moves
def test_a_path_to_a_moved_folder_is_as_good(moved: Callable[[Path], Path], tmp_path: Path) -> None:
    """Of another run, for `resume` and `init_from`."""
    home = tmp_path / "results" / "save"
    source = train(make(Plain, bl.Checkpointer(home)), num_epochs=1)
    place = moved(home)
    resumed = make(Plain, bl.Checkpointer(tmp_path / "a"), global_seed=OTHER_SEED, resume=str(place))
    assert digest(train(resumed)) == digest(train(make(Plain)))
    warm = train(make(Plain, bl.Checkpointer(tmp_path / "b"), init_from=str(place)), num_epochs=1)
    cold = make(Plain)
    cold.modules.load_state_dict(source.modules.state_dict())
    assert digest(train(cold, num_epochs=1)) == digest(warm)
