"""LearningRate: a schedule applied to one optimizer, at the moment at which a rate is used.

The rate is written right before the optimizer makes its step, from the counters of the run as they stand then. From
this everything follows: the first update has the schedule's first rate; an update that is skipped moves no counter, so
the rate waits; what a parameter group says between two updates is the rate that *was used*, in logs and in
checkpoints; and it does not matter at which moment of an epoch a checkpoint was made.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.hooks import RemovableHandle

from brainlib.checkpoint.recoverables import ParameterNames, class_name, kind_of
from brainlib.checkpoint.states import clone
from brainlib.common.errors import nearest, quoted
from brainlib.common.logs import logger
from brainlib.extension import Extension
from brainlib.update.schedules import MetricSchedule

__all__ = ["LearningRate"]

Gives: TypeAlias = Literal["factor", "rate"]

# Two schedules on one optimizer would overwrite each other's rate, silently.
_TAKEN: WeakKeyDictionary[Optimizer, LearningRate] = WeakKeyDictionary()


class LearningRate(Extension):
    """Applies a learning-rate schedule to one optimizer of the Brain; its state is saved with the run.

    Args:
        schedule: one of

            - a function of a count, such as `Cosine` or ``lambda done: 0.95**done``: how many updates (or epochs) were
              made before the one that is coming, 0 for the first. It returns a factor for the rate that each parameter
              group was made with, or, as SpeechBrain's do, a pair ``(old, new)`` of rates;
            - with `metric`, a function of the metric: `NewBob`, `Plateau`, or SpeechBrain's. It returns a factor or a
              pair;
            - a torch scheduler's class, or a function that makes one and whose argument is called ``optimizer``:
              ``lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 1000)``. Nobody else steps it;
            - an object that is called with the optimizer (its argument is called ``optimizer`` or ``opt``), sets the
              rate itself and counts its own calls, such as SpeechBrain's ``NoamScheduler``.
        optimizer: which one, by its name as an attribute of the Brain or in ``optimizers_dict``. May be left out where
            there is only one.
        per: "step": the count is that of updates over the whole run (``brain.optimizer_step``); "epoch": of closed
            epochs over the whole run. None: "step", or "epoch" with a metric.
        metric: where the metric of an epoch stands once the epoch is over: the name of an attribute of the Brain, or a
            function of the Brain. None: the schedule needs none.
        gives: what a single number means that the schedule returns, "factor" or "rate". None: a factor; for a pair, a
            rate.
        name: the name under which the state is saved; "LearningRate", followed by the optimizer's name if one is
            given.

    Raises:
        ValueError: for a schedule that cannot be called this way, or that needs a metric and gets none; and when a fit
            starts, for an optimizer that is not there.

    Example:
        >>> import torch
        >>> from brainlib.brain import Brain
        >>> from brainlib.update.schedules import WarmUp
        >>> class Line(Brain):
        ...     def compute_forward(self, batch, stage):
        ...         return self.modules.model(batch)
        ...     def compute_objectives(self, predictions, batch, stage):
        ...         return predictions.pow(2).mean()
        ...     def on_fit_batch_end(self, batch, outputs, loss, should_step):
        ...         print(f"update {self.optimizer_step} was made with {rate.rate:g}")
        >>> rate = LearningRate(WarmUp(num_warmup=4))
        >>> brain = Line(
        ...     {"model": torch.nn.Linear(2, 1)}, lambda p: torch.optim.SGD(p, 0.1), extensions=[rate],
        ...     run_opts={"noprogressbar": True},
        ... )
        >>> brain.fit(range(1), [torch.rand(3, 2)] * 5)
        update 1 was made with 0.025
        update 2 was made with 0.05
        update 3 was made with 0.075
        update 4 was made with 0.1
        update 5 was made with 0.1
    """

    trigger = (1, "epoch")  # to take the metric; the rate itself is written by a hook of the optimizer
    priority = 300

    def __init__(
        self,
        schedule: Callable[[Any], Any],
        optimizer: str | None = None,
        per: Literal["step", "epoch"] | None = None,
        *,
        metric: str | Callable[[Any], Any] | None = None,
        gives: Gives | None = None,
        name: str | None = None,
    ) -> None:
        if name is None and optimizer is not None:
            name = f"{type(self).__name__}-{optimizer}"
        super().__init__(name=name)
        _check(schedule, per, metric, gives)
        self.schedule = schedule
        self.optimizer_name = optimizer
        self.per = per or ("step" if metric is None else "epoch")
        self.metric = metric
        self._drive = _drive_of(schedule, metric is not None, gives)
        self._optimizer: Optimizer | None = None
        self._brain: Any = None  # while a fit is on
        self._hook: RemovableHandle | None = None
        # Epochs closed over the whole run: those of the fits before `_fit`, and those of `_fit`.
        self._fit = -1
        self._epochs_before = 0
        self._epochs = 0
        self._heard: int | None = (
            None  # of how many closed epochs the metric was taken; None: it starts with the next
        )
        self._metrics: list[float] = []  # taken, and not yet made into a rate

    # ---- what it can be asked

    @property
    def rates(self) -> list[float]:
        """The rate of each parameter group with which the last update was made; before the first, the first one."""
        if self._optimizer is None:
            raise ValueError(
                f"the extension {self.name or type(self).__name__!r} has no rate yet: no fit has started"
            )
        return [float(group["lr"]) for group in self._optimizer.param_groups]

    @property
    def rate(self) -> float:
        """That of the first parameter group."""
        return self.rates[0]

    # ---- what it does

    def start(self, brain: Any) -> None:
        """A fit starts: find the optimizer, and be there before each of its steps."""
        self._brain = brain
        self._optimizer = optimizer = self._find(brain)
        taken = _TAKEN.setdefault(optimizer, self)
        if taken is not self:
            raise ValueError(
                f"the extensions {taken.name or type(taken).__name__!r} and {self.name or type(self).__name__!r} both "
                "set the rate of one optimizer; the second would overwrite the first. Give them different optimizers "
                "by name, or make one schedule of the two: lambda done: first(done) * second(done)"
            )
        done = self._done(brain)
        self._drive.open(optimizer, done)
        if self._drive.needs_metric and self.metric is None:
            raise ValueError(_no_metric(self._drive.scheduler))
        self._hear(brain)
        if brain.counters()["optimizer_step"] == 0:
            self._drive.apply(optimizer, done, [])  # so that the first rate can be read before it is used
        self._hook = optimizer.register_step_pre_hook(self._before_step)

    def __call__(self, brain: Any) -> None:
        """An epoch is closed: take its metric."""
        self._hear(brain)

    def close(self, brain: Any) -> None:
        """The fit is over: let go of the optimizer."""
        if self._hook is not None:
            self._hook.remove()
        if self._optimizer is not None and _TAKEN.get(self._optimizer) is self:
            del _TAKEN[self._optimizer]
        self._hook = self._brain = None

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """The optimizer is about to step. Where the step then turns out bad, the next one gets the same rate."""
        metrics, self._metrics = self._metrics, []
        self._drive.apply(optimizer, self._done(self._brain), metrics)

    def _done(self, brain: Any) -> int:
        """The count, in the unit of `per`."""
        return int(brain.counters()["optimizer_step"]) if self.per == "step" else self._closed_epochs(brain)

    def _closed_epochs(self, brain: Any) -> int:
        """Over the whole run. The counters of the Brain start again in each fit, so those of the fits before are kept;
        this is asked at each start of a fit and at each closed epoch, so none is missed.
        """
        counters = brain.counters()
        if counters["fit"] != self._fit:
            self._epochs_before += self._epochs
            self._fit = counters["fit"]
        self._epochs = counters["epoch"]
        return self._epochs_before + self._epochs

    def _hear(self, brain: Any) -> None:
        closed = self._closed_epochs(brain)
        if self.metric is None:
            return
        if self._heard is not None and closed > self._heard:
            self._metrics.append(self._read_metric(brain))
        self._heard = closed

    def _read_metric(self, brain: Any) -> float:
        what = f"the metric of {self.name or type(self).__name__!r}"
        if not isinstance(self.metric, str):
            assert self.metric is not None
            value = self.metric(brain)
        elif hasattr(brain, self.metric):
            value = getattr(brain, self.metric)
        else:
            raise ValueError(
                f"{what} is the attribute {self.metric!r} of the Brain, and after an epoch there is none. Set it when "
                f"the stage ends: self.{self.metric} = stage_loss in on_stage_end, for stage VALID"
            )
        if value is None:
            raise ValueError(
                f"{what} ({self.metric!r}) is None after an epoch: the schedule {self.schedule!r} cannot go on without "
                "it. Set it in on_stage_end, for stage VALID"
            )
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{what} must be one number, not {value!r}") from error

    def _find(self, brain: Any) -> Optimizer:
        named: dict[str, Optimizer] = {
            name: value
            for name, value in [*brain.optimizers_dict.items(), *vars(brain).items()]
            if isinstance(value, Optimizer)
        }
        several = len({id(each) for each in named.values()}) > 1
        me, wanted = self.name or type(self).__name__, self.optimizer_name
        if not named:
            raise ValueError(
                f"the extension {me!r} found no optimizer when the fit started: give the Brain an opt_class, or make "
                "optimizers in init_optimizers"
            )
        if wanted is None and several:
            raise ValueError(
                f"the extension {me!r} does not know which optimizer is meant: there are {quoted(sorted(named))}. Give "
                "optimizer='...', and one LearningRate for each that has a schedule"
            )
        if wanted is not None and wanted not in named:
            raise ValueError(
                f"the extension {me!r} found no optimizer {wanted!r} when the fit started; there are "
                f"{quoted(sorted(named))}.{nearest(wanted, named)}"
            )
        return next(iter(named.values())) if wanted is None else named[wanted]

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """What has to survive a restart."""
        state: dict[str, Any] = {
            "fit": self._fit,
            "epochs_before": self._epochs_before,
            "epochs": self._epochs,
            "heard": self._heard,
            "metrics": list(self._metrics),
            "drive": self._drive.state_dict(),
        }
        if self.metric is not None and self._brain is not None and self._brain.closes_epoch():
            # Saved in the last hook of an epoch: the checkpoint says that the epoch is closed, so it has its metric.
            closed = self._closed_epochs(self._brain)
            if self._heard is not None and closed > self._heard:
                state["metrics"].append(self._read_metric(self._brain))
                state["heard"] = closed
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` returned; missing or leftover keys are an error and change nothing."""
        expected = {"fit", "epochs_before", "epochs", "heard", "metrics", "drive"}
        if set(state) != expected:
            raise ValueError(
                f"the saved state of the extension {self.name or type(self).__name__!r} must have the keys "
                f"{quoted(sorted(expected))}; this one has {quoted(sorted(map(str, state)))}"
            )
        self._fit, self._epochs_before, self._epochs = state["fit"], state["epochs_before"], state["epochs"]
        self._heard, self._metrics = state["heard"], list(state["metrics"])
        self._drive.load_state_dict(state["drive"])


# -------------------------------------------------------------------------- how each kind of schedule is asked


class _Drive:
    """A function of the count; the other kinds say what differs."""

    needs_metric = False

    def __init__(self, schedule: Any, gives: Gives | None) -> None:
        self.scheduler = schedule
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
            return self.scheduler(argument)
        except TypeError as error:
            raise ValueError(
                f"the schedule {self.scheduler!r} could not be called with {argument!r} ({error}). It is called with "
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
                f"the schedule {self.scheduler!r} returned {answer!r}; it must return a factor, or a pair (old, new) "
                "of rates"
            ) from error
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(
                f"the schedule {self.scheduler!r} returned {answer!r}; a learning rate must be finite, and 0 or more"
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
        """What the state is of. Another kind cannot use it."""
        return f"{type(self).__name__.strip('_')} {class_name(self.scheduler)}"

    def state_dict(self) -> dict[str, Any]:
        """The memory of the schedule, if it has one."""
        if self._waiting is not None:
            return self._waiting
        return {"kind": self.kind(), **self._memory()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` returned; of a schedule of another kind nothing is used."""
        if state["kind"] == self.kind():
            self._remember(state)
        else:
            logger.warning(
                "the checkpoint holds the state of another schedule (%s); this one (%s) starts afresh",
                state["kind"],
                self.kind(),
            )

    def _memory(self) -> dict[str, Any]:
        if not _has_state(self.scheduler):
            return {}  # asked again, a pure function gives the same
        answer = None if self._value is None else [self._value, self._is_rate]
        return {"at": self._at, "answer": answer, "schedule": self.scheduler.state_dict()}

    def _remember(self, state: dict[str, Any]) -> None:
        self._at = self._value = None
        if "schedule" in state:
            self._at = state["at"]
            if state["answer"] is not None:
                self._value, self._is_rate = state["answer"]
            self.scheduler.load_state_dict(state["schedule"])


class _Measured(_Drive):
    """A function of a metric, called once for each."""

    needs_metric = True

    def apply(self, optimizer: Optimizer, done: int, metrics: list[float]) -> None:
        if self._value is None and isinstance(self.scheduler, MetricSchedule):
            self._take((None, self.scheduler.value))
        for metric in metrics:
            self._take(self._ask(metric))
        self._write(optimizer)

    def _memory(self) -> dict[str, Any]:
        answer = None if self._value is None else [self._value, self._is_rate]
        memory = {"schedule": self.scheduler.state_dict()} if _has_state(self.scheduler) else {}
        return {"answer": answer, **memory}

    def _remember(self, state: dict[str, Any]) -> None:
        self._value = None
        if state["answer"] is not None:
            self._value, self._is_rate = state["answer"]
        if "schedule" in state:
            self.scheduler.load_state_dict(state["schedule"])


class _Called(_Drive):
    """An object that is called with the optimizer, once before each update, and counts its own calls."""

    def apply(self, optimizer: Optimizer, done: int, metrics: list[float]) -> None:
        for _ in range(1 if self._at is None else done - self._at):
            self.scheduler(optimizer)
        self._at = done

    def _memory(self) -> dict[str, Any]:
        memory = {"schedule": self.scheduler.state_dict()} if _has_state(self.scheduler) else {}
        return {"at": self._at, **memory}

    def _remember(self, state: dict[str, Any]) -> None:
        self._at = state["at"]
        if "schedule" in state:
            self.scheduler.load_state_dict(state["schedule"])


class _Torch(_Drive):
    """A torch scheduler, made when the optimizer is there and stepped once for each update or epoch that was made."""

    def __init__(self, factory: Any, gives: Gives | None) -> None:
        super().__init__(None, gives)
        self._factory = factory

    def open(self, optimizer: Optimizer, done: int) -> None:
        if self.scheduler is not None:
            if self.scheduler.optimizer is not optimizer:
                raise ValueError(
                    f"the optimizer was replaced between two fits, and its {type(self.scheduler).__name__} belongs to "
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
        self.scheduler, self._at = scheduler, done
        self.needs_metric = isinstance(scheduler, ReduceLROnPlateau)
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self.load_state_dict(waiting)
            for group, kept in zip(optimizer.param_groups, before, strict=True):
                for key, value in kept.items():
                    if isinstance(group.get(key), Tensor):
                        group[key].copy_(value)
                    else:
                        group[key] = value

    def apply(self, optimizer: Optimizer, done: int, metrics: list[float]) -> None:
        if self.needs_metric:
            for metric in metrics:
                self.scheduler.step(metric)
            return
        assert self._at is not None
        for _ in range(done - self._at):
            self.scheduler.step()
        self._at = done

    def kind(self) -> str:
        return "" if self.scheduler is None else super().kind()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.scheduler is None:
            self._waiting = state
        else:
            super().load_state_dict(state)

    def _memory(self) -> dict[str, Any]:
        if self.scheduler is None:
            return {}
        kind = kind_of(self.scheduler)
        assert kind is not None
        return {"at": self._at, "schedule": kind.state(self.scheduler, ParameterNames({}))}

    def _remember(self, state: dict[str, Any]) -> None:
        kind = kind_of(self.scheduler)
        assert kind is not None
        if problems := kind.problems(self.scheduler, state["schedule"], ParameterNames({})):
            raise ValueError(
                f"the saved state of a {type(self.scheduler).__name__} does not fit: " + "; ".join(problems)
            )
        self._at = state["at"]
        kind.apply(self.scheduler, state["schedule"], ParameterNames({}))


def _drive_of(schedule: Any, with_metric: bool, gives: Gives | None) -> _Drive:
    if _makes_scheduler(schedule):
        return _Torch(schedule, gives)
    if _first_argument(schedule) in ("optimizer", "opt"):
        return _Called(schedule, gives)
    return (_Measured if with_metric else _Drive)(schedule, gives)


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


def _no_metric(schedule: Any) -> str:
    made = _made(schedule)
    name = (made if isinstance(made, type) else type(made)).__name__
    return (
        f"{name} follows a metric, and none is given. Say where it stands when an epoch is over: LearningRate(..., "
        "metric='valid_loss') reads that attribute of the Brain, which on_stage_end has set; a function of the Brain "
        "is taken, too"
    )


def _check(schedule: Any, per: Any, metric: Any, gives: Any) -> None:
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
        raise ValueError(_no_metric(schedule))
    if metric is not None and per == "step":
        raise ValueError(
            "per='step' with a metric: a metric is taken once an epoch. Leave `per` out, or give per='epoch'"
        )
    if metric is not None and not (isinstance(metric, str) or callable(metric)):
        raise ValueError(
            f"metric={metric!r}: give the name of an attribute of the Brain, or a function of the Brain"
        )
