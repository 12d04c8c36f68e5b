"""How many messages the ranks of a run exchange, and how many bytes: counted, at 1, 2 and 4 processes, not timed.

Messages are collectives, as torch's profiler sees them at the group (gloo). Their bytes are those of the tensors that
are handed over. The last column is what rank 0 has really sent meanwhile, over all of its connections (TCP_INFO of the
system), questions to the store included; with more ranks an exchange sends parts of a tensor more than once. What is
looked at at most once in a run (after updates 1, 2 and 10 weights are compared) stands apart.

It prints the table of docs/scale.md, and exits with 1 where a step has another number of messages than bare DDP's.

    python benchmarks/messages.py
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import brainlib as bl
from brainlib.distributed.world import World

SIZES = (1, 2, 4)
WIDTH, LAYERS, FACTOR = 512, 6, 2
Batch = dict[str, Tensor]


def network() -> nn.Sequential:
    """1.6 million parameters, 6 MB of gradients: more than one bucket of DDP's."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def bytes_sent() -> int:
    """By this process, over all connections that it has now."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.type != socket.SOCK_STREAM or connection.family == socket.AF_UNIX:
                    continue
                told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # closed since, or listening
            continue
        if len(told) >= 208:
            total += struct.unpack_from("<Q", told, 200)[0]  # tcpi_bytes_sent of linux/tcp.h
    return total


class Counter:
    """Counts what happens inside `counting`, by name."""

    def __init__(self) -> None:
        self.rows: dict[str, list[list[int]]] = {}
        self._profile: Any = None
        self._name = ""
        self._sent = 0

    def begin(self, name: str) -> None:
        self._name, self._sent = name, bytes_sent()
        self._profile = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
        )
        self._profile.start()

    def end(self) -> None:
        if self._profile is None:
            return
        self._profile.stop()
        events = self._profile.profiler.kineto_results.events()
        found = [event for event in events if event.name().startswith("gloo:")]
        self._profile = None
        sizes = sum(_bytes_of(event) for event in found)
        self.rows.setdefault(self._name, []).append([len(found), sizes, bytes_sent() - self._sent])

    @contextmanager
    def counting(self, name: str) -> Iterator[None]:
        self.begin(name)
        yield
        self.end()


def _bytes_of(event: Any) -> int:
    kinds = {"float": 4, "double": 8, "long int": 8, "int": 4, "unsigned char": 1}
    return sum(
        math.prod(shape) * kinds[kind] for shape, kind in zip(event.shapes(), event.dtypes(), strict=True)
    )


class Counting(bl.Brain):
    """What happens from one batch to the next is one row."""

    counter: Counter

    def compute_forward(self, batch: Batch, stage: bl.Stage) -> Tensor:
        return self.modules.model(batch["x"])

    def compute_objectives(self, predictions: Tensor, batch: Batch, stage: bl.Stage) -> Tensor:
        return predictions.square().mean()

    def on_fit_batch_start(self, batch: Batch, should_step: bool) -> None:
        self.counter.end()
        kind = "a batch that closes an update" if should_step else "a batch that closes none"
        if should_step and self.optimizer_step + 1 in (1, 2, 10):
            kind = "one after which weights are compared"
        if self.step == 11:
            kind = "the last of an epoch, not full"
        self.counter.begin(kind)

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: Any = None) -> None:
        if stage == bl.Stage.TRAIN:
            self.counter.end()
            with self.counter.counting("a save"):
                self.checkpointer.save_checkpoint()
            self.counter.begin("a validation")
        else:
            self.counter.end()
            self.counter.begin("the end of an epoch")

    def on_stage_start(self, stage: bl.Stage, epoch: Any = None) -> None:
        if stage == bl.Stage.TRAIN:
            self.counter.end()


def count(folder: str) -> dict[str, Any]:
    """In each process."""
    torch.set_num_threads(1)
    logging.getLogger("brainlib").setLevel(logging.WARNING)
    world, counter = World.from_environment(), Counter()
    made = [{"x": torch.ones(2, WIDTH)} for _ in range(22 * world.size)]
    brain = Counting(
        {"model": network()},
        lambda parameters: torch.optim.SGD(parameters, 1e-3),
        run_opts={"device": "cpu", "noprogressbar": True, "grad_accumulation_factor": FACTOR},
        checkpointer=bl.Checkpointer(Path(folder, f"{world.size}")),
    )
    brain.counter = counter
    with counter.counting("the start of a run"):
        brain.on_fit_start()
    # 11 rounds, of which the last holds a batch less than there are ranks; 5 batches to validate.
    brain.fit(range(3), made[: 11 * world.size - (world.size > 1)], made[: 5 * world.size])
    counter.end()

    if world.size > 1:
        bare = nn.parallel.DistributedDataParallel(network())
        for number in range(4):
            with counter.counting("bare DDP" if number > 1 else "warm-up"):
                bare(made[0]["x"]).square().mean().backward()
        counter.rows.pop("warm-up")
    return counter.rows


def main() -> int:
    """Count, print, and return the exit status."""
    os.environ["OMP_NUM_THREADS"] = "1"
    counted: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            counted[size] = bl.spawn(count, size, args=(folder,))[0]
    gradients = sum(param.numel() for param in network().parameters()) * 4
    print(
        f"{gradients:,} bytes of gradients, grad_accumulation_factor {FACTOR}, torch {torch.__version__}, gloo\n"
    )
    print(
        "| messages · bytes handed over · bytes rank 0 sent | "
        + " | ".join(f"{size} process{'es' * (size > 1)}" for size in SIZES)
        + " |"
    )
    print("|---|" + "---|" * len(SIZES))
    for name in [*counted[SIZES[-1]]]:
        cells = [" · ".join(_told(counted[size].get(name, []))) for size in SIZES]
        print(f"| {name} | " + " | ".join(cells) + " |")
    print(json.dumps({"benchmark": "messages", "torch": torch.__version__, "counted": counted}))
    wrong = [
        size
        for size in SIZES
        if {
            row[0]
            for name in ("a batch that closes an update", "the last of an epoch, not full")
            for row in counted[size][name]
        }
        != ({row[0] for row in counted[size]["bare DDP"]} if size > 1 else {0})
    ]
    if wrong:
        print(f"other numbers of messages than bare DDP's with {wrong} processes")
    return bool(wrong)


def _told(rows: list[list[int]]) -> list[str]:
    """The middle of what was counted; several times the same is once."""
    if not rows:
        return ["–"]
    messages, handed, sent = (sorted(column) for column in zip(*rows, strict=True))
    some = f"{messages[0]}" if messages[0] == messages[-1] else f"{messages[0]}–{messages[-1]}"
    return [some, *(f"{column[len(column) // 2]:,}" for column in (handed, sent))]


if __name__ == "__main__":
    sys.exit(main())
