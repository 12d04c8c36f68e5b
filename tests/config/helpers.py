"""Things for hparams files to name, and a short way to an error's text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from brainlib.config import load_hyperpyyaml

HERE = "tests.config.helpers"
calls: list[str] = []
CONSTANT = 5


class Box:
    """Holds what it was given."""

    made = 0

    def __init__(self, content: object = None, width: int = 1, **others: object) -> None:
        self.content, self.width, self.others = content, width, others
        Box.made += 1


class Strict:
    def __init__(self, width: int, depth: int = 1) -> None:
        if width < 0:
            raise TypeError("inside the constructor")
        self.width, self.depth = width, depth


def count() -> int:
    calls.append("count")
    return 4


def note(name: object) -> object:
    calls.append(str(name))
    return name


def seed_everything(seed: int) -> int:
    calls.append(f"seed {seed}")
    return seed


def table() -> dict[str, Any]:
    return {"train": [10, 20], "size": 2}


def error_of(
    source: Any,
    overrides: str | Mapping[str, Any] | None = None,
    kind: type[BaseException] = ValueError,
    **kwargs: Any,
) -> str:
    with pytest.raises(kind) as caught:
        load_hyperpyyaml(source, overrides, **kwargs)
    return str(caught.value)
