"""What a profiler found in one range of updates, and how it is told: phases, modules, operators, memory."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import DeviceType

from brainlib.common.counted import counted
from brainlib.profiling.phases import LABEL, LOOP, MODULE

__all__ = [
    "ModuleRow",
    "OperatorRow",
    "Report",
    "backward_seconds",
    "gpu_in_use",
    "module_rows",
    "operator_rows",
    "peak_memory",
]

_AUTOGRAD = "autograd::engine::evaluate_function"
_OURS = (LABEL, MODULE, "ProfilerStep")  # torch names them all ProfilerStep* in its events
_ORDER = (
    "data wait", "copy", "forward", "loss", "backward", "fit_batch", "update", "hooks", "checkpoint", "validation",
    LOOP,
)  # fmt: skip


@dataclass
class OperatorRow:
    """One operator or kernel, all its calls together; times in seconds.

    >>> OperatorRow("aten::addmm", calls=2, total=0.5, longest=0.3, shortest=0.2).ave
    0.25
    """

    name: str
    calls: int = 0
    total: float = 0.0
    own: float = 0.0
    device: float = 0.0
    longest: float = 0.0
    shortest: float = float("inf")

    @property
    def ave(self) -> float:
        """The mean time of a call."""
        return self.total / max(self.calls, 1)


@dataclass
class ModuleRow:
    """One module, all its calls together; times in seconds.

    >>> ModuleRow("encoder", calls=10, forward=0.5, own=0.1).backward
    0.0
    """

    name: str
    calls: int
    forward: float
    own: float  # without the modules inside
    backward: float = 0.0  # of the operators of its own forward
    device: float = 0.0  # of the kernels of both


@dataclass
class Report:
    """One recorded range.

    Attributes:
        cycle: which of the ranges, from 0.
        wanted: the range that was to be recorded, a to b − 1, as (a, b).
        num_updates: how many of its updates were recorded.
        partial: why it is less than was wanted; "" where it is not.
        seconds: how long it took.
        num_items: items trained on; None where batches do not tell.
        update_seconds: of each update, with the wait for its data.
        phases: seconds by phase; together they are `seconds`.
        modules, operators: see `ModuleRow` and `OperatorRow`; empty where none were recorded.
        memory: peaks in bytes: of the process on the host, and of what torch allocated and reserved on a GPU.
        flops: floating point operations, where they were counted.
        trace, table: the files that were written.

    >>> print(Report(cycle=0, wanted=(2, 4), num_updates=2, seconds=0.5, phases={"forward": 0.4, "loop": 0.1}))
    updates 2 to 3, cycle 0: 2 updates in 0.500 s, 4.00 updates/s
    <BLANKLINE>
    phase           seconds      share  ms/update
    forward          0.4000      80.0%    200.000
    loop             0.1000      20.0%     50.000
    """

    cycle: int
    wanted: tuple[int, int]
    num_updates: int = 0
    partial: str = ""
    rank: int = 0
    seconds: float = 0.0
    num_items: float | None = None
    update_seconds: list[float] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    modules: list[ModuleRow] = field(default_factory=list)
    operators: list[OperatorRow] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    flops: int = 0
    trace: Path | None = None
    table: Path | None = None

    def __str__(self) -> str:
        return self.text(rows=15)

    __repr__ = __str__  # the last line of a cell of a notebook shows the table

    def text(self, rows: int | None = None) -> str:
        """The whole report as a text; `rows`: of modules and operators at most, None: all."""
        parts = ["\n".join(self._head())]
        if self.phases:
            parts.append(_table(("phase", "seconds", "share", "ms/update"), self._phase_rows()))
        if self.modules:
            head: Sequence[str] = ("module", "calls", "forward ms", "own ms", "backward ms", *self._device())
            parts.append(_table(head, self._module_rows(rows)))
        if self.operators:
            head = ("operator", "calls", "total ms", "max ms", "min ms", "ave ms", "own ms", *self._device())
            parts.append(_table(head, self._operator_rows(rows)))
        return "\n\n".join(parts)

    def _head(self) -> Iterable[str]:
        first, last = self.wanted
        each = max(self.num_updates, 1)
        speed = f", {self.num_updates / self.seconds:.2f} updates/s" if self.seconds else ""
        if self.num_items and self.seconds:
            speed += f", {self.num_items / self.seconds:.1f} items/s"
        yield (
            f"updates {first} to {last - 1}, cycle {self.cycle}: {counted(self.num_updates, 'update')} in "
            f"{self.seconds:.3f} s{speed}"
        )
        if self.partial:
            yield f"PARTIAL: {self.partial}"
        if self.memory:
            peaks = (f"{name} {size / 2**20:.0f} MiB" for name, size in self.memory.items())
            yield f"peak memory: {', '.join(peaks)}"
        if self.flops:
            yield f"{self.flops / each:.4g} floating point operations an update, {self.flops / self.seconds:.4g}/s"

    def _device(self) -> tuple[str, ...]:
        return ("device ms",) if any(row.device for row in self.operators) else ()

    def _phase_rows(self) -> Iterable[Sequence[str]]:
        total = sum(self.phases.values()) or 1.0
        for name in sorted(
            self.phases, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER)
        ):
            seconds = self.phases[name]
            each = 1e3 * seconds / max(self.num_updates, 1)
            yield name, f"{seconds:.4f}", f"{seconds / total:.1%}", f"{each:.3f}"

    def _module_rows(self, rows: int | None) -> Iterable[Sequence[str]]:
        for row in self.modules[:rows]:
            times = [row.forward, row.own, row.backward, *([row.device] if self._device() else [])]
            yield (row.name, str(row.calls), *(f"{1e3 * each:.3f}" for each in times))

    def _operator_rows(self, rows: int | None) -> Iterable[Sequence[str]]:
        for row in self.operators[:rows]:
            times = [
                row.total,
                row.longest,
                row.shortest,
                row.ave,
                row.own,
                *([row.device] if self._device() else []),
            ]
            yield (row.name, str(row.calls), *(f"{1e3 * each:.3f}" for each in times))


_WIDEST = 60


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [(_short(row[0]), *row[1:]) for row in (head, *rows)]
    least = [14, 5, *[9] * len(head)]
    widths = [max(least[n], *(len(row[n]) for row in cells)) for n in range(len(head))]
    return "\n".join(
        "  ".join([f"{row[0]:<{widths[0]}}", *map(str.rjust, row[1:], widths[1:])]) for row in cells
    )


def _short(name: str) -> str:
    return name if len(name) <= _WIDEST else f"{name[: _WIDEST - 4]} ..."


def gpu_in_use() -> bool:
    """Whether this process computes on a GPU; asking does not begin it.

    >>> isinstance(gpu_in_use(), bool)
    True
    """
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def peak_memory() -> dict[str, int]:
    """The most memory there was in use, in bytes: of this process on the host, and of torch on each GPU it uses.

    >>> peak_memory()["host"] > 0
    True
    """
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"host": peak if sys.platform == "darwin" else peak * 1024}
    if gpu_in_use():
        for number in range(torch.cuda.device_count()):
            if allocated := torch.cuda.max_memory_allocated(number):
                found[f"cuda:{number} allocated"] = allocated
                found[f"cuda:{number} reserved"] = torch.cuda.max_memory_reserved(number)
    return found


# ---- from the events of torch's profiler


def operator_rows(events: Iterable[Any], sorted_key: str) -> list[OperatorRow]:
    """Operators and kernels, the largest first.

    Args:
        events: what `torch.profiler.profile.events` gives.
        sorted_key: "calls", "total", "max", "min" or "ave".

    >>> operator_rows([], "total")
    []
    """
    rows: dict[str, OperatorRow] = {}
    for event in events:
        if event.name.startswith(_OURS) or (
            event.is_user_annotation and not event.name.startswith("Optimizer")
        ):
            continue
        seconds = event.time_range.elapsed_us() / 1e6
        row = rows.setdefault(event.name, OperatorRow(event.name))
        row.calls += 1
        row.total += seconds
        if event.device_type == DeviceType.CPU:
            row.own += event.self_cpu_time_total / 1e6
            row.device += event.device_time_total / 1e6
        else:
            row.device += seconds
        row.longest, row.shortest = max(row.longest, seconds), min(row.shortest, seconds)
    keys = {"calls": "calls", "total": "total", "max": "longest", "min": "shortest", "ave": "ave"}
    on_device = any(row.device for row in rows.values())

    def largest(row: OperatorRow) -> tuple[float, str]:
        key = "device" if sorted_key == "total" and on_device else keys[sorted_key]
        return -float(getattr(row, key)), row.name

    return sorted(rows.values(), key=largest)


def backward_seconds(events: Iterable[Any]) -> float:
    """How long autograd's engine was at work, in whichever thread.

    Between two of its functions there is Python only where something else begins there; a gap without is its own.

    >>> backward_seconds([])
    0.0
    """
    cpu = [e for e in events if e.device_type == DeviceType.CPU and not e.name.startswith(_OURS)]
    spans = sorted((e.time_range.start, e.time_range.end, e.name.startswith(_AUTOGRAD)) for e in cpu)
    total, open_until, in_backward, last_end = 0.0, 0.0, False, 0.0
    for start, end, is_backward in spans:
        if start < open_until:  # inside the one before
            continue
        if is_backward:
            total += end - (last_end if in_backward else start)
        in_backward, last_end, open_until = is_backward, end, end
    return total / 1e6


def module_rows(timed: dict[str, list[Any]], events: Iterable[Any]) -> list[ModuleRow]:
    """Modules, the dearest forward first; with their share of the backward where there is a trace.

    A function of the backward carries the number of the operator of the forward that it belongs to, and that one was
    called inside a module.

    >>> module_rows({"encoder": [2, 0.5, 0.1]}, [])[0].forward
    0.5
    """
    rows = {name: ModuleRow(name, calls, seconds, own) for name, (calls, seconds, own) in timed.items()}
    owner_of: dict[tuple[int, int], str] = {}
    backward = []
    owners: dict[int, str] = {}
    for event in events:
        if event.device_type != DeviceType.CPU:
            continue
        if event.name.startswith(_AUTOGRAD):
            backward.append(event)
        elif event.sequence_nr >= 0 and not event.name.startswith("torch::autograd"):
            name = _owner(event, owners)
            if name:
                owner_of.setdefault((event.thread, event.sequence_nr), name)
        if event.name.startswith(MODULE):
            row = rows.get(event.name[len(MODULE) :])
            if row is not None:
                row.device += event.device_time_total / 1e6
    for event in backward:
        name = owner_of.get((event.fwd_thread, event.sequence_nr), "")
        if name in rows:
            rows[name].backward += event.cpu_time_total / 1e6
            rows[name].device += event.device_time_total / 1e6
    return sorted(rows.values(), key=lambda row: -row.forward)


def _owner(event: Any, known: dict[int, str]) -> str:
    """The module in whose forward an event lies; "" for none."""
    passed, name = [], ""
    while event is not None:
        if id(event) in known:
            name = known[id(event)]
            break
        passed.append(id(event))
        if event.name.startswith(MODULE):
            name = event.name[len(MODULE) :]
            break
        event = event.cpu_parent
    for each in passed:
        known[each] = name
    return name
