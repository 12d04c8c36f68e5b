"""The names of speechbrain that are brainlib's, and what is said of the others."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from pathlib import Path

import pytest
import torch

import brainlib as bl
import brainlib.compat.speechbrain as sb
from brainlib.compat.speechbrain.nnet.schedulers import NewBobScheduler
from brainlib.config.aliases import SPEECHBRAIN, aliases_of

HAS_SPEECHBRAIN = importlib.util.find_spec("speechbrain") is not None
PACKAGE = "brainlib.compat.speechbrain"


@pytest.fixture(autouse=True)
def variable_of_speechbrain(monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes one into the environment when it is imported."""
    monkeypatch.setenv("SB_LOG_LEVEL", "INFO")


def test_the_aliases_are_what_the_package_has() -> None:
    modules = {each.name for each in pkgutil.walk_packages(sb.__path__, f"{PACKAGE}.")} | {PACKAGE}
    has: dict[str, set[str]] = {}
    for name in modules:
        exported = {each for each in importlib.import_module(name).__all__ if f"{name}.{each}" not in modules}
        if exported:
            has[name.removeprefix("brainlib.compat.")] = exported
    assert has == {module: set(names) for module, names in SPEECHBRAIN.items()}


def test_they_are_the_same_objects() -> None:
    assert sb.Brain is bl.Brain and sb.core.Stage is sb.Stage is bl.Stage
    assert sb.utils.checkpoints.Checkpointer is bl.Checkpointer
    assert sb.utils.distributed.run_on_main is bl.run_on_main
    assert sb.dataio.dataset.add_dynamic_item is bl.add_dynamic_item
    assert sb.utils.seed_everything is bl.seed_everything
    own = [
        (module, name)
        for module, names in SPEECHBRAIN.items()
        for name in names
        if getattr(importlib.import_module(f"brainlib.compat.{module}"), name).__module__.startswith(PACKAGE)
    ]
    assert own == [("speechbrain.nnet.schedulers", "NewBobScheduler")]


def test_what_belongs_to_their_trainer_is_refused_by_name() -> None:
    with pytest.raises(
        AttributeError, match=r"no speechbrain.dataio.dataloader.LoopedLoader. docs/porting.md"
    ):
        _ = sb.dataio.dataloader.LoopedLoader
    with pytest.raises(ImportError, match="cannot import name 'main_process_only'"):
        exec(f"from {PACKAGE}.utils.distributed import main_process_only")


@pytest.mark.skipif(HAS_SPEECHBRAIN, reason="speechbrain is installed")
def test_a_layer_without_speechbrain_says_what_is_missing() -> None:
    with pytest.raises(
        AttributeError, match=r"brainlib has no speechbrain.nnet.losses, and there is no installed"
    ):
        _ = sb.nnet.losses.ctc_loss
    with pytest.raises(
        ImportError, match="there is no module 'speechbrain', in which speechbrain.nnet.linear"
    ):
        bl.load_hyperpyyaml("a: !new:speechbrain.nnet.linear.Linear {n_neurons: 3}", aliases="speechbrain")


@pytest.mark.skipif(not HAS_SPEECHBRAIN, reason="speechbrain is not installed")
def test_a_layer_is_that_of_speechbrain() -> None:
    import speechbrain

    assert sb.nnet.losses is speechbrain.nnet.losses
    assert sb.dataio.dataio.length_to_mask is speechbrain.dataio.dataio.length_to_mask
    assert sb.utils.data_utils is speechbrain.utils.data_utils
    with pytest.raises(
        AttributeError, match="neither brainlib nor speechbrain has speechbrain.nnet.linearity"
    ):
        _ = sb.nnet.linearity


def test_tags_of_the_trainer_build_ours() -> None:
    text = """
        __set_seed: !apply:speechbrain.utils.seed_everything [1]
        counter: !new:speechbrain.utils.epoch_loop.EpochCounter {limit: 2}
        lr: !new:speechbrain.nnet.schedulers.NewBobScheduler {initial_value: 0.1, patient: 1}
        stats: !name:speechbrain.utils.metric_stats.ErrorRateStats {split_tokens: True}
        sampler: !new:speechbrain.dataio.sampler.ReproducibleRandomSampler [[1, 2, 3]]
        brain: !name:speechbrain.core.Brain
    """
    loaded = bl.load_hyperpyyaml(text, aliases="speechbrain")
    assert type(loaded["counter"]) is bl.EpochCounter and isinstance(loaded["lr"], bl.NewBob)
    assert type(loaded["stats"]()) is bl.ErrorRateStats and loaded["brain"] is bl.Brain
    assert type(loaded["sampler"]) is bl.ReproducibleRandomSampler
    with pytest.raises(ValueError, match="aliases is 'espnet'; there are 'speechbrain'"):
        bl.load_hyperpyyaml("a: 1", aliases="espnet")
    assert not any("linear" in name for name in aliases_of("speechbrain") or ())


def test_newbob_anneals_as_theirs_does() -> None:
    losses = (10.0, 9.0, 8.99, 8.98, 8.0, 7.999, 7.998)
    ours = NewBobScheduler(1.0, annealing_factor=0.8, patient=1)
    rates = [ours(loss)[1] for loss in losses]
    assert rates == [1.0, 1.0, 1.0, 0.8, 0.8, 0.8, 0.8 * 0.8]
    if HAS_SPEECHBRAIN:
        from speechbrain.nnet.schedulers import NewBobScheduler as Theirs

        theirs = Theirs(1.0, annealing_factor=0.8, patient=1)
        assert rates == [theirs(loss)[1] for loss in losses]


@pytest.mark.skipif(not HAS_SPEECHBRAIN, reason="speechbrain is not installed")
def test_a_layer_that_speechbrain_saves_by_hooks_comes_back(tmp_path: Path) -> None:
    """Its statistics are no part of its state_dict, so they would be lost."""
    from speechbrain.processing.features import InputNormalization

    def checkpointer(layer: torch.nn.Module) -> bl.Checkpointer:
        return bl.Checkpointer(tmp_path, {"normalizer": layer})

    layer, other = InputNormalization(), InputNormalization()
    layer(torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(1)), torch.ones(2))
    assert not layer.state_dict()
    checkpointer(layer).save_checkpoint().wait()
    checkpointer(other).recover_if_possible()
    assert other.count == layer.count > 0 and torch.equal(other.glob_mean, layer.glob_mean)


@pytest.mark.skipif(not HAS_SPEECHBRAIN, reason="speechbrain is not installed")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_our_loader_keeps_its_place_where_speechbrain_has_patched_that_of_torch(num_workers: int) -> None:
    from speechbrain.dataio.dataloader import SaveableDataLoader as Theirs
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    assert hasattr(_BaseDataLoaderIter, "__old_init__")

    def loader() -> bl.SaveableDataLoader:
        return bl.SaveableDataLoader(
            range(12),
            batch_size=2,
            shuffle=True,
            seed=1,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
        )

    whole = loader()
    every = [batch.tolist() for _ in range(2) for batch in whole]
    cut = loader()
    first = [batch.tolist() for batch in cut]
    batches = iter(cut)
    first += [next(batches).tolist() for _ in range(2)]
    again = loader()
    again.load_state_dict(cut.state_dict())
    assert first + [batch.tolist() for batch in again] == every
    theirs = Theirs(range(4), batch_size=2)  # and theirs still works
    assert [batch.tolist() for batch in theirs] == [[0, 1], [2, 3]]
