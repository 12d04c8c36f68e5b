"""EMA: an exponential moving average of the weights, kept beside the training run.

An averaging is made after the update that it is for and before the next one. On a CPU that is at once. On an
accelerator the verdict on an update (was it finite, so that it counts?) is known only when the next one is about to be
made, so it is then. Whoever asks for the average in between, to evaluate or to save, gets a copy with the last update
in it.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from brainlib.checkpoint.weights import load_weights
from brainlib.common.errors import nearest, quoted
from brainlib.extension import Extension
from brainlib.stage import Stage
from brainlib.triggers import IntervalTrigger

__all__ = ["EMA", "load_average"]

_LOW_PRECISION = (torch.float16, torch.bfloat16)


def _always(brain: Any) -> bool:
    return True


class EMA(Extension):
    """Keeps an exponential moving average of the weights: average ← decay · average + (1 - decay) · weights.

    It starts as a copy of the weights at the start of the first fit. Parameters are averaged, each once if it is tied
    (float16 and bfloat16 in float32, in which an average still moves). Buffers, such as running statistics and counts,
    are those of the model. An update that was skipped does not count. The average is saved with the run. It costs one
    operation over all parameters for each averaging, and one copy of them in memory; nothing is read back from the
    device. The parameters are looked up at the start of each fit. Polyak and Juditsky 1992, "Acceleration of Stochastic
    Approximation by Averaging"; in this form Tarvainen and Valpola 2017, "Mean teachers"
    (https://arxiv.org/abs/1703.01780).

    Args:
        decay: how much of the average stays at each averaging; from 0 up to, and without, 1. Try 0.999 to 0.9999:
            the average then looks back over about 1 / (1 - decay) averagings.
        every: how often: (n, "step") after every n updates, (n, "epoch") after every n epochs.
        modules: the names of the modules in ``brain.modules`` whose weights are averaged; None: all.
        warm_start: the n-th averaging (from 0) takes min(decay, (1 + n) / (10 + n)), so that the first, untrained
            weights are soon forgotten. For runs of fewer than about 5 / (1 - decay) averagings.
        evaluate: whether validations inside ``fit`` are made with the averaged weights. ``on_stage_end`` has those of
            the run again, so that it can save.
        name: the name under which the state is saved; two averages need two names.
        priority: before or after other extensions; the higher is called first.

    Raises:
        ValueError: for numbers out of their range; when a fit starts, for modules that are not there.

    Attributes:
        num_averaged: averagings so far. Inside a fit on an accelerator, that of the last update is still to come.

    Example:
        >>> from brainlib.brain import Brain
        >>> class Line(Brain):
        ...     def compute_forward(self, batch, stage):
        ...         return self.modules.model(batch)
        ...     def compute_objectives(self, predictions, batch, stage):
        ...         return predictions.pow(2).mean()
        >>> ema = EMA(decay=0.9)
        >>> brain = Line(
        ...     {"model": torch.nn.Linear(2, 1)}, lambda p: torch.optim.SGD(p, 0.1), extensions=[ema],
        ...     run_opts={"noprogressbar": True},
        ... )
        >>> data = [torch.ones(3, 2)] * 4
        >>> brain.fit(range(1), data)
        >>> ema.num_averaged, sorted(ema.average)
        (4, ['model.bias', 'model.weight'])
        >>> current = brain.evaluate(data)
        >>> with ema.swapped():
        ...     averaged = brain.evaluate(data, checkpoint="current")
        >>> averaged != current, brain.evaluate(data) == current
        (True, True)
    """

    priority = 200

    def __init__(
        self,
        decay: float = 0.999,
        every: tuple[int, str] | list[Any] = (1, "step"),
        modules: Iterable[str] | None = None,
        *,
        warm_start: bool = False,
        evaluate: bool = False,
        name: str | None = None,
        priority: int | None = None,
    ) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay!r}: give a number from 0 up to, and without, 1; 0.999 is usual")
        if not isinstance(every, (tuple, list)) or len(every) != 2 or every[1] == "seconds":
            raise ValueError(
                f"every={every!r}: give (n, 'step') or (n, 'epoch'). With anything else a run that is cut and started "
                "again would have another average"
            )
        if isinstance(modules, str):
            raise ValueError(f"modules={modules!r}: give a list of names, [{modules!r}]")
        super().__init__(name=name, trigger=_always, priority=priority)
        self.decay = float(decay)
        self.warm_start = warm_start
        self.evaluate = evaluate
        self.modules = None if modules is None else list(modules)
        self.num_averaged = 0
        self._due = IntervalTrigger(*every)
        self._weights: list[Tensor] = []  # each once
        self._slow: list[Tensor] = []  # their averages
        self._alike: list[list[int]] = []  # places of those with one device and dtype
        self._named: dict[str, int | Tensor] = {}  # as in the state dict: the place of a weight, or a buffer
        self._loaded: dict[str, Tensor] = {}  # what a checkpoint had, until the weights are there
        self._inside = False  # whether the averaged weights are in place
        self._brain: Any = None  # while a fit is on
        self._hooks: list[RemovableHandle] = []
        self._asked = False  # whether one of the hooks was called since the last update

    # ---- what it can be asked

    @property
    def average(self) -> dict[str, Tensor]:
        """The averaged weights, and the buffers, by their names in ``brain.modules.state_dict()``. Not a copy."""
        slow, _, _ = self._up_to_date()
        return self._by_name(slow)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Inside, the modules have the averaged weights, in place; afterwards their own again, also after an error.

        For evaluation. Give ``evaluate`` the argument ``checkpoint="current"``, or it loads other weights. Inside,
        nothing can be trained or saved.

        Raises:
            ValueError: before the first fit has started.
        """
        if not self._weights:
            raise ValueError(f"the extension {self._me!r} has no average yet: no fit has started")
        if self._inside:
            yield
            return
        slow, _, _ = self._up_to_date()
        kept = [weight.detach().clone() for weight in self._weights]
        self._inside = True
        try:
            with torch.no_grad():
                torch._foreach_copy_(self._weights, slow)
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._weights, kept)
            self._inside = False

    @property
    def _me(self) -> str:
        return self.name or type(self).__name__

    # ---- what it does

    def start(self, brain: Any) -> None:
        """A fit starts: find the weights, and be there before each step that changes them."""
        self._brain = brain
        self._find(brain.modules)
        self._due.start(self._counters())
        self._catch_up()  # the run was saved, or interrupted, after an update and before extensions heard of it
        self._attach()

    def __call__(self, brain: Any) -> None:
        """An update was made, or an epoch is closed."""
        if not self._asked:
            self._attach()  # a hook may have made an optimizer
        self._asked = False
        if (
            brain.device.type == "cpu" or brain.run_state.step == 0
        ):  # the verdict is here; asking waits for nothing
            self._catch_up()

    def evaluating(self, brain: Any, stage: Any) -> AbstractContextManager[None]:
        """A validation inside a fit, with the averaged weights if so asked; an evaluation chooses its own weights."""
        return self.swapped() if self.evaluate and stage is Stage.VALID else nullcontext()

    def close(self, brain: Any) -> None:
        """The fit is over: let go of the optimizers."""
        self._let_go()
        self._brain = None

    def _attach(self) -> None:
        self._let_go()
        found = self._brain._optimizers.found.values()
        self._hooks = [optimizer.register_step_pre_hook(self._before_step) for optimizer in found]

    def _let_go(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """The weights are about to change."""
        if self._inside:
            raise ValueError(
                f"an optimizer steps while the averaged weights of {self._me!r} are in place; train outside swapped()"
            )
        self._asked = True
        self._catch_up()

    def _catch_up(self) -> None:
        """Average the weights as they are, if that is due."""
        if self._due(self._counters()):
            self._add(self._slow)
            self.num_averaged += 1

    def _up_to_date(self) -> tuple[list[Tensor], int, IntervalTrigger]:
        """Averages, their number and the trigger, as if it had been caught up; asking changes nothing."""
        due = copy.copy(self._due)
        if self._brain is None or not due(self._counters()):
            return self._slow, self.num_averaged, self._due
        slow = [average.clone() for average in self._slow]
        self._add(slow)
        return slow, self.num_averaged + 1, due

    def _by_name(self, slow: list[Tensor]) -> dict[str, Tensor]:
        return {name: slow[value] if isinstance(value, int) else value for name, value in self._named.items()}

    def _counters(self) -> Any:
        """Those of the run, as a trigger reads them, also inside an inner fit."""
        return SimpleNamespace(run_state=SimpleNamespace(**self._brain._state.counters()))

    @torch.no_grad()
    def _add(self, slow: list[Tensor]) -> None:
        decay = self.decay
        if self.warm_start:
            decay = min(decay, (1 + self.num_averaged) / (10 + self.num_averaged))
        for places in self._alike:
            averages, weights = [slow[i] for i in places], [self._weights[i] for i in places]
            if averages[0].dtype != weights[0].dtype:
                weights = [weight.to(averages[0].dtype) for weight in weights]
            torch._foreach_lerp_(averages, weights, 1.0 - decay)

    def _find(self, modules: torch.nn.ModuleDict) -> None:
        """Every parameter once, with its average: the one there is, else a copy of it."""
        for name in self.modules or ():
            if name not in modules:
                raise ValueError(
                    f"the extension {self._me!r} averages the module {name!r}, which is not there; brain.modules has "
                    f"{quoted(modules)}.{nearest(name, modules)}"
                )
        named = {
            f"{prefix}.{name}": value
            for prefix, module in modules.items()
            if self.modules is None or prefix in self.modules
            for name, value in module.state_dict(keep_vars=True).items()
            if isinstance(value, Tensor)
        }
        known = self._by_name(self._slow)
        if self._loaded:
            self._check(self._loaded, named)
            known, self._loaded = self._loaded, {}
        self._weights, self._slow, self._named = [], [], {}
        places: dict[int, int] = {}
        alike: dict[Any, list[int]] = {}
        for name, tensor in named.items():
            if not isinstance(tensor, torch.nn.Parameter) or not (
                tensor.is_floating_point() or tensor.is_complex()
            ):
                self._named[name] = tensor
                continue
            if id(tensor) not in places:
                place = places[id(tensor)] = len(places)
                self._weights.append(tensor)
                self._slow.append(self._as_average(tensor, known.get(name)))
                alike.setdefault((tensor.device, tensor.dtype), []).append(place)
            self._named[name] = places[id(tensor)]
        self._alike = list(alike.values())

    def _as_average(self, weight: Tensor, known: Tensor | None) -> Tensor:
        if torch.nn.parameter.is_lazy(weight):
            raise ValueError(
                f"the extension {self._me!r} cannot average a lazy module before it has seen a batch; call the model "
                "once before fit"
            )
        dtype = torch.float32 if weight.dtype in _LOW_PRECISION else weight.dtype
        source = weight if known is None or known.shape != weight.shape else known
        return source.detach().to(device=weight.device, dtype=dtype, copy=True)

    def _check(self, saved: Mapping[str, Tensor], named: Mapping[str, Tensor]) -> None:
        """Whether the average of a checkpoint is one of these weights."""
        lines = []
        if missing := [name for name in named if name not in saved]:
            lines.append(f"missing in the checkpoint: {quoted(missing)}")
        if unknown := [name for name in saved if name not in named]:
            lines.append(f"unknown here: {quoted(unknown)}")
        lines += [
            f"{name!r} has shape {tuple(saved[name].shape)} in the checkpoint and {tuple(tensor.shape)} here"
            for name, tensor in named.items()
            if name in saved and saved[name].shape != tensor.shape
        ]
        if lines:
            raise ValueError(
                f"the average that was saved as {self._me!r} does not fit these weights: "
                + "; ".join(lines)
                + ". Average the same modules, or give the new average another name"
            )

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """What has to survive a restart; with the last update in it."""
        self._refuse_inside("saved")
        slow, num_averaged, due = self._up_to_date()
        average = self._by_name(slow) or dict(self._loaded)
        return {"num_averaged": num_averaged, "due": due.state_dict(), "average": average}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` returned.

        Raises:
            ValueError: for missing or leftover keys, and weights of other names or shapes; nothing is loaded then.
        """
        self._refuse_inside("loaded")
        if set(state) != {"num_averaged", "due", "average"}:
            raise ValueError(
                f"the saved state of the extension {self._me!r} must have the keys 'average', 'due', 'num_averaged'; "
                f"this one has {quoted(sorted(map(str, state)))}"
            )
        saved = dict(state["average"])
        if not self._weights:
            self._loaded = saved
        elif saved:
            self._check(saved, self._by_name(self._slow))
            for name, value in self._named.items():
                if isinstance(value, int):
                    self._slow[value].copy_(saved[name])
        self._due.load_state_dict(state["due"])
        self.num_averaged = state["num_averaged"]

    def _refuse_inside(self, what: str) -> None:
        if self._inside:
            raise ValueError(
                f"a checkpoint is {what} while the averaged weights of {self._me!r} are in place of the weights of the "
                "run; do it outside swapped()"
            )


def load_average(path: str | os.PathLike[str], name: str = "EMA") -> dict[str, Tensor]:
    """The averaged weights out of a checkpoint, on the CPU, without a Brain; never runs code from the file.

    Args:
        path: a checkpoint's folder, or a folder of checkpoints, of which the newest intact one is taken.
        name: the name of the `EMA`.

    Returns:
        Weights for ``brain.modules.load_state_dict``: their names begin with the name of the module.

    Raises:
        FileNotFoundError: there is no such folder.
        CheckpointError: there is no intact checkpoint of a Brain.
        ValueError: it has no average of this name.

    Example:
        >>> import tempfile
        >>> from brainlib.brain import Brain
        >>> from brainlib.checkpoint import Checkpointer
        >>> class Line(Brain):
        ...     def compute_forward(self, batch, stage):
        ...         return self.modules.model(batch)
        ...     def compute_objectives(self, predictions, batch, stage):
        ...         return predictions.pow(2).mean()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     brain = Line(
        ...         {"model": torch.nn.Linear(2, 1)}, lambda p: torch.optim.SGD(p, 0.1), extensions=[EMA()],
        ...         run_opts={"noprogressbar": True}, checkpointer=Checkpointer(folder),
        ...     )
        ...     brain.fit(range(1), [torch.ones(3, 2)])
        ...     brain.modules.load_state_dict(load_average(folder))
        <All keys matched successfully>
    """
    extensions = load_weights(path, "brain")["extensions"]
    averages = {
        each: entry["state"]["average"] for each, entry in extensions.items() if "average" in entry["state"]
    }
    if name not in averages:
        raise ValueError(
            f"{os.fspath(path)} holds no average of the name {name!r}; it has {quoted(sorted(averages))}."
            f"{nearest(name, averages)}"
        )
    return dict(averages[name])
