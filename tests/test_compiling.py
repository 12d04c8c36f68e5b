"""The options that make computing faster, and the lines that say so: fused, channels_last, tf32, compile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from brainlib.compiling import compile_in_place, set_matmul_precision, to_channels_last
from brainlib.options import RunOptions
from brainlib.update.fused import make_fused
from tests.brain.small import Regression, batches, far, sgd, small, weights

OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
    "Adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
}


# ---------------------------------------------------------------------------------------------------------------- fused
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_fused_optimizer_computes_the_same(name: str) -> None:
    plain = small(opt_class=OPTIMIZERS[name])
    fused = small(opt_class=OPTIMIZERS[name], fused=True)
    for brain in (plain, fused):
        brain.fit(range(3), batches(3, 2))
    assert all(group["fused"] and not group["foreach"] for group in fused.optimizer.param_groups)
    assert not any(group["fused"] for group in plain.optimizer.param_groups)
    assert far(weights(plain), weights(fused)) < 1e-12


def test_a_group_that_is_added_later_is_fused_too() -> None:
    optimizer = sgd([nn.Parameter(torch.ones(1))])
    make_fused(optimizer, "optimizer")
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    assert [group["fused"] for group in optimizer.param_groups] == [True, True]


def test_all_optimizers_are_made_fused() -> None:
    class Two(Regression):
        def init_optimizers(self) -> None:
            self.optimizer_w = torch.optim.Adam([self.modules.model.weight], 0.1)
            self.optimizers_dict = {"b": sgd([self.modules.model.bias])}

    brain = small(Two, opt_class=None, fused=True)
    brain.fit(range(1), batches(2))
    assert brain.optimizer_w.defaults["fused"]
    assert brain.optimizers_dict["b"].defaults["fused"]


@pytest.mark.parametrize("make", [torch.optim.RMSprop, type("Mine", (torch.optim.SGD,), {})])
def test_what_has_no_fused_form_is_named_and_left_alone(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A subclass may have a step of its own."""
    brain = small(opt_class=lambda p: make(p, 0.01), fused=True)
    brain.fit(range(1), batches(2))
    assert (
        f"fused has no effect on optimizer: torch has no fused form of {make.__name__} (it has for SGD, Adam, AdamW, "
        "Adagrad)" in caplog.text
    )
    assert caplog.text.count("fused has no effect") == 1


def test_a_resume_in_another_form_says_so(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    import brainlib as bl

    small(checkpointer=bl.Checkpointer(tmp_path)).fit(range(1), batches(2))
    small(checkpointer=bl.Checkpointer(tmp_path), fused=True).fit(range(2), batches(2))
    assert "optimizers was {'optimizer': 'SGD'} and is {'optimizer': 'SGD fused'}" in caplog.text


# -------------------------------------------------------------------------------------------------------- channels_last
class Convolving(Regression):
    def compute_forward(self, batch: Any, stage: Any) -> torch.Tensor:
        return self.modules.model(batch["x"].repeat(1, 3).view(-1, 1, 3, 3))


def convolution() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 2), nn.ReLU(), nn.Conv2d(4, 2, 2), nn.Flatten()).double()


def test_channels_last_changes_the_format_and_not_the_numbers(caplog: pytest.LogCaptureFixture) -> None:
    plain = small(Convolving, model=convolution())
    with caplog.at_level("INFO", logger="brainlib"):
        brain = small(Convolving, model=convolution(), channels_last=True)
    assert "channels_last: weights with four dimensions are in that memory format" in caplog.text
    assert brain.modules.model[2].weight.is_contiguous(memory_format=torch.channels_last)
    for each in (plain, brain):
        each.fit(range(2), batches(3, 2))
    assert far(weights(plain), weights(brain)) < 1e-12
    assert brain.modules.model[2].weight.is_contiguous(memory_format=torch.channels_last)


def test_channels_last_is_kept_by_a_resume(tmp_path: Any) -> None:
    import brainlib as bl

    def started(epochs: int) -> Any:
        brain = small(
            Convolving, model=convolution(), channels_last=True, checkpointer=bl.Checkpointer(tmp_path)
        )
        brain.fit(range(epochs), batches(3, 2))
        return brain

    started(1)
    brain = started(2)
    uncut = small(Convolving, model=convolution(), channels_last=True)
    uncut.fit(range(2), batches(3, 2))
    assert brain.modules.model[2].weight.is_contiguous(memory_format=torch.channels_last)
    assert far(weights(brain), weights(uncut)) == 0.0


def test_parameters_of_other_dimensions_are_left_alone() -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Conv1d(2, 2, 1), nn.Conv2d(2, 2, 2)])
    objects = list(model.parameters())
    to_channels_last(model)
    assert all(a is b for a, b in zip(objects, model.parameters(), strict=True))
    assert model[1].weight.is_contiguous()


def test_without_the_option_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="brainlib"):
        small().fit(range(1), batches(2))
    for word in ("channels_last", "tf32", "fused", "compiled"):
        assert word not in caplog.text


# ----------------------------------------------------------------------------------------------------------------- tf32
@pytest.fixture
def _tf32_put_back() -> Iterator[None]:
    kept = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = kept


@pytest.mark.usefixtures("_tf32_put_back")
@pytest.mark.parametrize(("tf32", "words"), [(True, "TF32"), (False, "float32")])
def test_tf32_is_a_setting_of_the_process_and_said(
    tf32: bool, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="brainlib"):
        small(tf32=tf32)
    assert torch.backends.cuda.matmul.allow_tf32 is tf32
    assert torch.backends.cudnn.allow_tf32 is tf32
    assert f"tf32: float32 products of this process are computed in {words} on CUDA" in caplog.text


@pytest.mark.usefixtures("_tf32_put_back")
@pytest.mark.parametrize("before", [True, False])
def test_by_default_it_stays_what_the_script_has_set(before: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = before
    set_matmul_precision(None)
    small()
    assert torch.backends.cuda.matmul.allow_tf32 is before


# -------------------------------------------------------------------------------------------------------------- compile
def test_what_is_compiled_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    notes: list[tuple[nn.Module, dict[str, Any]]] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, **kwargs: notes.append((self, kwargs)))
    modules = nn.ModuleDict({"a": nn.Linear(1, 1), "b": nn.Linear(1, 1)})
    options = RunOptions.resolve(
        {
            "compile_module_keys": ["b"],
            "compile_using_dynamic_shape_tracing": True,
            "compile_using_fullgraph": True,
        }
    )
    with caplog.at_level("INFO", logger="brainlib"):
        compile_in_place(modules, options)
    assert notes == [(modules["b"], {"mode": options.compile_mode, "fullgraph": True, "dynamic": True})]
    assert "compiled in place at their first call: 'b'" in caplog.text


def test_a_key_that_is_not_there_names_the_nearest_and_compiles_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes: list[Any] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, **kwargs: notes.append(self))
    modules = nn.ModuleDict({"encoder": nn.Linear(1, 1)})
    with pytest.raises(ValueError, match="compile_module_keys names 'encodr'; .* Did you mean 'encoder'"):
        compile_in_place(modules, RunOptions.resolve({"compile_module_keys": ["encodr"]}))
    assert notes == []
