"""A run on batches of a total length, with augmentation and workers, is cut anywhere and ends with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from brainlib.data.samplers import BalancingDataSampler
from tests.contracts.brains import digest
from tests.resume import speech

NUM_EPOCHS = 2


class Enough(Exception):
    pass


class Cut(speech.Speaker):
    """Saves after a batch and ends, or ends a batch later, so that it is done again."""

    later = False

    def on_fit_batch_end(self, batch: Any, outputs: Any, loss: torch.Tensor, should_step: bool) -> None:
        super().on_fit_batch_end(batch, outputs, loss, should_step)
        if (self.run_state.epoch, self.run_state.step) == self.at:
            self.checkpointer.save_checkpoint(end_of_epoch=False)
            if not self.later:
                raise Enough
        elif self.later and (self.run_state.epoch, self.run_state.step) > self.at:
            raise Enough


def fit(brain: bl.Brain, num_workers: int) -> Any:
    data = speech.corpus()
    brain.fit(
        range(NUM_EPOCHS),
        data,
        data.subset(range(5)),
        train_loader_kwargs=speech.loader_options(data, num_workers),
        valid_loader_kwargs={"batch_size": 2},
    )
    return brain


def whole(num_workers: int) -> tuple[list[Any], str]:
    brain = fit(speech.make(None, 1), num_workers)
    return brain.trace, digest(brain)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_cut_anywhere_it_ends_with_the_same_bits(num_workers: int, tmp_path: Path) -> None:
    trace, end = whole(0)
    points = [(epoch, step) for epoch, step, *_ in trace]
    sizes = [sum(1 for each in points if each[0] == epoch) for epoch in range(NUM_EPOCHS)]
    assert min(sizes) > 8, "so many batches an epoch that there is something to cut"
    for epoch in range(NUM_EPOCHS):
        ids = [id_ for e, _, batch, *_ in trace for id_ in batch if e == epoch]
        assert sorted(ids) == sorted(speech.ROWS), "each item once"
    assert [t[2] for t in trace if t[0] == 0] != [t[2] for t in trace if t[0] == 1]

    for number, at in enumerate(points[:: 2 if num_workers == 0 else 9]):
        folder = tmp_path / str(number)
        first = speech.make(bl.Checkpointer(folder), 1, Cut, at)
        first.later = number % 2 == 1 and at not in (points[-1], points[sizes[0] - 1])
        with pytest.raises(Enough):
            fit(first, num_workers)
        second = fit(speech.make(bl.Checkpointer(folder), 991), num_workers)
        done = points.index(at) + 1
        assert first.trace[:done] + second.trace == trace, at
        assert digest(second) == end, at


def test_a_changed_cap_is_refused_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    data = speech.corpus()
    first = speech.make(bl.Checkpointer(tmp_path), 1, Cut, (0, 4))
    with pytest.raises(Enough):
        first.fit(range(1), data, train_loader_kwargs=speech.loader_options(data, 0))
    second = speech.make(bl.Checkpointer(tmp_path), 1)
    other = bl.DynamicBatchSampler(data, max_batch_length=3.0)
    with pytest.raises(
        ValueError, match="the training data changed in the middle of epoch 1 .*batch 4 was the last"
    ):
        second.fit(range(1), data, train_loader_kwargs={"batch_sampler": other})


def test_a_balanced_sampler_resumes_too(tmp_path: Path) -> None:
    def run(brain: bl.Brain) -> Any:
        data = speech.corpus()
        sampler = BalancingDataSampler(data, "label", num_samples=30)
        brain.fit(range(2), data, train_loader_kwargs={"sampler": sampler, "batch_size": 4})
        return brain

    expected = run(speech.make(None, 1))
    for number, at in enumerate([(0, 3), (1, 2)]):
        folder = tmp_path / str(number)
        with pytest.raises(Enough):
            run(speech.make(bl.Checkpointer(folder), 1, Cut, at))
        resumed = run(speech.make(bl.Checkpointer(folder), 991))
        assert resumed.trace == expected.trace[at[0] * 8 + at[1] :] and digest(resumed) == digest(expected)


def test_validation_may_have_dynamic_batches() -> None:
    """Their number is that of the epoch that is read, and each item counts once."""
    data = speech.corpus()
    brain = speech.make(None, 1)
    plain = brain.evaluate(data, test_loader_kwargs={"batch_size": 7})
    for shuffle in (True, False):
        sampler = bl.DynamicBatchSampler(data, 2.0, shuffle=shuffle)
        assert abs(brain.evaluate(data, test_loader_kwargs={"batch_sampler": sampler}) - plain) < 0.2
        seen = [
            id_
            for batch in brain._source(data, bl.Stage.TEST, {"batch_sampler": sampler}).read(3, 0)
            for id_ in batch.id
        ]
        assert sorted(seen) == sorted(speech.ROWS)
