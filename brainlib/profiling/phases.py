"""Where the time goes: one clock that belongs, at each instant, to the innermost phase that is open.

So the phases add up to the time that passed, whoever calls whom. They are entered by wrappers that stand on the methods
of one Brain while its profiler records, and are taken off afterwards: a run without a profiler has none of this.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch

__all__ = ["ModuleTimes", "Phases", "Wrappers", "put_over"]

LOOP = "loop"  # what no phase claims: the loop itself, the bar, loggers
LABEL = "brainlib::"  # what the names of phases begin with in a trace
MODULE = "module::"

# Methods of the Brain, and the phase that each is.
_METHODS = {
    "fit_batch": "fit_batch",  # what the phases inside leave of it
    "compute_forward": "forward",
    "compute_objectives": "loss",
    "optimizers_step": "update",
    "on_fit_batch_start": "hooks",
    "on_fit_batch_end": "hooks",
    "on_stage_start": "hooks",
    "on_stage_end": "hooks",
    "_fit_valid": "validation",
}
_SAVING = ("save_checkpoint", "save_and_keep_only", "save_automatically", "wait")
_SPLIT = {"fit_batch", "forward", "loss", "update"}  # not told apart inside a validation or a hook


class Phases:
    """Seconds by phase.

    Args:
        clock: a function that returns seconds; tests pass their own.
        labels: whether each phase is also a range in the trace that is being recorded.

    Example:
        >>> times = iter([0.0, 1.0, 3.0, 6.0, 10.0])
        >>> phases = Phases(clock=lambda: next(times))
        >>> outer = phases.enter("hooks"); inner = phases.enter("checkpoint")
        >>> phases.leave(inner); phases.leave(outer)
        >>> phases.seconds["hooks"], phases.seconds["checkpoint"], phases.seconds["loop"]
        (6.0, 3.0, 1.0)
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, labels: bool = False) -> None:
        self._clock = clock
        self._labels = labels
        self._open: list[tuple[str, Any]] = []
        self._since = self.began = clock()
        self._thread = threading.get_ident()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def enter(self, name: str) -> int:
        """A phase begins; returns what `leave` is to be given."""
        depth = len(self._open)
        if threading.get_ident() != self._thread:
            return -1
        if name in _SPLIT and any(each in ("validation", "hooks") for each, _ in self._open):
            name = self._open[-1][0]
        self._credit()
        label = None
        if self._labels:
            label = torch.profiler.record_function(LABEL + name)
            label.__enter__()  # type: ignore[no-untyped-call]
        self._open.append((name, label))
        return depth

    def leave(self, depth: int) -> None:
        """It is over, and with it all that began inside and was not left, because of an error."""
        if depth < 0:
            return
        self._credit()
        while len(self._open) > depth:
            _, label = self._open.pop()
            if label is not None:
                label.__exit__(None, None, None)

    def settle(self) -> float:
        """All time up to now is credited; returns how much there was."""
        self._credit()
        return self._since - self.began

    def _credit(self) -> None:
        now = self._clock()
        self.seconds[self._open[-1][0] if self._open else LOOP] += now - self._since
        self._since = now

    def over(self, batches: Iterator[Any], name: str) -> Iterator[Any]:
        """The batches; the wait for each is a phase."""
        while True:
            depth = self.enter(name)
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self.leave(depth)
            yield batch


def put_over(owner: Any, name: str, around: Callable[..., Any]) -> Callable[[], None]:
    """Put something over a method, as an attribute of the object that hides it.

    Args:
        owner: whose method it is.
        name: of the method.
        around: is called as ``around(method, *args, **kwargs)`` instead of the method.

    Returns:
        What takes it off again; of several it may be taken off in any order.

    >>> class Tea:
    ...     def brew(self):
    ...         return "tea"
    >>> tea = Tea()
    >>> take_off = put_over(tea, "brew", lambda brew: f"hot {brew()}")
    >>> tea.brew()
    'hot tea'
    >>> take_off(); vars(tea)
    {}
    """
    method, hidden = getattr(owner, name), owner.__dict__.get(name)

    @functools.wraps(method)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs) if wrapper.off else around(method, *args, **kwargs)  # type: ignore[attr-defined]

    wrapper.__func__ = getattr(method, "__func__", method)  # type: ignore[attr-defined] # for Brain._overridden
    wrapper.off, wrapper.hidden = False, hidden  # type: ignore[attr-defined]
    owner.__dict__[name] = wrapper

    def take_off() -> None:
        wrapper.off = True  # type: ignore[attr-defined]
        shown = owner.__dict__.get(name)
        while getattr(shown, "off", False):  # one that somebody has put over ours goes on hiding it
            shown = shown.hidden
        if shown is None:
            owner.__dict__.pop(name, None)
        else:
            owner.__dict__[name] = shown

    return take_off


class Wrappers:
    """What stands on a Brain while it is watched: each method tells when it begins and ends, and does what it did.

    >>> class Tea:
    ...     def brew(self):
    ...         return "tea"
    >>> tea, wrappers = Tea(), Wrappers()
    >>> wrappers.put_on(tea, "brew", Phases(), "hooks")
    >>> tea.brew(), list(vars(tea))
    ('tea', ['brew'])
    >>> wrappers.take_off(); vars(tea)
    {}
    """

    def __init__(self) -> None:
        self._stack = ExitStack()

    def watch(self, brain: Any, phases: Phases) -> None:
        """Put them on a Brain, on what saves it, what hangs on it, and on its optimizers."""
        for name, phase in _METHODS.items():
            self.put_on(brain, name, phases, phase)
        self.put_on(brain._extensions, "fire", phases, "hooks")
        for name in _SAVING if brain.checkpointer is not None else ():
            self.put_on(brain.checkpointer, name, phases, "checkpoint")
        for optimizer in brain._optimizers.found.values():
            depths: list[int] = []

            def begins(*_: Any, depths: list[int] = depths) -> None:
                depths.append(phases.enter("update"))

            def ends(*_: Any, depths: list[int] = depths) -> None:
                if depths:
                    phases.leave(depths.pop())

            for handle in (optimizer.register_step_pre_hook(begins), optimizer.register_step_post_hook(ends)):
                self._stack.callback(handle.remove)

    def put_on(self, owner: Any, name: str, phases: Phases, phase: str) -> None:
        """Put one on a method, as an attribute of the object that hides it."""
        if getattr(owner, name, None) is None:
            return

        def timed(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            depth = phases.enter(phase)
            try:
                return method(*args, **kwargs)
            finally:
                phases.leave(depth)

        self._stack.callback(put_over(owner, name, timed))

    def take_off(self) -> None:
        """Everything is as it was."""
        self._stack.close()


class ModuleTimes:
    """Seconds in the forward of each module, by its name in ``brain.modules``.

    Torch's global forward hooks tell of it. Hooks on the modules themselves, or another ``forward``, would be seen by
    the modules: a transformer layer takes another way through its mathematics where it finds some.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    >>> times = ModuleTimes(model)
    >>> times.begin(); _ = model(torch.ones(1, 2)); times.end()
    >>> {name: row[0] for name, row in times.rows.items()}
    {'0': 1}
    """

    def __init__(
        self, modules: torch.nn.Module, labels: bool = False, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._names = {id(module): name for name, module in modules.named_modules() if name}
        self._labels, self._clock = labels, clock
        self._open: list[list[Any]] = []  # module, began, seconds of those inside, label
        self._thread = threading.get_ident()
        self._handles: list[Any] = []
        self.rows: dict[str, list[Any]] = {}  # calls, seconds, seconds without the modules inside

    def begin(self) -> None:
        """From now on forwards are timed."""
        hooks = torch.nn.modules.module
        self._handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]

    def end(self) -> None:
        """No longer."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._close(0)

    def _enter(self, module: torch.nn.Module, *_: Any) -> None:
        name = self._names.get(id(module))
        if name is None or threading.get_ident() != self._thread:
            return
        label = None
        if self._labels:
            label = torch.profiler.record_function(MODULE + name)
            label.__enter__()  # type: ignore[no-untyped-call]
        self._open.append([module, self._clock(), 0.0, label])

    def _leave(self, module: torch.nn.Module, *_: Any) -> None:
        if id(module) not in self._names or threading.get_ident() != self._thread:
            return
        place = next((n for n in range(len(self._open) - 1, -1, -1) if self._open[n][0] is module), None)
        if place is not None:
            self._close(place)

    def _close(self, place: int) -> None:
        """Leave the module that was entered there, and those inside that an error has left."""
        while len(self._open) > place:
            module, began, inside, label = self._open.pop()
            if label is not None:
                label.__exit__(None, None, None)
            seconds = self._clock() - began
            row = self.rows.setdefault(self._names[id(module)], [0, 0.0, 0.0])
            row[0] += 1
            row[1] += seconds
            row[2] += seconds - inside
            if self._open:
                self._open[-1][2] += seconds
