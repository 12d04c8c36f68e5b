"""LearningRate on real Brains: which rate each update gets, and that a restart does not change it."""

from __future__ import annotations

import functools
import logging
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import brainlib as bl
from brainlib.extension import Extension
from brainlib.learning_rate import LearningRate
from brainlib.update.guard import DeviceGuard
from brainlib.update.schedules import Cosine, NewBob, Noam, Plateau, WarmUp, update_learning_rate
from tests.brain.small import batches, small
from tests.contracts.brains import (
    SEED,
    SEVEN,
    SHUFFLED,
    VALID,
    Gan,
    InnerFit,
    Items,
    Plain,
    TwoOptimizers,
    ending,
    optimizers_of,
    ready_batches,
)
from tests.contracts.brains import Noam as NoamBrain
from tests.contracts.test_resume_points import OTHER_SEED, Cut, cut_before


class Used(Extension):
    """The rate of each update that really was made, with the optimizer's name. Saved, so that it spans restarts."""

    trigger = None

    def __init__(self) -> None:
        self.rates: list[list[Any]] = []
        self.hooks: list[Any] = []

    def start(self, brain: Any) -> None:
        for name, optimizer in optimizers_of(brain).items():
            self.hooks.append(optimizer.register_step_post_hook(self.note(name)))

    def note(self, name: str) -> Callable[..., None]:
        def hook(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            params = [param for group in optimizer.param_groups for param in group["params"]]
            if any(param.grad is not None for param in params):  # a refused step has lost its gradients
                self.rates.append([name, *(float(group["lr"]) for group in optimizer.param_groups)])

        return hook

    def close(self, brain: Any) -> None:
        while self.hooks:
            self.hooks.pop().remove()

    def state_dict(self) -> dict[str, Any]:
        return {"rates": list(self.rates)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rates = list(state["rates"])


class OneIsBad(Items):
    """Item 5 is NaN, so that one window of each epoch is skipped."""

    def __getitem__(self, index: int) -> Any:
        item = super().__getitem__(index)
        return {**item, "x": item["x"] * math.nan} if index == 5 else item


def build(
    cls: type[Plain], extensions: list[Any], folder: Path | None = None, seed: int = SEED, **run_opts: Any
) -> Plain:
    torch.manual_seed(seed)
    checkpointer = None if folder is None else bl.Checkpointer(folder)
    return cls(
        cls.build(),
        cls.opt_factory,
        hparams={"seed": SEED},
        run_opts={"noprogressbar": True, "device": "cpu", **run_opts},
        checkpointer=checkpointer,
        extensions=extensions,
    )


def script(brain: Plain) -> None:
    """Two fits; in the first five batches an epoch, of which one is bad."""
    brain.fit(range(2), OneIsBad(), VALID, train_loader_kwargs=SHUFFLED)
    brain.fit(range(1), ready_batches((4, 4, 2)), VALID)


class Listening(Plain):
    """Keeps its validation loss where a schedule finds it, and logs the rate of each epoch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.valid_loss: float | None = None

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        super().on_stage_end(stage, stage_loss, epoch)
        if stage == bl.Stage.VALID:
            self.valid_loss = stage_loss


class CountedNoam:
    """In the manner of SpeechBrain: called with the optimizer, counts itself, sets the rate, returns (old, new)."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, opt: torch.optim.Optimizer) -> tuple[float, float]:
        self.n += 1
        old, new = opt.param_groups[0]["lr"], 0.1 * Noam(4)(self.n - 1)
        update_learning_rate(opt, new)
        return old, new

    def state_dict(self) -> dict[str, int]:
        return {"n": self.n}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.n = state["n"]


def by_epoch(epoch: int) -> tuple[float, float]:
    """In the manner of SpeechBrain: the rates of an epoch and of the one after it."""
    return 0.1 * 0.8 ** max(epoch - 1, 0), 0.1 * 0.8**epoch


def one_cycle(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=40)  # moves Adam's betas as well


def sequence(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    parts = [
        lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3),
        lr_scheduler.CosineAnnealingLR(optimizer, 8),
    ]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[3])


def on_plateau(optimizer: torch.optim.Optimizer) -> lr_scheduler.ReduceLROnPlateau:
    return lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5, threshold=0.5)


SCHEDULES: dict[str, Callable[..., LearningRate]] = {
    "a pure function": lambda: LearningRate(Noam(4)),
    "a pair of rates by epochs": lambda: LearningRate(by_epoch, per="epoch"),
    "a torch scheduler": lambda: LearningRate(one_cycle),
    "a sequence of torch schedulers": lambda: LearningRate(sequence),
    "a torch scheduler by epochs": lambda: LearningRate(
        lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.5), per="epoch"
    ),
    "NewBob": lambda: LearningRate(NewBob(0.02, improvement_threshold=0.5), metric="valid_loss"),
    "torch's plateau": lambda: LearningRate(on_plateau, metric=lambda brain: brain.valid_loss),
    "called with the optimizer": lambda: LearningRate(CountedNoam()),
}
every_schedule = pytest.mark.parametrize("kind", SCHEDULES)


def life(
    rates: list[LearningRate],
    folder: Path | None = None,
    cut: Callable[[Plain], None] | None = None,
    cls: type[Plain] = Listening,
    seed: int = SEED,
    **run_opts: Any,
) -> dict[str, Any]:
    """What a run ends with. One that is cut stops there."""
    used = Used()
    brain = build(cls, [used, *rates], folder, seed, **run_opts)
    if cut is None:
        script(brain)
        return {**ending(brain), "used": used.rates, "shown": [each.rates for each in rates]}
    cut(brain)
    with pytest.raises(Cut):
        script(brain)
    return {"trace": brain.trace}


def cut_and_resumed(
    make: Callable[[], list[LearningRate]],
    folder: Path,
    cut: Callable[[Plain], None],
    save_every: int = 1,
    **kwargs: Any,
) -> dict[str, Any]:
    """The same of a run in two lives; the second saves closed epochs alone, which is quicker."""
    first = life(make(), folder, cut, ckpt_interval_steps=save_every, **kwargs)
    second = life(make(), folder, seed=OTHER_SEED, **kwargs)
    return {**second, "trace": first["trace"] + second["trace"]}


@functools.cache
def uncut(kind: str) -> dict[str, Any]:
    return life([SCHEDULES[kind]()], grad_accumulation_factor=2)


# ------------------------------------------------------------------------------------------------ which rate


@pytest.mark.parametrize("factor", [1, 3])
def test_each_update_has_the_rate_of_its_number(factor: int) -> None:
    seen: list[float] = []

    class Looking(Plain):
        def on_fit_batch_end(self, batch: Any, outputs: Any, loss: torch.Tensor, should_step: bool) -> None:
            if should_step:
                seen.append(self.optimizer.param_groups[0]["lr"])

    used, rate = Used(), LearningRate(Cosine(num_total=8, num_warmup=3))
    brain = build(Looking, [used, rate], grad_accumulation_factor=factor)
    brain.fit(range(3), ready_batches())
    schedule = Cosine(num_total=8, num_warmup=3)
    right = [0.01 * schedule(done) for done in range(brain.optimizer_step)]
    assert len(right) == 3 * math.ceil(5 / factor)
    assert [lr for _, lr in used.rates] == right
    assert seen == right, "what a hook reads after an update is the rate that it had"
    assert rate.rate == right[-1]


def test_a_skipped_window_moves_nothing() -> None:
    data = batches(2, 2, 2, 2)
    data[1]["x"][0, 0] = math.nan
    for make in (lambda: LearningRate(WarmUp(10)), lambda: LearningRate(one_cycle)):
        with_bad, without = Used(), Used()
        for used, given in ((with_bad, data), (without, [data[0], *data[2:]])):
            brain = build_small([used, make()])
            brain.fit(range(2), given)
        assert with_bad.rates == without.rates
        assert len(with_bad.rates) == 6


@pytest.mark.parametrize("schedule", [WarmUp(20), one_cycle], ids=["pure", "torch"])
def test_a_late_verdict_is_waited_for_before_a_rate_is_set(schedule: Any) -> None:
    """An accelerator's guard tells only afterwards that a window was bad; here on the CPU."""
    lists = []
    for late in (False, True):
        used = Used()
        brain = build(Plain, [used, LearningRate(schedule)])
        brain.opt_class = lambda p: torch.optim.Adam(p, 0.1, fused=True)
        if late:
            brain._guard = DeviceGuard(torch.device("cpu"))
        brain.fit(range(2), OneIsBad(), VALID, train_loader_kwargs=SHUFFLED)
        assert brain.run_state.nonfinite_windows == 2
        lists.append(sorted({lr for _, lr in used.rates}))
    assert lists[0] == lists[1]
    assert len(lists[0]) == brain.optimizer_step


def build_small(extensions: list[Any], **kwargs: Any) -> Any:
    class Regression(bl.Brain):
        def compute_forward(self, batch: Any, stage: bl.Stage) -> torch.Tensor:
            return self.modules.model(batch["x"])

        def compute_objectives(self, predictions: Any, batch: Any, stage: bl.Stage) -> torch.Tensor:
            return torch.nn.functional.mse_loss(predictions, batch["y"])

    kwargs.setdefault("opt_class", lambda p: torch.optim.SGD(p, 0.1, momentum=0.5))
    return Regression(
        {"model": torch.nn.Linear(3, 2).double()},
        hparams={"seed": 0},
        run_opts={"noprogressbar": True, "device": "cpu"},
        extensions=extensions,
        **kwargs,
    )


def test_nothing_but_bad_windows_never_moves_a_schedule() -> None:
    data = batches(2, 2)
    for batch in data:
        batch["x"][:] = math.nan
    rate = LearningRate(WarmUp(4))
    brain = build_small([rate])
    brain.fit(range(1), data)
    assert brain.optimizer_step == 0
    assert rate.rate == 0.1 / 4


def test_epochs_are_counted_over_fits() -> None:
    used = Used()
    brain = build(Plain, [used, LearningRate(lambda done: 0.5**done, per="epoch")])
    brain.fit(range(2), ready_batches((4, 2)))
    brain.fit(range(2), ready_batches((4, 2)))
    assert [lr for _, lr in used.rates] == [0.01 * 0.5**epoch for epoch in range(4) for _ in range(2)]


def test_a_metric_sets_the_rate_of_the_next_epoch() -> None:
    class Told(Plain):
        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
            if stage == bl.Stage.VALID:
                self.error_rate = [10.0, 9.0, 9.0, 9.0][epoch]

    used = Used()
    rate = LearningRate(NewBob(0.2, improvement_threshold=0.01), metric="error_rate")
    brain = build(Told, [used, rate])
    brain.fit(range(4), ready_batches((4, 2)), VALID)
    assert [lr for _, lr in used.rates] == [0.2] * 6 + [0.1] * 2
    assert rate.rate == 0.1, "the rate that was used, although the last metric has lowered the next one"


def test_each_group_keeps_its_own_rate_and_a_new_one_gets_its_factor() -> None:
    class Unfreezing(Plain):
        def init_optimizers(self) -> None:
            head, body = self.modules.model[3], self.modules.model[0]
            self.optimizer = torch.optim.SGD(
                [{"params": [head.weight], "lr": 0.1}, {"params": [head.bias], "lr": 0.01}], lr=1.0
            )
            self.optimizers_dict = {"sgd": self.optimizer}
            self.body = body

        def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
            if stage == bl.Stage.TRAIN and epoch == 1:
                self.optimizer.add_param_group({"params": self.body.parameters(), "lr": 4.0})

    used, rate = Used(), LearningRate(WarmUp(8), optimizer="sgd")
    brain = build(Unfreezing, [used, rate])
    brain.fit(range(2), ready_batches((4, 4)))
    factors = [1 / 8, 2 / 8, 3 / 8, 4 / 8]
    assert [rates for _, *rates in used.rates] == [
        pytest.approx([0.1 * f, 0.01 * f, *([4.0 * f] if f > 2 / 8 else [])]) for f in factors
    ]
    assert rate.rates == used.rates[-1][1:]
    assert rate.name == "LearningRate-sgd"


def test_a_rate_for_all_groups() -> None:
    used = Used()
    brain = build(Plain, [used, LearningRate(lambda done: 0.5 / (1 + done), gives="rate")])
    brain.fit(range(1), ready_batches((4, 4)))
    assert [lr for _, lr in used.rates] == [0.5, 0.25]


def test_a_rate_in_a_tensor_is_written_in_place() -> None:
    rate = torch.tensor(0.5)
    used = Used()
    brain = build_small([used, LearningRate(WarmUp(4))], opt_class=lambda p: torch.optim.Adam(p, lr=rate))
    brain.fit(range(1), batches(2, 2, 2))
    assert brain.optimizer.param_groups[0]["lr"] is rate
    assert [lr for _, lr in used.rates] == [0.125, 0.25, 0.375]


def test_with_a_scaler_an_overflow_is_no_update() -> None:
    used = Used()
    brain = build_small([used, LearningRate(WarmUp(10))])
    brain.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=1000)
    data = batches(2, 2, 2)
    data[1]["y"][:] = 1e300  # the gradient overflows, once scaled and squared
    brain.fit(range(1), data)
    assert [lr for _, lr in used.rates] == pytest.approx(
        [0.1 * (n + 1) / 10 for n in range(brain.optimizer_step)]
    )


@every_schedule
def test_torch_has_nothing_to_complain_of(kind: str) -> None:
    """It warns when a scheduler is stepped before the first update."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        life([SCHEDULES[kind]()])


def test_each_of_two_optimizers_has_its_schedule() -> None:
    used = Used()
    slow = LearningRate(WarmUp(20), optimizer="optimizer_d")
    fast = LearningRate(WarmUp(2), optimizer="optimizer_g")
    brain = build(Gan, [used, slow, fast])
    brain.fit(range(1), ready_batches((4, 4, 4)))
    assert [lr for name, lr in used.rates if name == "optimizer_d"] == [0.01 * n / 20 for n in (1, 2, 3)]
    assert [lr for name, lr in used.rates if name == "optimizer_g"] == [0.01 * n / 2 for n in (1, 2, 2)]


@pytest.mark.parametrize("schedule", [WarmUp(8), CountedNoam(), sequence], ids=["pure", "called", "torch"])
def test_a_frozen_optimizer_joins_at_the_count_of_the_run(schedule: Any) -> None:
    used = Used()
    brain = build(TwoOptimizers, [used, LearningRate(schedule, optimizer="encoder")])
    brain.fit(range(1), ready_batches((4,) * 6))
    reference = Used()
    other = schedule if not isinstance(schedule, CountedNoam) else CountedNoam()
    brain = build(TwoOptimizers, [reference, LearningRate(other, optimizer="encoder")])
    brain.freeze_optimizers = lambda optimizers: optimizers  # type: ignore[method-assign]
    brain.fit(range(1), ready_batches((4,) * 6))
    late = [lr for name, lr in used.rates if name == "encoder"]
    assert late == [lr for name, lr in reference.rates if name == "encoder"][4:]
    assert len(late) == 2


def test_an_inner_fit_is_no_progress_of_the_run() -> None:
    used = Used()
    brain = build(InnerFit, [used, LearningRate(WarmUp(10), optimizer="d_optimizer")])
    brain.fit(range(2), ready_batches((4, 2)))
    # Two inner updates before each epoch of two.
    assert [lr for name, lr in used.rates if name == "d_optimizer"] == pytest.approx(
        [0.001, 0.001, 0.003, 0.003]
    )


# ------------------------------------------------------------------------------------------------- restarts

CUTS = {
    "inside a window": ("compute_forward", bl.Stage.TRAIN, 4),
    "before TRAIN ends": ("on_stage_end", bl.Stage.TRAIN, 1),
    "in validation": ("compute_forward", bl.Stage.VALID, 5),
    "in the second epoch": ("compute_forward", bl.Stage.TRAIN, 10),
    "in the second fit": ("compute_forward", bl.Stage.TRAIN, 12),
}


def at(name: str) -> Callable[[Plain], None]:
    return lambda brain: cut_before(brain, *CUTS[name])


@every_schedule
def test_a_cut_run_has_the_same_rates(kind: str, tmp_path: Path) -> None:
    """With accumulation, and a window an epoch that is skipped."""
    cut = at("in the second epoch")
    end = cut_and_resumed(lambda: [SCHEDULES[kind]()], tmp_path, cut, grad_accumulation_factor=2)
    assert end == uncut(kind)
    assert len({tuple(rates) for rates in end["used"]}) > 1, "the schedule has moved"


@pytest.mark.parametrize("cut", [cut for cut in CUTS if cut != "in the second epoch"])
@pytest.mark.parametrize("kind", ["a torch scheduler", "NewBob"])
def test_wherever_it_is_cut(kind: str, cut: str, tmp_path: Path) -> None:
    end = cut_and_resumed(lambda: [SCHEDULES[kind]()], tmp_path, at(cut), grad_accumulation_factor=2)
    assert end == uncut(kind)


@pytest.mark.parametrize(
    "cls", [each for each in SEVEN if each is not NoamBrain], ids=lambda cls: cls.__name__
)
def test_all_styles_of_brains(cls: type[Plain], tmp_path: Path) -> None:
    """Whoever writes the step. (The style that is left out has a schedule of its own.)"""
    names: dict[type[Plain], list[str | None]] = {
        Gan: ["optimizer_d", "optimizer_g"],
        InnerFit: ["d_optimizer", "g_optimizer"],
        TwoOptimizers: ["encoder", "decoder"],
    }

    def make() -> list[LearningRate]:
        pairs = zip((Noam(3), one_cycle), names.get(cls, [None]), strict=False)
        return [LearningRate(schedule, name) for schedule, name in pairs]

    cut = at("in the second epoch")
    end = cut_and_resumed(make, tmp_path, cut, cls=cls, grad_accumulation_factor=2, save_every=2)
    assert end == life(make(), cls=cls, grad_accumulation_factor=2)
    if cls not in names:
        assert [lr for _, lr in end["used"]] == [
            0.01 * Noam(3)(done) for done in range(end["optimizer_step"])
        ]


class SavesInItsHooks(Listening):
    """The user saves right after the update of the second epoch's second batch, and in the last hook of an epoch."""

    def on_fit_batch_end(self, batch: Any, outputs: Any, loss: torch.Tensor, should_step: bool) -> None:
        if self.checkpointer is not None and (self.run_state.epoch, self.step) == (1, 2):
            assert should_step
            self.checkpointer.save_checkpoint(end_of_epoch=False)

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        super().on_stage_end(stage, stage_loss, epoch)
        if stage == bl.Stage.VALID and self.checkpointer is not None:
            self.checkpointer.save_checkpoint()


def before_the_epoch_is_counted(brain: bl.Brain) -> None:
    """Dies after the last hook of the second epoch, before extensions hear of it."""
    original, calls = brain._close_epoch, 0

    def close(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Cut
        original(*args)

    brain._close_epoch = close  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "cut", [at("in the second epoch"), before_the_epoch_is_counted], ids=["update", "epoch"]
)
@every_schedule
def test_a_checkpoint_from_inside_a_hook(kind: str, cut: Callable[[Plain], None], tmp_path: Path) -> None:
    """It is made after an update, or in the last hook of an epoch, and before the extensions are called."""
    end = cut_and_resumed(
        lambda: [SCHEDULES[kind]()],
        tmp_path,
        cut,
        save_every=1000,
        cls=SavesInItsHooks,
        grad_accumulation_factor=2,
    )
    assert end == uncut(kind)


def test_a_schedule_that_was_added_starts_where_the_run_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A function of the count goes on in the middle of itself; a scheduler that counts by itself starts afresh."""
    for name, schedule, right in (
        ("pure", WarmUp(20), [0.01 * n / 20 for n in range(4, 7)]),
        (
            "torch",
            lambda optimizer: lr_scheduler.LambdaLR(optimizer, WarmUp(20)),
            [0.01 * n / 20 for n in (1, 2, 3)],
        ),
    ):
        build(Plain, [Used()], tmp_path / name).fit(range(1), ready_batches((4, 4, 4)))
        used = Used()
        build(Plain, [used, LearningRate(schedule)], tmp_path / name).fit(range(2), ready_batches((4, 4, 4)))
        assert [lr for _, lr in used.rates[3:]] == pytest.approx(right), name


def test_another_schedule_starts_afresh_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build(Plain, [LearningRate(one_cycle)], tmp_path).fit(range(1), ready_batches((4, 4)))
    rate = LearningRate(sequence)
    with caplog.at_level(logging.WARNING, logger="brainlib"):
        build(Plain, [rate], tmp_path).fit(range(2), ready_batches((4, 4)))
    assert (
        "the checkpoint holds the state of another schedule (OfTorch torch.optim.lr_scheduler.OneCycleLR)"
        in (caplog.text)
    )


# ----------------------------------------------------------------------- schedules that the user steps himself


class Stepped(Plain):
    """A torch scheduler is an attribute, and a hook steps it; so is a schedule that follows a metric."""

    def init_optimizers(self) -> None:
        super().init_optimizers()
        self.scheduler = lr_scheduler.OneCycleLR(self.optimizer, 0.05, total_steps=40)
        self.newbob = NewBob(1.0, improvement_threshold=0.5)
        self.factors: list[float] = []
        self.made = 0

    def on_fit_batch_end(self, batch: Any, outputs: Any, loss: torch.Tensor, should_step: bool) -> None:
        if self.optimizer_step > self.scheduler.last_epoch:  # an update was made, and not skipped
            self.scheduler.step()

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        super().on_stage_end(stage, stage_loss, epoch)
        if stage == bl.Stage.VALID:
            _, new = self.newbob(stage_loss)
            self.factors.append(new)

    def get_extra_state(self) -> Any:
        return {"factors": list(self.factors)} if hasattr(self, "factors") else None

    def set_extra_state(self, state: Any) -> None:
        self.factors = list(state["factors"])


@pytest.mark.parametrize("cut", ["before TRAIN ends", "in the second epoch"])
def test_a_torch_scheduler_on_the_brain_is_found_and_saved(cut: str, tmp_path: Path) -> None:
    kept: list[Any] = []

    def run(folder: Path | None, cut: Any, seed: int) -> dict[str, Any]:
        used = Used()
        brain = build(Stepped, [used], folder, seed, grad_accumulation_factor=3, ckpt_interval_steps=1)
        if cut:
            cut_before(brain, *cut)
            with pytest.raises(Cut):
                script(brain)
        else:
            script(brain)
        kept.append(brain)
        return {**ending(brain), "used": used.rates, "factors": brain.factors}  # type: ignore[attr-defined]

    first = run(tmp_path, CUTS[cut], SEED)
    second = run(tmp_path, None, OTHER_SEED)
    whole = run(None, None, SEED)
    assert {**second, "trace": first["trace"] + second["trace"]} == whole
    assert kept[1].scheduler.last_epoch == kept[2].scheduler.last_epoch == whole["optimizer_step"]
    assert len({lr for _, lr in whole["used"]}) == whole["optimizer_step"]


# ------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: LearningRate(NewBob(0.1)),
            r"NewBob follows a metric, and none is given.*metric='valid_loss'",
        ),
        (lambda: LearningRate(Plateau(0.1)), "Plateau follows a metric, and none is given"),
        (
            lambda: LearningRate(lr_scheduler.ReduceLROnPlateau),
            "ReduceLROnPlateau follows a metric, and none",
        ),
        (lambda: LearningRate(Cosine(10), metric="loss"), "a metric is given, and Cosine has no use for it"),
        (lambda: LearningRate(NewBob(1), per="step", metric="loss"), "a metric is taken once an epoch"),
        (lambda: LearningRate(NewBob(1), metric="avg_train_loss"), "Keep the loss that on_stage_end gets"),
        (lambda: LearningRate(NewBob(1), metric=3), "metric=3: give the name of an attribute"),  # type: ignore[arg-type]
        (
            lambda: LearningRate(Cosine),
            "the schedule <class .*Cosine'> is none: give a function of the number",
        ),
        (lambda: LearningRate(0.1), "the schedule 0.1 is none"),  # type: ignore[arg-type]
        (
            lambda: LearningRate(Cosine(3), per="steps"),
            r"per='steps': give 'step' or 'epoch'. Did you mean 'step'\?",
        ),  # type: ignore[arg-type]
        (lambda: LearningRate(Cosine(3), gives="rates"), r"gives='rates': .* Did you mean 'rate'\?"),  # type: ignore[arg-type]
        (
            lambda: LearningRate(lr_scheduler.StepLR(torch.optim.SGD([torch.zeros(1)], 0.1), 2)),
            "a StepLR that is bound to an optimizer already; give what makes it: lambda optimizer",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_once(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ([LearningRate(on_plateau)], "ReduceLROnPlateau follows a metric, and none is given"),
        (
            [LearningRate(one_cycle, metric="valid_loss")],
            "a metric is given, and OneCycleLR has no use for it",
        ),
        (
            [LearningRate(lambda o: lr_scheduler.StepLR(o, 2))],
            "int is not an Optimizer.* calls its argument `optimizer`",
        ),
        (
            [LearningRate(lambda optimizer: 0.5)],
            "was called with the optimizer and returned 0.5; it must return a torch",
        ),
        ([LearningRate(lambda done: None)], "returned None; it must return a factor, or a pair"),
        ([LearningRate(lambda done: -1.0)], "returned -1.0; a learning rate must be finite, and 0 or more"),
        ([LearningRate(WarmUp(3), "optimiser")], "no optimizer 'optimiser' .* Did you mean 'optimizer'?"),
        (
            [LearningRate(WarmUp(3)), LearningRate(WarmUp(5), name="second")],
            "'LearningRate' and 'second' both set the rate of one optimizer",
        ),
        (
            [LearningRate(NewBob(1.0), metric="wer")],
            r"the attribute 'wer' of the Brain, and after an epoch there is none. .*self.wer = stage_loss",
        ),
        ([LearningRate(NewBob(1.0), metric=lambda brain: None)], "is None after an epoch"),
        ([LearningRate(NewBob(1.0), metric=lambda brain: "low")], "must be one number, not 'low'"),
    ],
)
def test_what_goes_wrong_in_a_fit_is_told(rates: list[LearningRate], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(Plain, rates).fit(range(1), ready_batches((4, 2)), VALID)
    build(Plain, [LearningRate(WarmUp(3))]).fit(range(1), ready_batches((4, 2)))  # nothing was left behind


def test_several_optimizers_need_a_name() -> None:
    with pytest.raises(
        ValueError, match="which optimizer is meant: there are 'optimizer_d', 'optimizer_g'. Give"
    ):
        build(Gan, [LearningRate(WarmUp(3))]).fit(range(1), ready_batches((4,)))
    brain = small(opt_class=None)
    with pytest.raises(
        ValueError, match="found no optimizer when the fit started: give the Brain an opt_class"
    ):
        LearningRate(WarmUp(3)).start(brain)


def test_an_optimizer_that_is_replaced_is_an_error() -> None:
    class Replacing(Plain):
        def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
            if stage == bl.Stage.TRAIN and epoch == 1:
                self.optimizer = torch.optim.SGD(self.modules.parameters(), 0.1)
                self.optimizers_dict = {"opt_class": self.optimizer}

    with pytest.raises(ValueError, match="was replaced during the fit, and the new one has no schedule"):
        build(Replacing, [LearningRate(WarmUp(3))]).fit(range(3), ready_batches((4,)))


def test_before_the_first_fit_there_is_no_rate() -> None:
    with pytest.raises(ValueError, match="'LearningRate' has no rate yet: no fit has started"):
        _ = LearningRate(WarmUp(3)).rate


def test_state_with_other_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="'LearningRate' must have the keys 'epochs'.*this one has 'x'"):
        LearningRate(WarmUp(3)).load_state_dict({"x": 1})


def test_hooks_are_gone_after_the_fit() -> None:
    brain = build(Plain, [LearningRate(WarmUp(3))])
    brain.fit(range(1), ready_batches((4,)))
    assert not brain.optimizer._optimizer_step_pre_hooks  # type: ignore[union-attr]
    brain.optimizer.step()  # type: ignore[union-attr]
