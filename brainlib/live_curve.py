"""A picture of the losses and metrics under the cell of a notebook, drawn anew as epochs close.

It is a view: what it shows is kept by the Brain (`EpochLines.closed`) and is part of each checkpoint. So a run that is
resumed in another kernel shows all its epochs, and a Brain may have a curve today and none tomorrow. matplotlib is
imported when something is drawn; there is no widget.
"""

from __future__ import annotations

import importlib
import io
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from brainlib.common.logs import logger
from brainlib.common.notebook import cell_number, in_notebook
from brainlib.distributed.world import if_main_process
from brainlib.epoch_lines import ClosedEpoch
from brainlib.extension import Extension
from brainlib.loggers.folded import need

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LiveCurve"]

COLORS = {"train": "#1f77b4", "valid": "#d95f02"}
COST_LIMIT = 0.1  # share of the time that drawing may take; where epochs are short it is drawn less often
MOST_PANELS = 6
COLUMNS = 3
PANEL_INCHES = (3.6, 2.5)
DPI = 90


class LiveCurve(Extension):
    """Draws what the line of each epoch says, losses and metrics, as curves in the cell that runs.

    A panel for each metric, in it a line for train and one for valid. The picture stands under the cell that calls
    `fit`, and is replaced there; a second fit goes on behind the first. It needs matplotlib, and outside of a notebook
    it draws nothing. In the last line of a cell, ``curve`` shows the picture once more, and ``curve.figure()`` is it.

    Args:
        metrics: which are shown, such as ``["loss", "accuracy"]``; None: those that are there, at most six.
        seconds: least time between two drawings; it is made longer where drawing would take more than a tenth of the
            time. The last epoch of a fit is always drawn.
        name: two in one Brain need two names.
        clock: a function that returns seconds; tests pass their own.

    Raises:
        ImportError: matplotlib is not installed; the message names the extra.
        ValueError: for a time below 0, or for metrics that are one text.

    Example:
        >>> import torch
        >>> from brainlib.brain import Brain
        >>> class Line(Brain):
        ...     def compute_forward(self, batch, stage):
        ...         return self.modules.model(batch)
        ...     def compute_objectives(self, predictions, batch, stage):
        ...         return predictions.pow(2).mean()
        >>> curve = LiveCurve()
        >>> brain = Line(
        ...     {"model": torch.nn.Linear(2, 1)}, lambda p: torch.optim.SGD(p, 0.1),
        ...     extensions=[curve], run_opts={"noprogressbar": True},
        ... )
        >>> brain.fit(range(3), [torch.ones(3, 2)])
        >>> (axes,) = curve.figure().axes
        >>> axes.get_ylabel(), axes.lines[0].get_xdata().tolist()
        ('loss', [1, 2, 3])
    """

    trigger = (1, "epoch")
    kept = False

    def __init__(
        self,
        metrics: Sequence[str] | None = None,
        *,
        seconds: float = 0.5,
        name: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name=name)
        need("matplotlib", type(self), "notebook")
        if isinstance(metrics, str):
            raise ValueError(f"metrics is {metrics!r}; give a list of names: [{metrics!r}]")
        if not seconds >= 0:
            raise ValueError(f"seconds is {seconds!r}; give the least time between two drawings, 0 or more")
        self.metrics = None if metrics is None else list(metrics)
        self._seconds = seconds
        self._clock = clock
        self._closed: list[ClosedEpoch] = []
        self._due = 0.0
        self._drawn = 0  # how many epochs the picture shows
        self._cell: int | None = None  # in which it stands
        self._said = False

    def start(self, brain: Any) -> None:
        """Show what is there already, where the run goes on."""
        self._due = 0.0
        if in_notebook():
            importlib.import_module("matplotlib.figure")  # now, and not while the time of a drawing is taken
        elif not self._said:
            self._said = True
            logger.info("the live curve is drawn in a notebook, and this is none: nothing is drawn")
        self._look(brain)

    def __call__(self, brain: Any) -> None:
        """An epoch is closed."""
        self._look(brain)

    def close(self, brain: Any) -> None:
        """The fit is over: show its last epoch, if that was not due."""
        self._due = 0.0
        self._look(brain)

    def _look(self, brain: Any) -> None:
        self._closed = list(brain._epochs.closed)
        now = self._clock()
        here = self._cell == cell_number()
        if not self._closed or (here and self._drawn == len(self._closed)) or now < self._due:
            return
        if not in_notebook() or not if_main_process():
            return
        display: Any = importlib.import_module("IPython.display")
        # A cell that runs again has lost its picture: there the first one is a new one.
        (display.update_display if here else display.display)(self, display_id=f"brainlib-{id(self)}")
        self._cell, self._drawn = cell_number(), len(self._closed)
        drawn = self._clock()
        self._due = drawn + max(self._seconds, (drawn - now) / COST_LIMIT)

    # ---- the picture

    def figure(self) -> Figure:
        """The picture as a matplotlib figure: ``curve.figure().savefig("curve.png")``."""
        from matplotlib.figure import Figure  # without pyplot: no window, no global state
        from matplotlib.ticker import MaxNLocator

        panels = self._panels()
        columns = max(1, min(len(panels), COLUMNS))
        rows = max(1, -(-len(panels) // COLUMNS))
        width, height = PANEL_INCHES
        figure = Figure(figsize=(width * columns, height * rows), dpi=DPI, layout="constrained")
        for place, (metric, lines) in enumerate(panels.items(), start=1):
            axes = figure.add_subplot(rows, columns, place)
            for group, points in lines.items():
                xs, ys = zip(*points, strict=True)
                axes.plot(xs, ys, color=COLORS.get(group), label=group, marker="o", markersize=3)
            axes.set(xlabel="epoch", ylabel=metric)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.grid(alpha=0.3)
            axes.legend()
        return figure

    def _panels(self) -> dict[str, dict[str, list[tuple[int, float]]]]:
        """For each metric its lines, "train" and "valid", as points."""
        panels: dict[str, dict[str, list[tuple[int, float]]]] = {}
        for x, numbers in _placed(self._closed):
            for name, value in numbers.items():
                group, _, metric = name.partition(" ")
                if self.metrics is None or metric in self.metrics:
                    panels.setdefault(metric, {}).setdefault(group, []).append((x, value))
        return dict(list(panels.items())[:MOST_PANELS])

    def _repr_png_(self) -> bytes:
        """What a notebook shows of it."""
        picture = io.BytesIO()
        self.figure().savefig(picture, format="png")
        return picture.getvalue()


def _placed(closed: Iterable[ClosedEpoch]) -> list[tuple[int, dict[str, float]]]:
    """Each with its place on the axis: the epochs of a second fit stand behind those of the first.

    >>> _placed([ClosedEpoch(0, 1, {}), ClosedEpoch(0, 2, {}), ClosedEpoch(1, 1, {})])
    [(1, {}), (2, {}), (3, {})]
    """
    placed: list[tuple[int, dict[str, float]]] = []
    fit, behind = 0, 0
    for each in closed:
        if each.fit != fit:
            fit, behind = each.fit, placed[-1][0] if placed else 0
        placed.append((behind + each.epoch, each.numbers))
    return placed
