"""Work beside: one at a time, its error where it is waited for, pauses until somebody waits."""

from __future__ import annotations

import os
import threading
import time

import pytest

from brainlib.common.background import Background, Pace


def test_it_runs_beside_and_wait_returns_when_it_is_done() -> None:
    go_on, seen = threading.Event(), []
    background = Background("test")
    background.start(lambda pace: (go_on.wait(30), seen.append(threading.current_thread().name)))
    assert background.busy and not seen
    go_on.set()
    background.wait()
    assert seen == ["test"] and not background.busy


def test_an_error_is_raised_once_and_the_next_work_runs() -> None:
    def fails(pace: object) -> None:
        raise ValueError("no")

    background = Background("test")
    background.start(fails)
    background.join()
    assert background.failed, "to join is not to take the error"
    with pytest.raises(ValueError, match="no"):
        background.wait()
    background.wait()
    assert not background.failed
    background.start(lambda pace: None)
    background.wait()


def test_the_work_does_not_wait_for_itself() -> None:
    background = Background("test")
    background.start(lambda pace: background.wait())
    background.wait()


def test_it_pauses_until_somebody_waits() -> None:
    asked = []

    def hurried() -> bool:
        asked.append(time.perf_counter())
        return len(asked) > 1

    pace = Pace(hurried)
    pace._since = time.perf_counter() + 60  # as if a pause had just been made
    pace()
    assert asked == [], "no pause without work before it"
    pace._since = 0.0
    pace()
    assert time.perf_counter() - asked[0] >= Pace.PAUSE
    pace._since = 0.0
    pace()
    assert len(asked) == 2, "somebody waits"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_wait_for_its_parents_work() -> None:
    go_on = threading.Event()
    background = Background("test")
    background.start(lambda pace: go_on.wait(30))
    child = os.fork()
    if child == 0:
        background.wait()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    go_on.set()
    background.wait()
    assert status == 0


@pytest.mark.parametrize("begun", [True, False])
def test_an_interrupt_while_the_thread_starts_leaves_it_done_or_given_up(begun: bool) -> None:
    """As Ctrl-C does in the middle of threading's own start."""
    done = []
    background = Background("test")
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if begun:
            start(thread)
            while not done:
                time.sleep(0.001)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            background.start(lambda pace: done.append(1))
    background.wait()
    assert done == [1] * begun
    background.start(lambda pace: done.append(2))
    background.wait()
    assert done[-1] == 2


def test_where_no_thread_can_be_had_the_work_is_done_at_once() -> None:
    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done = []
    background = Background("test")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuses)
        background.start(lambda pace: done.append(1))
    assert done == [1] and not background.busy
