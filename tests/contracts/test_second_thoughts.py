"""What a second round of trials found: each was a promise that did not hold."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import brainlib as bl
from brainlib.update.guard import DeviceGuard, HostGuard
from tests.brain.small import Regression, batches, linear, same, sgd, small, weights


class Normed(bl.Brain):
    """Running statistics, and a guard in either form."""

    on_device = False

    def _make_guard(self) -> HostGuard:
        return DeviceGuard(torch.device("cpu")) if self.on_device else HostGuard()

    def compute_forward(self, batch: tuple[Tensor, Tensor], stage: bl.Stage) -> Tensor:
        return self.modules.model(batch[0])

    def compute_objectives(
        self, predictions: Tensor, batch: tuple[Tensor, Tensor], stage: bl.Stage
    ) -> Tensor:
        return torch.nn.functional.mse_loss(predictions, batch[1])

    def loss_of(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return self.compute_objectives(self.compute_forward(batch, bl.Stage.TRAIN), batch, bl.Stage.TRAIN)


class ReturnsEarly(Normed):
    """A fit_batch that looks for itself, and makes no step on a bad batch."""

    def fit_batch(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = self.loss_of(batch)
        if torch.isfinite(loss):
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.detach()


class StepsWithAClosure(Normed):
    """The gradients of a step are made inside it."""

    def fit_batch(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        def closure() -> Tensor:
            self.optimizer.zero_grad()
            loss = self.loss_of(batch)
            loss.backward()
            return loss

        return self.optimizer.step(closure).detach()


def data(bad: int | None = None, num: int = 6) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    made = [
        (torch.randn(8, 4, generator=generator), torch.randn(8, 3, generator=generator)) for _ in range(num)
    ]
    if bad is not None:
        made[bad][0].fill_(float("nan"))
    return made


def normed(cls: type[Normed], **options: Any) -> Normed:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    on_device = options.pop("on_device", False)
    kind = type(cls.__name__, (cls,), {"on_device": on_device})
    return kind(
        {"model": model},
        lambda parameters: torch.optim.Adam(parameters, 0.01, fused=on_device),
        checkpointer=options.pop("checkpointer", None),
        run_opts={"noprogressbar": True, "device": "cpu", **options},
    )


@pytest.mark.parametrize("factor", [1, 2, 3])
@pytest.mark.parametrize("bad", [0, 2, 5])
@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("cls", [ReturnsEarly, StepsWithAClosure])
def test_a_bad_batch_leaves_no_trace(cls: type[Normed], on_device: bool, bad: int, factor: int) -> None:
    """Neither in the weights nor in the running statistics, whether or not the user's fit_batch stepped on it."""
    brain = normed(cls, on_device=on_device, grad_accumulation_factor=factor)
    brain.fit(range(1), data(bad))
    assert all(torch.isfinite(value).all() for value in brain.modules.state_dict().values())
    assert brain.optimizer_step == 5
    assert brain.run_state.nonfinite_windows >= 1


@pytest.mark.parametrize("bad", [0, 1])
def test_a_window_that_was_open_at_the_cut_and_turns_out_bad(bad: int, tmp_path: Path) -> None:
    """The running statistics of before the window are in a checkpoint that is made inside it."""

    class Saves(Normed):
        cut = False

        def on_fit_batch_end(self, batch: Any, outputs: Tensor, loss: Tensor, should_step: bool) -> None:
            if self.cut and self.step == 1:
                self.checkpointer.save_checkpoint()
                raise KeyError("cut")

    uncut = normed(Saves, grad_accumulation_factor=2)
    uncut.fit(range(1), data(bad))
    first = normed(Saves, grad_accumulation_factor=2, checkpointer=bl.Checkpointer(tmp_path))
    first.cut = True
    with pytest.raises(KeyError):
        first.fit(range(1), data(bad))
    second = normed(Saves, grad_accumulation_factor=2, checkpointer=bl.Checkpointer(tmp_path))
    second.fit(range(1), data(bad))
    assert same(second.modules.state_dict().values(), uncut.modules.state_dict().values())


def test_a_warning_names_a_bad_window_once(caplog: pytest.LogCaptureFixture) -> None:
    class Looks(Normed):
        def fit_batch(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            loss = self.loss_of(batch)
            self.check_loss_isfinite(loss)
            if torch.isfinite(loss):
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
            return loss.detach()

    normed(Looks).fit(range(1), data(2))
    assert sum("update skipped" in record.getMessage() for record in caplog.records) == 1


def test_a_start_that_broke_off_is_done_again(tmp_path: Path) -> None:
    """The same call on the same Brain: not from scratch over the checkpoints that are there."""
    small(checkpointer=bl.Checkpointer(tmp_path)).fit(range(2), batches(4, 4))
    kept = sorted(path.name for path in tmp_path.glob("step-*"))

    class Broken(Regression):
        breaks = True

        def init_optimizers(self) -> None:
            if self.breaks:
                raise KeyboardInterrupt
            super().init_optimizers()

    brain = small(Broken, checkpointer=bl.Checkpointer(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        brain.fit(range(3), batches(4, 4))
    assert sorted(path.name for path in tmp_path.glob("step-*")) == kept
    brain.breaks = False
    brain.fit(range(3), batches(4, 4))
    reference = small()
    reference.fit(range(3), batches(4, 4))
    assert brain.optimizer_step == 6
    assert same(weights(brain), weights(reference))


def test_a_checkpoint_that_does_not_fit_does_not_fit_the_second_time_either(tmp_path: Path) -> None:
    small(checkpointer=bl.Checkpointer(tmp_path)).fit(range(2), batches(4, 4))
    kept = sorted(path.name for path in tmp_path.glob("step-*"))
    other = small(
        model=torch.nn.Sequential(torch.nn.Linear(3, 2)).double(), checkpointer=bl.Checkpointer(tmp_path)
    )
    for _ in range(2):
        with pytest.raises(bl.CheckpointError, match="does not fit"):
            other.fit(range(3), batches(4, 4))
    assert sorted(path.name for path in tmp_path.glob("step-*")) == kept


def test_what_extensions_hold_can_be_asked_for_between_the_fits_of_a_finished_script(tmp_path: Path) -> None:
    def script() -> list[Tensor]:
        average = bl.EMA(decay=0.9)
        options = {"noprogressbar": True, "device": "cpu"}
        brain = Regression(
            {"model": linear()}, sgd, {"seed": 0}, options, bl.Checkpointer(tmp_path), extensions=[average]
        )
        brain.fit(range(1), batches(4, 4))
        with average.swapped():
            found = copy.deepcopy(weights(brain))
        brain.fit(range(1), batches(4, 4))
        return found

    script()
    script()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"extensions": 5}, "extensions is 5"),
        ({"opt_class": lambda parameters: None}, "opt_class returned None"),
    ],
)
def test_what_cannot_be_used_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Regression({"model": linear()}, **{"opt_class": sgd, **arguments}).fit(range(1), batches(4))


def test_a_text_is_no_epochs() -> None:
    with pytest.raises(ValueError, match="epoch_counter is '10'"):
        small().fit("10", batches(4))
