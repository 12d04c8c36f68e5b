"""An error or Ctrl-C anywhere in an epoch, and the same call made again: it ends like the run that was left in peace.

The same Brain, no checkpointer: a notebook. What was not trained on is taken back, with the whole window it was in:
gradients, running statistics, counters, and the losses of the average.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import brainlib as bl
from tests.brain.small import Batch, Regression, batches, same, small, weights

SIZES = (4, 3, 2, 4, 3)


class Failing(torch.autograd.Function):
    """The identity, whose backward fails where its second input says so: like memory that has run out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, brain: Any) -> Tensor:
        ctx.brain = brain
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.brain.at("backward")
        return gradient, None


class Stumbling(Regression):
    """Stumbles once, at a moment of a batch of the second epoch."""

    moment: str | None = None
    batch = 0
    error: type[BaseException] = KeyboardInterrupt

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.losses: list[float] = []
        super().__init__(*args, **kwargs)

    def at(self, moment: str) -> None:
        if moment == self.moment and (self.run_state.epoch, self.run_state.step) == (1, self.batch):
            self.moment = None
            raise self.error(moment)

    def on_fit_batch_start(self, batch: Batch, should_step: bool) -> None:
        self.at("on_fit_batch_start")

    def compute_forward(self, batch: Batch, stage: bl.Stage) -> Tensor:
        self.at("compute_forward")
        hidden = self.modules.model[1](self.modules.model[0](batch["x"]))
        return self.modules.model[2](Failing.apply(hidden, self))  # half of the gradients are there by then

    def compute_objectives(self, predictions: Tensor, batch: Batch, stage: bl.Stage) -> Tensor:
        self.at("compute_objectives")
        return super().compute_objectives(predictions, batch, stage)

    def loss_weight(self, batch: Batch, stage: bl.Stage) -> float:
        self.at("loss_weight")
        return super().loss_weight(batch, stage)

    def freeze_optimizers(self, optimizers: Any) -> Any:
        self.at("freeze_optimizers")
        return optimizers

    def on_fit_batch_end(self, batch: Batch, outputs: Any, loss: Tensor, should_step: bool) -> None:
        self.at("on_fit_batch_end")

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        if stage == bl.Stage.TRAIN:
            self.at("on_stage_end")
            self.losses.append(stage_loss)


class StepFails(torch.optim.Adam):
    """Fails before it has touched anything."""

    brain: Any = None

    def step(self, closure: Any = None) -> Any:
        if self.brain is not None:
            self.brain.at("step")
        return super().step(closure)


def model() -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return layers


def ended(cls: type[Stumbling], moment: str | None, batch: int, factor: int, **options: Any) -> Any:
    brain = small(
        cls,
        model=model(),
        opt_class=lambda p: StepFails(p, 0.05),
        grad_accumulation_factor=factor,
        **options,
    )
    brain.moment, brain.batch = moment, batch
    brain.on_fit_start()
    brain.optimizer.brain = brain
    if moment is not None:
        with pytest.raises(KeyboardInterrupt, match=moment):
            brain.fit(range(3), batches(*SIZES), batches(3))
        assert brain.run_state.epoch == 1
    brain.fit(range(3), batches(*SIZES), batches(3))
    moments = [value for state in brain.optimizer.state.values() for value in state.values()]
    tensors = [*weights(brain), *brain.modules.buffers(), *moments]
    return brain.losses, brain.optimizer_step, brain.run_state.fit, [each.tolist() for each in tensors]


INSIDE = [
    "on_fit_batch_start",
    "compute_forward",
    "compute_objectives",
    "loss_weight",
    "backward",
    "on_fit_batch_end",
]


@pytest.mark.parametrize("batch", range(1, 6))
@pytest.mark.parametrize("moment", INSIDE)
def test_anywhere_in_a_batch(moment: str, batch: int) -> None:
    """In windows of three: each place in a full one, and in the trailing one of two."""
    assert ended(Stumbling, moment, batch, 3) == ended(Stumbling, None, 0, 3)


@pytest.mark.parametrize("moment", [*INSIDE, "freeze_optimizers", "step"])
def test_anywhere_in_a_batch_that_is_a_window(moment: str) -> None:
    assert ended(Stumbling, moment, 2, 1) == ended(Stumbling, None, 0, 1)


@pytest.mark.parametrize("batch", [3, 5])
@pytest.mark.parametrize("moment", ["freeze_optimizers", "step"])
def test_in_the_update_of_a_window(moment: str, batch: int) -> None:
    """Before the step: the gradients of the window are dropped and computed again, not added to."""
    assert ended(Stumbling, moment, batch, 3) == ended(Stumbling, None, 0, 3)


def test_at_the_end_of_training() -> None:
    assert ended(Stumbling, "on_stage_end", 5, 3) == ended(Stumbling, None, 0, 3)


@pytest.mark.parametrize(
    "moments",
    [
        ("on_fit_batch_end", "compute_forward"),
        ("backward", "backward"),
    ],
)
def test_twice_in_one_window(moments: tuple[str, str]) -> None:
    """First after its first batch, which then stands; then in its second, by an error that is the user's to see."""
    brain = small(Stumbling, model=model(), grad_accumulation_factor=3)
    for number, moment in enumerate(moments, 1):
        brain.moment, brain.batch = moment, number
        with pytest.raises(KeyboardInterrupt, match=moment):
            brain.fit(range(3), batches(*SIZES))
    brain.fit(range(3), batches(*SIZES))
    reference = small(Stumbling, model=model(), grad_accumulation_factor=3)
    reference.fit(range(3), batches(*SIZES))
    assert same(weights(brain), weights(reference))
    assert same(brain.modules.buffers(), reference.modules.buffers())


class Own(Stumbling):
    """A `fit_batch` that accumulates and steps by itself."""

    def fit_batch(self, batch: Batch) -> Tensor:
        self.at("on_fit_batch_start")
        loss = self.compute_objectives(self.compute_forward(batch, bl.Stage.TRAIN), batch, bl.Stage.TRAIN)
        loss.backward()
        if self.should_step:
            self.freeze_optimizers({})
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.detach()


@pytest.mark.parametrize("factor", [1, 3])
@pytest.mark.parametrize("batch", [2, 3])
@pytest.mark.parametrize(
    "moment", ["on_fit_batch_start", "compute_forward", "compute_objectives", "backward"]
)
def test_in_a_fit_batch_of_ones_own(moment: str, batch: int, factor: int) -> None:
    assert ended(Own, moment, batch, factor) == ended(Own, None, 0, factor)


@pytest.mark.parametrize("moment", ["freeze_optimizers", "step"])
def test_before_the_step_of_a_fit_batch_of_ones_own(moment: str) -> None:
    assert ended(Own, moment, 3, 3) == ended(Own, None, 0, 3)


def test_after_a_step_of_ones_own_the_batch_is_not_trained_on_again() -> None:
    """A judge that has stepped is not stepped twice; what came after it in that batch is lost, once."""

    class Judged(Stumbling):
        def fit_batch(self, batch: Batch) -> Tensor:
            loss = self.compute_objectives(self.compute_forward(batch, bl.Stage.TRAIN), batch, bl.Stage.TRAIN)
            loss.backward()
            self.optimizer.step()
            self.at("after the step")
            self.optimizer.zero_grad()
            return loss.detach()

    brain = small(Judged, model=model())
    brain.moment, brain.batch = "after the step", 2
    with pytest.raises(KeyboardInterrupt):
        brain.fit(range(2), batches(*SIZES))
    assert brain.run_state.step == 2
    brain.fit(range(2), batches(*SIZES))
    assert brain.run_state.epoch == 2


def test_a_failed_step_leaves_the_guard_awake() -> None:
    """A `fit_batch` that hands some batches to `super()`: the steps it makes itself are judged also afterwards."""

    class Both(Stumbling):
        by_itself = False

        def fit_batch(self, batch: Batch) -> Tensor:
            return Own.fit_batch(self, batch) if self.by_itself else super().fit_batch(batch)

    brain = small(Both, model=model(), opt_class=lambda p: StepFails(p, 0.05))
    brain.moment, brain.batch = "step", 2
    brain.on_fit_start()
    brain.optimizer.brain = brain
    with pytest.raises(KeyboardInterrupt):
        brain.fit(range(3), batches(*SIZES))
    brain.by_itself = True
    data = batches(*SIZES)
    data[3]["x"][0, 0] = torch.nan
    brain.fit(range(3), data)
    assert all(torch.isfinite(each).all() for each in weights(brain))
    assert brain.run_state.nonfinite_windows == 2


@pytest.mark.parametrize("number", [1, 3])
def test_in_an_extension(number: int) -> None:
    """After an update: that one stands, and nothing is trained on twice."""

    class Interrupting(bl.Extension):
        trigger = (1, "step")

        def __call__(self, brain: bl.Brain) -> None:
            if brain.optimizer_step == number and not hasattr(self, "done"):
                self.done = True
                raise KeyboardInterrupt

    brain = Regression(
        {"model": nn.Linear(3, 2).double()},
        lambda p: torch.optim.SGD(p, 0.1),
        run_opts={"noprogressbar": True},
        extensions=[Interrupting()],
    )
    reference = small(model=nn.Linear(3, 2).double())
    reference.modules.load_state_dict(brain.modules.state_dict())
    with pytest.raises(KeyboardInterrupt):
        brain.fit(range(2), batches(*SIZES))
    brain.fit(range(2), batches(*SIZES))
    reference.fit(range(2), batches(*SIZES))
    assert brain.optimizer_step == reference.optimizer_step == 10
    assert same(weights(brain), weights(reference))


@pytest.mark.parametrize("batch", [2, 3, 4])
def test_interrupted_and_saved_by_hand(batch: int, tmp_path: Path) -> None:
    """Ctrl-C, a save, another process: what was taken back is not in the checkpoint either."""
    first = small(
        Stumbling, model=model(), checkpointer=bl.Checkpointer(tmp_path), grad_accumulation_factor=3
    )
    first.moment, first.batch = "backward", batch
    with pytest.raises(KeyboardInterrupt):
        first.fit(range(3), batches(*SIZES))
    first.checkpointer.save_checkpoint(name="by-hand")
    second = small(
        Stumbling, model=model(), checkpointer=bl.Checkpointer(tmp_path), grad_accumulation_factor=3
    )
    second.fit(range(3), batches(*SIZES))
    reference = small(Stumbling, model=model(), grad_accumulation_factor=3)
    reference.fit(range(3), batches(*SIZES))
    assert same(weights(second), weights(reference))
    assert first.losses + second.losses == reference.losses


def test_other_data_after_an_interruption_is_refused() -> None:
    brain = small(Stumbling, model=model())
    brain.moment, brain.batch = "compute_forward", 3
    with pytest.raises(KeyboardInterrupt):
        brain.fit(range(3), batches(*SIZES))
    with pytest.raises(ValueError, match="changed in the middle of epoch 2 of fit 0 .batch 2 was the last"):
        brain.fit(range(3), batches(4, 3, 2, 4))


class Broken(torch.utils.data.Dataset[Batch]):
    """A file that cannot be read until it is mended; the items draw."""

    def __init__(self, mended: Path) -> None:
        self.mended = mended

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Batch:
        if index == 7 and not self.mended.exists():
            raise OSError("broken file")
        return {"x": torch.rand(3).double(), "y": torch.rand(2).double()}


def test_an_item_that_could_not_be_read(tmp_path: Path) -> None:
    kwargs = {"batch_size": 2, "shuffle": True}
    brain, reference = small(), small()
    with pytest.raises(OSError, match="broken file"):
        brain.fit(range(2), Broken(tmp_path / "mended"), train_loader_kwargs=kwargs)
    (tmp_path / "mended").touch()
    brain.fit(range(2), Broken(tmp_path / "mended"), train_loader_kwargs=kwargs)
    reference.fit(range(2), Broken(tmp_path / "mended"), train_loader_kwargs=kwargs)
    assert same(weights(brain), weights(reference))
