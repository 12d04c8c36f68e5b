"""The three stages of an experiment."""

from __future__ import annotations

from enum import Enum, auto

__all__ = ["Stage"]


class Stage(Enum):
    """Which part of the experiment a batch belongs to.

    >>> Stage.TRAIN is Stage["TRAIN"]
    True
    """

    TRAIN = auto()
    VALID = auto()
    TEST = auto()
