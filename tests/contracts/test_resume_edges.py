"""Exact resume where scripts do more than the usual: late objects, odd names, saves at odd moments, odd data.

Each test trains once without a checkpointer and once in two lives, and compares the endings; what else a Brain keeps it
writes into its `trace`, a line an epoch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

import brainlib as bl
from tests.contracts.brains import SHUFFLED, VALID, Items, Plain, ending, make, ready_batches
from tests.contracts.test_resume_points import OTHER_SEED, Cut, cut_and_resumed, cut_before

TRAIN, VALIDATION = bl.Stage.TRAIN, bl.Stage.VALID
MID_EPOCH = ("compute_forward", TRAIN, 8)  # five batches an epoch: the third of the second epoch
CLOSED = ("on_stage_start", TRAIN, 2)
both_points = pytest.mark.parametrize("cut", [MID_EPOCH, CLOSED], ids=["mid-epoch", "closed epoch"])


def three_epochs(brain: Plain) -> None:
    brain.fit(range(3), Items(), VALID, train_loader_kwargs=SHUFFLED)


def assert_exact(
    cls: type[Plain],
    folder: Path,
    cut: tuple[str, bl.Stage, int] = MID_EPOCH,
    script: Callable[[Plain], Any] = three_epochs,
    **run_opts: Any,
) -> None:
    """Cut there and started again, it ends like the run that was not cut."""
    reference = make(cls, **{k: v for k, v in run_opts.items() if k != "ckpt_interval_steps"})
    script(reference)
    run_opts = {"ckpt_interval_steps": 2, "ckpt_async": False, **run_opts}
    end = cut_and_resumed(cls, folder, lambda brain: cut_before(brain, *cut), script, **run_opts)
    assert end == ending(reference)


class Telling(Plain):
    """`also` goes into the trace: what no digest of modules and optimizers sees."""

    def also(self) -> Any:
        return None

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        super().on_stage_end(stage, stage_loss, epoch)
        if stage == VALIDATION:
            self.trace[-1] = (*self.trace[-1], self.also())  # type: ignore[assignment]


# ------------------------------------------------------------------------------ on_fit_start, and code between two fits
class ScheduledAfterwards(Telling):
    """The schedule is made after the checkpoint was loaded, as a torch schedule has to be: it wants the optimizer."""

    def on_fit_start(self) -> None:
        super().on_fit_start()
        if not hasattr(self, "schedule"):
            self.schedule = StepLR(self.optimizer, 1, 0.5)

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        super().on_stage_end(stage, stage_loss, epoch)
        if stage == TRAIN:
            self.schedule.step()

    def also(self) -> Any:
        return self.schedule.last_epoch, self.optimizer.param_groups[0]["lr"]


class WeightsSetAfterwards(Telling):
    """A pretrained part goes in after `super().on_fit_start()`: once, at the beginning of the run, not of each life."""

    def on_fit_start(self) -> None:
        super().on_fit_start()
        if not hasattr(self, "is_pretrained"):
            self.is_pretrained = True
            nn.init.constant_(self.modules.model[0].weight, 0.1)


class DrawingAtTheStart(Telling):
    def on_fit_start(self) -> None:
        super().on_fit_start()
        torch.rand(3), random.random(), np.random.rand()


@both_points
@pytest.mark.parametrize("interval", [0, 2])
@pytest.mark.parametrize("cls", [ScheduledAfterwards, WeightsSetAfterwards, DrawingAtTheStart])
def test_what_on_fit_start_does_after_the_checkpoint_is_loaded(
    cls: type[Plain], interval: int, cut: Any, tmp_path: Path
) -> None:
    assert_exact(cls, tmp_path, cut, ckpt_interval_steps=interval)


BETWEEN: dict[str, Callable[[Plain], Any]] = {
    "a draw": lambda brain: torch.rand(3),
    "new weights": lambda brain: brain.modules.model[3].reset_parameters(),
    "another rate": lambda brain: brain.optimizer.param_groups[0].update(lr=0.001),
    "an evaluation": lambda brain: brain.evaluate(VALID),
    "a new attribute": lambda brain: setattr(
        brain, "late", torch.optim.swa_utils.AveragedModel(brain.modules.model)
    ),
    "an attribute that goes": lambda brain: setattr(brain, "memory", None),
    "a frozen layer": lambda brain: brain.modules.model[0].requires_grad_(False),
}


class WithMemory(Telling):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.memory: nn.Module | None = nn.Linear(1, 1)

    def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Tensor, should_step: bool) -> None:
        if hasattr(self, "late"):
            self.late.update_parameters(self.modules.model)

    def also(self) -> Any:
        return [float(p.sum()) for p in self.late.parameters()] if hasattr(self, "late") else None


@pytest.mark.parametrize("number", [8, 18], ids=["first fit", "second fit"])
@pytest.mark.parametrize("between", BETWEEN)
def test_what_the_script_does_between_two_fits_is_done_once(
    between: str, number: int, tmp_path: Path
) -> None:
    """In the second life it is done again, on other weights: the saved state goes over it when its fit begins."""

    def script(brain: Plain) -> None:
        brain.fit(range(2), Items(), VALID, train_loader_kwargs=SHUFFLED)
        BETWEEN[between](brain)
        brain.fit(range(2), Items(), VALID, train_loader_kwargs=SHUFFLED)

    assert_exact(WithMemory, tmp_path, ("compute_forward", TRAIN, number), script)


# ----------------------------------------------------------------------------------- names and places of what has state
class Averaged(Telling):
    """An average of the weights that the digest does not see; it is the attribute `place` of the Brain."""

    place = ""
    __slots__ = ("slot",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        setattr(self, self.place, torch.optim.swa_utils.AveragedModel(self.modules.model))

    def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Tensor, should_step: bool) -> None:
        getattr(self, self.place).update_parameters(self.modules.model)

    def also(self) -> Any:
        return [float(value.sum()) for value in getattr(self, self.place).state_dict().values()]


@pytest.mark.parametrize("place", ["model", "brain", "optimizer-2", "model_2", "slot"])
def test_an_attribute_may_have_the_name_of_a_module_or_an_entry(place: str, tmp_path: Path) -> None:
    assert_exact(type("Averaged", (Averaged,), {"place": place}), tmp_path)


class SameNames(Telling):
    """One optimizer has the key of the module, and another that of the entry which every checkpoint has."""

    opt_factory = None

    def init_optimizers(self) -> None:
        first, last = self.modules.model[0], self.modules.model[3]
        self.optimizers_dict = {
            "model": torch.optim.Adam(first.parameters(), 0.01),
            "brain": torch.optim.SGD(last.parameters(), 0.01, momentum=0.9),
        }


@both_points
def test_an_optimizer_may_have_the_key_of_a_module(cut: Any, tmp_path: Path) -> None:
    assert_exact(SameNames, tmp_path, cut)


class InContainers(Telling):
    """Optimizers in a dict, schedules in a list, a generator in a tuple: one level down is found, too."""

    opt_factory = None

    def init_optimizers(self) -> None:
        first, last = self.modules.model[0], self.modules.model[3]
        self.both = {
            0: torch.optim.Adam(first.parameters(), 0.01),
            "last": torch.optim.SGD(last.parameters(), 0.01, momentum=0.9),
        }
        self.schedules = [StepLR(each, 3, 0.5) for each in self.both.values()]
        self.draws = (torch.Generator().manual_seed(1),)

    def fit_batch(self, batch: Any) -> Tensor:
        noisy = {**batch, "x": batch["x"] + torch.rand(1, generator=self.draws[0])}
        loss = self.compute_objectives(self.compute_forward(noisy, TRAIN), noisy, TRAIN)
        loss.backward()
        for each in self.both.values():
            each.step()
            each.zero_grad()
        for schedule in self.schedules:
            schedule.step()
        return loss.detach()

    def also(self) -> Any:
        moments = [
            float(value.sum())
            for each in self.both.values()
            for state in each.state.values()
            for value in state.values()
        ]
        return [each.last_epoch for each in self.schedules], moments


@both_points
def test_what_stands_in_lists_and_dicts_is_saved(cut: Any, tmp_path: Path) -> None:
    assert_exact(InContainers, tmp_path, cut)


def test_optimizers_in_a_dict_are_watched() -> None:
    brain = make(InContainers)
    data = ready_batches()
    data[1]["x"][0, 0] = torch.nan
    brain.fit(range(1), data)
    assert (brain.optimizer_step, brain.run_state.nonfinite_windows) == (4, 1)
    assert all(torch.isfinite(p).all() for p in brain.modules.parameters())


class OwnGenerators(Telling):
    """Generators of other libraries, which have no `state_dict`, and one of torch's.

    Normal numbers come in pairs from `gauss` and from `RandomState`: the second waits in the generator.
    """

    draws: Callable[[OwnGenerators], float]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.python, self.numpy = random.Random(1), np.random.default_rng(1)
        self.old, self.torch = np.random.RandomState(1), torch.Generator().manual_seed(1)
        self.philox = np.random.Generator(np.random.Philox(1))
        self.mersenne = np.random.Generator(np.random.MT19937(1))

    def compute_forward(self, batch: Any, stage: bl.Stage) -> Tensor:
        noise = self.draws() if stage == TRAIN else 0.0
        return super().compute_forward(batch, stage) + noise


DRAWS: dict[str, Callable[[OwnGenerators], float]] = {
    "random.Random": lambda brain: brain.python.gauss(0, 1),
    "default_rng": lambda brain: float(brain.numpy.normal()) + float(brain.numpy.integers(9, dtype=np.int32)),
    "Philox": lambda brain: float(brain.philox.normal()),
    "MT19937": lambda brain: float(brain.mersenne.normal()),
    "RandomState": lambda brain: float(brain.old.uniform()),
    "torch.Generator": lambda brain: float(torch.randn(1, generator=brain.torch)),
}


@pytest.mark.parametrize("number", [7, 8], ids=["even", "odd"])
@pytest.mark.parametrize("draws", DRAWS)
def test_generators_of_ones_own_go_on(draws: str, number: int, tmp_path: Path) -> None:
    cls = type("Own", (OwnGenerators,), {"draws": DRAWS[draws]})
    assert_exact(cls, tmp_path, ("compute_forward", TRAIN, number), ckpt_interval_steps=1, ckpt_async=False)


def test_the_second_normal_number_of_a_pair(tmp_path: Path) -> None:
    cls = type("Own", (OwnGenerators,), {"draws": lambda brain: float(brain.old.normal())})
    assert_exact(cls, tmp_path, ("compute_forward", TRAIN, 8), ckpt_interval_steps=1, ckpt_async=False)


# -------------------------------------------------------------------------------- what changes at the start of an epoch
class FreezingOnce(Telling):
    """The flags are part of the state: nobody sets them again in later epochs."""

    def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
        if stage == TRAIN and epoch == 1:
            self.modules.model[0].requires_grad_(False)

    def also(self) -> Any:
        return [p.requires_grad for p in self.modules.parameters()]


class ThawingOnce(FreezingOnce):
    @staticmethod
    def build() -> dict[str, nn.Module]:
        model = Plain.build()["model"]
        model[0].requires_grad_(False)  # type: ignore[index]
        return {"model": model}

    def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
        if stage == TRAIN and epoch == 1:
            self.modules.model.requires_grad_(True)


@pytest.mark.parametrize("number", [4, 8, 13], ids=["before", "in that epoch", "after it"])
@pytest.mark.parametrize("cls", [FreezingOnce, ThawingOnce])
def test_what_was_frozen_or_thawed_stays_so(cls: type[Plain], number: int, tmp_path: Path) -> None:
    assert_exact(cls, tmp_path, ("compute_forward", TRAIN, number))


@pytest.mark.parametrize("cut", [("on_stage_start", TRAIN, 3), ("on_stage_start", VALIDATION, 2)])
def test_frozen_flags_at_the_other_moments_of_an_epoch(cut: Any, tmp_path: Path) -> None:
    assert_exact(FreezingOnce, tmp_path, cut)


class Growing(Telling):
    """The last layer joins the optimizer in the second epoch: gradual unfreezing."""

    opt_factory = None

    def init_optimizers(self) -> None:
        self.optimizer = torch.optim.Adam(self.modules.model[0].parameters(), 0.01)

    def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
        if stage == TRAIN and epoch == 1:
            self.optimizer.add_param_group({"params": list(self.modules.model[3].parameters()), "lr": 0.001})


class Switching(Telling):
    """Adam, then SGD from the second epoch on."""

    def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
        if stage == TRAIN and epoch == 1:
            self.optimizer = torch.optim.SGD(self.modules.parameters(), 0.05, momentum=0.9)
            self.optimizers_dict = {"opt_class": self.optimizer}


@pytest.mark.parametrize("cut", [MID_EPOCH, ("on_stage_end", TRAIN, 2), ("compute_forward", VALIDATION, 5)])
@pytest.mark.parametrize("cls", [Growing, Switching])
def test_an_optimizer_that_changes_at_the_start_of_the_open_epoch(
    cls: type[Plain], cut: Any, tmp_path: Path
) -> None:
    """The hook runs again, then the whole state is applied."""
    assert_exact(cls, tmp_path, cut)


@pytest.mark.parametrize(
    ("cls", "said"), [(Growing, "model.3.weight"), (Switching, "it was saved by torch.optim.sgd.SGD")]
)
def test_an_optimizer_that_changed_in_an_epoch_that_is_closed_is_an_error(
    cls: type[Plain], said: str, tmp_path: Path
) -> None:
    """The hook that made it is not run again. An error says so; nothing is quietly left out."""
    first = make(cls, bl.Checkpointer(tmp_path))
    cut_before(first, "compute_forward", TRAIN, 13)
    with pytest.raises(Cut):
        three_epochs(first)
    second = make(cls, bl.Checkpointer(tmp_path), global_seed=OTHER_SEED)
    with pytest.raises(ValueError, match="recoverable 'optimizer'") as caught:
        three_epochs(second)
    assert said in str(caught.value)
    assert "step-00000010" in str(caught.value)


# ------------------------------------------------------------------------------------------------- saves at odd moments
class Saving(Telling):
    """Saves each time it comes to `moment`, wherever that lies, and dies right after the `last`-th save."""

    moment = ""
    last: int | None = None
    num_saves = 0

    def at(self, moment: str) -> None:
        if moment == self.moment and self.checkpointer is not None:
            self.checkpointer.save_and_keep_only()
            self.num_saves += 1
            if self.num_saves == self.last:
                raise Cut

    def on_fit_batch_start(self, batch: Any, should_step: bool) -> None:
        self.at("on_fit_batch_start")

    def compute_forward(self, batch: Any, stage: bl.Stage) -> Tensor:
        self.at(f"compute_forward of {stage.name}")
        return super().compute_forward(batch, stage)

    def compute_objectives(self, predictions: Tensor, batch: Any, stage: bl.Stage) -> Tensor:
        loss = super().compute_objectives(predictions, batch, stage)
        if stage == TRAIN:
            self.at("compute_objectives")
        return loss

    def freeze_optimizers(self, optimizers: Any) -> Any:
        self.at("freeze_optimizers")
        return optimizers

    def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Tensor, should_step: bool) -> None:
        self.at("on_fit_batch_end")

    def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
        self.at(f"on_stage_start of {stage.name}")

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        super().on_stage_end(stage, stage_loss, epoch)
        self.at(f"on_stage_end of {stage.name}")


class SavingFirst(Saving):
    """At the top of a `fit_batch` of its own."""

    def fit_batch(self, batch: Any) -> Tensor:
        self.at("fit_batch")
        return super().fit_batch(batch)


MOMENTS = {
    "on_fit_batch_start": 8,
    "compute_forward of TRAIN": 8,
    "on_fit_batch_end": 8,
    "fit_batch": 8,
    "on_stage_start of TRAIN": 2,
    "on_stage_start of VALID": 2,
    "compute_forward of VALID": 5,
    "on_stage_end of TRAIN": 2,
}


def saved_and_cut(cls: type[Saving], last: int, folder: Path, **run_opts: Any) -> tuple[Plain, Plain]:
    """A run left in peace, and the second life of one that died right after a save."""
    reference = make(cls, **run_opts)
    three_epochs(reference)
    first = make(cls, bl.Checkpointer(folder), **run_opts)
    first.last = last  # type: ignore[attr-defined]
    with pytest.raises(Cut):
        three_epochs(first)
    second = make(cls, bl.Checkpointer(folder), global_seed=OTHER_SEED, **run_opts)
    three_epochs(second)
    return reference, second


@pytest.mark.parametrize("factor", [1, 3])
@pytest.mark.parametrize(
    "moment",
    MOMENTS,
)
def test_saved_at_that_moment_and_cut_right_after(moment: str, factor: int, tmp_path: Path) -> None:
    """A save before the batch in hand is trained on does not count it; validation is replayed from its beginning."""
    cls = type("Saves", (SavingFirst if moment == "fit_batch" else Saving,), {"moment": moment})
    reference, second = saved_and_cut(cls, MOMENTS[moment], tmp_path, grad_accumulation_factor=factor)
    end = ending(second)
    assert end["digest"] == ending(reference)["digest"]
    assert end["optimizer_step"] == reference.optimizer_step
    # In validation the training loss is an attribute of the recipe's, which no checkpoint holds.
    assert [line[2] for line in end["trace"]] == [line[2] for line in reference.trace[-len(second.trace) :]]


def test_a_save_inside_the_forward_does_not_lose_the_batch(tmp_path: Path) -> None:
    """It repeats it, but not exactly: what the forward has drawn is drawn. The docs say where to save."""
    cls = type("Saves", (Saving,), {"moment": "compute_objectives"})
    reference, second = saved_and_cut(cls, 8, tmp_path)
    assert second.optimizer_step == reference.optimizer_step


class SavingLast(Saving):
    """At the end of a `fit_batch` that steps in every second batch."""

    moment = "the end"

    def fit_batch(self, batch: Any) -> Tensor:
        loss = self.compute_objectives(self.compute_forward(batch, TRAIN), batch, TRAIN)
        (loss / 2).backward()
        if self.step % 2 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.at("the end")
        return loss.detach()


@pytest.mark.parametrize("last", [7, 8])
def test_saved_at_the_end_of_a_fit_batch_of_ones_own(last: int, tmp_path: Path) -> None:
    """With a step in that batch (the second of its epoch), and without one: its gradients are in the checkpoint."""
    reference, second = saved_and_cut(SavingLast, last, tmp_path)
    assert ending(second)["digest"] == ending(reference)["digest"]


def test_the_counters_in_a_save_at_the_end_of_a_fit_batch_of_ones_own(tmp_path: Path) -> None:
    reference, second = saved_and_cut(SavingLast, 7, tmp_path)
    assert (
        second.optimizer_step == reference.optimizer_step
    )  # the loss of that batch is not known yet, and not saved


class Normed(Saving):
    """Running statistics; the second batch of the window that is open at the cut is bad."""

    moment = "on_fit_batch_end"

    @staticmethod
    def build() -> dict[str, nn.Module]:
        return {"model": nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.2), nn.Linear(5, 3))}


def test_a_bad_batch_in_the_window_that_was_open_at_the_cut(tmp_path: Path) -> None:
    """It spoils that window, and leaves no trace in running statistics; how far back they go is told nowhere."""
    data = ready_batches()
    data[1]["x"][0, 0] = torch.nan
    first = make(Normed, bl.Checkpointer(tmp_path), grad_accumulation_factor=3)
    first.last = 1
    with pytest.raises(Cut):
        first.fit(range(1), data)
    second = make(Normed, bl.Checkpointer(tmp_path), grad_accumulation_factor=3)
    second.moment = ""
    second.fit(range(1), data)
    assert (second.optimizer_step, second.run_state.nonfinite_windows) == (1, 1)
    assert all(torch.isfinite(value).all() for value in second.modules.state_dict().values())


@pytest.mark.parametrize("factor", [1, 3])
def test_a_save_between_backward_and_step_is_refused(factor: int, tmp_path: Path) -> None:
    cls = type("Saves", (Saving,), {"moment": "freeze_optimizers"})
    brain = make(cls, bl.Checkpointer(tmp_path), grad_accumulation_factor=factor)
    with pytest.raises(
        ValueError, match="between the backward and the step of an update .in freeze_optimizers"
    ):
        three_epochs(brain)
    assert not list(tmp_path.glob("*step*")), "nothing half-written is left"


def test_a_save_before_the_batch_is_trained_on_tells_the_batch_before(tmp_path: Path) -> None:
    cls = type("Saves", (Saving,), {"moment": "on_fit_batch_start"})
    brain = make(cls, bl.Checkpointer(tmp_path))
    brain.last = 8
    with pytest.raises(Cut):
        three_epochs(brain)
    newest = bl.Checkpointer(tmp_path).find_checkpoint()
    assert newest is not None
    assert newest.counters == {"fit": 0, "epoch": 1, "step": 2, "optimizer_step": 7}


# ----------------------------------------------------------------------------------------------------------------- data
class Drawing:
    """An iterable that shuffles and adds noise with the process-wide generators, and has no length."""

    def __iter__(self) -> Iterator[Any]:
        batches = ready_batches()
        for place in torch.randperm(5).tolist():
            noise = torch.rand(1) + random.random() + float(np.random.rand())
            yield {**batches[place], "x": batches[place]["x"] + noise}


class SubclassedLoader(torch.utils.data.DataLoader[Any]):
    pass


class Streamed(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        items = Items()
        return iter([items[place] for place in torch.randperm(len(items)).tolist()])


class OwnlyShuffled(torch.utils.data.Sampler[int]):
    """Shuffles with a generator that it keeps."""

    def __init__(self, generator: Any) -> None:
        self.whatever_it_is_called = generator

    def __len__(self) -> int:
        return 18

    def __iter__(self) -> Iterator[int]:
        order, generator = list(range(18)), self.whatever_it_is_called
        if isinstance(generator, torch.Generator):
            order = torch.randperm(18, generator=generator).tolist()
        else:
            generator.shuffle(order)
        return iter(order)


def loader(generator: Any) -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(Items(), batch_size=4, sampler=OwnlyShuffled(generator))


SETS: dict[str, Callable[[], Any]] = {
    "an iterable that draws": Drawing,
    "a subclass of DataLoader": lambda: SubclassedLoader(Items(), batch_size=4, shuffle=True),
    "an IterableDataset": lambda: torch.utils.data.DataLoader(Streamed(), batch_size=4),
    "a sampler with random.Random": lambda: loader(random.Random(1)),
    "a sampler with default_rng": lambda: loader(np.random.default_rng(1)),
    "a sampler with torch.Generator": lambda: loader(torch.Generator().manual_seed(1)),
    "a weighted sampler": lambda: torch.utils.data.DataLoader(
        Items(), batch_size=4, sampler=torch.utils.data.WeightedRandomSampler(torch.arange(1.0, 19), 18)
    ),
    "a subset": lambda: torch.utils.data.DataLoader(
        torch.utils.data.random_split(Items(24), [18, 6], generator=torch.Generator().manual_seed(2))[0],
        batch_size=4,
        shuffle=True,
    ),
}


@pytest.mark.parametrize("factor", [1, 3])
@pytest.mark.parametrize("name", SETS)
def test_sets_that_draw(name: str, factor: int, tmp_path: Path) -> None:
    def script(brain: Plain) -> None:
        brain.fit(range(3), SETS[name](), VALID)

    assert_exact(
        Telling,
        tmp_path,
        script=script,
        grad_accumulation_factor=factor,
        ckpt_interval_steps=1,
        ckpt_async=False,
    )


# ------------------------------------------------------------------------------------------------------------- the disk
def test_two_automatic_checkpoints_are_kept_and_the_older_one_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged newest one costs an interval, not the run."""
    first = make(Telling, bl.Checkpointer(tmp_path), ckpt_interval_steps=2, ckpt_async=False)
    cut_before(first, *MID_EPOCH)
    with pytest.raises(Cut):
        three_epochs(first)
    names = sorted(path.name for path in tmp_path.glob("step-*"))
    assert names == ["step-00000005", "step-00000006"]
    weights = tmp_path / names[1] / "model.pt"
    weights.write_bytes(weights.read_bytes()[:-1])

    second = make(Telling, bl.Checkpointer(tmp_path), global_seed=OTHER_SEED)
    three_epochs(second)
    reference = make(Telling)
    three_epochs(reference)
    assert ending(second)["digest"] == ending(reference)["digest"]
    assert f"{names[1]} is skipped: its model.pt" in caplog.text
