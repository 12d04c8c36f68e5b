"""What the code does on an accelerator, checked in a minute where one is at hand; says so where there is none.

It trains a small model with running statistics on CUDA with the guard in its device form, a bad batch among the good
ones, and looks: nothing not finite is left, the counts are those of the host form, the losses are close to those of the
CPU, no value of an update is waited for (torch's own sync debug mode), and copies from pinned memory arrive. It prints
microseconds a step of both forms.

    python benchmarks/gpu_check.py
"""

from __future__ import annotations

import copy
import sys
import time
import warnings
from typing import Any

import torch
from torch import Tensor

import brainlib as bl
from brainlib.update.guard import HostGuard

Batch = tuple[Tensor, Tensor]


class Small(bl.Brain):
    """Linear, BatchNorm, Linear."""

    def compute_forward(self, batch: Batch, stage: bl.Stage) -> Tensor:
        return self.modules.model(batch[0])

    def compute_objectives(self, predictions: Tensor, batch: Batch, stage: bl.Stage) -> Tensor:
        return torch.nn.functional.mse_loss(predictions, batch[1])


class OnHost(Small):
    """The same with the guard that reads the norm."""

    def _make_guard(self) -> HostGuard:
        return HostGuard()


def data(num: int, bad: int | None) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    made = [
        (torch.randn(64, 32, generator=generator), torch.randn(64, 8, generator=generator))
        for _ in range(num)
    ]
    if bad is not None:
        made[bad][0].fill_(float("nan"))
    return made


def trained(cls: type[Small], device: str, batches: list[Batch], **options: Any) -> Small:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 8))
    brain = cls(
        {"model": model},
        lambda parameters: torch.optim.Adam(parameters, 1e-3),
        run_opts={"noprogressbar": True, "device": device, "fused": True, **options},
    )
    brain.fit(range(1), copy.deepcopy(batches))
    return brain


def microseconds(cls: type[Small], device: str) -> float:
    batches = [(x.to(device), y.to(device)) for x, y in data(500, None)]
    trained(cls, device, batches[:20])
    torch.cuda.synchronize()
    began = time.perf_counter()
    trained(cls, device, batches)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / len(batches) * 1e6


def main() -> int:
    """Check and print; 1 if something is wrong."""
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing was checked")
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    wrong = []
    on_device, on_host = (trained(cls, "cuda", data(30, bad=11)) for cls in (Small, OnHost))
    on_cpu = trained(Small, "cpu", data(30, bad=11))
    for name, brain in (("device form", on_device), ("host form", on_host)):
        if not all(bool(torch.isfinite(value).all()) for value in brain.modules.state_dict().values()):
            wrong.append(f"{name}: something not finite is left in the model")
        if (brain.optimizer_step, brain.run_state.nonfinite_windows) != (29, 1):
            wrong.append(
                f"{name}: {brain.optimizer_step} updates, {brain.run_state.nonfinite_windows} void windows"
            )
    losses = [brain.evaluate(data(5, None)) for brain in (on_device, on_host, on_cpu)]
    print("losses on the device, with the host form, on the CPU:", *(f"{loss:.6f}" for loss in losses))
    if max(losses) - min(losses) > 1e-3:
        wrong.append("the losses differ by more than 1e-3")
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        trained(Small, "cuda", [(x.pin_memory(), y.pin_memory()) for x, y in data(30, None)])
        torch.cuda.set_sync_debug_mode("default")
    print(f"waits for the device in 30 steps, start and end included: {len(waits)}")
    if len(waits) >= 30:
        wrong.append("the host waits for the device in every step")
    for name, cls in (("device form", Small), ("host form", OnHost)):
        print(f"{name}: {microseconds(cls, 'cuda'):.0f} µs a step, set-up included")
    print("\n".join(wrong) or "all as it should be")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
