"""Two runs in one folder: the second is told who is there, and a folder is free once its process has ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import brainlib as bl
from brainlib.checkpoint.in_use import in_use
from brainlib.common.files import Disk

ROOT = Path(__file__).resolve().parents[2]
HOLDS = """
import sys, time
from pathlib import Path
from brainlib.checkpoint.in_use import in_use
from brainlib.common.files import Disk
with in_use(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def holder(folder: Path, seconds: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(folder), str(seconds)], cwd=ROOT, text=True, stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


class Line(bl.Brain):
    def compute_forward(self, batch: torch.Tensor, stage: bl.Stage) -> torch.Tensor:
        return self.modules.model(batch)

    def compute_objectives(
        self, predictions: torch.Tensor, batch: torch.Tensor, stage: bl.Stage
    ) -> torch.Tensor:
        return predictions.square().mean()


def brain_in(folder: Path) -> Line:
    return Line(
        {"model": torch.nn.Linear(2, 1)},
        lambda params: torch.optim.SGD(params, 0.1),
        run_opts={"noprogressbar": True},
        checkpointer=bl.Checkpointer(folder),
    )


def test_a_second_run_is_told_who_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brainlib.checkpoint.in_use.in_use.__wrapped__.__defaults__", (0.1,))
    process = holder(tmp_path, 60)
    try:
        before = set(os.listdir(tmp_path))
        told = (
            re.escape(str(tmp_path)) + rf" is in use: process {process.pid} on .* since .*a folder of its own"
        )
        with pytest.raises(bl.CheckpointError, match=told):
            brain_in(tmp_path).fit(range(1), [torch.ones(4, 2)])
        assert set(os.listdir(tmp_path)) == before  # it has not touched the folder
    finally:
        end(process)
    brain_in(tmp_path).fit(range(1), [torch.ones(4, 2)])


def test_a_folder_is_free_as_soon_as_its_process_has_ended(tmp_path: Path) -> None:
    for signum in (signal.SIGKILL, signal.SIGTERM):
        process = holder(tmp_path, 60)
        process.send_signal(signum)
        process.communicate()
        with in_use(tmp_path, patience=0.0):
            pass
    assert not list(tmp_path.iterdir())


def test_it_is_waited_for_one_that_is_about_to_end(tmp_path: Path) -> None:
    process = holder(tmp_path, 0.3)
    with in_use(tmp_path):
        pass
    process.communicate()


def test_a_fork_does_not_hold_what_its_parent_held(tmp_path: Path) -> None:
    """Workers of a killed run may live on for a moment."""
    script = HOLDS.replace("    print", "    import os\n    os.fork() or time.sleep(60)\n    print")
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), "60"], cwd=ROOT, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    try:
        with in_use(tmp_path, patience=0.0):
            pass
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_one_process_is_not_in_its_own_way(tmp_path: Path) -> None:
    with in_use(tmp_path):
        with in_use(tmp_path / ".." / tmp_path.name, patience=0.0):
            pass
        assert (tmp_path / ".in-use").exists()
        brain_in(tmp_path).fit(range(1), [torch.ones(4, 2)])
        assert (tmp_path / ".in-use").exists()
    assert not (tmp_path / ".in-use").exists()


def test_never_two_at_a_time(tmp_path: Path) -> None:
    """Many that come and go: the file that one removes is not the one that another one locks."""
    script = (
        "import os, sys, time\nfrom pathlib import Path\nfrom brainlib.checkpoint.in_use import in_use\n"
        "folder = Path(sys.argv[1])\n"
        "end = time.monotonic() + 1.5\n"
        "while time.monotonic() < end:\n"
        "    with in_use(folder, 30):\n"
        "        os.close(os.open(folder / 'alone', os.O_CREAT | os.O_EXCL))\n"
        "        os.unlink(folder / 'alone')\n"
    )
    all_of_them = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT) for _ in range(3)
    ]
    assert [process.wait() for process in all_of_them] == [0] * 3


def test_where_no_folder_can_be_made_the_save_says_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with in_use(tmp_path / "file" / "save"):
        pass


def test_a_note_that_cannot_be_read(tmp_path: Path) -> None:
    process = holder(tmp_path, 60)
    try:
        for content in (b"", b"{", b"[1]", b"\xff", b"[" * 900, b'{"process": 1}'):
            (tmp_path / ".in-use").write_bytes(content)
            with pytest.raises(bl.CheckpointError, match="another process trains"), in_use(tmp_path, 0.0):
                pass
    finally:
        end(process)


def test_the_folder_that_it_makes_is_synced_into_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first checkpoint could be complete after a power cut, in a folder that is not there."""
    synced: list[Path] = []
    monkeypatch.setattr(Disk, "fsync_dir", lambda self, path: synced.append(path))
    with in_use(tmp_path / "run" / "save"):
        assert synced == [tmp_path, tmp_path / "run"]
