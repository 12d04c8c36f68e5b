"""Benchmark runs: exactly so many updates, one line that a program reads, nothing left in the folder of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from brainlib.profiling.benchmark import Benchmark
from tests.brain.small import Regression, Rows, batches, linear, sgd, small
from tests.contracts.brains import SEVEN, Plain, make, train


def line_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert len(lines) == 1
    return json.loads(lines[0])["benchmark"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("cls", SEVEN, ids=lambda cls: cls.__name__)
def test_exactly_so_many_updates_and_one_line(
    cls: type[Plain], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    brain = make(cls, bl.Checkpointer(tmp_path / "save"), benchmark_max_step=12, benchmark_batch_size=3)
    train(brain, num_epochs=100)
    assert brain.optimizer_step == 12
    line = line_of(capsys)
    assert (line["updates"], line["counted"], line["finished"]) == (12, 10, True)
    assert line["items_per_second"] == pytest.approx(30 / line["seconds"], rel=1e-3)
    assert line["audio_seconds_per_second"] is None and line["padding"] is None
    times = line["update_seconds"]
    assert 0 < times["p50"] <= times["p90"] <= times["p99"] == times["max"] <= line["seconds"]
    assert 0 < line["data_wait"] < 1 and line["peak_memory"]["host"] > 0
    assert (line["batch_size"], line["device"], line["precision"]) == (3, "cpu", "fp32")
    assert not (tmp_path / "save").exists()


def test_a_run_that_has_checkpoints_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    train(make(Plain, bl.Checkpointer(tmp_path / "save")))
    before = sorted(path.name for path in (tmp_path / "save").iterdir())
    brain = train(make(Plain, bl.Checkpointer(tmp_path / "save"), benchmark_max_step=3))
    assert brain.optimizer_step == 3 and line_of(capsys)["finished"]
    assert sorted(path.name for path in (tmp_path / "save").iterdir()) == before
    assert "stopped by benchmark_max_step (3)" in caplog.text
    assert "the run goes on from" not in caplog.text, "its checkpoints go with the Brain"


def test_fewer_updates_than_were_asked_for(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    small(benchmark_max_step=50).fit(range(2), batches(2, 2))
    line = line_of(capsys)
    assert (line["updates"], line["finished"]) == (4, False)
    assert "4 of the 50 updates of benchmark_max_step were made" in caplog.text


def test_later_fits_are_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    brain = small(benchmark_max_step=2)
    brain.fit(range(1), batches(2, 2, 2))
    brain.fit(range(1), batches(2, 2, 2))
    assert brain.optimizer_step == 2 and line_of(capsys)["updates"] == 2


def test_together_with_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"batch_range=[2, 4]; exit_on_finished=false; profile_path={tmp_path}/p"
    brain = small(benchmark_max_step=8, profiler_options=text)
    brain.fit(range(9), batches(2, 2, 2))
    assert line_of(capsys)["updates"] == brain.optimizer_step == 8
    assert (tmp_path / "p.rank0.cycle0.json").exists()


@pytest.mark.parametrize(
    ("data", "kwargs", "message"),
    [
        (batches(2, 2), None, "train_set is a list of batches that are made already"),
        (
            torch.utils.data.DataLoader(Rows()),
            None,
            "train_set is a DataLoader of batches that are made already",
        ),
        (Rows(), {"batch_sampler": [[0, 1]]}, "train_set has a batch_sampler"),
    ],
)
def test_a_batch_size_where_batches_are_made(data: Any, kwargs: Any, message: str) -> None:
    brain = small(benchmark_max_step=2, benchmark_batch_size=8)
    with pytest.raises(ValueError, match=f"benchmark_batch_size is 8, but {message}: give fit a Dataset and"):
        brain.fit(range(1), data, train_loader_kwargs=kwargs)


def test_what_does_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(
        ValueError, match="'benchmark_max_step' .* is 0, but it takes a whole number, at least 1"
    ):
        small(benchmark_max_step=0)
    small(benchmark_batch_size=4)
    assert "benchmark_batch_size has no effect without benchmark_max_step" in caplog.text


def test_speech_is_told_in_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    class Speech(Regression):
        def compute_forward(self, batch: Any, stage: bl.Stage) -> Any:
            return self.modules.model(batch["sig"][0][:, :3].double())

        def compute_objectives(self, predictions: Any, batch: Any, stage: bl.Stage) -> Any:
            return predictions.square().mean()

    signals, lengths = torch.rand(2, 8000), torch.tensor([1.0, 0.5])
    brain = Speech(
        {"model": linear()}, sgd, hparams={"seed": 0, "sample_rate": 8000},
        run_opts={"noprogressbar": True, "device": "cpu", "benchmark_max_step": 10},
    )  # fmt: skip
    brain.fit(range(1), [{"sig": (signals, lengths)}] * 20)
    line = line_of(capsys)
    assert line["padding"] == 0.25
    assert line["audio_seconds_per_second"] == pytest.approx(8 * 1.5 / line["seconds"], rel=1e-3)


def test_what_is_counted_by_a_clock_of_the_tests(capsys: pytest.CaptureFixture[str]) -> None:
    """A second for each batch's data and two for its update; a hundred between the epochs, which do not count."""
    now = [0.0]
    benchmark = Benchmark(4, clock=lambda: now[0])
    benchmark.start()
    benchmark.begin(small())

    def slow() -> Any:
        for _ in range(2):
            now[0] += 1
            yield torch.ones(5, 2)

    for _ in range(2):
        now[0] += 100
        for _ in benchmark.waits(slow(), "data wait"):
            now[0] += 2
            benchmark.step()
    assert benchmark.exits == "benchmark_max_step (4)"
    benchmark.stop()
    line = line_of(capsys)
    assert (line["seconds"], line["data_wait"]) == (12.0, pytest.approx(1 / 3, abs=1e-6))
    assert line["items_per_second"] == pytest.approx(20 / 12, abs=1e-4)
    assert set(line["update_seconds"].values()) == {3.0}
