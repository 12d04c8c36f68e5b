"""MLflow."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brainlib.common.files import write_atomic
from brainlib.common.plain import from_json, plain, to_json
from brainlib.loggers.folded import ROWS, FoldedLogger, Row, leaves, need, scalars

__all__ = ["MlflowLogger"]

RUN = "mlflow_run.json"
FORMER, LATTER = "brainlib.supersedes", "brainlib.superseded_by"
TEXT_LENGTH = 5000  # what a tag of theirs holds


class MlflowLogger(FoldedLogger):
    """Logs stats to MLflow as metrics ``loss/train``, ``loss/valid``, …, meta values under their own name.

    A run that is started again goes on in the same run of theirs, whose id is kept in ``save_dir``. A point that was
    logged cannot be taken back there: where a resumed run logs some again, a new run of theirs is begun with all
    points that stand, and the former one stays as it is, with the tag ``brainlib.superseded_by``. Texts become tags.
    The steps are those of `TensorboardLogger`; what is global in MLflow (the active run) is left alone.

    Args:
        save_dir: a folder for what is kept on this machine; made at the first row.
        experiment: the experiment of theirs; made when it is not there.
        tracking_uri: where MLflow keeps it, such as ``http://host:5000``, ``sqlite:///mlflow.db`` or a folder
            (``file:results/mlruns``, which newer versions want to be allowed by ``MLFLOW_ALLOW_FILE_STORE=true``);
            None: as MLflow has it (``MLFLOW_TRACKING_URI``).
        name: what the run is called; None: they think of one.
        params: what the run was made with, usually hparams.

    Raises:
        ImportError: when neither mlflow nor mlflow-skinny is installed.

    Example:
        >>> import importlib.util
        >>> if importlib.util.find_spec("mlflow"):
        ...     log = MlflowLogger("results/digits/mlflow", experiment="digits", tracking_uri="http://localhost:5000")
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        experiment: str,
        tracking_uri: str | None = None,
        name: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        need("mlflow", MlflowLogger, "mlflow")
        self.save_dir = Path(save_dir)
        super().__init__(self.save_dir / ROWS)
        self.experiment = experiment
        self.tracking_uri = tracking_uri
        self._name = name
        self._params = plain(dict(params or {}))
        self._client: Any = None
        self._run_id = ""

    @property
    def place(self) -> str:
        """Where it is kept, and the run."""
        where = self.tracking_uri or "MLflow"
        return f"{where}, experiment {self.experiment}" + (f", run {self._run_id}" if self._run_id else "")

    def close(self) -> None:
        """Tell MLflow that the run is finished, for now."""
        if self._client is not None:
            self._client.set_terminated(self._run_id, "FINISHED")
            self._client, self._run_id = None, ""

    def _open(self, anew: bool = False) -> None:
        from mlflow.tracking.client import MlflowClient

        self._client = client = MlflowClient(tracking_uri=self.tracking_uri)
        file = self.save_dir / RUN
        known = from_json(file.read_text(encoding="utf-8")) if file.exists() else {"ids": []}
        former = known["ids"][-1] if known["ids"] else None
        if former is not None and not anew:
            self._run_id = former
            client.update_run(former, status="RUNNING")
            return
        found = client.get_experiment_by_name(self.experiment)
        number = found.experiment_id if found is not None else client.create_experiment(self.experiment)
        tags = {} if former is None else {FORMER: former}
        self._run_id = client.create_run(number, run_name=self._name, tags=tags).info.run_id
        for key, value in leaves({"meta": self._params, "groups": {}}):
            client.log_param(self._run_id, _key(key), value)
        known["ids"].append(self._run_id)
        self.save_dir.mkdir(parents=True, exist_ok=True)
        write_atomic(file, to_json(known) + "\n")
        if former is not None:
            client.set_tag(former, LATTER, self._run_id)
            client.set_terminated(former, "KILLED")

    def _show(self, row: Row) -> None:
        if self._client is None:
            self._open()
        self._log(row)

    def _log(self, row: Row) -> None:
        from mlflow.entities import Metric, RunTag

        now = int(row.get("time", time.time()) * 1000)
        metrics = [Metric(_key(name), value, now, row["x"]) for name, value in scalars(row).items()]
        texts = {name: value for name, value in leaves(row) if isinstance(value, str)}
        tags = [RunTag(_key(name), text[:TEXT_LENGTH]) for name, text in texts.items()]
        for begin in range(0, max(len(metrics), 1), 1000):  # so many may be sent at once
            self._client.log_batch(
                self._run_id, metrics[begin : begin + 1000], tags=tags if not begin else ()
            )

    def _begin_anew(self, kept: list[Row], gone: list[Row]) -> None:
        self._client = None
        self._open(anew=True)
        for row in kept:
            self._log(row)


def _key(name: str) -> str:
    """A name as MLflow takes it.

    >>> _key("classes/ä+b/valid")
    'classes/_b/valid'
    """
    return re.sub(r"[^\w\-. /]+", "_", name, flags=re.ASCII)
