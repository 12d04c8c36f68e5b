"""The ledger: the wall time of a fit, shared out so that nothing is left; by real waits that are told apart."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from tests.brain.small import Batch, Regression, Rows, batches, small
from tests.contracts.brains import SEVEN, Plain, make, two_fits

NAP = 0.05


@pytest.mark.parametrize("cls", SEVEN, ids=lambda cls: cls.__name__)
def test_it_is_closed(cls: type[Plain], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="brainlib")
    brain = two_fits(make(cls, bl.Checkpointer(tmp_path)))
    seconds = brain._ledger.seconds
    assert list(seconds) == [
        "start",
        "compute",
        "data wait",
        "checkpoint",
        "validation",
        "hooks",
        "left over",
    ]
    assert sum(seconds.values()) == pytest.approx(brain._ledger.total)
    assert all(each >= 0 for each in seconds.values()) and seconds["checkpoint"] > 0
    told = [
        record.getMessage() for record in caplog.records if record.getMessage().startswith("the fit took")
    ]
    assert len(told) == 2 and told[1].endswith("updates/s")
    said = [record.getMessage() for record in caplog.records]
    times = [place for place, text in enumerate(said) if text.startswith(("the fit took", "the run took"))]
    # Of the first fit the line of the run would say the same once more; the second one is a part of it.
    assert [said[place][:12] for place in times] == ["the fit took", "the fit took", "the run took"]
    done = [place for place, text in enumerate(said) if " is done: " in text]
    assert len(done) == 2 and done[0] < times[0] and done[1] < times[1], "first what came out, then the time"


def test_each_wait_is_put_where_it_belongs() -> None:
    class Slow(Regression):
        def on_fit_start(self) -> None:
            time.sleep(3 * NAP)
            super().on_fit_start()

        def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
            if stage is bl.Stage.TRAIN:
                time.sleep(NAP)
            return super().compute_forward(batch, stage)

        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: Any = None) -> None:
            time.sleep({bl.Stage.TRAIN: 5 * NAP, bl.Stage.VALID: 7 * NAP}[stage])

    class SlowRows(Rows):
        def __getitem__(self, index: int) -> Batch:
            time.sleep(NAP / 2)
            return super().__getitem__(index)

    brain = small(Slow)
    brain.fit(range(1), SlowRows(8), batches(2), train_loader_kwargs={"batch_size": 4})
    least = {"start": 3, "data wait": 4, "compute": 2, "hooks": 5, "validation": 7}
    for name, naps in least.items():
        assert brain._ledger.seconds[name] >= naps * NAP
    slept = NAP * sum(least.values())
    rest = (
        brain._ledger.total - slept
    )  # each is over by what the machine did meanwhile, and by no other's share
    assert all(brain._ledger.seconds[name] <= naps * NAP + rest + 1e-6 for name, naps in least.items())


def test_it_is_closed_after_an_error_and_begins_anew() -> None:
    class Failing(Regression):
        def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
            if self.optimizer_step == 1:
                raise RuntimeError("no")
            return super().compute_forward(batch, stage)

    brain = small(Failing)
    with pytest.raises(RuntimeError, match="no"):
        brain.fit(range(1), batches(2, 2))
    first = brain._ledger
    assert first.total > 0 and sum(first.seconds.values()) == pytest.approx(first.total)
    with pytest.raises(RuntimeError, match="no"):
        brain.fit(range(1), batches(2, 2))
    assert brain._ledger is not first
