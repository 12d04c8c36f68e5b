"""`max_time`: the training time of a run over all its restarts, by a clock that the tests hand in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import brainlib as bl
from tests.contracts.brains import SEVEN, SHUFFLED, VALID, Items, Plain, ending, make, ready_batches, two_fits

seven = pytest.mark.parametrize("cls", SEVEN, ids=lambda cls: cls.__name__)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def timed(cls: type[Plain], folder: Path | None, **options: Any) -> tuple[Plain, Clock]:
    """A Brain for which a forward of its own takes a second, in training and in validation."""
    clock = Clock()
    brain = make(cls, None if folder is None else bl.Checkpointer(folder), **options)
    brain._outer.run._clock = clock
    original: Callable[..., Any] = brain.compute_forward

    def compute_forward(batch: Any, stage: bl.Stage) -> Any:
        clock.now += not getattr(brain, "inside", False)
        return original(batch, stage)

    brain.compute_forward = compute_forward  # type: ignore[method-assign]
    return brain, clock


def one_fit(brain: Plain) -> None:
    brain.fit(range(3), Items(), VALID, train_loader_kwargs=SHUFFLED)


def test_fit_returns_after_the_batch_and_the_run_is_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="brainlib")
    brain, _ = timed(Plain, tmp_path, max_time=3)
    one_fit(brain)
    assert (brain.run_state.epoch, brain.run_state.step) == (0, 3)
    assert brain.run_state.elapsed() == 3.0
    newest = bl.Checkpointer(tmp_path).newest()
    assert newest is not None and newest.reason == "timed" and newest.counters["step"] == 3
    assert (
        f"stopped by max_time (0:00:03) in epoch 1, after batch 3, update 3; the run goes on from {newest.path}"
        in (caplog.text)
    )
    assert brain.evaluate(VALID) > 0


def test_a_validation_is_not_cut(tmp_path: Path) -> None:
    """Five batches of training and three of validation: the limit lies in the validation, and the epoch is closed."""
    brain, _ = timed(Plain, tmp_path, max_time=6)
    one_fit(brain)
    assert (brain.run_state.epoch, brain.run_state.step) == (1, 0)
    assert [c.reason for c in bl.Checkpointer(tmp_path).list_checkpoints()] == ["epoch"]


def test_the_time_of_all_processes_counts(tmp_path: Path) -> None:
    for start, steps in ((2, 2), (4, 4), (7, 5)):
        brain, _ = timed(Plain, tmp_path, max_time=start)
        one_fit(brain)
        assert brain.run_state.elapsed() == pytest.approx(start if start < 7 else 8)
        assert brain.optimizer_step == steps


def test_time_between_fits_does_not_count() -> None:
    brain, clock = timed(Plain, None)
    one_fit(brain)
    clock.now += 500
    brain.evaluate(VALID)
    assert brain.run_state.elapsed() == 3 * 8


def test_only_work_that_was_not_lost_counts(tmp_path: Path) -> None:
    """What comes after the checkpoint that the run goes on from is done again, and counted once."""
    brain, _ = timed(Plain, tmp_path)
    brain.on_stage_end = lambda stage, loss, epoch=None: 1 / 0 if epoch == 1 else None  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        one_fit(brain)
    again, _ = timed(Plain, tmp_path)
    one_fit(again)
    assert again.run_state.elapsed() == 3 * 8


@seven
@pytest.mark.parametrize("seconds", [2, 5, 12, 18])
def test_a_longer_time_goes_on_to_the_same_bits(cls: type[Plain], seconds: int, tmp_path: Path) -> None:
    first, _ = timed(cls, tmp_path, max_time=seconds, grad_accumulation_factor=3)
    two_fits(first)
    second, _ = timed(cls, tmp_path, global_seed=991, max_time=1000, grad_accumulation_factor=3)
    two_fits(second)
    reference = two_fits(make(cls, grad_accumulation_factor=3))
    assert {**ending(second), "trace": first.trace + second.trace} == ending(reference)


@seven
def test_in_the_same_process(cls: type[Plain]) -> None:
    brain, _ = timed(cls, None, max_time=7)
    one_fit(brain)
    done = brain.optimizer_step
    one_fit(brain)
    assert brain.optimizer_step == done, "the time is up"


def test_later_fits_of_the_script_do_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="brainlib")
    for _ in range(2):
        brain, _ = timed(Plain, tmp_path, max_time=3)
        one_fit(brain)
        brain.fit(range(1), ready_batches((4, 4)), VALID)  # other data: nothing looks at it
        assert brain.optimizer_step == 3
    assert len(bl.Checkpointer(tmp_path).list_checkpoints()) == 1


def test_an_inner_fit_is_not_cut() -> None:
    cls = SEVEN[-1]
    brain, clock = timed(cls, None, max_time=1)
    reads: list[int] = []
    original = brain.fit_batch

    def fit_batch(batch: Any) -> Any:
        if brain.inside:  # type: ignore[attr-defined]
            clock.now += 10
            reads.append(1)
        return original(batch)

    brain.fit_batch = fit_batch  # type: ignore[method-assign]
    one_fit(brain)
    assert len(reads) == 2, "both batches of the inner fit"
    assert brain.run_state.step == 0


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (90, 90),
        (1.5, 1.5),
        ("90", 90),
        ("00:01:30", 90),
        ("1:00:00:00", 86400),
        ("1-00", 86400),
        ("2-01:30", 178200),
    ],
)
def test_ways_to_say_it(given: Any, seconds: float) -> None:
    options = bl.RunOptions.resolve(hparams={"run_opts": {"max_time": given}})
    assert options.max_time == seconds and type(options.max_time) is float


@pytest.mark.parametrize("given", ["1:30", "soon", "1h", -1, True])
def test_what_is_no_length_of_time(given: Any) -> None:
    with pytest.raises(
        ValueError, match="'max_time' .* is .*it takes seconds, or days-hours:minutes:seconds"
    ):
        bl.RunOptions.resolve(hparams={"run_opts": {"max_time": given}})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("1:00", "write 1:00:00, or 0:01:00"),
        ("0:45", "write 0:45:00, or 0:00:45"),
        ("90:00", "write 3-18:00:00, or 1:30:00"),
        ("1h", "write 1:00:00"),
        ("90 minutes", "write 1:30:00"),
        ("45s", "write 0:00:45"),
        ("2 Days", "write 2-0:00:00"),
    ],
)
def test_the_error_says_how_what_may_be_meant_is_written(given: str, meant: str) -> None:
    with pytest.raises(ValueError, match="it takes seconds, or days-hours:minutes:seconds") as caught:
        bl.RunOptions.resolve(hparams={"run_opts": {"max_time": given}})
    assert f"{given!r}" in str(caught.value) and str(caught.value).endswith(f"{meant}.")
    advised = meant.removeprefix("write ").split(", or ")
    for text in advised:  # what is advised is taken
        assert bl.RunOptions.resolve(hparams={"run_opts": {"max_time": text}}).max_time


@pytest.mark.parametrize("given", ["soon", "1:00:00:00:00", "5 ms", "::", "-1:00:00", [1, 30], {"hours": 1}])
def test_nothing_is_guessed_where_nobody_could_say(given: Any) -> None:
    with pytest.raises(ValueError, match="it takes seconds, or days-hours:minutes:seconds, .*, or null\\.$"):
        bl.RunOptions.resolve(hparams={"run_opts": {"max_time": given}})


def test_what_is_before_the_first_batch_counts_and_what_is_outside_of_fit_does_not(tmp_path: Path) -> None:
    brain, clock = timed(Plain, tmp_path, max_time=1000)
    original = brain.on_fit_start

    def on_fit_start() -> None:
        clock.now += 100  # such as compiling
        original()

    brain.on_fit_start = on_fit_start  # type: ignore[method-assign]
    clock.now += 5000
    one_fit(brain)
    batches = brain.run_state.elapsed() - 100
    assert 0 < batches < 100
    brain.evaluate(VALID)
    assert brain.run_state.elapsed() == 100 + batches
