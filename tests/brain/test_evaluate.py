"""`evaluate` looks and leaves everything as it found it; which weights it looks at is said and can be chosen."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import brainlib as bl
from tests.brain.small import Batch, Regression, Rows, batches, same, small, weights

TEST = bl.Stage.TEST


class Drawing(Regression):
    """Draws random numbers in every stage, as augmentation and dropout do."""

    def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
        noise = torch.rand(()).double() + random.random() + float(np.random.rand())
        return super().compute_forward(batch, stage) + 0 * noise


class Recipe(Drawing):
    """Saves at every epoch, with a metric that is best at epoch 1 of 0, 1, 2."""

    METRIC = (0.5, 0.9, 0.7)

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        if stage == bl.Stage.VALID:
            self.kept = {**getattr(self, "kept", {}), epoch: weights(self)}
            meta = {"accuracy": self.METRIC[epoch or 0], "error": 1 - self.METRIC[epoch or 0]}
            self.checkpointer.save_and_keep_only(meta=meta, max_keys=["accuracy"], num_to_keep=3)


def trained(tmp_path: Path, cls: type[Drawing] = Recipe) -> Any:
    brain = small(cls, checkpointer=bl.Checkpointer(tmp_path))
    brain.fit(range(3), batches(4, 4), batches(3))
    with torch.no_grad():
        brain.modules.model.bias.add_(1.0)  # "current" is none of the saved ones
    return brain


def loss_with(brain: Any, values: list[torch.Tensor]) -> float:
    model = small(Regression)
    with torch.no_grad():
        for parameter, value in zip(model.modules.parameters(), values, strict=True):
            parameter.copy_(value)
    return float(model.evaluate(batches(5, 2, seed=4)))


CHOICES: dict[str, tuple[dict[str, Any], int | None]] = {
    "max_key": ({"max_key": "accuracy"}, 1),
    "min_key": ({"min_key": "error"}, 1),
    "max_key of an error": ({"max_key": "error"}, 0),
    "best": ({"checkpoint": "best"}, 1),
    "last": ({"checkpoint": "last"}, 2),
    "current": ({"checkpoint": "current"}, None),
    "nothing said: the criterion last declared": ({}, 1),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_which_weights_are_evaluated(choice: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    brain = trained(tmp_path)
    arguments, epoch = CHOICES[choice]
    right = loss_with(brain, weights(brain) if epoch is None else brain.kept[epoch])
    caplog.clear()
    with caplog.at_level("INFO", logger="brainlib"):
        assert brain.evaluate(batches(5, 2, seed=4), **arguments) == right
    assert ("step-" in caplog.text) == (epoch is not None), "it says which file"


def test_a_path_can_be_given(tmp_path: Path) -> None:
    brain = trained(tmp_path)
    best = brain.checkpointer.find_checkpoint(max_key="accuracy")
    for path in (best.path, str(best.path)):
        assert brain.evaluate(batches(5, 2, seed=4), checkpoint=path) == loss_with(brain, brain.kept[1])


def test_the_criterion_survives_a_restart(tmp_path: Path) -> None:
    first = trained(tmp_path)
    second = small(checkpointer=bl.Checkpointer(tmp_path))
    assert second.evaluate(batches(5, 2, seed=4)) == loss_with(first, first.kept[1])


def test_without_a_criterion_the_newest(tmp_path: Path) -> None:
    brain = small(checkpointer=bl.Checkpointer(tmp_path))
    brain.fit(range(2), batches(4, 4))
    right = loss_with(brain, weights(brain))
    with torch.no_grad():
        brain.modules.model.bias.add_(1.0)
    assert brain.evaluate(batches(5, 2, seed=4)) == right


def test_without_a_checkpointer_the_current_weights() -> None:
    brain = small()
    brain.fit(range(2), batches(4, 4))
    assert brain.evaluate(batches(5, 2, seed=4)) == loss_with(brain, weights(brain))


@pytest.mark.parametrize("choice", CHOICES)
def test_everything_is_left_as_it_was(choice: str, tmp_path: Path) -> None:
    brain = trained(tmp_path)
    brain.modules.model.eval()
    brain.modules.model.weight.grad = torch.ones_like(brain.modules.model.weight)
    state = brain.optimizer.state_dict()

    def found() -> dict[str, Any]:
        return {
            "weights": [w.tolist() for w in weights(brain)],
            "modes": [module.training for module in brain.modules.modules()],
            "counters": brain.run_state.state_dict(),
            "views": (brain.step, brain.optimizer_step, brain.avg_train_loss, brain.nonfinite_count),
            "torch": torch.get_rng_state().tolist(),
            "python": random.getstate(),
            "numpy": np.random.get_state()[1].tolist(),  # type: ignore[index]
            "grad": brain.modules.model.weight.grad.tolist(),
            "optimizer": repr(brain.optimizer.state_dict()) == repr(state),
            "files": sorted(str(path) for path in tmp_path.rglob("*")),
        }

    before = found()
    brain.evaluate(batches(5, 2, seed=4), **CHOICES[choice][0])
    assert found() == before


def test_everything_is_left_as_it_was_also_after_an_error(tmp_path: Path) -> None:
    brain = trained(tmp_path)
    before, rng = weights(brain), torch.get_rng_state()

    def on_stage_end(stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        raise RuntimeError("no disk for the report")

    brain.on_stage_end = on_stage_end
    with pytest.raises(RuntimeError, match="no disk"):
        brain.evaluate(batches(5), checkpoint="best")
    assert same(weights(brain), before)
    assert torch.equal(torch.get_rng_state(), rng)
    assert torch.is_grad_enabled()


def test_training_after_an_evaluation_ends_like_training_without(tmp_path: Path) -> None:
    looked, did_not = small(Recipe, checkpointer=bl.Checkpointer(tmp_path / "a")), None
    did_not = small(Recipe, checkpointer=bl.Checkpointer(tmp_path / "b"))
    looked.fit(range(3), batches(4, 4), batches(3))
    looked.evaluate(batches(5), max_key="accuracy")
    looked.fit(range(2), batches(4, 4), batches(3))
    did_not.fit(range(3), batches(4, 4), batches(3))
    did_not.fit(range(2), batches(4, 4), batches(3))
    assert same(weights(looked), weights(did_not))


def test_hooks_see_the_evaluated_weights(tmp_path: Path) -> None:
    """Reports and predictions are made in the hooks, with the weights that are evaluated."""

    class Reporting(Recipe):
        def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
            if stage == TEST:
                self.seen = weights(self)

        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
            super().on_stage_end(stage, stage_loss, epoch)
            if stage == TEST:
                self.report = (stage_loss, self.modules.training, torch.is_grad_enabled())
                assert same(self.seen, weights(self))

    brain = trained(tmp_path, Reporting)
    loss = brain.evaluate(batches(5), checkpoint="best")
    assert same(brain.seen, brain.kept[1])
    assert brain.report == (loss, False, False)


def test_an_unknown_choice_is_an_error(tmp_path: Path) -> None:
    brain = trained(tmp_path)
    with pytest.raises(ValueError, match="bst") as caught:
        brain.evaluate(batches(5), checkpoint="bst")
    assert "best" in str(caught.value)
    assert "current" in str(caught.value)
    with pytest.raises(ValueError, match="max_key") as caught:
        brain.evaluate(batches(5), max_key="accuracy", min_key="error")
    assert "min_key" in str(caught.value)


def test_a_key_that_no_checkpoint_has_is_an_error(tmp_path: Path) -> None:
    brain = trained(tmp_path)
    with pytest.raises(ValueError, match="acuracy") as caught:
        brain.evaluate(batches(5), max_key="acuracy")
    assert "accuracy" in str(caught.value), "what there is"


@pytest.mark.parametrize("checkpoint", ["best", "last"])
def test_a_choice_among_none_is_an_error(checkpoint: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="checkpoint"):
        small().evaluate(batches(5), checkpoint=checkpoint)
    with pytest.raises(ValueError, match="checkpoint"):
        small(checkpointer=bl.Checkpointer(tmp_path)).evaluate(batches(5), checkpoint=checkpoint)


def test_evaluate_takes_the_sets_of_fit_and_leaves_the_kwargs_alone() -> None:
    brain, kwargs = small(), {"batch_size": 4}
    one = brain.evaluate(Rows(10), test_loader_kwargs=kwargs)
    assert one == brain.evaluate(Rows(10), test_loader_kwargs=kwargs) == brain.evaluate(batches(4, 4, 2))
    assert kwargs == {"batch_size": 4}
    brain.evaluate(Rows(10))
    brain.evaluate(Rows(10), test_loader_kwargs={"batch_size": 3})


def test_evaluate_before_fit_does_not_disturb_it(tmp_path: Path) -> None:
    looked, did_not = small(checkpointer=bl.Checkpointer(tmp_path)), small()
    looked.evaluate(batches(5))
    looked.fit(range(2), batches(4, 4))
    did_not.fit(range(2), batches(4, 4))
    assert same(weights(looked), weights(did_not))


def test_on_evaluate_start_may_load_what_it_likes(tmp_path: Path) -> None:
    """The idiom of recipes that average checkpoints; what it loaded is evaluated, and put back afterwards."""

    class Averaging(Recipe):
        def on_evaluate_start(self, max_key: str | None = None, min_key: str | None = None) -> None:
            super().on_evaluate_start(max_key, min_key)
            with torch.no_grad():
                self.modules.model.weight.zero_()
                self.modules.model.bias.zero_()

    brain = trained(tmp_path, Averaging)
    before = weights(brain)
    loss = brain.evaluate(batches(5, 2, seed=4), max_key="accuracy")
    assert loss == loss_with(brain, [torch.zeros_like(w) for w in before])
    assert same(weights(brain), before)
