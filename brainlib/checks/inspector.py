"""What goes through the modules in the first updates, as a tree, and what in it looks wrong.

It looks on by torch's global forward hooks, by hooks on the tensors that come out, and by hooks of the optimizers; all
of them only read, and are gone when the last update that is looked at is over.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from brainlib.common.counted import counted
from brainlib.common.errors import nearest, quoted
from brainlib.common.files import write_atomic
from brainlib.common.logs import logger
from brainlib.profiling.instruments import Instruments

if TYPE_CHECKING:
    from brainlib.brain import Brain

__all__ = ["Inspector", "Stats", "dense", "tensors_in"]

_EXPLODES = 0.5  # an update that changes a weight by more than this share of its norm
_SHOWN = 3  # tensors of one input or output


@dataclass
class Stats:
    """Of all tensors that were seen in one place.

    >>> stats = Stats(); stats.add(torch.tensor([0.0, 1.0, float("nan"), 3.0]))
    >>> stats.shape, stats.low, stats.high, stats.zeros, stats.num_nan
    ('[4] float32', 0.0, 3.0, 0.25, 1)
    """

    shape: str = ""
    count: int = 0
    num_zero: int = 0
    num_nan: int = 0
    num_inf: int = 0
    total: float = 0.0
    low: float = float("inf")
    high: float = float("-inf")

    def add(self, tensor: Tensor, content: bool = True) -> None:
        """One more."""
        self.shape = f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
        if not content or tensor.numel() == 0 or tensor.is_complex():
            return
        with torch.no_grad():
            values = dense(tensor).double()
            finite = values[torch.isfinite(values)]
            self.count += values.numel()
            self.num_zero += int((values == 0).sum())
            self.num_nan += int(torch.isnan(values).sum())
            self.num_inf += int(torch.isinf(values).sum())
            if finite.numel():
                self.total += float(finite.sum())
                self.low, self.high = min(self.low, float(finite.min())), max(self.high, float(finite.max()))

    @property
    def zeros(self) -> float:
        """The share of values that are 0."""
        return self.num_zero / max(self.count, 1)

    def __str__(self) -> str:
        if not self.count:
            return self.shape
        finite = self.count - self.num_nan - self.num_inf
        words = (
            f"{self.low:.3g} to {self.high:.3g}, mean {self.total / finite:.3g}"
            if finite
            else "nothing finite"
        )
        words += f", {self.zeros:.0%} zeros"
        words += f", {self.num_nan} NaN" if self.num_nan else ""
        words += f", {self.num_inf} inf" if self.num_inf else ""
        return f"{self.shape}: {words}"


@dataclass
class _Seen:
    """One module."""

    calls: int = 0
    inputs: dict[str, Stats] = field(default_factory=dict)
    outputs: dict[str, Stats] = field(default_factory=dict)
    gradients: dict[str, Stats] = field(default_factory=dict)


@dataclass
class _Parameter:
    gradients: Stats = field(default_factory=Stats)
    with_gradient: int = 0
    in_optimizer: bool = False
    in_step: bool = False  # its optimizer has made one
    ratio: float = 0.0  # the largest share of its norm that one update has changed it by


class Inspector:
    """Looks at the first updates of a fit, and writes a tree of its modules with what went through them.

    The options `check_shape` and `check_content` make one; in a notebook it is a ``with`` statement round a fit.

    Args:
        brain: whose fit is looked at inside a ``with`` statement.
        modules: names of modules, as in ``brain.modules``; what is inside them is shown, too. None: all.
        content: whether values are looked at, and gradients and updates with them; else shapes and types alone.
        num_updates: how many are looked at.

    Attributes:
        findings: what looks wrong, a sentence each.

    Example:
        >>> from brainlib.brain import Brain
        >>> class Dead(Brain):
        ...     def compute_forward(self, batch, stage):
        ...         return self.modules.model(batch)
        ...     def compute_objectives(self, predictions, batch, stage):
        ...         return predictions.mean()
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> _ = model[0].weight.data.zero_(); _ = model[0].bias.data.fill_(-1.0)
        >>> brain = Dead({"model": model}, lambda p: torch.optim.SGD(p, 0.1), run_opts={"noprogressbar": True})
        >>> with Inspector(brain) as inspector:
        ...     brain.fit(range(1), [torch.ones(3, 2)] * 2)
        >>> inspector.findings[0]
        'model.1 (ReLU): its output was 0 throughout: a dead layer'
    """

    def __init__(
        self,
        brain: Brain | None = None,
        modules: Iterable[str] | None = None,
        *,
        content: bool = True,
        num_updates: int = 2,
    ) -> None:
        self.findings: list[str] = []
        self.num_updates, self.content = num_updates, content
        self._wanted = None if modules is None else list(modules)
        self._given = brain
        self._stack: ExitStack | None = None
        self._count = 0
        self._finished = False
        self._thread = threading.get_ident()
        self._names: dict[int, str] = {}
        self._kinds: dict[str, str] = {}
        self._seen: dict[str, _Seen] = {}
        self._parameters: dict[str, _Parameter] = {}
        self._brain: Brain | None = None

    exits = ""  # it never ends a fit

    # ------------------------------------------------------------------------------------------ asked by the Brain

    def start(self) -> None:
        """A fit begins."""

    def begin(self, brain: Brain) -> None:
        """The first batch is about to be asked for."""
        if self._finished or self._stack is not None:
            return
        chosen = list(self._chosen(brain))
        self._brain, self._stack, self._count = brain, ExitStack(), 0
        self._names = {id(m): name for name, m in chosen}
        self._kinds = {name: type(m).__name__ for name, m in chosen}
        hooks = torch.nn.modules.module
        self._stack.callback(hooks.register_module_forward_hook(self._forward).remove)
        if not self.content:
            return
        names = {id(p): name for name, p in brain.modules.named_parameters() if self._is_wanted(name)}
        self._parameters = {
            name: _Parameter()
            for name, p in brain.modules.named_parameters()
            if p.requires_grad and id(p) in names
        }
        for optimizer in brain._optimizers.found.values():
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                if known := self._parameters.get(names.get(id(parameter), "")):
                    known.in_optimizer = True
            before: dict[int, Tensor] = {}

            def look(optimizer: Any, *_: Any, before: dict[int, Tensor] = before) -> None:
                self._before_update(optimizer, names, before)

            def compare(optimizer: Any, *_: Any, before: dict[int, Tensor] = before) -> None:
                self._after_update(optimizer, names, before)

            self._stack.callback(optimizer.register_step_pre_hook(look).remove)
            self._stack.callback(optimizer.register_step_post_hook(compare).remove)

    def waits(self, batches: Iterator[Any], phase: str) -> Iterator[Any]:
        """The batches, as they are."""
        return batches

    def step(self) -> None:
        """One more update was made."""
        self._count += 1
        if self._stack is not None and self._count >= self.num_updates:
            self._finish("")

    def stop(self, error: BaseException | None = None) -> None:
        """The fit is over: tell of what there is."""
        if self._stack is not None:
            ended = "the fit ended" if error is None else f"the fit ended with {type(error).__name__}"
            self._finish(f"after {self._count} of {counted(self.num_updates, 'update')} {ended}")

    def __enter__(self) -> Inspector:
        assert self._given is not None, "Inspector(brain) for a with statement"
        self._kept = self._given._profiler
        self._given._profiler = Instruments.beside(self._kept, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._given is not None
        self._given._profiler = self._kept

    def __repr__(self) -> str:
        return self.tree()

    # ---------------------------------------------------------------------------------------------------- the hooks

    def _chosen(self, brain: Brain) -> Iterable[tuple[str, torch.nn.Module]]:
        known = {name: module for name, module in brain.modules.named_modules() if name}
        for name in self._wanted or ():
            if name not in known:
                raise ValueError(
                    f"there is no module {name!r} to check; there are {quoted(list(known)[:20])}"
                    f"{' and more' if len(known) > 20 else ''}.{nearest(name, known)}"
                )
        return [(name, module) for name, module in known.items() if self._is_wanted(name)]

    def _is_wanted(self, name: str) -> bool:
        return self._wanted is None or any(name == w or name.startswith(w + ".") for w in self._wanted)

    def _forward(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        name = self._names.get(id(module))
        assert self._brain is not None
        evaluating = self._brain._scope.eval_step is not None
        if name is None or threading.get_ident() != self._thread or evaluating:
            return
        seen = self._seen.setdefault(name, _Seen())
        seen.calls += 1
        for place, tensor in tensors_in(inputs):
            seen.inputs.setdefault(place, Stats()).add(tensor, self.content)
        for place, tensor in tensors_in(outputs):
            seen.outputs.setdefault(place, Stats()).add(tensor, self.content)
            if self.content and tensor.requires_grad:
                tensor.register_hook(seen.gradients.setdefault(place, Stats()).add)  # type: ignore[no-untyped-call]

    def _before_update(self, optimizer: Any, names: Mapping[int, str], before: dict[int, Tensor]) -> None:
        before.clear()
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            known = self._parameters.get(names.get(id(parameter), ""))
            if known is None:
                continue
            known.in_optimizer, known.in_step = True, True
            before[id(parameter)] = parameter.detach().clone()
            if parameter.grad is not None:
                known.gradients.add(parameter.grad)
                known.with_gradient += 1

    def _after_update(self, optimizer: Any, names: Mapping[int, str], before: dict[int, Tensor]) -> None:
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            former = before.pop(id(parameter), None)
            if former is None or parameter.dim() < 2:  # a bias begins at 0 and may go anywhere
                continue
            norm = float(former.double().norm())
            change = float((parameter.detach().double() - former.double()).norm())
            known = self._parameters[names[id(parameter)]]
            known.ratio = max(known.ratio, change / norm if norm else 0.0)

    # ----------------------------------------------------------------------------------------------------- the report

    def _finish(self, partial: str) -> None:
        assert self._stack is not None
        self._stack.close()
        self._stack, self._finished = None, True
        self.findings = list(self._look_for_trouble())
        text = self.tree() + (f"\nPARTIAL: {partial}" if partial else "")
        folder = getattr(self._brain, "_experiment", None)
        where = ""
        if folder is not None and self._given is None:
            path = Path(folder) / "checks.txt"
            write_atomic(path, text + "\n")
            where = f"\nwritten to {path}"
        logger.info("what went through the modules in %s:\n%s%s", counted(self._count, "update"), text, where)
        for finding in self.findings:
            logger.warning("check: %s", finding)

    def _look_for_trouble(self) -> Iterator[str]:
        for name, seen in self._seen.items():
            kind = self._kinds[name]
            for what, places in (
                ("input", seen.inputs),
                ("output", seen.outputs),
                ("gradient", seen.gradients),
            ):
                for stats in places.values():
                    if stats.num_nan or stats.num_inf:
                        yield f"{name} ({kind}): its {what} held {stats.num_nan} NaN and {stats.num_inf} infinities"
            if seen.outputs and all(stats.count and stats.zeros == 1 for stats in seen.outputs.values()):
                yield f"{name} ({kind}): its output was 0 throughout: a dead layer"
        no_step = not any(parameter.in_step for parameter in self._parameters.values())
        for name, parameter in self._parameters.items():
            if not parameter.in_optimizer:
                yield f"{name}: no optimizer that made a step has it, so it is not trained"
            elif no_step:  # an error came before the first
                continue
            elif not parameter.in_step:
                yield f"{name}: its optimizer made no step in these updates; is it frozen for now?"
            elif not parameter.with_gradient:
                yield f"{name}: it never got a gradient"
            elif parameter.gradients.zeros == 1:
                yield f"{name}: its gradient was 0 throughout"
            if parameter.ratio > _EXPLODES:
                yield (
                    f"{name}: one update changed it by {parameter.ratio:.0%} of its norm: it explodes; lower the "
                    "learning rate"
                )

    def tree(self) -> str:
        """Modules with what went in and came out, one under the other as they contain each other."""
        lines = []
        for name, kind in self._kinds.items():
            seen, indent = self._seen.get(name), "  " * name.count(".")
            calls = "never called in training" if seen is None else counted(seen.calls, "call")
            lines.append(f"{indent}{name.rpartition('.')[2]} ({kind}), {calls}")
            seen = seen or _Seen()
            for what, places in (("in", seen.inputs), ("out", seen.outputs), ("grad", seen.gradients)):
                for place, stats in list(places.items())[:_SHOWN]:
                    lines.append(f"{indent}    {what + place:5} {stats}")
            prefix = name + "."
            for parameter, known in self._parameters.items():
                if parameter.startswith(prefix) and "." not in parameter[len(prefix) :]:
                    change = f"; changed by {known.ratio:.2%} of its norm" if known.ratio else ""
                    gradients = known.gradients if known.with_gradient else "no gradient"
                    lines.append(f"{indent}    {parameter[len(prefix) :]}: grad {gradients}{change}")
        if self.findings:
            lines += ["", *(f"!! {finding}" for finding in self.findings)]
        return "\n".join(lines)


def dense(tensor: Tensor) -> Tensor:
    """The values of a tensor as one of the ordinary layout: a sparse one with its zeros, a nested one end to end.

    >>> dense(torch.tensor([0.0, 2.0]).to_sparse())
    tensor([0., 2.])
    """
    tensor = tensor.detach()
    if tensor.layout is torch.strided and not tensor.is_nested:
        return tensor
    return torch.cat([each.flatten() for each in tensor.unbind()]) if tensor.is_nested else tensor.to_dense()


def tensors_in(value: Any, place: str = "") -> Iterator[tuple[str, Tensor]]:
    """The floating-point and complex tensors in what a module takes or gives, each with its place.

    >>> [place for place, _ in tensors_in((torch.ones(1), {"mask": torch.ones(2)}))]
    ['[0]', "[1]['mask']"]
    >>> [place for place, _ in tensors_in((torch.ones(1),))]
    ['']
    """
    if isinstance(value, Tensor):
        if value.is_floating_point() or value.is_complex() or not place:
            yield place, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from tensors_in(each, f"{place}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        for number, each in enumerate(value):
            yield from tensors_in(each, place if len(value) == 1 else f"{place}[{number}]")
