"""Triggers say when: a small object that is asked after every update and after every closed epoch.

A trigger looks at the counters of the run and remembers the last value it looked at, never a count of its own
calls. So it does not matter whether a call was missed, made twice, or whether the process was restarted in
between.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias, cast

from brainlib.common.errors import nearest, quoted

__all__ = [
    "CallTrigger",
    "Clock",
    "HasRunState",
    "IntervalTrigger",
    "LimitTrigger",
    "RunView",
    "Trigger",
    "TriggerSpec",
    "as_trigger",
]

Clock: TypeAlias = Callable[[], float]  # seconds, monotonic
Unit: TypeAlias = Literal["epoch", "step", "seconds"]

UNITS = ("epoch", "step", "seconds")
# What people from other trainers write; the error then names ours.
SYNONYMS = {"iteration": "step", "iterations": "step", "batch": "step", "second": "seconds", "s": "seconds"}


class RunView(Protocol):
    """The two counters that triggers look at."""

    @property
    def epoch(self) -> int:
        """Epochs closed in this fit."""

    @property
    def optimizer_step(self) -> int:
        """Updates made in the whole run."""


class HasRunState(Protocol):
    """What a trigger needs of the Brain."""

    @property
    def run_state(self) -> RunView:
        """The counters."""


class Trigger:
    """Says whether something is due. This one never is; a variant overrides `__call__`.

    One object belongs to one extension, because it remembers what it has seen.

    Example:
        >>> Trigger()(brain=None)
        False
    """

    def start(self, brain: HasRunState) -> None:
        """A fit starts (or goes on after a restart, with the state already loaded): what lies behind is not
        due.
        """

    def __call__(self, brain: HasRunState) -> bool:
        """Whether it is due now."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """What has to survive a restart, in plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` returned."""
        _check_keys(self, state, set())


class _Counter(Trigger):
    """What interval and limit share: the unit they count in."""

    def __init__(self, n: float, unit: str, *, clock: Clock = time.monotonic) -> None:
        self.n, self.unit = _checked(n, unit)
        self._clock = clock
        self._origin = clock()  # the moment at which index 0 was, for seconds
        self._seen: float | None = None  # the index when it last looked

    def start(self, brain: HasRunState) -> None:
        """What lies behind is not due."""
        if self.unit == "seconds":
            if self._clock is time.monotonic:  # several ranks go by one clock
                self._clock = getattr(brain.run_state, "clock", self._clock)
            # Only time inside fits counts, so the pause between two fits or two processes is taken out.
            self._origin = self._clock() - (self._seen or 0.0)
        elif self._seen is None or self._seen > self._index(brain):
            # Never started, or a new fit whose epochs are counted from 0 again. What was saved in this fit is
            # kept: a firing that was due when the process died is made up for.
            self._seen = self._index(brain)

    def _index(self, brain: HasRunState) -> float:
        """Where the run stands, in the trigger's unit."""
        if self.unit == "seconds":
            return self._clock() - self._origin
        return brain.run_state.epoch if self.unit == "epoch" else brain.run_state.optimizer_step

    def state_dict(self) -> dict[str, Any]:
        """What has to survive a restart, in plain values."""
        return {"unit": self.unit, "seen": self._seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` returned."""
        _check_keys(self, state, {"unit", "seen"})
        # `n` may change between two runs. Another unit is another trigger: nothing of the old one can be
        # used.
        self._seen = state["seen"] if state["unit"] == self.unit else None
        if self.unit == "seconds":
            self._origin = self._clock() - (self._seen or 0.0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n:g}, {self.unit!r})"


class IntervalTrigger(_Counter):
    """Due every `n` epochs, updates or seconds: at n, 2n, 3n … and, where a multiple was passed over, at
    once.

    Args:
        n: the distance; a whole number of epochs or steps, or any positive number of seconds.
        unit: "epoch" counts closed epochs of the fit, "step" counts updates of the whole run
            (``brain.run_state.optimizer_step``), "seconds" counts time spent in fits.
        clock: a function that returns seconds; tests pass their own.

    Raises:
        ValueError: for a distance that is not positive and for an unknown unit.

    Example:
        >>> from types import SimpleNamespace
        >>> brain = SimpleNamespace(run_state=SimpleNamespace(optimizer_step=0))
        >>> due = IntervalTrigger(2, "step")
        >>> due.start(brain)
        >>> for brain.run_state.optimizer_step in range(1, 7):
        ...     print(brain.run_state.optimizer_step, due(brain))
        1 False
        2 True
        3 False
        4 True
        5 False
        6 True
    """

    def __call__(self, brain: HasRunState) -> bool:
        """Whether it is due now."""
        index = self._index(brain)
        seen = self._seen
        if (
            seen is None or seen > index
        ):  # `start` was not called: all that can be behind us is the update before
            seen = max(index - 1, 0) if self.unit != "seconds" else 0.0
        self._seen = index
        return index // self.n > seen // self.n


class LimitTrigger(_Counter):
    """Due from `n` epochs, updates or seconds on.

    Args:
        n: the limit; a whole number of epochs or steps, or any positive number of seconds.
        unit: "epoch", "step" or "seconds", as for `IntervalTrigger`.
        clock: a function that returns seconds; tests pass their own.

    Raises:
        ValueError: for a limit that is not positive and for an unknown unit.

    Example:
        >>> from types import SimpleNamespace
        >>> brain = SimpleNamespace(run_state=SimpleNamespace(optimizer_step=2))
        >>> reached = LimitTrigger(3, "step")
        >>> reached(brain)
        False
        >>> brain.run_state.optimizer_step = 4
        >>> reached(brain)
        True
    """

    def __call__(self, brain: HasRunState) -> bool:
        """Whether it is due now."""
        self._seen = self._index(brain)
        return self._seen >= self.n


class CallTrigger(Trigger):
    """Due when a function of the Brain says so.

    Args:
        function: called with the Brain; its answer is read as true or false. If it has ``state_dict`` and
            ``load_state_dict``, its state is saved.

    Example:
        >>> CallTrigger(lambda brain: brain == "a brain")("a brain")
        True
    """

    def __init__(self, function: Callable[[Any], object]) -> None:
        self.function = function
        self._stateful = hasattr(function, "state_dict") and hasattr(function, "load_state_dict")

    def __call__(self, brain: HasRunState) -> bool:
        """Whether it is due now."""
        return bool(self.function(brain))

    def state_dict(self) -> dict[str, Any]:
        """What has to survive a restart, in plain values."""
        return dict(self.function.state_dict()) if self._stateful else {}  # type: ignore[attr-defined]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` returned."""
        if self._stateful:
            self.function.load_state_dict(state)  # type: ignore[attr-defined]
        else:
            super().load_state_dict(state)

    def __repr__(self) -> str:
        return f"CallTrigger({self.function!r})"


TriggerSpec: TypeAlias = (
    Trigger | Callable[[Any], object] | tuple[float, str] | list[Any] | None
)  # a list is what YAML makes of a pair


def as_trigger(spec: TriggerSpec, *, clock: Clock = time.monotonic) -> Trigger:
    """The trigger that `spec` stands for.

    Args:
        spec: a pair ``(n, unit)`` for every n epochs, steps or seconds; a function of the Brain; a `Trigger`;
            or None for never.
        clock: a function that returns seconds; tests pass their own.

    Raises:
        ValueError: when `spec` is none of these.

    Example:
        >>> as_trigger((1, "epoch")), as_trigger([0.5, "seconds"])
        (IntervalTrigger(1, 'epoch'), IntervalTrigger(0.5, 'seconds'))
        >>> as_trigger((1, "iteration"))
        Traceback (most recent call last):
        ...
        ValueError: a trigger cannot count in 'iteration'; the units are ... Did you mean 'step'?
    """
    if isinstance(spec, Trigger):
        return spec
    if spec is None:
        return Trigger()
    if isinstance(spec, (tuple, list)) and len(spec) == 2:
        return IntervalTrigger(spec[0], spec[1], clock=clock)
    if callable(spec) and not isinstance(spec, type):
        return CallTrigger(spec)
    hint = f" Pass an instance: {spec.__name__}(...)." if isinstance(spec, type) else ""
    raise ValueError(
        f"{spec!r} is no trigger. Give a pair such as (10, 'epoch'), (500, 'step') or (60, 'seconds'), a "
        f"function that takes the Brain and returns true or false, a Trigger, or None for never.{hint}"
    )


def _checked(n: object, unit: object) -> tuple[float, Unit]:
    if unit not in UNITS:
        hint = (
            f" Did you mean {SYNONYMS[str(unit)]!r}?" if str(unit) in SYNONYMS else nearest(str(unit), UNITS)
        )
        raise ValueError(f"a trigger cannot count in {unit!r}; the units are {quoted(UNITS)}.{hint}")
    whole = unit != "seconds"
    if (
        isinstance(n, bool)
        or not isinstance(n, (int, float))
        or not math.isfinite(n)
        or n <= 0
        or (whole and n != int(n))
    ):
        kind = f"a positive whole number of {unit}s" if whole else "a positive number of seconds"
        raise ValueError(f"a trigger that counts in {unit!r} takes {kind}, not {n!r}; for never, give None.")
    return (int(n) if whole else float(n)), cast(Unit, unit)


def _check_keys(owner: object, state: dict[str, Any], expected: set[str]) -> None:
    if set(state) != expected:
        raise ValueError(
            f"the saved state of a {type(owner).__name__} has the keys {quoted(sorted(map(str, state)))}, "
            f"not {quoted(sorted(expected))}: it was saved by another kind of trigger."
        )
