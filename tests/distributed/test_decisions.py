"""What depends on a clock, on a disk or on a signal is decided once, for all ranks."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import brainlib as bl
from brainlib.distributed.world import World
from tests.contracts.brains import SHUFFLED, VALID, Items, Plain, digest, make, ready_batches
from tests.distributed.host import Host


class Slow(Plain):
    """Every batch takes some milliseconds; the ranks' clocks run at different rates."""

    def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Any, should_step: bool) -> None:
        time.sleep(0.004)


class Steps(bl.Extension):
    """Notes when it is called."""

    def __init__(self, trigger: Any, name: str) -> None:
        super().__init__(trigger=trigger, name=name)
        self.at: list[int] = []

    def __call__(self, brain: Any) -> None:
        self.at.append(brain.optimizer_step)


def storm(home: str) -> dict[str, Any]:
    """A save every 60 ms, in a run of two ranks whose clocks disagree."""
    rank = World.from_environment().rank
    began, speed = time.monotonic(), 1.0 + 2.0 * rank
    often = Steps((0.05, "seconds"), "often")
    brain = make(
        Slow, bl.Checkpointer(home), extensions=[often], ckpt_interval_minutes=0.001, noprogressbar=True
    )
    brain._ranks.agreed._clock = lambda: began + (time.monotonic() - began) * speed + 1000 * rank
    saves: list[int] = []
    save = brain.checkpointer.save_automatically

    def noted(*args: Any, **kwargs: Any) -> Any:
        saves.append(brain.optimizer_step)
        return save(*args, **kwargs)

    brain.checkpointer.save_automatically = noted
    brain.fit(range(2), ready_batches((4,) * 100), VALID)
    brain.checkpointer.wait()
    bl.gather(0)
    for checkpoint in brain.checkpointer.list_checkpoints():
        brain.checkpointer.load_checkpoint(checkpoint)
    return {"saves": saves, "often": often.at, "there": len(brain.checkpointer.list_checkpoints())}


def test_a_storm_of_timed_saves_is_the_same_on_both_ranks(host: Host, tmp_path: Path) -> None:
    zero, one = host.run(storm, tmp_path, str(tmp_path / "save"))
    assert zero == one
    assert len(zero["saves"]) >= 6 and len(zero["often"]) >= 6 and zero["there"] >= 2


def limited_in_time(home: str) -> Any:
    rank = World.from_environment().rank
    began = time.monotonic()
    brain = make(Slow, bl.Checkpointer(home), max_time=0.3)
    brain._ranks.agreed._clock = lambda: (time.monotonic() - began) * (1 + rank)
    brain.fit(range(100), ready_batches((4,) * 20), VALID)
    return [brain.optimizer_step, brain.run_state.epoch, brain.run_state.step, digest(brain)]


def test_max_time_ends_both_at_the_same_update(host: Host, tmp_path: Path) -> None:
    zero, one = host.run(limited_in_time, tmp_path, str(tmp_path / "save"))
    assert zero == one and 2 < zero[0] < 200


# -------------------------------------------------------------------------------------------------- signals


class Signaled(Plain):
    where, number, rank = "", signal.SIGTERM, 0

    def _maybe(self, where: str) -> None:
        if (
            where == self.where
            and World.from_environment().rank == self.rank
            and not self.__dict__.get("sent")
        ):
            self.sent = True
            os.kill(os.getpid(), self.number)

    def compute_forward(self, batch: Any, stage: bl.Stage) -> Any:
        if self.step == (2 if stage == bl.Stage.TRAIN else 1):
            self._maybe(stage.name)
        return super().compute_forward(batch, stage)

    def on_stage_start(self, stage: bl.Stage, epoch: Any = None) -> None:
        super().on_stage_start(stage, epoch)
        self._maybe(f"start of {stage.name}")

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: Any = None) -> None:
        super().on_stage_end(stage, stage_loss, epoch)
        self._maybe(f"end of {stage.name}")


WHERE = ("TRAIN", "VALID", "start of TRAIN", "start of VALID", "end of TRAIN", "end of VALID")


def signals(home: str) -> Any:
    told = {}
    for number, (where, rank) in enumerate((w, r) for w in WHERE for r in (0, 1)):
        folder = f"{home}/{number}"
        brain = make(Signaled, bl.Checkpointer(folder))
        brain.where, brain.rank = where, rank
        with pytest.raises(bl.Stopped):
            brain.fit(range(2), Items(), VALID, train_loader_kwargs={**SHUFFLED, "batch_size": 2})
        newest = bl.gather([c.counters for c in brain.checkpointer.list_checkpoints()][:1])
        told[f"{where}, rank {rank}"] = newest
        again = make(Plain, bl.Checkpointer(folder))
        again.fit(range(2), Items(), VALID, train_loader_kwargs={**SHUFFLED, "batch_size": 2})
        told[f"{where}, rank {rank}, ended"] = digest(again)
    whole = make(Plain)
    whole.fit(range(2), Items(), VALID, train_loader_kwargs={**SHUFFLED, "batch_size": 2})
    told["whole"] = digest(whole)
    return told


def test_a_signal_to_one_rank_stops_all_at_the_same_update(host: Host, tmp_path: Path) -> None:
    zero, one = host.run(signals, tmp_path, str(tmp_path / "save"))
    assert zero == one
    for name, told in zero.items():
        if name.endswith("ended"):
            assert told == zero["whole"], name
        elif name != "whole":
            assert told[0] and told[0] == told[1], name


def whole_job(home: str) -> Any:
    """As a scheduler ends it: the script does not catch what ends the fit."""
    brain = make(Slow, bl.Checkpointer(home))
    brain.fit(range(1000), ready_batches((4,) * 20), VALID)


def test_the_whole_script_ends_with_one_complete_checkpoint(host: Host, tmp_path: Path) -> None:
    began, sent = time.monotonic(), []

    def tell_rank_1(pids: list[int]) -> None:
        if not sent and (tmp_path / "save").exists() and any((tmp_path / "save").glob("step-*")):
            sent.append(time.monotonic() - began)
            os.kill(pids[1], signal.SIGTERM)

    ended = host.start(whole_job, tmp_path, str(tmp_path / "save"), meddle=tell_rank_1)
    assert sent and [each.status for each in ended] == [143, 143], [each.output for each in ended]
    assert "stopped by SIGTERM" in ended[0].output
    newest = bl.Checkpointer(tmp_path / "save").list_checkpoints()[0]
    assert newest.reason in ("signal", "epoch") and newest.world_size == 2


# ---------------------------------------------------------------------------------------------- saves by some


def saves_alone(kind: str, home: str) -> None:
    class Guarded(Plain):
        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: Any = None) -> None:
            if stage == bl.Stage.TRAIN and bl.if_main_process():
                self.checkpointer.save_checkpoint({"loss": stage_loss})

    brain = make(Guarded, bl.Checkpointer(home), dist_timeout_seconds=4)
    brain.fit(range(3), ready_batches(), VALID if kind == "valid" else None)


def test_a_save_that_only_some_ranks_call_names_the_others(host: Host, tmp_path: Path) -> None:
    ended = host.start(saves_alone, tmp_path, "valid", str(tmp_path / "save"))
    assert [each.status for each in ended] == [1, 1]
    assert "a save of a checkpoint: rank 1 did not come within 3.2 s" in ended[0].output
    assert "do not put it behind if_main_process()" in ended[1].output


def shared_snapshots(home: str) -> Any:
    brain = make(
        Plain,
        bl.Checkpointer(home),
        extensions=[bl.Snapshot(2, best=[("valid_loss", "min", 1)], trigger=(1, "epoch"))],
    )
    brain.fit(range(5), Items(), VALID, train_loader_kwargs=SHUFFLED)
    best = brain.evaluate(VALID, min_key="valid_loss")
    brain.checkpointer.wait()
    bl.gather(0)
    return [best, [c.path.name for c in brain.checkpointer.list_checkpoints()], brain.trace]


def test_snapshots_and_the_best_are_those_of_the_main_rank(host: Host, tmp_path: Path) -> None:
    zero, one = host.run(shared_snapshots, tmp_path, str(tmp_path / "save"))
    assert zero == one and len(zero[1]) >= 2
    assert zero[0] == pytest.approx(min(valid for _, _, valid in zero[2]))
