"""Runs of several ranks that are cut and started again end as those that were not; also with other numbers of ranks."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import brainlib as bl
from brainlib.distributed.world import World
from brainlib.seeding import generator_states
from tests.contracts.brains import (
    SEVEN,
    SHUFFLED,
    VALID,
    Items,
    Plain,
    digest,
    ending,
    make,
    ready_batches,
    regressor,
)
from tests.distributed.host import Host

FACTORS = (1, 3)


def _end_of(brain: Plain) -> list[Any]:
    """What every rank ended with, generators included."""
    states = generator_states()
    drawn = hashlib.sha256(states["torch"].numpy().tobytes() + repr(states["python"]).encode()).hexdigest()
    return bl.gather([ending(brain), drawn])


def _folder(home: str, cls: type[Plain], factor: int, cut: int) -> str:
    return f"{home}/{cls.__name__}-{factor}-{cut}"


def _script(brain: Plain) -> None:
    brain.fit(range(2), Items(), VALID, train_loader_kwargs=SHUFFLED)
    brain.fit(range(1), ready_batches(), VALID)


CUTS = (1, 4, 7)  # rank 1 is told to stop while it has made so many batches


def whole(names: list[str]) -> dict[str, Any]:
    told = {}
    for cls, factor in itertools.product((c for c in SEVEN if c.__name__ in names), FACTORS):
        brain = make(cls, global_seed=3, grad_accumulation_factor=factor)
        _script(brain)
        told[f"{cls.__name__} {factor}"] = _end_of(brain)
    return told


def stopped(home: str, names: list[str], cuts: list[int]) -> None:
    rank = World.from_environment().rank
    for cls, factor, cut in itertools.product((c for c in SEVEN if c.__name__ in names), FACTORS, cuts):

        class Told(cls):  # type: ignore[misc,valid-type]
            seen = 0

            def compute_forward(self, batch: Any, stage: bl.Stage) -> Any:
                if stage == bl.Stage.TRAIN:
                    type(self).seen += 1
                    if self.seen == self.cut and rank == 1:
                        os.kill(os.getpid(), signal.SIGTERM)
                return super().compute_forward(batch, stage)

        Told.__name__ = Told.__qualname__ = cls.__name__
        Told.cut = cut
        checkpointer = bl.Checkpointer(_folder(home, cls, factor, cut))
        with pytest.raises(bl.Stopped):
            _script(make(Told, checkpointer, global_seed=3, grad_accumulation_factor=factor))


def resumed(home: str, names: list[str], cuts: list[int]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for cls, factor, cut in itertools.product((c for c in SEVEN if c.__name__ in names), FACTORS, cuts):
        checkpointer = bl.Checkpointer(_folder(home, cls, factor, cut))
        newest = checkpointer.newest()
        brain = make(cls, checkpointer, global_seed=991, grad_accumulation_factor=factor)
        _script(brain)
        told[f"{cls.__name__} {factor} {cut}"] = [
            _end_of(brain),
            newest.reason,
            newest.counters,
            newest.world_size,
        ]
    return told


def _assert_same_end(end: list[Any], expected: list[Any], where: Any) -> None:
    """A resumed process has the losses of the epochs that it closed itself."""
    for (found, drawn), (whole_, whole_drawn) in zip(end, expected, strict=True):
        assert found["trace"] and found["trace"] == whole_["trace"][-len(found["trace"]) :], where
        assert {**found, "trace": 0} == {**whole_, "trace": 0}, where
        assert drawn == whole_drawn, where


@pytest.mark.parametrize(
    "names", [[c.__name__ for c in SEVEN[:4]], [c.__name__ for c in SEVEN[4:]]], ids=["a", "b"]
)
def test_two_ranks_resume_byte_for_byte(host: Host, tmp_path: Path, names: list[str]) -> None:
    expected = host.run(whole, tmp_path / "w", names)
    host.run(stopped, tmp_path / "s", str(tmp_path), names, CUTS)
    found = host.run(resumed, tmp_path / "r", str(tmp_path), names, CUTS)
    assert found[0] == found[1] and expected[0] == expected[1]
    for name, (end, reason, counters, size) in found[0].items():
        cls, factor, _ = name.split()
        _assert_same_end(end, expected[0][f"{cls} {factor}"], (name, counters))
        assert reason in ("signal", "epoch") and size == 2, (name, reason)


def test_three_ranks_resume_byte_for_byte(host: Host, tmp_path: Path) -> None:
    expected = host.run(whole, tmp_path / "w", ["Plain"], size=3)
    host.run(stopped, tmp_path / "s", str(tmp_path), ["Plain"], CUTS[:2], size=3)
    found = host.run(resumed, tmp_path / "r", str(tmp_path), ["Plain"], CUTS[:2], size=3)
    for name, (end, *_) in found[0].items():
        cls, factor, _ = name.split()
        _assert_same_end(end, expected[0][f"{cls} {factor}"], name)


# ------------------------------------------------------------------------------------ other numbers of ranks


class Noting(Plain):
    """Notes the ids that it trains on, and is told to stop in a window of its choice, on one of its ranks."""

    network = staticmethod(lambda: regressor(dropout=0.0))
    stops_at, on_rank = 0, 0

    def on_fit_batch_start(self, batch: Any, should_step: bool) -> None:
        self.ids = getattr(self, "ids", [])
        if self._scope.share.filled_at != self.step:
            self.ids += [[self.run_state.epoch, each] for each in batch["id"].tolist()]
        here = World.from_environment().rank == self.on_rank
        if should_step and here and self.optimizer_step + 1 == self.stops_at:
            self.stops_at = 0
            os.kill(os.getpid(), signal.SIGTERM)


class Book(bl.Extension):
    """The ids of all ranks, as far as the run has got; in the checkpoint."""

    trigger = (1, "step")
    priority = 300

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[list[int]] = []

    def __call__(self, brain: Any) -> None:
        for ids in bl.gather(brain.ids):
            self.ids += ids
        brain.ids = []

    def state_dict(self) -> dict[str, Any]:
        return {"ids": self.ids}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ids = state["ids"]


NUM_RUNS, NUM_EPOCHS, NUM_ITEMS = 20, 3, 29
RANKS_AND_WORKERS = ((2, 0), (1, 2), (3, 0), (2, 0))  # of the lives of a run, one after the other


def life(home: str, number: int) -> list[Any]:
    """One life of each of twenty runs; all but the last are ended inside an epoch, between windows."""
    size, workers = RANKS_AND_WORKERS[number]
    told = []
    for run in range(NUM_RUNS):
        book = Book()
        brain = make(
            Noting, bl.Checkpointer(f"{home}/{run}"), extensions=[book], grad_accumulation_factor=1 + run % 2
        )
        brain.on_rank = run % size
        first, more = 1 + run % 3, (0, 1 + run // 2 % 3, 2 + run % 2)
        last = number == len(RANKS_AND_WORKERS) - 1
        brain.stops_at = 0 if last else first + sum(more[: number + 1])
        loader = {**SHUFFLED, "batch_size": 2, "num_workers": workers}
        ends = contextlib.nullcontext() if last else pytest.raises(bl.Stopped)
        with ends:
            brain.fit(range(NUM_EPOCHS), Items(NUM_ITEMS), VALID, train_loader_kwargs=loader)
        told.append([book.ids, brain.optimizer_step, brain.run_state.step])
    return told


def test_ranks_and_workers_may_change_between_windows(host: Host, tmp_path: Path) -> None:
    in_mid_epoch = 0
    for number, (size, _) in enumerate(RANKS_AND_WORKERS):
        lives = host.run(life, tmp_path / f"{number}", str(tmp_path / "save"), number, size=size, limit=100.0)
        assert all(each == lives[0] for each in lives)
        in_mid_epoch += sum(step > 0 for _, _, step in lives[0])
    assert in_mid_epoch > 2 * NUM_RUNS
    wrong = [
        (run, epoch)
        for run, (ids, _, _) in enumerate(lives[0])
        for epoch in range(NUM_EPOCHS)
        if Counter(i for e, i in ids if e == epoch) != Counter(range(NUM_ITEMS))
    ]
    assert not wrong, "each item once an epoch, in all of the runs"


# ------------------------------------------------------------------------------------------------- killed


class Doomed(Plain):
    killed_at = (0, 0)

    def compute_objectives(self, predictions: Any, batch: Any, stage: bl.Stage) -> Any:
        run = self.run_state
        if stage == bl.Stage.TRAIN and (run.epoch, run.step) == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().compute_objectives(predictions, batch, stage)


def killed(home: str, epoch: int, step: int) -> Any:
    brain = make(Doomed, bl.Checkpointer(home), ckpt_interval_steps=1, grad_accumulation_factor=2)
    brain.killed_at = (epoch, step)
    brain.fit(range(2), Items(), VALID, train_loader_kwargs={**SHUFFLED, "batch_size": 2})
    return [_end_of(brain), digest(brain)]


def test_killed_runs_go_on_where_they_were_saved(host: Host, tmp_path: Path) -> None:
    expected = host.run(killed, tmp_path / "w", str(tmp_path / "whole"), 9, 9)
    for number, (epoch, step) in enumerate([(0, 1), (0, 4), (1, 2), (1, 5)]):
        ended = host.start(killed, tmp_path / f"k{number}", str(tmp_path / "save"), epoch, step)
        assert all(each.status in (-9, 1) for each in ended), [each.output for each in ended]
    assert host.run(killed, tmp_path / "r", str(tmp_path / "save"), 9, 9) == expected
