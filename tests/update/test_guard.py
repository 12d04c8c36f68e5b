"""The guard by itself: what it does with gradients, losses and counters, in both forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from brainlib.run_state import RunState
from brainlib.update.buffers import Buffers
from brainlib.update.gradients import Gradients
from brainlib.update.guard import DeviceGuard, HostGuard, step_unless, takes_verdict
from brainlib.update.watch import OptimizerWatch

NAN, INF = math.nan, math.inf


def fused_sgd(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 1.0, fused=True, **options)


def plain_sgd(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 1.0, **options)


GUARDS: dict[str, tuple[Callable[[], HostGuard], Callable[..., torch.optim.Optimizer]]] = {
    "host": (HostGuard, plain_sgd),
    "device, fused": (lambda: DeviceGuard(torch.device("cpu")), fused_sgd),
    "device, not fused": (lambda: DeviceGuard(torch.device("cpu")), plain_sgd),
}


class Bench:
    """Parameters at zero, one SGD of rate 1 each, a norm layer whose statistics have been spoiled."""

    def __init__(self, form: str, num_optimizers: int = 1) -> None:
        make_guard, make_optimizer = GUARDS[form]
        self.guard, self.run = make_guard(), RunState()
        self.params = [nn.Parameter(torch.zeros(1)) for _ in range(num_optimizers)]
        self.optimizers = [make_optimizer([param]) for param in self.params]
        self.norm = nn.BatchNorm1d(1)
        self.buffers = Buffers(self.norm)

    def window(self, *gradients: float | None, losses: tuple[float, ...] = (2.0,), **options: Any) -> bool:
        self.buffers.keep()
        for loss in losses:
            self.run.begin_batch()
            self.run.record(torch.tensor(loss), 1.0)
        self.norm.running_mean += 1
        for param, value in zip(self.params, gradients, strict=True):
            param.grad = None if value is None else torch.tensor([value])
        active = [Gradients(each) for each in self.optimizers]
        return self.guard.make_update(active, self.run, self.buffers, **options)

    @property
    def values(self) -> list[float]:
        return [param.item() for param in self.params]

    def counts(self) -> tuple[int, int, int]:
        self.guard.settle(self.run)
        return self.run.optimizer_step, self.run.nonfinite_windows, self.run.nonfinite_in_a_row


all_forms = pytest.mark.parametrize("form", GUARDS)


@all_forms
def test_a_good_window_is_stepped_scaled_and_counted(form: str) -> None:
    bench = Bench(form)
    assert bench.window(8.0, losses=(2.0, 4.0), scale=0.5, max_norm=None)
    assert bench.values == [-4.0]
    assert bench.counts() == (1, 0, 0)
    assert bench.run.loss.value() == 3.0
    assert bench.norm.running_mean.item() == 1.0


@all_forms
@pytest.mark.parametrize(
    ("gradient", "losses"), [(NAN, (2.0,)), (INF, (2.0,)), (1.0, (NAN,)), (1.0, (2.0, -INF)), (NAN, (NAN,))]
)
def test_a_bad_window_leaves_a_count_and_nothing_else(
    form: str, gradient: float, losses: tuple[float, ...]
) -> None:
    bench = Bench(form)
    bench.window(1.0)
    bench.window(gradient, losses=losses)
    assert bench.values == [-1.0]
    assert bench.counts() == (1, 1, 1)
    assert bench.run.loss.value() == 2.0
    assert bench.norm.running_mean.item() == 1.0
    bench.window(1.0, losses=(5.0,))
    assert bench.values == [-2.0]
    assert bench.counts() == (2, 1, 0)
    assert bench.run.loss.value() == 3.5


@all_forms
def test_one_bad_optimizer_stops_the_others(form: str) -> None:
    bench = Bench(form, num_optimizers=3)
    bench.window(1.0, NAN, 1.0)
    assert bench.values == [0.0, 0.0, 0.0]
    assert bench.counts() == (0, 1, 1)


@all_forms
def test_without_gradients_an_update_is_made_of_nothing(form: str) -> None:
    bench = Bench(form, num_optimizers=2)
    bench.window(None, 1.0)
    assert bench.values == [0.0, -1.0]
    assert bench.counts() == (1, 0, 0)


@all_forms
def test_without_optimizers_no_step_is_counted(form: str) -> None:
    bench = Bench(form, num_optimizers=0)
    bench.window()
    assert bench.counts() == (0, 0, 0)
    assert bench.run.loss.value() == 2.0
    bench.window(losses=(NAN,))
    assert bench.counts() == (0, 1, 1)


@all_forms
def test_clipping_is_of_each_optimizer(form: str) -> None:
    bench = Bench(form, num_optimizers=2)
    bench.window(10.0, 0.5, max_norm=1.0)
    assert bench.values == pytest.approx([-1.0, -0.5], rel=1e-5)


def test_the_late_verdict_counts_as_good_until_it_is_read() -> None:
    bench = Bench("device, fused")
    bench.window(1.0)
    bench.window(NAN)
    assert bench.run.optimizer_step == 2
    assert bench.values == [-1.0], "the device knew"
    bench.guard.settle(bench.run)
    assert (bench.run.optimizer_step, bench.run.nonfinite_windows) == (1, 1)
    bench.guard.settle(bench.run)
    assert (bench.run.optimizer_step, bench.run.nonfinite_windows) == (1, 1), "a verdict is read once"


def test_that_the_host_waits_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench("device, not fused")
    with caplog.at_level("INFO", logger="brainlib"):
        bench.window(1.0)
        bench.window(1.0)
    assert caplog.text.count("SGD is not fused, so the host waits for one value an update") == 1


def test_fused_momentum_is_judged_on_the_device_from_its_second_step_on() -> None:
    """In a refused first step torch would leave the momentum uninitialized."""
    weight = nn.Parameter(torch.zeros(1))
    optimizer = fused_sgd([weight], momentum=0.9)
    weight.grad = torch.ones(1)
    assert not takes_verdict(optimizer)
    optimizer.step()
    assert takes_verdict(optimizer)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    optimizer.param_groups[1]["params"][0].grad = torch.ones(1)
    assert not takes_verdict(optimizer)
    assert not takes_verdict(plain_sgd([weight]))


def test_a_refused_step_on_the_device_changes_nothing_and_leaves_nothing() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adam([weight], 0.1, fused=True)
    for bad, steps in ((0.0, 1), (1.0, 1), (0.0, 2)):
        weight.grad = torch.ones(1)
        before = weight.detach().clone()
        step_unless(optimizer, torch.tensor(bad))
        assert torch.equal(weight, before) == bool(bad)
        assert optimizer.state[weight]["step"].item() == steps
    assert not hasattr(optimizer, "found_inf")


def test_a_failing_step_leaves_nothing_on_the_optimizer() -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise OSError("broken")

    optimizer = Failing([nn.Parameter(torch.ones(1))], 0.1)
    with pytest.raises(OSError, match="broken"):
        step_unless(optimizer, torch.tensor(0.0))
    assert not hasattr(optimizer, "found_inf")


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("make", [plain_sgd, fused_sgd])
def test_a_watch_refuses_steps_and_gives_back_what_a_scaler_put_there(
    make: Any, scaled: bool, on_device: bool
) -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer, watch = make([weight]), OptimizerWatch(on_device)
    theirs = torch.tensor(0.0) if scaled and make is fused_sgd else None
    if theirs is not None:
        optimizer.found_inf = theirs
    with watch.attached([optimizer]):
        weight.grad = torch.tensor([NAN])
        optimizer.step()
        assert weight.item() == 1.0
        assert getattr(optimizer, "found_inf", None) is theirs
        assert watch.refused or watch.flags[0] == 1.0
        watch.clear()
        assert not (watch.stepped or watch.refused or watch.flags)
        weight.grad = torch.ones(1)
        optimizer.step()
        assert (watch.stepped, weight.item()) == (True, 0.0)
    watch.clear()
    optimizer.step()
    assert not watch.stepped, "its hooks are gone"


def test_a_trusted_step_is_seen_and_not_judged() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer, watch = plain_sgd([weight]), OptimizerWatch()
    with watch.attached([optimizer]):
        watch.trusted = True
        weight.grad = torch.tensor([NAN])
        optimizer.step()
    assert (watch.stepped, watch.refused) == (True, False)
    assert math.isnan(weight.item())
