"""Options as attributes of a Brain, names that are wrong, and the attributes that are always there."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from tests.brain.small import Regression, batches, linear, sgd, small


def test_options_are_reachable_as_attributes() -> None:
    brain = small(max_grad_norm=2.0)
    assert brain.max_grad_norm == 2.0
    assert brain.grad_accumulation_factor == 1
    assert brain.precision == "fp32"
    assert brain.debug is False


def test_a_miss_is_an_attribute_error_like_any_other() -> None:
    brain = small()
    with pytest.raises(AttributeError, match="no attribute 'max_grad_nrom'"):
        brain.max_grad_nrom  # noqa: B018
    assert not hasattr(brain, "anything")
    assert getattr(brain, "anything", 7) == 7


@pytest.mark.parametrize("where", ["class", "instance", "method", "before __init__"])
def test_the_users_attribute_of_the_same_name_wins(where: str) -> None:
    """`compile`, `debug`, `precision` are words that people use; theirs is theirs, and the option still works."""
    body: dict[str, Any] = {}
    if where == "class":
        body["debug_batches"] = "mine"
    elif where == "method":
        body["debug_batches"] = lambda self: "mine"
    elif where == "before __init__":

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            self.debug_batches = "mine"
            Regression.__init__(self, *args, **kwargs)

        body["__init__"] = __init__
    brain = small(type("Brain", (Regression,), body), debug=True, debug_epochs=1, debug_batches=3)
    if where == "instance":
        brain.debug_batches = "mine"
    brain.fit(range(5), batches(*(1,) * 10))
    assert (brain.debug_batches() if where == "method" else brain.debug_batches) == "mine"
    assert brain.optimizer_step == 3


def test_an_attribute_called_compile_is_no_option() -> None:
    class Brain(Regression):
        def compile(self, source: str) -> str:
            return source.upper()

    brain = small(Brain)
    brain.fit(range(1), batches(2))
    assert brain.compile("x") == "X"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("max_grad_nrom", "max_grad_norm"),
        ("prec", "precision"),
        ("grad_accumulation", "grad_accumulation_factor"),
    ],
)
def test_an_unknown_option_is_an_error_that_names_the_nearest(given: str, meant: str) -> None:
    with pytest.raises(ValueError, match=given) as caught:
        small(**{given: 1})
    if given != "prec":
        assert meant in str(caught.value)


def test_the_order_of_places() -> None:
    """Default, then hparams, then its section run_opts, then run_opts by hand."""
    assert small(hparams={"max_grad_norm": 1.0}).max_grad_norm == 1.0
    assert small(hparams={"max_grad_norm": 1.0, "run_opts": {"max_grad_norm": 2.0}}).max_grad_norm == 2.0
    assert small(hparams={"run_opts": {"max_grad_norm": 2.0}}, max_grad_norm=3.0).max_grad_norm == 3.0


def test_an_option_of_ours_at_the_top_of_hparams_is_the_users_own_key() -> None:
    brain = small(hparams={"limit_train_batches": 1})
    brain.fit(range(1), batches(2, 2, 2))
    assert brain.optimizer_step == 3
    assert brain.hparams.limit_train_batches == 1
    brain = small(hparams={"run_opts": {"limit_train_batches": 1}})
    brain.fit(range(1), batches(2, 2, 2))
    assert brain.optimizer_step == 1


def test_hparams_are_always_there() -> None:
    brain = Regression({"model": linear()}, sgd)
    with pytest.raises(AttributeError, match="lr"):
        brain.hparams.lr  # noqa: B018
    assert Regression({"model": linear()}, sgd, hparams={"lr": 0.1}).hparams.lr == 0.1


def test_hparams_hold_the_very_objects() -> None:
    model = linear()
    brain = Regression({"model": model}, sgd, hparams={"model": model})
    assert brain.hparams.model is brain.modules.model is model


def test_a_brain_of_nothing() -> None:
    """As a holder of modules, or for a look at the options."""
    brain = bl.Brain()
    assert len(brain.modules) == 0
    assert brain.checkpointer is None
    assert brain.step == brain.optimizer_step == 0
    assert brain.avg_train_loss == 0.0
    assert list(brain.loggers) == []
    assert isinstance(brain.device, torch.device)


@pytest.mark.parametrize("name", ["jit", "jit_module_keys", "data_parallel_backend", "log_config"])
def test_options_that_are_gone_name_what_to_use(name: str) -> None:
    value = {"jit_module_keys": ["model"], "log_config": "logging.yaml"}.get(name, True)
    with pytest.raises(ValueError, match=name) as caught:
        small(**{name: value})
    replacement = {"jit": "compile", "jit_module_keys": "compile", "data_parallel_backend": "torchrun"}
    assert replacement.get(name, "logger") in str(caught.value)


def test_a_device_that_is_not_there_is_an_error_at_construction() -> None:
    with pytest.raises(ValueError, match="cuda:97") as caught:
        small(device="cuda:97")
    assert "cpu" in str(caught.value), "what there is"
    with pytest.raises(ValueError, match="gpu"):
        small(device="gpu")


def test_a_module_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="model") as caught:
        bl.Brain({"model": "a string"})  # type: ignore[dict-item]
    assert "Module" in str(caught.value)
    with pytest.raises(ValueError, match=r"a\.b"):
        bl.Brain({"a.b": linear()})


def test_a_brain_can_be_copied_and_inspected() -> None:
    """`__getattr__` must not recurse where an object is made without `__init__`."""
    brain = small()
    assert copy.copy(brain).max_grad_norm == 5.0
    empty = object.__new__(Regression)
    assert not hasattr(empty, "max_grad_norm")
    assert "fit" in dir(brain)
    assert isinstance(repr(brain), str)


def test_the_checkpointer_is_the_one_given(tmp_path: Path) -> None:
    checkpointer = bl.Checkpointer(tmp_path / "save")
    brain = small(checkpointer=checkpointer)
    assert brain.checkpointer is checkpointer
    assert not (tmp_path / "save").exists(), "nothing is written before there is something to write"
