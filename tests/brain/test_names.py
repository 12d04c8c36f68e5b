"""A user's own attributes and methods beside ours: which names are taken, what becomes of the others; copies.

Ours with an underscore are the price of subclassing; what is tested here is that there are few public ones.
"""

from __future__ import annotations

import copy
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import brainlib as bl
from tests.brain.small import Batch, Regression, batches, same, small, weights

# What a user meets in SpeechBrain under these names, and may read, call or override; nothing else is ours.
PUBLIC = {
    "compute_forward", "compute_objectives", "fit", "evaluate", "fit_batch", "evaluate_batch", "optimizers_step",
    "on_fit_start", "on_stage_start", "on_stage_end", "on_fit_batch_start", "on_fit_batch_end", "on_evaluate_start",
    "make_dataloader", "init_optimizers", "freeze_optimizers", "zero_grad", "no_sync", "check_loss_isfinite",
    "check_gradients", "update_average", "print_trainable_parameters", "step", "optimizer_step", "avg_train_loss",
    "nonfinite_count",
    # brainlib's own
    "loss_weight", "get_extra_state", "set_extra_state", "predict", "run_state", "grad_norm",
}  # fmt: skip
ATTRIBUTES = {
    "device", "training_ctx", "evaluation_ctx", "scaler", "modules", "opt_class", "optimizer", "optimizers_dict",
    "hparams", "checkpointer", "loggers", "should_step",
}  # fmt: skip
GIVING_WAY = [
    "step",
    "avg_train_loss",
    "grad_norm",
]  # answers: assigned over, they are the user's

# Words that recipes like, and that once were ours or could be.
FREE = [
    "counters", "environment", "found_recoverables", "closes_epoch", "state", "run", "name", "epoch", "seed", "world",
    "guard", "window", "loss", "model", "brain", "metrics", "tokenizer", "progress", "extensions", "profiler",
    "options", "data", "experiment", "trainer", "stage", "batch", "weights", "schedule", "generators", "inner", "rank",
    "losses",
]  # fmt: skip


def test_these_names_are_ours_and_no_others() -> None:
    methods = {name for name in vars(bl.Brain) if not name.startswith("_")}
    attributes = {name for name in vars(small()) if not name.startswith("_")}
    assert methods == PUBLIC
    assert attributes == ATTRIBUTES


@pytest.mark.parametrize("value", [{}, [1], "text", 5, None, True], ids=repr)
def test_free_names_may_hold_anything(value: Any, tmp_path: Path) -> None:
    brain = small(checkpointer=bl.Checkpointer(tmp_path), ckpt_interval_steps=1)
    for name in FREE:
        assert not hasattr(bl.Brain, name)
        setattr(brain, name, value)
    brain.fit(range(2), batches(2, 2), batches(2))
    brain.evaluate(batches(2))
    assert all(getattr(brain, name) == value for name in FREE)


def test_free_names_may_be_methods(tmp_path: Path) -> None:
    cls = type("Named", (Regression,), {name: lambda self, *args, **kwargs: 7 for name in FREE})
    brain = small(cls, checkpointer=bl.Checkpointer(tmp_path), ckpt_interval_steps=1)
    brain.fit(range(2), batches(2, 2), batches(2))
    brain.evaluate(batches(2))
    again = small(cls, checkpointer=bl.Checkpointer(tmp_path))
    again.fit(range(3), batches(2, 2), batches(2))
    assert again.optimizer_step == 6
    assert again.counters() == 7


@pytest.mark.parametrize("value", [{}, 5, None], ids=repr)
@pytest.mark.parametrize("name", GIVING_WAY)
def test_what_only_answers_can_be_assigned_over(name: str, value: Any, tmp_path: Path) -> None:
    """And everything that needs the answer still has it: triggers, validation in mid-epoch, saves, a resume."""
    for num_epochs in (2, 3):
        brain = small(checkpointer=bl.Checkpointer(tmp_path), ckpt_interval_steps=1, valid_interval_steps=1)
        setattr(brain, name, value)
        brain.fit(range(num_epochs), batches(2, 2), batches(2))
        brain.evaluate(batches(2))
        assert getattr(brain, name) == value
        assert brain.optimizer_step == 2 * num_epochs


@pytest.mark.parametrize("name", ["optimizer_step", "nonfinite_count"])
def test_what_recipes_count_themselves_can_be_set(name: str) -> None:
    brain = small()
    setattr(brain, name, 3)
    assert getattr(brain, name) == 3


def test_an_attribute_with_the_name_of_an_option_is_the_users(caplog: pytest.LogCaptureFixture) -> None:
    class Own(Regression):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.max_grad_norm = 1.0

    data = batches(2)
    data[0]["x"] *= 1000
    brain, reference = small(Own), small()
    brain.fit(range(1), data)
    reference.fit(range(1), data)
    assert brain.max_grad_norm == 1.0
    assert same(weights(brain), weights(reference)), "still clipped to 5.0"
    assert (
        "the attribute max_grad_norm = 1.0 of your Brain is your own: the option max_grad_norm stays 5.0"
        in (caplog.text)
    )


def test_a_method_with_the_name_of_an_option_is_the_users() -> None:
    class Own(Regression):
        def debug(self) -> str:
            return "mine"

        def compile(self) -> str:
            return "mine, too"

    brain = small(Own)
    brain.fit(range(1), batches(2, 2, 2))
    assert brain.optimizer_step == 3
    assert (brain.debug(), brain.compile()) == ("mine", "mine, too")


def test_options_are_there_where_nobody_has_an_attribute() -> None:
    brain = small(grad_accumulation_factor=3)
    assert (brain.grad_accumulation_factor, brain.max_grad_norm, brain.debug) == (3, 5.0, False)
    with pytest.raises(AttributeError, match="'Regression' object has no attribute 'max_gard_norm'"):
        brain.max_gard_norm  # noqa: B018


def test_asked_before_init_it_says_so() -> None:
    class Early(Regression):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.num_steps = self.grad_accumulation_factor
            super().__init__(*args, **kwargs)

    with pytest.raises(AttributeError, match="its __init__ has not called super"):
        small(Early)


def test_no_own_attribute_of_the_brain_is_taken_for_a_users() -> None:
    """What has state and is ours is saved under our names, once."""
    brain = small()
    brain.fit(range(1), batches(2))
    assert set(brain._state.found_recoverables()) == {"brain", "model", "optimizer"}


def test_the_hooks_have_the_signatures_of_speechbrain() -> None:
    names = {
        name: list(inspect.signature(getattr(bl.Brain, name)).parameters)[1:]
        for name in PUBLIC
        if callable(getattr(bl.Brain, name))
    }
    assert names["on_stage_start"] == ["stage", "epoch"]
    assert names["on_stage_end"] == ["stage", "stage_loss", "epoch"]
    assert names["on_fit_batch_start"] == ["batch", "should_step"]
    assert names["on_fit_batch_end"] == ["batch", "outputs", "loss", "should_step"]
    assert names["on_evaluate_start"] == ["max_key", "min_key"]
    assert names["make_dataloader"] == ["dataset", "stage", "ckpt_prefix", "loader_kwargs"]
    assert names["fit"][:6] == [
        "epoch_counter", "train_set", "valid_set", "progressbar", "train_loader_kwargs", "valid_loader_kwargs",
    ]  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- copies
def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


@pytest.mark.parametrize("when", ["before a fit", "after a fit"])
def test_a_deep_copy_is_a_brain_of_its_own(when: str) -> None:
    brain = small(opt_class=momentum, hparams={"lr": 0.1})
    if when == "after a fit":
        brain.fit(range(1), batches(3, 3))
    before = weights(brain)
    twin = copy.deepcopy(brain)
    assert twin.modules is not brain.modules
    assert twin.hparams.lr == 0.1
    twin.fit(range(1), batches(3, 3, seed=2))
    assert same(weights(brain), before)
    assert not same(weights(twin), before)
    assert brain.optimizer_step == (2 if when == "after a fit" else 0)

    reference = small(opt_class=momentum)
    if when == "after a fit":
        reference.fit(range(1), batches(3, 3))
    reference.fit(range(1), batches(3, 3, seed=2))
    assert same(weights(twin), weights(reference)), "its optimizer holds its own weights and moments"


def test_a_copy_saves_its_own_state(tmp_path: Path) -> None:
    brain = small(checkpointer=bl.Checkpointer(tmp_path / "one"))
    twin = copy.deepcopy(brain)
    twin.checkpointer.checkpoints_dir = tmp_path / "two"
    twin.fit(range(1), batches(3))
    assert not (tmp_path / "one").exists()
    again = small(checkpointer=bl.Checkpointer(tmp_path / "two"))
    again.fit(range(1), batches(3))
    assert same(weights(again), weights(twin))


def test_a_copy_of_hparams_still_watches_and_still_has_its_keys() -> None:
    hparams = small(hparams={"lr": 0.1, "max_grad_nrom": 1.0}).hparams
    twin = copy.deepcopy(hparams)
    assert (twin.lr, twin.unread(), hparams.unread()) == (0.1, ["max_grad_nrom"], ["max_grad_nrom"])
    assert twin.max_grad_nrom == 1.0
    assert hparams.unread() == ["max_grad_nrom"]
    with pytest.raises(AttributeError, match="hparams has no key 'rl'; there are .'lr'"):
        twin.rl  # noqa: B018


@pytest.mark.parametrize(
    "normed",
    [False, True],
)
def test_a_lazy_module_gets_its_shape_in_the_first_batch(
    normed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    norm = nn.LazyBatchNorm1d() if normed else nn.Identity()
    brain = small(model=nn.Sequential(nn.LazyLinear(4), norm, nn.Linear(4, 2)).double())
    with caplog.at_level("INFO", logger="brainlib"):
        brain.fit(range(1), batches(3, 3))
    assert "10 trainable of 10 parameters" in caplog.text, "what has no shape yet is not counted"
    assert brain.optimizer_step == 2


@pytest.mark.parametrize("evaluated", [False, True])
def test_a_module_that_is_not_there_is_told_with_those_that_are(evaluated: bool) -> None:
    class Misspelt(Regression):
        def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
            return self.modules.modle(batch["input"])

    brain = small(Misspelt)
    told = "no attribute 'modle' (self.modules has 'model'. Did you mean 'model'?)"
    with pytest.raises(AttributeError, match=re.escape(told)):
        brain.evaluate(batches(2)) if evaluated else brain.fit(range(1), batches(2))


@pytest.mark.parametrize("evaluated", [False, True])
def test_a_forward_without_return_is_told_where_the_loss_fails(evaluated: bool) -> None:
    class Forgetful(Regression):
        def compute_forward(self, batch: Batch, stage: bl.Stage) -> None:  # type: ignore[override]
            super().compute_forward(batch, stage)

        def compute_objectives(self, predictions: Any, batch: Batch, stage: bl.Stage) -> torch.Tensor:
            outputs, _ = predictions
            return super().compute_objectives(outputs, batch, stage)

    brain = small(Forgetful)
    with pytest.raises(
        TypeError, match="cannot unpack non-iterable NoneType object .compute_forward returned None"
    ):
        brain.evaluate(batches(2)) if evaluated else brain.fit(range(1), batches(2))
