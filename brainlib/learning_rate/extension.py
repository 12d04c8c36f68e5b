"""LearningRate: a schedule applied to one optimizer, at the moment at which a rate is used.

The rate is written right before the optimizer makes its step, from the counters of the run as they stand then. From
this everything follows: the first update has the schedule's first rate; an update that is skipped moves no counter, so
the rate waits; what a parameter group says between two updates is the rate that *was used*, in logs and in
checkpoints; and it does not matter at which moment of an epoch a checkpoint was made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal
from weakref import WeakKeyDictionary

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from brainlib.common.errors import nearest, quoted
from brainlib.extension import Extension
from brainlib.learning_rate.asking import Gives, check, needs_metric, no_use_for_metric, way_of_asking

__all__ = ["LearningRate"]

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
            function of the Brain. Set it before you save in the last hook of the epoch. None: the schedule needs none.
        gives: what a single number means that the schedule returns, "factor" or "rate". None: a factor; for a pair, a
            rate.
        name: the name under which the state is saved; "LearningRate", followed by the optimizer's name if one is
            given.

    Raises:
        ValueError: for a schedule that cannot be called this way, or that needs a metric and gets none; in a fit, for
            an optimizer that is not there, is replaced, or has another schedule already.

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
        check(schedule, per, metric, gives)
        self.schedule = schedule
        self.optimizer_name = optimizer
        self.per = per or ("step" if metric is None else "epoch")
        self.metric = metric
        self._way = way_of_asking(schedule, metric is not None, gives)
        self._optimizer: Optimizer | None = None
        self._brain: Any = None  # while a fit is on
        self._hook: RemovableHandle | None = None
        # Epochs closed over the whole run: those of the fits before `_fit`, and those of `_fit`.
        self._fit = -1
        self._epochs_before = 0
        self._epochs = 0
        # Of how many closed epochs the metric was taken; None: it starts with the next.
        self._heard: int | None = None
        self._metrics: list[float] = []  # taken, and not yet made into a rate

    # ---- what it can be asked

    @property
    def rates(self) -> list[float]:
        """The rate of each parameter group with which the last update was made; before the first, the first one."""
        if self._optimizer is None:
            raise ValueError(f"the extension {self._me!r} has no rate yet: no fit has started")
        return [float(group["lr"]) for group in self._optimizer.param_groups]

    @property
    def rate(self) -> float:
        """That of the first parameter group."""
        return self.rates[0]

    @property
    def _me(self) -> str:
        return self.name or type(self).__name__

    # ---- what it does

    def start(self, brain: Any) -> None:
        """A fit starts: find the optimizer, and be there before each of its steps."""
        self._brain = brain
        self._optimizer = optimizer = self._find(brain)
        taken = _TAKEN.setdefault(optimizer, self)
        if taken is not self:
            raise ValueError(
                f"the extensions {taken._me!r} and {self._me!r} both set the rate of one optimizer; the second would "
                "overwrite the first. Give them different optimizers by name, or make one schedule of the two: "
                "lambda done: first(done) * second(done)"
            )
        done = self._done(brain)
        self._way.open(optimizer, done)
        if self._way.follows_metric != (self.metric is not None):
            raise ValueError((needs_metric if self.metric is None else no_use_for_metric)(self._way.schedule))
        self._hear(brain)
        if brain._state.counters()["optimizer_step"] == 0:
            self._way.apply(optimizer, done, [])  # so that the first rate can be read before it is used
        self._hook = optimizer.register_step_pre_hook(self._before_step)

    def __call__(self, brain: Any) -> None:
        """An epoch is closed: take its metric."""
        if self._find(brain) is not self._optimizer:
            raise ValueError(
                f"the optimizer of the extension {self._me!r} was replaced during the fit, and the new one has no "
                "schedule. Make all optimizers in init_optimizers, and let freeze_optimizers say which of them step"
            )
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
        self._way.apply(optimizer, self._done(self._brain), metrics)

    def _done(self, brain: Any) -> int:
        """The count, in the unit of `per`."""
        return (
            int(brain._state.counters()["optimizer_step"])
            if self.per == "step"
            else self._closed_epochs(brain)
        )

    def _closed_epochs(self, brain: Any) -> int:
        """Over the whole run. The counters of the Brain start again in each fit, so those of the fits before are kept;
        this is asked at each start of a fit and at each closed epoch, so none is missed.
        """
        counters = brain._state.counters()
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
        what = f"the metric of {self._me!r}"
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
        named: dict[str, Optimizer] = {**brain.optimizers_dict, **brain._optimizers.found}
        several = len({id(each) for each in named.values()}) > 1
        me, wanted = self._me, self.optimizer_name
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
            "schedule": self._way.state_dict(),
        }
        if self.metric is not None and self._brain is not None and self._brain._state.closes_epoch():
            # Saved in the last hook of an epoch: the checkpoint says that the epoch is closed, so it has its metric.
            closed = self._closed_epochs(self._brain)
            if self._heard is not None and closed > self._heard:
                state["metrics"].append(self._read_metric(self._brain))
                state["heard"] = closed
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` returned; missing or leftover keys are an error and change nothing."""
        expected = {"fit", "epochs_before", "epochs", "heard", "metrics", "schedule"}
        if set(state) != expected:
            raise ValueError(
                f"the saved state of the extension {self._me!r} must have the keys "
                f"{quoted(sorted(expected))}; this one has {quoted(sorted(map(str, state)))}"
            )
        self._fit, self._epochs_before, self._epochs = state["fit"], state["epochs_before"], state["epochs"]
        self._heard, self._metrics = state["heard"], list(state["metrics"])
        self._way.load_state_dict(state["schedule"])
