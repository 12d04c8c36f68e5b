"""A signal anywhere: the seven end at the next boundary, saved, and go on to the bits of the run left in peace.

The signals are real ones, sent to this process from the user's code at a named moment. After SIGTERM another Brain goes
on from the disk; after Ctrl-C the same call is made again, with a checkpointer and without one, as in a notebook.
"""

from __future__ import annotations

import functools
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from tests.contracts.brains import SEVEN, SHUFFLED, VALID, Items, Plain, ending, make, ready_batches, two_fits

OTHER_SEED = 991
TRAIN, VALIDATION = bl.Stage.TRAIN, bl.Stage.VALID

# Which call of a method the signal comes in; an inner fit's calls do not count. Five batches an epoch, three in a
# validation; with a factor of 3 they are windows of 3 and 2.
MOMENTS = {
    "before the first batch": ("on_stage_start", TRAIN, 1),
    "inside a window": ("compute_forward", TRAIN, 2),
    "at the end of a window": ("compute_forward", TRAIN, 3),
    "in the last batch": ("compute_forward", TRAIN, 5),
    "at the end of training": ("on_stage_end", TRAIN, 1),
    "before validation": ("on_stage_start", VALIDATION, 1),
    "in validation": ("compute_forward", VALIDATION, 2),
    "in the last batch of validation": ("compute_forward", VALIDATION, 6),
    "at the end of an epoch": ("on_stage_end", VALIDATION, 1),
    "at the start of the second epoch": ("on_stage_start", TRAIN, 2),
    "in the last epoch of a fit": ("compute_forward", TRAIN, 9),
    "at the end of a fit": ("on_stage_end", VALIDATION, 2),
    "at the start of the second fit": ("on_stage_start", TRAIN, 3),
    "in the second fit": ("compute_forward", TRAIN, 12),
    "in the validation of the second fit": ("compute_forward", VALIDATION, 8),
}
seven = pytest.mark.parametrize("cls", SEVEN, ids=lambda cls: cls.__name__)
moments = pytest.mark.parametrize("moment", MOMENTS)


class Everything(Plain):
    """What hooks may do that must not be done twice, or be lost: they draw, change weights, and keep a state."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.counts: dict[str, int] = {}

    def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
        self.count(f"start {stage}")

    def compute_forward(self, batch: Any, stage: bl.Stage) -> torch.Tensor:
        if stage == VALIDATION:
            self.count("forward")
        return super().compute_forward(batch, stage)

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        super().on_stage_end(stage, stage_loss, epoch)
        self.count(f"end {stage}")

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
        with torch.no_grad():
            for parameter in self.modules.parameters():
                parameter.mul_(1 + 0.01 * torch.rand(()))

    def get_extra_state(self) -> Any:
        return self.counts

    def set_extra_state(self, state: Any) -> None:
        self.counts = state


def signal_in(brain: Plain, moment: str, signum: int) -> None:
    """Make this process get a signal in a call of a method, once."""
    method, stage, number = MOMENTS[moment]
    original: Callable[..., Any] = getattr(brain, method)
    calls = 0

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += stage in (*args, *kwargs.values()) and not getattr(brain, "inside", False)
        if calls == number:
            calls += 1000
            os.kill(os.getpid(), signum)
        return original(*args, **kwargs)

    setattr(brain, method, replacement)


@functools.cache
def left_in_peace(cls: type[Plain], factor: int, script: Callable[[Plain], Any] = two_fits) -> dict[str, Any]:
    brain = make(cls, grad_accumulation_factor=factor)
    script(brain)
    return {**ending(brain), "counts": getattr(brain, "counts", None)}


def with_counts(brain: Plain, trace: Any) -> dict[str, Any]:
    return {**ending(brain), "trace": trace, "counts": getattr(brain, "counts", None)}


def stopped_and_resumed(
    cls: type[Plain],
    folder: Path,
    moment: str,
    signum: int,
    script: Callable[[Plain], Any] = two_fits,
    **options: Any,
) -> dict[str, Any]:
    """The ending of a run that was stopped by a signal and started again in another Brain."""
    first = make(cls, bl.Checkpointer(folder), **options)
    signal_in(first, moment, signum)
    with pytest.raises(bl.Stopped, match=signal.Signals(signum).name):
        script(first)
    checkpointer = bl.Checkpointer(folder)
    newest = checkpointer.newest()
    assert newest is not None
    assert newest.counters == first.checkpointer.written.counters
    second = make(cls, bl.Checkpointer(folder), global_seed=OTHER_SEED, **options)
    script(second)
    return with_counts(second, first.trace + second.trace)


@moments
@seven
def test_sigterm_and_a_new_process(cls: type[Plain], moment: str, tmp_path: Path) -> None:
    end = stopped_and_resumed(cls, tmp_path, moment, signal.SIGTERM, grad_accumulation_factor=3)
    assert end == left_in_peace(cls, 3)


@moments
@pytest.mark.parametrize("factor", [1, 3])
def test_whatever_hooks_do(factor: int, moment: str, tmp_path: Path) -> None:
    end = stopped_and_resumed(Everything, tmp_path, moment, signal.SIGUSR1, grad_accumulation_factor=factor)
    assert end == left_in_peace(Everything, factor)


def again_and_again(brain: Plain, script: list[Callable[[Plain], Any]]) -> None:
    """A notebook: a cell that Ctrl-C ended is run again."""
    for cell in script:
        while True:
            try:
                cell(brain)
            except KeyboardInterrupt:
                continue
            break


def first_cell(brain: Plain) -> None:
    brain.fit(range(2), Items(), VALID, train_loader_kwargs=SHUFFLED)


def second_cell(brain: Plain) -> None:
    brain.fit(range(1), ready_batches(), VALID)


@moments
@seven
@pytest.mark.parametrize("saves", [False, True], ids=["no checkpointer", "checkpointer"])
def test_ctrl_c_and_the_same_cell_again(cls: type[Plain], moment: str, saves: bool, tmp_path: Path) -> None:
    brain = make(cls, bl.Checkpointer(tmp_path) if saves else None, grad_accumulation_factor=3)
    signal_in(brain, moment, signal.SIGINT)
    again_and_again(brain, [first_cell, second_cell])
    assert with_counts(brain, brain.trace) == left_in_peace(cls, 3)


@moments
@pytest.mark.parametrize("factor", [1, 3])
def test_ctrl_c_whatever_hooks_do(factor: int, moment: str) -> None:
    brain = make(Everything, grad_accumulation_factor=factor)
    signal_in(brain, moment, signal.SIGINT)
    again_and_again(brain, [first_cell, second_cell])
    assert with_counts(brain, brain.trace) == left_in_peace(Everything, factor)


# ------------------------------------------------------------------------------------ a validation inside an epoch
# After updates 2 and 4 of five, and one at the end: three batches each.
INSIDE = {
    "at its start": ("on_stage_start", VALIDATION, 1),
    "in it": ("compute_forward", VALIDATION, 2),
    "in its last batch": ("compute_forward", VALIDATION, 3),
    "at its end": ("on_stage_end", VALIDATION, 1),
    "in the second one": ("compute_forward", VALIDATION, 5),
    "in the next epoch": ("compute_forward", VALIDATION, 11),
}


class Counts(bl.Extension):
    """Counts how often it was asked for and called, at every update and behind every validation."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.calls = 0

    def __call__(self, brain: Any) -> None:
        self.calls += 1

    def state_dict(self) -> dict[str, int]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


def with_extensions(cls: type[Plain], checkpointer: Any, **options: Any) -> Plain:
    class WithExtensions(cls):  # type: ignore[misc,valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            extensions = [
                Counts(name="before", priority=400),
                Counts(name="behind", trigger=lambda brain: brain.optimizer_step % 2 == 0),
            ]
            if cls is not Everything:  # it averages what an update made, and not what a hook makes of it
                extensions.append(bl.EMA(decay=0.5))
            super().__init__(*args, **{**kwargs, "extensions": extensions})

        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
            super().on_stage_end(stage, stage_loss, epoch)
            if stage == VALIDATION:
                self.train_loss = (
                    math.nan
                )  # an attribute that no checkpoint holds must not live into the next epoch

    return make(WithExtensions, checkpointer, valid_interval_steps=2, **options)


def whole(brain: Plain, trace: list[Any]) -> dict[str, Any]:
    extensions = brain._extensions.state_dict()
    ema = extensions.pop("EMA", None)
    average = ema and {name: value.tolist() for name, value in ema["state"].pop("average").items()}
    return {**with_counts(brain, str(trace)), "extensions": extensions, "ema": ema, "average": average}


@functools.cache
def with_extensions_in_peace(cls: type[Plain]) -> dict[str, Any]:
    brain = with_extensions(cls, None)
    return whole(two_fits(brain), brain.trace)


@pytest.mark.parametrize("moment", INSIDE)
@pytest.mark.parametrize("cls", [*SEVEN, Everything], ids=lambda cls: cls.__name__)
def test_a_validation_inside_an_epoch(
    cls: type[Plain], moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is run again after the batch where it stood, with all that is due there; what was done before it is not."""
    monkeypatch.setitem(MOMENTS, moment, INSIDE[moment])
    first = with_extensions(cls, bl.Checkpointer(tmp_path))
    signal_in(first, moment, signal.SIGTERM)
    with pytest.raises(bl.Stopped):
        two_fits(first)
    second = with_extensions(cls, bl.Checkpointer(tmp_path), global_seed=OTHER_SEED)
    two_fits(second)
    assert whole(second, first.trace + second.trace) == with_extensions_in_peace(cls)


@pytest.mark.parametrize("moment", INSIDE)
@pytest.mark.parametrize("cls", [Plain, Everything], ids=lambda cls: cls.__name__)
def test_ctrl_c_in_a_validation_inside_an_epoch(
    cls: type[Plain], moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MOMENTS, moment, INSIDE[moment])
    brain = with_extensions(cls, None)
    signal_in(brain, moment, signal.SIGINT)
    again_and_again(brain, [first_cell, second_cell])
    assert whole(brain, brain.trace) == with_extensions_in_peace(cls)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_in_a_validation_of_averaged_weights(signum: int, tmp_path: Path) -> None:
    """What is put back and saved are the weights of the run, and not those that stand in for them."""

    def averaging(checkpointer: Any, global_seed: int = 3) -> Plain:
        average = bl.EMA(decay=0.5, evaluate=True)
        return make(Plain, checkpointer, global_seed=global_seed, extensions=[average])

    brain = averaging(bl.Checkpointer(tmp_path))
    signal_in(brain, "in validation", signum)
    with pytest.raises((bl.Stopped, KeyboardInterrupt)):
        two_fits(brain)
    trace = brain.trace
    if signum == signal.SIGTERM:
        brain = averaging(bl.Checkpointer(tmp_path), OTHER_SEED)
    two_fits(brain)
    reference = two_fits(averaging(None))
    whole_trace = trace + brain.trace if signum == signal.SIGTERM else brain.trace
    assert {**ending(brain), "trace": whole_trace} == ending(reference)


# ------------------------------------------------------------------------------------------------------ and errors


@pytest.mark.parametrize(
    "moment",
    [name for name, (method, stage, _) in MOMENTS.items() if (method, stage) != ("compute_forward", TRAIN)],
)
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_in_a_hook_or_in_validation(error: type[BaseException], moment: str) -> None:
    """A second Ctrl-C, or a file that cannot be read: the point before is put back, and the same call repeats it.

    In a batch of training the window is repeated, with other draws: that is in tests/brain/test_interrupted.py.
    """
    method, stage, number = MOMENTS[moment]
    brain = make(Everything)
    original = getattr(brain, method)
    calls = 0

    def fails(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        result = original(*args, **kwargs)
        calls += stage in (*args, *kwargs.values())
        if calls == number:
            calls += 1000
            raise error
        return result

    setattr(brain, method, fails)
    for cell in (first_cell, second_cell):
        try:
            cell(brain)
        except error:
            cell(brain)
    end, expected = with_counts(brain, brain.trace), left_in_peace(Everything, 1)
    if method == "on_stage_end" and stage == VALIDATION:
        assert end["trace"].pop(number - 1) == end["trace"][number - 1], (
            "the list of this Brain is not part of its state"
        )
    assert end == expected
