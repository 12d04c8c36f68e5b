"""Is the window finite? Decided before a step may touch anything, from the norm that clipping needs anyway.

Two forms. `HostGuard` reads the norms: on a CPU that waits for nothing. `DeviceGuard` reads nothing of the update in
hand: the verdict stays on the device, where fused optimizers take it (``found_inf``), and the host learns it after the
next backward has been queued. Both judge the window as a whole: one bad optimizer or one bad loss, and none steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from brainlib.common.logs import logger
from brainlib.run_state import RunState
from brainlib.update.buffers import Buffers
from brainlib.update.gradients import Gradients

__all__ = ["DeviceGuard", "HostGuard", "takes_verdict"]


_ONES: dict[torch.device, Tensor] = {}  # the factor that leaves what is checked as it is


class HostGuard:
    """The verdict is a Python bool, known before the step.

    >>> weight = torch.nn.Parameter(torch.ones(1)); weight.grad = torch.tensor([float("inf")])
    >>> run, guard = RunState(), HostGuard()
    >>> run.begin_batch(); run.record(1.0, 1.0)
    >>> guard.make_update([Gradients(torch.optim.SGD([weight], 0.1))], run, Buffers(torch.nn.Module()))
    False
    >>> weight.item(), run.optimizer_step, run.nonfinite_windows
    (1.0, 0, 1)
    """

    late = False  # whether a verdict may still be open when the next update is to be made

    def settle(self, run: RunState) -> None:
        """Bring what is still open to the host; nothing is, here."""

    def make_update(
        self,
        active: Sequence[Gradients],
        run: RunState,
        buffers: Buffers,
        *,
        scale: float = 1.0,
        max_norm: float | None = None,
        scaler: Any = None,
    ) -> bool:
        """Norm → finite? → one multiply (window weight × clip) → step → count; a bad window leaves no trace.

        Args:
            active: the gradients of the optimizers that take part.
            run: counts the window.
            buffers: as they were before the window.
            scale: what the summed gradients are multiplied by (1 / weight of the window).
            max_norm: the largest norm of an optimizer's gradients; None: no clipping.
            scaler: steps the optimizers where it is at work.

        Returns:
            Whether the update was made.
        """
        norms = [each.measure(scale) for each in active]
        finite_losses = run.finite_pending()
        if finite_losses and all(map(math.isfinite, norms)):
            for each in active:
                each.scale(max_norm)
            self._step(active, scaler)
            run.commit_window(stepped=bool(active))
            return True
        self._skip(run, buffers, overflow=finite_losses and scaler is not None)
        return False

    def _step(self, active: Sequence[Gradients], scaler: Any) -> None:
        for each in active:
            if scaler is None:
                each.optimizer.step()
            else:
                scaler.step(each.optimizer)

    def _skip(self, run: RunState, buffers: Buffers, overflow: bool) -> None:
        run.skip_window()
        buffers.put_back()
        if overflow:
            run.nonfinite_in_a_row -= 1  # the scaler looks for its scale: an overflow is its ordinary signal


def is_fused(optimizer: Optimizer) -> bool:
    """Whether every group of the optimizer is in torch's fused form."""
    fused = all(group.get("fused") is True for group in optimizer.param_groups)
    return fused and bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def takes_verdict(optimizer: Optimizer) -> bool:
    """Whether the step of this optimizer can be refused on the device, now.

    Fused optimizers skip their whole step where ``found_inf`` is 1. Momentum SGD only once it has its buffers: in a
    refused first step torch leaves them uninitialized.
    """
    if not is_fused(optimizer):
        return False
    if any(group.get("momentum") for group in optimizer.param_groups):
        state = optimizer.state
        return all(
            state.get(param, {}).get("momentum_buffer") is not None
            for group in optimizer.param_groups
            for param in group["params"]
            if param.grad is not None
        )
    return True


@dataclass
class _Open:
    """A window whose verdict the host does not know yet; it is counted as good until then."""

    event: Any  # recorded behind the copy of the verdict; None where copies are done when they return
    all_bad: float  # the verdict that means: nothing of it stands


class DeviceGuard(HostGuard):
    """The verdict is a tensor; the host reads it later, from memory the device has copied it to.

    Until then the window counts as good, so counters may be one window ahead. `settle` corrects them: the Brain calls
    it after the next backward is queued, and before anybody saves, stops or ends an epoch.
    """

    late = True

    def __init__(self, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._slot = torch.zeros(1, pin_memory=pinned)
        self._verdict = (
            self._slot.numpy()
        )  # the same memory: reading it is no operation of torch's, and no wait
        self._make_event = torch.cuda.Event if pinned else None
        self._open: _Open | None = None
        self._said = False
        self._flag = torch.zeros((), device=device)  # used again and again: it stays 0 as long as all is well

    def settle(self, run: RunState) -> None:
        opened, self._open = self._open, None
        if opened is None:
            return
        if opened.event is not None:
            opened.event.synchronize()  # of a step that was queued a whole forward and backward ago
        verdict = self._verdict[0]
        if verdict == 0.0:
            run.confirm_window()
            return
        run.revoke_window(
            whole=verdict == opened.all_bad
        )  # else some of the user's steps were refused, others stand
        self._flag.zero_()

    def make_update(
        self,
        active: Sequence[Gradients],
        run: RunState,
        buffers: Buffers,
        *,
        scale: float = 1.0,
        max_norm: float | None = None,
        scaler: Any = None,
    ) -> bool:
        self.settle(run)
        if not active:
            return super().make_update(active, run, buffers)
        norms = [each.measure_on_device(scale) for each in active]
        bad = flag_nonfinite([*norms, *run.pending_losses()], self._flag)
        if not all(each.takes_verdict or self._learn(each) for each in active):
            self._say_that_it_reads(active)
            if bad.item():  # the one read of such an update
                bad.zero_()
                self._skip(run, buffers, overflow=scaler is not None)
                return False
            for each in active:
                each.scale_on_device(max_norm)
            self._step(active, scaler)
            run.commit_window(stepped=True, late=True)
            run.confirm_window()
            return True
        for each in active:
            each.scale_on_device(max_norm)
        for each in active:
            step_unless(each.optimizer, bad)
        buffers.put_back_if(bad)
        self._commit(run, bad, all_bad=1.0, stepped=True, closes=True)
        return True

    def _learn(self, gradients: Gradients) -> bool:
        """Look once at an optimizer; one that takes the verdict goes on taking it."""
        gradients.takes_verdict = takes_verdict(gradients.optimizer)
        return gradients.takes_verdict

    def _say_that_it_reads(self, active: Sequence[Gradients]) -> None:
        plain = sorted({type(each.optimizer).__name__ for each in active if not is_fused(each.optimizer)})
        if plain and not self._said:
            self._said = True
            logger.info(
                "%s is not fused, so the host waits for one value an update to keep bad gradients out; fused: true "
                "saves that",
                ", ".join(plain),
            )

    def judge_later(
        self, flags: Sequence[Tensor], run: RunState, buffers: Buffers, *, stepped: bool, closes: bool
    ) -> None:
        """A window whose steps were the user's; `flags` say of each, on the device, whether it was refused."""
        self.settle(run)
        each = torch.stack(list(flags))
        bad, some, spoiled = each.amin(), each.amax(), each.amin()
        # A batch that was not stepped on may have spoiled the buffers, too.
        if losses := run.pending_losses():
            lost = flag_nonfinite([loss.float().clone() for loss in losses], torch.zeros_like(bad))
            some, spoiled = torch.maximum(some, lost), torch.maximum(bad, lost)
        buffers.put_back_if(spoiled)
        self._commit(run, bad + some, all_bad=2.0, stepped=stepped, closes=closes)

    def _commit(self, run: RunState, verdict: Tensor, *, all_bad: float, stepped: bool, closes: bool) -> None:
        """Count the window as good, and send the verdict on its way to the host."""
        self._slot.copy_(verdict, non_blocking=True)
        event = None
        if self._make_event is not None:
            event = self._make_event()  # type: ignore[no-untyped-call]
            event.record()
        run.commit_window(stepped, closes=closes, late=True)
        self._open = _Open(event, all_bad)


def flag_nonfinite(values: Sequence[Tensor], flag: Tensor) -> Tensor:
    """Set `flag` to 1 if one of `values` is not finite: the check of torch's gradient scaler, one operation.

    >>> flag_nonfinite([torch.ones(2), torch.tensor(float("inf"))], torch.zeros(()))
    tensor(1.)
    """
    one = _ONES.get(flag.device)
    if one is None:
        one = _ONES[flag.device] = torch.ones((), device=flag.device)
    torch._amp_foreach_non_finite_check_and_unscale_(list(values), flag, one)
    return flag


def step_unless(optimizer: Any, bad: Tensor) -> None:
    """A step that the device leaves out where `bad` is 1: weights, moments and step counts stay as they are."""
    optimizer.grad_scale, optimizer.found_inf = None, bad
    try:
        optimizer.step()
    finally:
        del optimizer.grad_scale, optimizer.found_inf
