"""Whether this is a notebook, or another shell of IPython, asked without importing one."""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["cell_number", "in_notebook", "shell"]


def in_notebook() -> bool:
    """Whether this runs in a Jupyter kernel; not in a process forked from one, since what it shows arrives nowhere.

    >>> in_notebook()
    False
    """
    kernel = getattr(shell(), "kernel", None)
    pid = getattr(getattr(kernel, "session", None), "pid", None)
    return kernel is not None and pid in (None, os.getpid())


def cell_number() -> int:
    """The number in brackets beside the cell that runs; 0 outside of a notebook.

    >>> cell_number()
    0
    """
    return int(getattr(shell(), "execution_count", 0))


def shell() -> Any:
    """IPython's shell, of a notebook or of a terminal; None where there is none.

    >>> shell() is None
    True
    """
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None
