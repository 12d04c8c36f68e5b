"""Cut anywhere, started again: the seven end with the same bits, epoch losses and counters as the run that was not cut.

The reference run has no checkpointer at all, so every comparison also says that saving changes nothing. A cut is an
exception out of the user's code at a named moment; the second run is a new Brain with other initial weights and another
global seed, so that whatever is right at its end came from the checkpoint.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from tests.contracts.brains import (
    SEVEN,
    SHUFFLED,
    VALID,
    InnerFit,
    Items,
    Plain,
    ending,
    make,
    ready_batches,
    two_fits,
)

OTHER_SEED = 991


class Cut(BaseException):
    """The end of the process, as far as the Brain can tell. Not an `Exception`, so that no handler tidies up."""


def cut_before(brain: Plain, method: str, stage: bl.Stage, number: int) -> None:
    """Make the `number`-th call (from 1) of a method in a stage raise `Cut`. An inner fit's calls do not count."""
    original: Callable[..., Any] = getattr(brain, method)
    calls = 0

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += stage in (*args, *kwargs.values()) and not getattr(brain, "inside", False)
        if calls == number:
            raise Cut(f"{method} {stage} {number}")
        return original(*args, **kwargs)

    setattr(brain, method, replacement)


def cut_and_resumed(
    cls: type[Plain],
    folder: Path,
    cut: Callable[[Plain], None],
    script: Callable[[Plain], Any] = two_fits,
    **run_opts: Any,
) -> dict[str, Any]:
    """The ending of a run that was cut and started again; the trace is that of both lives."""
    run_opts = {"ckpt_interval_steps": 1, "ckpt_async": False, **run_opts}
    first = make(cls, bl.Checkpointer(folder), **run_opts)
    cut(first)
    with pytest.raises(Cut):
        script(first)
    assert bl.Checkpointer(folder).list_checkpoints(), "the cut came too early to prove anything"

    second = make(cls, bl.Checkpointer(folder), global_seed=OTHER_SEED, **run_opts)
    script(second)
    end = ending(second)
    return {**end, "trace": first.trace + end["trace"]}


@functools.cache
def uncut(cls: type[Plain], factor: int) -> dict[str, Any]:
    return ending(two_fits(make(cls, grad_accumulation_factor=factor)))


# Five batches an epoch: the forwards of TRAIN are 1..5, 6..10 (second epoch) and 11..15 (second fit). With a factor
# of 3 they are windows of 3 and 2, and the interval, which counts updates, saves between them.
CUTS = {
    "inside a window": ("compute_forward", bl.Stage.TRAIN, 5),
    "before TRAIN ends": ("on_stage_end", bl.Stage.TRAIN, 1),
    "in validation": ("compute_forward", bl.Stage.VALID, 5),
    "between epochs": ("on_stage_start", bl.Stage.TRAIN, 2),
    "in the trailing window of the second epoch": ("compute_forward", bl.Stage.TRAIN, 10),
    "in the second fit": ("compute_forward", bl.Stage.TRAIN, 13),
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("cls", SEVEN, ids=lambda cls: cls.__name__)
def test_a_cut_run_ends_like_the_uncut_one(cls: type[Plain], cut: str, tmp_path: Path) -> None:
    end = cut_and_resumed(
        cls, tmp_path, lambda brain: cut_before(brain, *CUTS[cut]), grad_accumulation_factor=3
    )
    assert end == uncut(cls, 3)


@pytest.mark.parametrize("number", range(2, 16))
def test_after_every_batch(number: int, tmp_path: Path) -> None:
    end = cut_and_resumed(Plain, tmp_path, lambda b: cut_before(b, "compute_forward", bl.Stage.TRAIN, number))
    assert end == uncut(Plain, 1)


def test_in_the_inner_fit_of_the_second_epoch(tmp_path: Path) -> None:
    """An inner fit writes no resume point: the run goes back to the epoch that was closed before it."""

    def cut(brain: Plain) -> None:
        original = brain.compute_forward
        calls = 0

        def compute_forward(batch: Any, stage: bl.Stage) -> torch.Tensor:
            nonlocal calls
            calls += brain.inside  # type: ignore[attr-defined]
            if calls == 4:  # two a fit
                raise Cut
            return original(batch, stage)

        brain.compute_forward = compute_forward  # type: ignore[method-assign]

    assert cut_and_resumed(InnerFit, tmp_path, cut) == uncut(InnerFit, 1)


def test_cut_twice(tmp_path: Path) -> None:
    trace: list[Any] = []
    for seed, number in ((3, 4), (17, 5)):
        brain = make(
            Plain,
            bl.Checkpointer(tmp_path),
            global_seed=seed,
            ckpt_interval_steps=1,
            ckpt_async=False,
            grad_accumulation_factor=3,
        )
        cut_before(brain, "compute_forward", bl.Stage.TRAIN, number)
        with pytest.raises(Cut):
            two_fits(brain)
        trace += brain.trace
    last = make(Plain, bl.Checkpointer(tmp_path), global_seed=OTHER_SEED, grad_accumulation_factor=3)
    end = ending(two_fits(last))
    assert {**end, "trace": trace + end["trace"]} == uncut(Plain, 3)


def test_a_run_that_ended_is_not_run_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    two_fits(make(Plain, bl.Checkpointer(tmp_path)))
    caplog.clear()
    again = make(Plain, bl.Checkpointer(tmp_path), global_seed=OTHER_SEED)
    items = Items()
    again.fit(range(2), items, VALID, train_loader_kwargs=SHUFFLED)
    again.fit(range(1), ready_batches(), VALID)
    assert items.reads == []
    assert again.trace == []
    assert ending(again)["digest"] == uncut(Plain, 1)["digest"]
    assert "finished" in caplog.text


def test_without_an_interval_the_closed_epoch_is_kept(tmp_path: Path) -> None:
    """Nobody saved, no interval ran out: an epoch that closes is committed all the same."""
    first = make(Plain, bl.Checkpointer(tmp_path))
    cut_before(first, "compute_forward", bl.Stage.TRAIN, 8)
    with pytest.raises(Cut):
        two_fits(first)
    second = make(Plain, bl.Checkpointer(tmp_path), global_seed=OTHER_SEED)
    end = ending(two_fits(second))
    assert {**end, "trace": first.trace + end["trace"]} == uncut(Plain, 1)


def test_saved_by_the_user_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    """The idiom of every recipe: `save_and_keep_only` in `on_stage_end(VALID)`; the epoch counts as closed."""

    class Recipe(Plain):
        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
            super().on_stage_end(stage, stage_loss, epoch)
            if stage == bl.Stage.VALID:
                self.checkpointer.save_and_keep_only(meta={"loss": stage_loss}, min_keys=["loss"])

    first = make(Recipe, bl.Checkpointer(tmp_path))
    cut_before(first, "compute_forward", bl.Stage.TRAIN, 8)
    with pytest.raises(Cut):
        two_fits(first)
    second = make(Recipe, bl.Checkpointer(tmp_path), global_seed=OTHER_SEED)
    end = ending(two_fits(second))
    assert {**end, "trace": first.trace + end["trace"]} == uncut(Plain, 1)


@pytest.mark.parametrize("number", [4, 8])
def test_with_an_epoch_counter_among_the_recoverables(number: int, tmp_path: Path) -> None:
    """As recipes do it. RunState alone counts, the counter follows."""

    def life(seed: int, cut: bool) -> tuple[Plain, bl.EpochCounter]:
        counter, checkpointer = bl.EpochCounter(2), bl.Checkpointer(tmp_path)
        checkpointer.add_recoverable("counter", counter)
        brain = make(Plain, checkpointer, global_seed=seed, ckpt_interval_steps=1, ckpt_async=False)
        if cut:
            cut_before(brain, "compute_forward", bl.Stage.TRAIN, number)
            with pytest.raises(Cut):
                brain.fit(counter, Items(), VALID, train_loader_kwargs=SHUFFLED)
        else:
            brain.fit(counter, Items(), VALID, train_loader_kwargs=SHUFFLED)
        return brain, counter

    reference = make(Plain)
    reference.fit(bl.EpochCounter(2), Items(), VALID, train_loader_kwargs=SHUFFLED)
    first, _ = life(3, cut=True)
    second, counter = life(OTHER_SEED, cut=False)
    end = ending(second)
    assert {**end, "trace": first.trace + end["trace"]} == ending(reference)
    assert [epoch for epoch, _, _ in reference.trace] == [1, 2]
    assert counter.current == 2


def test_data_loader_and_iterable_without_length_are_positioned(tmp_path: Path) -> None:
    """Whatever holds the batches, those trained on are not trained on again."""

    class Stream:
        def __iter__(self) -> Any:
            return iter(ready_batches())

    def loader() -> torch.utils.data.DataLoader[Any]:
        return torch.utils.data.DataLoader(Items(), batch_size=4)

    for name, train_set in (("stream", Stream), ("loader", loader)):

        def script(brain: Plain, train_set: Callable[[], Any] = train_set) -> None:
            brain.fit(range(2), train_set(), VALID)

        reference = make(Plain)
        script(reference)
        end = cut_and_resumed(
            Plain, tmp_path / name, lambda b: cut_before(b, "compute_forward", bl.Stage.TRAIN, 8), script
        )
        assert end == ending(reference), name


def test_what_a_hook_created_is_restored_too(tmp_path: Path) -> None:
    """An optimizer made in `on_stage_start` of the second epoch: the hook runs again, then the state is applied."""

    class Late(Plain):
        def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
            if stage == bl.Stage.TRAIN and epoch == 1:
                self.second = torch.optim.SGD(self.modules.model[3].parameters(), lr=0.1, momentum=0.9)

        def on_fit_batch_end(self, batch: Any, outputs: Any, loss: torch.Tensor, should_step: bool) -> None:
            if hasattr(self, "second"):
                self.second.zero_grad()
                torch.nn.functional.mse_loss(self.modules.model(batch["x"]), batch["y"]).backward()
                self.second.step()
                self.second.zero_grad()

    def script(brain: Plain) -> None:
        brain.fit(range(2), Items(), VALID, train_loader_kwargs=SHUFFLED)

    reference = make(Late)
    script(reference)
    end = cut_and_resumed(
        Late, tmp_path, lambda b: cut_before(b, "compute_forward", bl.Stage.TRAIN, 8), script
    )
    assert end == ending(reference)


def test_extra_state_of_the_brain_is_restored(tmp_path: Path) -> None:
    class Counting(Plain):
        num_seen = 0

        def on_fit_batch_end(self, batch: Any, outputs: Any, loss: torch.Tensor, should_step: bool) -> None:
            self.num_seen += len(batch["x"])

        def get_extra_state(self) -> dict[str, int]:
            return {"num_seen": self.num_seen}

        def set_extra_state(self, state: dict[str, int]) -> None:
            self.num_seen = state["num_seen"]

    first = make(Counting, bl.Checkpointer(tmp_path), ckpt_interval_steps=1, ckpt_async=False)
    cut_before(first, "compute_forward", bl.Stage.TRAIN, 4)
    with pytest.raises(Cut):
        two_fits(first)
    second = make(Counting, bl.Checkpointer(tmp_path), global_seed=OTHER_SEED)
    assert two_fits(second).num_seen == 3 * len(Items())  # type: ignore[attr-defined]


def both_lives(
    cls: type[Plain],
    folder: Path,
    cut: tuple[str, bl.Stage, int],
    script: Callable[[Plain], Any],
    **run_opts: Any,
) -> dict[str, Any]:
    """As `cut_and_resumed`, without an interval: the only checkpoints are those that `cls` and closed epochs write."""
    return cut_and_resumed(
        cls,
        folder,
        lambda b: cut_before(b, *cut),
        script,
        ckpt_interval_steps=0,
        ckpt_async=False,
        **run_opts,
    )


@pytest.mark.parametrize("number", [3, 5, 7, 9])
def test_saved_by_the_user_inside_a_window(number: int, tmp_path: Path) -> None:
    """The gradients that wait for their update are in the checkpoint."""

    class Saving(Plain):
        def on_fit_batch_end(self, batch: Any, outputs: Any, loss: torch.Tensor, should_step: bool) -> None:
            if self.checkpointer is not None:
                self.checkpointer.save_and_keep_only(end_of_epoch=False)

    cut = ("compute_forward", bl.Stage.TRAIN, number)
    assert both_lives(Saving, tmp_path, cut, two_fits, grad_accumulation_factor=3) == uncut(Plain, 3)


def test_saved_by_the_user_when_training_ends(tmp_path: Path) -> None:
    """Before validation the epoch is not closed, whatever the argument says: its last hooks are run again."""

    class Saving(Plain):
        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
            super().on_stage_end(stage, stage_loss, epoch)
            if stage == bl.Stage.TRAIN and self.checkpointer is not None:
                self.checkpointer.save_and_keep_only(meta={"loss": stage_loss})

    cut = ("compute_forward", bl.Stage.VALID, 2)
    assert both_lives(Saving, tmp_path, cut, two_fits) == uncut(Plain, 1)


def test_saved_by_the_user_when_an_epoch_without_validation_ends(tmp_path: Path) -> None:
    """Then the end of training is the last hook of the epoch, and the epoch counts as closed."""

    class Saving(Plain):
        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
            self.trace.append((epoch, stage_loss, 0.0))
            if self.checkpointer is not None:
                self.checkpointer.save_and_keep_only(meta={"loss": stage_loss})

    def script(brain: Plain) -> None:
        brain.fit(range(3), Items(), train_loader_kwargs=SHUFFLED)

    reference = make(Saving)
    script(reference)
    cut = ("on_stage_start", bl.Stage.TRAIN, 3)
    assert both_lives(Saving, tmp_path, cut, script) == ending(reference)


@pytest.mark.parametrize(
    "cut", [("compute_forward", bl.Stage.TRAIN, 9), ("compute_forward", bl.Stage.VALID, 11)]
)
def test_with_validation_in_mid_epoch(cut: tuple[str, bl.Stage, int], tmp_path: Path) -> None:
    """Each validation is there once, saved at its end or not."""

    class Saving(Plain):
        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
            super().on_stage_end(stage, stage_loss, epoch)
            if stage == bl.Stage.VALID and self.checkpointer is not None:
                self.checkpointer.save_and_keep_only(meta={"loss": stage_loss}, min_keys=["loss"])

    def trace_without_training_loss(end: dict[str, Any]) -> dict[str, Any]:
        # In mid-epoch the Brain still shows the training loss of the epoch before, or none (nan).
        return {**end, "trace": [(epoch, valid) for epoch, _, valid in end["trace"]]}

    reference = make(Plain, valid_interval_steps=2)
    two_fits(reference)
    end = both_lives(Saving, tmp_path, cut, two_fits, valid_interval_steps=2)
    assert trace_without_training_loss(end) == trace_without_training_loss(ending(reference))
    assert end["digest"] == uncut(Plain, 1)["digest"]


@pytest.mark.parametrize(
    "cut",
    [
        ("compute_forward", bl.Stage.TRAIN, 7),
        ("on_stage_end", bl.Stage.TRAIN, 2),
        ("compute_forward", bl.Stage.VALID, 5),
    ],
)
def test_with_a_step_limit(cut: tuple[str, bl.Stage, int], tmp_path: Path) -> None:
    """Also in the validation that follows the last update: it is owed."""

    def script(brain: Plain) -> None:
        brain.fit(range(5), Items(), VALID, train_loader_kwargs=SHUFFLED)

    reference = make(Plain, optimizer_step_limit=7)
    script(reference)
    end = cut_and_resumed(Plain, tmp_path, lambda b: cut_before(b, *cut), script, optimizer_step_limit=7)
    assert end == ending(reference)


def test_with_limited_batches(tmp_path: Path) -> None:
    def script(brain: Plain) -> None:
        brain.fit(range(3), Items(), VALID, train_loader_kwargs=SHUFFLED)

    options = {"limit_train_batches": 3, "limit_valid_batches": 2}
    reference = make(Plain, **options)
    script(reference)
    for name, cut in (
        ("a", ("compute_forward", bl.Stage.TRAIN, 5)),
        ("b", ("compute_forward", bl.Stage.VALID, 3)),
    ):
        end = cut_and_resumed(
            Plain, tmp_path / name, lambda b, cut=cut: cut_before(b, *cut), script, **options
        )
        assert end == ending(reference)


def test_each_fit_has_its_own_counter_and_gets_its_own_state_back(tmp_path: Path) -> None:
    """Nobody registered them; the second one, of another class, had waited for two epochs when the run was cut."""

    class Waiting(Plain):
        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
            super().on_stage_end(stage, stage_loss, epoch)
            if stage == bl.Stage.VALID and self.run_state.fit == 1:
                self.hparams.stopper.update_metric(1.0)

    def script(brain: Plain) -> None:
        brain.hparams.stopper = bl.EpochCounterWithStopper(
            limit=9, limit_to_stop=2, limit_warmup=0, direction="min"
        )
        brain.fit(bl.EpochCounter(1), Items(), VALID, train_loader_kwargs=SHUFFLED)
        brain.fit(brain.hparams.stopper, ready_batches(), VALID)

    reference = make(Waiting)
    script(reference)
    assert len(reference.trace) == 4, "one epoch, then a best one and two that waited"
    cut = ("compute_forward", bl.Stage.TRAIN, 5 * 3 + 2)
    end = cut_and_resumed(Waiting, tmp_path, lambda b: cut_before(b, *cut), script)
    assert end == ending(reference)


def test_resume_says_so_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = make(Plain, bl.Checkpointer(tmp_path), ckpt_interval_steps=1, ckpt_async=False)
    cut_before(first, "compute_forward", bl.Stage.TRAIN, 4)
    with caplog.at_level("INFO", logger="brainlib"), pytest.raises(Cut):
        two_fits(first)
    assert "scratch" in caplog.text
    assert "resumed" not in caplog.text
    caplog.clear()
    with caplog.at_level("INFO", logger="brainlib"):
        two_fits(make(Plain, bl.Checkpointer(tmp_path), global_seed=OTHER_SEED))
    lines = [record.getMessage() for record in caplog.records if "resumed" in record.getMessage().lower()]
    assert len(lines) == 1
    assert "step-" in lines[0], "which file"
    assert "3" in lines[0], "at which step"


@pytest.mark.parametrize("factor", [1, 3])
@pytest.mark.parametrize("number", [2, 5, 9, 13])
def test_interrupted_in_a_notebook_and_the_cell_run_again(number: int, factor: int) -> None:
    """The same object, no checkpointer: an interrupted fit keeps its number and goes on where it stood."""
    brain = make(Plain, grad_accumulation_factor=factor)
    items = Items()
    original, reads = items.__getitem__, 0

    class Stumbling(Items):
        def __getitem__(self, index: int) -> Any:
            nonlocal reads
            reads += 1
            if reads == 4 * (number - 1) + 1:
                raise KeyboardInterrupt
            return original(index)

    def script() -> None:
        brain.fit(range(3), Stumbling(), VALID, train_loader_kwargs=SHUFFLED)

    with pytest.raises(KeyboardInterrupt):
        script()
    script()
    reference = make(Plain, grad_accumulation_factor=factor)
    reference.fit(range(3), Items(), VALID, train_loader_kwargs=SHUFFLED)
    assert ending(brain) == ending(reference)
