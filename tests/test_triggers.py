"""Triggers: the first due step fires, after a restart too, and nothing fires twice."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from brainlib.triggers import CallTrigger, IntervalTrigger, LimitTrigger, Trigger, as_trigger


def at(step: int = 0, epoch: int = 0) -> Any:
    """What a trigger needs of a Brain."""
    return SimpleNamespace(run_state=SimpleNamespace(optimizer_step=step, epoch=epoch))


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def fired(trigger: Trigger, steps: range) -> list[int]:
    return [step for step in steps if trigger(at(step))]


def restarted(trigger: IntervalTrigger, **kwargs: Any) -> IntervalTrigger:
    """The same trigger in a new process."""
    again = IntervalTrigger(trigger.n, trigger.unit, **kwargs)
    again.load_state_dict(json.loads(json.dumps(trigger.state_dict())))
    return again


# ------------------------------------------------------------------------------------------------------- interval


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("started", [True, False])
def test_the_first_due_step_fires_and_then_every_nth(n: int, started: bool) -> None:
    trigger = as_trigger((n, "step"))
    if started:
        trigger.start(at(0))
    assert fired(trigger, range(1, 13)) == [step for step in range(1, 13) if step % n == 0]


@pytest.mark.parametrize("cut", range(31))
def test_a_restart_anywhere_fires_at_the_same_steps(cut: int) -> None:
    first = IntervalTrigger(10, "step")
    first.start(at(0))
    before = fired(first, range(1, cut + 1))
    second = restarted(first)
    second.start(at(cut))
    assert before + fired(second, range(cut + 1, 31)) == [10, 20, 30]


def test_a_trigger_without_saved_state_takes_up_the_rhythm_where_the_run_stands() -> None:
    trigger = IntervalTrigger(10, "step")
    trigger.start(at(9))
    assert fired(trigger, range(10, 25)) == [10, 20]

    trigger = IntervalTrigger(10, "step")
    trigger.start(at(10))  # step 10 was before
    assert fired(trigger, range(10, 25)) == [20]


def test_one_that_was_due_when_the_process_died_is_made_up_for() -> None:
    first = IntervalTrigger(10, "step")
    fired(first, range(1, 10))  # it was not asked at step 10, at which the run was saved
    second = restarted(first)
    second.start(at(10))
    assert fired(second, range(11, 25)) == [11, 20]


def test_asked_twice_at_one_step_it_fires_once() -> None:
    trigger = IntervalTrigger(2, "step")
    assert [trigger(at(step)) for step in (1, 1, 2, 2, 3, 4)] == [False, False, True, False, False, True]


def test_multiples_that_were_passed_over_fire_once_and_at_once() -> None:
    trigger = IntervalTrigger(4, "step")
    trigger.start(at(0))
    assert fired(trigger, range(1, 40, 3)) == [4, 10, 13, 16, 22, 25, 28, 34, 37]


def test_the_interval_may_change_between_two_runs() -> None:
    first = IntervalTrigger(10, "step")
    fired(first, range(1, 13))
    second = IntervalTrigger(5, "step")
    second.load_state_dict(first.state_dict())
    second.start(at(12))
    assert fired(second, range(13, 26)) == [15, 20, 25]


def test_another_unit_starts_afresh() -> None:
    first = IntervalTrigger(10, "step")
    fired(first, range(1, 100))
    second = IntervalTrigger(1, "epoch")
    second.load_state_dict(first.state_dict())
    second.start(at(99, epoch=2))
    assert not second(at(100, epoch=2)) and second(at(120, epoch=3))


def test_epochs_are_those_of_the_fit_also_of_the_second_one() -> None:
    trigger = as_trigger((1, "epoch"))
    trigger.start(at(0, epoch=0))
    assert [trigger(at(10 * epoch, epoch)) for epoch in (0, 1, 1, 2, 3)] == [False, True, False, True, True]
    trigger.start(at(30, epoch=0))  # a second fit
    assert [trigger(at(31, epoch)) for epoch in (0, 1, 2)] == [False, True, True]


def test_an_epoch_of_one_update_is_not_lost() -> None:
    trigger = IntervalTrigger(1, "epoch")
    assert trigger(at(1, epoch=1))


def test_seconds_keep_their_rhythm_and_a_long_step_fires_once() -> None:
    clock = Clock()
    trigger = as_trigger((60, "seconds"), clock=clock)
    trigger.start(at())
    answers = []
    for elapsed in (0, 59, 60, 61, 119, 121, 500, 539, 541):
        clock.now = 1000.0 + elapsed
        answers.append(trigger(at()))
    assert answers == [False, False, True, False, False, True, True, False, True]


def test_only_seconds_inside_fits_count() -> None:
    clock = Clock()
    first = IntervalTrigger(60, "seconds", clock=clock)
    clock.now += 500  # preparation
    first.start(at())
    clock.now += 50
    assert not first(at())

    clock.now = 7.0  # another process, days later; its clock begins anywhere
    second = restarted(first, clock=clock)
    clock.now += 30  # loading
    second.start(at())
    clock.now += 9
    assert not second(at())
    clock.now += 2
    assert second(at())


# ---------------------------------------------------------------------------------------------------------- limit


def test_a_limit_is_due_from_there_on() -> None:
    assert fired(LimitTrigger(3, "step"), range(6)) == [3, 4, 5]
    assert [LimitTrigger(2, "epoch")(at(9, epoch)) for epoch in range(4)] == [False, False, True, True]


def test_a_limit_in_seconds_goes_on_after_a_restart() -> None:
    clock = Clock()
    first = LimitTrigger(60, "seconds", clock=clock)
    first.start(at())
    clock.now += 40
    assert not first(at())
    second = LimitTrigger(60, "seconds", clock=clock)
    second.load_state_dict(first.state_dict())
    clock.now += 1000
    second.start(at())
    clock.now += 19
    assert not second(at())
    clock.now += 1
    assert second(at()) and second(at())


# -------------------------------------------------------------------------------------------------------- function


class Best:
    """A function with a memory."""

    def __init__(self) -> None:
        self.best = 0

    def __call__(self, brain: Any) -> bool:
        better = brain.run_state.optimizer_step > self.best
        self.best = max(self.best, brain.run_state.optimizer_step)
        return better

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = state["best"]


def test_a_function_is_asked_each_time() -> None:
    trigger = as_trigger(lambda brain: brain.run_state.optimizer_step in (2, 3))
    assert fired(trigger, range(5)) == [2, 3]
    assert trigger.state_dict() == {}


def test_the_state_of_a_function_is_saved_if_it_has_one() -> None:
    first = as_trigger(Best())
    fired(first, range(4))
    second = as_trigger(Best())
    second.load_state_dict(first.state_dict())
    assert fired(second, range(6)) == [4, 5]


def test_none_is_never_and_a_trigger_is_itself() -> None:
    assert fired(as_trigger(None), range(100)) == []
    mine = LimitTrigger(3, "step")
    assert as_trigger(mine) is mine
    assert isinstance(as_trigger(print), CallTrigger)


# ----------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            (1, "iteration"),
            r"cannot count in 'iteration'; the units are 'epoch', 'step', 'seconds'. Did you mean 'step'\?",
        ),
        ((1, "epochs"), r"Did you mean 'epoch'\?"),
        ((0, "step"), "takes a positive whole number of steps, not 0; for never, give None"),
        ((-1, "epoch"), "takes a positive whole number of epochs, not -1"),
        ((1.5, "epoch"), "takes a positive whole number of epochs, not 1.5"),
        ((True, "step"), "takes a positive whole number of steps, not True"),
        (("10", "step"), "takes a positive whole number of steps, not '10'"),
        ((0, "seconds"), "takes a positive number of seconds, not 0"),
        ((float("nan"), "seconds"), "takes a positive number of seconds, not nan"),
        (10, r"10 is no trigger. Give a pair such as \(10, 'epoch'\)"),
        ((1, 2, 3), "is no trigger"),
        ("epoch", "'epoch' is no trigger"),
        (Best, r"is no trigger.*Pass an instance: Best\(\.\.\.\)"),
    ],
)
def test_what_is_no_trigger(spec: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_trigger(spec)


def test_a_float_that_is_whole_is_taken() -> None:
    assert as_trigger((2.0, "epoch")).state_dict() == {"unit": "epoch", "seen": None}
    assert repr(as_trigger([1e3, "step"])) == "IntervalTrigger(1000, 'step')"


def test_a_state_with_other_keys_is_refused() -> None:
    with pytest.raises(
        ValueError, match="state of a IntervalTrigger has the keys 'unit', not 'seen', 'unit'"
    ):
        IntervalTrigger(1, "step").load_state_dict({"unit": "step"})
    with pytest.raises(ValueError, match="state of a CallTrigger has the keys 'x', not none"):
        as_trigger(print).load_state_dict({"x": 1})
