"""RunState: the one owner of every counter of a run.

Where training stands is written here and nowhere else; the loader's position and the epoch counter are views of it.
The transitions are methods with names, so that "when is an update counted" can be read in one place:

====================  =====================================================================================
``begin_fit``          a fit of the script starts (fits are numbered; an interrupted one keeps its number)
``begin_batch``        the next micro-batch is handed to ``fit_batch``
``record``             its loss and weight are known; they wait until the window's verdict
``commit_window``      the window's update was made (or no optimizer was there to make one)
``skip_window``        the window was not finite: nothing advances, it is counted
``close_epoch``        the epoch, its validation and its last hook are over
====================  =====================================================================================

*Resume points* are two: after batch ``step`` of epoch ``epoch`` (counted from 0) of fit ``fit``, and "epoch closed",
which is the same triple with ``step`` = 0.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["RunState", "RunningMean"]


class RunningMean:
    """A weighted mean in float64: sum of ``weight · value`` over sum of ``weight``.

    Values on the CPU are added as Python floats (IEEE float64). Values on an accelerator are written into a ring on the
    device, which is summed when it is full or somebody reads: an addition is one copy, and nothing waits for it.

    >>> import torch
    >>> mean = RunningMean()
    >>> mean.add(1.0, weight=3); mean.add(torch.tensor(5.0), weight=1)
    >>> mean.value()
    2.0
    """

    __slots__ = ("_on_device", "_ring", "_total", "weight")

    def __init__(self, on_device: bool = False) -> None:
        self._on_device = on_device  # whether tensors on the CPU wait in the ring, too
        self._total = 0.0
        self.weight = 0.0
        self._ring: _Ring | None = None

    def add(self, value: float | Tensor, weight: float) -> None:
        """Add one value (a number or a tensor with one element) that stands for `weight` items."""
        if isinstance(value, Tensor) and (self._on_device or value.device.type != "cpu"):
            if self._ring is None or self._ring.device != value.device:
                self._fold()
                self._ring = _Ring(value.device)
            if self._ring.is_full:
                self._fold()
            self._ring.write(value.detach(), weight)
        else:
            self._total += (value.item() if isinstance(value, Tensor) else value) * weight
        self.weight += weight

    def value(self) -> float:
        """The mean so far; 0.0 before anything was added."""
        self._fold()
        return self._total / self.weight if self.weight else 0.0

    def reset(self) -> None:
        """Start again from nothing."""
        self._total, self.weight = 0.0, 0.0
        if self._ring is not None:
            self._ring.clear()

    def _fold(self) -> None:
        if self._ring is not None:
            self._total += self._ring.take()

    def state_dict(self) -> dict[str, float]:
        """Sum and weight."""
        self._fold()
        return {"total": self._total, "weight": self.weight}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Put back what `state_dict` returned."""
        self.reset()
        self._total, self.weight = state["total"], state["weight"]


class _Ring:
    """Values that wait on a device for their sum."""

    def __init__(self, device: torch.device, size: int = 1024) -> None:
        self.device = device
        self._values = torch.zeros(size, dtype=torch.float64, device=device)
        self._slots = self._values.unbind()
        self._weights: list[float] = []

    @property
    def is_full(self) -> bool:
        return len(self._weights) == len(self._slots)

    def write(self, value: Tensor, weight: float) -> None:
        self._slots[len(self._weights)].copy_(value.reshape(()) if value.dim() else value)
        self._weights.append(weight)

    def take(self) -> float:
        """The weighted sum of what is in it, added in order as on a host; empties it. Reads the device once."""
        if not self._weights:
            return 0.0
        values = self._values[: len(self._weights)].tolist()
        total = 0.0
        for value, weight in zip(values, self._weights, strict=True):
            total += value * weight
        self._weights.clear()
        return total

    def clear(self) -> None:
        self._weights.clear()


_COUNTERS = (
    "fit",
    "epoch",
    "epoch_start",
    "step",
    "cursor",
    "micro",
    "weight",
    "optimizer_step",
    "nonfinite_windows",
    "nonfinite_in_epoch",
    "nonfinite_in_a_row",
    "seconds",
    "unfired",
)


@dataclass
class _Late:
    """A window that is counted as good until its verdict has come."""

    losses: list[tuple[float | Tensor, float]]
    stepped: bool
    in_a_row: int  # nonfinite_in_a_row before it


class RunState:
    """Every counter of a run; see the module for its transitions.

    Attributes:
        fit: number of the current fit of the script, from 0; -1 before the first.
        epoch: epochs *closed* in this fit.
        epoch_start: what the epoch counter stood at when this fit began.
        step: batches trained on in the open epoch, by each rank.
        cursor: the same in the order of one process, that is by all ranks: where the data stands.
        micro: micro-batches in the open window.
        weight: sum of their weights.
        optimizer_step: windows in which some optimizer stepped, over the whole run.
        nonfinite_windows: windows skipped because a gradient or loss was not finite, over the whole run.
        nonfinite_in_epoch: those of the open epoch.
        nonfinite_in_a_row: those since the last good window.
        loss: `RunningMean` of the training loss of the open epoch, over committed windows.
        seconds: how long the run had trained when its clock was started last, see `elapsed`.
        unfired: whether what is due after the last batch (extensions, a timed save) is still to be done.

    Example:
        >>> run = RunState()
        >>> run.begin_fit(0, epoch_start=0)
        >>> run.begin_batch(); run.record(2.0, 4.0); run.commit_window(stepped=True)
        >>> run.step, run.optimizer_step, run.loss.value()
        (1, 1, 2.0)
    """

    __slots__ = (
        *_COUNTERS,
        "_clock",
        "_started",
        "by_items",
        "late",
        "loss",
        "num_ranks",
        "pending",
        "recorded",
        "verdict",
    )

    def __init__(
        self,
        by_items: bool = True,
        on_device: bool = False,
        clock: Callable[[], float] = time.monotonic,
        num_ranks: int = 1,
    ) -> None:
        self.num_ranks = num_ranks
        self.by_items = by_items  # whether `loss` averages over items, or over batches
        self._clock = clock
        self._started: float | None = None  # None while no fit runs
        self.fit = -1
        self.epoch = 0
        self.epoch_start = 0
        self.step = 0
        self.cursor = 0
        self.micro = 0
        self.weight = 0.0
        self.optimizer_step = 0
        self.nonfinite_windows = 0
        self.nonfinite_in_epoch = 0
        self.nonfinite_in_a_row = 0
        self.seconds = 0.0
        self.unfired = False
        self.loss = RunningMean(on_device)
        self.pending: list[tuple[float | Tensor, float]] = []
        self.recorded = True  # whether the loss of the batch in hand is known; there is none yet
        self.late: _Late | None = None
        self.verdict: bool | None = None  # on the window of the batch in hand: good, bad, or still open

    # ---- transitions, in the order in which they happen

    def begin_fit(self, number: int, epoch_start: int) -> None:
        """Fit `number` starts from its first epoch."""
        self.fit, self.epoch, self.epoch_start, self.step, self.cursor = number, 0, epoch_start, 0, 0
        self.nonfinite_in_a_row = 0
        self.open_epoch()

    def open_epoch(self) -> None:
        """The first batch of an epoch is about to come."""
        self.loss.reset()
        self.nonfinite_in_epoch = 0
        self._empty_window()

    def begin_batch(self) -> None:
        """The next micro-batch is handed out."""
        self.step += 1
        self.cursor += self.num_ranks
        self.micro += 1
        self.recorded = False
        self.verdict = None

    @property
    def in_hand(self) -> bool:
        """Whether a batch was handed out and is not trained on yet."""
        return self.step > 0 and not self.recorded and self.verdict is None

    def return_batches(self, whole_window: bool) -> None:
        """An error came before the batch in hand was trained on: take it back, so that a second call repeats it.

        With `whole_window` the batches before it in the window, too: their gradients cannot be told from
        half of its own.
        """
        returned = self.micro if whole_window else 1
        self.step -= returned
        self.unfired = False  # what was due after the batch before has been done
        self.cursor -= returned * self.num_ranks
        self.micro = 0 if whole_window else max(self.micro - 1, 0)
        self.recorded = True  # nothing is in hand
        if self.micro == 0:
            self._empty_window()

    def record(self, loss: float | Tensor, weight: float) -> None:
        """The loss of the batch in hand, a mean over `weight` items; it counts once the window is committed.

        A ``fit_batch`` of the user's makes its update first and returns the loss then: the verdict is known already.
        """
        self.recorded = True
        if self.verdict is None:
            self.pending.append((loss, weight))
            self.weight += weight
        elif self.verdict:
            self._count_loss(loss, weight)

    def commit_window(
        self, stepped: bool, finite: bool = True, closes: bool = True, late: bool = False
    ) -> None:
        """The update of the open window stands.

        Args:
            stepped: whether an optimizer updated something.
            finite: False where the gradients were good and a loss was not: the update counts, the bad loss does
                not, and the window is counted as not finite.
            closes: False where a ``fit_batch`` of the user's stepped inside a window.
            late: True where the verdict still is on a device. The window counts as good, and its losses wait, until
                `confirm_window` or `revoke_window` is called.
        """
        if late:
            self.late = _Late(self.pending, stepped, self.nonfinite_in_a_row)
            self.pending = []
        for loss, weight in self.pending:
            if finite or math.isfinite(float(loss)):
                self._count_loss(loss, weight)
        if stepped:
            self.optimizer_step += 1
        if finite:
            self.nonfinite_in_a_row = 0
        else:
            self._count_nonfinite()
        self._empty_window(closes)
        self.verdict = True

    def confirm_window(self) -> None:
        """The late verdict: it was good."""
        late, self.late = self.late, None
        for loss, weight in late.losses if late is not None else ():
            self._count_loss(loss, weight)

    def revoke_window(self, whole: bool = True) -> None:
        """The late verdict: it was bad, and what was counted is taken back.

        Args:
            whole: False where only some of its steps were refused: the update stands, and is counted as not finite.
        """
        late, self.late = self.late, None
        assert late is not None
        if not whole:
            for loss, weight in late.losses:
                if math.isfinite(float(loss)):
                    self._count_loss(loss, weight)
        elif late.stepped:
            self.optimizer_step -= 1
        self.nonfinite_in_a_row = late.in_a_row
        self._count_nonfinite()

    def skip_window(self, closes: bool = True) -> None:
        """The open window was not finite: its losses are dropped, no counter of updates moves."""
        self._count_nonfinite()
        self._empty_window(closes)
        self.verdict = False

    def _count_loss(self, loss: float | Tensor, weight: float) -> None:
        self.loss.add(loss, weight if self.by_items else 1.0)

    def _count_nonfinite(self) -> None:
        self.nonfinite_windows += 1
        self.nonfinite_in_epoch += 1
        self.nonfinite_in_a_row += 1

    def close_epoch(self) -> None:
        """Training, validation and hooks of the open epoch are over."""
        self.epoch += 1
        self.step = self.cursor = 0
        self.open_epoch()

    def _empty_window(self, closes: bool = True) -> None:
        if closes:
            self.micro = 0
        self.weight = 0.0
        self.pending.clear()

    # ---- the time

    @property
    def clock(self) -> Callable[[], float]:
        """What time is measured by; with several ranks the main one's, as they learned it last."""
        return self._clock

    def start_clock(self) -> None:
        """A fit begins: from now on the time counts."""
        self._started = self._clock()

    def stop_clock(self) -> None:
        """The fit is over."""
        self.seconds, self._started = self.elapsed(), None

    def elapsed(self) -> float:
        """How long the run has trained, in seconds, in all its processes; only work that was not lost counts."""
        return self.seconds + (0.0 if self._started is None else self._clock() - self._started)

    # ---- where it stands

    def point(self, closed: bool = False) -> tuple[int, int, int]:
        """The resume point (fit, epoch, step) that a checkpoint taken now would carry."""
        return (self.fit, self.epoch + 1, 0) if closed else (self.fit, self.epoch, self.step)

    def pending_losses(self) -> list[Tensor]:
        """The losses of the open window that are tensors."""
        return [loss for loss, _ in self.pending if isinstance(loss, Tensor)]

    def finite_pending(self) -> bool:
        """Whether every loss of the open window is finite (reads values that still are on an accelerator)."""
        return all(math.isfinite(float(loss)) for loss, _ in self.pending)

    # ---- state

    def state_dict(self, closed: bool = False) -> dict[str, Any]:
        """All counters; with `closed`, as they will be once the open epoch is closed."""
        if closed:
            after = RunState()
            after.load_state_dict(self.state_dict())
            after.close_epoch()
            return after.state_dict()
        state: dict[str, Any] = {name: getattr(self, name) for name in _COUNTERS}
        state["seconds"] = self.elapsed()
        state["loss"] = self.loss.state_dict()
        state["pending"] = [[float(loss), weight] for loss, weight in self.pending]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` returned; missing or leftover keys are an error and change nothing."""
        expected = {*_COUNTERS, "loss", "pending"}
        if set(state) != expected:
            raise ValueError(
                f"the run state of this checkpoint has the keys {sorted(state)}; this version of brainlib reads "
                f"{sorted(expected)}. Continue it with the version that wrote it, or start from its weights alone."
            )
        for name in _COUNTERS:
            setattr(self, name, state[name])
        if self._started is not None:
            self.start_clock()
        self.recorded, self.verdict, self.late = True, None, None
        self.loss.load_state_dict(state["loss"])
        self.pending = [(loss, weight) for loss, weight in state["pending"]]
