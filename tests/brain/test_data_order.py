"""The order of an epoch is a function of (seed, epoch) and of nothing else; a cut goes on with the rest of it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import brainlib as bl
from tests.brain.small import Batch, Regression, Rows, batches, small

SHUFFLED = {"shuffle": True, "batch_size": 4}


class Listing(Regression):
    """Writes down the items of each epoch as they are trained on; stops where it is told to."""

    stop_at: tuple[int, int] | None = None  # epoch, batch

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.seen: dict[int, list[list[int]]] = {}
        super().__init__(*args, **kwargs)

    def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
        if stage == bl.Stage.TRAIN:
            self.now = self.seen.setdefault(epoch or 0, [])

    def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
        if stage == bl.Stage.TRAIN:
            if self.stop_at == (self.run_state.epoch, self.step):
                raise KeyError("cut")
            self.now.append(batch["id"].tolist())
        return super().compute_forward(batch, stage)


def order(
    seed: int = 0, num_epochs: int = 3, disturb: bool = False, **kwargs: Any
) -> dict[int, list[list[int]]]:
    brain = small(Listing, hparams={"seed": seed})
    if disturb:
        torch.manual_seed(random.randrange(2**31))
        brain.on_fit_batch_end = lambda *args: (torch.rand(3), random.random(), np.random.rand())
    brain.fit(range(num_epochs), Rows(18), train_loader_kwargs={**SHUFFLED, **kwargs})
    return brain.seen


def flat(epoch: list[list[int]]) -> list[int]:
    return [index for batch in epoch for index in batch]


def test_every_item_once_an_epoch_and_each_epoch_in_another_order() -> None:
    epochs = order()
    assert all(sorted(flat(epoch)) == list(range(18)) for epoch in epochs.values())
    assert [len(batch) for batch in epochs[0]] == [4, 4, 4, 4, 2]
    assert len({tuple(flat(epoch)) for epoch in epochs.values()}) == 3
    assert flat(epochs[0]) != list(range(18))


def test_the_seed_decides() -> None:
    assert order(seed=1) == order(seed=1)
    assert order(seed=1) != order(seed=2)


def test_nothing_else_does() -> None:
    """Neither the global generators nor what the training draws."""
    assert order() == order(disturb=True)


def test_the_order_draws_nothing_from_the_training() -> None:
    """Shuffled or not, dropout sees the same numbers."""
    states = []
    for shuffle in (True, False):
        torch.manual_seed(0)
        brain = small()
        brain.fit(range(2), Rows(18), train_loader_kwargs={"shuffle": shuffle, "batch_size": 4})
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_two_fits_of_one_epoch_do_not_repeat_the_order() -> None:
    brain = small(Listing)
    for _ in range(2):
        brain.fit(range(1), Rows(18), train_loader_kwargs=SHUFFLED)
    first, second = flat(brain.seen[0])[:18], flat(brain.seen[0])[18:]
    assert sorted(first) == sorted(second)
    assert first != second


def test_the_epochs_of_a_counter_and_of_a_range_are_the_same() -> None:
    brain = small(Listing)
    brain.fit(bl.EpochCounter(3), Rows(18), train_loader_kwargs=SHUFFLED)
    assert list(brain.seen.values()) == list(order().values())


@pytest.mark.parametrize("cut", [(0, 2), (0, 5), (1, 3)])
@pytest.mark.parametrize("seed", [7, None])
def test_a_cut_goes_on_with_the_batches_that_are_left(
    cut: tuple[int, int], seed: int | None, tmp_path: Path
) -> None:
    """With a seed that was drawn too: it is in the checkpoint."""

    def brain(stop_at: tuple[int, int] | None) -> Any:
        made = Listing(
            {"model": small().modules.model},
            torch.optim.SGD,
            hparams={} if seed is None else {"seed": seed},
            run_opts={"noprogressbar": True, "device": "cpu", "ckpt_interval_steps": 1, "ckpt_async": False},
            checkpointer=bl.Checkpointer(tmp_path),
        )
        made.stop_at = stop_at
        return made

    first = brain(cut)
    with pytest.raises(KeyError, match="cut"):
        first.fit(range(2), Rows(18), train_loader_kwargs=SHUFFLED)
    torch.manual_seed(4711)
    rows = Rows(18)
    second = brain(None)
    second.fit(range(2), rows, train_loader_kwargs=SHUFFLED)
    for epoch in range(2):
        whole = first.seen.get(epoch, []) + second.seen.get(epoch, [])
        assert sorted(flat(whole)) == list(range(18))
        if seed is not None:
            assert whole == order(seed=seed, num_epochs=2)[epoch]
    assert len(rows.reads) == 36 - 4 * (5 * cut[0] + cut[1] - 1) + 2 * cut[0], "skipped batches are not read"


def test_a_loader_of_ones_own_is_shuffled_and_resumed_too(tmp_path: Path) -> None:
    def brain(stop_at: tuple[int, int] | None) -> Any:
        made = small(Listing, checkpointer=bl.Checkpointer(tmp_path), ckpt_interval_steps=1, ckpt_async=False)
        made.stop_at = stop_at
        return made

    first = brain((1, 3))
    with pytest.raises(KeyError, match="cut"):
        first.fit(range(2), DataLoader(Rows(18), batch_size=4, shuffle=True))
    second = brain(None)
    second.fit(range(2), DataLoader(Rows(18), batch_size=4, shuffle=True))
    for epoch in range(2):
        assert sorted(flat(first.seen.get(epoch, []) + second.seen.get(epoch, []))) == list(range(18))


def test_a_drawn_seed_is_said_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="brainlib"):
        brain = Regression(
            {"model": small().modules.model}, torch.optim.SGD, run_opts={"noprogressbar": True}
        )
        brain.fit(range(1), batches(2))
    assert "seed" in caplog.text


def test_another_size_of_batch_in_mid_epoch_is_an_error(tmp_path: Path) -> None:
    """Positions are counted in batches: skipping so many of another size would skip the wrong items."""
    first = small(Listing, checkpointer=bl.Checkpointer(tmp_path), ckpt_interval_steps=1, ckpt_async=False)
    first.stop_at = (0, 3)
    with pytest.raises(KeyError, match="cut"):
        first.fit(range(2), Rows(18), train_loader_kwargs=SHUFFLED)
    second = small(Listing, checkpointer=bl.Checkpointer(tmp_path))
    with pytest.raises(ValueError, match="batch_size") as caught:
        second.fit(range(2), Rows(18), train_loader_kwargs={**SHUFFLED, "batch_size": 6})
    assert "4" in str(caught.value)
    assert "6" in str(caught.value)
