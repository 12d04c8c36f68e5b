"""With the guard in its device form the host reads no value in a step: nothing waits for an accelerator.

Two modes count, because neither sees everything: a dispatch mode sees `_local_scalar_dense` and copies between devices
whoever causes them, a function mode sees ``item``, ``tolist``, ``bool()`` and the like where they are called. What
happens inside ``optimizer.step()`` is torch's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.update.test_device_form import OwnStep, Plain

READS = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__")
inside_step = False
seen: list[str] = []


class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and not inside_step:
            seen.append("_local_scalar_dense")
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and result.device != args[0].device and not inside_step:
            seen.append("copy to another device")
        return result


class Called(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS and not inside_step:
            seen.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def counted(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    def enter(*_: Any) -> None:
        global inside_step
        inside_step = True

    def leave(*_: Any) -> None:
        global inside_step
        inside_step = False

    # Registered after the Brain's own: its hooks are outside of the step.
    handles = [optimizer.register_step_pre_hook(enter), optimizer.register_step_post_hook(leave)]
    seen.clear()
    try:
        with Dispatched(), Called():
            yield
    finally:
        for handle in handles:
            handle.remove()


class Counting:
    """Counts from the fifth batch to the tenth: the optimizer has its state then."""

    def on_fit_batch_start(self, batch: Any, should_step: bool) -> None:
        if self.step == 5:  # type: ignore[attr-defined]
            self.counter = counted(self.optimizer)  # type: ignore[attr-defined]
            self.counter.__enter__()
        elif self.step == 10:  # type: ignore[attr-defined]
            self.counter.__exit__(None, None, None)
            self.reads = list(seen)


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("on_device", [True, False])
def test_no_value_is_read_in_a_step(on_device: bool, factor: int) -> None:
    kind = type("Counted", (Counting, Plain), {"on_device": on_device})
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    options = {"noprogressbar": True, "grad_accumulation_factor": factor}
    brain = kind({"model": model}, lambda p: torch.optim.Adam(p, 0.01, fused=True), run_opts=options)
    brain.fit(range(1), [(torch.randn(8, 4), torch.randn(8, 3)) for _ in range(12)])
    if on_device:
        assert brain.reads == []
    else:
        assert brain.reads, "the counters see the reads of the other form"


def test_an_overridden_fit_batch_reads_nothing_either() -> None:
    class Own(OwnStep):
        def fit_batch(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            self.on_fit_batch_start(batch, self.should_step)
            return super().fit_batch(batch)

    kind = type("Counted", (Counting, Own), {"on_device": True})
    brain = kind(
        {"model": torch.nn.Linear(4, 3)},
        lambda p: torch.optim.Adam(p, 0.01, fused=True),
        run_opts={"noprogressbar": True},
    )
    brain.fit(range(1), [(torch.randn(8, 4), torch.randn(8, 3)) for _ in range(12)])
    assert brain.reads == []


def test_an_optimizer_that_is_not_fused_costs_one_read_an_update() -> None:
    kind = type("Counted", (Counting, Plain), {"on_device": True})
    brain = kind(
        {"model": torch.nn.Linear(4, 3)},
        lambda p: torch.optim.SGD(p, 0.01),
        run_opts={"noprogressbar": True},
    )
    brain.fit(range(1), [(torch.randn(8, 4), torch.randn(8, 3)) for _ in range(12)])
    assert brain.reads.count("_local_scalar_dense") == 5
