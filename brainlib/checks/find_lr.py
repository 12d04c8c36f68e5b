"""A learning rate to begin with: the loss while the rate grows from update to update, until it diverges."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brainlib.common.counted import counted
from brainlib.common.logs import logger
from brainlib.profiling.instruments import Instruments

if TYPE_CHECKING:
    from brainlib.brain import Brain

__all__ = ["LearningRateCurve", "find_lr"]

_DIVERGED = 4.0  # times the lowest smoothed loss
_SMOOTHING = 0.9


@dataclass
class LearningRateCurve:
    """What `find_lr` found.

    Attributes:
        rates: of each update.
        losses: of each update.
        smoothed: the same, as a running average.
        suggestion: the rate where the smoothed loss falls fastest; None where it never falls.

    >>> LearningRateCurve([1e-4, 1e-3, 1e-2], [1.0, 0.5, 3.0], [1.0, 0.5, 3.0], 1e-3).suggestion
    0.001
    """

    rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    smoothed: list[float] = field(default_factory=list)
    suggestion: float | None = None

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draw the curve into a file.

        Raises:
            ModuleNotFoundError: without matplotlib.
        """
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "a picture of the learning rates needs matplotlib: pip install 'brainlib[demo]'; rates and losses are "
                "in .rates and .losses"
            ) from error
        figure = Figure(figsize=(7, 3.6), layout="constrained")
        axes = figure.subplots()
        axes.plot(self.rates, self.losses, color="#bbbbbb", linewidth=1, label="loss of an update")
        axes.plot(self.rates, self.smoothed, color="#1f77b4", label="smoothed")
        if self.suggestion is not None:
            axes.axvline(self.suggestion, color="#d95f02", linestyle="--", label=f"try {self.suggestion:.2g}")
        axes.set_xscale("log")
        highest = max(self.smoothed[: max(len(self.smoothed) // 2, 1)], default=1.0)
        axes.set_ylim(min(self.smoothed, default=0.0) * 0.9, highest * 1.3)
        axes.set_xlabel("learning rate")
        axes.set_ylabel("loss")
        axes.grid(alpha=0.3)
        axes.legend()
        figure.savefig(Path(path), dpi=110)
        return Path(path)


def find_lr(
    brain: Brain,
    train_set: Any,
    train_loader_kwargs: Mapping[str, Any] | None = None,
    *,
    lowest: float = 1e-6,
    highest: float = 1.0,
    num_updates: int = 100,
) -> LearningRateCurve:
    """Train with a rate that grows from `lowest` to `highest`, and suggest the one where the loss falls fastest.

    The Brain is used up by it: make it for this, without a checkpointer, and another one for training.

    Args:
        brain: a Brain that was just made. All its optimizers get the rate; its schedules do nothing.
        train_set: as for `fit`.
        train_loader_kwargs: as for `fit`.
        lowest: the rate of the first update; try 1e-7 to 1e-5.
        highest: that of the last; try 1 to 10. It ends earlier where the loss diverges.
        num_updates: how many; try 50 to 300.

    Raises:
        ValueError: for a Brain with a checkpointer, rates that do not grow, and an epoch that makes no update.

    Example:
        >>> import torch
        >>> from brainlib.brain import Brain
        >>> class Line(Brain):
        ...     def compute_forward(self, batch, stage):
        ...         return self.modules.model(batch)
        ...     def compute_objectives(self, predictions, batch, stage):
        ...         return (predictions - batch.sum(1, keepdim=True)).square().mean()
        >>> brain = Line({"model": torch.nn.Linear(4, 1)}, lambda p: torch.optim.SGD(p, 1.0), {"seed": 0})
        >>> curve = find_lr(brain, [torch.ones(8, 4)] * 10, num_updates=50)
        >>> 1e-4 < curve.suggestion < 1
        True
    """
    if brain.checkpointer is not None:
        raise ValueError(
            "find_lr uses a Brain up, so what it trains must not be saved: give it one that has no checkpointer"
        )
    numbers = all(
        isinstance(each, (int, float)) and not isinstance(each, bool)
        for each in (lowest, highest, num_updates)
    )
    if not (
        numbers and 0 < lowest < highest < math.inf and num_updates >= 2 and num_updates == int(num_updates)
    ):
        raise ValueError(
            f"find_lr got lowest={lowest!r}, highest={highest!r}, num_updates={num_updates!r}; it takes "
            "0 < lowest < highest and at least 2 updates, as numbers"
        )
    test = _RangeTest(lowest, highest, num_updates)
    kept, brain._profiler = brain._profiler, Instruments([test])
    try:
        brain.fit(itertools.count(), train_set, progressbar=False, train_loader_kwargs=train_loader_kwargs)
    except ValueError:
        if not test.exits:
            raise
        logger.debug("find_lr: nonfinite_patience is over, because the loss diverges", exc_info=True)
    finally:
        brain._profiler = kept
    curve = test.curve
    curve.suggestion = _steepest(curve)
    if not test.exits:
        logger.warning(
            "find_lr: a run option ended the fit after update %d of %d",
            len(curve.rates),
            num_updates,
        )
    if curve.suggestion is None:
        logger.warning("find_lr: the loss falls nowhere between %.2g and %.2g", lowest, highest)
    else:
        logger.info(
            "find_lr: the loss falls fastest at a learning rate of %.2g (%s, %.2g to %.2g)",
            curve.suggestion, counted(len(curve.rates), "update"), curve.rates[0], curve.rates[-1],
        )  # fmt: skip
    return curve


class _RangeTest:
    """Hangs on the loop as a profiler does."""

    def __init__(self, lowest: float, highest: float, num_updates: int) -> None:
        self.curve = LearningRateCurve()
        self._exits = ""
        self._told = -1  # updates, at the begin of the epoch
        self._lowest, self._num_updates = lowest, num_updates
        self._factor = (highest / lowest) ** (1 / (num_updates - 1))
        self._average, self._total, self._weight = 0.0, 0.0, 0.0
        self._brain: Brain | None = None
        self._handles: list[Any] = []

    def start(self) -> None:
        self._exits = ""

    @property
    def exits(self) -> str:
        """Why the fit is to end now. A skipped update is the end, too: the rate would stand still from there."""
        skipped = (
            self._brain is not None and self._brain._scope.run.nonfinite_in_a_row > 0 and self.curve.rates
        )
        return "find_lr, because the loss diverges" if skipped else self._exits

    def begin(self, brain: Brain) -> None:
        self._brain = brain
        brain._extensions.__dict__["fire"] = lambda _: None
        for optimizer in brain._optimizers.found.values():
            # last of the hooks, so that a schedule's own has spoken before
            self._handles.append(optimizer.register_step_pre_hook(self._set_rate))

    def _set_rate(self, optimizer: Any, *_: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = self._rate()

    def _rate(self) -> float:
        return float(self._lowest * self._factor ** len(self.curve.rates))

    def waits(self, batches: Iterator[Any], phase: str) -> Iterator[Any]:
        self._total = self._weight = 0.0  # the sums of an epoch begin anew
        if phase == "data wait":
            skipped = self._brain is not None and self._brain._scope.run.nonfinite_in_a_row
            if self._told == len(self.curve.rates) and not skipped:
                raise ValueError(
                    "find_lr: an epoch has made no update, so the rate would never grow. Is there an optimizer, and "
                    "does it make its step?"
                )
            self._told = len(self.curve.rates)
        return batches

    def step(self) -> None:
        assert self._brain is not None
        state = self._brain._scope.run.loss.state_dict()
        weight = state["weight"] - self._weight
        loss = (state["total"] - self._total) / weight if weight else math.nan
        self._total, self._weight = state["total"], state["weight"]
        curve = self.curve
        curve.rates.append(self._rate())
        curve.losses.append(loss)
        self._average = _SMOOTHING * self._average + (1 - _SMOOTHING) * loss
        curve.smoothed.append(self._average / (1 - _SMOOTHING ** len(curve.losses)))
        diverged = not math.isfinite(loss) or curve.smoothed[-1] > _DIVERGED * max(min(curve.smoothed), 1e-12)
        if diverged or len(curve.rates) >= self._num_updates:
            self._exits = "find_lr, because the loss diverges" if diverged else "find_lr, at its highest rate"

    def stop(self, error: BaseException | None = None) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._brain is not None:
            self._brain._extensions.__dict__.pop("fire", None)


def _steepest(curve: LearningRateCurve) -> float | None:
    """Where the smoothed loss falls fastest over the logarithm of the rate, before its lowest point; over a tenth of
    the curve, so that the noise of single batches does not decide.
    """
    smoothed = curve.smoothed
    width = max(len(smoothed) // 20, 1)
    lowest = min(range(len(smoothed)), key=smoothed.__getitem__, default=0)
    middles = range(2 * width, min(lowest, len(smoothed) - width - 1) + 1)
    slopes = {n: smoothed[n + width] - smoothed[n - width] for n in middles}
    if not slopes or min(slopes.values()) >= 0:
        return None
    return curve.rates[min(slopes, key=slopes.__getitem__)]
