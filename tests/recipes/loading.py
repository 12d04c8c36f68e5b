"""Files of a recipe as modules, under names that no other recipe's files have."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


@contextmanager
def recipe_module(recipe: str, name: str) -> Iterator[ModuleType]:
    """`with recipe_module("an4", "prepare") as prepare` is recipes/an4/prepare.py."""
    spec = importlib.util.spec_from_file_location(f"{recipe}_{name}", RECIPES / recipe / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[spec.name]
