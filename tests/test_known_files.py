"""A notebook that was run and lies beside its tutorial is no tutorial."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.known_files import known_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tutorials").mkdir()
    for name in ("tutorials/01.ipynb", "tutorials/done.ipynb", "README.md", "notes.md"):
        (tmp_path / name).write_text("")
    return tmp_path


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_what_git_does_not_know_is_left_out(folder: Path) -> None:
    for words in (["init", "-q"], ["add", "tutorials/01.ipynb", "README.md"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    assert known_files("*.md", "tutorials/*.ipynb", root=folder) == [
        folder / "README.md",
        folder / "tutorials" / "01.ipynb",
    ]


def test_without_a_repository_all_files_count(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(folder.parent))
    assert [path.name for path in known_files("*.md", "tutorials/*.ipynb", root=folder)] == [
        "README.md",
        "notes.md",
        "01.ipynb",
        "done.ipynb",
    ]
