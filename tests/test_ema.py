"""EMA on real Brains: the right numbers, nothing lost in a restart, and weights that come back."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import brainlib as bl
from brainlib.ema import EMA, load_average
from brainlib.update.guard import DeviceGuard
from tests.brain.small import batches, same, weights
from tests.contracts.brains import SEED, SEVEN, SHUFFLED, VALID, InnerFit, Plain, ending, ready_batches
from tests.contracts.brains import Noam as NoamBrain
from tests.contracts.test_resume_points import OTHER_SEED, Cut, cut_before
from tests.test_learning_rate import OneIsBad, before_the_epoch_is_counted, build


class Following(Plain):
    """Averages by hand, in float64, after each update that was made."""

    decay = 0.9

    def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
        if stage == bl.Stage.TRAIN and not hasattr(self, "by_hand"):
            self.by_hand = {name: value.detach().double() for name, value in self.modules.named_parameters()}
            self.made = 0

    def on_fit_batch_end(self, batch: Any, outputs: Any, loss: torch.Tensor, should_step: bool) -> None:
        if self.optimizer_step > self.made:
            self.made = self.optimizer_step
            for name, value in self.modules.named_parameters():
                self.by_hand[name] = (
                    self.decay * self.by_hand[name] + (1 - self.decay) * value.detach().double()
                )


def with_norm() -> dict[str, nn.Module]:
    """Has integer buffers, one that is not saved, and a tied weight."""
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6), nn.Linear(6, 3))
    model[2].weight = model[0].weight
    model.register_buffer("table", torch.ones(2), persistent=False)
    return {"model": model}


class WithNorm(Following):
    build = staticmethod(with_norm)


def close(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.allclose(one[k].double(), two[k], atol=1e-6) for k in one)


def script(brain: Plain) -> None:
    brain.fit(range(2), OneIsBad(), VALID, train_loader_kwargs=SHUFFLED)
    brain.fit(range(1), ready_batches((4, 4, 2)), VALID)


# --------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("factor", [1, 2])
def test_it_is_the_average_of_the_weights_after_each_update(factor: int) -> None:
    """With one window an epoch that is skipped, BatchNorm, and a weight that two layers share."""
    ema = EMA(decay=0.9)

    @bl.make_extension
    def look(brain: bl.Brain) -> None:
        assert ema.num_averaged == brain.optimizer_step, "those that only read come later"

    brain = build(WithNorm, [look, ema], grad_accumulation_factor=factor)
    script(brain)
    assert ema.num_averaged == brain.optimizer_step
    assert brain.run_state.nonfinite_windows == 2
    average = ema.average
    assert close({name: average[name] for name in brain.by_hand}, brain.by_hand)  # type: ignore[attr-defined]
    assert ema.average["model.0.weight"] is ema.average["model.2.weight"]
    assert average.keys() == brain.modules.state_dict().keys()
    for name, buffer in brain.modules.named_buffers():
        assert name == "model.table" or torch.equal(average[name], buffer), "a buffer is that of the model"


def test_a_late_verdict_is_waited_for_before_a_window_counts() -> None:
    """An accelerator's guard tells only afterwards that a window was bad; here on the CPU."""

    def run(late: bool) -> tuple[Any, EMA]:
        ema = EMA(decay=0.9)
        brain = build(Plain, [ema])
        brain.opt_class = lambda p: torch.optim.SGD(p, 0.1, fused=True)
        if late:
            brain._guard = DeviceGuard(torch.device("cpu"))
        brain.fit(range(2), OneIsBad(), VALID, train_loader_kwargs=SHUFFLED)
        return brain, ema

    (brain, ema), (_, right) = run(late=True), run(late=False)
    assert brain.run_state.nonfinite_windows == 2
    assert ema.num_averaged == right.num_averaged == brain.optimizer_step == 8
    assert same(ema.average.values(), right.average.values())


def test_warm_start_forgets_the_first_weights_soon() -> None:
    slow, fast = EMA(0.999, name="slow"), EMA(0.999, warm_start=True, name="fast")
    brain = build(Plain, [slow, fast])
    seen = [{name: value.double() for name, value in brain.modules.state_dict().items()}]
    brain.on_fit_batch_end = lambda *args: seen.append(  # type: ignore[method-assign]
        {name: value.double() for name, value in brain.modules.state_dict().items()}
    )
    brain.fit(range(1), ready_batches((4,) * 6))
    right = seen[0]
    for n, value in enumerate(seen[1:]):
        decay = min(0.999, (1 + n) / (10 + n))
        right = {name: decay * right[name] + (1 - decay) * value[name] for name in right}
    assert close(fast.average, right)

    def to_go(ema: EMA) -> float:
        return max(float((ema.average[name] - value).abs().max()) for name, value in seen[-1].items())

    assert to_go(fast) < to_go(slow)


def test_every_so_many_updates_or_epochs() -> None:
    by_steps, by_epochs = EMA(every=(4, "step"), name="steps"), EMA(every=[1, "epoch"], name="epochs")
    brain = build(Plain, [by_steps, by_epochs])
    brain.fit(range(2), ready_batches((4, 4, 4)))
    brain.fit(range(1), ready_batches((4, 4, 4)))
    assert by_steps.num_averaged == 2
    assert by_epochs.num_averaged == 3


def test_half_precision_is_averaged_in_single() -> None:
    """A thousandth of a step is lost in bfloat16, which has eight bits."""
    ema = EMA(0.999)
    brain = build_small([ema], nn.Linear(3, 2).bfloat16())
    data = [{key: value.bfloat16() for key, value in batch.items()} for batch in batches(2, 2, 2)]
    brain.fit(range(1), data)
    before = weights(brain)
    assert {average.dtype for average in ema.average.values()} == {torch.float32}
    with ema.swapped():
        assert brain.modules.model.weight.dtype == torch.bfloat16
        assert not same(weights(brain), before)
    assert same(weights(brain), before)


def test_only_some_modules() -> None:
    ema = EMA(modules=["encoder"])
    brain = build(SEVEN[2], [ema])
    brain.fit(range(1), ready_batches((4,)))
    assert set(ema.average) == {"encoder.0.weight", "encoder.0.bias"}


def build_small(extensions: list[Any], model: nn.Module | None = None, **kwargs: Any) -> Any:
    class Regression(bl.Brain):
        def compute_forward(self, batch: Any, stage: bl.Stage) -> torch.Tensor:
            return self.modules.model(batch["x"])

        def compute_objectives(self, predictions: Any, batch: Any, stage: bl.Stage) -> torch.Tensor:
            return nn.functional.mse_loss(predictions, batch["y"])

    return Regression(
        {"model": model or nn.Linear(3, 2).double()},
        lambda p: torch.optim.SGD(p, 0.1),
        hparams={"seed": 0},
        run_opts={"noprogressbar": True, "device": "cpu"},
        extensions=extensions,
        **kwargs,
    )


# -------------------------------------------------------------------------------------------------- restarts

CUTS = {
    "inside a window": ("compute_forward", bl.Stage.TRAIN, 4),
    "before TRAIN ends": ("on_stage_end", bl.Stage.TRAIN, 1),
    "in the second epoch": ("compute_forward", bl.Stage.TRAIN, 10),
    "in the second fit": ("compute_forward", bl.Stage.TRAIN, 12),
}


def life(
    cls: type[Plain],
    folder: Path | None = None,
    cut: Callable[[Plain], None] | None = None,
    seed: int = SEED,
    emas: Callable[[], list[EMA]] = lambda: [EMA(0.9)],
    **run_opts: Any,
) -> dict[str, Any]:
    extensions = emas()
    brain = build(cls, extensions, folder, seed, grad_accumulation_factor=2, **run_opts)
    if cut is not None:
        cut(brain)
        with pytest.raises(Cut):
            script(brain)
        return {"trace": brain.trace}
    script(brain)
    averages = [{name: value.tolist() for name, value in ema.average.items()} for ema in extensions]
    return {**ending(brain), "counts": [ema.num_averaged for ema in extensions], "averages": averages}


def cut_and_resumed(
    cls: type[Plain], folder: Path, cut: Callable[[Plain], None], save_every: int = 1, **kwargs: Any
) -> dict[str, Any]:
    first = life(cls, folder, cut, ckpt_interval_steps=save_every, **kwargs)
    second = life(cls, folder, seed=OTHER_SEED, **kwargs)
    return {**second, "trace": first["trace"] + second["trace"]}


def two_emas() -> list[EMA]:
    return [EMA(0.9), EMA(0.5, every=(1, "epoch"), warm_start=True, name="by-epoch")]


class PlainNorm(Plain):
    build = staticmethod(with_norm)


@pytest.mark.parametrize("cut", CUTS)
def test_a_cut_run_has_the_same_average(cut: str, tmp_path: Path) -> None:
    end = cut_and_resumed(PlainNorm, tmp_path, lambda b: cut_before(b, *CUTS[cut]), emas=two_emas)
    assert end == life(PlainNorm, emas=two_emas)


@pytest.mark.parametrize(
    "cls", [each for each in SEVEN if each not in (NoamBrain, Plain)], ids=lambda c: c.__name__
)
def test_all_styles_of_brains(cls: type[Plain], tmp_path: Path) -> None:
    cut = CUTS["in the second epoch"]
    end = cut_and_resumed(cls, tmp_path, lambda b: cut_before(b, *cut), save_every=2)
    assert end == life(cls)
    assert end["counts"] == [end["optimizer_step"]]


class SavesInItsHooks(PlainNorm):
    """The user saves right after an update, before the extensions are called, and in the last hook of an epoch."""

    def on_fit_batch_end(self, batch: Any, outputs: Any, loss: torch.Tensor, should_step: bool) -> None:
        if self.checkpointer is not None and (self.run_state.epoch, self.step) == (1, 2):
            assert should_step
            self.checkpointer.save_checkpoint(end_of_epoch=False)

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        super().on_stage_end(stage, stage_loss, epoch)
        if stage == bl.Stage.VALID and self.checkpointer is not None:
            self.checkpointer.save_checkpoint()


@pytest.mark.parametrize(
    "cut",
    [lambda b: cut_before(b, *CUTS["in the second epoch"]), before_the_epoch_is_counted],
    ids=["update", "epoch"],
)
def test_a_checkpoint_from_inside_a_hook(cut: Callable[[Plain], None], tmp_path: Path) -> None:
    end = cut_and_resumed(SavesInItsHooks, tmp_path, cut, save_every=1000, emas=two_emas)
    assert end == life(PlainNorm, emas=two_emas)


def test_what_is_saved_has_the_last_update_in_it(tmp_path: Path) -> None:
    """Also where the user saves before the extensions are called; and saving changes nothing."""

    class Saving(Following):
        def on_fit_batch_end(self, *args: Any) -> None:
            super().on_fit_batch_end(*args)
            count = ema.num_averaged
            self.checkpointer.save_checkpoint(end_of_epoch=False)
            assert ema.num_averaged == count
            assert close(load_average(tmp_path), self.by_hand)

    ema = EMA(0.9)
    build(Saving, [ema], tmp_path).fit(range(1), ready_batches((4, 4)))
    assert ema.num_averaged == 2


def test_saved_in_the_very_last_hook(tmp_path: Path) -> None:
    """There is no update any more before which the average could be caught up."""
    folder = tmp_path / "save"
    first = build(SavesInItsHooks, two_emas(), folder)
    before_the_epoch_is_counted(first)
    with pytest.raises(Cut):
        first.fit(range(2), ready_batches((4, 4)), VALID)
    ends = []
    for where in (folder, None):
        emas = two_emas()
        build(SavesInItsHooks, emas, where).fit(range(2), ready_batches((4, 4)), VALID)
        ends.append([{k: v.tolist() for k, v in ema.average.items()} for ema in emas])
    assert ends[0] == ends[1]


def test_interrupted_in_a_notebook_and_the_cell_run_again() -> None:
    def run(interrupted: bool) -> EMA:
        ema = EMA(0.9)
        brain = build(Plain, [ema])
        raised = not interrupted

        def on_fit_batch_end(*args: Any) -> None:
            nonlocal raised
            if brain.optimizer_step == 2 and not raised:
                raised = True
                raise KeyboardInterrupt

        brain.on_fit_batch_end = on_fit_batch_end  # type: ignore[method-assign]
        if interrupted:
            with pytest.raises(KeyboardInterrupt):
                brain.fit(range(2), ready_batches((4, 4, 4)))
        brain.fit(range(2), ready_batches((4, 4, 4)))
        return ema

    one, two = run(True), run(False)
    assert one.num_averaged == two.num_averaged == 6
    assert same(one.average.values(), two.average.values())


def test_an_optimizer_that_a_hook_makes_is_noticed() -> None:
    class Late(Following):
        def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
            super().on_stage_start(stage, epoch)
            if stage == bl.Stage.TRAIN and epoch == 1:
                self.optimizer = torch.optim.SGD(self.modules.parameters(), 0.1)
                self.optimizers_dict = {"sgd": self.optimizer}

    ema = EMA(0.9)
    brain = build(Late, [ema])
    brain.fit(range(3), ready_batches((4, 4)))
    assert ema.num_averaged == brain.optimizer_step == 6
    assert close(ema.average, brain.by_hand)  # type: ignore[attr-defined]


# --------------------------------------------------------------------------------------------------- swapping


def test_swapped_and_back_also_after_an_error() -> None:
    ema = EMA(0.9)
    brain = build(WithNorm, [ema])
    brain.fit(range(1), ready_batches())
    before = copy.deepcopy(brain.modules.state_dict())
    places = [parameter.data_ptr() for parameter in brain.modules.parameters()]
    with pytest.raises(RuntimeError, match="on purpose"), ema.swapped():
        assert same(brain.modules.state_dict().values(), ema.average.values())
        with ema.swapped():  # inside itself it changes nothing
            pass
        assert same(brain.modules.state_dict().values(), ema.average.values())
        raise RuntimeError("on purpose")
    assert same(brain.modules.state_dict().values(), before.values())
    assert [parameter.data_ptr() for parameter in brain.modules.parameters()] == places


def test_evaluating_in_the_middle_changes_no_bit(tmp_path: Path) -> None:
    class Evaluating(Plain):
        ema: EMA | None = None

        def evaluate_batch(self, batch: Any, stage: bl.Stage) -> torch.Tensor:
            assert self.ema is not None
            with self.ema.swapped():
                return super().evaluate_batch(batch, stage)

    ends = []
    for cls in (Plain, Evaluating):
        ema = EMA(0.9)
        brain = build(cls, [ema], valid_interval_steps=2)
        vars(brain)["ema"] = ema
        brain.fit(range(2), ready_batches(), VALID)
        ends.append((ending(brain), ema))
    (plain, one), (evaluating, two) = ends
    assert plain["digest"] == evaluating["digest"]
    assert same(one.average.values(), two.average.values())
    assert [row[2] for row in plain["trace"]] != [row[2] for row in evaluating["trace"]]


def test_validation_with_the_average_and_the_hook_with_the_weights_of_the_run() -> None:
    class Looking(Plain):
        seen: ClassVar[list[list[torch.Tensor]]] = []

        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
            super().on_stage_end(stage, stage_loss, epoch)
            self.seen.append(weights(self))

    ends = []
    for evaluate in (False, True):
        Looking.seen = []
        ema = EMA(0.9, evaluate=evaluate)
        brain = build(Looking, [ema], valid_interval_steps=2)
        brain.fit(range(2), ready_batches(), VALID)
        ends.append((ending(brain), Looking.seen))
        with ema.swapped():
            averaged = brain.evaluate(VALID, checkpoint="current")
        assert (brain.trace[-1][2] == averaged) is evaluate
    (plain, seen), (evaluating, seen_too) = ends
    assert plain["digest"] == evaluating["digest"]
    assert all(same(one, two) for one, two in zip(seen, seen_too, strict=True))


def test_evaluate_with_the_average(tmp_path: Path) -> None:
    ema = EMA(0.9)
    brain = build(Plain, [ema], tmp_path)
    brain.fit(range(2), ready_batches(), VALID)
    current = brain.evaluate(VALID, checkpoint="current")
    with ema.swapped():
        averaged = brain.evaluate(VALID, checkpoint="current")
    assert averaged != current
    assert brain.evaluate(VALID, checkpoint="current") == current

    other = build(Plain, [], seed=OTHER_SEED)
    other.modules.load_state_dict(load_average(tmp_path))
    assert other.evaluate(VALID) == averaged


def test_inside_nothing_is_saved_loaded_or_trained(tmp_path: Path) -> None:
    ema = EMA(0.9)
    brain = build(Plain, [ema], tmp_path)
    brain.fit(range(1), ready_batches((4,)))
    before = weights(brain)
    with ema.swapped():
        with pytest.raises(
            ValueError, match=r"a checkpoint is saved while the averaged weights of 'EMA' are in place"
        ):
            brain.checkpointer.save_checkpoint()
        with pytest.raises(
            ValueError, match="steps while the averaged weights of 'EMA' are in place; train outside"
        ):
            brain.fit(range(2), ready_batches((4,)))
    assert same(weights(brain), before)
    assert len(brain.checkpointer.list_checkpoints()) == 1


# ----------------------------------------------------------------------------------------------------- cost


def test_nothing_is_read_back_from_the_device() -> None:
    """A tensor without numbers raises when a number of it is asked for."""

    counters = {"epoch": 0, "optimizer_step": 0}
    brain = SimpleNamespace(
        modules=nn.ModuleDict({"model": nn.Linear(3, 2).to("meta")}),
        _optimizers=SimpleNamespace(found={}),
        device=torch.device("meta"),
        run_state=SimpleNamespace(step=1),
        _state=SimpleNamespace(counters=lambda: counters),
    )
    ema = EMA(0.9, warm_start=True)
    ema.start(brain)
    for counters["optimizer_step"] in range(1, 4):
        ema(brain)
        assert ema.num_averaged == counters["optimizer_step"] - 1, (
            "it may turn out that this one does not count"
        )
        ema._before_step(None, (), {})
    with ema.swapped():
        pass
    assert ema.num_averaged == 3


# --------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EMA(1.0), "decay=1.0: give a number from 0 up to, and without, 1"),
        (lambda: EMA(-0.1), "decay=-0.1"),
        (lambda: EMA(math.nan), "decay=nan"),
        (lambda: EMA(every=(3, "seconds")), r"every=\(3, 'seconds'\): give \(n, 'step'\) or \(n, 'epoch'\)"),
        (lambda: EMA(every=lambda brain: True), "give .n, 'step'. or .n, 'epoch'."),  # type: ignore[arg-type]
        (lambda: EMA(every=(1, "steps")), "Did you mean 'step'"),
        (lambda: EMA(modules="model"), r"modules='model': give a list of names, \['model'\]"),
    ],
)
def test_what_cannot_work_is_refused_at_once(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(
        ValueError, match=r"averages the module 'modle', which is not there; .*Did you mean 'model'\?"
    ):
        build(Plain, [EMA(modules=["modle"])]).fit(range(1), ready_batches((4,)))


def test_before_the_first_fit_there_is_no_average() -> None:
    ema = EMA()
    assert ema.average == {}
    with pytest.raises(ValueError, match="'EMA' has no average yet: no fit has started"), ema.swapped():
        pass


def test_the_average_of_other_weights_is_refused(tmp_path: Path) -> None:
    build(Plain, [EMA()], tmp_path).fit(range(1), ready_batches((4,)))

    class Bigger(Plain):
        @staticmethod
        def build() -> dict[str, nn.Module]:
            return {**Plain.build(), "other": nn.Linear(1, 1)}

    brain = build(Bigger, [EMA()], None)
    ema = brain._extensions["EMA"]
    assert isinstance(ema, EMA)
    ema.load_state_dict(torch.load(newest(tmp_path))["extensions"]["EMA"]["state"])
    with pytest.raises(
        ValueError, match="as 'EMA' does not fit these weights: missing in the checkpoint: 'other"
    ):
        brain.fit(range(1), ready_batches((4,)))
    with pytest.raises(
        ValueError, match="must have the keys 'average', 'due', 'num_averaged'; this one has 'x'"
    ):
        ema.load_state_dict({"x": 1})
    with pytest.raises(ValueError, match=r"no average of the name 'ema'; it has 'EMA'"):
        load_average(tmp_path, "ema")


def newest(folder: Path) -> Path:
    return bl.Checkpointer(folder).newest().path / "brain.pt"  # type: ignore[union-attr]


def test_hooks_are_gone_after_the_fit() -> None:
    brain = build(InnerFit, [EMA()])
    brain.fit(range(1), ready_batches((4,)))
    assert not brain.g_optimizer._optimizer_step_pre_hooks  # type: ignore[attr-defined]
