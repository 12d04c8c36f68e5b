"""Each kind of object: what comes back, and what is said when it does not fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from brainlib.checkpoint import Checkpoint, CheckpointError
from brainlib.checkpoint.recoverables import covered, kind_of
from tests.checkpoint.small import Counter, fill, linear, value_of
from tests.checkpoint.small import Foreground as Checkpointer


def save(folder: Path, **objects: Any) -> Checkpoint:
    return Checkpointer(folder, objects).save_checkpoint()


def load(folder: Path, **objects: Any) -> None:
    assert Checkpointer(folder, objects).recover_if_possible() is not None


def refused(folder: Path, **objects: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        Checkpointer(folder, objects).recover_if_possible()
    return str(caught.value)


# -------------------------------------------------------------------------------------------------------------- modules


class WithExtra(nn.Module):
    """A module with a state that is no tensor, and a buffer that is not saved."""

    def __init__(self, words: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.words = words
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def get_extra_state(self) -> Any:
        return {"words": self.words}

    def set_extra_state(self, state: Any) -> None:
        self.words = state["words"]


def test_a_module_comes_back_in_place(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), WithExtra(("a", "b")))
    model[1](torch.randn(8, 4))
    before = {
        key: value.clone() for key, value in model.state_dict().items() if isinstance(value, torch.Tensor)
    }
    save(tmp_path, model=model)
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), WithExtra())
    parameters = list(other.parameters())
    load(tmp_path, model=other)
    assert all(a is b for a, b in zip(parameters, other.parameters(), strict=True))
    assert other[2].words == ("a", "b")
    assert {
        key: value for key, value in other.state_dict().items() if isinstance(value, torch.Tensor)
    }.keys() == before.keys()
    assert all(torch.equal(other.state_dict()[key], value) for key, value in before.items())


def test_keys_and_shapes_that_differ_are_listed_and_the_model_is_as_it_was(tmp_path: Path) -> None:
    save(
        tmp_path,
        model=nn.ModuleDict({"a": nn.Linear(2, 3), "b": nn.Linear(1, 1), "same": fill(nn.Linear(1, 1), 5.0)}),
    )
    other = nn.ModuleDict({"a": nn.Linear(2, 4), "c": nn.Linear(1, 1), "same": fill(nn.Linear(1, 1), 1.0)})
    counter = Counter(7)
    message = refused(tmp_path, counter=counter, model=other)
    for part in (
        "does not fit, so nothing was loaded",
        "it has no 'counter' (tests.checkpoint.small.Counter); it holds 'model'",
        "recoverable 'model' (torch.nn.modules.container.ModuleDict): missing in the checkpoint: 'c.weight', 'c.bias'",
        "unknown here: 'b.weight', 'b.bias'",
        "'a.weight' has shape (3, 2) in the checkpoint and (4, 2) here",
        "'a.bias' has shape (3,) in the checkpoint and (4,) here",
    ):
        assert part in message
    assert value_of(other["same"]) == 1.0


def test_a_long_list_of_keys_is_cut(tmp_path: Path) -> None:
    save(tmp_path, model=nn.Sequential())
    message = refused(tmp_path, model=nn.Sequential(*(nn.Linear(1, 1) for _ in range(10))))
    assert "'3.bias' and 12 more" in message


def test_the_dtype_may_differ_as_torch_allows(tmp_path: Path) -> None:
    save(tmp_path, model=linear(0.5))
    model = linear().double()
    load(tmp_path, model=model)
    assert value_of(model) == 0.5
    assert model.weight.dtype == torch.float64


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    save(tmp_path, model=model)
    other = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    other[1].weight = other[0].weight
    load(tmp_path, model=other)
    assert other[1].weight is other[0].weight
    assert torch.equal(other[0].weight, model[0].weight)


def test_a_module_that_renames_old_keys_itself_is_trusted_to(tmp_path: Path) -> None:
    save(tmp_path, model=nn.ModuleDict({"old": fill(nn.Linear(1, 1), 3.0)}))

    def rename(module: Any, state: Any, prefix: str, *_: Any) -> None:
        for key in list(state):
            state[key.replace("old.", "new.")] = state.pop(key)

    other = nn.ModuleDict({"new": linear()})
    other.register_load_state_dict_pre_hook(rename)
    load(tmp_path, model=other)
    assert value_of(other) == 3.0

    broken = nn.ModuleDict({"newer": linear(2.0)})
    broken.register_load_state_dict_pre_hook(rename)
    message = refused(tmp_path, model=broken)
    assert "recoverable 'model'" in message
    assert "all is as it was before: RuntimeError" in message
    assert "newer.weight" in message
    assert value_of(broken) == 2.0


def test_a_compiled_module_has_the_names_of_the_plain_one(tmp_path: Path) -> None:
    compiled = torch.compile(linear(4.0), backend="eager")
    save(tmp_path, model=compiled)
    model = linear()
    load(tmp_path, model=model)
    assert value_of(model) == 4.0
    load(tmp_path, model=torch.compile(linear(), backend="eager"))


def test_a_lazy_module_takes_its_shape_from_the_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, model=nn.Linear(3, 2))
    lazy = nn.LazyLinear(2)
    load(tmp_path, model=lazy)
    assert lazy.weight.shape == (2, 3)


def test_saving_changes_nothing(tmp_path: Path) -> None:
    """No draw, no gradient, no mode."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.BatchNorm1d(2)).train()
    model[2].eval()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    grads = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    rng, numpy_rng = torch.get_rng_state(), np.random.get_state()[1].copy()
    save(tmp_path, model=model, optimizer=optimizer, generator=torch.Generator())
    assert torch.equal(torch.get_rng_state(), rng)
    assert (np.random.get_state()[1] == numpy_rng).all()
    assert [module.training for module in model] == [True, True, False]
    assert all(
        torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True) if p.grad is not None
    )
    assert all(parameter.requires_grad for parameter in model.parameters())


# ----------------------------------------------------------------------------------------------------------- optimizers


class Net(nn.Module):
    """Three parameters, each of a size of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(2))
        self.b = nn.Parameter(torch.randn(3))
        self.c = nn.Parameter(torch.randn(3))


def stepped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Every parameter gets a gradient of its own, so that every moment is recognizable."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.randn_like(parameter)
    for _ in range(2):
        optimizer.step()
    return optimizer


def moments(optimizer: torch.optim.Optimizer, net: Net) -> dict[str, list[float]]:
    names = {parameter: name for name, parameter in net.named_parameters()}
    return {names[p]: state["exp_avg"].tolist() for p, state in optimizer.state.items()}


ORDERS: list[Callable[[Net], Any]] = [
    lambda n: [n.c, n.a, n.b],
    lambda n: [n.b, n.c, n.a],
    lambda n: [("x", n.c), ("y", n.b), ("z", n.a)],
]


@pytest.mark.parametrize("order", ORDERS)
def test_the_state_follows_names_and_not_positions(tmp_path: Path, order: Callable[[Net], Any]) -> None:
    net = Net()
    optimizer = stepped(torch.optim.Adam([net.a, net.b, net.c]))
    save(tmp_path, net=net, optimizer=optimizer)
    other = Net()
    reordered = torch.optim.Adam(order(other))
    load(tmp_path, net=other, optimizer=reordered)
    assert moments(reordered, other) == moments(optimizer, net)
    stepped(reordered)


def test_groups_keep_their_settings_when_they_are_reordered(tmp_path: Path) -> None:
    net = Net()
    groups = [{"params": [net.a, net.b], "lr": 0.25, "weight_decay": 0.5}, {"params": [net.c], "lr": 0.125}]
    optimizer = stepped(torch.optim.Adam(groups, lr=1.0))
    save(tmp_path, net=net, optimizer=optimizer)
    other = Net()
    swapped = torch.optim.Adam([{"params": [other.c]}, {"params": [other.b, other.a]}], lr=9.0)
    load(tmp_path, net=other, optimizer=swapped)
    assert [(group["lr"], group["weight_decay"]) for group in swapped.param_groups] == [
        (0.125, 0),
        (0.25, 0.5),
    ]
    assert moments(swapped, other) == moments(optimizer, net)


def test_an_empty_group_is_kept(tmp_path: Path) -> None:
    net = Net()
    save(
        tmp_path, net=net, optimizer=torch.optim.SGD([{"params": [], "lr": 3.0}, {"params": [net.a]}], lr=0.5)
    )
    other = torch.optim.SGD([{"params": [net.a]}, {"params": []}], lr=0.1)
    load(tmp_path, net=net, optimizer=other)
    assert [group["lr"] for group in other.param_groups] == [0.5, 3.0]


def test_other_names_are_listed(tmp_path: Path) -> None:
    net = Net()
    save(tmp_path, net=net, optimizer=torch.optim.Adam([net.a, net.b]))
    message = refused(tmp_path, net=net, optimizer=torch.optim.Adam([net.a, net.c]))
    assert "recoverable 'optimizer' (torch.optim.adam.Adam): missing in the checkpoint: 'net.c'" in message
    assert "unknown to this optimizer: 'net.b'" in message


def test_groups_that_are_divided_differently_are_an_error(tmp_path: Path) -> None:
    net = Net()
    save(tmp_path, net=net, optimizer=torch.optim.Adam([{"params": [net.a, net.b]}, {"params": [net.c]}]))
    message = refused(
        tmp_path, net=net, optimizer=torch.optim.Adam([{"params": [net.a]}, {"params": [net.b, net.c]}])
    )
    assert (
        "divided differently: group 0 here holds parameters of group 0 there; "
        "group 1 here holds parameters of group 0, 1" in message
    )
    message = refused(tmp_path, net=net, optimizer=torch.optim.Adam(net.parameters()))
    assert "the checkpoint has 2 parameter groups and this optimizer 1" in message


def test_another_class_of_optimizer_is_told_unless_its_settings_are_all_there(tmp_path: Path) -> None:
    net = Net()
    optimizer = stepped(torch.optim.Adam(net.parameters()))
    save(tmp_path, net=net, optimizer=optimizer)
    message = refused(tmp_path, net=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
    assert (
        "it was saved by torch.optim.adam.Adam, whose groups lack 'dampening', 'momentum', 'nesterov'"
        in message
    )
    similar = torch.optim.AdamW(net.parameters())
    load(tmp_path, net=net, optimizer=similar)
    assert moments(similar, net) == moments(optimizer, net)


def test_parameters_without_a_name_go_by_their_place(tmp_path: Path) -> None:
    net, loose = Net(), [nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(2))]
    optimizer = stepped(torch.optim.Adam([loose[0], net.a, net.b, loose[1]]))
    save(tmp_path, net=net, optimizer=optimizer)
    other, others = Net(), [nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(2))]
    reordered = torch.optim.Adam([other.b, others[0], others[1], other.a])
    load(tmp_path, net=other, optimizer=reordered)
    for old, new in zip([*loose, net.a, net.b], [*others, other.a, other.b], strict=True):
        assert torch.equal(optimizer.state[old]["exp_avg"], reordered.state[new]["exp_avg"])
    message = refused(
        tmp_path,
        net=other,
        optimizer=torch.optim.Adam([other.a, other.b, *others, nn.Parameter(torch.ones(1))]),
    )
    assert "missing in the checkpoint: 'parameter 4, without a name'" in message


def test_an_optimizer_alone(tmp_path: Path) -> None:
    """Without its module there are only places; with a module added later it is still known."""
    net = Net()
    optimizer = stepped(torch.optim.Adam(net.parameters()))
    save(tmp_path / "alone", optimizer=optimizer)
    fresh = torch.optim.Adam(Net().parameters())
    load(tmp_path / "alone", optimizer=fresh)
    assert [s["exp_avg"].tolist() for s in fresh.state.values()] == [
        s["exp_avg"].tolist() for s in optimizer.state.values()
    ]
    named = Net()
    fresh = torch.optim.Adam(named.parameters())
    checkpointer = Checkpointer(
        tmp_path / "alone", {"optimizer": fresh, "net": named}, allow_partial_load=True
    )
    assert checkpointer.recover_if_possible() is not None
    assert moments(fresh, named) == moments(optimizer, net)

    save(tmp_path / "both", optimizer=optimizer, net=net)
    message = refused(tmp_path / "both", optimizer=torch.optim.Adam(Net().parameters()))
    assert "register the module beside the optimizer" in message


def test_names_survive_another_way_of_registering(tmp_path: Path) -> None:
    """Saved inside one big module, loaded beside another name for the same part."""
    net = Net()
    optimizer = stepped(torch.optim.Adam([net.a, net.b, net.c]))
    save(tmp_path, modules=nn.ModuleDict({"net": net}), net=net, optimizer=optimizer)
    other = Net()
    reordered = torch.optim.Adam([other.c, other.b, other.a])
    load(tmp_path, net=other, optimizer=reordered)
    assert moments(reordered, other) == moments(optimizer, net)


def test_a_tied_parameter_is_found_by_any_of_its_names(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self, tied: bool = True) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.ones(2))
            self.b = self.a if tied else nn.Parameter(torch.ones(2))

    net = Tied()
    save(tmp_path, net=net, optimizer=stepped(torch.optim.Adam([net.a])))
    other = Tied()
    load(tmp_path, net=other, optimizer=torch.optim.Adam([other.b]))
    untied = Tied(tied=False)
    message = refused(tmp_path, net=untied, optimizer=torch.optim.Adam(untied.parameters()))
    assert "two parameters here were one when saved: 'net.a'" in message


def test_a_shape_that_differs_in_the_optimizer(tmp_path: Path) -> None:
    save(tmp_path, optimizer=torch.optim.SGD([nn.Parameter(torch.ones(2))]))
    message = refused(tmp_path, optimizer=torch.optim.SGD([nn.Parameter(torch.ones(3))]))
    assert "'parameter 0, without a name' has shape (2,) in the checkpoint and (3,) here" in message


def test_the_file_is_torchs_own_state_dict(tmp_path: Path) -> None:
    net = Net()
    optimizer = stepped(torch.optim.Adam(net.parameters()))
    checkpoint = save(tmp_path, net=net, optimizer=optimizer)
    other = Net()
    plain = torch.optim.Adam(other.parameters())
    plain.load_state_dict(torch.load(checkpoint.path / "optimizer.pt", weights_only=True))
    assert moments(plain, other) == moments(optimizer, net)


def test_lbfgs_does_not_take_another_order(tmp_path: Path) -> None:
    net = Net()
    save(tmp_path, net=net, optimizer=torch.optim.LBFGS([net.a, net.b, net.c]))
    load(tmp_path, net=net, optimizer=torch.optim.LBFGS([net.a, net.b, net.c]))
    assert "LBFGS keeps all parameters in one vector" in refused(
        tmp_path, net=net, optimizer=torch.optim.LBFGS([net.c, net.b, net.a])
    )


class Master(torch.optim.Optimizer):
    """Keeps a float32 copy of every parameter, as people do with bfloat16 weights."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("master", p.detach().float() + 1e-3)


@pytest.mark.parametrize(
    ("later", "expected"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)]
)
def test_state_that_is_more_precise_than_its_parameter_stays_so(
    tmp_path: Path, later: torch.dtype, expected: torch.dtype
) -> None:
    parameter = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = Master([parameter])
    optimizer.step()
    save(tmp_path, optimizer=optimizer)
    other = nn.Parameter(torch.ones(3, dtype=later))
    loaded = Master([other])
    load(tmp_path, optimizer=loaded)
    assert loaded.state[other]["master"].dtype == expected
    if expected == torch.float32:
        assert torch.equal(loaded.state[other]["master"], optimizer.state[parameter]["master"])


def test_an_optimizer_with_a_state_of_its_own_form(tmp_path: Path) -> None:
    class Wrapping(torch.optim.SGD):
        def state_dict(self) -> Any:
            return {"inner": super().state_dict(), "k": 3}

        def load_state_dict(self, state: Any) -> None:
            super().load_state_dict(state["inner"])

    net = linear()
    save(tmp_path, net=net, optimizer=Wrapping(net.parameters(), lr=0.5))
    other = Wrapping(net.parameters(), lr=0.1)
    load(tmp_path, net=net, optimizer=other)
    assert other.param_groups[0]["lr"] == 0.5


# ------------------------------------------------------------------------------------------------------------ schedules


class Warm:
    """A callable with a state, which torch saves."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, epoch: int) -> float:
        self.seen += 1
        return 1 / (1 + epoch)


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "numpy": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: np.float64(0.9) ** epoch),
    "callable": lambda o: lr_scheduler.LambdaLR(o, Warm()),
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "multistep": lambda o: lr_scheduler.MultiStepLR(o, [2, 3], 0.5),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.2, scale_fn=lambda x: 1.0 / (1 + x)),
    "onecycle": lambda o: lr_scheduler.OneCycleLR(o, 0.3, 20),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "swa": lambda o: torch.optim.swa_utils.SWALR(o, 0.01),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("schedule_first", [True, False])
def test_a_schedule_goes_on_where_it_was(tmp_path: Path, name: str, schedule_first: bool) -> None:
    """SpeechBrain's scenario 11, for every schedule: the uninterrupted rates are the expected ones."""

    def run(folder: Path | None) -> list[float]:
        rates: list[float] = []
        net = linear()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        schedule = SCHEDULES[name](optimizer)
        for step in range(8):
            if step == 4 and folder is not None:
                save(folder, net=net, optimizer=optimizer, schedule=schedule)
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
                schedule = SCHEDULES[name](optimizer)
                fresh = (
                    {"schedule": schedule, "optimizer": optimizer}
                    if schedule_first
                    else {"optimizer": optimizer, "schedule": schedule}
                )
                load(folder, net=net, **fresh)
            optimizer.step()
            schedule.step(*([1.0] if name == "plateau" else []))
            rates.append(float(optimizer.param_groups[0]["lr"]))
        return rates

    assert run(tmp_path) == run(None)


def test_a_schedule_of_another_kind(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(linear().parameters())
    save(tmp_path, schedule=lr_scheduler.StepLR(optimizer, 2))
    message = refused(tmp_path, schedule=lr_scheduler.ExponentialLR(optimizer, 0.9))
    assert (
        "recoverable 'schedule' (torch.optim.lr_scheduler.ExponentialLR): unknown here: 'step_size'"
        in message
    )


def test_torch_may_rename_its_private_names(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(linear().parameters())
    schedule = lr_scheduler.StepLR(optimizer, 2)
    schedule._of_an_older_torch = 1  # type: ignore[attr-defined]
    save(tmp_path, schedule=schedule)
    load(tmp_path, schedule=lr_scheduler.StepLR(optimizer, 2))


# ----------------------------------------------------------------------------------------------- scalers and generators


def test_a_scaler_is_optional_and_may_be_switched_on_or_off(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    save(tmp_path / "with", scaler=scaler, model=linear())
    save(tmp_path / "without", model=linear())
    save(tmp_path / "disabled", scaler=torch.amp.GradScaler("cpu", enabled=False), model=linear())

    other = torch.amp.GradScaler("cpu", init_scale=2.0)
    load(tmp_path / "with", scaler=other, model=linear())
    assert other.get_scale() == 8.0
    for folder in ("without", "disabled"):
        other = torch.amp.GradScaler("cpu", init_scale=2.0)
        load(tmp_path / folder, scaler=other, model=linear())
        assert other.get_scale() == 2.0
    load(tmp_path / "with", scaler=torch.amp.GradScaler("cpu", enabled=False), model=linear())


def test_a_generator_draws_on(tmp_path: Path) -> None:
    """SpeechBrain's scenario 38."""
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)
    save(tmp_path, generator=generator)
    expected = torch.rand(5, generator=generator)
    torch.rand(100, generator=generator)
    load(tmp_path, generator=generator)
    assert torch.equal(torch.rand(5, generator=generator), expected)
    other = torch.Generator()
    load(tmp_path, generator=other)
    assert torch.equal(torch.rand(5, generator=other), expected)


def test_another_kind_under_the_same_name(tmp_path: Path) -> None:
    save(tmp_path, x=torch.Generator())
    message = refused(tmp_path, x=linear())
    assert (
        "recoverable 'x' (torch.nn.modules.linear.Linear): the checkpoint holds a generator (torch._C.Generator) "
        "under this name" in message
    )


# ------------------------------------------------------------------------------------------------------- what is a kind


@pytest.mark.parametrize("thing", [3, "x", None, {}, object(), nn.Linear, Counter, torch.ones(1)])
def test_what_cannot_be_saved_is_refused_with_the_ways_out(tmp_path: Path, thing: object) -> None:
    assert kind_of(thing) is None
    with pytest.raises(
        CheckpointError, match=r"'thing' is a .*no way known to save one\. Give its class state_dict\(\)"
    ):
        Checkpointer(tmp_path, {"thing": thing})


def test_recoverables_that_are_no_dict(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match="recoverables is a list; a dict from names to objects is needed"
    ):
        Checkpointer(tmp_path, [linear()])  # type: ignore[arg-type]


def test_covered() -> None:
    a, b, extra = linear(), linear(), WithExtra()
    both = nn.ModuleDict({"a": a, "b": b})
    assert covered(both, [a, b])
    assert covered(a, [both])
    assert not covered(both, [a])
    assert not covered(nn.Sequential(), [a]), "nothing to cover"
    assert not covered(nn.ModuleDict({"a": a, "extra": extra}), [a]), "an extra state counts"
    assert covered(nn.ModuleDict({"a": a, "extra": extra}), [a, extra])
    sharing = nn.Module()
    sharing.weight, sharing.bias = a.weight, a.bias
    assert covered(sharing, [a]), "by its tensors, whatever module they are in"
    assert not covered(WithExtra(), [both])
    assert math.isfinite(value_of(a))
