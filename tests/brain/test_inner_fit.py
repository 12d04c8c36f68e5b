"""`fit` inside a hook is a fit of its own: its counters are its own, the outer ones are as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from tests.brain.small import Batch, Regression, batches, same, small, weights

TRAIN, VALID = bl.Stage.TRAIN, bl.Stage.VALID


class Nested(Regression):
    """Calls `fit` once, in the hook that the test names."""

    where = "on_stage_start"
    inner_epochs = 1
    inside = False

    def inner(self, place: str) -> None:
        if self.inside or place != self.where:
            return
        self.inside = True
        outer = (
            self.step,
            self.optimizer_step,
            self.avg_train_loss,
            self.run_state.fit,
            self.run_state.epoch,
        )
        try:
            self.fit(range(self.inner_epochs), batches(3, 2, 1, seed=9))
        finally:
            self.inside = False
        self.outer = getattr(self, "outer", [])
        self.outer.append(outer)
        now = (self.step, self.optimizer_step, self.avg_train_loss, self.run_state.fit, self.run_state.epoch)
        assert now == outer, "the counters of the outer fit are as they were"

    def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
        if stage == TRAIN:
            self.inner("on_stage_start")

    def on_fit_batch_start(self, batch: Batch, should_step: bool) -> None:
        if self.inside:
            self.inner_steps = [*getattr(self, "inner_steps", []), self.step]

    def on_fit_batch_end(self, batch: Batch, outputs: Any, loss: torch.Tensor, should_step: bool) -> None:
        self.inner("on_fit_batch_end")

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        self.inner(f"on_stage_end {stage.name}")
        if stage == TRAIN and not self.inside:
            self.train_loss = stage_loss


@pytest.mark.parametrize(
    "where", ["on_stage_start", "on_fit_batch_end", "on_stage_end TRAIN", "on_stage_end VALID"]
)
def test_inner_and_outer_count_apart(where: str) -> None:
    brain = small(type("Brain", (Nested,), {"where": where}))
    brain.fit(range(2), batches(4, 4), batches(2))
    assert brain.optimizer_step == 4
    assert brain.run_state.fit == 0
    times = 4 if where == "on_fit_batch_end" else 2
    assert len(brain.outer) == times
    assert brain.inner_steps == [1, 2, 3] * times
    assert brain.modules.training


@pytest.mark.parametrize(
    "where", ["on_stage_start", "on_fit_batch_end", "on_stage_end TRAIN", "on_stage_end VALID"]
)
def test_the_inner_fit_trains(where: str) -> None:
    brain, reference = small(type("Brain", (Nested,), {"where": where})), small()
    brain.fit(range(1), batches(4), batches(2))
    reference.fit(range(1), batches(4), batches(2))
    assert not same(weights(brain), weights(reference))


def test_the_numbers_are_those_of_one_fit_after_the_other() -> None:
    brain, reference = small(Nested), small()
    brain.fit(range(1), batches(4, 4))
    reference.fit(range(1), batches(3, 2, 1, seed=9))
    reference.fit(range(1), batches(4, 4))
    assert same(weights(brain), weights(reference))


def test_an_error_inside_leaves_the_outer_counters() -> None:
    class Failing(Nested):
        def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
            if self.inside and self.step == 2:
                raise RuntimeError("inside")
            return super().compute_forward(batch, stage)

        def inner(self, place: str) -> None:
            before = (self.step, self.optimizer_step)
            if place == self.where and not self.inside:
                with pytest.raises(RuntimeError, match="inside"):
                    super().inner(place)
            assert (self.step, self.optimizer_step) == before or self.inside

    brain = small(Failing)
    brain.fit(range(2), batches(4, 4))
    assert brain.optimizer_step == 4


def test_the_loss_of_the_outer_epoch_is_its_own() -> None:
    brain = small(type("Brain", (Nested,), {"where": "on_fit_batch_end"}))
    brain.fit(range(1), batches(4))
    assert brain.train_loss == pytest.approx(small().evaluate(batches(4)), abs=1e-12)


def test_an_inner_fit_writes_no_resume_point(tmp_path: Path) -> None:
    class Watching(Nested):
        def inner(self, place: str) -> None:
            before = bl.Checkpointer(tmp_path).list_checkpoints()
            super().inner(place)
            assert bl.Checkpointer(tmp_path).list_checkpoints() == before or self.inside

    brain = small(Watching, checkpointer=bl.Checkpointer(tmp_path), ckpt_interval_steps=1)
    brain.fit(range(2), batches(4, 4))
    assert bl.Checkpointer(tmp_path).list_checkpoints()


def test_evaluate_inside_a_hook_changes_nothing() -> None:
    class Looking(Regression):
        looking = False

        def on_fit_batch_end(self, batch: Batch, outputs: Any, loss: torch.Tensor, should_step: bool) -> None:
            before = (self.step, self.optimizer_step, self.avg_train_loss, self.modules.training)
            self.evaluate(batches(3), checkpoint="current")
            assert (self.step, self.optimizer_step, self.avg_train_loss, self.modules.training) == before

    brain, reference = small(Looking), small()
    brain.fit(range(2), batches(4, 4))
    reference.fit(range(2), batches(4, 4))
    assert same(weights(brain), weights(reference))
