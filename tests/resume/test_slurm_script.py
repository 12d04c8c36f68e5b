"""The script of docs/stopping.md, with stand-ins for SLURM's commands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.resume.signals import JOB, ROOT

PAGE = ROOT / "docs" / "stopping.md"
SRUN = 'exec "$@"'
SCONTROL = 'echo "$@" >> "$REQUEUED"'


def script(command: str) -> str:
    (text,) = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    shown = "python recipes/digits/train.py hparams/digits/cnn.yaml"
    assert text.count(shown) == 1
    return text.replace(shown, command)


@pytest.mark.parametrize(
    ("name", "status", "requeued"), [("SIGUSR1", 138, "requeue 17\n"), ("SIGTERM", 143, "")]
)
def test_a_warning_puts_the_job_back(name: str, status: int, requeued: str, tmp_path: Path) -> None:
    """A job that is preempted or cancelled is not put back by the script: SLURM does so, or means it."""
    for stand_in, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / stand_in).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / stand_in).chmod(0o755)
    (tmp_path / "requeued").touch()
    command = shlex.join(
        [sys.executable, str(JOB), str(tmp_path), "Plain", "--at", f"compute_forward:TRAIN:3:{name}"]
    )
    (tmp_path / "job.sh").write_text(script(command))
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "REQUEUED": str(tmp_path / "requeued"),
        "SLURM_JOB_ID": "17",
    }
    done = subprocess.run(
        ["bash", "job.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    assert (tmp_path / "requeued").read_text() == requeued
    assert (tmp_path / "save" / "step-00000003").exists()
