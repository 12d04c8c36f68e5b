"""One update of several ranks: the same as one process makes, agreed on, and with bare DDP's messages."""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import brainlib as bl
from brainlib.distributed.world import World
from tests.contracts.brains import (
    SEVEN,
    VALID,
    Ema,
    Items,
    Noam,
    Plain,
    TwoOptimizers,
    digest,
    make,
    ready_batches,
    regressor,
    two_fits,
)
from tests.distributed.host import Host


class Exactly:
    """In float64 and without dropout, so that a sum in another order differs in the last bits alone."""

    network = staticmethod(lambda: regressor(dropout=0.0).double())

    def compute_forward(self, batch: Any, stage: bl.Stage) -> Any:
        return super().compute_forward({**batch, "x": batch["x"].double()}, stage)  # type: ignore[misc]

    def compute_objectives(self, predictions: Any, batch: Any, stage: bl.Stage) -> Any:
        return super().compute_objectives(predictions, {**batch, "y": batch["y"].double()}, stage)  # type: ignore[misc]


SPLIT_AT_WILL = {
    cls.__name__: type(cls.__name__, (Exactly, cls), {}) for cls in (Plain, Noam, TwoOptimizers, Ema)
}
FACTORS, NUMBERS = (1, 3), (26, 17, 40)


def same_samples() -> dict[str, Any]:
    """Batches of 8 items a step, however many ranks there are."""
    ended = {}
    for (name, cls), factor, number in itertools.product(SPLIT_AT_WILL.items(), FACTORS, NUMBERS):
        brain = make(cls, grad_accumulation_factor=factor)
        loader = {"batch_size": 8 // World.from_environment().size, "shuffle": True}
        brain.fit(range(2), Items(number), VALID, train_loader_kwargs=loader)
        ended[f"{name} factor {factor}, {number} items"] = {
            "weights": torch.cat([p.detach().flatten() for p in brain.modules.parameters()]).tolist(),
            "losses": [loss for _, *losses in brain.trace for loss in losses],
            "updates": brain.optimizer_step,
        }
    return ended


def test_two_ranks_make_the_update_of_one(host: Host, tmp_path: Path) -> None:
    (one,) = host.run(same_samples, tmp_path / "one", size=1)
    zero, other = host.run(same_samples, tmp_path / "two")
    assert zero == other, "both ranks end with the same bits"
    for name, expected in one.items():
        found = zero[name]
        assert found["updates"] == expected["updates"], name
        assert found["weights"] == pytest.approx(expected["weights"], abs=1e-10), name
        assert found["losses"] == pytest.approx(expected["losses"], abs=1e-10), name


# ------------------------------------------------------------------------------------------------- agreement


class Unlucky(Plain):
    """Rank 1 gets a NaN in a batch, or tells of a loss that is none, while its gradients are good."""

    only_the_loss = False

    def compute_objectives(self, predictions: Any, batch: Any, stage: bl.Stage) -> Any:
        loss = super().compute_objectives(predictions, batch, stage)
        if stage == bl.Stage.TRAIN and self.step == 2 and World.from_environment().rank == 1:
            bad = torch.full_like(loss, math.nan)
            return loss + (bad if self.only_the_loss else loss * bad)
        return loss


def agreement() -> dict[str, Any]:
    told: dict[str, Any] = {}
    world = World.from_environment()
    for factor, only in itertools.product((1, 3), (False, True)):
        brain = make(Unlucky, grad_accumulation_factor=factor)
        brain.only_the_loss = only
        brain.fit(range(2), ready_batches((4,) * 8), VALID)
        told[f"NaN, factor {factor}, only the loss {only}"] = {
            "skipped": brain.run_state.nonfinite_windows,
            "made": brain.optimizer_step,
            "trace": brain.trace,
            "digest": digest(brain),
        }
    brain = make(Unlucky, nonfinite_patience=0)
    with pytest.raises(ValueError, match="1 update in a row"):
        brain.fit(range(1), ready_batches((4,) * 8), VALID)

    for cls, factor in itertools.product(SEVEN, (1, 3)):
        brain = two_fits(make(cls, global_seed=world.rank, grad_accumulation_factor=factor))
        told[f"{cls.__name__} {factor}"] = {"digest": digest(brain), "trace": brain.trace}

    brain = make(Plain)
    brain.fit(range(2), Items(11), VALID, train_loader_kwargs={"batch_size": 2, "shuffle": True})
    with pytest.raises(KeyError), brain.no_sync():
        raise KeyError
    assert all(wrapped.require_backward_grad_sync for wrapped in brain._ranks._wrapped)
    return told


def test_what_ranks_agree_on(host: Host, tmp_path: Path) -> None:
    zero, one = host.run(agreement, tmp_path)
    for name in zero:
        assert repr(zero[name]) == repr(one[name]), name
    for name in (name for name in zero if name.startswith("NaN")):
        assert zero[name]["skipped"] == 2, name
        assert all(math.isfinite(loss) for _, *losses in zero[name]["trace"] for loss in losses)


class Frozen(Plain):
    """The first layer joins in the second epoch."""

    def on_stage_start(self, stage: bl.Stage, epoch: Any = None) -> None:
        if stage == bl.Stage.TRAIN:
            self.modules.model[0].requires_grad_(epoch > 0)


class Norms(Plain):
    network = staticmethod(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 3))
    )


def wrappings() -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name, cls, options in (
        ("frozen", Frozen, {}),
        ("batch norm", Norms, {}),
        ("unused", Frozen, {"find_unused_parameters": True}),
        ("static", Plain, {"static_graph": True}),
        ("views", Plain, {"gradient_as_bucket_view": True, "grad_accumulation_factor": 2}),
        ("bf16", Plain, {"precision": "bf16"}),
    ):
        brain = make(cls, **options)
        model = brain.modules.model
        brain.fit(range(3), Items(), VALID, train_loader_kwargs={"batch_size": 4})
        told[name] = {"digest": digest(brain), "trace": brain.trace}
        assert brain.modules.model is model and type(model) is nn.Sequential
        assert all(not key.startswith("module.") for key in model.state_dict())
    return told


def test_wrapping_leaves_the_modules_alone(host: Host, tmp_path: Path) -> None:
    zero, one = host.run(wrappings, tmp_path)
    assert zero == one


def loses_a_schedule(folder: str) -> None:
    brain = Plain(
        Plain.build(),
        lambda params: torch.optim.SGD(params, 0.1),
        {"seed": 1, "lost": bl.NewBob(0.1)},
        {"noprogressbar": True, "device": "cpu"},
        bl.Checkpointer(folder),
    )
    brain.fit(range(1), ready_batches((4,) * 4))


def test_what_no_checkpoint_holds_is_said_by_the_main_rank(host: Host, tmp_path: Path) -> None:
    ended = host.start(loses_a_schedule, tmp_path, str(tmp_path / "save"))
    assert [each.output.count("no checkpoint holds hparams.lost (NewBob)") for each in ended] == [1, 0]


# -------------------------------------------------------------------------------------- errors of the user's


class Unused(Plain):
    on_rank = 0

    def compute_forward(self, batch: Any, stage: bl.Stage) -> Any:
        if self.step == 3 and World.from_environment().rank >= self.on_rank:
            return self.modules.model[3](torch.zeros(len(batch["x"]), 16))
        return super().compute_forward(batch, stage)


class NoGraph(Plain):
    def compute_objectives(self, predictions: Any, batch: Any, stage: bl.Stage) -> Any:
        loss = super().compute_objectives(predictions, batch, stage)
        return loss.detach() if self.step == 3 and World.from_environment().rank == 1 else loss


def leaves_parameters_out(kind: str, find: bool) -> str:
    brain = make(
        {"unused": Unused, "no graph": NoGraph}[kind], find_unused_parameters=find, dist_timeout_seconds=20
    )
    brain.on_rank = 1  # type: ignore[attr-defined]
    brain.fit(range(1), ready_batches((4,) * 10), VALID)
    return digest(brain)


def test_parameters_that_one_rank_leaves_out(host: Host, tmp_path: Path) -> None:
    ended = host.start(leaves_parameters_out, tmp_path, "unused", False)
    assert [each.status for each in ended] == [1, 1]
    assert "the parameters 'model.0.weight', 'model.0.bias' got no gradient on rank 1" in ended[1].output
    assert "set find_unused_parameters: true" in ended[0].output, "the peer's one line tells why"
    assert "Traceback" not in ended[0].output
    zero, one = host.run(leaves_parameters_out, tmp_path, "unused", True)
    assert zero == one


def test_a_loss_without_a_graph_on_one_rank(host: Host, tmp_path: Path) -> None:
    ended = host.start(leaves_parameters_out, tmp_path, "no graph", False)
    assert [each.status for each in ended] == [1, 1]
    assert "the loss has no graph, so that the parameters got no gradient on rank 1" in ended[1].output
    assert "Traceback" not in ended[0].output


class Odd(Plain):
    """Its loss is not what one expects."""

    loss: Callable[[torch.Tensor], torch.Tensor] = staticmethod(lambda loss: loss)

    def compute_objectives(self, predictions: Any, batch: Any, stage: bl.Stage) -> Any:
        loss = super().compute_objectives(predictions, batch, stage)
        return self.loss(loss) if stage == bl.Stage.TRAIN else loss


LOSSES: dict[str, Any] = {
    "scalar": lambda loss: loss,
    "of one": lambda loss: loss.reshape(1),
    "of one in two dimensions": lambda loss: loss.reshape(1, 1),
    "vector": lambda loss: loss.expand(4),
    "empty": lambda loss: loss.new_zeros(0),
    "complex": lambda loss: loss * (1 + 0j),
    "count": lambda loss: loss.long(),
    "without a graph": lambda loss: loss.detach(),
}
REFUSED = {
    "vector": "returned a tensor of shape [4]; the loss must be a scalar",
    "empty": "returned a tensor of shape [0]; the loss must be a scalar",
    "complex": "returned a loss of the type torch.complex64; it must be a real number",
    "count": "returned a loss of the type torch.int64; it must be a real number",
    "without a graph": "returned a loss without a graph",
}


def trains_on(loss: str, factor: int) -> str:
    brain = make(Odd, grad_accumulation_factor=factor)
    brain.loss = LOSSES[loss]
    brain.fit(range(1), ready_batches((4,) * 8), VALID)
    return digest(brain)


@pytest.mark.parametrize("size", [1, 2])
def test_a_loss_may_have_one_entry_in_any_number_of_dimensions(host: Host, tmp_path: Path, size: int) -> None:
    plain, *others = (
        host.run(trains_on, tmp_path, loss, 2, size=size) for loss in list(LOSSES) if loss not in REFUSED
    )
    assert len(others) == 2 and all(other == plain for other in others)


@pytest.mark.parametrize("loss", REFUSED)
def test_what_is_no_loss_is_refused(loss: str) -> None:
    with pytest.raises(ValueError, match=re.escape(REFUSED[loss])):
        trains_on(loss, 1)


@pytest.mark.parametrize(
    ("loss", "factor"), [("vector", 1), ("vector", 2), ("empty", 1), ("complex", 1), ("without a graph", 2)]
)
def test_what_is_no_loss_is_refused_by_ranks_too(host: Host, tmp_path: Path, loss: str, factor: int) -> None:
    ended = host.start(trains_on, tmp_path, loss, factor)
    assert all(each.status == 1 for each in ended)
    assert any(REFUSED[loss] in each.output for each in ended), ended[0].output


def trains_nothing() -> None:
    brain = make(
        type("Frozen", (Plain,), {"network": staticmethod(lambda: regressor().requires_grad_(False))})
    )
    brain.fit(range(1), ready_batches(), VALID)


def test_a_brain_in_which_nothing_is_trained_is_refused_by_ranks_as_by_one_process(
    host: Host, tmp_path: Path
) -> None:
    for size in (1, 2):
        ended = host.start(trains_nothing, tmp_path, size=size)
        assert all(each.status == 1 for each in ended)
        assert any("modules that are all frozen" in each.output for each in ended)


class Freezes(Plain):
    """In the middle of an epoch."""

    def on_fit_batch_start(self, batch: Any, should_step: bool) -> None:
        self.modules.model[0].requires_grad_(self.step < 3)


def learns_the_graph(kind: str) -> str:
    options = {"static": {"static_graph": True, "grad_accumulation_factor": 2}, "freezes": {}, "finds": {}}[
        kind
    ]
    brain = make(Plain if kind == "static" else Freezes, find_unused_parameters=kind == "finds", **options)
    brain.fit(range(1), ready_batches((4,) * 10), VALID)
    return digest(brain)


def test_an_option_that_does_not_go_with_the_steps_is_named(host: Host, tmp_path: Path) -> None:
    ended = host.start(learns_the_graph, tmp_path, "static")
    assert all(each.status == 1 for each in ended)
    assert any("static_graph: true does not go with accumulation" in each.output for each in ended)
    ended = host.start(learns_the_graph, tmp_path, "freezes")
    assert all(each.status == 1 for each in ended)
    assert any(
        "the parameters 'model.0.weight', 'model.0.bias' got no gradient" in each.output for each in ended
    )
    zero, one = host.run(learns_the_graph, tmp_path, "finds")
    assert zero == one


# -------------------------------------------------------------------------------------- modules of all kinds

KINDS = [torch.bool, torch.int16, torch.uint16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64]


class Stored(nn.Module):
    """Parameters and buffers of kinds that are stored, and not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)
        for number, kind in enumerate(KINDS):
            kept = torch.rand(3).mul(2).to(kind)
            self.register_parameter(f"kept_{number}", nn.Parameter(kept, requires_grad=False))
            self.register_buffer(f"noted_{number}", kept.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(6, 8, dtype=torch.complex64))
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last((x.to(torch.complex64) @ self.first).abs())


class SparseTable(nn.Module):
    """An embedding whose gradient is sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 6, sparse=True)
        self.last = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x + self.table(x[:, 0].mul(3).long().abs() % 10))


def of_all_kinds() -> dict[str, Any]:
    told: dict[str, Any] = {}
    size = World.from_environment().size
    for kind in (Stored, Complex, SparseTable):
        options = {
            "network": staticmethod(kind),
            "opt_factory": staticmethod(lambda p: torch.optim.SGD(p, 0.1)),
        }
        brain = make(type("OfKind", (Plain,), options))
        loader = {"batch_size": 8 // size, "shuffle": True}
        brain.fit(range(2), Items(32), VALID, train_loader_kwargs=loader)
        bits = [each.detach().reshape(-1).view(torch.uint8) for each in brain.modules.state_dict().values()]
        told[kind.__name__] = {"bits": torch.cat(bits).tolist(), "losses": brain.trace[-1][1:]}
    return told


def test_modules_of_all_kinds_are_shared_and_trained(host: Host, tmp_path: Path) -> None:
    (alone,) = host.run(of_all_kinds, tmp_path / "one", size=1)
    zero, one = host.run(of_all_kinds, tmp_path / "two")
    for name, told in alone.items():
        assert zero[name]["bits"] == one[name]["bits"], name
        assert zero[name]["losses"] == pytest.approx(told["losses"], abs=1e-5), name


def other_modules() -> None:
    torch.manual_seed(0)
    width = 4 + World.from_environment().rank
    brain = Plain(
        {"model": nn.Linear(6, width)}, lambda p: torch.optim.SGD(p, 0.1), run_opts={"device": "cpu"}
    )
    brain.fit(range(1), ready_batches())


def test_ranks_with_different_modules(host: Host, tmp_path: Path) -> None:
    ended = host.start(other_modules, tmp_path)
    assert all(each.status == 1 for each in ended)
    assert any("rank 1 has other modules than rank 0: 'model.bias (4,)" in each.output for each in ended)


def other_data(kind: str) -> None:
    rank = World.from_environment().rank
    # Who waited for an exchange would be killed by the host long before this time is over.
    brain, epochs, valid = make(Plain, dist_timeout_seconds=600), range(2), VALID
    train: Any = ready_batches()
    loader: dict[str, Any] | None = None
    if kind == "train_set":
        train, loader = Items(11 + 4 * rank), {"batch_size": 3}
    elif kind == "epoch_counter":
        epochs = range(1 + rank)
    elif kind == "test_set":
        brain.evaluate(VALID[rank:])
    brain.fit(epochs, train, None if rank and kind == "valid_set" else valid, train_loader_kwargs=loader)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (
            "train_set",
            "items: 15, batch_size: 3, batches: 5 there and items: 11, batch_size: 3, batches: 4 on",
        ),
        ("epoch_counter", "epochs: 2 there and epochs: 1 on"),
        ("valid_set", "nothing there and batches: 3 on"),
        ("test_set", "batches: 2 there and batches: 3 on"),
    ],
)
def test_ranks_that_are_given_different_data_end_at_once(
    host: Host, tmp_path: Path, kind: str, told: str
) -> None:
    ended = host.start(other_data, tmp_path, kind)
    assert all(each.status == 1 for each in ended)
    expected = f"rank 1 was given other data than rank 0: {kind} has {told} rank 0"
    assert any(expected in each.output for each in ended), ended[0].output


# ---------------------------------------------------------------------------------------------------- counts


def counts() -> dict[str, Any]:
    told: dict[str, Any] = {}
    per_step: list[dict[str, int]] = []

    class Counting(Plain):
        def on_fit_batch_start(self, batch: Any, should_step: bool) -> None:
            self.profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
            self.profile.start()

        def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Any, should_step: bool) -> None:
            self.profile.stop()
            per_step.append(_messages(self.profile))
            del self.profile

    brain = make(Counting, grad_accumulation_factor=2)
    brain.fit(range(2), ready_batches((4,) * 9))
    told["ours"] = per_step[:]
    per_step.clear()

    bare = DistributedDataParallel(copy.deepcopy(brain.modules.model))
    for step in range(4):
        profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        profile.start()
        bare(torch.ones(2, 6)).sum().backward()
        profile.stop()
        if step >= 2:
            per_step.append(_messages(profile))
    told["bare"] = per_step
    return told


def _messages(profile: Any) -> dict[str, int]:
    return dict(Counter(event.name for event in profile.events() if event.name.startswith("gloo:")))


def test_messages_a_step_are_bare_ddps(host: Host, tmp_path: Path) -> None:
    for told in host.run(counts, tmp_path):
        bare = told["bare"][0]
        assert bare and all(each == bare for each in told["bare"])
        assert told["ours"] == [{}, bare, {}, bare, bare] * 2, "first, steady, tail and last"


# ---------------------------------------------------------------------------------------------------- drift


class Bypass(Plain):
    """Its fit_batch calls a part of the module, which goes round what synchronizes it."""

    def fit_batch(self, batch: Any) -> Any:
        first, *others = self.modules.model
        loss = nn.functional.mse_loss(nn.Sequential(first, *others)(batch["x"]), batch["y"])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


class Meddles(Plain):
    """One rank changes its weights by itself, long after the first updates."""

    def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Any, should_step: bool) -> None:
        if self.optimizer_step == 12 and World.from_environment().rank == 1:
            with torch.no_grad():
                self.modules.model[0].weight[0, 0] += 1e-6


def drifts(kind: str, home: str) -> None:
    brain = make({"bypass": Bypass, "meddles": Meddles}[kind], bl.Checkpointer(home))
    brain.fit(range(2), ready_batches((4,) * 40), VALID)


@pytest.mark.parametrize(
    ("kind", "when"), [("bypass", "after update 1"), ("meddles", "when a checkpoint was made")]
)
def test_weights_that_drift_apart_are_an_error(host: Host, tmp_path: Path, kind: str, when: str) -> None:
    ended = host.start(drifts, tmp_path, kind, str(tmp_path / "save"))
    assert all(each.status == 1 for each in ended)
    assert any(
        f"{when}, the weights of 'model' on rank 1 are not those of rank 0" in each.output for each in ended
    )
    assert not (tmp_path / "save").exists() or not list((tmp_path / "save").glob("step-*"))
