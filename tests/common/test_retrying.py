from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable

import pytest

from brainlib.common.retrying import Retry


def failing(*codes: int) -> Callable[[], str]:
    """Fails with each of these, then works."""
    left = list(codes)

    def attempt() -> str:
        if left:
            code = left.pop(0)
            raise OSError(code, os.strerror(code))
        return "done"

    return attempt


def test_pauses_grow_and_are_told(caplog: pytest.LogCaptureFixture) -> None:
    paused: list[float] = []
    with caplog.at_level(logging.WARNING, "brainlib"):
        assert Retry((0.5, 2.0), paused.append).run(failing(errno.EIO, errno.ENOSPC), "saving") == "done"
    assert paused == [0.5, 2.0]
    assert [record.getMessage() for record in caplog.records] == [
        "saving failed ([Errno 5] Input/output error); this was try 1 of 3, the next one is in 0.5 s",
        "saving failed ([Errno 28] No space left on device); this was try 2 of 3, the next one is in 2 s",
    ]


def test_the_last_error_comes_through() -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        Retry((0.0,), lambda seconds: None).run(failing(errno.EIO, errno.ENOSPC, errno.EIO), "saving")
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENAMETOOLONG, errno.EFBIG])
def test_what_waiting_does_not_change_is_not_tried_again(code: int) -> None:
    paused: list[float] = []
    with pytest.raises(OSError):
        Retry(sleep=paused.append).run(failing(code), "saving")
    assert paused == []


def test_what_works_costs_no_pause_and_no_line(caplog: pytest.LogCaptureFixture) -> None:
    paused: list[float] = []
    assert Retry(sleep=paused.append).run(failing(), "saving") == "done"
    assert (paused, caplog.records) == ([], [])


def test_other_errors_are_not_its_business() -> None:
    def attempt() -> None:
        raise KeyError("n")

    with pytest.raises(KeyError):
        Retry(sleep=lambda seconds: pytest.fail("paused")).run(attempt, "saving")
