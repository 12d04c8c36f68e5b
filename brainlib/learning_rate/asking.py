"""How each kind of schedule is asked for a rate, and what of it is saved."""

from __future__ import annotations

import functools
import inspect
import math
from typing import Any, Literal, TypeAlias

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from brainlib.checkpoint.recoverables import Kind, ParameterNames, class_name, kind_of
from brainlib.checkpoint.states import clone
from brainlib.common.errors import nearest
from brainlib.common.logs import logger
from brainlib.update.schedules import Cosine, Linear, MetricSchedule, Noam, WarmUp

__all__ = ["Gives", "Way", "check", "needs_metric", "no_use_for_metric", "way_of_asking"]

Gives: TypeAlias = Literal["factor", "rate"]


class Way:
    """How a function of a count is asked; the other kinds say what differs.

    Args:
        schedule: what is asked.
        gives: what a single number means; None: a factor.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    >>> Way(WarmUp(num_warmup=2), gives=None).apply(optimizer, done=0, metrics=[])
    >>> optimizer.param_groups[0]["lr"]
    0.25
    """

    follows_metric = False

    def __init__(self, schedule: Any, gives: Gives | None) -> None:
        self.schedule = schedule
        self.gives = gives
        self._at: int | None = None  # the count that `_value` is for
        self._value: float | None = None
        self._is_rate = False
        self._waiting: dict[str, Any] | None = None  # a state that came before the schedule was there

    def open(self, optimizer: Optimizer, done: int) -> None:
        """A fit starts."""

    def apply(self, optimizer: Optimizer, done: int, metrics: list[float]) -> None:
        """The rate for the update that comes after `done` others."""
        if done != self._at:
            self._take(self._ask(done))
            self._at = done
        self._write(optimizer)

    def _ask(self, argument: Any) -> Any:
        try:
            return self.schedule(argument)
        except TypeError as error:
            raise ValueError(
                f"the schedule {self.schedule!r} could not be called with {argument!r} ({error}). It is called with "
                "a count, or with the metric where one is given; a function that makes a torch scheduler calls its "
                "argument `optimizer`: lambda optimizer: StepLR(optimizer, 10)"
            ) from error

    def _take(self, answer: Any) -> None:
        """A number, or SpeechBrain's pair, of which the second counts."""
        is_pair = isinstance(answer, (tuple, list)) and len(answer) == 2
        try:
            value = float(answer[1] if is_pair else answer)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"the schedule {self.schedule!r} returned {answer!r}; it must return a factor, or a pair (old, new) "
                "of rates"
            ) from error
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(
                f"the schedule {self.schedule!r} returned {answer!r}; a learning rate must be finite, and 0 or more"
            )
        self._value = value
        self._is_rate = is_pair if self.gives is None else self.gives == "rate"

    def _write(self, optimizer: Optimizer) -> None:
        """Into all groups, each time: a group may have been added, or a checkpoint loaded."""
        value = self._value
        if value is None:
            return
        for group in optimizer.param_groups:
            base = group.get("initial_lr")  # torch's name for it: saved with the optimizer
            if base is None:
                base = group["initial_lr"] = (
                    group["lr"].clone() if isinstance(group["lr"], Tensor) else group["lr"]
                )
            rate = value if self._is_rate else base * value
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    # ---- state

    def kind(self) -> str:
        """What the state is of, which another kind cannot use; empty where nothing is remembered."""
        return f"{type(self).__name__} {class_name(self.schedule)}" if self._remembers() else ""

    def state_dict(self) -> dict[str, Any]:
        """The memory of the schedule, if it has one."""
        if self._waiting is not None:
            return self._waiting
        return {"kind": self.kind(), **(self._memory() if self._remembers() else {})}

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Put back what `state_dict` returned, and say whether it fitted: one of another kind is left alone."""
        self._at = self._value = None
        if state["kind"] == self.kind():
            if self._remembers():
                self._remember(state)
            return True
        if state["kind"]:
            logger.warning(
                "the checkpoint holds the state of another schedule (%s); the one of now starts afresh",
                state["kind"],
            )
        return False

    def _remembers(self) -> bool:
        return _has_state(self.schedule)  # a pure function is asked again, and gives the same

    def _memory(self) -> dict[str, Any]:
        answer = None if self._value is None else [self._value, self._is_rate]
        memory = {"schedule": self.schedule.state_dict()} if _has_state(self.schedule) else {}
        return {"at": self._at, "answer": answer, **memory}

    def _remember(self, state: dict[str, Any]) -> None:
        self._at = state["at"]
        if state["answer"] is not None:
            self._value, self._is_rate = state["answer"]
        if "schedule" in state:
            self.schedule.load_state_dict(state["schedule"])


class OfMetric(Way):
    """A function of a metric, called once for each."""

    follows_metric = True

    def apply(self, optimizer: Optimizer, done: int, metrics: list[float]) -> None:
        if self._value is None and isinstance(self.schedule, MetricSchedule):
            self._take((None, self.schedule.value))
        for metric in metrics:
            self._take(self._ask(metric))
        self._write(optimizer)

    def _remembers(self) -> bool:
        return True


class OfOptimizer(Way):
    """An object that is called with the optimizer, once before each update, and counts its own calls."""

    def apply(self, optimizer: Optimizer, done: int, metrics: list[float]) -> None:
        for _ in range(1 if self._at is None else done - self._at):
            self.schedule(optimizer)
        self._at = done

    def _remembers(self) -> bool:
        return True


class OfTorch(Way):
    """A torch scheduler, made when the optimizer is there and stepped once for each update or epoch that was made."""

    def __init__(self, factory: Any, gives: Gives | None) -> None:
        super().__init__(None, gives)
        self._factory = factory

    def open(self, optimizer: Optimizer, done: int) -> None:
        if self.schedule is not None:
            if self.schedule.optimizer is not optimizer:
                raise ValueError(
                    f"the optimizer was replaced between two fits, and its {type(self.schedule).__name__} belongs to "
                    "the old one; keep one optimizer, or use a function of the count as the schedule"
                )
            return
        # Making a scheduler sets the rate to its first one (and the momentum, for some): wrong in a run that goes on.
        before = [
            {key: clone(value) for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]
        scheduler = self._factory(optimizer)
        if not isinstance(scheduler, LRScheduler):
            raise ValueError(
                f"the schedule {self._factory!r} was called with the optimizer and returned {scheduler!r}; it must "
                "return a torch scheduler. A function of the count must not call its argument `optimizer`"
            )
        self.schedule = scheduler
        self.follows_metric = isinstance(scheduler, ReduceLROnPlateau)
        waiting, self._waiting = self._waiting, None
        if waiting is not None and self.load_state_dict(waiting):
            for group, kept in zip(optimizer.param_groups, before, strict=True):
                for key, value in kept.items():
                    if isinstance(group.get(key), Tensor):
                        group[key].copy_(value)
                    else:
                        group[key] = value

    def apply(self, optimizer: Optimizer, done: int, metrics: list[float]) -> None:
        if self.follows_metric:
            for metric in metrics:
                self.schedule.step(metric)
        else:
            for _ in range(0 if self._at is None else done - self._at):
                self.schedule.step()
        self._at = done

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        if self.schedule is None:
            self._waiting = state
            return True
        return super().load_state_dict(state)

    def _remembers(self) -> bool:
        return self.schedule is not None

    def _memory(self) -> dict[str, Any]:
        return {"at": self._at, "schedule": _kind(self.schedule).state(self.schedule, ParameterNames({}))}

    def _remember(self, state: dict[str, Any]) -> None:
        kind, names = _kind(self.schedule), ParameterNames({})
        if problems := kind.problems(self.schedule, state["schedule"], names):
            raise ValueError(
                f"the saved state of a {type(self.schedule).__name__} does not fit: " + "; ".join(problems)
            )
        self._at = state["at"]
        kind.apply(self.schedule, state["schedule"], names)


def _kind(scheduler: LRScheduler) -> Kind:
    kind = kind_of(scheduler)
    assert kind is not None
    return kind


def way_of_asking(schedule: Any, with_metric: bool, gives: Gives | None) -> Way:
    """The way that fits a schedule.

    >>> way = way_of_asking(lambda optimizer: None, with_metric=False, gives=None)
    >>> type(way).__name__, type(way_of_asking(WarmUp(3), with_metric=False, gives=None)).__name__
    ('OfTorch', 'Way')
    """
    if _makes_scheduler(schedule):
        return OfTorch(schedule, gives)
    if _first_argument(schedule) in ("optimizer", "opt"):
        return OfOptimizer(schedule, gives)
    return (OfMetric if with_metric else Way)(schedule, gives)


def _makes_scheduler(schedule: Any) -> bool:
    """A scheduler class, or a function (a partial, a method) of an `optimizer`; an instance is no factory."""
    made = _made(schedule)
    if isinstance(made, type):
        return issubclass(made, LRScheduler)
    return inspect.isroutine(made) and _first_argument(schedule) in ("optimizer", "opt")


def _made(schedule: Any) -> Any:
    while isinstance(schedule, functools.partial):
        schedule = schedule.func
    return schedule


def _first_argument(schedule: Any) -> str | None:
    try:
        return next(iter(inspect.signature(schedule).parameters), None)
    except (TypeError, ValueError):  # some builtins have no signature
        return None


def _has_state(schedule: Any) -> bool:
    return all(callable(getattr(schedule, name, None)) for name in ("state_dict", "load_state_dict"))


def _name(schedule: Any) -> str:
    made = _made(schedule)
    return (made if isinstance(made, type) else type(made)).__name__


def no_use_for_metric(schedule: Any) -> str:
    """The words for a metric that the schedule does not take."""
    return f"a metric is given, and {_name(schedule)} has no use for it: leave `metric` out"


def needs_metric(schedule: Any) -> str:
    """The words for a schedule that lacks its metric."""
    return (
        f"{_name(schedule)} follows a metric, and none is given. Say where it stands when an epoch is over: "
        "LearningRate(..., metric='valid_loss') reads that attribute of the Brain, which on_stage_end has set; a "
        "function of the Brain is taken, too"
    )


def check(schedule: Any, per: Any, metric: Any, gives: Any) -> None:
    """Refuse what `LearningRate` cannot work with, as far as that can be seen before there is an optimizer.

    Raises:
        ValueError: for a schedule that is none, and arguments that do not go together.

    >>> check(WarmUp(3), per="batch", metric=None, gives=None)
    Traceback (most recent call last):
    ...
    ValueError: per='batch': give 'step' or 'epoch'.
    """
    made = _made(schedule)
    if isinstance(schedule, LRScheduler):
        raise ValueError(
            f"the schedule is a {type(schedule).__name__} that is bound to an optimizer already; give what makes it: "
            "lambda optimizer: ..."
        )
    if not callable(schedule) or (isinstance(made, type) and not issubclass(made, LRScheduler)):
        raise ValueError(
            f"the schedule {schedule!r} is none: give a function of the number of updates, an object such as "
            "Cosine(num_total=1000), or a function of `optimizer` that makes a torch scheduler"
        )
    if per not in (None, "step", "epoch"):
        raise ValueError(f"per={per!r}: give 'step' or 'epoch'.{nearest(str(per), ('step', 'epoch'))}")
    if gives not in (None, "factor", "rate"):
        raise ValueError(
            f"gives={gives!r}: give 'factor' or 'rate'.{nearest(str(gives), ('factor', 'rate'))}"
        )
    follows = isinstance(schedule, MetricSchedule) or made is ReduceLROnPlateau
    if follows and metric is None:
        raise ValueError(needs_metric(schedule))
    if metric is not None and isinstance(schedule, (WarmUp, Noam, Linear, Cosine)):
        raise ValueError(no_use_for_metric(schedule))
    if metric is not None and per == "step":
        raise ValueError(
            "per='step' with a metric: a metric is taken once an epoch. Leave `per` out, or give per='epoch'"
        )
    if metric is not None and not (isinstance(metric, str) or callable(metric)):
        raise ValueError(
            f"metric={metric!r}: give the name of an attribute of the Brain, or a function of the Brain"
        )
    if metric == "avg_train_loss":
        raise ValueError(
            "metric='avg_train_loss': that is the average of the open epoch, which starts again when the epoch is "
            "closed. Keep the loss that on_stage_end gets, self.train_loss = stage_loss, and give metric='train_loss'"
        )
