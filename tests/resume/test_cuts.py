"""A part of `make chaos` that is quick enough for every day, and whether the sweep would see what it is there for."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.resume.chaos import TWO_THREADS
from tests.resume.plan import CELLS, PLACES, STYLES, Cell, Cut
from tests.resume.runs import (
    Ended,
    Start,
    cut_and_resumed,
    cuts_of,
    differences,
    fresh,
    lanes,
    references,
    run_cut,
    run_to_its_end,
)

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="needs fork: a new interpreter for each run takes long"
)

SEED = 11


@pytest.fixture(scope="module")
def in_lanes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Iterator[Any]]]:
    with lanes(2, tmp_path_factory.mktemp("runs")) as each_in_a_lane:
        yield each_in_a_lane


def place_of(cell: Cell) -> str:
    """Every place in turn over the cells, shuffled; not every style has an inner fit."""
    rng = random.Random(SEED)
    places = [place for place in PLACES if place != "inner fit"]
    turns = [place for _ in range(len(CELLS) // len(places) + 1) for place in rng.sample(places, len(places))]
    return turns[CELLS.index(cell)]


@pytest.mark.timeout(300)  # ten seconds on a machine with nothing else to do
@pytest.mark.parametrize("style", STYLES)
def test_a_cut_in_each_cell(style: str, in_lanes: Callable[..., Iterator[Any]]) -> None:
    """Uncut it ends like the run that does not save; cut and started again it ends like the uncut one."""

    def work(start: Start, folder: Path, cell: Cell) -> tuple[Cut, list[str]]:
        reference, wrong = references(start, cell, folder.with_name("uncut"))
        cuts = [cut for cut in cuts_of(reference) if cut.place == place_of(cell)]
        cut = random.Random(f"{SEED}-{cell}").choice(cuts)
        return cut, wrong + cut_and_resumed(start, cell, folder, cut, reference)

    cells = [cell for cell in CELLS if cell.style == style]
    assert len(cells) == 8
    assert [
        f"{cell}, cut at {cut}: {wrong}"
        for cell, (cut, wrong) in zip(cells, in_lanes(work, cells), strict=True)
        if wrong
    ] == []


@pytest.mark.timeout(300)
def test_with_interpreters_of_their_own(in_lanes: Callable[..., Iterator[Any]]) -> None:
    """As a user starts them, with two torch threads, and going on with another number of workers."""
    todo = [
        (Cell("Plain", 2, "fp32", armed=True), Cut("batch begins", 6), "0"),
        (Cell("Gan", 0, "bf16", armed=False), Cut("save", 4), "2"),
    ]

    def work(start: Start, folder: Path, todo: tuple[Cell, Cut, str]) -> list[str]:
        cell, cut, other = todo
        reference, wrong = references(start, cell, folder.with_name("uncut"), *TWO_THREADS)
        going_on = ("--num_workers", other)
        return wrong + cut_and_resumed(fresh, cell, folder, cut, reference, *TWO_THREADS, going_on=going_on)

    assert list(in_lanes(work, todo)) == [[], []]


def test_the_number_of_workers_and_threads_changes_no_input(in_lanes: Callable[..., Iterator[Any]]) -> None:
    """What an item is does not depend on who reads it: a worker, which has one thread, or the process that trains."""

    def work(start: Start, folder: Path, num_workers: int) -> Ended:
        cell = Cell("Plain", num_workers, "fp32", armed=False)
        return run_to_its_end(start, cell, folder, "--without_checkpoints", *TWO_THREADS)

    none, two = in_lanes(work, (0, 2))
    assert differences(none, two) == []


# ------------------------------------------------------------------------------------------- would anything be seen?


def test_generators_that_are_not_restored_are_seen(in_lanes: Callable[..., Iterator[Any]]) -> None:
    """Everything else is right, and so is the order of the data: what differs is dropout, and with it the weights."""

    def work(start: Start, folder: Path, cell: Cell) -> list[str]:
        reference, _ = references(start, cell, folder.with_name("uncut"))
        run_cut(start, cell, folder, Cut("batch begins", 6), "--way", "here")
        return differences(run_to_its_end(start, cell, folder, "--forget_generators"), reference)

    (wrong,) = in_lanes(work, [Cell("Plain", 2, "fp32", armed=True)])
    told = "\n".join(wrong)
    for part in ("trained: ", "averaged: ", "generators: ", "('batch', 0, 1, 3)", "('VALID', 1, 0, 3)"):
        assert part in told
    assert not any(line.startswith(("optimizer_step", "nonfinite_windows")) for line in wrong)
    assert "('batch', 0, 1, 2)" not in told, "that was before the cut"


def test_each_difference_is_named() -> None:
    line = {"ids": [1], "input": "ab", "loss": "0x1p0", "rates": {"optimizer": ["0x1p-3"]}}
    at = ("batch", 0, 0, 1)
    uncut = Ended({at: [line]}, {"trained": "abc", "best": ["0x1p0"]})
    again = Ended({at: [line, line]}, {"trained": "abc", "best": ["0x1p0"]})
    assert differences(again, uncut) == [], "done twice, each time the same"

    for key, other in (
        ("ids", [2]),
        ("input", "cd"),
        ("loss", "0x1p1"),
        ("rates", {"optimizer": ["0x1p-4"]}),
    ):
        changed = copy.deepcopy(again)
        changed.trace[at][0][key] = other
        assert str(at) in differences(changed, uncut)[0]
    for end in ({"trained": "abd", "best": ["0x1p0"]}, {"trained": "abc", "best": ["0x1p1"]}, {}):
        assert differences(Ended({at: [line]}, end), uncut)
    assert differences(Ended({}, uncut.end), uncut) == [f"{at} is missing"]
    more = Ended({at: [line], ("batch", 0, 0, 2): [line]}, uncut.end)
    assert "should not have been" in differences(more, uncut)[0]
