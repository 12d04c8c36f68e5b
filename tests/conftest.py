"""What every test gets: one thread, its own seed, and a look round afterwards whether it left something behind."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.leftovers import find_leftovers

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    """Before the first test module is imported, so that nothing has started a pool of threads yet."""
    torch.set_num_threads(1)  # sums are then the same everywhere, and two test runs side by side do not fight


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> Iterator[None]:
    """Set up first and torn down last: other fixtures (monkeypatch, tmp_path) have put things back by then."""
    found: list[str] = []
    with find_leftovers(found):
        yield
    if found:
        pytest.fail("This test left behind: " + "; ".join(found), pytrace=False)


@pytest.fixture(autouse=True)
def _own_seed(request: pytest.FixtureRequest) -> None:
    """The seed of a test is a function of its name: alone, in a group or in another order it draws the same numbers."""
    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@pytest.fixture(scope="session")
def data_dir() -> Callable[[str], Path]:
    """`data_dir("mnist")` is the folder of a real data set; where it is absent the test is skipped and says why.

    The sets lie in the folder that the variable BRAINLIB_DATA names, else in ../shared/data beside the clone.
    """
    home = Path(os.environ.get("BRAINLIB_DATA") or ROOT.parent / "shared" / "data")

    def find(name: str) -> Path:
        if not (home / name).is_dir():
            pytest.skip(
                f"needs the data set {name!r}, which is not in {home}; if you have it, let the variable BRAINLIB_DATA "
                "name the folder that holds it"
            )
        return home / name

    return find
