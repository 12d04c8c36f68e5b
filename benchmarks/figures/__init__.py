"""What the benchmarks have in common: a figure and its verdict, forms in turns, and the line of JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Figure:
    """A line of the table; `bar` is the least where `at_least`, else the most.

    `noise` is how far the reference is from itself: a figure stands only if its distance to the bar is twice that.
    """

    name: str
    value: float
    unit: str = ""
    bar: float | None = None
    noise: float = 0.0
    at_least: bool = False

    @property
    def verdict(self) -> str:
        if self.bar is None:
            return ""
        if self.noise > abs(self.bar - self.value) / 2:
            return "too noisy"
        return "passed" if (self.value >= self.bar if self.at_least else self.value <= self.bar) else "MISSED"

    @property
    def limit(self) -> str:
        """The bar, as the table shows it."""
        return "" if self.bar is None else f"{'≥' if self.at_least else '≤'} {self.bar:g}"


def in_turns(
    forms: Sequence[Callable[[], float]], num_rounds: int, best: Callable[[Iterable[float]], float] = min
) -> list[float]:
    """The best that each form gave, the least by default, after one round to warm up."""
    given: list[list[float]] = [[] for _ in forms]
    for number in range(num_rounds + 1):
        for turn in range(len(forms)):
            which = (number + turn) % len(forms)
            value = forms[which]()
            if number:
                given[which].append(value)
    return [best(values) for values in given]


def as_json(benchmark: str, figures: Iterable[Figure], digits: int = 4, **more: Any) -> str:
    """The line for programs."""
    return json.dumps(
        {
            "benchmark": benchmark,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            **more,
            "figures": {
                figure.name.strip(): {
                    "value": round(figure.value, digits),
                    "unit": figure.unit,
                    "bar": figure.bar,
                    "verdict": figure.verdict or None,
                }
                for figure in figures
            },
        }
    )


def status(figures: Iterable[Figure]) -> int:
    """What the script exits with: 1 where a bar that stands is missed."""
    return int(any(figure.verdict == "MISSED" for figure in figures))
