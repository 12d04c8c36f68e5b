"""Progress: one bar per stage, drawn on a time budget, so that watching a run does not slow it down.

``Bar.advance`` is called after every batch and usually compares two integers. Only when a redraw is due does it read
the running loss and write. On a terminal that is ten times a second; into a file it is a whole line every ten seconds
and one at the end, so that logs stay readable and other output keeps lines of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import re
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from brainlib.common.errors import nearest, quoted
from brainlib.common.logs import logger
from brainlib.common.notebook import in_notebook
from brainlib.progress_options import ProgressOptions

if TYPE_CHECKING:
    from tqdm import tqdm

__all__ = ["Bar", "Progress"]

COLORS = ("BLACK", "RED", "GREEN", "YELLOW", "BLUE", "MAGENTA", "CYAN", "WHITE")

FILE_INTERVAL = 10.0  # seconds between two lines
COST_LIMIT = 0.01  # share of the time that drawing may take; on a slow terminal it redraws less often
MAX_STRIDE = 64  # batches without a look at the clock; when they get slow, the bar is late by so many at most


class Bar:
    """The bar of one stage, a context manager. This one shows nothing; the variants override `_open`, `_draw`, `_end`.

    Example:
        >>> with Bar() as bar:
        ...     bar.advance(lambda: 0.5)
    """

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def advance(self, read: Callable[[], float]) -> None:
        """One more batch is done. `read` returns the running loss; it is only called when a redraw is due."""


class _DrawnBar(Bar):
    """When to draw; how is said by the variants."""

    def __init__(self, total: int | None, initial: int, interval: float, clock: Callable[[], float]) -> None:
        self._total = total
        self._initial = initial
        self._interval = interval
        self._clock = clock
        self._count = initial
        self._look_at = initial + 1  # the count at which the clock is read next
        self._read: Callable[[], float] | None = None
        self._loss = ""

    def __enter__(self) -> Bar:
        self._began = self._looked = self._clock()
        self._looked_count = self._count
        self._open()
        self._due = self._clock() + self._interval
        return self

    def advance(self, read: Callable[[], float]) -> None:
        self._count = count = self._count + 1
        self._read = read
        if count >= self._look_at:
            self._look()

    def _look(self) -> None:
        """Read the clock: draw if it is time, and guess how many batches may pass before the next look."""
        now = self._clock()
        if now >= self._due:
            self._refresh_loss()
            self._draw()
            drawn = self._clock()
            self._due = drawn + max(self._interval, (drawn - now) / COST_LIMIT)
            now = drawn
        each = (now - self._looked) / max(self._count - self._looked_count, 1)
        # A tenth of the interval: an error of the guess by a factor of ten still is in time.
        stride = int(self._interval / 10 / each) if each > 0 else MAX_STRIDE
        self._looked, self._looked_count = now, self._count
        self._look_at = self._count + min(max(stride, 1), MAX_STRIDE)

    def _refresh_loss(self) -> None:
        if self._read is not None:
            self._loss = f"loss={self._read():.4g}"

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # After an error nothing is read: the loss may be on a device that is gone.
            if kind is None:
                self._refresh_loss()
        finally:
            self._end()

    def _open(self) -> None:
        """Show it for the first time."""

    def _draw(self) -> None:
        """Show count and loss."""

    def _end(self) -> None:
        """Show them for the last time and let go of the screen."""


class _FileBar(_DrawnBar):
    """Whole lines, for a file, a pipe or the log of a cluster."""

    def __init__(self, stage_name: str, stream: TextIO, *args: Any) -> None:
        super().__init__(*args)
        self._stage_name = stage_name
        self._stream = stream

    def _draw(self) -> None:
        from tqdm import tqdm

        line = tqdm.format_meter(
            self._count,
            self._total,  # type: ignore[arg-type] # None is right where the length is not known
            self._clock() - self._began,
            ncols=100,
            prefix=self._stage_name,
            ascii=True,
            unit="batch",
            postfix=self._loss,
            initial=self._initial,
        )
        self._stream.write(line + "\n")  # in one piece, so that nobody's line gets into the middle of it
        self._stream.flush()

    def _end(self) -> None:
        self._draw()


class _ScreenBar(_DrawnBar):
    """A line that is drawn over and over, on a terminal or in a notebook."""

    def __init__(self, make: Callable[[], tqdm[Any]], *args: Any) -> None:
        super().__init__(*args)
        self._make = make

    def _open(self) -> None:
        self._bar = self._make()
        # Our own records step over the bar: it is wiped before one is printed and comes back with the next redraw.
        logger.addFilter(self._step_aside)

    def _step_aside(self, record: logging.LogRecord) -> bool:
        self._bar.clear()
        return True

    def _draw(self) -> None:
        self._bar.n = self._count
        self._bar.set_postfix_str(self._loss, refresh=False)
        self._bar.refresh()

    def _end(self) -> None:
        logger.removeFilter(self._step_aside)
        self._bar.n = self._count
        self._bar.set_postfix_str(self._loss, refresh=False)
        self._bar.close()


class Progress:
    """Makes the bar of each stage.

    Args:
        options: whether there is one, its colors, and how often it is drawn on a terminal.
        stream: where it is drawn; standard error, looked up when a bar is opened, by default.
        clock: a function that returns seconds; tests pass their own.

    Raises:
        ValueError: for an unknown color.

    Example:
        >>> with Progress().bar("train", total=2, initial=0, enable=False) as bar:
        ...     for batch in range(2):
        ...         bar.advance(lambda: 0.5)
    """

    def __init__(
        self,
        options: ProgressOptions | None = None,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options or ProgressOptions()
        for stage, color in self.options.tqdm_barcolor.items():
            if color.upper() not in COLORS and not re.fullmatch("#[0-9a-fA-F]{6}", color):
                raise ValueError(
                    f"tqdm_barcolor[{stage!r}] is {color!r}; give one of {quoted(COLORS)}, or '#rrggbb'."
                    f"{nearest(color.upper(), COLORS)}"
                )
        self._stream = stream
        self._clock = clock

    def bar(
        self, stage_name: str, total: int | None = None, initial: int = 0, enable: bool | None = None
    ) -> Bar:
        """A bar for one stage, to be used in a ``with`` statement.

        Args:
            stage_name: what stands in front of it: "train", "valid" or "test".
            total: batches of the whole stage; None when the loader has no length.
            initial: batches that were done before a restart; they do not count for the speed.
            enable: whether there is one; None asks the options.
        """
        stream = self._stream or sys.stderr
        shown = not self.options.noprogressbar if enable is None else enable
        if not shown or stream is None:  # pythonw and some services have no standard error
            return Bar()

        # One that cannot draw over a line says so: TERM=dumb.
        terminal = bool(getattr(stream, "isatty", lambda: False)()) and os.environ.get("TERM") != "dumb"
        notebook = self._stream is None and not terminal and in_notebook()
        if not terminal and not notebook:
            return _FileBar(stage_name, stream, total, initial, FILE_INTERVAL, self._clock)

        def make() -> tqdm[Any]:
            return _tqdm_class(notebook)(
                total=total,
                initial=initial,
                desc=stage_name,
                unit="batch",
                file=None if notebook else stream,
                # A bar below another one (a validation in the middle of an epoch) goes away at its end. In a notebook
                # that of each epoch does, too: what stays is the line of the epoch.
                leave=False if notebook and stage_name != "test" else None,
                dynamic_ncols=True,
                colour=self._color(stage_name),
            )

        return _ScreenBar(make, total, initial, self.options.progress_seconds, self._clock)

    def _color(self, stage_name: str) -> str | None:
        """None where colors are not wanted, also by https://no-color.org."""
        wanted = self.options.tqdm_colored_bar and not os.environ.get("NO_COLOR")
        return self.options.tqdm_barcolor.get(stage_name) if wanted else None


def _tqdm_class(notebook: bool) -> type[tqdm[Any]]:
    """A tqdm without its monitor thread: we look at the clock ourselves, and a run must not leave a thread behind."""
    widgets = notebook and importlib.util.find_spec("ipywidgets") is not None
    base: Any = importlib.import_module("tqdm.notebook" if widgets else "tqdm").tqdm
    return type("tqdm", (base,), {"monitor_interval": 0})
