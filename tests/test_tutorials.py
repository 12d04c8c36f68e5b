"""Every tutorial is run, because users copy it: in an empty folder, each cell twice, as people do."""

from __future__ import annotations

import json
import os
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient", reason="tutorials are run with nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel", reason="tutorials run in a kernel of this interpreter")
pytest.importorskip("matplotlib", reason="tutorials draw")

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = sorted((ROOT / "tutorials").glob("*.ipynb"))
CELL_TIMEOUT_SECONDS = 60


def kernel_of_this_interpreter(folder: Path) -> Any:
    """A kernel of the Python that runs the tests, whatever kernels are installed, that leaves its files in `folder`."""
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager

    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "this interpreter",
        "language": "python",
    }
    (folder / "kernels" / "here").mkdir(parents=True)
    (folder / "kernels" / "here" / "kernel.json").write_text(json.dumps(spec))
    return AsyncKernelManager(
        kernel_name="here",
        kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(folder / "kernels")]),
        connection_file=str(folder / "connection.json"),
    )


def run_notebook(notebook: Any, folder: Path) -> Any:
    """Execute it in `folder`; an error in a cell raises with that cell and its traceback."""
    here, home = folder / "here", folder / "home"
    here.mkdir()
    home.mkdir()
    client = nbclient.NotebookClient(
        notebook,
        km=kernel_of_this_interpreter(home),
        timeout=CELL_TIMEOUT_SECONDS,
        resources={"metadata": {"path": str(here)}},
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "IPYTHONDIR": str(home),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "OMP_NUM_THREADS": "1",
    }
    return client.execute(env=environment)


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


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_is_committed_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None, cell.source
    assert path.stat().st_size < 50_000


def test_ten_lines_are_those_of_the_readme() -> None:
    notebook = nbformat.read(ROOT / "tutorials" / "01-brain-in-ten-lines.ipynb", as_version=4)
    first = next(cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert first in (ROOT / "README.md").read_text()
