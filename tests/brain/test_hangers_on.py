"""Loggers, the profiler and extensions: what hangs on the loop is told, in time, also when the run fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import brainlib as bl
from tests.brain.small import Batch, Regression, batches, linear, same, sgd, small, weights


class Notes:
    """A logger, a profiler: it writes down what it is told."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def log_stats(
        self, stats_meta: Any, train_stats: Any = None, valid_stats: Any = None, **rest: Any
    ) -> None:
        self.calls.append((dict(stats_meta), train_stats, valid_stats))

    def start(self) -> None:
        self.calls.append("start")

    def step(self) -> None:
        self.calls.append("step")

    def stop(self) -> None:
        self.calls.append("stop")


def brain_with(
    cls: type[Regression] = Regression, run_opts: dict[str, Any] | None = None, **hangers: Any
) -> Any:
    options = {"noprogressbar": True, "device": "cpu", **(run_opts or {})}
    return cls({"model": linear()}, sgd, hparams={"seed": 0}, run_opts=options, **hangers)


def test_loggers_are_told_the_losses_of_each_closed_epoch() -> None:
    log = Notes()
    brain = brain_with(loggers=[log])
    brain.fit(range(2), batches(4, 4), batches(2))
    assert [meta["epoch"] for meta, _, _ in log.calls] == [0, 1]
    assert [meta["optimizer_step"] for meta, _, _ in log.calls] == [2, 4]
    assert log.calls[1][2]["loss"] == pytest.approx(brain.evaluate(batches(2)))
    assert all(set(train) == {"loss"} for _, train, _ in log.calls)


def test_without_validation_there_are_no_validation_losses() -> None:
    log = Notes()
    brain_with(loggers=[log]).fit(range(1), batches(4))
    assert log.calls[0][2] is None


@pytest.mark.parametrize("custom", [False, True])
def test_the_profiler_steps_once_an_update(custom: bool) -> None:
    class Own(Regression):
        def fit_batch(self, batch: Batch) -> torch.Tensor:
            return super().fit_batch(batch)

    notes = Notes()
    brain_with(Own if custom else Regression, {"grad_accumulation_factor": 2}, profiler=notes).fit(
        range(2), batches(1, 1, 1, 1, 1)
    )
    assert notes.calls == ["start", *["step"] * 6, "stop"]


def test_the_profiler_is_stopped_after_an_error_and_training_after_profiling_goes_on() -> None:
    class Failing(Regression):
        def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
            raise RuntimeError("no")

    notes = Notes()
    with pytest.raises(RuntimeError, match="no"):
        brain_with(Failing, profiler=notes).fit(range(1), batches(2))
    assert notes.calls[-1] == "stop"


class Watching(bl.Extension):
    trigger = (2, "step")

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def start(self, brain: Any) -> None:
        self.calls.append("start")

    def __call__(self, brain: Any) -> None:
        self.calls.append(brain.optimizer_step)

    def on_error(self, brain: Any, exc: BaseException) -> None:
        self.calls.append(type(exc).__name__)

    def close(self, brain: Any) -> None:
        self.calls.append("close")


def test_an_extension_is_started_fired_and_closed() -> None:
    watching = Watching()
    brain_with(extensions=[watching]).fit(range(2), batches(1, 1, 1))
    assert watching.calls == ["start", 2, 4, 6, "close"]


def test_an_extension_is_told_of_an_error_and_does_not_hide_it() -> None:
    class Clumsy(Watching):
        def on_error(self, brain: Any, exc: BaseException) -> None:
            super().on_error(brain, exc)
            raise OSError("and no report either")

    class Failing(Regression):
        def on_fit_batch_start(self, batch: Batch, should_step: bool) -> None:
            if self.step == 3:
                raise RuntimeError("the original")

    clumsy = Clumsy()
    with pytest.raises(RuntimeError, match="the original"):
        brain_with(Failing, extensions=[clumsy]).fit(range(1), batches(1, 1, 1))
    assert clumsy.calls == ["start", 2, "RuntimeError", "close"]


def test_inner_fits_do_not_fire_extensions() -> None:
    class Nested(Regression):
        inside = False

        def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
            if stage == bl.Stage.TRAIN and not self.inside:
                self.inside = True
                self.fit(range(3), batches(1, 1))
                self.inside = False

    watching = Watching()
    brain_with(Nested, extensions=[watching]).fit(range(1), batches(1, 1))
    assert watching.calls == ["start", 2, "close"]


def test_what_only_looks_changes_nothing() -> None:
    watched, alone = brain_with(loggers=[Notes()], profiler=Notes(), extensions=[Watching()]), small()
    watched.fit(range(2), batches(4, 3), batches(2))
    alone.fit(range(2), batches(4, 3), batches(2))
    assert same(weights(watched), weights(alone))
