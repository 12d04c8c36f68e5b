"""Stops at odd moments: while a resumed run is on its way to its place, after a save that was let go, under a dataset
that passes over every error.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from tests.brain.small import Regression, batches, same, small, weights


class Late(Regression):
    """Makes its optimizer when the epoch begins."""

    die_at = stop_at_start = -1

    def init_optimizers(self) -> None:
        pass

    def on_fit_start(self) -> None:
        super().on_fit_start()
        if self.stop_at_start > 0:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_stage_start(self, stage: bl.Stage, epoch: Any = None) -> None:
        if stage == bl.Stage.TRAIN:
            self.adam = torch.optim.Adam(self.modules.parameters(), 1e-2)

    def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Any, should_step: bool) -> None:
        if self.optimizer_step == 3 and self.checkpointer is not None:
            self.checkpointer.save_checkpoint()
        if self.optimizer_step == self.die_at:
            raise KeyError("killed")


def late(folder: Path | None, **attributes: int) -> Any:
    checkpointer = None if folder is None else bl.Checkpointer(folder)
    brain = small(Late, checkpointer=checkpointer, ckpt_interval_minutes=0)
    brain.__dict__.update(attributes)
    return brain


def test_a_stop_while_a_resumed_run_starts_leaves_what_it_goes_on_from(tmp_path: Path) -> None:
    data = batches(*[2] * 6)
    reference = late(None)
    reference.fit(range(2), data)
    with pytest.raises(KeyError):
        late(tmp_path, die_at=5).fit(range(2), data)
    for _ in range(2):
        with pytest.raises(SystemExit):
            late(tmp_path, stop_at_start=1).fit(range(2), data)
    names = [path.name for path in tmp_path.glob("step-*")]
    assert names == ["step-00000003"], "nothing is written before all that the checkpoint held is there again"
    end = late(tmp_path)
    end.fit(range(2), data)
    assert same(weights(end), weights(reference))


@pytest.mark.parametrize("keeps", [{"keep_recent": False, "min_keys": ["loss"]}, {"num_to_keep": 0}])
def test_an_epoch_whose_save_was_let_go_is_committed_all_the_same(
    keeps: dict[str, Any], tmp_path: Path
) -> None:
    class Choosy(Regression):
        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: Any = None) -> None:
            self.checkpointer.save_and_keep_only({"loss": float(epoch)}, **keeps)
            if epoch == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    brain = small(Choosy, checkpointer=bl.Checkpointer(tmp_path))
    with pytest.raises(SystemExit):
        brain.fit(range(5), batches(2, 2))
    found = bl.Checkpointer(tmp_path).newest()
    assert found is not None and found.counters["epoch"] == 3


class Lenient(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Takes the next file for a broken one, whatever has broken."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at = stop_at

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        try:
            if index == self.stop_at:
                self.stop_at = None
                os.kill(os.getpid(), signal.SIGTERM)
            return {"x": torch.full((4,), float(index)), "y": torch.ones(1)}
        except:  # noqa: E722  # the point
            return {"x": torch.full((4,), float(index + 1)), "y": torch.ones(1)}


def test_a_dataset_that_passes_over_every_error_does_not_pass_over_a_stop(tmp_path: Path) -> None:
    options = {"batch_size": 3}
    reference = small(model=torch.nn.Linear(4, 1))
    start = {name: value.clone() for name, value in reference.modules.state_dict().items()}
    reference.fit(range(1), Lenient(), train_loader_kwargs=options)
    for stop_at in (7, None):
        brain = small(model=torch.nn.Linear(4, 1), checkpointer=bl.Checkpointer(tmp_path))
        brain.modules.load_state_dict(start)
        try:
            brain.fit(range(1), Lenient(stop_at), train_loader_kwargs=options)
        except SystemExit:
            assert stop_at is not None and brain.step == 2
    assert same(weights(brain), weights(reference))
