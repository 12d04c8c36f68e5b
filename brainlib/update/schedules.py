"""Learning-rate schedules: pure functions of how far a run is, and two that follow a metric.

A pure schedule is an object with its parameters inside that is called with a count, `done`: how many updates (or
epochs; the unit is the caller's) were made before the one that is coming, so 0 for the first. That is what torch calls
``last_epoch``, and what a function for `torch.optim.lr_scheduler.LambdaLR` takes. It returns a *factor* for the rate
that the optimizer was made with, and remembers nothing: a run that goes on in the middle asks with the same count and
gets the same rate.

`NewBob` and `Plateau` follow a metric, so they have a memory and save it. They are called as SpeechBrain's are: with
the metric of an epoch, and they return ``(old, new)`` rates.

`brainlib.learning_rate.LearningRate` applies any of them to an optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, SupportsFloat

from torch import Tensor
from torch.optim import Optimizer

from brainlib.common.errors import nearest, quoted
from brainlib.common.logs import logger

__all__ = [
    "Cosine",
    "Linear",
    "MetricSchedule",
    "NewBob",
    "Noam",
    "Plateau",
    "WarmUp",
    "update_learning_rate",
]


# ------------------------------------------------------------------------------------------- functions of a count


@dataclass(frozen=True)
class WarmUp:
    """The rate grows in equal steps to its full value, and stays there.

    factor(done) = min(1, (done + 1) / num_warmup). The first update has the factor 1 / num_warmup and not 0, so that
    it is not made for nothing. Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.2
    (https://arxiv.org/abs/1706.02677).

    Args:
        num_warmup: updates until the full rate; 1 or more. Try 500 to 25,000, or the updates of one epoch.

    Raises:
        ValueError: for a count that is no whole number in its range.

    Example:
        >>> schedule = WarmUp(num_warmup=4)
        >>> [schedule(done) for done in range(6)]
        [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """

    num_warmup: int

    def __post_init__(self) -> None:
        _check_counts(num_warmup=(self.num_warmup, 1))

    def __call__(self, done: int) -> float:
        """The factor of the update that comes after `done` others."""
        return min((done + 1) / self.num_warmup, 1.0)


@dataclass(frozen=True)
class Noam:
    """Warm-up, then a decay with the square root of the number of updates.

    With n = done + 1: factor(done) = scale · min(n^-0.5, n · num_warmup^-1.5). Vaswani et al. 2017, "Attention Is All
    You Need", equation 3 (https://arxiv.org/abs/1706.03762); Noam is the first name of one of its authors.

    Args:
        num_warmup: updates until the highest rate; 1 or more. The paper has 4,000, speech recipes up to 25,000.
        model_size: the width of the model (512 in the paper), as a number of dimensions. None: scale =
            num_warmup^0.5, so that the highest factor is 1 and the optimizer's own rate is the peak. With a size:
            scale = model_size^-0.5 as in the paper, for an optimizer whose rate is 1.

    Raises:
        ValueError: for a count that is no whole number in its range.

    Example:
        >>> schedule = Noam(num_warmup=4)
        >>> [schedule(done) for done in (0, 1, 3, 15)]
        [0.25, 0.5, 1.0, 0.5]
        >>> round(Noam(num_warmup=4000, model_size=512)(3999), 6)
        0.000699
    """

    num_warmup: int
    model_size: int | None = None

    def __post_init__(self) -> None:
        _check_counts(num_warmup=(self.num_warmup, 1))
        if self.model_size is not None:
            _check_counts(model_size=(self.model_size, 1))

    def __call__(self, done: int) -> float:
        """The factor of the update that comes after `done` others."""
        n, num_warmup = done + 1, self.num_warmup
        scale = num_warmup**0.5 if self.model_size is None else self.model_size**-0.5
        return float(scale * min(n**-0.5, n * num_warmup**-1.5))


@dataclass(frozen=True)
class Linear:
    """Optional warm-up, then a straight line down to `final`, and that from there on.

    With p = min((done - num_warmup) / (num_total - num_warmup), 1): factor(done) = 1 + (final - 1) · p; before it the
    ramp of `WarmUp`. As in Devlin et al. 2019, "BERT" (https://arxiv.org/abs/1810.04805); without a warm-up it is
    `torch.optim.lr_scheduler.LinearLR` with ``start_factor=1, end_factor=final, total_iters=num_total``.

    Args:
        num_total: updates of the whole schedule, the warm-up included. What comes later has the factor `final`, so
            with a `final` of 0 a run that is made longer learns nothing more.
        final: the last factor; 0 or more. Try 0.
        num_warmup: updates of the warm-up; 0 or more.

    Raises:
        ValueError: for a count that is no whole number in its range, or a negative factor.

    Example:
        >>> schedule = Linear(num_total=6, num_warmup=2)
        >>> [schedule(done) for done in range(8)]
        [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """

    num_total: int
    final: float = 0.0
    num_warmup: int = 0

    def __post_init__(self) -> None:
        _check_decay(self.num_total, self.final, self.num_warmup)

    def __call__(self, done: int) -> float:
        """The factor of the update that comes after `done` others."""
        if done < self.num_warmup:
            return (done + 1) / self.num_warmup
        return 1.0 + (self.final - 1.0) * _share(done, self.num_warmup, self.num_total)


@dataclass(frozen=True)
class Cosine:
    """Optional warm-up, then half a cosine down to `final`, and that from there on.

    With p as for `Linear`: factor(done) = final + (1 - final) · (1 + cos(π · p)) / 2. Loshchilov and Hutter 2017,
    "SGDR", equation 5, without restarts (https://arxiv.org/abs/1608.03983); without a warm-up it is
    `torch.optim.lr_scheduler.CosineAnnealingLR` with ``T_max=num_total`` and ``eta_min=final · rate`` up to
    `num_total`, after which torch's goes up again and this one does not.

    Args:
        num_total: updates of the whole schedule, the warm-up included.
        final: the last factor; 0 or more. Try 0 to 0.1.
        num_warmup: updates of the warm-up; 0 or more.

    Raises:
        ValueError: for a count that is no whole number in its range, or a negative factor.

    Example:
        >>> schedule = Cosine(num_total=4, final=0.2)
        >>> [round(schedule(done), 3) for done in range(6)]
        [1.0, 0.883, 0.6, 0.317, 0.2, 0.2]
    """

    num_total: int
    final: float = 0.0
    num_warmup: int = 0

    def __post_init__(self) -> None:
        _check_decay(self.num_total, self.final, self.num_warmup)

    def __call__(self, done: int) -> float:
        """The factor of the update that comes after `done` others."""
        if done < self.num_warmup:
            return (done + 1) / self.num_warmup
        share = _share(done, self.num_warmup, self.num_total)
        return self.final + (1.0 - self.final) * (1.0 + math.cos(math.pi * share)) / 2.0


# ------------------------------------------------------------------------------------------ followers of a metric


class MetricSchedule:
    """A rate that follows a metric, such as the validation loss. This one never moves; a variant overrides `lower`.

    Args:
        initial_value: the first rate.
        direction: "min" when a lower metric is better (loss, error rate), "max" when a higher one is (accuracy).

    Raises:
        ValueError: for a rate that is not positive, or another direction.

    Attributes:
        value: the current rate.

    Example:
        >>> schedule = MetricSchedule(0.1)
        >>> schedule(2.5)
        (0.1, 0.1)
    """

    # What changes, and is saved; a variant adds its own.
    _remembered: ClassVar[tuple[str, ...]] = ("value",)

    def __init__(self, initial_value: float, direction: str = "min") -> None:
        if not initial_value > 0:
            raise ValueError(f"initial_value={initial_value!r}: the first rate must be a number above 0")
        if direction not in ("min", "max"):
            raise ValueError(
                f"direction={direction!r}: give 'min' when a lower metric is better (loss, error rate), or 'max' when "
                f"a higher one is (accuracy).{nearest(str(direction), ('min', 'max'))}"
            )
        self.value = float(initial_value)
        self.direction = direction
        self._told_not_finite = False

    def __call__(self, metric: SupportsFloat | None = None) -> tuple[float, float]:
        """Take the metric of an epoch.

        Args:
            metric: a number, or a tensor or array with one element. One that is not finite counts as no improvement.

        Returns:
            The rate that was used in that epoch, and the one for the next.

        Raises:
            ValueError: when there is no metric, or it is not one number.
        """
        old, self.value = self.value, self.lower(self._badness(metric))
        return old, self.value

    def lower(self, badness: float) -> float:
        """The next rate.

        Args:
            badness: the metric, with its sign turned where higher is better: lower is better here. Infinite for a
                metric that was not finite.
        """
        return self.value

    def _badness(self, metric: SupportsFloat | None) -> float:
        name = type(self).__name__
        if metric is None:
            raise ValueError(
                f"{name} follows a metric, and was called without one: give it the metric of the epoch, such as the "
                "loss that on_stage_end(Stage.VALID, loss, epoch) gets"
            )
        try:
            value = float(metric)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{name} takes one number as its metric, not {metric!r}") from error
        if math.isfinite(value):
            return value if self.direction == "min" else -value
        if not self._told_not_finite:
            logger.warning(
                "the metric that %s follows is %s: it counts as no improvement (said once)", name, value
            )
        self._told_not_finite = True
        return math.inf

    def state_dict(self) -> dict[str, Any]:
        """What has to survive a restart, in plain values."""
        return {name.lstrip("_"): getattr(self, name) for name in self._remembered}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` returned; missing or leftover keys are an error and change nothing."""
        expected = {name.lstrip("_") for name in self._remembered}
        if set(state) != expected:
            raise ValueError(
                f"the saved state of {type(self).__name__} must have the keys {quoted(sorted(expected))}; this one has "
                f"{quoted(sorted(map(str, state)))}"
            )
        for name in self._remembered:
            setattr(self, name, state[name.lstrip("_")])


class NewBob(MetricSchedule):
    """The rate is multiplied by a factor after each epoch that improved too little over the one before it.

    improvement = (before - now) / |before| for a metric that is better when lower, with the sign turned otherwise. A
    recipe of hybrid speech recognition (Bourlard and Morgan 1994, "Connectionist Speech Recognition"); there are
    several variants, and this one has the names and rules of SpeechBrain's ``NewBobScheduler``.

    Args:
        initial_value: the first rate.
        annealing_factor: what the rate is multiplied by; above 0 and below 1. Try 0.5 to 0.8.
        improvement_threshold: the relative improvement that is enough; 0 or more. Try 0.0025.
        patience: how many epochs without enough improvement are let pass before each annealing; try 0.
        direction: "min" when a lower metric is better, "max" when a higher one is.

    Raises:
        ValueError: for numbers out of their range.

    Example:
        >>> schedule = NewBob(0.1)
        >>> [schedule(loss) for loss in (10.0, 9.0, 8.99, 8.0)]
        [(0.1, 0.1), (0.1, 0.1), (0.1, 0.05), (0.05, 0.05)]
    """

    _remembered = ("value", "_previous", "_let_pass")

    def __init__(
        self,
        initial_value: float,
        annealing_factor: float = 0.5,
        improvement_threshold: float = 0.0025,
        patience: int = 0,
        direction: str = "min",
    ) -> None:
        super().__init__(initial_value, direction)
        _check_factor("annealing_factor", annealing_factor)
        _check_not_negative(improvement_threshold=improvement_threshold)
        _check_counts(patience=(patience, 0))
        self.annealing_factor = annealing_factor
        self.improvement_threshold = improvement_threshold
        self.patience = patience
        self._previous: float | None = None  # the last finite one
        self._let_pass = 0  # epochs since the last annealing

    def lower(self, badness: float) -> float:
        """The next rate."""
        before = self._previous
        if math.isfinite(badness):
            self._previous = badness
        if before is None:
            return self.value
        gain = before - badness
        if gain > 0 and gain >= self.improvement_threshold * abs(before):
            return self.value
        if self._let_pass < self.patience:
            self._let_pass += 1
            return self.value
        self._let_pass = 0
        return self.value * self.annealing_factor


class Plateau(MetricSchedule):
    """The rate is multiplied by a factor when the metric has not beaten its best for more than `patience` epochs.

    The rule of `torch.optim.lr_scheduler.ReduceLROnPlateau` in its relative mode, right for negative metrics too: an
    improvement is a gain of more than threshold · |best|.

    Args:
        initial_value: the first rate.
        factor: what the rate is multiplied by; above 0 and below 1. Try 0.1 to 0.5.
        patience: epochs without improvement that are let pass; 0 or more. Try 2 to 10.
        threshold: the relative improvement that counts; 0 or more. Try 1e-4.
        cooldown: epochs after a reduction in which waiting is not counted; try 0.
        min_value: the rate does not fall below this.
        direction: "min" when a lower metric is better, "max" when a higher one is.

    Raises:
        ValueError: for numbers out of their range.

    Example:
        >>> schedule = Plateau(0.1, factor=0.5, patience=1)
        >>> [schedule(loss)[1] for loss in (3.0, 2.0, 2.0, 2.0, 2.0, 2.0)]
        [0.1, 0.1, 0.1, 0.05, 0.05, 0.025]
    """

    _remembered = ("value", "_best", "_waited", "_cooling")

    def __init__(
        self,
        initial_value: float,
        factor: float = 0.5,
        patience: int = 2,
        threshold: float = 1e-4,
        cooldown: int = 0,
        min_value: float = 0.0,
        direction: str = "min",
    ) -> None:
        super().__init__(initial_value, direction)
        _check_factor("factor", factor)
        _check_not_negative(threshold=threshold, min_value=min_value)
        _check_counts(patience=(patience, 0), cooldown=(cooldown, 0))
        self.factor, self.patience, self.threshold = factor, patience, threshold
        self.cooldown, self.min_value = cooldown, min_value
        self._best: float | None = None
        self._waited = 0
        self._cooling = 0

    def lower(self, badness: float) -> float:
        """The next rate."""
        best = self._best
        if math.isfinite(badness) and (best is None or best - badness > self.threshold * abs(best)):
            self._best, self._waited = badness, 0
        else:
            self._waited += 1
        if self._cooling:
            self._cooling -= 1
            self._waited = 0
        if self._waited <= self.patience:
            return self.value
        self._cooling, self._waited = self.cooldown, 0
        return min(max(self.value * self.factor, self.min_value), self.value)


# ----------------------------------------------------------------------------------------------------- by hand


def update_learning_rate(
    optimizer: Optimizer, new_lr: float, param_group: int | Sequence[int] | None = None
) -> None:
    """Give parameter groups of an optimizer a new rate: what follows ``old, new = schedule(...)`` in a hook.

    Args:
        optimizer: any torch optimizer.
        new_lr: the rate; 0 or more.
        param_group: the number of a parameter group, or several; None: all of them.

    Raises:
        ValueError: for a rate that is negative or not finite, or a group that is not there.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        >>> old, new = NewBob(0.1)(1.0)
        >>> update_learning_rate(optimizer, new / 2)
        >>> optimizer.param_groups[0]["lr"]
        0.05
    """
    if not (math.isfinite(new_lr) and new_lr >= 0):
        raise ValueError(f"the learning rate must be a finite number, 0 or more, not {new_lr!r}")
    groups = optimizer.param_groups
    if param_group is None:
        numbers: Sequence[int] = range(len(groups))
    else:
        numbers = [param_group] if isinstance(param_group, int) else param_group
    for number in numbers:
        if not 0 <= number < len(groups):
            raise ValueError(
                f"param_group={number}: this {type(optimizer).__name__} has {len(groups)} parameter groups, counted "
                "from 0"
            )
        rate = groups[number]["lr"]
        if isinstance(
            rate, Tensor
        ):  # where the optimizer is compiled or captured, the tensor must stay the same
            rate.fill_(new_lr)
        else:
            groups[number]["lr"] = float(new_lr)


# ---------------------------------------------------------------------------------------------------- small matters


def _share(done: int, num_warmup: int, num_total: int) -> float:
    """How much of the decay is over, from 0 to 1."""
    return min((done - num_warmup) / (num_total - num_warmup), 1.0)


def _check_decay(num_total: int, final: float, num_warmup: int) -> None:
    _check_counts(num_warmup=(num_warmup, 0))
    _check_counts(num_total=(num_total, num_warmup + 1))
    _check_not_negative(final=final)


def _check_counts(**counts: tuple[int, int]) -> None:
    """Each is a name with a value and the least that is allowed."""
    for name, (value, least) in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}={value!r}: give a whole number, {least} or more")


def _check_not_negative(**numbers: float) -> None:
    for name, value in numbers.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name}={value!r}: give a finite number, 0 or more")


def _check_factor(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name}={value!r}: give a number above 0 and below 1")
