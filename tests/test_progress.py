"""The bar: on a terminal, in a file, in a notebook, and nowhere; and what it costs."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import re
import select
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest

from brainlib.common.logs import logger
from brainlib.common.notebook import in_notebook
from brainlib.progress import MAX_STRIDE, Bar, Progress, _tqdm_class
from brainlib.progress_options import ProgressOptions
from tests.screen import on_the_page


class Clock:
    """A clock that the test sets; it counts how often it is looked at."""

    def __init__(self) -> None:
        self.now, self.looks = 1000.0, 0

    def __call__(self) -> float:
        self.looks += 1
        return self.now


class Terminal:
    """A real pseudo-terminal, 24 lines of 80 columns."""

    def __init__(self) -> None:
        self.master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.stream: TextIO = open(slave, "w", encoding="utf-8")
        self._read, self._asked = b"", 0

    def text(self) -> str:
        """All that was written so far. The terminal holds a few thousand bytes, so read it between many draws."""
        self._asked += 1
        self.stream.write("\0")  # a mark: the kernel hands on what is written a moment later
        self.stream.flush()
        while self._read.count(b"\0") < self._asked and select.select([self.master], [], [], 5)[0]:
            self._read += os.read(self.master, 65536)
        return self._read.replace(b"\0", b"").decode()

    def lines(self) -> list[str]:
        """What stands on the screen."""
        return on_the_page(self.text())

    def close(self) -> None:
        self.stream.close()
        os.close(self.master)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    screen = Terminal()
    yield screen
    screen.close()


def half() -> float:
    return 0.5


def unreadable() -> float:
    raise AssertionError("the loss was read")


# ----------------------------------------------------------------------------------------------------------- terminal


def test_a_terminal_shows_stage_count_and_running_loss(terminal: Terminal) -> None:
    clock = Clock()
    with Progress(stream=terminal.stream, clock=clock).bar("train", total=40) as bar:
        for batch in range(1, 41):
            clock.now += 0.04
            bar.advance(lambda batch=batch: 1 / batch)
            if batch == 20:
                (shown,) = terminal.lines()
                assert re.match(r"train: +\d+%\|.* \d+/40 \[.*batch/s, loss=0\.\d+\]$", shown)
    line, after = terminal.lines()
    assert re.match(r"train: 100%\|█+\| 40/40 \[.*batch/s, loss=0\.025\]$", line)
    assert after == ""  # the prompt comes on a line of its own


def test_it_is_drawn_on_a_time_budget(terminal: Terminal) -> None:
    clock, reads = Clock(), []
    with Progress(stream=terminal.stream, clock=clock).bar("train", total=100_000) as bar:
        for _ in range(100_000):
            clock.now += 1e-5
            bar.advance(lambda: reads.append(1) or 0.5)
    # One second at 0.1 s: the loss is read at each redraw and once at the end, the clock now and then.
    assert 8 <= len(reads) <= 11
    assert clock.looks < 2.2 * 100_000 / MAX_STRIDE


def test_the_budget_is_an_option(terminal: Terminal) -> None:
    clock, reads = Clock(), []
    options = ProgressOptions(progress_seconds=1.0)
    with Progress(options, stream=terminal.stream, clock=clock).bar("train", total=300) as bar:
        for _ in range(300):
            clock.now += 0.01
            bar.advance(lambda: reads.append(1) or 0.5)
    assert 3 <= len(reads) <= 4


def test_batches_that_become_slow_are_soon_seen(terminal: Terminal) -> None:
    clock, counts = Clock(), []
    with Progress(stream=terminal.stream, clock=clock).bar("train") as bar:
        for batch in range(3000):
            clock.now += 1e-5 if batch < 2000 else 1.0
            bar.advance(lambda batch=batch: counts.append(batch) or 0.5)
            terminal.text()
    late = [count for count in counts if count >= 2000]
    assert late[0] < 2000 + MAX_STRIDE
    assert late[1:] == [*range(late[0] + 1, 3000), 2999]  # and then at each of them


def test_on_a_slow_terminal_it_is_drawn_less_often() -> None:
    clock = Clock()

    class Slow(io.StringIO):
        draws = 0

        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            clock.now += 0.05
            self.draws += 1
            return super().write(text)

    stream = Slow()
    with Progress(stream=stream, clock=clock).bar("train", total=1000) as bar:
        began, drawn = clock.now, stream.draws
        for _ in range(1000):
            clock.now += 0.1
            bar.advance(half)
        drawing = (stream.draws - drawn) * 0.05
        assert drawing / (clock.now - began) < 0.02


def test_a_resumed_epoch_begins_where_it_was(terminal: Terminal) -> None:
    clock = Clock()
    with Progress(stream=terminal.stream, clock=clock).bar("train", total=10, initial=7) as bar:
        assert "7/10" in terminal.lines()[0]
        for _ in range(3):
            bar.advance(half)
    assert "10/10" in terminal.lines()[0]


def test_a_length_that_is_not_known(terminal: Terminal) -> None:
    with Progress(stream=terminal.stream).bar("train", total=None) as bar:
        for _ in range(3):
            bar.advance(half)
    assert re.match(r"train: 3batch \[.*, loss=0\.5\]$", terminal.lines()[0])


def test_a_stage_without_batches(terminal: Terminal) -> None:
    with Progress(stream=terminal.stream).bar("valid", total=0):
        pass
    assert "valid: 0" in terminal.lines()[0] and "loss" not in terminal.lines()[0]


def test_after_an_error_it_is_closed_and_nothing_is_read(terminal: Terminal) -> None:
    filters = list(logger.filters)
    with pytest.raises(ZeroDivisionError):
        with Progress(stream=terminal.stream, clock=Clock()).bar("train", total=10) as bar:
            bar.advance(unreadable)
            bar.advance(unreadable)
            raise ZeroDivisionError
    line, after = terminal.lines()
    assert "2/10" in line and after == ""  # the traceback begins on a line of its own
    assert logger.filters == filters


def test_an_error_in_the_loss_closes_it_too(terminal: Terminal) -> None:
    filters = list(logger.filters)
    with pytest.raises(AssertionError, match="the loss was read"):
        with Progress(stream=terminal.stream).bar("train", total=1) as bar:
            bar.advance(unreadable)
    assert terminal.lines()[-1] == "" and logger.filters == filters


def test_our_own_records_get_lines_of_their_own(terminal: Terminal) -> None:
    console = logging.StreamHandler(terminal.stream)
    logger.addHandler(console)
    try:
        with Progress(stream=terminal.stream).bar("train", total=2) as bar:
            bar.advance(half)
            logger.warning("saved step-00000001")
            bar.advance(half)
    finally:
        logger.removeHandler(console)
    said, line, _ = terminal.lines()
    assert said == "saved step-00000001" and line.startswith("train: 100%")


def test_a_bar_inside_a_bar_goes_away(terminal: Terminal) -> None:
    progress = Progress(stream=terminal.stream)
    with progress.bar("train", total=2) as outer:
        outer.advance(half)
        with progress.bar("valid", total=1) as inner:
            inner.advance(half)
        outer.advance(half)
    assert terminal.text().count("valid: 100%") == 0
    assert "train: 100%" in terminal.text()


def test_no_thread_is_started(terminal: Terminal) -> None:
    before = set(threading.enumerate())
    with Progress(stream=terminal.stream).bar("train", total=1) as bar:
        bar.advance(half)
        assert set(threading.enumerate()) == before


@pytest.mark.parametrize(("colored", "code"), [(True, "\x1b[34m"), (False, None)])
def test_colors(terminal: Terminal, colored: bool, code: str | None) -> None:
    options = ProgressOptions(tqdm_colored_bar=colored, tqdm_barcolor={"train": "blue"})
    with Progress(options, stream=terminal.stream).bar("train", total=1) as bar:
        bar.advance(half)
    assert (code in terminal.text()) if code else ("\x1b[3" not in terminal.text())


@pytest.mark.parametrize(("value", "colored"), [("1", False), ("", True), (None, True)])
def test_no_color(
    terminal: Terminal, value: str | None, colored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """https://no-color.org: set, and not empty."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    if value is not None:
        monkeypatch.setenv("NO_COLOR", value)
    with Progress(ProgressOptions(tqdm_colored_bar=True), stream=terminal.stream).bar(
        "train", total=1
    ) as bar:
        bar.advance(half)
    assert ("\x1b[32m" in terminal.text()) == colored


def test_a_terminal_that_cannot_draw_over_a_line_gets_whole_ones(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with Progress(stream=terminal.stream).bar("train", total=2) as bar:
        bar.advance(half)
        bar.advance(half)
    assert re.fullmatch(r"train: 100%\|#+\| 2/2 \[.*loss=0\.5\]\r\n", terminal.text())


def test_an_unknown_color() -> None:
    with pytest.raises(
        ValueError, match=r"tqdm_barcolor\['train'\] is 'gren'; give one of 'BLACK'.*Did you mean 'GREEN'\?"
    ):
        Progress(ProgressOptions(tqdm_barcolor={"train": "gren"}))
    Progress(ProgressOptions(tqdm_barcolor={"train": "#12ab3F"}))


# --------------------------------------------------------------------------------------------------------------- file


def test_a_file_gets_few_whole_lines_and_prints_keep_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.txt"
    with open(path, "w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        monkeypatch.setattr(sys, "stderr", file)
        for epoch in range(2):
            with Progress().bar("train", total=500) as bar:
                for batch in range(500):
                    if batch % 100 == 0:
                        print(f"epoch {epoch} batch {batch}", flush=True)
                    bar.advance(half)
        monkeypatch.undo()
    lines = path.read_text().splitlines()
    prints = [f"epoch {epoch} batch {batch}" for epoch in range(2) for batch in range(0, 500, 100)]
    bars = [line for line in lines if line not in prints]
    assert [line for line in lines if line in prints] == prints
    assert 2 <= len(bars) < 50
    assert all(re.match(r"train: +\d+%\|[#0-9 ]*\| \d+/500 \[.*loss=0\.5\]$", line) for line in bars)
    assert "\r" not in path.read_text()


def test_a_file_gets_a_line_every_ten_seconds() -> None:
    clock, stream = Clock(), io.StringIO()
    with Progress(stream=stream, clock=clock).bar("train", total=65) as bar:
        for _ in range(65):
            clock.now += 1.0
            bar.advance(half)
    counts = [int(count) for count in re.findall(r" (\d+)/65 ", stream.getvalue())]
    assert counts == [10, 20, 30, 40, 50, 60, 65]


def test_in_a_file_a_run_that_fails_leaves_where_it_was() -> None:
    stream = io.StringIO()
    with pytest.raises(ZeroDivisionError):
        with Progress(stream=stream, clock=Clock()).bar("train", total=None, initial=3) as bar:
            bar.advance(unreadable)
            raise ZeroDivisionError
    assert stream.getvalue() == "train: 4batch [00:00, ?batch/s]\n"


# ------------------------------------------------------------------------------------------------------ off, notebook


@pytest.mark.parametrize(("option", "enable"), [(True, None), (True, False), (False, False)])
def test_off_is_silent(terminal: Terminal, option: bool, enable: bool | None) -> None:
    progress = Progress(ProgressOptions(noprogressbar=option), stream=terminal.stream)
    with progress.bar("train", total=3, enable=enable) as bar:
        assert type(bar) is Bar
        for _ in range(3):
            bar.advance(unreadable)
    assert terminal.text() == ""


def test_a_call_may_ask_for_a_bar_that_the_options_forbid(terminal: Terminal) -> None:
    with Progress(ProgressOptions(noprogressbar=True), stream=terminal.stream).bar(
        "test", 1, enable=True
    ) as bar:
        bar.advance(half)
    assert "test: 100%" in terminal.text()


def test_without_standard_error_there_is_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with Progress().bar("train", total=1) as bar:
        bar.advance(unreadable)


def in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[arg-type]
    stream = io.StringIO()  # like the stream of a kernel, it is no terminal
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_a_notebook_without_widgets_gets_a_bar_that_is_drawn_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    stream = in_a_notebook(monkeypatch)
    with Progress().bar("test", total=2) as bar:
        bar.advance(half)
        bar.advance(half)
    assert stream.getvalue().count("\n") == 1 and "\rtest: 100%" in stream.getvalue()


@pytest.mark.parametrize("stage", ["train", "valid"])
def test_in_a_notebook_the_bar_of_an_epoch_goes_and_its_line_stays(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    stream = in_a_notebook(monkeypatch)
    with Progress().bar(stage, total=1) as bar:
        bar.advance(half)
    stream.write("epoch 1/3: train loss 0.5\n")
    assert on_the_page(stream.getvalue()) == ["epoch 1/3: train loss 0.5", ""]


def test_a_process_forked_from_a_kernel_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it displays does not arrive: `bl.spawn` in a notebook."""
    shell = SimpleNamespace(kernel=SimpleNamespace(session=SimpleNamespace(pid=os.getpid())))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[arg-type]
    assert in_notebook()
    shell.kernel.session.pid += 1
    assert not in_notebook()


def test_a_notebook_with_widgets_gets_the_widget(monkeypatch: pytest.MonkeyPatch) -> None:
    import tqdm.notebook

    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    made: Any = _tqdm_class(notebook=True)
    assert issubclass(made, tqdm.notebook.tqdm) and made.monitor_interval == 0
    assert tqdm.tqdm.monitor_interval == 10  # a user's own bars are left alone
