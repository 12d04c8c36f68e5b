"""Two ranks on batches of a total length: dealt out evenly, each item once, and resumed byte for byte after a kill."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import brainlib as bl
from tests.contracts.brains import digest
from tests.distributed.host import Host
from tests.resume import speech


class Killed(speech.Speaker):
    """Is killed before a batch is trained on, on both ranks at about the same time."""

    def on_fit_batch_start(self, batch: Any, should_step: bool) -> None:
        if (self.run_state.epoch, self.run_state.step) == self.at:
            self.checkpointer.wait()  # there is something on the disk to go on from
            os.kill(os.getpid(), signal.SIGKILL)


def trains(home: str | None, epoch: int, step: int, num_workers: int) -> Any:
    goes_on = home is not None and any(Path(home).glob("step-*"))
    checkpointer = None if home is None else bl.Checkpointer(home)
    brain = speech.make(checkpointer, 991 if goes_on else 1, Killed, (epoch, step), ckpt_interval_steps=1)
    data = speech.corpus()
    options = speech.loader_options(data, num_workers)
    brain.fit(range(2), data, data.subset(range(5)), train_loader_kwargs=options)
    return [brain.trace, digest(brain)]


def test_each_item_once_and_the_same_after_a_kill(host: Host, tmp_path: Path) -> None:
    expected = host.run(trains, tmp_path / "whole", None, 9, 9, 0)
    traces = [each[0] for each in expected]
    assert expected[0][1] == expected[1][1]
    for epoch in (0, 1):
        rounds = [[line for line in trace if line[0] == epoch] for trace in traces]
        assert len(rounds[0]) == len(rounds[1])
        ids = Counter(id_ for trace in rounds for line in trace for id_ in line[2])
        assert set(ids) == set(speech.ROWS)
        again = sum(ids.values()) - len(
            speech.ROWS
        )  # a rank without a batch in the last round takes part in another's
        assert again in (0, len(rounds[1][-1][2]))

    for number, (epoch, step, workers) in enumerate([(0, 3, 2), (1, 2, 0)]):
        home = str(tmp_path / f"save-{number}")
        ended = host.start(trains, tmp_path / f"k{number}", home, epoch, step, workers)
        assert -signal.SIGKILL in [each.status for each in ended], [each.output for each in ended]
        resumed = host.run(trains, tmp_path / f"r{number}", home, 9, 9, workers)
        for rank, (trace, end) in enumerate(resumed):
            assert trace and trace == traces[rank][-len(trace) :], (rank, epoch, step)
            assert end == expected[rank][1]


def test_another_number_of_ranks_goes_on_with_the_same_batches(host: Host, tmp_path: Path) -> None:
    """One process is killed, two go on: each batch of the order is trained on once."""
    one = host.run(trains, tmp_path / "one", None, 9, 9, 0, size=1)[0][0]
    home = str(tmp_path / "save")
    host.start(trains, tmp_path / "k", home, 0, 5, 0, size=1)
    resumed = host.run(trains, tmp_path / "r", home, 9, 9, 0)
    batches = Counter(
        tuple(line[2]) for trace in (each[0] for each in resumed) for line in trace if line[0] == 0
    )
    order = [tuple(line[2]) for line in one if line[0] == 0]
    assert len(order) - 5 < len(batches) < len(order) and set(batches) == set(order[-len(batches) :])
    drawn = {tuple(line[2]): line[3] for line in one}
    assert all(line[3] == drawn[tuple(line[2])] for each in resumed for line in each[0]), (
        "the same augmentation"
    )
