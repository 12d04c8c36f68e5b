"""All seven styles train, validate, evaluate and learn; with the right values."""

from __future__ import annotations

import copy
import math

import pytest
import torch

import brainlib as bl
from tests.contracts.brains import (
    BATCH_SIZE,
    SEVEN,
    SHUFFLED,
    VALID,
    Ema,
    Gan,
    InnerFit,
    Items,
    OwnAccumulation,
    Plain,
    TwoOptimizers,
    digest,
    ending,
    make,
    ready_batches,
    train,
    two_fits,
    weights_of,
)

seven = pytest.mark.parametrize("cls", SEVEN, ids=lambda cls: cls.__name__)


@seven
def test_it_learns(cls: type[Plain]) -> None:
    brain = make(cls)
    before = brain.evaluate(VALID, checkpoint="current")
    train(brain, num_epochs=6)
    after = brain.evaluate(VALID, checkpoint="current")
    assert after < 0.9 * before
    assert [epoch for epoch, _, _ in brain.trace] == list(range(6))
    assert all(math.isfinite(loss) for _, *losses in brain.trace for loss in losses)


@seven
def test_validation_and_evaluation_agree(cls: type[Plain]) -> None:
    brain = train(make(cls), num_epochs=1)
    loss = brain.evaluate(VALID)
    assert type(loss) is float
    assert loss == pytest.approx(brain.trace[-1][2], abs=1e-12)


@seven
def test_the_validation_loss_counts_each_item_once(cls: type[Plain]) -> None:
    brain = train(make(cls), num_epochs=1)
    brain.modules.eval()
    whole = {key: torch.cat([batch[key] for batch in VALID]) for key in VALID[0]}
    with torch.no_grad():
        right = float(
            brain.compute_objectives(brain.compute_forward(whole, bl.Stage.TEST), whole, bl.Stage.TEST)
        )
    assert brain.evaluate(VALID) == pytest.approx(right, rel=1e-5)


@seven
@pytest.mark.parametrize("factor", [1, 3])
def test_optimizer_step_counts_windows(cls: type[Plain], factor: int) -> None:
    brain = two_fits(make(cls, grad_accumulation_factor=factor))
    num_batches = math.ceil(len(Items()) / BATCH_SIZE)
    if cls in (Gan, InnerFit):
        windows = num_batches  # they step at every batch, whatever the factor
    elif cls is OwnAccumulation:
        windows = num_batches // factor  # its own arithmetic drops the trailing window
    else:
        windows = math.ceil(num_batches / factor)
    assert brain.optimizer_step == 3 * windows
    assert type(brain.optimizer_step) is int


@seven
def test_two_equal_runs_have_equal_bits(cls: type[Plain]) -> None:
    one, two = two_fits(make(cls)), two_fits(make(cls))
    assert ending(one) == ending(two)


@seven
def test_every_part_is_trained(cls: type[Plain]) -> None:
    brain = make(cls)
    before = weights_of(brain)
    train(brain)
    unmoved = [name for name, value in weights_of(brain).items() if torch.equal(value, before[name])]
    assert unmoved == []


@seven
@pytest.mark.parametrize("factor", [1, 3])
def test_a_nan_batch_leaves_no_trace_in_the_weights(cls: type[Plain], factor: int) -> None:
    brain = make(cls, grad_accumulation_factor=factor)
    batches = copy.deepcopy(ready_batches())
    batches[1]["x"][0, 0] = float("nan")
    brain.fit(range(1), batches, VALID)
    assert all(torch.isfinite(value).all() for value in brain.modules.state_dict().values())
    assert all(math.isfinite(loss) for loss in brain.trace[0][1:])
    assert brain.run_state.nonfinite_windows >= 1


@seven
def test_a_skipped_window_advances_nothing(cls: type[Plain]) -> None:
    """Only NaN batches: no weight, no moment, no count moves."""
    brain = make(cls, nonfinite_patience=100)
    before = weights_of(brain)
    batches = copy.deepcopy(ready_batches((4, 4)))
    for batch in batches:
        batch["x"][:] = float("nan")
        batch["y"][:] = float("nan")
    if cls is InnerFit:
        brain.INNER_DATA = batches  # type: ignore[misc]
    brain.fit(range(1), batches)
    for name, value in weights_of(brain).items():
        if cls is Ema and name.startswith("teacher"):
            continue  # moved by the user's own line, towards a model that did not move
        assert torch.equal(value, before[name]), name
    assert brain.optimizer_step == 0


@seven
def test_mid_epoch_validation_changes_nothing(cls: type[Plain]) -> None:
    plain, watched = train(make(cls)), train(make(cls, valid_interval_steps=2))
    assert digest(plain) == digest(watched)


@seven
def test_the_step_limit_is_exact(cls: type[Plain]) -> None:
    items = Items()
    brain = make(cls, optimizer_step_limit=7)
    brain.fit(range(10), items, VALID, train_loader_kwargs=SHUFFLED)
    assert brain.optimizer_step == 7
    assert len(items.reads) == len(items) + 2 * BATCH_SIZE, (
        "an epoch, then two batches; none is read for nothing"
    )
    assert len(brain.trace) == 2, "the cut epoch is validated"


def test_the_frozen_encoder_joins_after_its_updates() -> None:
    brain = make(TwoOptimizers)
    before = weights_of(brain)
    brain.fit(range(1), ready_batches((4, 4, 4, 4)))
    assert torch.equal(brain.modules.encoder[0].weight, before["encoder.0.weight"])
    assert not torch.equal(brain.modules.decoder.weight, before["decoder.weight"])
    brain.fit(range(1), ready_batches((4,)))
    assert not torch.equal(brain.modules.encoder[0].weight, before["encoder.0.weight"])


def test_a_fit_batch_set_on_the_instance_goes_through_the_same_loop() -> None:
    """Overridden on the class or on the object: same numbers, same counters."""
    on_class = two_fits(make(Gan))

    on_object = make(type("Bare", (Gan,), {"fit_batch": bl.Brain.fit_batch}))  # type: ignore[arg-type]
    on_object.fit_batch = Gan.fit_batch.__get__(on_object)  # type: ignore[method-assign]
    two_fits(on_object)
    assert ending(on_object) == ending(on_class)
