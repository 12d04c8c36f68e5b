"""Execute a notebook in a kernel of this interpreter: ``python tests/run_notebook.py GIVEN DONE FOLDER``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import nbclient
import nbformat

ROOT = Path(__file__).resolve().parents[1]
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


if __name__ == "__main__":
    given, done, folder = sys.argv[1:]
    nbformat.write(run_notebook(nbformat.read(given, as_version=4), Path(folder)), done)
