"""What is promised of every extension. A new one joins with a row in EXTENSIONS."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from brainlib.extension import Extensions
from tests.brain.small import Regression, batches, same, small, weights
from tests.test_extension import Counting


def looked_at(brain: Any) -> None:
    """A function, as `make_extension` takes it."""


EXTENSIONS: dict[str, Callable[..., bl.Extension]] = {
    "base": bl.Extension,
    "user's": Counting,
    "function": lambda **options: bl.make_extension(**options)(looked_at),
    "LearningRate": lambda **options: bl.LearningRate(bl.WarmUp(3), **options),
    "EMA": lambda **options: bl.EMA(decay=0.9, **options),
    "Snapshot": lambda **options: bl.Snapshot(2, **options),
    "LiveCurve": lambda **options: bl.LiveCurve(**options),
}


@pytest.fixture(params=EXTENSIONS)
def make(request: pytest.FixtureRequest) -> Callable[..., bl.Extension]:
    if request.param == "LiveCurve":
        pytest.importorskip("matplotlib", reason="the live curve draws with it")
    return EXTENSIONS[request.param]


def brain_with(extension: bl.Extension, folder: Path, **run_opts: Any) -> Any:
    made = small()
    return Dies(
        {"model": made.modules.model},
        made.opt_class,
        hparams={"seed": 0},
        run_opts={"noprogressbar": True, **run_opts},
        checkpointer=bl.Checkpointer(folder),
        extensions=[extension],
    )


class Dies(Regression):
    """Ends with an error after `dies_at` updates."""

    dies_at: int | None = None

    def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Any, should_step: bool) -> None:
        if self.optimizer_step == self.dies_at:
            raise RuntimeError("the power goes")


DATA = batches(4, 3, 4, 2, 4)


def test_constructing_touches_no_disk(
    make: Callable[..., bl.Extension], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make()
    assert list(tmp_path.iterdir()) == []


def test_two_of_a_kind_need_two_names(make: Callable[..., bl.Extension]) -> None:
    with pytest.raises(ValueError, match="two extensions are called"):
        Extensions([make(), make()])
    first, second = Extensions([make(), make(name="second")])
    assert second.name == "second" != first.name


def test_a_run_that_is_cut_ends_as_one_that_is_not(make: Callable[..., bl.Extension], tmp_path: Path) -> None:
    whole = brain_with(of_whole := make(), tmp_path / "whole")
    whole.fit(range(3), DATA, DATA[:1])
    cut = brain_with(make(), tmp_path / "cut", ckpt_interval_steps=3)
    cut.dies_at = 8
    with pytest.raises(RuntimeError, match="the power goes"):
        cut.fit(range(3), DATA, DATA[:1])
    resumed = brain_with(of_resumed := make(), tmp_path / "cut")
    resumed.fit(range(3), DATA, DATA[:1])
    assert same(weights(whole), weights(resumed))
    assert saved(of_whole) == saved(of_resumed)
    assert whole._epochs.closed == resumed._epochs.closed


def saved(extension: bl.Extension) -> bytes:
    """Its state as bytes, after the safe loader has read it."""
    file = io.BytesIO()
    torch.save(extension.state_dict(), file)
    file.seek(0)
    again = io.BytesIO()
    torch.save(torch.load(file, weights_only=True), again)
    return again.getvalue()


def test_later_fits_and_a_second_close_do_no_harm(make: Callable[..., bl.Extension], tmp_path: Path) -> None:
    brain = brain_with(extension := make(), tmp_path)
    for _ in range(2):
        brain.fit(range(1), DATA)
    extension.close(brain)
    extension.close(brain)
    assert brain.optimizer_step == 10


def test_a_state_that_is_not_its_own_is_refused(make: Callable[..., bl.Extension]) -> None:
    with pytest.raises((ValueError, KeyError)):
        make().load_state_dict({"somebody else's": 1})
