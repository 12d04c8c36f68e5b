"""The look round after each test finds what it is there to find, and puts it back."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.leftovers import find_leftovers


def leftovers(code: Callable[[], object]) -> list[str]:
    found: list[str] = []
    with find_leftovers(found, grace=0.05):
        code()
    return found


def test_nothing_is_found_where_nothing_is_left(tmp_path: Path) -> None:
    def tidy() -> None:
        thread = threading.Thread(target=(tmp_path / "file").touch)
        thread.start()
        thread.join()
        with torch.no_grad():
            torch.rand(2)

    assert leftovers(tidy) == []


def test_a_running_thread_is_named_and_a_daemon_is_not() -> None:
    stop = threading.Event()
    threads = [
        threading.Thread(target=stop.wait, name="writer"),
        threading.Thread(target=stop.wait, name="helper", daemon=True),
    ]
    try:
        assert leftovers(lambda: [thread.start() for thread in threads]) == ["the thread 'writer'"]
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("before", [None, "1"])
def test_a_variable_is_named_and_put_back(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if before is None:
        monkeypatch.delenv("BRAINLIB_SOME_KEY", raising=False)
    else:
        monkeypatch.setenv("BRAINLIB_SOME_KEY", before)
    found = leftovers(lambda: os.environ.update(BRAINLIB_SOME_KEY="2"))
    assert found == [f"the environment variable BRAINLIB_SOME_KEY (was {before!r}, is '2')"]
    assert os.environ.get("BRAINLIB_SOME_KEY") == before


def test_another_folder_is_named_and_left(tmp_path: Path) -> None:
    folder = os.getcwd()
    (found,) = leftovers(lambda: os.chdir(tmp_path))
    assert found.startswith("the current folder (was ")
    assert os.getcwd() == folder


def test_a_handler_of_the_root_logger_is_named_and_removed() -> None:
    handler = logging.NullHandler()
    (found,) = leftovers(lambda: logging.getLogger().addHandler(handler))
    assert found.startswith("a handler of the root logger, <NullHandler")
    assert handler not in logging.getLogger().handlers


def test_modes_of_torch_are_named_and_put_back() -> None:
    def careless() -> None:
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)

    assert leftovers(careless) == ["gradients switched off", "the default dtype torch.float64"]
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32


def test_a_data_set_that_is_absent_skips_by_name(data_dir: Callable[[str], Path]) -> None:
    with pytest.raises(pytest.skip.Exception, match="needs the data set 'no_such_set', which is not in"):
        data_dir("no_such_set")
