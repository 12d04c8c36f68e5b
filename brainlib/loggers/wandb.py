"""Weights & Biases."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brainlib.common.files import write_atomic
from brainlib.common.plain import from_json, plain, to_json
from brainlib.loggers.folded import ROWS, FoldedLogger, Row, leaves, need

__all__ = ["WandbLogger"]

RUN = "wandb_run.json"


class WandbLogger(FoldedLogger):
    """Logs stats to Weights & Biases as ``loss/train``, ``loss/valid``, …, meta values under their own name.

    A run that is started again goes on in the same run of theirs, whose id is kept in ``save_dir``. A point that was
    logged cannot be taken back there: where a resumed run logs some again, a new run of theirs is begun in the same
    group with all points that stand, and the former one stays as it is. The steps of theirs count the rows; the axis
    of the plots is ``x``, which is that of `TensorboardLogger`.

    Args:
        save_dir: a folder for what is kept on this machine; made at the first row.
        project: the project of theirs.
        name: what the run is called; None: they think of one.
        config: what the run was made with, usually hparams.
        **init: handed to ``wandb.init``, such as ``mode="offline"``, ``entity``, ``tags``, ``settings``. What the
            script prints is not captured unless `settings` say so.

    Raises:
        ImportError: when wandb is not installed.
        ValueError: for an argument of ``wandb.init`` that the logger sets itself.

    Example:
        >>> import importlib.util
        >>> if importlib.util.find_spec("wandb"):
        ...     log = WandbLogger("results/digits/wandb", project="digits", mode="offline")
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        project: str,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        **init: Any,
    ) -> None:
        need("wandb", WandbLogger, "wandb")
        if taken := sorted({"dir", "group", "id", "reinit", "resume"} & init.keys()):
            raise ValueError(
                f"WandbLogger sets {', '.join(taken)} of wandb.init itself, so that a resumed run goes on: leave it out"
            )
        self.save_dir = Path(save_dir)
        super().__init__(self.save_dir / ROWS)
        self._init = {"project": project, "config": plain(dict(config or {})), **init}
        self._name = name
        self._run: Any = None

    @property
    def place(self) -> str:
        """The address of the page; offline, and before the first row, the folder."""
        return str(self.save_dir) if self._run is None or self._run.offline else str(self._run.url)

    def close(self) -> None:
        """Finish the run of theirs, for now: what was logged is handed over, which may take seconds."""
        if self._run is not None:
            self._run.finish()
            self._run = None

    def _open(self, anew: bool = False) -> None:
        import wandb

        file = self.save_dir / RUN
        known = from_json(file.read_text(encoding="utf-8")) if file.exists() else {"ids": []}
        if anew or not known["ids"]:
            known["ids"].append(uuid.uuid4().hex[:8])
            self.save_dir.mkdir(parents=True, exist_ok=True)
            write_atomic(file, to_json(known) + "\n")
        number = len(known["ids"])
        _wait_for_its_turn(self.save_dir)
        settings = {"settings": wandb.Settings(console="off", silent=True), **self._init}
        self._run = wandb.init(
            **settings,
            id=known["ids"][-1],
            group=known["ids"][0],
            name=f"{self._name}-{number}" if self._name is not None and number > 1 else self._name,
            dir=str(self.save_dir),
            resume="allow",
            reinit="create_new",  # a run of the user's that is open in this process is left alone
        )
        self._run.define_metric("*", step_metric="x")

    def _show(self, row: Row) -> None:
        if self._run is None:
            rows = self.noted()  # the new one is the last of them
            self._calls = len(rows)
            self._open()
        self._log(row, self._calls - 1)

    def _log(self, row: Row, step: int) -> None:
        values = {name: value for name, value in leaves(row) if value is not None}
        self._run.log({**values, "x": row["x"]}, step=step)

    def _begin_anew(self, kept: list[Row], gone: list[Row]) -> None:
        self.close()
        self._open(anew=True)
        for step, row in enumerate(kept):
            self._log(row, step)


def _wait_for_its_turn(folder: Path) -> None:
    """Their folders are named by the second; one of the same run and second would be written over."""
    while any(folder.glob(f"wandb/*run-{time.strftime('%Y%m%d_%H%M%S')}-*")):
        time.sleep(0.1)
