"""Limits are exact, and no batch is fetched that nobody trains on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import brainlib as bl
from tests.brain.small import Batch, Regression, Rows, batches, same, small, weights

TRAIN, VALID = bl.Stage.TRAIN, bl.Stage.VALID


class Counting(Regression):
    """Writes down how each stage ended."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.ended: list[str] = []
        super().__init__(*args, **kwargs)

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        self.ended.append(f"{stage.name} {epoch}")


class Endless:
    """An iterable that never ends by itself."""

    def __init__(self) -> None:
        self.num_fetched = 0

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.num_fetched += 1
            yield batches(2)[0]


# ------------------------------------------------------------------------------------------------ optimizer_step_limit
@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_the_step_limit_is_exact_and_reads_nothing_for_nothing(limit: int, factor: int) -> None:
    rows = Rows(10)
    brain = small(optimizer_step_limit=limit, grad_accumulation_factor=factor)
    brain.fit(range(100), rows, train_loader_kwargs={"batch_size": 2})
    assert brain.optimizer_step == limit
    windows_per_epoch = -(-5 // factor)
    epochs, rest = divmod(limit, windows_per_epoch)
    assert len(rows.reads) == 10 * epochs + 2 * factor * rest


def test_the_step_limit_ends_the_epoch_with_its_hooks_and_validation() -> None:
    brain = small(Counting, optimizer_step_limit=3)
    brain.fit(range(100), batches(2, 2), batches(2))
    assert brain.ended == ["TRAIN 0", "VALID 0", "TRAIN 1", "VALID 1"]


def test_the_step_limit_at_the_end_of_an_epoch_opens_no_other() -> None:
    brain = small(Counting, optimizer_step_limit=2)
    brain.fit(range(100), batches(2, 2), batches(2))
    assert brain.ended == ["TRAIN 0", "VALID 0"]


def test_a_limit_that_is_reached_leaves_nothing_to_do(caplog: pytest.LogCaptureFixture) -> None:
    brain = small(Counting, optimizer_step_limit=2)
    brain.fit(range(100), batches(2, 2))
    before = weights(brain)
    rows = Rows(4)
    with caplog.at_level("INFO", logger="brainlib"):
        brain.fit(range(100), rows, train_loader_kwargs={"batch_size": 2})
    assert rows.reads == []
    assert same(weights(brain), before)
    assert brain.ended == ["TRAIN 0"]
    assert "optimizer_step_limit" in caplog.text


def test_the_step_limit_on_a_stream_without_length() -> None:
    endless = Endless()
    brain = small(optimizer_step_limit=3)
    brain.fit(range(1), endless)
    assert brain.optimizer_step == 3
    assert endless.num_fetched == 3


def test_the_step_limit_with_a_fit_batch_of_ones_own() -> None:
    class Own(Regression):
        def fit_batch(self, batch: Batch) -> torch.Tensor:
            loss = self.compute_objectives(self.compute_forward(batch, TRAIN), batch, TRAIN)
            loss.backward()
            if self.step % 2 == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
            return loss.detach()

    rows = Rows(20)
    brain = small(Own, optimizer_step_limit=3)
    brain.fit(range(5), rows, train_loader_kwargs={"batch_size": 2})
    assert brain.optimizer_step == 3
    assert len(rows.reads) == 12


def test_a_skipped_window_does_not_count_towards_the_limit() -> None:
    data = batches(2, 2, 2, 2)
    data[1]["x"][:] = float("nan")
    brain = small(optimizer_step_limit=3)
    brain.fit(range(1), data)
    assert brain.optimizer_step == 3
    assert brain.run_state.nonfinite_windows == 1


@pytest.mark.parametrize("path", ["dict", "hparams", "command line", "RunOptions"])
def test_the_limit_is_a_number_on_every_path(path: str, tmp_path: Path) -> None:
    hparams: dict[str, Any] = {}
    run_opts: dict[str, Any] | bl.RunOptions = {
        "noprogressbar": True,
        "device": "cpu",
        "optimizer_step_limit": 3,
    }
    if path == "hparams":
        hparams, run_opts = {"optimizer_step_limit": 3}, {"noprogressbar": True, "device": "cpu"}
    elif path == "command line":
        file = tmp_path / "hparams.yaml"
        file.write_text("lr: 0.1\n")
        _, run_opts, _ = bl.parse_arguments(
            [str(file), "--optimizer_step_limit", "3", "--device", "cpu", "--noprogressbar"]
        )
    elif path == "RunOptions":
        run_opts = bl.RunOptions.resolve(run_opts)
    brain = Regression({"model": small().modules.model}, torch.optim.SGD, hparams=hparams, run_opts=run_opts)
    assert type(brain.optimizer_step_limit) is int
    brain.fit(range(5), batches(2, 2))
    assert brain.optimizer_step == 3


@pytest.mark.parametrize("name", ["optimizer_step_limit", "limit_train_batches", "limit_valid_batches"])
@pytest.mark.parametrize("value", [-1, 2.5, "many"])
def test_a_limit_that_is_no_count_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        small(**{name: value})


# ---------------------------------------------------------------------------------------------------- limits of a stage
@pytest.mark.parametrize("kind", ["Dataset", "DataLoader", "list"])
def test_limit_train_batches(kind: str) -> None:
    rows = Rows(10)
    train_set: Any = {
        "Dataset": rows,
        "DataLoader": DataLoader(rows, batch_size=2),
        "list": batches(2, 2, 2),
    }[kind]
    brain = small(Counting, limit_train_batches=2)
    brain.fit(range(3), train_set, train_loader_kwargs={"batch_size": 2} if kind == "Dataset" else None)
    assert brain.optimizer_step == 6
    assert brain.ended == ["TRAIN 0", "TRAIN 1", "TRAIN 2"]
    assert len(rows.reads) == (0 if kind == "list" else 12)


def test_limit_train_batches_on_a_stream_without_length() -> None:
    endless = Endless()
    brain = small(limit_train_batches=3)
    brain.fit(range(2), endless)
    assert brain.optimizer_step == 6
    assert endless.num_fetched == 6


def test_a_limit_beyond_the_end_changes_nothing() -> None:
    one, two = small(limit_train_batches=100), small()
    one.fit(range(2), batches(2, 2))
    two.fit(range(2), batches(2, 2))
    assert same(weights(one), weights(two))


def test_limit_valid_batches() -> None:
    losses: list[float] = []

    class Brain(Regression):
        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
            if stage == VALID:
                losses.append(stage_loss)

    rows = Rows(10)
    brain = small(Brain, limit_valid_batches=2)
    brain.fit(range(1), batches(2), rows, valid_loader_kwargs={"batch_size": 2})
    assert len(rows.reads) == 4
    right = brain.evaluate([{key: value[:4] for key, value in rows.whole.items()}])
    assert losses[0] == pytest.approx(right, abs=1e-12)


# ------------------------------------------------------------------------------------------------ valid_interval_steps
def test_validation_in_mid_epoch() -> None:
    """After every second update and at the end of the epoch; where both meet, once."""
    brain = small(Counting, valid_interval_steps=2)
    brain.fit(range(2), batches(2, 2, 2, 2, 2), batches(2))
    assert [line.split()[0] for line in brain.ended] == ["VALID", "VALID", "TRAIN", "VALID"] * 2


def test_validation_in_mid_epoch_counts_updates_not_batches() -> None:
    brain = small(Counting, valid_interval_steps=2, grad_accumulation_factor=2)
    brain.fit(range(1), batches(*(1,) * 10), batches(2))
    assert [line.split()[0] for line in brain.ended] == ["VALID", "VALID", "TRAIN", "VALID"]


def test_validation_in_mid_epoch_leaves_training_alone() -> None:
    seen: dict[int, list[tuple[int, float]]] = {0: [], 1: []}

    class Brain(Regression):
        def on_fit_batch_start(self, batch: Batch, should_step: bool) -> None:
            seen[self.valid_interval_steps].append((self.step, self.avg_train_loss))

        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
            if stage == TRAIN:
                seen[self.valid_interval_steps].append((self.step, stage_loss))

    brains = [small(Brain, valid_interval_steps=n) for n in (0, 1)]
    for brain in brains:
        brain.fit(range(2), batches(2, 2, 2), batches(2))
    assert seen[0] == seen[1]
    assert same(weights(brains[0]), weights(brains[1]))


def test_without_a_validation_set_the_interval_has_no_effect_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    small(valid_interval_steps=1).fit(range(1), batches(2, 2))
    assert "valid_interval_steps" in caplog.text
