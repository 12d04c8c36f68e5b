"""How each kind of object is saved and applied: one small class per kind, chosen by `kind_of`.

A kind says what the state is, what in a saved state does not fit the live object (before anything is touched), how it
is applied, and how the live object is put back when a later one fails. It never writes: `states` and `store` do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from brainlib.checkpoint.hooks import LoadHook, SaveHook, hooks_of
from brainlib.checkpoint.states import Own, clone
from brainlib.common.errors import quoted

__all__ = [
    "Kind",
    "ParameterNames",
    "Recoverable",
    "bare_module",
    "class_name",
    "covered",
    "kind_of",
    "nonfinite_among",
]

LISTED = 8  # names in an error before it says "and n more"


class ParameterNames:
    """All names that each parameter goes by in the modules that a checkpoint knows.

    An optimizer knows its parameters by position only, and positions change with the order of construction; names do
    not. A tied parameter has several, and one that no known module holds has none.

    Args:
        modules: The known modules, by the name they are saved under.

    >>> model = torch.nn.Linear(2, 1)
    >>> ParameterNames({"model": model}).of(model.bias)
    ('model.bias',)
    """

    def __init__(self, modules: Mapping[str, torch.nn.Module]) -> None:
        self._names: dict[int, list[str]] = {}
        for prefix, module in modules.items():
            for name, parameter in bare_module(module).named_parameters(remove_duplicate=False):
                key = id(parameter)
                if key in self._names:
                    self._names[key].append(f"{prefix}.{name}")
                else:
                    self._names[key] = [f"{prefix}.{name}"]

    def of(self, parameter: torch.Tensor) -> tuple[str, ...]:
        """The names of a parameter, the shortest first; empty for one that no known module holds."""
        found = self._names.get(id(parameter), ())
        return tuple(found if len(found) < 2 else sorted(found, key=lambda name: (len(name), name)))


class Kind:
    """The kind for anything with `state_dict` and `load_state_dict`; the others say only what differs.

    >>> class Counter:
    ...     n = 0
    ...     def state_dict(self):
    ...         return {"n": self.n}
    ...     def load_state_dict(self, state):
    ...         self.n = state["n"]
    >>> counter, kind = Counter(), Kind()
    >>> kind.apply(counter, {"n": 3}, ParameterNames({}))
    >>> kind.state(counter, ParameterNames({}))
    {'n': 3}
    """

    name = "object"
    optional = False  # whether a checkpoint without it is fine
    bare = False  # whether a torch.nn.Parameter in a state stands for its numbers alone

    def state(self, obj: Any, names: ParameterNames) -> Any:
        """What is saved. Changes nothing in the object; may share tensors with it."""
        return obj.state_dict()

    def problems(self, obj: Any, state: Any, names: ParameterNames) -> list[str]:
        """Why a saved state does not fit the live object, each a line; empty when it does, as far as can be seen."""
        return []

    def apply(self, obj: Any, state: Any, names: ParameterNames) -> None:
        """Puts a saved state into the live object."""
        obj.load_state_dict(state)

    def snapshot(self, obj: Any) -> Any:
        """A copy of the live state, for `put_back`."""
        return clone(obj.state_dict())

    def put_back(self, obj: Any, snapshot: Any) -> None:
        """Makes the object what it was at `snapshot`."""
        obj.load_state_dict(snapshot)


@dataclass(frozen=True)
class Recoverable:
    """An object under its name, and how it is saved and loaded.

    >>> Recoverable("steps", [3], Kind(), None, None, False).told
    "recoverable 'steps' (builtins.list)"
    """

    name: str
    obj: Any
    kind: Kind
    saver: SaveHook | None
    loader: LoadHook | None
    optional: bool

    @property
    def told(self) -> str:
        """How messages name it."""
        return f"recoverable {self.name!r} ({class_name(self.obj)})"


class ModuleKind(Kind):
    """A ``torch.nn.Module``: names and shapes are compared before a weight is touched.

    >>> ModuleKind().problems(torch.nn.Linear(2, 1), {"weight": torch.ones(1, 3)}, ParameterNames({}))
    ["missing in the checkpoint: 'bias'", "'weight' has shape (1, 3) in the checkpoint and (1, 2) here"]
    """

    name = "module"
    bare = True

    def state(self, obj: torch.nn.Module, names: ParameterNames) -> Any:
        module = bare_module(obj)
        if type(module).state_dict is not torch.nn.Module.state_dict:
            return module.state_dict()
        return module.state_dict(
            keep_vars=True
        )  # the same objects each time are known again by the next copy

    def problems(self, obj: torch.nn.Module, state: Any, names: ParameterNames) -> list[str]:
        module = bare_module(obj)
        if not isinstance(state, Mapping):
            return [f"the checkpoint holds a {type(state).__name__} and a state dict is needed"]
        if any(part._load_state_dict_pre_hooks for part in module.modules()):
            return []  # it rewrites old names itself; torch's own strict check follows, and a failure is put back
        live = module.state_dict()
        lines = _differences(live, state)
        for key, there in state.items():
            here = live.get(key)
            if not isinstance(here, torch.Tensor) or torch.nn.parameter.is_lazy(here):
                continue
            if not isinstance(there, torch.Tensor):
                lines.append(f"{key!r} is a {type(there).__name__} in the checkpoint and a tensor here")
            elif there.shape != here.shape:
                lines.append(
                    f"{key!r} has shape {tuple(there.shape)} in the checkpoint and {tuple(here.shape)} here"
                )
        return lines

    def apply(self, obj: torch.nn.Module, state: Any, names: ParameterNames) -> None:
        bare_module(obj).load_state_dict(state)

    def snapshot(self, obj: torch.nn.Module) -> Any:
        return clone(bare_module(obj).state_dict())

    def put_back(self, obj: torch.nn.Module, snapshot: Any) -> None:
        bare_module(obj).load_state_dict(snapshot)


class OptimizerKind(Kind):
    """A ``torch.optim.Optimizer``, whose state follows parameter *names*.

    What is saved is the optimizer's own state dict (so ``optimizer.load_state_dict(torch.load(file))`` works where the
    order is the same) plus, for each position, the names and the shape of its parameter.
    """

    name = "optimizer"

    def state(self, obj: torch.optim.Optimizer, names: ParameterNames) -> Any:
        state = obj.state_dict()
        if not _standard(state):
            return state
        parameters = list(_parameters(obj))
        return {
            **state,
            "brainlib": Own(
                {
                    "class": class_name(obj),
                    "names": [list(_names_of(p, n, names)) for p, n in parameters],
                    "shapes": [list(p.shape) for p, _ in parameters],
                    "dtypes": [p.dtype for p, _ in parameters],
                }
            ),
        }

    def problems(self, obj: torch.optim.Optimizer, state: Any, names: ParameterNames) -> list[str]:
        if not _standard(state) or "brainlib" not in state:
            return []  # not written by us, or an optimizer with a state of its own form, which then judges for itself
        _, lines = _match(obj, state, names)
        return lines

    def apply(self, obj: torch.optim.Optimizer, state: Any, names: ParameterNames) -> None:
        if not _standard(state) or "brainlib" not in state:
            obj.load_state_dict(state)
            return
        places, lines = _match(obj, state, names)
        assert not lines, lines  # `problems` was asked before
        obj.load_state_dict(_reordered(obj, state, places))
        _keep_precision(obj, state, places)


class SchedulerKind(Kind):
    """A learning-rate schedule. Functions in it are code, which the live object has; only its numbers are saved.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    >>> schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    >>> schedule.anneal = lambda epoch: 1.0
    >>> "anneal" in SchedulerKind().state(schedule, ParameterNames({}))
    False
    """

    name = "scheduler"

    def state(self, obj: LRScheduler, names: ParameterNames) -> Any:
        return _without_functions(obj.state_dict())

    def problems(self, obj: LRScheduler, state: Any, names: ParameterNames) -> list[str]:
        # Names with an underscore are torch's own business and change from version to version.
        there = _public(state) if isinstance(state, Mapping) else state
        return _differences(_public(_without_functions(obj.state_dict())), there)

    def snapshot(self, obj: LRScheduler) -> Any:
        return clone(_without_functions(obj.state_dict()))


class ScalerKind(Kind):
    """A gradient scaler: nothing is missing when a run goes on with or without mixed precision, unlike before."""

    name = "scaler"
    optional = True

    def apply(self, obj: Any, state: Any, names: ParameterNames) -> None:
        if state:  # a disabled scaler saves an empty state, which an enabled one would refuse
            obj.load_state_dict(state)

    def put_back(self, obj: Any, snapshot: Any) -> None:
        if snapshot:
            obj.load_state_dict(snapshot)


class GeneratorKind(Kind):
    """A ``torch.Generator``: the same draws again."""

    name = "generator"

    def state(self, obj: torch.Generator, names: ParameterNames) -> Any:
        return {"state": obj.get_state()}

    def problems(self, obj: torch.Generator, state: Any, names: ParameterNames) -> list[str]:
        there, here = state["state"].shape, obj.get_state().shape
        return (
            []
            if there == here
            else [f"a state of {there[0]} bytes does not fit a generator on {obj.device} ({here[0]} bytes)"]
        )

    def apply(self, obj: torch.Generator, state: Any, names: ParameterNames) -> None:
        obj.set_state(state["state"])

    def snapshot(self, obj: torch.Generator) -> Any:
        return obj.get_state().clone()

    def put_back(self, obj: torch.Generator, snapshot: Any) -> None:
        obj.set_state(snapshot)


class HookKind(Kind):
    """An object whose class has hooks (or that came with hooks); it reads and writes its own files."""

    name = "hook"


_KINDS: tuple[tuple[type, Kind], ...] = (
    (torch.nn.Module, ModuleKind()),
    (torch.optim.Optimizer, OptimizerKind()),
    (LRScheduler, SchedulerKind()),
    (torch.amp.GradScaler, ScalerKind()),
    (torch.Generator, GeneratorKind()),
)
_OBJECT, _HOOK = Kind(), HookKind()


def kind_of(obj: object) -> Kind | None:
    """The kind of an object by itself (hooks given beside it are the caller's business); None: it cannot be saved.

    >>> kind_of(torch.nn.Linear(1, 1)).name, kind_of(torch.Generator()).name, kind_of(3)
    ('module', 'generator', None)
    """
    if hooks_of(obj) is not None:
        return _HOOK
    for base, kind in _KINDS:
        if isinstance(obj, base):
            return kind
    both = callable(getattr(obj, "state_dict", None)) and callable(getattr(obj, "load_state_dict", None))
    return _OBJECT if both and not isinstance(obj, type) else None


def class_name(obj: object) -> str:
    """The full name of an object's class.

    >>> class_name(torch.nn.Linear(1, 1))
    'torch.nn.modules.linear.Linear'
    """
    return f"{type(obj).__module__}.{type(obj).__qualname__}"


def bare_module(module: torch.nn.Module) -> torch.nn.Module:
    """The module itself where ``torch.compile(module)`` wrapped it, so that names do not change with compiling.

    >>> model = torch.nn.Linear(1, 1)
    >>> bare_module(model) is model
    True
    """
    inner = module._modules.get("_orig_mod")
    return module if inner is None else inner


def nonfinite_among(params: Mapping[str, torch.Tensor]) -> list[str]:
    """The names of those with a NaN or an infinity in them; one read from the device for all.

    >>> broken = torch.nn.Linear(1, 1); _ = broken.weight.data.fill_(float("nan"))
    >>> nonfinite_among(dict(broken.named_parameters()))
    ['weight']
    """
    named = {name: param.detach() for name, param in params.items() if param.is_floating_point()}
    named = {name: param for name, param in named.items() if not torch.nn.parameter.is_lazy(param)}
    if not named:
        return []
    norms = torch._foreach_norm(list(named.values()), float("inf"))
    several = len({norm.device for norm in norms}) > 1
    largest = torch.stack([norm.double().cpu() if several else norm.double() for norm in norms]).tolist()
    return [name for name, value in zip(named, largest, strict=True) if not math.isfinite(value)]


def covered(module: torch.nn.Module, by: Iterable[torch.nn.Module]) -> bool:
    """Whether all state of a module is state of modules in `by`, so that saving it too would save it twice.

    >>> model = torch.nn.Linear(2, 1)
    >>> covered(torch.nn.ModuleDict({"model": model}), [model]), covered(model, [torch.nn.Linear(2, 1)])
    (True, False)
    """
    parts = {id(part) for other in by for part in bare_module(other).modules()}
    tensors = {id(t) for other in by for t in (*other.parameters(), *other.buffers())}
    own = list(bare_module(module).modules())
    if not any(_tensors_of(part) or _has_extra_state(part) for part in own):
        return False  # without any state there is nothing to cover; it is saved, empty, under its own name
    return all(
        id(part) in parts or (not _has_extra_state(part) and all(id(t) in tensors for t in _tensors_of(part)))
        for part in own
    )


def _tensors_of(part: torch.nn.Module) -> list[torch.Tensor]:
    """A module's direct parameters and saved buffers."""
    buffers = [b for name, b in part._buffers.items() if name not in part._non_persistent_buffers_set]
    return [t for t in (*part._parameters.values(), *buffers) if t is not None]


def _has_extra_state(part: torch.nn.Module) -> bool:
    return type(part).get_extra_state is not torch.nn.Module.get_extra_state


def _differences(live: Mapping[str, Any], saved: Any) -> list[str]:
    """The keys that only one side has, as lines."""
    if not isinstance(saved, Mapping):
        return [f"the checkpoint holds a {type(saved).__name__} and a dict is needed"]
    lines = []
    if missing := [key for key in live if key not in saved]:
        lines.append(f"missing in the checkpoint: {_listed(missing)}")
    if unexpected := [key for key in saved if key not in live]:
        lines.append(f"unknown here: {_listed(unexpected)}")
    return lines


def _listed(names: list[str]) -> str:
    more = len(names) - LISTED
    return quoted(names[:LISTED]) + (f" and {more} more" if more > 0 else "")


def _public(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if not key.startswith("_")}


def _without_functions(state: dict[str, Any]) -> dict[str, Any]:
    kept = {
        key: value for key, value in state.items() if not callable(value) or isinstance(value, torch.Tensor)
    }
    return kept if len(kept) < len(state) else state


# ------------------------------------------------------------------------- an optimizer's parameters, found by name


def _standard(state: Any) -> bool:
    """Whether an optimizer's state has torch's own form: state by position, groups that list positions."""
    return (
        isinstance(state, dict)
        and isinstance(state.get("state"), dict)
        and isinstance(state.get("param_groups"), list)
        and all(isinstance(group, dict) and "params" in group for group in state["param_groups"])
    )


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, str | None]]:
    """Every parameter in torch's order, with the name the optimizer itself was given for it, if any."""
    for group in optimizer.param_groups:
        own = group.get("param_names") or [None] * len(group["params"])
        yield from zip(group["params"], own, strict=True)


def _names_of(parameter: torch.Tensor, own: str | None, names: ParameterNames) -> tuple[str, ...]:
    """A parameter's names; the optimizer's own name for it (``named_parameters()``) where no module knows it."""
    return names.of(parameter) or ((f"param_names:{own}",) if own is not None else ())


def _match(
    optimizer: torch.optim.Optimizer, state: Any, names: ParameterNames
) -> tuple[list[int], list[str]]:
    """For each live parameter its position in the saved state; and what does not fit, as lines."""
    saved_names = [tuple(entry) for entry in state["brainlib"]["names"]]
    shapes = [tuple(shape) for shape in state["brainlib"]["shapes"]]
    by_name = {name: position for position, entry in enumerate(saved_names) for name in entry}
    live = list(_parameters(optimizer))
    live_names = [_names_of(parameter, own, names) for parameter, own in live]

    # By name where there are names. One without a name is found by its place among those without. A checkpoint that
    # was made with no module beside its optimizer has no names at all: then places are all there is.
    nameless = iter([position for position, entry in enumerate(saved_names) if not entry])
    places: list[int | None] = []
    for entry in live_names:
        hits = sorted({by_name[name] for name in entry if name in by_name})
        by_place = not entry or not by_name
        places.append(next(nameless, None) if by_place else hits[0] if len(hits) == 1 else None)

    def told(position: int, entry: tuple[str, ...]) -> str:
        return entry[0] if entry else f"parameter {position}, without a name"

    lines = []
    used = [place for place in places if place is not None]
    if missing := [told(i, live_names[i]) for i, place in enumerate(places) if place is None]:
        lines.append(f"missing in the checkpoint: {_listed(missing)}")
    if leftover := [told(i, entry) for i, entry in enumerate(saved_names) if i not in set(used)]:
        lines.append(f"unknown to this optimizer: {_listed(leftover)}")
    if lines and by_name and not any(live_names):
        lines.append("no module known here holds its parameters; register the module beside the optimizer")
    if lines or len(used) != len(set(used)):
        twice = sorted({told(place, saved_names[place]) for place in used if used.count(place) > 1})
        return [], lines or [f"two parameters here were one when saved: {_listed(twice)}"]

    places_found = used  # none is None from here on
    for (parameter, _), place in zip(live, places_found, strict=True):
        if tuple(parameter.shape) != shapes[place]:
            lines.append(
                f"{told(place, saved_names[place])!r} has shape {shapes[place]} in the checkpoint and "
                f"{tuple(parameter.shape)} here"
            )
    lines.extend(_group_problems(optimizer, state, places_found))
    if isinstance(optimizer, torch.optim.LBFGS) and places_found != sorted(places_found):
        lines.append(
            "LBFGS keeps all parameters in one vector, so their order must be the one of the checkpoint"
        )
    return places_found, lines


def _keep_precision(optimizer: torch.optim.Optimizer, state: Any, places: list[int]) -> None:
    """Undoes a cast of torch's: loading gives floating-point state the dtype of its parameter.

    A master copy or a moment kept in float32 beside a bfloat16 parameter would lose its lower bits at every resume.
    """
    for (parameter, _), place in zip(_parameters(optimizer), places, strict=True):
        if parameter.dtype != state["brainlib"]["dtypes"][place]:
            continue  # the model's precision was changed on purpose, and the state follows it
        loaded = optimizer.state.get(parameter, {})
        for key, saved in state["state"].get(place, {}).items():
            if isinstance(saved, torch.Tensor) and saved.dtype != loaded[key].dtype:
                loaded[key] = saved.to(device=loaded[key].device, copy=True)


def _groups_of(optimizer: torch.optim.Optimizer, state: Any, places: list[int]) -> list[set[int]]:
    """For each live group, the saved groups that its parameters were in."""
    group_at = [g for g, group in enumerate(state["param_groups"]) for _ in group["params"]]
    found, start = [], 0
    for group in optimizer.param_groups:
        found.append({group_at[place] for place in places[start : start + len(group["params"])]})
        start += len(group["params"])
    return found


def _group_problems(optimizer: torch.optim.Optimizer, state: Any, places: list[int]) -> list[str]:
    here, there = len(optimizer.param_groups), len(state["param_groups"])
    if here != there:
        return [f"the checkpoint has {there} parameter groups and this optimizer {here}"]
    lacking = sorted(
        {key for group in state["param_groups"] for key in optimizer.defaults if key not in group}
    )
    if lacking and state["brainlib"].get("class") != class_name(optimizer):
        return [f"it was saved by {state['brainlib'].get('class')}, whose groups lack {_listed(lacking)}"]
    groups = _groups_of(optimizer, state, places)
    taken = [next(iter(group)) for group in groups if group]
    if any(len(group) > 1 for group in groups) or len(taken) != len(set(taken)):
        told = [
            f"group {g} here holds parameters of group {', '.join(map(str, sorted(group)))} there"
            for g, group in enumerate(groups)
        ]
        return ["the parameter groups are divided differently: " + "; ".join(told)]
    return []


def _reordered(optimizer: torch.optim.Optimizer, state: Any, places: list[int]) -> dict[str, Any]:
    """The saved state in the order of the live parameters and groups; the saved one is left alone."""
    position_of = {place: position for position, place in enumerate(places)}
    groups = _groups_of(optimizer, state, places)
    unused = iter(
        sorted(set(range(len(groups))) - {g for group in groups for g in group})
    )  # groups without parameters
    new_groups, start = [], 0
    for live, group in zip(optimizer.param_groups, groups, strict=True):
        saved = state["param_groups"][next(iter(group)) if group else next(unused)]
        size = len(live["params"])
        kept = {key: value for key, value in saved.items() if key not in ("params", "param_names")}
        new_groups.append({**kept, "params": list(range(start, start + size))})
        start += size
    new_state = {
        (position_of.get(key, key) if isinstance(key, int) else key): value
        for key, value in state["state"].items()
    }
    rest = {key: value for key, value in state.items() if key not in ("state", "param_groups", "brainlib")}
    return {**rest, "state": new_state, "param_groups": new_groups}
