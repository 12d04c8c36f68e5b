"""Every hook in its order, and what holds while it runs: mode, gradients, counters."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import brainlib as bl
from tests.brain.small import Regression, Rows, batches, small

TRAIN, VALID, TEST = bl.Stage.TRAIN, bl.Stage.VALID, bl.Stage.TEST


class Recorder(Regression):
    """Writes down every call of the contract, with ``training``, gradients on, and ``step``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.calls: list[str] = []
        self.modes: list[tuple[str, bool, bool]] = []
        self.steps: list[tuple[str, int]] = []
        super().__init__(*args, **kwargs)

    def note(self, what: str, stage: bl.Stage | None = None, *details: Any) -> None:
        words = [what, *([stage.name] if stage else []), *map(str, details)]
        self.calls.append(" ".join(words))
        key = f"{what} {stage.name}" if stage else what
        self.modes.append((key, self.modules.training, torch.is_grad_enabled()))
        self.steps.append((key, self.step))

    def make_dataloader(self, dataset: Any, stage: bl.Stage, *args: Any, **kwargs: Any) -> Any:
        self.note("make_dataloader", stage)
        return super().make_dataloader(dataset, stage, *args, **kwargs)

    def on_fit_start(self) -> None:
        self.note("on_fit_start")
        super().on_fit_start()

    def init_optimizers(self) -> None:
        self.note("init_optimizers")
        super().init_optimizers()

    def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
        self.note("on_stage_start", stage, epoch)

    def on_fit_batch_start(self, batch: Any, should_step: bool) -> None:
        self.note("on_fit_batch_start", None, should_step)

    def compute_forward(self, batch: Any, stage: bl.Stage) -> torch.Tensor:
        self.note("compute_forward", stage)
        return super().compute_forward(batch, stage)

    def compute_objectives(self, predictions: torch.Tensor, batch: Any, stage: bl.Stage) -> torch.Tensor:
        self.note("compute_objectives", stage)
        return super().compute_objectives(predictions, batch, stage)

    def freeze_optimizers(self, optimizers: Any) -> Any:
        self.note("freeze_optimizers")
        return super().freeze_optimizers(optimizers)

    def on_fit_batch_end(self, batch: Any, outputs: Any, loss: torch.Tensor, should_step: bool) -> None:
        self.note("on_fit_batch_end", None, should_step)

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        self.note("on_stage_end", stage, epoch)

    def on_evaluate_start(self, max_key: str | None = None, min_key: str | None = None) -> None:
        self.note("on_evaluate_start", None, max_key, min_key)
        super().on_evaluate_start(max_key, min_key)


class RecorderOfBatches(Recorder):
    """Also of the methods that make a batch: they go through the same loop when they are overridden."""

    def fit_batch(self, batch: Any) -> torch.Tensor:
        self.note("fit_batch")
        return super().fit_batch(batch)

    def optimizers_step(self) -> None:
        self.note("optimizers_step")
        super().optimizers_step()

    def evaluate_batch(self, batch: Any, stage: bl.Stage) -> torch.Tensor:
        self.note("evaluate_batch", stage)
        return super().evaluate_batch(batch, stage)


EXPECTED = """
make_dataloader TRAIN
make_dataloader VALID
on_fit_start
init_optimizers
on_stage_start TRAIN 1
  fit_batch
on_fit_batch_start False
compute_forward TRAIN
compute_objectives TRAIN
on_fit_batch_end False
  fit_batch
on_fit_batch_start True
compute_forward TRAIN
compute_objectives TRAIN
  optimizers_step
freeze_optimizers
on_fit_batch_end True
on_stage_end TRAIN 1
on_stage_start VALID 1
  evaluate_batch VALID
compute_forward VALID
compute_objectives VALID
on_stage_end VALID 1
make_dataloader TEST
on_evaluate_start None error
on_stage_start TEST None
  evaluate_batch TEST
compute_forward TEST
compute_objectives TEST
on_stage_end TEST None
"""


def recorded(cls: type[Recorder]) -> Recorder:
    brain = small(cls, grad_accumulation_factor=2)
    kwargs = {"batch_size": 2}
    brain.fit(bl.EpochCounter(1), Rows(4), Rows(2), train_loader_kwargs=kwargs, valid_loader_kwargs=kwargs)
    brain.evaluate(Rows(2), min_key="error", test_loader_kwargs=kwargs)
    return brain


def test_the_order_of_the_hooks() -> None:
    expected = [line for line in EXPECTED.strip().splitlines() if not line.startswith(" ")]
    assert recorded(Recorder).calls == expected


def test_overriding_the_machinery_keeps_the_order() -> None:
    expected = [line.strip() for line in EXPECTED.strip().splitlines()]
    assert recorded(RecorderOfBatches).calls == expected


@pytest.mark.parametrize("cls", [Recorder, RecorderOfBatches])
def test_mode_and_gradients_in_every_hook(cls: type[Recorder]) -> None:
    for name, training, grad in recorded(cls).modes:
        if name.startswith(("make_dataloader", "on_evaluate_start", "on_fit_start", "init_optimizers")):
            continue
        if name.endswith(("VALID", "TEST")) and not name.startswith("on_stage_start"):
            assert (training, grad) == (False, False), name
        elif not name.endswith(("VALID", "TEST")):
            assert (training, grad) == (True, True), name


def test_step_counts_the_batches_of_the_stage() -> None:
    steps = recorded(Recorder).steps
    seen = [
        (name, step) for name, step in steps if name.startswith(("compute_forward", "on_stage_end TRAIN"))
    ]
    assert seen == [
        ("compute_forward TRAIN", 1),
        ("compute_forward TRAIN", 2),
        ("on_stage_end TRAIN", 2),
        ("compute_forward VALID", 1),
        ("compute_forward TEST", 1),
    ]


def test_ready_loaders_are_not_made_again() -> None:
    brain = small(Recorder)
    brain.fit(range(1), batches(2, 2), batches(2))
    loader = torch.utils.data.DataLoader(Rows(4), batch_size=2)
    brain.fit(range(1), loader)
    assert not [call for call in brain.calls if call.startswith("make_dataloader")]


def test_on_fit_start_is_called_at_each_fit_and_does_its_work_once() -> None:
    brain = small(Recorder)
    brain.fit(range(1), batches(2))
    optimizer = brain.optimizer
    brain.fit(range(1), batches(2))
    assert brain.calls.count("on_fit_start") == 2
    assert brain.calls.count("init_optimizers") == 1
    assert brain.optimizer is optimizer


def test_on_fit_start_may_be_called_by_hand() -> None:
    brain = small(Recorder)
    brain.on_fit_start()
    optimizer = brain.optimizer
    brain.on_fit_start()
    brain.fit(range(1), batches(2))
    assert brain.optimizer is optimizer
    assert brain.calls.count("init_optimizers") == 1


def test_the_average_is_there_when_the_stage_ends() -> None:
    class Brain(Regression):
        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
            if stage == TRAIN:
                self.seen = (stage_loss, self.avg_train_loss)

    brain = small(Brain)
    assert brain.avg_train_loss == 0.0
    brain.fit(range(1), batches(3, 1))
    assert brain.seen[0] == brain.seen[1] > 0
    assert type(brain.seen[0]) is float
    assert brain.step == 0


def test_fit_returns_nothing_and_runs_without_validation() -> None:
    brain = small(Recorder)
    assert brain.fit(range(2), batches(2), None) is None
    assert not [call for call in brain.calls if "VALID" in call]


@pytest.mark.parametrize("where", ["class", "instance"])
def test_hooks_on_the_instance_count(where: str) -> None:
    seen: list[Any] = []

    def on_fit_batch_end(self: Any, batch: Any, outputs: Any, loss: torch.Tensor, should_step: bool) -> None:
        seen.append((tuple(outputs.shape), float(loss.detach()), should_step))

    brain = small()
    if where == "class":
        brain = small(type("Brain", (Regression,), {"on_fit_batch_end": on_fit_batch_end}))
    else:
        brain.on_fit_batch_end = on_fit_batch_end.__get__(brain)
    brain.fit(range(1), batches(4, 2))
    assert [line[0] for line in seen] == [(4, 2), (2, 2)]


@pytest.mark.parametrize("where", ["class", "instance"])
def test_fit_batch_on_class_or_instance(where: str) -> None:
    stepped: list[bool] = []

    def fit_batch(self: Any, batch: Any) -> torch.Tensor:
        stepped.append(self.should_step)
        loss = self.compute_objectives(self.compute_forward(batch, TRAIN), batch, TRAIN)
        loss.backward()
        if self.should_step:
            self.optimizers_step()
        return loss.detach()

    if where == "class":
        brain = small(type("Brain", (Regression,), {"fit_batch": fit_batch}), grad_accumulation_factor=2)
    else:
        brain = small(grad_accumulation_factor=2)
        brain.fit_batch = fit_batch.__get__(brain)
    brain.fit(range(2), batches(2, 2, 2))
    assert stepped == [False, True, True] * 2
    assert brain.optimizer_step == 4


def test_an_error_names_the_missing_method() -> None:
    with pytest.raises(NotImplementedError, match="compute_forward"):
        small(bl.Brain).fit(range(1), batches(2))
