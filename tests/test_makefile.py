"""The two commands, as far as they can be tried without installing anything: what they say when they cannot work."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Enough of a fresh clone, in a folder with a space in its name."""
    folder = tmp_path / "a clone"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    return folder


def make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *words], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )


def pretend_python(folder: Path, prelude: str) -> str:
    """A python3 that runs `prelude` before it does what it is asked to."""
    path = folder / "python3"
    path.write_text(
        f"""#!/bin/sh\nexec "{sys.executable}" -c 'import sys; {prelude}; exec(sys.argv[2])' "$@"\n"""
    )
    path.chmod(0o755)
    return f"PYTHON={path}"


def test_make_alone_shows_the_targets(clone: Path) -> None:
    done = make(clone)
    assert done.returncode == 0
    for target in ("demo", "test", "faults", "chaos", "lint", "format", "bench", "hooks", "clean"):
        assert f"make {target}" in done.stdout
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize("target", ["demo", "test", "faults", "chaos", "lint", "bench"])
def test_a_python_that_is_not_there_is_named(clone: Path, target: str) -> None:
    done = make(clone, target, "PYTHON=no-such-python")
    assert done.returncode != 0
    assert "There is no 'no-such-python' here. Install Python 3.10 or newer" in done.stderr
    assert not (clone / ".venv").exists()


def test_an_old_python_is_told_apart(clone: Path) -> None:
    done = make(clone, "test", pretend_python(clone, "sys.version_info = (3, 9, 2)"))
    assert done.returncode != 0
    assert "brainlib needs Python 3.10 or newer" in done.stderr
    assert "is 3.9." in done.stderr
    assert "make PYTHON=/path/to/python3" in done.stderr


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_a_python_that_cannot_make_environments_says_what_to_install(clone: Path, module: str) -> None:
    done = make(clone, "demo", pretend_python(clone, f'sys.modules["{module}"] = None'))
    assert done.returncode != 0
    assert "its modules venv and ensurepip are missing" in done.stderr
    assert "python3-venv" in done.stderr
    assert not (clone / ".venv").exists()
