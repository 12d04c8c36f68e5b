"""Operations of an update by torch's counter: the right update, nothing else, and nothing changed in training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import brainlib as bl
from brainlib.profiling.flops import _recurrent_operators, known_peak
from tests.brain.small import Batch, Regression, batches, small
from tests.contracts.brains import SEVEN, Plain, ending, make, train, two_fits

A_ROW = 24  # two products of [1, 3] and [3, 2], forward and for the weight, two operations a multiply-add


@pytest.mark.parametrize(("factor", "rows"), [(1, 2), (3, 2 + 3 + 4)])
def test_the_first_update_with_all_its_batches(factor: int, rows: int) -> None:
    brain = small(count_flops=True, grad_accumulation_factor=factor)
    brain.fit(range(2), batches(2, 3, 4, 5, 6, 7), batches(100))
    assert brain._ledger.flops == rows * A_ROW and brain._ledger.peak is None
    assert "fit_batch" not in vars(brain)


def test_what_is_done_between_the_batches_does_not_count() -> None:
    class Validating(Regression):
        def on_stage_start(self, stage: bl.Stage, epoch: Any = None) -> None:
            self.modules.model(torch.zeros(50, 3).double()).sum().backward()

    brain = small(Validating, count_flops=True, valid_interval_steps=1)
    brain.fit(range(1), batches(2, 3), batches(100))
    assert brain._ledger.flops == 2 * A_ROW


def test_it_stands_on_the_brain_for_one_update() -> None:
    """From then on a step is what it is without."""
    seen = []

    class Looking(Regression):
        def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
            seen.append("fit_batch" in vars(self))
            return super().compute_forward(batch, stage)

    brain = small(Looking, count_flops=True)
    for _ in range(2):
        brain.fit(range(1), batches(2, 2, 2))
    assert seen == [True, False, False] * 2
    off = small(Looking)
    off.fit(range(1), batches(2))
    assert not seen[-1] and off._profiler is None and off._ledger.flops == 0


def test_an_error_in_the_update() -> None:
    class Failing(Regression):
        def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
            raise RuntimeError("the original")

    brain = small(Failing, count_flops=True)
    with pytest.raises(RuntimeError, match="the original"):
        brain.fit(range(1), batches(2))
    assert "fit_batch" not in vars(brain) and brain._ledger.flops == 0


@pytest.mark.parametrize("cls", SEVEN, ids=lambda cls: cls.__name__)
def test_training_with_it_is_training_without(cls: type[Plain], tmp_path: Path) -> None:
    brain = two_fits(make(cls, bl.Checkpointer(tmp_path), count_flops=True, grad_accumulation_factor=3))
    assert brain._ledger.flops > 0
    assert ending(brain) == ending(two_fits(make(cls, grad_accumulation_factor=3)))


def test_a_run_that_goes_on_inside_a_window_counts_the_next_one(tmp_path: Path) -> None:
    class Saving(Regression):
        def on_fit_batch_end(self, *args: Any) -> None:
            if self.step == 1 and self.run_state.epoch == 0 and self.checkpointer.loaded is None:
                self.checkpointer.save_checkpoint()
                raise KeyboardInterrupt

    def brain() -> Any:
        return small(
            Saving, checkpointer=bl.Checkpointer(tmp_path), count_flops=True, grad_accumulation_factor=2
        )

    data = batches(2, 3, 4, 5)
    with pytest.raises(KeyboardInterrupt):
        brain().fit(range(1), data)
    again = brain()
    again.fit(range(1), data)
    assert again._ledger.flops == (4 + 5) * A_ROW


class Frames(bl.Brain):
    def compute_forward(self, batch: torch.Tensor, stage: bl.Stage) -> Any:
        return self.modules.model(batch)[0]

    def compute_objectives(self, predictions: Any, batch: torch.Tensor, stage: bl.Stage) -> torch.Tensor:
        return predictions.square().mean()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("more", "size"),
    [
        ({}, 24 * (8 + 6)),
        ({"num_layers": 2, "bidirectional": True}, 2 * 24 * (8 + 6) + 2 * 24 * (12 + 6)),
        ({"batch_first": True, "bias": False}, 24 * (8 + 6)),
    ],
)
def test_an_lstm_that_is_one_operator(more: dict[str, Any], size: int) -> None:
    """Its forward is one product a frame, its backward two; in parts the first step has no gradient to give back."""
    model = torch.nn.LSTM(8, 6, **more)
    brain = Frames({"model": model}, lambda p: torch.optim.SGD(p, 0.1), {"seed": 0}, {"count_flops": True})
    brain.fit(range(1), [torch.ones(5, 2, 8)] * 2, progressbar=False)
    assert brain._ledger.flops == 3 * 2 * 10 * size


def test_a_stack_of_layers_on_a_gpu() -> None:
    """By the shapes that its one operator is called with."""

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, device="meta")

    weights = [empty(24, 8), empty(24, 6), empty(24), empty(24)]
    with FlopCounterMode(display=False, custom_mapping=_recurrent_operators()) as counter:
        torch.ops.aten._cudnn_rnn(
            empty(5, 2, 8), weights, 4, None, empty(1, 2, 6), empty(1, 2, 6), 2, 6, 0, 1, False, 0.0, True, False, [],
            None,
        )  # fmt: skip
    assert counter.get_total_flops() == 2 * 10 * 24 * (8 + 6)


def test_an_update_without_anything_that_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = torch.nn.Parameter(torch.ones(8))

        def forward(self, frames: torch.Tensor) -> tuple[torch.Tensor]:
            return (frames * self.by,)

    brain = Frames({"model": Scaled()}, lambda p: torch.optim.SGD(p, 0.1), {"seed": 0}, {"count_flops": True})
    brain.fit(range(1), [torch.ones(5, 2, 8)] * 2, progressbar=False)
    assert caplog.text.count("count_flops: in the first update there was no product") == 1


def test_beside_a_profile(tmp_path: Path) -> None:
    text = f"batch_range=[0, 2]; exit_on_finished=false; profile_path={tmp_path}/p"
    brain = train(make(Plain, count_flops=True, profiler_options=text))
    assert brain._ledger.flops > 0 and "fit_batch" not in vars(brain)


def test_it_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="brainlib")
    brain = small(count_flops=True, peak_flops=1e9)
    brain.loggers.append(bl.JsonlLogger(tmp_path / "metrics.jsonl"))
    brain.fit(range(2), batches(2, 2))
    assert f"{2 * A_ROW} FLOPs an update" in caplog.text and ", MFU 0." in caplog.text
    for row in bl.read_metrics(tmp_path / "metrics.jsonl"):
        ledger = row["ledger"]
        trained = ledger["seconds"]["compute"] + ledger["seconds"]["data wait"]
        assert ledger["flops_per_update"] == 2 * A_ROW
        assert ledger["flops_per_second"] == pytest.approx(2 * 2 * A_ROW / trained, rel=2e-3)
        assert ledger["mfu"] == pytest.approx(ledger["flops_per_second"] / 1e9, rel=2e-3)


def test_what_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    assert small(count_flops=True, compile=True)._profiler is None
    assert "count_flops has no effect with compile" in caplog.text
    small(peak_flops=1e12)
    assert "peak_flops has no effect without count_flops" in caplog.text
    with pytest.raises(ValueError, match="'peak_flops' is 0; it is more than 0, or null"):
        small(peak_flops=0, count_flops=True)
    for peak in (math.inf, 1e-320):  # an MFU of 0, and one that no file can hold
        with pytest.raises(ValueError, match="how many operations one device can do in a second"):
            small(peak_flops=peak, count_flops=True)


@pytest.mark.parametrize(
    ("name", "precision", "tf32", "peak"),
    [
        ("NVIDIA H200", "bf16", False, 989.5e12),
        ("NVIDIA H100 80GB HBM3", "fp16", False, 989.5e12),
        ("NVIDIA H100 PCIe", "bf16", False, 756e12),
        ("NVIDIA A100-SXM4-80GB", "fp32", False, 19.5e12),
        ("NVIDIA A100-SXM4-80GB", "fp32", True, 156e12),
        ("NVIDIA GeForce RTX 3090", "bf16", False, None),
    ],
)
def test_peaks(name: str, precision: str, tf32: bool, peak: float | None) -> None:
    assert known_peak(name, precision, tf32) == peak
