"""What one update does, in numbers that can be checked by hand.

The loss is the mean over items of ``x · w``, so the gradient of ``w`` is the mean of ``x``: with ``w`` = 0 and SGD at
rate 1, weights after an update are minus what was applied. All numbers are exact in float32 unless a test says so.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import brainlib as bl
from brainlib.update.guard import DeviceGuard
from tests.contracts.brains import SEVEN, Plain, ending, make, train

NAN, INF = math.nan, math.inf

Batch = dict[str, Tensor]


class Slope(nn.Module):
    """The weights `a` and `b`, both 0."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(1))
        self.b = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.cat([self.a, self.b])


class Sloping(bl.Brain):
    """The loss is the mean of ``x · w``, plus what the batch says is to be added to it."""

    def compute_forward(self, batch: Batch, stage: bl.Stage) -> Tensor:
        return self.modules.model(batch["x"])

    def compute_objectives(self, predictions: Tensor, batch: Batch, stage: bl.Stage) -> Tensor:
        return predictions.mean() + batch.get("add", 0.0)

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        self.stage_loss = stage_loss


def sgd(parameters: Any, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0, **more)


def momentum(parameters: Any, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0, momentum=0.5, **more)


def two_groups(parameters: Any) -> torch.optim.Optimizer:
    a, b = parameters
    return torch.optim.SGD([{"params": [a]}, {"params": [b], "lr": 10.0}], lr=1.0)


both_guards = pytest.mark.parametrize("guard", ["host", "device"])


def sloping(
    cls: type[bl.Brain] = Sloping,
    opt_class: Any = sgd,
    *,
    model: nn.Module | None = None,
    guard: str = "host",
    checkpointer: Any = None,
    **run_opts: Any,
) -> Any:
    """With the guard "device" it is the one of accelerators, which works on a CPU, too; it wants fused optimizers."""
    options = {"noprogressbar": True, "device": "cpu", **run_opts}
    if guard == "device":
        cls = type(cls.__name__, (cls,), {"_make_guard": lambda brain: DeviceGuard(brain.device)})
        opt_class = partial(opt_class, fused=True)
    return cls({"model": model or Slope()}, opt_class, {"seed": 0}, options, checkpointer)


def batch(*rows: tuple[float, float], **more: float) -> Batch:
    return {
        "x": torch.tensor(rows, dtype=torch.float32),
        **{key: torch.tensor(value) for key, value in more.items()},
    }


def weights(brain: bl.Brain) -> list[float]:
    return [brain.modules.model.a.item(), brain.modules.model.b.item()]


def after(brain: Any, *batches: Batch) -> list[float]:
    """The weights after one epoch of these."""
    brain.fit(range(1), list(batches))
    return weights(brain)


def by_hand(x: tuple[float, float], max_norm: float) -> list[float]:
    """What torch's own clipping makes of this gradient."""
    a, b = (nn.Parameter(torch.zeros(1)) for _ in x)
    a.grad, b.grad = (torch.tensor([float(value)]) for value in x)
    torch.nn.utils.clip_grad_norm_([a, b], max_norm)
    return [-a.grad.item(), -b.grad.item()]


# ------------------------------------------------------------------------------------------------------------ clipping
def test_clipped_to_one() -> None:
    """The gradient (3, 4) has norm 5."""
    weights = after(sloping(max_grad_norm=1.0), batch((3, 4)))
    assert weights == pytest.approx([-0.6, -0.8], rel=1e-5)
    assert weights == by_hand((3, 4), 1.0), "the bits of clip_grad_norm_"


@pytest.mark.parametrize("max_norm", [4.9, 5.0, 5.000001, 5.00001, 5.1])
def test_at_the_norm_itself_it_has_the_bits_of_clip_grad_norm(max_norm: float) -> None:
    """Which takes a millionth off where norm and limit are equal."""
    assert after(sloping(max_grad_norm=max_norm), batch((3, 4))) == by_hand((3, 4), max_norm)


def test_the_default_is_five() -> None:
    assert after(sloping(), batch((1.5, 2))) == [-1.5, -2]
    assert after(sloping(), batch((30, 40))) == pytest.approx([-3, -4], rel=1e-6)


def test_null_does_not_clip() -> None:
    assert after(sloping(max_grad_norm=None), batch((300, 400))) == [-300, -400]


def test_a_negative_norm_does_not_clip_and_says_what_to_write(caplog: pytest.LogCaptureFixture) -> None:
    assert after(sloping(max_grad_norm=-1.0), batch((300, 400))) == [-300, -400]
    assert "max_grad_norm: -1 switches clipping off. Write null, which says so." in caplog.text


def test_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="'max_grad_norm' is 0, which would scale every gradient to zero"):
        sloping(max_grad_norm=0)


def test_two_groups_have_one_norm_and_each_its_own_rate() -> None:
    """Each group by itself would have made it (1, 1), scaled by the rates 1 and 10."""
    weights = after(sloping(opt_class=two_groups, max_grad_norm=1.0), batch((3, 4)))
    assert weights == pytest.approx([-0.6, -8.0], rel=1e-5)


def test_a_window_is_clipped_as_a_whole() -> None:
    """(6, 0) and three times (-2, 0) are (0, 0) together: nothing to clip, whatever one micro-batch alone has."""
    window = [batch((6, 0)), batch((-2, 0), (-2, 0), (-2, 0))]
    assert after(sloping(max_grad_norm=1.0, grad_accumulation_factor=2), *window) == [0, 0]


def test_a_window_is_weighted_before_it_is_clipped() -> None:
    """(12, 16) and three times nothing: (3, 4), of norm 5, clipped to 1. Their sum would have norm 20."""
    window = [batch((12, 16)), batch((0, 0), (0, 0), (0, 0))]
    brain = sloping(max_grad_norm=1.0, grad_accumulation_factor=2)
    assert after(brain, *window) == pytest.approx([-0.6, -0.8], rel=1e-5)
    assert after(sloping(max_grad_norm=10.0, grad_accumulation_factor=2), *window) == [-3, -4]


# ---------------------------------------------------------------------------------------------------------- not finite
@both_guards
def test_nan_in_one_window_of_three(guard: str) -> None:
    """Windows of two: (1, 1), NaN, (3, 3). The rate of the momentum is a half: 1, then 3 + 1/2."""
    batches = [
        batch((1, 1)), batch((1, 1)),
        batch((5, NAN)), batch((7, 7)),
        batch((4, 4)), batch((2, 2)),
    ]  # fmt: skip
    brain = sloping(opt_class=momentum, guard=guard, max_grad_norm=None, grad_accumulation_factor=2)
    assert after(brain, *batches) == [-4.5, -4.5]
    assert brain.optimizer.state[brain.modules.model.a]["momentum_buffer"].item() == 3.5
    assert (brain.optimizer_step, brain.run_state.nonfinite_windows) == (2, 1)
    # Losses before each update: 0 at w = 0; then -1·(4 + 4) and -1·(2 + 2): the NaN window counts for nothing.
    assert brain.stage_loss == (0 + 0 - 8 - 4) / 4


@both_guards
def test_an_infinite_gradient_under_a_finite_loss(guard: str) -> None:
    """The root of |w · x| at 0 is 0, and its slope infinite."""

    class Root(Sloping):
        def compute_objectives(self, predictions: Tensor, batch: Batch, stage: bl.Stage) -> Tensor:
            return predictions.abs().sqrt().sum() if "root" in batch else predictions.mean()

    brain = sloping(Root, opt_class=momentum, guard=guard)
    assert after(brain, batch((1, 2)), batch((0, 0), root=1.0), batch((1, 0))) == [-2.5, -3]
    assert (brain.optimizer_step, brain.run_state.nonfinite_windows) == (2, 1)
    assert brain.stage_loss == (0 - 1) / 2, "its loss was 0, and is not in the mean"


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@both_guards
def test_a_loss_that_is_not_finite_over_good_gradients_is_as_bad(value: float, guard: str) -> None:
    brain = sloping(opt_class=momentum, guard=guard)
    assert after(brain, batch((1, 2)), batch((1, 1), add=value), batch((1, 0))) == [-2.5, -3]
    assert (brain.optimizer_step, brain.run_state.nonfinite_windows) == (2, 1)
    assert brain.stage_loss == (0 - 1) / 2


@both_guards
def test_gradients_so_large_that_their_norm_is_not_finite_are_a_bad_window(guard: str) -> None:
    """Each is finite; the square of 1e30 is not, in float32. Clipping by that norm would make them 0."""
    brain = sloping(guard=guard)
    assert after(brain, batch((1e30, 1e30)), batch((1, 1))) == [-1, -1]
    assert (brain.optimizer_step, brain.run_state.nonfinite_windows) == (1, 1)


def test_the_schedule_stands_still_in_a_window_that_was_skipped() -> None:
    """Rates 1 and 1/2 for the two updates: the NaN between them is told `should_step` = False afterwards."""

    class Halving(Sloping):
        def on_fit_start(self) -> None:
            super().on_fit_start()
            self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)

        def on_fit_batch_end(self, batch: Batch, outputs: Any, loss: Tensor, should_step: bool) -> None:
            if should_step:
                self.schedule.step()

    brain = sloping(Halving)
    assert after(brain, batch((1, 1)), batch((NAN, 1)), batch((1, 1))) == [-1.5, -1.5]
    assert brain.schedule.last_epoch == 2


def test_an_epoch_without_a_good_window_has_no_loss() -> None:
    """0.0 would be the best loss there ever was."""
    brain = sloping()
    brain.fit(range(1), [batch((NAN, 1))])
    assert math.isnan(brain.stage_loss)


@both_guards
def test_running_statistics_are_put_back(guard: str) -> None:
    """Mean and variance of a BatchNorm take the NaN in forward, before anybody can know."""

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2, momentum=0.5)
            self.slope = Slope()

        def forward(self, x: Tensor) -> Tensor:
            return self.slope(self.norm(x))

    def trained(*batches: Batch) -> Any:
        brain = sloping(model=Normed(), guard=guard)
        brain.fit(range(1), list(batches))
        return brain

    good, bad, later = batch((1, 2), (3, 4)), batch((1, NAN), (3, 4)), batch((5, 6), (9, 6))
    brain, without = trained(good, bad, later), trained(good, later)
    norm = brain.modules.model.norm
    assert norm.running_mean.tolist() == [4.0, 3.75]  # ((0 + 2)/2 + 7)/2 and ((0 + 3)/2 + 6)/2
    assert norm.num_batches_tracked.item() == 2
    for ours, theirs in zip(
        brain.modules.state_dict().values(), without.modules.state_dict().values(), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert brain.evaluate([later]) == without.evaluate([later])
    assert math.isfinite(brain.evaluate([later]))


class StepsItself(Sloping):
    def fit_batch(self, batch: Batch) -> Tensor:
        loss = self.compute_objectives(self.compute_forward(batch, bl.Stage.TRAIN), batch, bl.Stage.TRAIN)
        loss.backward()
        nn.utils.clip_grad_norm_(self.modules.parameters(), self.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


@pytest.mark.parametrize(
    ("cls", "guard", "num_steps"),
    [(Sloping, "host", 3), (StepsItself, "host", 3), (Sloping, "device", 3), (StepsItself, "device", 4)],
)
def test_the_third_bad_window_in_a_row_is_too_many(cls: type[bl.Brain], guard: str, num_steps: int) -> None:
    """On a device the verdict comes when the next batch has run, which then is not trained on if it need not be."""
    brain = sloping(cls, guard=guard, nonfinite_patience=2)
    with pytest.raises(ValueError, match="nonfinite_patience"):
        brain.fit(range(1), [batch((NAN, 1))] * 9)
    assert weights(brain) == [0, 0]
    assert brain.step == num_steps
    assert brain.optimizer_step == 0


# -------------------------------------------------------------------------------------------------- several optimizers
class TwoSlopes(Sloping):
    """An optimizer each for `a` and `b`; `b` joins after two updates."""

    def init_optimizers(self) -> None:
        self.a_optimizer = torch.optim.SGD([self.modules.model.a], 1.0, momentum=0.5)
        self.b_optimizer = torch.optim.SGD([self.modules.model.b], 1.0, momentum=0.5)
        self.optimizers_dict = {"a": self.a_optimizer, "b": self.b_optimizer}

    def freeze_optimizers(self, optimizers: dict[str, Any]) -> dict[str, Any]:
        return optimizers if self.optimizer_step >= 2 else {"a": optimizers["a"]}


def test_a_frozen_optimizer_starts_from_its_own_first_window() -> None:
    """`b` was frozen for two updates: their gradients are in neither its weight nor its momentum."""
    brain = sloping(TwoSlopes, opt_class=None, max_grad_norm=None)
    assert after(brain, batch((1, 10)), batch((1, 20)), batch((1, 30))) == [-(1 + 1.5 + 1.75), -30]
    assert brain.b_optimizer.state[brain.modules.model.b]["momentum_buffer"].item() == 30
    assert brain.optimizer_step == 3


def test_a_frozen_optimizer_takes_no_part_in_clipping_the_others() -> None:
    brain = sloping(TwoSlopes, opt_class=None, max_grad_norm=2.0)
    assert after(brain, batch((1, 1000))) == [-1, 0]


def test_what_is_not_finite_in_one_optimizer_stops_both() -> None:
    """The gradient of `b` alone is infinite; `a` without `b` would be another model."""
    brain = sloping(TwoSlopes, opt_class=None, max_grad_norm=None)
    brain.freeze_optimizers = lambda optimizers: optimizers
    assert after(brain, batch((1, 1)), batch((1, INF)), batch((1, 1))) == [-2.5, -2.5]
    assert (brain.optimizer_step, brain.run_state.nonfinite_windows) == (2, 1)


# ---------------------------------------------------------------------------------------------------------- the scaler
def scaler(init_scale: float, growth_interval: int = 2000) -> torch.amp.GradScaler:
    """torch's own, on the CPU: halves at an overflow, doubles after `growth_interval` good updates."""
    return torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=growth_interval)


def scaled(brain: Any, init_scale: float, growth_interval: int = 2000) -> Any:
    brain.scaler = scaler(init_scale, growth_interval)
    return brain


def test_gradients_are_unscaled_before_they_are_clipped() -> None:
    brain = scaled(sloping(max_grad_norm=10.0), 1024.0)
    assert after(brain, batch((3, 4))) == [-3, -4], "a norm of 5, not of 5120"
    brain = scaled(sloping(max_grad_norm=1.0), 1024.0)
    assert after(brain, batch((3, 4))) == by_hand((3, 4), 1.0)


def test_the_scale_grows_with_updates_and_not_with_micro_batches() -> None:
    """Eight micro-batches by two: four updates, an interval of two: doubled twice."""
    brain = scaled(sloping(grad_accumulation_factor=2), 1024.0, growth_interval=2)
    assert after(brain, *[batch((1, 2))] * 8) == [-4, -8]
    assert brain.scaler.get_scale() == 4096
    assert brain.optimizer_step == 4


def test_an_overflow_halves_the_scale_and_changes_nothing_else() -> None:
    """48 · 2¹²⁷ is beyond float32, and so on down to 2¹²³: five windows are lost, more than patience allows others."""
    brain = scaled(sloping(opt_class=momentum, max_grad_norm=None, nonfinite_patience=2), 2.0**127)
    assert after(brain, *[batch((48, 0))] * 7) == [-(48 + 72), 0]
    assert brain.scaler.get_scale() == 2.0**122
    assert (brain.optimizer_step, brain.run_state.nonfinite_windows) == (2, 5)
    assert brain.stage_loss == (0 - 48 * 48) / 2


def test_a_loss_that_is_not_finite_is_no_matter_of_scale() -> None:
    """It counts for patience, with a scaler too."""
    brain = scaled(sloping(nonfinite_patience=2), 1024.0)
    with pytest.raises(ValueError, match="nonfinite_patience"):
        brain.fit(range(1), [batch((NAN, 1))] * 5)
    assert brain.run_state.nonfinite_windows == 3
    assert weights(brain) == [0, 0]


def test_nan_in_a_window_under_a_scaler() -> None:
    brain = scaled(sloping(opt_class=momentum, max_grad_norm=None, grad_accumulation_factor=2), 1024.0, 2)
    batches = [batch((1, 1)), batch((1, 1)), batch((5, NAN)), batch((7, 7)), batch((4, 4)), batch((2, 2))]
    assert after(brain, *batches) == [-4.5, -4.5]
    assert brain.scaler.get_scale() == 512, "halved once; the row of good updates began anew"
    assert (brain.optimizer_step, brain.run_state.nonfinite_windows) == (2, 1)


def test_an_optimizer_without_gradients_is_left_out() -> None:
    """torch's scaler refuses to step what it has not seen a gradient of: "No inf checks were recorded"."""

    class OnlyA(TwoSlopes):
        def compute_forward(self, batch: Batch, stage: bl.Stage) -> Tensor:
            return batch["x"][:, :1] @ self.modules.model.a

    brain = scaled(sloping(OnlyA, opt_class=None), 1024.0, growth_interval=1)
    brain.freeze_optimizers = lambda optimizers: optimizers
    assert after(brain, batch((1, 1)), batch((1, 1))) == [-2.5, 0]
    assert brain.scaler.get_scale() == 4096
    assert brain.optimizer_step == 2


def test_an_overflow_in_one_optimizer_stops_both_and_halves_once() -> None:
    """torch's scaler alone would step the other."""
    brain = scaled(sloping(TwoSlopes, opt_class=None, max_grad_norm=None), 2.0**126)
    brain.freeze_optimizers = lambda optimizers: optimizers
    assert after(brain, batch((1, 6)), batch((1, 1))) == [-1, -1]
    assert brain.scaler.get_scale() == 2.0**125
    assert (brain.optimizer_step, brain.run_state.nonfinite_windows) == (1, 1)


class ScaledGan(Sloping):
    """Two optimizers, stepped by hand through one scaler, each with a loss of its own."""

    def init_optimizers(self) -> None:
        self.optimizer_g = torch.optim.SGD([self.modules.model.a], 1.0)
        self.optimizer_d = torch.optim.SGD([self.modules.model.b], 1.0)
        self.optimizers_dict = {"g": self.optimizer_g, "d": self.optimizer_d}

    def fit_batch(self, batch: Batch) -> Tensor:
        loss_d = (self.modules.model.b * batch["x"][:, 1]).mean()
        self.optimizer_d.zero_grad()
        self.scaler.scale(loss_d).backward()
        self.scaler.step(self.optimizer_d)

        loss_g = (self.modules.model.a * batch["x"][:, 0]).mean()
        self.optimizer_g.zero_grad()
        self.scaler.scale(loss_g).backward()
        self.scaler.unscale_(self.optimizer_g)
        torch.nn.utils.clip_grad_norm_(self.modules.model.a, self.max_grad_norm)
        self.scaler.step(self.optimizer_g)
        self.scaler.update()
        return loss_g.detach()


def test_a_gan_with_a_scaler() -> None:
    """Its own clipping at the Brain's 5: 1, then 5 for 50; the judge's 10 and 20 are not clipped."""
    brain = scaled(sloping(ScaledGan, opt_class=None), 1024.0, growth_interval=2)
    assert after(brain, batch((1, 10)), batch((50, 20))) == pytest.approx([-6, -30], rel=1e-6)
    assert brain.scaler.get_scale() == 2048
    assert brain.optimizer_step == 2
    assert brain.stage_loss == (0 - 50) / 2


@pytest.mark.parametrize(
    ("bad", "wanted", "num_updates"),
    [
        ((1.0, 6.0), [-3, -2], 3),  # 6 · 2¹²⁶ overflows: the judge sits out, the generator goes on
        ((6.0, 1.0), [-2, -3], 3),
        ((6.0, 6.0), [-2, -2], 2),  # both sit out, so there was no update
        ((NAN, NAN), [-2, -2], 2),
    ],
    ids=str,
)
def test_a_gan_whose_scaler_overflows(
    bad: tuple[float, float], wanted: list[float], num_updates: int
) -> None:
    brain = scaled(sloping(ScaledGan, opt_class=None), 2.0**126)
    assert after(brain, batch((1, 1)), batch(bad), batch((1, 1))) == wanted
    assert brain.scaler.get_scale() == 2.0**125, "halved once"
    assert brain.optimizer_step == num_updates


def test_the_scale_goes_on_where_it_stood(tmp_path: Any) -> None:
    def run(num_epochs: int) -> Any:
        brain = scaled(sloping(checkpointer=bl.Checkpointer(tmp_path)), 1024.0, growth_interval=2)
        brain.fit(range(num_epochs), [batch((1, 2))] * 3)
        return brain

    assert run(1).scaler.get_scale() == 2048
    assert run(2).scaler.get_scale() == 8192, "updates 2, 4 and 6 doubled it"


@pytest.mark.parametrize("cls", SEVEN)
@pytest.mark.parametrize("factor", [1, 3])
def test_a_power_of_two_changes_no_bit_of_the_seven_brains(cls: type[Plain], factor: int) -> None:
    """Five batches an epoch, two epochs; with Adam, momentum, clipping, dropout."""
    without = train(make(cls, grad_accumulation_factor=factor))
    brain = train(scaled(make(cls, grad_accumulation_factor=factor), 256.0, growth_interval=3))
    assert ending(brain) == ending(without)


# ---------------------------------------------------------------------------------------------------- the loop by hand
class Regression(bl.Brain):
    def compute_forward(self, batch: Batch, stage: bl.Stage) -> Tensor:
        return self.modules.model(batch["input"])

    def compute_objectives(self, predictions: Tensor, batch: Batch, stage: bl.Stage) -> Tensor:
        return nn.functional.mse_loss(predictions, batch["target"])


class Hooked(Regression):
    def on_fit_batch_end(self, batch: Batch, outputs: Any, loss: Tensor, should_step: bool) -> None:
        pass


class Overridden(Regression):
    def fit_batch(self, batch: Batch) -> Tensor:
        loss = self.compute_objectives(self.compute_forward(batch, bl.Stage.TRAIN), batch, bl.Stage.TRAIN)
        loss.backward()
        self.optimizers_step()
        return loss.detach()


class ClipsItself(Regression):
    def fit_batch(self, batch: Batch) -> Tensor:
        loss = self.compute_objectives(self.compute_forward(batch, bl.Stage.TRAIN), batch, bl.Stage.TRAIN)
        loss.backward()
        nn.utils.clip_grad_norm_(self.modules.parameters(), self.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def half_clipping(num_batches: int) -> list[Batch]:
    """Every other batch has targets so far off that its gradient is longer than 5."""
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "input": torch.randn(16, 10, generator=generator),
            "target": torch.randn(16, 10, generator=generator) * (1 + 39 * (index % 2)),
        }
        for index in range(num_batches)
    ]


@pytest.mark.parametrize("armed", [False, True])
@pytest.mark.parametrize("cls", [Regression, Hooked, Overridden, ClipsItself])
def test_300_updates_have_the_bits_of_the_loop_by_hand(
    cls: type[bl.Brain], armed: bool, tmp_path: Any
) -> None:
    batches, num_clipped, total = half_clipping(300), 0, 0.0
    torch.manual_seed(0)
    model = nn.Linear(10, 10)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for each in batches:
        loss = nn.functional.mse_loss(model(each["input"]), each["target"])
        loss.backward()
        num_clipped += int(nn.utils.clip_grad_norm_(model.parameters(), 5.0) > 5.0)
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
    assert 120 <= num_clipped <= 180

    torch.manual_seed(0)
    more: dict[str, Any] = {}
    if armed:
        more = {
            "checkpointer": bl.Checkpointer(tmp_path / "save"),
            "loggers": [bl.FileTrainLogger(tmp_path / "log.txt")],
        }
    brain = cls(
        {"model": nn.Linear(10, 10)},
        lambda parameters: torch.optim.SGD(parameters, 0.01),
        run_opts={"noprogressbar": True, "device": "cpu"},
        **more,
    )
    losses: list[float] = []
    brain.on_stage_end = lambda stage, loss, epoch: losses.append(loss)
    brain.fit(range(1), batches)
    for ours, theirs in zip(brain.modules.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert losses == [pytest.approx(total / 300, rel=1e-12)]
    assert brain.optimizer_step == 300
