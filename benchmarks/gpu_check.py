"""What the code does on an accelerator, checked in a minute where one is at hand; says so where there is none.

It trains a small model with running statistics on CUDA with the guard in its device form, a bad batch among the good
ones, and looks: nothing not finite is left, the counts are those of the host form, the losses are close to those of the
CPU, no value of an update is waited for (torch's own sync debug mode), and copies from pinned memory arrive. It prints
microseconds a step of both forms.

It cuts a run and goes on from its checkpoint, in fp32, bf16 and fp16 with a scaler: weights, optimizer and generators
have to end as those of the run that was not cut. It trains on while a checkpoint is written: the file has to be of the
moment of the save. And it times what the loop stands still for, beside one copy from the device into pinned memory.

Several processes: one alone takes a step through nccl, carrier included; two share the first device and exchange by
gloo, which goes through the host; and where there are more devices, one process each exchanges by nccl. They have to
end with the weights of one process that made the same updates, with a bad window skipped by all, and go on after a cut
as if it had not been. A step is timed beside DDP by hand.

    python benchmarks/gpu_check.py
"""

from __future__ import annotations

import copy
import hashlib
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import brainlib as bl
from brainlib.distributed.ddp import Ranks, _Step
from brainlib.distributed.options import DistributedOptions
from brainlib.distributed.world import World
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


class Cut(Exception):
    """Ends a run in the middle."""


class Dropping(Small):
    """Draws on the device, and may be cut."""

    cut_at = -1

    def compute_forward(self, batch: Batch, stage: bl.Stage) -> Tensor:
        return torch.nn.functional.dropout(self.modules.model(batch[0]), 0.2, self.modules.training)

    def on_fit_batch_end(self, batch: Batch, outputs: Tensor, loss: Tensor, should_step: bool) -> None:
        if self.step == self.cut_at:
            raise Cut


def dropping(folder: str, precision: str, cut_at: int = -1) -> Dropping:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 8))
    brain = Dropping(
        {"model": model},
        lambda parameters: torch.optim.Adam(parameters, 1e-3),
        hparams={"seed": 3},
        run_opts={
            "noprogressbar": True,
            "device": "cuda",
            "precision": precision,
            "ckpt_interval_steps": 5,
            "ckpt_async": cut_at < 0,  # else what is put off depends on the clock
        },
        checkpointer=bl.Checkpointer(folder),
    )
    brain.cut_at = cut_at
    return brain


def resumes(precision: str) -> str:
    """What is wrong with going on from a checkpoint; empty when nothing is."""
    batches = [(x.cuda(), y.cuda()) for x, y in data(24, None)]
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        uncut = dropping(one, precision)
        uncut.fit(range(2), batches)
        try:
            dropping(two, precision, cut_at=13).fit(range(2), batches)
        except Cut:
            pass
        torch.cuda.manual_seed(99)
        resumed = dropping(two, precision)
        resumed.fit(range(2), batches)
        pairs = zip(uncut.modules.state_dict().values(), resumed.modules.state_dict().values(), strict=True)
        different = sum(not torch.equal(a, b) for a, b in pairs)
        drawn = [torch.rand(1, device="cuda").item()]
        uncut.checkpointer.wait()
        resumed.checkpointer.wait()
    if uncut.optimizer_step != resumed.optimizer_step or different:
        return f"{precision}: {different} tensors differ after a resume ({drawn})"
    return ""


def moments() -> list[str]:
    """What is wrong with checkpoints that are written while the device goes on; and prints what a save costs."""
    wrong = []
    width = 4096
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(6))).cuda()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    batch = torch.randn(64, width, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    step()
    tensors = [p.detach() for p in model.parameters()]
    tensors += [value for state in optimizer.state.values() for value in state.values()]
    pinned = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
    with tempfile.TemporaryDirectory() as folder:
        checkpointer = bl.Checkpointer(Path(folder), {"model": model, "optimizer": optimizer})
        for number in range(4):
            checkpointer.wait()
            torch.cuda.synchronize()
            began = time.perf_counter()
            torch._foreach_copy_(pinned, tensors, non_blocking=True)
            torch.cuda.synchronize()
            copied = time.perf_counter()
            before = [p.detach().clone() for p in model.parameters()]
            torch.cuda.synchronize()
            start = time.perf_counter()
            checkpoint = checkpointer.save_checkpoint({"n": number})
            returned = time.perf_counter()
            for _ in range(5):
                step()
            torch.cuda.synchronize()
            trained = time.perf_counter()
            checkpointer.wait()
            done = time.perf_counter()
            saved = bl.load_weights(checkpoint.path, "model")
            same = all(torch.equal(a.cpu(), b) for a, b in zip(before, saved.values(), strict=True))
            if not same:
                wrong.append(f"checkpoint {number} is not of the moment at which it was taken")
        size = sum(t.nbytes for t in tensors) / 1e9
        print(
            f"{size:.1f} GB of state: one copy into pinned memory {copied - began:.3f} s; a save returns after "
            f"{returned - start:.3f} s, with five steps behind it {trained - start:.3f} s, all written after "
            f"{done - start:.1f} s"
        )
    return wrong


# ------------------------------------------------------------------------------------------------- several processes
class Even(Small):
    """What an item gives does not depend on its batch, so ranks and accumulation make the same update."""

    cut_at = -1

    @staticmethod
    def network() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))

    def on_fit_batch_end(self, batch: Batch, outputs: Tensor, loss: Tensor, should_step: bool) -> None:
        if self.optimizer_step == self.cut_at:
            self.checkpointer.save_checkpoint()
            raise Cut  # on all ranks, each after the same update


def even(device: str, folder: str | None = None, **options: Any) -> Even:
    return Even(
        {"model": Even.network()},
        lambda parameters: torch.optim.Adam(parameters, 1e-3),
        hparams={"seed": 3},
        run_opts={"noprogressbar": True, "device": device, "fused": True, **options},
        checkpointer=bl.Checkpointer(folder, background=False) if folder else None,
    )


def one_rank(device: str, backend: str, folder: str, cut_at: int) -> dict[str, Any]:
    """In each of several processes: what it ended with, and microseconds a step."""
    world = World.from_environment()
    options = {"distributed_backend": backend, "dist_timeout_seconds": 60}
    batches = data(24 * world.size, bad=11)
    brain = even(device, folder, **options)
    brain.cut_at = cut_at
    try:
        brain.fit(range(2), batches)
    except Cut:
        return {}
    weights = [value.detach().cpu() for value in brain.modules.parameters()]
    sums = hashlib.sha256(b"".join(each.numpy().tobytes() for each in weights)).hexdigest()
    told = {
        "weights": weights,
        "all alike": len(set(bl.gather(sums))) == 1,
        "updates": brain.optimizer_step,
        "void": brain.run_state.nonfinite_windows,
        "device": str(brain.device),
    }

    def seconds(train: Any) -> float:
        train(20)
        bl.gather(None)
        if brain.device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        train(300)
        if brain.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    batch = tuple(each.to(brain.device) for each in batches[0])
    timed = even(device, **options)
    told["µs"] = seconds(lambda num: timed.fit(range(1), [batch] * (num * world.size))) / 300 * 1e6
    model = Even.network().to(brain.device)
    bare = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)

    def by_hand(num: int) -> None:
        for _ in range(num):
            torch.nn.functional.mse_loss(bare(batch[0]), batch[1]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            optimizer.zero_grad()

    told["µs by hand"] = seconds(by_hand) / 300 * 1e6
    return told


def several(size: int, device: str, backend: str) -> list[str]:
    """What is wrong with `size` processes."""
    where = f"{size} processes, {device}, {backend}"
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        uncut = bl.spawn(one_rank, size, args=(device, backend, one, -1))
        bl.spawn(one_rank, size, args=(device, backend, two, 13))
        resumed = bl.spawn(one_rank, size, args=(device, backend, two, -1))
    alone = even("cpu", grad_accumulation_factor=size)
    alone.fit(range(2), data(24 * size, bad=11))
    expected = [value.detach() for value in alone.modules.parameters()]
    wrong = []
    for rank, told in enumerate(uncut):
        apart = max(float((a - b).abs().max()) for a, b in zip(told["weights"], expected, strict=True))
        if apart > 1e-4:
            wrong.append(f"{where}: weights of rank {rank} are {apart:.1e} from those of one process")
        if (told["updates"], told["void"]) != (46, 2) or not told["all alike"]:
            wrong.append(f"{where}: rank {rank} tells { {**told, 'weights': '...'} }")
    for a, b in zip(uncut, resumed, strict=True):
        if not all(torch.equal(x, y) for x, y in zip(a["weights"], b["weights"], strict=True)):
            wrong.append(f"{where}: a run that was cut ends with other bits")
    times = ", ".join(f"{each['µs']:.0f} (by hand {each['µs by hand']:.0f})" for each in uncut)
    print(f"{where}, on {[each['device'] for each in uncut]}: µs a step {times}")
    return wrong


def through_nccl() -> str:
    """In one process: a step whose gradients go through nccl, and numbers of the host through gloo."""
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    model = torch.nn.ModuleDict({"model": Even.network()}).to(device)
    x, y = (each.to(device) for each in data(1, None)[0])
    step = Ranks(World(), DistributedOptions(), device)._ddp(
        _Step(model, lambda x: (None, torch.nn.functional.mse_loss(model["model"](x), y)))
    )
    loss, carried = step(x, False)
    (loss + 7.0 * carried.sum()).backward()
    told = step.module.carrier.grad.tolist()
    on_host = torch.ones(3)
    torch.distributed.all_reduce(on_host)
    torch.distributed.destroy_process_group()
    good = set(told) == {7.0} and bool((on_host == 1).all())
    return "" if good else f"through nccl came {told}, through gloo {on_host}"


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
    wrong += [told for precision in ("fp32", "bf16", "fp16") if (told := resumes(precision))]
    wrong += moments()
    wrong += [told for told in bl.spawn(through_nccl, 1) if told]
    wrong += several(2, "cuda:0", "gloo")
    if (devices := torch.cuda.device_count()) > 1:
        wrong += several(min(devices, 4), "cuda", "nccl")
    else:
        print("one device: nccl between several processes was not checked")
    for name, cls in (("device form", Small), ("host form", OnHost)):
        print(f"{name}: {microseconds(cls, 'cuda'):.0f} µs a step, set-up included")
    print("\n".join(wrong) or "all as it should be")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
