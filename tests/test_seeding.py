"""Seeds and generator states."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import brainlib as bl
from brainlib import global_numpy, seeding
from brainlib.global_numpy import numpy_state, set_numpy_state
from brainlib.seeding import (
    derive,
    draw_seed,
    generator_states,
    last_seed,
    note_generators,
    preserved_generators,
    seed_generators,
    set_generator_states,
)


@pytest.fixture(autouse=True)
def _no_seed_remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(seeding, "_last_seed", None)
    yield


def draws() -> list[float]:
    return [
        *torch.rand(3).tolist(), torch.randn(1).item(), random.random(), random.gauss(0, 1),
        float(np.random.rand()), float(np.random.randn()),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63 - 1, np.int64(5), np.uint8(200)])
def test_a_seed_sets_all_three_and_is_remembered(seed: Any) -> None:
    assert bl.seed_everything(seed) == int(seed)
    first = draws()
    draws()
    bl.seed_everything(seed)
    assert draws() == first
    assert last_seed() == int(seed)
    assert type(last_seed()) is int


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, "1", None, True, torch.tensor(1)], ids=repr)
def test_what_is_no_seed_is_refused_and_moves_nothing(seed: Any) -> None:
    before = str(generator_states())
    with pytest.raises(ValueError, match="it must be an integer with 0 <= seed < 2..63"):
        bl.seed_everything(seed)
    assert last_seed() is None
    assert str(generator_states()) == before


def test_seeds_that_fold_alike_for_numpy_differ_for_python() -> None:
    """Of torch's CPU generator the low 32 bits of a seed count, too."""
    bl.seed_everything(1)
    first = random.random()
    bl.seed_everything(1 + 2**32)
    assert random.random() != first


def test_the_inner_function_is_not_remembered() -> None:
    seed_generators(7)
    first = draws()
    assert last_seed() is None
    seed_generators(7)
    assert draws() == first


def test_a_drawn_seed_moves_no_generator() -> None:
    before = str(generator_states())
    seeds = {draw_seed() for _ in range(100)}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert str(generator_states()) == before


def test_derived_seeds_are_those_of_any_process_and_any_version() -> None:
    """Runs that were cut go on with them: these numbers must never change."""
    assert derive(0) == 3581690635855307741
    assert derive(3, 7, "order") == 9047884210823305527


def test_derived_seeds_do_not_collide() -> None:
    seeds = {
        derive(seed, epoch, word) for seed in range(50) for epoch in range(100) for word in ("order", "items")
    }
    assert len(seeds) == 10_000
    assert derive("1") != derive(1)
    assert derive(1, 2, 3) != derive(1, 23)
    assert derive(12) != derive(1, 2)


@pytest.mark.parametrize("half_of_a_pair", [False, True])
def test_states_go_through_a_file_of_the_safe_loader(half_of_a_pair: bool) -> None:
    """Normal numbers come in pairs: the second one waits in the generator, and is part of its state."""
    if half_of_a_pair:
        random.gauss(0, 1), np.random.randn()
    file = io.BytesIO()
    torch.save(generator_states(), file)
    first = draws()
    draws()
    file.seek(0)
    set_generator_states(torch.load(file, weights_only=True))
    assert draws() == first


@pytest.mark.parametrize("error", [False, True])
def test_what_is_drawn_inside_is_as_if_it_had_not_been(error: bool) -> None:
    before = str(generator_states())
    try:
        with preserved_generators():
            draws()
            bl.seed_everything(3)
            if error:
                raise KeyError
    except KeyError:
        pass
    assert str(generator_states()) == before


@pytest.mark.parametrize("halves", [0, 1, 2])
def test_noted_generators_come_back_whatever_was_drawn(halves: int) -> None:
    """Also the second of a pair of normal numbers, where it waits; and noting moves nothing."""
    for _ in range(halves):
        random.gauss(0, 1), np.random.randn()
    before = str(generator_states())
    put_back = note_generators()
    assert str(generator_states()) == before
    expected = draws()
    for disturb in (draws, lambda: seed_generators(5), lambda: np.random.randn(3)):
        disturb()
        put_back()
        assert str(generator_states()) == before
    assert draws() == expected


def test_a_bit_generator_of_another_kind_is_noted_too() -> None:
    kept = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        with preserved_generators():
            first = np.random.rand(3), np.random.randn()
        assert (np.random.rand(3) == first[0]).all()
        assert np.random.randn() == first[1]
    finally:
        np.random.set_bit_generator(kept)


def test_numpy_is_noted_without_knowing_where_its_words_are(monkeypatch: pytest.MonkeyPatch) -> None:
    np.random.randn()
    known = numpy_state()
    monkeypatch.setattr(global_numpy, "_is_as_expected", lambda: False)
    expected, state = str(generator_states()["numpy"]), numpy_state()
    for each in (state, known):
        np.random.randn()
        set_numpy_state(each)
        assert str(generator_states()["numpy"]) == expected


@pytest.mark.parametrize("seed", [-1, 1.5, "3", True, 2**63])
def test_an_hparams_key_that_is_no_seed_is_refused(seed: Any) -> None:
    with pytest.raises(
        ValueError, match="the hparams key 'seed' is .*; it must be an integer with 0 <= seed"
    ):
        bl.Brain(hparams={"seed": seed})


def test_whose_seed_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """The key, else that of `seed_everything`, else a drawn one that is told."""

    def told(hparams: dict[str, Any]) -> str:
        caplog.clear()
        brain = bl.Brain(hparams=hparams, run_opts={"noprogressbar": True})
        brain.fit_batch = lambda batch: 1.0  # type: ignore[method-assign, assignment]
        with caplog.at_level("INFO", logger="brainlib"):
            brain.fit(range(1), [torch.ones(1)])
        return caplog.text.split("; seed ")[1].split(";")[0].strip()

    drawn = told({})
    assert 0 <= int(drawn) < 2**63
    bl.seed_everything(11)
    assert told({}) == "11"
    assert told({"seed": 12}) == "12"
