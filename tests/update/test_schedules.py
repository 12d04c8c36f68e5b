"""Schedules against their formulas, and against torch where torch has the same one."""

from __future__ import annotations

import json
import logging
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from brainlib.update.schedules import (
    Cosine,
    Linear,
    MetricSchedule,
    NewBob,
    Noam,
    Plateau,
    WarmUp,
    update_learning_rate,
)

RATE = 0.4


def optimizer_with(*rates: float) -> torch.optim.Optimizer:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
    return torch.optim.SGD(groups, lr=1.0)


def torch_rates(make: Callable[[Any], Any], num: int) -> list[float]:
    optimizer = optimizer_with(RATE)
    scheduler = make(optimizer)
    rates = []
    for _ in range(num):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


# ----------------------------------------------------------------------------------------------- against torch

LR = torch.optim.lr_scheduler


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (WarmUp(5), lambda o: LR.LinearLR(o, start_factor=1 / 5, end_factor=1.0, total_iters=4)),
        (Linear(12), lambda o: LR.LinearLR(o, start_factor=1.0, end_factor=0.0, total_iters=12)),
        (Linear(12, final=0.25), lambda o: LR.LinearLR(o, start_factor=1.0, end_factor=0.25, total_iters=12)),
        (Cosine(20), lambda o: LR.CosineAnnealingLR(o, T_max=20)),
        (Cosine(20, final=0.1), lambda o: LR.CosineAnnealingLR(o, T_max=20, eta_min=0.1 * RATE)),
        (Noam(3), lambda o: LR.LambdaLR(o, Noam(3))),  # what LambdaLR takes
    ],
    ids=lambda each: repr(each) if not callable(each) or hasattr(each, "num_total") else None,
)
def test_the_same_as_torch(ours: Callable[[int], float], theirs: Callable[[Any], Any]) -> None:
    assert [RATE * ours(done) for done in range(20)] == pytest.approx(torch_rates(theirs, 20), abs=1e-12)


def test_plateau_is_that_of_torch() -> None:
    draw = random.Random(0)
    for case in range(200):
        options: dict[str, Any] = {
            "factor": draw.choice([0.1, 0.5]),
            "patience": draw.randrange(3),
            "threshold": draw.choice([0.0, 1e-2]),
            "cooldown": draw.randrange(3),
        }
        direction = draw.choice(["min", "max"])
        least = draw.choice([0.0, 0.05])
        optimizer = optimizer_with(RATE)
        theirs = LR.ReduceLROnPlateau(optimizer, mode=direction, min_lr=least, eps=0.0, **options)
        ours = Plateau(RATE, min_value=least, direction=direction, **options)
        for _ in range(15):
            metric = draw.choice([math.nan, 1.0, 1.005, draw.uniform(0.9, 1.1)])
            old, new = ours(metric)
            assert old == optimizer.param_groups[0]["lr"], (case, options)
            theirs.step(metric)
            assert new == optimizer.param_groups[0]["lr"], (case, options)


# ----------------------------------------------------------------------------------------- against the formulas


def test_noam_has_its_peak_at_the_end_of_the_warm_up() -> None:
    schedule = Noam(num_warmup=400)
    factors = [schedule(done) for done in range(2000)]
    assert factors.index(max(factors)) == 399
    assert factors[399] == pytest.approx(1.0, abs=1e-12)
    assert factors[99] == pytest.approx(100 / 400)
    assert factors[1599] == pytest.approx(math.sqrt(400 / 1600))


def test_noam_with_a_width_is_equation_3_of_the_paper() -> None:
    schedule = Noam(num_warmup=4000, model_size=512)
    for number in (1, 2, 3999, 4000, 4001, 100_000):
        right = 512**-0.5 * min(number**-0.5, number * 4000**-1.5)
        assert schedule(number - 1) == pytest.approx(right, rel=1e-12)


@pytest.mark.parametrize("kind", [Linear, Cosine])
def test_warm_up_and_decay_meet_at_the_full_rate(kind: Any) -> None:
    schedule = kind(num_total=30, final=0.2, num_warmup=10)
    factors = [schedule(done) for done in range(40)]
    assert factors[:10] == [(done + 1) / 10 for done in range(10)]
    assert factors[10] == 1.0
    assert factors[20] == pytest.approx(0.6), "half of the decay is over"
    assert factors[30:] == pytest.approx([0.2] * 10)
    assert factors[9:] == sorted(factors[9:], reverse=True)


def test_the_first_update_is_never_made_for_nothing() -> None:
    for schedule in (WarmUp(9), Noam(9), Linear(20, num_warmup=9), Cosine(20, num_warmup=9)):
        assert schedule(0) == pytest.approx(1 / 9)


def test_a_pure_schedule_is_a_value() -> None:
    assert Cosine(10, num_warmup=2) == Cosine(10, num_warmup=2)
    assert repr(Noam(4)) == "Noam(num_warmup=4, model_size=None)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WarmUp(0), "num_warmup=0: give a whole number, 1 or more"),
        (lambda: Noam(4e3), "num_warmup=4000.0: give a whole number, 1 or more"),  # type: ignore[arg-type]
        (lambda: Noam(4, model_size=0), "model_size=0: give a whole number, 1 or more"),
        (lambda: Linear(10, num_warmup=10), "num_total=10: give a whole number, 11 or more"),
        (lambda: Cosine(10, final=-1.0), "final=-1.0: give a finite number, 0 or more"),
        (lambda: NewBob(0.1, annealing_factor=2), "annealing_factor=2: give a number above 0 and below 1"),
        (lambda: NewBob(-1), "initial_value=-1: the first rate must be a number above 0"),
        (lambda: Plateau(0.1, direction="mn"), "direction='mn': .*Did you mean 'min'"),
        (lambda: Plateau(0.1, patience=-1), "patience=-1: give a whole number, 0 or more"),
    ],
)
def test_wrong_numbers_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# ---------------------------------------------------------------------------------------------- with a metric


def test_newbob_by_hand() -> None:
    schedule = NewBob(1.0, annealing_factor=0.5, improvement_threshold=0.1)
    losses = [10.0, 8.0, 7.9, 7.9, 6.0, 7.0]
    #         first  0.2  0.0125 0.0  0.24 -0.17
    assert [schedule(loss)[1] for loss in losses] == [1.0, 1.0, 0.5, 0.25, 0.25, 0.125]


def test_newbob_lets_epochs_pass() -> None:
    schedule = NewBob(1.0, patience=2)
    assert [schedule(5.0)[1] for _ in range(8)] == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25]


@pytest.mark.parametrize(
    "make", [NewBob, lambda rate, direction: Plateau(rate, patience=0, direction=direction)]
)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_higher_can_be_better_and_metrics_can_be_negative(make: Any, sign: float) -> None:
    down, up = make(1.0, direction="min"), make(1.0, direction="max")
    metrics = [sign * metric for metric in (3.0, 2.0, 2.5, 1.0, 1.0, 4.0)]
    assert [down(metric) for metric in metrics] == [up(-metric) for metric in metrics]


@pytest.mark.parametrize("schedule", [NewBob(1.0), Plateau(1.0, patience=0)], ids=["NewBob", "Plateau"])
def test_nan_is_no_improvement_and_said_once(
    schedule: MetricSchedule, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="brainlib"):
        rates = [schedule(metric)[1] for metric in (4.0, math.nan, math.inf, 3.0)]
    assert rates == [1.0, 0.5, 0.25, 0.25]
    assert [record.getMessage() for record in caplog.records] == [
        f"the metric that {type(schedule).__name__} follows is nan: it counts as no improvement (said once)"
    ]


@pytest.mark.parametrize("schedule", [NewBob(1.0), Plateau(1.0)], ids=["NewBob", "Plateau"])
def test_without_its_metric_it_is_an_error(schedule: MetricSchedule) -> None:
    name = type(schedule).__name__
    with pytest.raises(
        ValueError, match=f"{name} follows a metric, and was called without one: give it the metric"
    ):
        schedule()
    with pytest.raises(ValueError, match=f"{name} takes one number as its metric, not 'low'"):
        schedule("low")  # type: ignore[arg-type]
    assert schedule(torch.tensor([2.0])) == (1.0, 1.0)


@pytest.mark.parametrize(
    "make", [lambda: NewBob(1.0, patience=1), lambda: Plateau(1.0, patience=1, cooldown=1)]
)
@pytest.mark.parametrize("k", range(1, 8))
def test_first_k_save_restore_rest_equals_all(make: Callable[[], MetricSchedule], k: int) -> None:
    metrics = [4.0, 3.0, 3.0, 3.0, math.nan, 3.0, 2.0, 2.0, 2.0]
    whole = make()
    everything = [whole(metric) for metric in metrics]
    first, second = make(), make()
    head = [first(metric) for metric in metrics[:k]]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert head + [second(metric) for metric in metrics[k:]] == everything
    assert second.state_dict() == whole.state_dict()


def test_state_of_another_schedule_is_refused() -> None:
    schedule = Plateau(1.0)
    with pytest.raises(
        ValueError, match="state of Plateau must have the keys 'best', 'cooling', 'value', 'waited'"
    ):
        schedule.load_state_dict(NewBob(0.5).state_dict())
    assert schedule.value == 1.0


# ----------------------------------------------------------------------------------------------------- by hand


def test_update_learning_rate() -> None:
    optimizer = optimizer_with(0.1, 0.2, 0.3)
    update_learning_rate(optimizer, 0.5, param_group=1)
    update_learning_rate(optimizer, 0.7, param_group=[2])
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.5, 0.7]
    update_learning_rate(optimizer, 0)
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="param_group=3: this SGD has 3 parameter groups, counted from 0"):
        update_learning_rate(optimizer, 0.1, param_group=3)
    with pytest.raises(ValueError, match="must be a finite number, 0 or more, not nan"):
        update_learning_rate(optimizer, math.nan)


def test_a_rate_in_a_tensor_stays_the_same_tensor() -> None:
    rate = torch.tensor(0.1)
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    update_learning_rate(optimizer, 0.25)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate == 0.25
