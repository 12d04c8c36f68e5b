"""The trace of a run: what each batch held and what stood where after it, as lines of a file.

=========  ==============================================================================================
``start``  how the run begins: its seed, what the user's code may depend on
``point``  a place where a run may be cut, with everything that the walk found there
``batch``  what a batch holds
``after``  weights, optimizers, generators, loss after it
``saved``  a copy of the run's folder was made: a run can be resumed from it
``end``    the run has made all that was asked for
``error``  it failed
=========  ==============================================================================================

A place is (epochs closed, batches of the open epoch).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from brainlib.checkup.walk import Leaf

__all__ = ["START", "Place", "Trace", "TraceFile"]


class Place(NamedTuple):
    """Where a run stands.

    >>> str(Place(0, 0)), str(Place(1, 2))
    ('the start', 'after batch 2 of epoch 2')
    """

    epoch: int
    batch: int

    def __str__(self) -> str:
        if self.batch:
            return f"after batch {self.batch} of epoch {self.epoch + 1}"
        return f"after epoch {self.epoch}" if self.epoch else "the start"


class TraceFile:
    """Writes a trace; each line is in the file when `write` returns, so that a run that dies has told how far it came.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     TraceFile(folder + "/t").write("end", (0, 1))
    ...     Trace.read(folder + "/t").ended
    True
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path

    def write(self, event: str, place: tuple[int, int], **values: Any) -> None:
        """Append one event."""
        with open(self._path, "a", encoding="utf-8", errors="surrogatepass") as file:
            file.write(json.dumps({"event": event, "place": place, **values}) + "\n")


START = Place(0, 0)


class Trace:
    """A trace that was read back; events by kind and place."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self.start: dict[str, Any] = {}
        self.points: dict[Place, dict[str, Any]] = {}
        self.saved: dict[Place, str] = {}
        self.ended = False
        self.wrote: list[str] = []  # files outside the run's folder
        self.error: dict[str, Any] | None = None
        self.accumulation: dict[str, Any] | None = None
        self.steps: list[
            tuple[Place, dict[str, Any], dict[str, Any] | None]
        ] = []  # batch, and what stood after it
        for event in events:
            place, kind = Place(*event["place"]), event["event"]
            if kind == "start":
                self.start = event
            elif kind == "point":
                self.points.setdefault(place, event)
            elif kind == "batch":
                self.steps.append((place, event, None))
            elif kind == "after":
                self.steps[-1] = (*self.steps[-1][:2], event)
            elif kind == "saved":
                self.saved[place] = event["folder"]
            elif kind == "accumulation":
                self.accumulation = event
            elif kind == "error":
                self.error = event
            elif kind == "end":
                self.ended, self.wrote = True, event.get("wrote", [])

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Trace:
        """Read a trace; one that was never begun is empty."""
        if not Path(path).exists():
            return cls([])
        with open(path, encoding="utf-8", errors="surrogatepass") as file:
            return cls([json.loads(line) for line in file if line.endswith("\n")])

    def walked(self, place: Place) -> dict[str, Leaf]:
        """What the walk found at a point."""
        point = self.points.get(place)
        return {} if point is None else {path: Leaf(*values) for path, values in point["walk"].items()}
