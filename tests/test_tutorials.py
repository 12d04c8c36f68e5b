"""Every tutorial is run, because users copy it: in an empty folder, each cell twice, as people do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.known_files import known_files

nbclient = pytest.importorskip("nbclient", reason="tutorials are run with nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel", reason="tutorials run in a kernel of this interpreter")
pytest.importorskip("matplotlib", reason="tutorials draw")

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = known_files("tutorials/*.ipynb")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def run_notebook(notebook: Any, folder: Path, data: Path | None = None) -> Any:
    """Execute it in `folder`, from a process of its own: what a kernel's sockets leave behind ends with that.

    `data` holds the data sets; without it there are none, whatever this machine has.
    """
    given, done = folder / "given.ipynb", folder / "done.ipynb"
    nbformat.write(notebook, given)
    command = [sys.executable, str(ROOT / "tests" / "run_notebook.py"), str(given), str(done), str(folder)]
    environment = {**os.environ, "BRAINLIB_DATA": str(data or folder / "none")}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return nbformat.read(done, as_version=4)


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_runs_with_every_cell_twice_and_ends_in_a_picture(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if cell.cell_type == "code":
            again = deepcopy(cell)
            again["id"] = f"{cell['id']}-again"
            cells.append(again)
    notebook.cells = cells

    done = run_notebook(notebook, tmp_path)

    code = [cell for cell in done.cells if cell.cell_type == "code"]
    pictures = [data for output in code[-1].outputs if (data := output.get("data", {}).get("image/png"))]
    assert pictures and len(pictures[0]) > 10_000, "the last cell shows no picture"
    assert not list((tmp_path / "here").iterdir()), "it leaves files beside itself"
    said = "".join(output.get("text", "") for cell in code for output in cell.outputs)
    assert "Warning" not in said, said


def test_spoken_digits_are_those_of_people_where_the_data_is_there(
    data_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    """The test above has waves that the notebook makes itself."""
    notebook = nbformat.read(ROOT / "tutorials" / "04-spoken-digits.ipynb", as_version=4)
    done = run_notebook(notebook, tmp_path, data_dir("fsdd").parent)
    said = "".join(output.get("text", "") for cell in done.cells for output in cell.get("outputs", []))
    assert said.startswith("people, from") and "train 25 batches (780 items, 32 a batch)" in said
    assert float(said.split("valid accuracy ")[-1].split()[0]) > 0.9


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_is_committed_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None, cell.source
    assert path.stat().st_size < 50_000


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_links_of_a_tutorial_lead_somewhere_and_the_list_has_it(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    links = [link for link in LINK.findall(text) if ":" not in link]
    assert [link for link in links if not (path.parent / link).exists()] == []
    for page in ("README.md", "tutorials/README.md"):
        assert f"{path.name})" in (ROOT / page).read_text(), f"{page} has no link to it"


def test_ten_lines_are_those_of_the_readme() -> None:
    notebook = nbformat.read(ROOT / "tutorials" / "01-brain-in-ten-lines.ipynb", as_version=4)
    first = next(cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert first in (ROOT / "README.md").read_text()
