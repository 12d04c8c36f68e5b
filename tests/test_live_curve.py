"""The live curve: what it draws and when, what a resumed run shows, and all of it through a real kernel."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="the live curve draws with it")

import brainlib as bl
from tests.brain.small import Batch, Regression, batches, same, small, weights


class Clock:
    """A clock that the test sets; each look at it while something is drawn takes `cost`."""

    def __init__(self, cost: float = 0.0) -> None:
        self.now, self.cost = 100.0, cost

    def __call__(self) -> float:
        self.now += self.cost
        return self.now


class Told(Regression):
    """Tells a metric of its own, through whichever logger."""

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: Any = None) -> None:
        if stage is bl.Stage.VALID:
            bl.TrainLogger().log_stats({"epoch": epoch}, valid_stats={"accuracy": 1 / (2 + epoch)})


def brain_with(*extensions: bl.Extension, cls: type[bl.Brain] = Told, folder: Path | None = None) -> Any:
    brain = small(cls, checkpointer=None if folder is None else bl.Checkpointer(folder))
    return cls(
        {"model": brain.modules.model},
        brain.opt_class,
        hparams={"seed": 0},
        run_opts={"noprogressbar": True},
        checkpointer=brain.checkpointer,
        extensions=extensions,
    )


def drawn(curve: bl.LiveCurve) -> dict[str, dict[str, list[float]]]:
    """By panel and line, where its points stand on the axis."""
    return {
        axes.get_ylabel(): {str(line.get_label()): line.get_xdata().tolist() for line in axes.lines}  # type: ignore[union-attr]
        for axes in curve.figure().axes
    }


class Page:
    """What a notebook would show: the number of the cell is the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shell = SimpleNamespace(kernel=object(), execution_count=1)
        self.calls: list[tuple[str, int]] = []  # the kind, and how many epochs it shows
        module = SimpleNamespace(display=self.note("new"), update_display=self.note("again"))
        ipython = SimpleNamespace(get_ipython=lambda: self.shell, display=module, version_info=(9, 0))
        monkeypatch.setitem(sys.modules, "IPython", ipython)  # type: ignore[arg-type]
        monkeypatch.setitem(sys.modules, "IPython.display", module)  # type: ignore[arg-type]

    def note(self, kind: str) -> Any:
        def show(curve: bl.LiveCurve, *, display_id: str) -> None:
            assert curve._repr_png_().startswith(b"\x89PNG")
            self.calls.append((kind, len(drawn(curve)["loss"]["train"])))

        return show


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Page:
    return Page(monkeypatch)


# ------------------------------------------------------------------------------------------------------- what it shows


def test_a_panel_for_each_metric_and_a_line_for_train_and_valid() -> None:
    curve = bl.LiveCurve()
    brain_with(curve).fit(range(3), batches(4, 4), batches(4))
    assert drawn(curve) == {
        "loss": {"train": [1, 2, 3], "valid": [1, 2, 3]},
        "accuracy": {"valid": [1, 2, 3]},
    }
    assert [float(y) for y in curve.figure().axes[1].lines[0].get_ydata()] == [1 / 2, 1 / 3, 1 / 4]  # type: ignore[union-attr]


def test_metrics_chooses() -> None:
    curve = bl.LiveCurve(["accuracy"])
    brain_with(curve).fit(range(2), batches(4), batches(4))
    assert list(drawn(curve)) == ["accuracy"]


def test_a_second_fit_stands_behind_the_first_and_another_brain_begins_anew() -> None:
    curve = bl.LiveCurve()
    brain = brain_with(curve, cls=Regression)
    brain.fit(range(2), batches(4))
    brain.fit(range(3), batches(4))
    assert drawn(curve) == {"loss": {"train": [1, 2, 3, 4, 5]}}
    brain_with(curve, cls=Regression).fit(range(2), batches(4))
    assert drawn(curve) == {"loss": {"train": [1, 2]}}


def test_before_the_first_epoch_the_figure_is_empty() -> None:
    assert bl.LiveCurve().figure().axes == []


@pytest.mark.parametrize("saves", ["by itself", "in the hook"])
def test_a_resumed_run_shows_all_its_epochs_whoever_looked_on_before(saves: str, tmp_path: Path) -> None:
    """The picture is a view: a checkpoint has the numbers, with a curve and without."""

    class Saving(Told):
        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: Any = None) -> None:
            super().on_stage_end(stage, stage_loss, epoch)
            if stage is bl.Stage.VALID and saves == "in the hook":
                self.checkpointer.save_and_keep_only(meta={"loss": stage_loss}, min_keys=["loss"])  # type: ignore[union-attr]

    brain_with(cls=Saving, folder=tmp_path).fit(range(2), batches(4), batches(4))
    curve = bl.LiveCurve()
    brain_with(curve, cls=Saving, folder=tmp_path).fit(range(3), batches(4), batches(4))
    assert drawn(curve)["accuracy"] == {"valid": [1, 2, 3]}
    brain_with(cls=Saving, folder=tmp_path).fit(range(4), batches(4), batches(4))  # and it may go
    again = bl.LiveCurve(name="another")
    brain_with(again, cls=Saving, folder=tmp_path).fit(range(4), batches(4), batches(4))  # nothing to do
    assert drawn(again)["loss"] == {"train": [1, 2, 3, 4], "valid": [1, 2, 3, 4]}


def test_it_changes_nothing(page: Page) -> None:
    looked_at, alone = brain_with(bl.LiveCurve(seconds=0)), brain_with()
    looked_at.fit(range(3), batches(4, 4), batches(4))
    alone.fit(range(3), batches(4, 4), batches(4))
    assert same(weights(looked_at), weights(alone)) and page.calls


# ---------------------------------------------------------------------------------------------------------------- when


def test_each_epoch_is_drawn_where_the_cell_ran(page: Page) -> None:
    curve = bl.LiveCurve(seconds=0, clock=Clock())
    brain = brain_with(curve)
    brain.fit(range(3), batches(4), batches(4))
    assert page.calls == [("new", 1), ("again", 2), ("again", 3)]
    page.shell.execution_count = 2
    brain.fit(range(1), batches(4), batches(4))
    assert page.calls[3:] == [("new", 3), ("again", 4)]


def test_short_epochs_are_drawn_less_often_and_the_last_one_always(page: Page) -> None:
    clock = Clock(cost=0.01)  # three looks an epoch, so a drawing seems to take 10 ms and an epoch about 20

    curve = bl.LiveCurve(seconds=0.0, clock=clock)
    brain_with(curve).fit(range(40), batches(4), batches(4))
    assert page.calls[0] == ("new", 1) and page.calls[-1] == ("again", 40)
    assert 4 <= len(page.calls) <= 12
    page.calls.clear()
    brain_with(bl.LiveCurve(seconds=1000)).fit(range(4), batches(4), batches(4))
    assert page.calls == [("new", 1), ("again", 4)]


def test_after_an_error_what_was_reached_is_shown(page: Page) -> None:
    class Failing(Told):
        def compute_forward(self, batch: Batch, stage: bl.Stage) -> Any:
            if self.run_state.epoch == 3:
                raise RuntimeError("no")
            return super().compute_forward(batch, stage)

    with pytest.raises(RuntimeError, match="no"):
        brain_with(bl.LiveCurve(seconds=1000), cls=Failing).fit(range(5), batches(4), batches(4))
    assert page.calls[-1] == ("again", 3)


def test_outside_of_a_notebook_nothing_is_drawn_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="brainlib")
    brain = brain_with(bl.LiveCurve())
    brain.fit(range(1), batches(4))
    brain.fit(range(1), batches(4))
    assert caplog.text.count("the live curve is drawn in a notebook, and this is none") == 1


def test_what_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"metrics is 'loss'; give a list of names: \['loss'\]"):
        bl.LiveCurve("loss")
    with pytest.raises(
        ValueError, match="seconds is -1; give the least time between two drawings, 0 or more"
    ):
        bl.LiveCurve(seconds=-1)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"LiveCurve needs matplotlib: pip install 'brainlib\[notebook\]'"):
        bl.LiveCurve()
