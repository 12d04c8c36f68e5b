"""The wrapper round the step, and what rides along with the gradients.

Where several ranks train one model, DDP averages their gradients while they are computed. What else they have to agree
on at an update (the weight of the window, a request to stop, the time) is the gradient of one more parameter, the
*carrier*: it arrives with the others, and costs no message of its own.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from brainlib.common.errors import quoted
from brainlib.common.logs import logger
from brainlib.distributed.group import gather, link
from brainlib.distributed.options import DistributedOptions
from brainlib.distributed.world import World
from brainlib.run_state import RunState

__all__ = ["COMPARED_AT", "Agreed", "Ranks"]

COMPARED_AT = frozenset((1, 2, 10))  # updates after which the ranks compare their weights, besides each save

# What the carrier carries, each the sum over ranks once it has arrived.
_WEIGHT, _WEIGHTED_LOSS, _LOSS, _COUNT, _SIGNALS, _SIGNALED, _SECONDS, _BUSY, _ARRIVED = range(9)
_NUM_CARRIED = 9

_ALL_ALIKE: AbstractContextManager[None] = nullcontext()


class Agreed:
    """What all ranks know alike, since the last update or meeting.

    Attributes:
        seconds: the clock of the main process.
        asked: the signal that some rank was asked to stop by; 0: none.
        busy: whether the main process was still writing a checkpoint.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()
        self.seconds = 0.0
        self.asked = 0
        self.busy = False

    def now(self) -> float:
        """The time on the clock of this process, since it began; only the main one's counts."""
        return self._clock() - self._began

    def take(self, seconds: float, signals: float, signaled: float, busy: float) -> None:
        """What the ranks have told, added up."""
        self.seconds, self.busy = seconds, busy > 0
        if signaled > 0 and not self.asked:
            told = round(signals / signaled)
            self.asked = (
                told if told in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1) else int(signal.SIGTERM)
            )


class _Step(torch.nn.Module):
    """What DDP wraps: the modules of a Brain, and the carrier. Its forward is the user's two methods.

    Args:
        modules: what is trained.
        compute: from a batch to outputs and loss.
        searched: whether DDP follows the graph from what forward returns; it does not see a parameter at its end.
    """

    def __init__(
        self, modules: torch.nn.Module, compute: Callable[[Any], tuple[Any, Tensor]], searched: bool
    ) -> None:
        super().__init__()
        self.trained = modules
        self.carrier = torch.nn.Parameter(torch.zeros(_NUM_CARRIED, **_kind_of_carrier(modules)))
        self._compute = compute
        self._searched = searched
        self.outputs: list[Any] = [None]  # beside what forward returns, so that DDP does not search them

    def forward(self, batch: Any, warming: bool) -> tuple[Tensor, Tensor]:
        if warming:
            loss = _of_all(self.trained)
        else:
            self.outputs[0], loss = self._compute(batch)
        return loss, self.carrier.clone() if self._searched else self.carrier


def _of_all(modules: torch.nn.Module) -> Tensor:
    """Zero, as a function of all that is trained; each parameter gets a gradient of the kind that DDP expects of it."""
    sparse = {
        id(each.weight)
        for each in modules.modules()
        if isinstance(each, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and each.sparse
    }
    total = torch.zeros(())
    for param in modules.parameters():
        if param.requires_grad:
            part: Tensor = param
            if id(param) in sparse:
                first = torch.zeros(1, dtype=torch.int64, device=param.device)
                part = torch.nn.functional.embedding(first, param, sparse=True)
            total = total + (part.real if part.is_complex() else part).sum() * 0
    return total


def _kind_of_carrier(modules: torch.nn.Module) -> dict[str, Any]:
    """The kind of most parameters, so that it rides in their bucket; float32 where theirs would round weights away."""
    params = [param for param in modules.parameters() if param.requires_grad]
    if not params:
        return {}
    kinds = [param.dtype for param in params]
    most = max(set(kinds), key=kinds.count)
    return {
        "dtype": most if most in (torch.float32, torch.float64) else torch.float32,
        "device": params[0].device,
    }


class Ranks:
    """How the ranks of a run train together. With one process nobody is asked.

    Args:
        world: who takes part.
        options: how gradients are exchanged.
        device: where this rank computes.
        clock: seconds; the main process's decides what is due.
    """

    def __init__(
        self,
        world: World,
        options: DistributedOptions,
        device: torch.device,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.world = world
        self._device = device
        self.agreed = Agreed(clock)
        self.step: Any = None  # DDP round the step, where `fit_batch` is ours
        self._inside: Any = None  # what is in it
        self._root: Tensor | None = None  # the weight of the last micro-batch, as a gradient
        self._root_weight = math.nan
        self._has_graph = True  # the loss of the last micro-batch
        self._letter: Tensor | None = None  # what this rank tells the others, on a CPU
        self._written: Any = None  # the same memory, for numpy
        self._signal: Callable[[], int] = lambda: 0  # what this process was asked to stop by
        self._ask: Callable[[int], None] = lambda signum: None  # another one was
        self.busy: Callable[[], bool] = lambda: False  # whether it is writing a checkpoint
        self._options = options
        self._wrapped: list[Any] = []  # all there are
        self._routed: list[torch.nn.Module] = []
        self._trained: list[int] = []
        self._graph_is_known = False  # to a wrapper that keeps to the first one
        self._exchanged = (
            False  # whether this window's agreement has been reached, with a `fit_batch` of the user's
        )

    def listen(self, signal_of: Callable[[], int], ask: Callable[[int], None]) -> None:
        """Who knows what this process was asked to stop by, and who is told that another one was."""
        self._signal, self._ask = signal_of, ask
        self.agreed.asked = 0

    def agreed_to_stop(self) -> bool:
        """Whether a request to stop is known to all ranks. One that a launcher sends since another rank has failed ends
        this process.

        Raises:
            PeerLost: so it is.
        """
        if self.world.size == 1:
            return True
        link().peers.raise_if_lost(None)
        return self.agreed.asked > 0

    def begin(self) -> None:
        """A fit begins, for all. All ranks."""
        if self.world.size > 1:
            self.meet()

    def end(self) -> None:
        """It has come to its end on all, and a request to stop after the last update is known to all. All ranks."""
        if self.world.size > 1:
            self.meet()

    def fail(self, error: BaseException) -> None:
        """A fit ends by an error: the others are told at once, while this process still cleans up."""
        if self.world.size > 1:
            link().peers.fail(error)

    # ------------------------------------------------------------------------------------------------------ wrapping

    def share_weights(self, modules: torch.nn.Module) -> None:
        """All ranks begin with the weights and buffers of the main one. All ranks.

        Raises:
            ValueError: the ranks have different modules.
        """
        if self.world.size == 1:
            return
        state = [
            *modules.named_parameters(remove_duplicate=False),
            *modules.named_buffers(remove_duplicate=False),
        ]
        mine = [
            f"{name} {tuple(t.shape)} {t.dtype}" for name, t in state if not torch.nn.parameter.is_lazy(t)
        ]
        first, *others = gather(mine)
        for rank, theirs in enumerate(others, 1):
            if theirs != first:
                differing = sorted(set(first).symmetric_difference(theirs))[:6]
                raise ValueError(
                    f"rank {rank} has other modules than rank 0: {quoted(differing)} is in one of them alone. Build "
                    "the same modules in the same order on all ranks"
                )
        self._broadcast([t for _, t in state])

    def check_same_data(self, given: Mapping[str, Mapping[str, Any]]) -> None:
        """All ranks must have been given the same sets, since each reads them all and takes its share. All ranks.

        Args:
            given: what is known of each set, by its name.

        Raises:
            ValueError: they have not; the message names the sets, and what differs.
        """
        if self.world.size == 1:
            return
        first, *others = gather({name: dict(known) for name, known in given.items()})
        for rank, theirs in enumerate(others, 1):
            differing = [
                f"{name} has {_told_of(theirs.get(name))} there and {_told_of(first.get(name))} on rank 0"
                for name in {**first, **theirs}
                if theirs.get(name) != first.get(name)
            ]
            if differing:
                raise ValueError(
                    f"rank {rank} was given other data than rank 0: {'; '.join(differing)}. The batches of one order "
                    "are dealt out to the ranks, and where it is not the same on all they would wait for one another: "
                    "give each rank the same sets, whole, with the same options"
                )

    def share_buffers(self, modules: torch.nn.Module) -> None:
        """Running statistics are those of the main process. One message a kind of tensor. All ranks."""
        if self.world.size > 1:
            self._broadcast(list(modules.buffers()))

    @torch.no_grad()
    def _broadcast(self, tensors: Iterable[Tensor]) -> None:
        alike: dict[Any, list[Tensor]] = {}
        for tensor in tensors:
            if not torch.nn.parameter.is_lazy(tensor) and tensor.numel():
                alike.setdefault((tensor.device, tensor.dtype), []).append(tensor.detach())
        with link().peers.explained():
            for some in alike.values():
                flat = torch.cat([tensor.reshape(-1) for tensor in some])
                dist.broadcast(
                    flat.view(torch.uint8), src=0
                )  # bytes: gloo does not know all kinds of numbers
                if not self.world.is_main:
                    for tensor, part in zip(
                        some, torch.split(flat, [each.numel() for each in some]), strict=True
                    ):
                        tensor.copy_(part.view_as(tensor))

    def wrap(
        self, modules: torch.nn.ModuleDict, compute: Callable[[Any], tuple[Any, Tensor]], one_by_one: bool
    ) -> None:
        """Make the wrapper, or a new one where other parameters are trained than before. All ranks.

        Args:
            modules: what is trained.
            compute: from a batch to outputs and loss.
            one_by_one: whether ``fit_batch`` is the user's and calls the modules itself.
        """
        if self.world.size == 1:
            return
        trained = [id(param) for param in modules.parameters() if param.requires_grad]
        if self._wrapped and trained == self._trained:
            return
        first = not self._wrapped
        self.unwrap()
        self._trained = trained
        if not one_by_one:
            options = self._options
            self._inside = _Step(modules, compute, options.find_unused_parameters or options.static_graph)
            self.step = self._ddp(self._inside)
            self._warm_up(self.step, modules)
            return
        names = [
            name for name, module in modules.items() if any(p.requires_grad for p in module.parameters())
        ]
        _refuse_shared({name: modules[name] for name in names})
        if first and self.world.is_main:
            logger.info(
                "fit_batch is your own: each of the modules %s is synchronized by itself; call them by "
                "self.modules.NAME(...), since what goes round that is not synchronized",
                quoted(names),
            )
        for name in names:
            self._route(modules[name])

    def _route(self, module: torch.nn.Module) -> None:
        """Calls of the module go through DDP. `Module.__call__` looks there, as it does for ``module.compile()``."""
        inner = module._compiled_call_impl or module._call_impl
        wrapped = self._ddp(_Routed(module, inner))
        before = module._compiled_call_impl

        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled() and module.training:
                with link().peers.explained():
                    return wrapped(*args, **kwargs)
            return inner(*args, **kwargs)

        module._compiled_call_impl = call
        module.__dict__["_brainlib_unrouted"] = before
        self._routed.append(module)

    def _ddp(self, module: torch.nn.Module) -> Any:
        from torch.nn.parallel import DistributedDataParallel  # dear to load

        wrapped = DistributedDataParallel(
            module,
            forward_sync_buffers=False,  # see `share_buffers`
            init_sync=False,  # see `share_weights`
            find_unused_parameters=self._options.find_unused_parameters,
            static_graph=self._options.static_graph,
            gradient_as_bucket_view=self._options.gradient_as_bucket_view,
        )
        self._wrapped.append(wrapped)
        return wrapped

    def _warm_up(self, step: Any, modules: torch.nn.Module) -> None:
        """DDP arranges its buckets anew after the first backward, which changes the order in which three and more ranks
        are added. It does so here, so that a resumed run adds as one that was not cut.
        """
        if self._options.static_graph:
            return  # it would take this for the graph of all steps
        params = list(modules.parameters())
        pending = [param.grad for param in params]
        for _ in range(2):
            for param in params:
                param.grad = None
            loss, carried = step(None, True)
            (loss + carried.sum()).backward()
        self._inside.carrier.grad = None
        for param, grad in zip(params, pending, strict=True):
            param.grad = grad

    def unwrap(self) -> None:
        """Modules are called as they were before."""
        for module in self._routed:
            module._compiled_call_impl = module.__dict__.pop("_brainlib_unrouted")
        for wrapped in self._wrapped:
            wrapped._remove_autograd_hooks()
        self._wrapped, self._routed, self._trained = [], [], []
        self.step = self._inside = self._root = self._letter = self._written = None
        self._graph_is_known = False

    def check_alike(self, modules: torch.nn.ModuleDict, when: str) -> None:
        """All ranks must have the same weights. All ranks.

        Raises:
            RuntimeError: they have not; the message names the modules, and what it may come from.
        """
        if self.world.size == 1:
            return
        mine = {name: _digest(module) for name, module in modules.items()}
        first, *others = gather(mine)
        for rank, theirs in enumerate(others, 1):
            if differing := [name for name in first if theirs[name] != first[name]]:
                raise RuntimeError(
                    f"{when}, the weights of {quoted(differing)} on rank {rank} are not those of rank 0: their "
                    "gradients were not exchanged, or a rank changed them by itself. Call modules by "
                    "self.modules.NAME(...) and not a part of them, do on all ranks what changes weights, and train no "
                    "copy of a module that is not in `modules`"
                )

    # -------------------------------------------------------------------------------------------------------- a step

    def no_sync(self) -> AbstractContextManager[None]:
        """Inside, gradients are summed here, and not exchanged; it ends with the block, also after an error.

        Raises:
            ValueError: for a static graph that DDP does not know yet.
        """
        if not self._wrapped:
            return _ALL_ALIKE
        if self._options.static_graph and not self._graph_is_known:
            raise ValueError(
                "static_graph: true does not go with accumulation: DDP learns the graph in its first step, which has "
                "to exchange gradients, and this one does not (no_sync). Leave static_graph out, or set "
                "grad_accumulation_factor: 1"
            )
        return self._apart()

    @contextmanager
    def _apart(self) -> Iterator[None]:
        with ExitStack() as stack:
            for wrapped in self._wrapped:
                stack.enter_context(wrapped.no_sync())
            yield

    def forward(self, batch: Any) -> tuple[Any, Tensor, Tensor]:
        """The user's two methods, inside what DDP wraps: outputs, loss, and the carrier to add to it."""
        loss, carried = self.step(batch, False)
        held = self._inside.outputs
        outputs, held[0] = held[0], None
        return outputs, loss, carried

    def backward(
        self, total: Tensor, carried: Tensor, loss: Tensor, weight: float, run: RunState, closes: bool
    ) -> None:
        """Backward of a micro-batch that weighs `weight`. The weight is the gradient it begins with; where the window
        closes, what this rank tells the others is that of the carrier.
        """
        roots: tuple[Tensor, ...] = ()
        gradients: tuple[Tensor, ...] = ()
        self._has_graph = total.requires_grad
        if self._has_graph or not closes or not self._trained:
            roots, gradients = (total,), (self._as_root(total, weight),)
        if closes:
            roots, gradients = (*roots, carried), (*gradients, self._told(carried, loss, weight, run))
        # What `torch.autograd.backward` checks in Python costs more than the carrier; `_as_root` checks enough.
        torch.autograd.graph._engine_run_backward(
            roots, gradients, False, False, (), allow_unreachable=True, accumulate_grad=True
        )

    def _as_root(self, total: Tensor, weight: float) -> Tensor:
        """The weight as the gradient of `total`: mostly that of the last time.

        Raises:
            RuntimeError: it is no real scalar; the engine would not object to all of these.
        """
        root = self._root
        if (
            root is None
            or self._root_weight != weight
            or root.shape != total.shape
            or root.dtype is not total.dtype
            or root.device != total.device
        ):
            if total.numel() != 1 or not total.is_floating_point():
                raise RuntimeError(
                    f"a loss of shape {list(total.shape)} and type {total.dtype}; it must be a real scalar"
                )
            root, self._root_weight = total.new_full(total.shape, weight), weight
            self._root = root
        return root

    def _told(self, carried: Tensor, loss: Tensor, weight: float, run: RunState) -> Tensor:
        """What this rank tells the others of the window. On an accelerator losses stay there."""
        on_host = loss.device.type == "cpu"
        weights = weighted = summed = num = 0.0
        for each, its_weight in [*run.pending, (loss.detach(), weight)]:
            if its_weight:
                value: Any = float(each) if on_host else each
                weights += its_weight
                weighted += value * its_weight
                summed += value
                num += 1.0
        main = self.world.is_main
        told = [weights, weighted, summed, num, *self._flags(), self.world.size if main else 0.0]
        if carried.device.type == "cpu" and on_host:
            if self._letter is None:
                self._letter = torch.empty_like(carried, requires_grad=False)
                self._written = self._letter.numpy()
            self._written[:] = told
            return self._letter
        told[_WEIGHTED_LOSS] = told[_LOSS] = 0.0
        gradient = carried.new_tensor(told)
        gradient[_WEIGHTED_LOSS], gradient[_LOSS] = weighted, summed
        return gradient

    def _flags(self) -> list[float]:
        """What this rank has to say besides: a request to stop, and, the main one, time and whether it writes."""
        asked = self._signal()
        main = self.world.is_main
        return [
            float(asked),
            float(asked > 0),
            self.agreed.now() if main else 0.0,
            float(main and self.busy()),
        ]

    def agree(self, run: RunState) -> None:
        """Before an update: weight and loss become those of all ranks, and what else was told is known. All ranks."""
        self._graph_is_known = True
        if self.step is not None:
            self._take(self._arrived(), run)
        elif not self._exchanged:
            self._exchanged = True
            self._take(self._exchange(run), run)

    def next_window(self) -> None:
        """With a ``fit_batch`` of the user's: this window is judged, the next one has to be agreed on again."""
        self._exchanged = False

    def explain(self, error: BaseException) -> None:
        """An error came in the exchange of gradients: if that is because another rank is gone, end with one line.

        Raises:
            PeerLost: so it is.
        """
        if self.world.size > 1:
            link().peers.explain(error)

    def _arrived(self) -> list[float]:
        carrier = self._inside.carrier
        told = carrier.grad.tolist() if carrier.grad is not None else [math.nan] * _NUM_CARRIED
        carrier.grad = None
        if (
            told[_ARRIVED] != 1.0
        ):  # the main rank put the number of ranks there, the others 0, and DDP averages
            not_exchanged = "the gradients of this step were not exchanged between the ranks, because"
            if not self._has_graph:
                raise RuntimeError(
                    f"{not_exchanged} the loss has no graph, so that the parameters got no gradient on rank "
                    f"{self.world.rank}: nothing in it depends on a parameter that requires one. Look for .detach(), "
                    ".item() or torch.no_grad(); if a step may have no gradients, set find_unused_parameters: true"
                )
            raise RuntimeError(
                f"{not_exchanged} {self._unused()} got no gradient on rank {self.world.rank}. If a step may leave "
                "parameters out, set find_unused_parameters: true; if they are never used, freeze them with "
                "requires_grad_(False)."
            )
        size = self.world.size
        return [value * size for value in told]

    def _unused(self) -> str:
        trained = set(self._trained)  # some may have been frozen since
        lacking = [
            name
            for name, param in self._inside.trained.named_parameters()
            if id(param) in trained and param.grad is None
        ]
        return f"the parameters {quoted(lacking[:8])}" if lacking else "some parameter"

    def _exchange(self, run: RunState) -> list[float]:
        counting = [(float(loss), weight) for loss, weight in run.pending if weight]
        told = torch.tensor(
            [
                sum(weight for _, weight in counting),
                sum(loss * weight for loss, weight in counting),
                sum(loss for loss, _ in counting),
                float(len(counting)),
                *self._flags(),
                0.0,
            ],
            dtype=torch.float64,
        )
        with link().peers.explained():
            dist.all_reduce(told)
        return told.tolist()

    def _take(self, told: list[float], run: RunState) -> None:
        self._heed(told[_SECONDS], told[_SIGNALS], told[_SIGNALED], told[_BUSY])
        count, weight = round(told[_COUNT]), told[_WEIGHT]
        run.weight = weight
        if not count:
            run.pending = []
        elif run.by_items:
            run.pending = [(self._on_device(told[_WEIGHTED_LOSS] / weight), weight)]
        else:
            run.pending = [(self._on_device(told[_LOSS] / count), weight / count)] * count

    def _on_device(self, loss: float) -> float | Tensor:
        """Where a guard looks for losses that are not finite."""
        return loss if self._device.type == "cpu" else torch.tensor(loss, device=self._device)

    def _heed(self, seconds: float, signals: float, signaled: float, busy: float) -> None:
        self.agreed.take(seconds, signals, signaled, busy)
        if self.agreed.asked:
            self._ask(self.agreed.asked)

    def share_loss(self, loss: float, weight: float) -> tuple[float, float]:
        """A loss that was told after its update: the mean over ranks, and the weight of all. All ranks."""
        told = torch.tensor([loss * weight if weight else 0.0, weight], dtype=torch.float64)
        with link().peers.explained():
            dist.all_reduce(told)
        total, weights = told.tolist()
        return total / weights, weights

    def meet(self, value: Any = None) -> list[Any]:
        """Outside of updates: the values of all ranks, and what else there is to agree on. All ranks."""
        told = gather((value, *self._flags()))
        sums = [sum(each) for each in zip(*[flags for _, *flags in told], strict=True)]
        self._heed(sums[2], sums[0], sums[1], sums[3])
        return [value for value, *_ in told]


def _told_of(known: Mapping[str, Any] | None) -> str:
    """What is known of a set, for a message.

    >>> _told_of({"items": 5, "batch_size": 2}), _told_of(None)
    ('items: 5, batch_size: 2', 'nothing')
    """
    if known is None:
        return "nothing"
    return ", ".join(f"{name}: {value}" for name, value in known.items()) or "batches of unknown number"


@torch.no_grad()
def _digest(module: torch.nn.Module) -> list[Any]:
    """A sum of the bits of each parameter, computed where it is."""
    params = [
        param for param in module.parameters() if not torch.nn.parameter.is_lazy(param) and param.numel()
    ]
    return [torch.hash_tensor(_hashable(param.detach())).view(torch.int64).item() for param in params]


_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _hashable(tensor: Tensor) -> Tensor:
    """The same bits as numbers that torch can sum up: not complex, and of no kind that it merely stores."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    known = tensor.dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool)
    return tensor if known else tensor.view(_WHOLE[tensor.element_size()])


class _Routed(torch.nn.Module):
    """A module inside DDP that is called by its inner way, since its outer one leads to DDP."""

    def __init__(self, module: torch.nn.Module, inner: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self._inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner(*args, **kwargs)


def _refuse_shared(modules: Mapping[str, torch.nn.Module]) -> None:
    owner: dict[int, str] = {}
    for name, module in modules.items():
        for param in module.parameters():
            if owner.setdefault(id(param), name) != name:
                raise ValueError(
                    f"the modules {owner[id(param)]!r} and {name!r} share parameters. With a fit_batch of your own and "
                    "several processes each module is synchronized by itself, so a parameter can be in one alone: give "
                    "the Brain the outer of the two"
                )
