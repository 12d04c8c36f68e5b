"""The checks that people do by hand: they name what is wrong, and change nothing where nothing is."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import brainlib as bl
from tests.brain.small import Batch, Regression, Rows, batches, linear, same, sgd, small, weights
from tests.contracts.brains import (
    SEVEN,
    VALID,
    InnerFit,
    Items,
    OwnAccumulation,
    Plain,
    TwoOptimizers,
    ending,
    make,
    ready_batches,
    train,
    two_fits,
)

seven = pytest.mark.parametrize("cls", SEVEN, ids=lambda cls: cls.__name__)


def inspected(brain: Any, data: Any = None, **options: Any) -> bl.Inspector:
    with bl.Inspector(brain, **options) as inspector:
        brain.fit(range(1), data or batches(*[4] * 4))
    return inspector


# -- shapes and contents -----------------------------------------------------------------------------------------------


def test_the_tree_tells_what_went_through(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="brainlib")
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    tree = repr(inspected(small(model=model, opt_class=lambda p: torch.optim.SGD(p, 0.01))))
    lines = tree.splitlines()
    assert lines[0] == "model (Sequential), 2 calls"
    assert (
        lines[1].startswith("    in    [4, 3] float64: -") and "mean" in lines[1] and "0% zeros" in lines[1]
    )
    assert "  0 (Linear), 2 calls" in lines and "  1 (ReLU), 2 calls" in lines
    assert any(line.startswith("      grad  [4, 8] float64") for line in lines)
    assert any("weight: grad [8, 3] float64" in line and "changed by" in line for line in lines)
    assert "!!" not in tree and tree in caplog.text


def test_shapes_alone_look_at_no_value() -> None:
    tree = repr(inspected(small(), content=False))
    assert tree.splitlines() == [
        "model (Linear), 2 calls",
        "    in    [4, 3] float64",
        "    out   [4, 2] float64",
    ]


def test_modules_by_name() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2)).double()
    tree = repr(inspected(small(model=model), modules=["model.1"]))
    assert "1 (Linear), 2 calls" in tree and "0 (Linear)" not in tree
    with pytest.raises(
        ValueError, match="there is no module 'model.2' to check; there are 'model', 'model.0', .*mean"
    ):
        inspected(small(model=model), modules=["model.2"])


def test_what_looks_wrong_is_named(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(Regression):
        def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
            return self.modules.model[:3](batch["x"])

    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2), nn.Linear(2, 2)).double()
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.fill_(-1.0)
        model[2].weight.mul_(1e-3)
    model[2].bias.requires_grad_(False)
    brain = small(
        Odd, model=model, opt_class=lambda _: torch.optim.SGD([*model[:3].parameters(), model[3].weight], 0.1)
    )
    findings = inspected(brain).findings
    assert "model.1 (ReLU): its output was 0 throughout: a dead layer" in findings
    assert "model.0.weight: its gradient was 0 throughout" in findings
    assert "model.3.weight: it never got a gradient" in findings
    assert "model.3.bias: no optimizer that made a step has it, so it is not trained" in findings
    assert all(f"check: {finding}" in caplog.text for finding in findings)
    assert "model (Sequential)" not in caplog.text.replace("model (Sequential), never called", "")


def test_an_exploding_update_is_named() -> None:
    brain = small(opt_class=lambda p: torch.optim.SGD(p, 50.0), max_grad_norm=None)
    findings = inspected(brain, batches(4, 4)).findings
    assert any(
        "model.weight: one update changed it by" in f and "lower the learning rate" in f for f in findings
    )


def test_values_that_are_not_finite_are_named() -> None:
    data = batches(4, 4)
    data[0]["x"][2, 1] = float("inf")
    findings = inspected(small(), data).findings
    assert "model (Linear): its input held 0 NaN and 1 infinities" in findings


def test_as_options_into_a_file(tmp_path: Path) -> None:
    from brainlib.experiment import end_experiment

    bl.create_experiment_directory(tmp_path)
    try:
        brain = small(check_content="all", check_batches=3)
    finally:
        end_experiment()
    brain.fit(range(1), batches(*[4] * 6))
    assert "model (Linear), 3 calls" in (tmp_path / "checks.txt").read_text()


def test_a_short_fit_is_said_to_be_partial(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="brainlib")
    inspected(small(), batches(4))
    assert "PARTIAL: after 1 of 2 updates the fit ended" in caplog.text
    small(check_batches=4)
    assert "check_batches has no effect without check_shape or check_content" in caplog.text


def test_an_optimizer_that_makes_no_step_for_now() -> None:
    for cls, frozen in ((TwoOptimizers, "encoder.0.bias"), (InnerFit, "discriminator.0.bias")):
        with bl.Inspector(brain := make(cls)) as inspector:
            train(brain, 1)
        assert (
            f"{frozen}: its optimizer made no step in these updates; is it frozen for now?"
            in inspector.findings
        )
        assert "not trained" not in repr(inspector)


def test_an_error_before_the_first_step_says_nothing_of_optimizers(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Chain):
        def compute_objectives(self, *args: Any) -> torch.Tensor:
            raise KeyError("the original")

    with pytest.raises(KeyError):
        small(Failing, check_content=["all"]).fit(range(1), batches(4))
    assert "check:" not in caplog.text
    caplog.clear()
    with pytest.raises(ValueError, match="there is no module 'nope' to check"):
        small(check_content=["nope"]).fit(range(1), batches(4))
    assert "PARTIAL" not in caplog.text


class Words(bl.Brain):
    """A table with sparse gradients, and a module that gives a sparse tensor and a nested one."""

    def compute_forward(self, batch: torch.Tensor, stage: bl.Stage) -> torch.Tensor:
        vectors = self.modules.table(batch)
        self.modules.odd(vectors)
        return self.modules.model(vectors)  # type: ignore[no-any-return]

    def compute_objectives(self, predictions: torch.Tensor, batch: Any, stage: bl.Stage) -> torch.Tensor:
        return predictions.square().mean() * (math.nan if self.step == 3 and stage == bl.Stage.TRAIN else 1)


class OddOnes(nn.Module):
    def forward(self, vectors: torch.Tensor) -> Any:
        flat = vectors.detach().flatten(1)
        nested = torch.nested.nested_tensor([flat[0], flat[1, :3]], layout=torch.jagged)
        return flat.to_sparse(), flat.to_sparse_csr(), nested, torch.fft.rfft(flat), None


def words(**options: Any) -> Words:
    modules = {
        "table": nn.Embedding(9, 4, sparse=True, _weight=torch.ones(9, 4)),
        "odd": OddOnes(),
        "model": nn.Linear(4, 1),
    }
    torch.nn.init.ones_(modules["model"].weight)  # type: ignore[arg-type]
    torch.nn.init.zeros_(modules["model"].bias)  # type: ignore[arg-type]
    return Words(
        modules,
        lambda p: torch.optim.SGD(p, 0.1),
        {"seed": 0},
        {"noprogressbar": True, "device": "cpu", **options},
    )


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_tensors_of_every_layout() -> None:
    data = [torch.tensor([[0, 1, 1], [5, 0, 2]])] * 3
    looked_at, plain = words(check_content=["all"]), words()
    for brain in (looked_at, plain):
        brain.fit(range(1), data)
    assert same(weights(looked_at), weights(plain))
    with pytest.raises(bl.AnomalyFound, match="the backward of the loss gave 6 NaN"):
        words(detect_anomaly=True).fit(range(1), data)


def test_a_sparse_gradient_that_is_not_finite() -> None:
    class Spoiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, vectors: torch.Tensor) -> torch.Tensor:
            return vectors.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return gradient * math.inf

    class Spoiling(Words):
        def compute_forward(self, batch: torch.Tensor, stage: bl.Stage) -> torch.Tensor:
            weight = self.modules.table.weight
            vectors = torch.nn.functional.embedding(batch, weight, sparse=True)
            return self.modules.model(Spoiled.apply(vectors))  # type: ignore[no-any-return]

    brain = Spoiling(
        {"table": nn.Embedding(9, 4, sparse=True), "model": nn.Linear(4, 1)}, lambda p: torch.optim.SGD(p, 0.1),
        {"seed": 0}, {"noprogressbar": True, "device": "cpu", "detect_anomaly": True},
    )  # fmt: skip
    with pytest.raises(
        bl.AnomalyFound, match=r"the gradient of table.weight holds \d+ infinite of \d+ values"
    ):
        brain.fit(range(1), [torch.tensor([[0, 1, 1], [5, 0, 2]])])


@seven
def test_looking_changes_nothing(cls: type[Plain]) -> None:
    watched = make(cls, check_content=["all"], detect_anomaly=True, sanity_valid_batches=2)
    assert ending(two_fits(watched)) == ending(two_fits(make(cls)))


# -- anomalies ---------------------------------------------------------------------------------------------------------


class Chain(Regression):
    def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
        return self.modules.model(batch["x"])


class OwnSteps(Chain):
    def fit_batch(self, batch: Batch) -> torch.Tensor:
        loss = self.compute_objectives(self.compute_forward(batch, bl.Stage.TRAIN), batch, bl.Stage.TRAIN)
        loss.backward()  # type: ignore[no-untyped-call]
        assert self.optimizer is not None
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


class Root(nn.Module):
    """Its value at 0 is finite, and its slope is not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sqrt()


class Log(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.log()


def test_a_forward_that_is_not_finite_names_module_and_samples() -> None:
    data = [{**each, "id": ["a", "b", "c", "d"]} for each in batches(4, 4)]
    data[1]["x"] = data[1]["x"].abs()
    data[0]["x"] = data[0]["x"].abs()
    data[1]["x"][2] = -1.0
    brain = small(Chain, model=nn.Sequential(Log(), nn.Linear(3, 2).double()), detect_anomaly=True)
    with pytest.raises(
        bl.AnomalyFound,
        match=r"model.0 \(Log\) gave 3 NaN of 12 values, in sample 2 \('c'\) of its 4 \(batch 2 of the epoch with",
    ):
        brain.fit(range(1), data)


def test_a_backward_that_is_not_finite_names_the_module_that_made_it() -> None:
    data = batches(3)
    model = nn.Sequential(nn.Linear(3, 3).double(), nn.ReLU(), Root(), nn.Linear(3, 2).double())
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    brain = small(Chain, model=model, detect_anomaly=True)
    with pytest.raises(
        bl.AnomalyFound, match=r"the backward of model.2 \(Root\) gave \d+ (NaN|infinite) .* what model.1"
    ):
        brain.fit(range(1), data)


def test_a_weights_gradient_alone_that_is_not_finite() -> None:
    """Whatever goes from module to module is finite; such an update is skipped before an optimizer makes its step."""
    data = batches(3, 3)
    data[1]["x"] = data[1]["x"] * 1e200

    class Large(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return torch.full_like(gradient, 1e140)

    class Growing(Chain):
        def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
            return Large.apply(super().compute_forward(batch, stage)) * 1e-250  # type: ignore[no-any-return]

    with pytest.raises(
        bl.AnomalyFound,
        match=r"the gradient of model.weight holds 6 infinite of 6 values \(batch 2 of the epoch",
    ):
        small(Growing, opt_class=lambda p: torch.optim.SGD(p, 0.0), detect_anomaly=True).fit(range(1), data)


@pytest.mark.parametrize("cls", [Regression, OwnSteps])
def test_a_loss_alone_that_is_not_finite(cls: type[Regression]) -> None:
    class Spoiled(cls):  # type: ignore[misc,valid-type]
        def compute_objectives(
            self, predictions: torch.Tensor, batch: Batch, stage: bl.Stage
        ) -> torch.Tensor:
            loss = super().compute_objectives(predictions, batch, stage)
            return loss + (math.inf if self.step == 2 else 0)  # type: ignore[no-any-return]

    for data in (batches(3, 3, 3), batches(3, 3)):
        with pytest.raises(bl.AnomalyFound, match=r"the loss was not finite, .* \(batch 2 of the epoch"):
            small(Spoiled, detect_anomaly=True).fit(range(1), data)


def test_complex_values_that_are_not_finite() -> None:
    class Spectrum(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"spectrum": torch.fft.rfft(x) / 0.0}

    class Chained(Chain):
        def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
            self.modules.spectrum(batch["x"])
            return super().compute_forward(batch, stage)

    brain = small(Chained, detect_anomaly=True)
    brain.modules["spectrum"] = Spectrum()
    with pytest.raises(bl.AnomalyFound, match=r"spectrum \(Spectrum\) gave"):
        brain.fit(range(1), batches(3))


def test_samples_of_an_iterable_that_is_read_ahead() -> None:
    data = [{**each, "id": [f"{n}{letter}" for letter in "ab"]} for n, each in enumerate(batches(2, 2, 2))]
    data[1]["x"][1] = math.nan
    with pytest.raises(
        bl.AnomalyFound, match=r"in sample 1 \('1b'\) of its 2 \(batch 2 of the epoch with the ids '1a'"
    ):
        small(Chain, detect_anomaly=True).fit(range(1), iter(data))


# -- one batch by heart ------------------------------------------------------------------------------------------------


def test_overfit_batches_trains_on_the_same_ones() -> None:
    rows = Rows(40)
    seen: list[list[int]] = []

    class Noting(Regression):
        def compute_forward(self, batch: Any, stage: bl.Stage) -> torch.Tensor:
            seen.append(batch["id"].tolist())
            return super().compute_forward(batch, stage)

    brain = small(Noting, overfit_batches=2)
    brain.fit(range(3), rows, Rows(8), train_loader_kwargs={"batch_size": 4, "shuffle": True})
    assert brain.optimizer_step == 6 and len(seen) == 12
    assert seen[0::2] == [seen[0]] * 6 and seen[1::2] == [seen[1]] * 6 and seen[0] != seen[1]
    assert sorted(rows.reads) == sorted(seen[0] + seen[1])


def test_overfit_more_batches_than_there_are(caplog: pytest.LogCaptureFixture) -> None:
    brain = small(overfit_batches=5)
    brain.fit(range(2), batches(2, 2))
    assert brain.optimizer_step == 4
    assert "overfit_batches is 5, but train_set has only 2" in caplog.text


# -- a validation before everything else -------------------------------------------------------------------------------


def test_an_error_in_validation_comes_before_the_first_epoch() -> None:
    class Failing(Regression):
        def compute_objectives(self, predictions: Any, batch: Any, stage: bl.Stage) -> torch.Tensor:
            if stage is bl.Stage.VALID:
                raise RuntimeError("in validation")
            return super().compute_objectives(predictions, batch, stage)

    brain = small(Failing, sanity_valid_batches=1)
    with pytest.raises(RuntimeError, match="in validation"):
        brain.fit(range(1), batches(2, 2), batches(2))
    assert brain.optimizer_step == 0


def test_a_sanity_validation_is_once_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="brainlib")
    brain = make(Plain, bl.Checkpointer(tmp_path), sanity_valid_batches=2)
    brain.fit(range(1), ready_batches(), VALID)
    brain.fit(range(1), ready_batches(), VALID)
    assert len(brain.trace) == 2
    assert caplog.text.count("sanity validation: 2 batches went through") == 1
    again = make(Plain, bl.Checkpointer(tmp_path), sanity_valid_batches=2)
    again.fit(range(3), ready_batches(), VALID)
    assert caplog.text.count("sanity validation") == 1


# -- a learning rate to begin with -------------------------------------------------------------------------------------


def test_find_lr_suggests_a_rate_and_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    brain = make(Plain)
    curve = bl.find_lr(brain, Items(), {"batch_size": 6, "shuffle": True}, num_updates=80, highest=100.0)
    assert curve.suggestion is not None and 1e-4 < curve.suggestion < 1
    assert curve.rates == sorted(curve.rates) and curve.rates[0] == 1e-6
    assert len(curve.rates) == len(curve.losses) == len(curve.smoothed)
    assert curve.plot(tmp_path / "rates.png").stat().st_size > 10_000


def test_find_lr_stops_where_the_loss_diverges() -> None:
    curve = bl.find_lr(small(max_grad_norm=None), batches(*[4] * 10), highest=1e6)
    assert len(curve.rates) < 100 and curve.rates[-1] < 1e6


@pytest.mark.parametrize("patience", [0, 3])
def test_find_lr_ends_where_updates_are_skipped(patience: int) -> None:
    """From finite to infinite in one update: from there on no update is made."""

    class Falls(Regression):
        num_batches = 0

        def compute_objectives(
            self, predictions: torch.Tensor, batch: Batch, stage: bl.Stage
        ) -> torch.Tensor:
            self.num_batches += 1
            loss = super().compute_objectives(predictions, batch, stage)
            return loss if self.num_batches <= 20 else loss * math.inf

    curve = bl.find_lr(small(Falls, nonfinite_patience=patience), batches(*[4] * 10))
    assert len(curve.rates) == 20 and all(map(math.isfinite, curve.losses))
    spoiled = [{**each, "x": each["x"] * math.nan} for each in batches(4, 4)]
    with pytest.raises(ValueError, match="in a row had a loss or gradient that is not finite"):
        bl.find_lr(small(nonfinite_patience=patience), spoiled)


def test_find_lr_where_no_update_is_made(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="find_lr: an epoch has made no update, .* Is there an optimizer"):
        bl.find_lr(small(opt_class=None), batches(4, 4))
    with pytest.raises(ValueError, match="find_lr: an epoch has made no update"):
        bl.find_lr(make(OwnAccumulation, grad_accumulation_factor=8), ready_batches())
    caplog.clear()
    assert bl.find_lr(small(test_only=True), batches(4, 4)).rates == []
    assert "a run option ended the fit after update 0 of 100" in caplog.text


def test_find_lr_wins_over_a_schedule() -> None:
    schedule = bl.LearningRate(lambda done: 0.5)
    brain = Regression(
        {"model": linear()}, sgd, {"seed": 0}, {"noprogressbar": True, "device": "cpu"}, extensions=[schedule]
    )
    bl.find_lr(brain, batches(4), lowest=1e-4, highest=1e-2, num_updates=10)
    assert brain.optimizer is not None
    assert brain.optimizer.param_groups[0]["lr"] == pytest.approx(1e-2)


def test_what_find_lr_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="find_lr uses a Brain up, .* give it one that has no checkpointer"):
        bl.find_lr(small(checkpointer=bl.Checkpointer(tmp_path)), batches(2))
    with pytest.raises(
        ValueError, match="lowest=1, highest=0.1, num_updates=100; it takes 0 < lowest < highest"
    ):
        bl.find_lr(small(), batches(2), lowest=1, highest=0.1)
    for wrong in ({"highest": math.inf}, {"lowest": math.nan}, {"lowest": "1e-3"}, {"num_updates": 2.5}):
        with pytest.raises(ValueError, match="0 < lowest < highest and at least 2 updates, as numbers"):
            bl.find_lr(small(), batches(2), **wrong)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    curve = bl.find_lr(small(), batches(2), num_updates=5)
    with pytest.raises(ModuleNotFoundError, match=r"needs matplotlib: pip install 'brainlib\[demo\]'"):
        curve.plot(tmp_path / "rates.png")


def test_weights_without_checks_are_those_with() -> None:
    checked, plain = small(check_shape=["all"]), small()
    for brain in (checked, plain):
        brain.fit(range(2), batches(4, 4))
    assert same(weights(checked), weights(plain))
