"""Saves that are written beside training: of one moment, waited for by whoever looks, loud where they fail."""

from __future__ import annotations

import copy
import errno
import hashlib
import logging
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from brainlib.checkpoint import Checkpointer, CheckpointError, average_checkpoints, load_weights
from brainlib.checkpoint.journal import read_records
from brainlib.common.retrying import Retry
from tests.brain.small import batches, small
from tests.checkpoint.small import Counter, RecordingDisk, checkpointer_on, fill, linear, value_of
from tests.contracts.brains import SEVEN, Plain, digest, make, two_fits


class SlowDisk(RecordingDisk):
    """Writes nothing before it is told to; tells on which thread."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.threads: set[str] = set()

    def call(self, name: str, path: str) -> None:
        self.threads.add(threading.current_thread().name)
        super().call(name, path)

    def open_new(self, path: Path) -> int:
        assert self.gate.wait(30)
        return super().open_new(path)


class FullDisk(RecordingDisk):
    """Has no space from the moment on that `full` is set."""

    full = False

    def open_new(self, path: Path) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().open_new(path)


def beside(disk: Any, folder: Path, model: torch.nn.Module, **kwargs: Any) -> Checkpointer:
    return checkpointer_on(disk, folder, {"model": model}, background=True, **kwargs)


def test_a_save_returns_before_it_is_written_and_is_of_that_moment(tmp_path: Path) -> None:
    disk, model = SlowDisk(), linear(1.0)
    checkpointer = beside(disk, tmp_path, model)
    checkpoint = checkpointer.save_checkpoint({"n": 1})
    assert checkpoint.path == tmp_path / "commit-00000001" and not checkpoint.path.exists()
    assert checkpoint.files == {} and checkpointer.busy and checkpointer.written == checkpoint
    fill(model, 2.0)
    disk.gate.set()
    assert checkpoint.wait() is checkpoint
    assert not checkpointer.busy and set(checkpoint.files) == {"model.pt"}
    assert disk.threads == {"brainlib-checkpoint"}
    checkpointer.recover_if_possible()
    assert value_of(model) == 1.0


def test_the_promised_path_is_the_one_it_gets(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    for name in (None, "best", "best", None):
        checkpoint = checkpointer.save_checkpoint(name=name)
        promised, commit = checkpoint.path, checkpoint.commit
        assert (checkpoint.wait().path, checkpoint.commit) == (promised, commit)
        assert (promised / "manifest.json").exists()
    assert [c.path.name for c in checkpointer.list_checkpoints()] == [
        "commit-00000004",
        "CKPT+best",
        "commit-00000001",
    ]
    assert checkpointer.list_checkpoints()[0] == checkpoint


LOOKS: dict[str, Callable[[Path, Checkpointer, Any], Any]] = {
    "list": lambda folder, own, last: own.list_checkpoints()[0].meta["n"],
    "find": lambda folder, own, last: own.find_checkpoint(max_key="n").meta["n"],
    "records": lambda folder, own, last: own.records()[0].metrics["n"],
    "newest": lambda folder, own, last: own.newest().meta["n"],
    "recover": lambda folder, own, last: own.recover_if_possible().meta["n"],
    "load": lambda folder, own, last: own.load_checkpoint(last).meta["n"],
    "load by path": lambda folder, own, last: own.load_checkpoint(str(last.path)).meta["n"],
    "another object": lambda folder, own, last: Checkpointer(folder).list_checkpoints()[0].meta["n"],
    "another object loads": lambda folder, own, last: Checkpointer("x").load_checkpoint(last).meta["n"],
    "weights": lambda folder, own, last: load_weights(folder)["weight"].mean().item(),
    "weights of it": lambda folder, own, last: load_weights(last.path)["weight"].mean().item(),
    "average": lambda folder, own, last: average_checkpoints([last], "model")["weight"].mean().item(),
    "journal": lambda folder, own, last: read_records(folder)[0].metrics["n"],
    "its files": lambda folder, own, last: 2.0 * last.paramfiles["model"].exists(),
    "its objects": lambda folder, own, last: 2.0 * bool(last.saved("model").files),
}


@pytest.mark.parametrize("look", LOOKS)
def test_whoever_looks_waits(look: str, tmp_path: Path) -> None:
    disk, model = SlowDisk(), fill(linear(), 1.0)
    checkpointer = beside(disk, tmp_path, model)
    checkpointer.save_checkpoint({"n": 1.0})
    disk.gate.set()
    checkpointer.wait()
    disk.gate.clear()
    fill(model, 2.0)
    last = checkpointer.save_checkpoint({"n": 2.0})
    threading.Timer(0.1, disk.gate.set).start()
    assert LOOKS[look](tmp_path, checkpointer, last) == 2.0


def test_deleting_waits(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    for n in range(3):
        checkpointer.save_checkpoint({"n": n})
    checkpointer.delete_checkpoints(num_to_keep=1)
    assert [c.meta["n"] for c in checkpointer.list_checkpoints()] == [2]
    checkpointer.delete(checkpointer.save_checkpoint({"n": 3}))
    assert [c.meta["n"] for c in checkpointer.list_checkpoints()] == [2]


def test_an_error_is_logged_at_once_and_raised_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = FullDisk()
    checkpointer = beside(disk, tmp_path, linear(1.0))
    good = checkpointer.save_checkpoint().wait()
    disk.full = True
    lost = checkpointer.save_checkpoint()
    with pytest.raises(OSError, match=r"recoverable 'model' \(.*\) could not be written: No space left"):
        checkpointer.save_checkpoint()
    assert not checkpointer.busy and checkpointer.failed_saves == 1
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 1 and "could not be written: No space left" in told[0]
    checkpointer.wait()
    with pytest.raises(OSError, match="No space left"):
        lost.wait()
    disk.full = False
    assert checkpointer.list_checkpoints() == [good] and not list(tmp_path.glob(".*"))
    checkpointer.save_checkpoint().wait()
    assert len(checkpointer.list_checkpoints()) == 2


def test_the_error_comes_up_once_also_where_the_checkpoint_is_asked(tmp_path: Path) -> None:
    disk = FullDisk()
    disk.full = True
    checkpointer = beside(disk, tmp_path, linear())
    with pytest.raises(OSError, match="No space"):
        checkpointer.save_checkpoint().wait()
    assert checkpointer.list_checkpoints() == []


def test_what_cannot_be_saved_is_told_by_the_save_itself(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, {"counter": Counter({1}.__iter__())})  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"recoverable 'counter' .*: state\['n'\] is a builtins"):
        checkpointer.save_checkpoint()
    assert not checkpointer.busy and checkpointer.failed_saves == 1


def test_it_is_tried_again_beside(tmp_path: Path) -> None:
    class Once(FullDisk):
        def open_new(self, path: Path) -> int:
            try:
                return super().open_new(path)
            finally:
                self.full = False

    disk, paused = Once(), []
    disk.full = True
    checkpointer = beside(disk, tmp_path, linear(), retry=Retry([3.0], paused.append))
    checkpointer.save_checkpoint().wait()
    assert paused == [3.0] and len(checkpointer.list_checkpoints()) == 1


def test_a_misspelt_metric_is_told_after_the_weights_are_safe(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    with pytest.raises(CheckpointError, match="no checkpoint has the metric 'los'"):
        checkpointer.save_and_keep_only({"loss": 1.0}, min_keys=["los"])
    assert (tmp_path / "commit-00000001" / "manifest.json").exists()


def test_hooks_that_write_run_on_the_calling_thread(tmp_path: Path) -> None:
    threads = []

    def hook(obj: Counter, path: Path) -> None:
        threads.append(threading.current_thread())
        path.write_text(str(obj.n))

    def load(obj: Counter, path: Path, end_of_epoch: bool) -> None:
        obj.n = int(path.read_text())

    disk, counter = SlowDisk(), Counter(4)
    disk.gate.set()
    checkpointer = checkpointer_on(
        disk,
        tmp_path,
        {"counter": counter, "model": linear()},
        background=True,
        custom_save_hooks={"counter": hook},
        custom_load_hooks={"counter": load},
    )
    checkpointer.save_checkpoint()
    counter.n = 5
    checkpointer.recover_if_possible()
    assert counter.n == 4 and set(threads) == {threading.main_thread()}, (
        "at the load, to put it back if that fails"
    )
    assert {"brainlib-checkpoint", threading.main_thread().name} == disk.threads


@pytest.mark.parametrize("ending", ["pass", "raise KeyError('x')"])
def test_the_end_of_the_program_waits(ending: str, tmp_path: Path) -> None:
    script = (
        "import sys, torch, brainlib as bl\n"
        "model = torch.nn.Linear(1000, 3000)\n"
        f"bl.Checkpointer({str(tmp_path)!r}, {{'model': model}}).save_checkpoint()\n{ending}\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == (0 if ending == "pass" else 1), done.stderr
    assert "shutdown" not in done.stderr, done.stderr
    assert len(Checkpointer(tmp_path, {"model": torch.nn.Linear(1000, 3000)}).list_checkpoints()) == 1
    assert Checkpointer(tmp_path, {"model": torch.nn.Linear(1000, 3000)}).recover_if_possible() is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_meanwhile_leaves_it_alone(tmp_path: Path) -> None:
    """As a worker of a loader is."""
    disk = SlowDisk()
    checkpointer = beside(disk, tmp_path, linear())
    checkpoint = checkpointer.save_checkpoint()
    child = os.fork()
    if child == 0:
        os._exit(checkpointer.busy)
    disk.gate.set()
    assert os.waitpid(child, 0)[1] == 0
    assert checkpoint.wait().path.exists()


def test_without_memory_for_a_copy_it_is_written_while_training_waits(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            warned: list[str] = []
            logging.getLogger("brainlib").addFilter(
                lambda record: bool(warned.append(record.getMessage())) or True
            )
            model = torch.nn.Linear(1000, 50_000)  # 200 MB
            checkpointer = Checkpointer(tmp_path, {"model": model})
            now = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (now + 100_000_000, resource.RLIM_INFINITY))
            path = checkpointer.save_checkpoint({"n": 1}).path
            said = [line for line in warned if "no memory for a copy of the state" in line]
            status = 0 if (path / "manifest.json").exists() and len(said) == 1 else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_a_copy_of_a_checkpointer_has_a_thread_of_its_own(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    checkpointer.save_checkpoint()
    twin = copy.deepcopy(checkpointer)
    twin.save_checkpoint()
    checkpointer.save_checkpoint()
    twin.wait()
    assert len(checkpointer.list_checkpoints()) == 3


def test_switched_off(tmp_path: Path) -> None:
    disk = SlowDisk()
    disk.gate.set()
    checkpointer = checkpointer_on(disk, tmp_path, {"model": linear()}, background=False)
    assert checkpointer.save_checkpoint().path.exists()
    brain = small(checkpointer=Checkpointer(tmp_path / "brain"), ckpt_async=False)
    assert not brain.checkpointer.background
    assert disk.threads == {threading.main_thread().name}


# ------------------------------------------------------------------------------------------------------- with a Brain


def test_a_write_that_takes_longer_than_the_interval_puts_the_next_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SlowDisk()
    checkpointer = beside(disk, tmp_path, linear())
    steps = []

    class Brain(type(small())):  # type: ignore[misc]
        def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Any, should_step: bool) -> None:
            steps.append(self.optimizer_step)
            if self.optimizer_step == 5:
                disk.gate.set()
                while checkpointer.busy:
                    time.sleep(0.001)

    brain = small(Brain, checkpointer=checkpointer, ckpt_interval_steps=2)
    brain.fit(range(1), batches(*[1] * 8))
    assert sum("put off until that is done" in record.getMessage() for record in caplog.records) == 1
    saved = [(c.reason, c.counters["optimizer_step"]) for c in checkpointer.list_checkpoints()]
    assert saved == [("epoch", 8), ("timed", 5)] or saved == [("epoch", 8), ("timed", 6)], (
        "two automatic ones"
    )


def test_fit_returns_when_all_is_on_the_disk(tmp_path: Path) -> None:
    brain = small(checkpointer=bl.Checkpointer(tmp_path))
    brain.fit(range(2), batches(2))
    assert not brain.checkpointer.busy and len(list(tmp_path.glob("step-*/manifest.json"))) == 2


def test_an_error_beside_ends_the_run_at_the_next_update(tmp_path: Path) -> None:
    disk = FullDisk()
    disk.full = True
    brain = small(checkpointer=beside(disk, tmp_path, linear()), ckpt_interval_steps=1)
    with pytest.raises(OSError, match="No space left"):
        brain.fit(range(1000), batches(1, 1))
    assert brain.optimizer_step < 1000


def test_evaluate_waits_and_tells(tmp_path: Path) -> None:
    disk = FullDisk()
    checkpointer = beside(disk, tmp_path, linear())
    brain = small(checkpointer=checkpointer)
    brain.fit(range(1), batches(2))
    disk.full = True
    checkpointer.save_checkpoint()
    with pytest.raises(OSError, match="No space left"):
        brain.evaluate(batches(2), checkpoint="current")
    brain.evaluate(batches(2), checkpoint="current")


def test_a_run_that_is_told_to_warn_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = FullDisk()
    disk.full = True
    brain = small(checkpointer=beside(disk, tmp_path, linear()), ckpt_interval_steps=1, on_save_error="warn")
    brain.fit(range(2), batches(1, 1))
    assert brain.optimizer_step == 4 and brain.checkpointer.failed_saves >= 2
    assert any(record.getMessage().startswith("NOT SAVED: ") for record in caplog.records)


def test_broken_weights_are_not_committed(tmp_path: Path) -> None:
    brain = small(checkpointer=bl.Checkpointer(tmp_path))
    brain.fit(range(1), batches(1))
    brain.modules.model.weight.data.fill_(float("nan"))
    with pytest.raises(
        ValueError, match=r"no checkpoint is made, because the parameters 'model\.weight' hold"
    ):
        brain.checkpointer.save_checkpoint().wait()
    assert len(brain.checkpointer.list_checkpoints()) == 1 and not list(tmp_path.glob(".*"))


def bits(brain: bl.Brain) -> str:
    named = sorted(brain.modules.state_dict().items())
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for _, tensor in named)).hexdigest()


@pytest.mark.parametrize("cls", SEVEN, ids=lambda cls: cls.__name__)
def test_saving_beside_changes_nothing_and_each_checkpoint_is_of_one_moment(
    cls: type[Plain], tmp_path: Path
) -> None:
    """A disk so slow that training is always ahead of what is written; what is written is where it says it is."""

    class Lazy(RecordingDisk):
        def fsync(self, fd: int) -> None:
            time.sleep(0.002)

    reference = make(cls)
    two_fits(reference)
    moments: dict[int, str] = {}

    class Keeping(Checkpointer):
        def save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
            checkpoint = super().save_checkpoint(*args, **kwargs)
            moments[checkpoint.commit] = bits(brain)
            return checkpoint

        def save_automatically(self, *args: Any, **kwargs: Any) -> Any:
            checkpoint = super().save_automatically(*args, **kwargs)
            moments[checkpoint.commit] = bits(brain)
            return checkpoint

    Keeping.disk = Lazy()
    brain = make(cls, Keeping(tmp_path), ckpt_interval_steps=1, num_snapshots=-1)
    two_fits(brain)
    assert digest(brain) == digest(reference)
    other = make(cls, Checkpointer(tmp_path), global_seed=99)
    other.on_fit_start()
    looked_at = 0
    for checkpoint in other.checkpointer.list_checkpoints():
        if checkpoint.commit in moments:
            with other.checkpointer.weights_only():
                other.checkpointer.load_checkpoint(checkpoint)
            assert bits(other) == moments[checkpoint.commit], checkpoint
            looked_at += 1
    assert looked_at >= 3


# ------------------------------------------------------------------------------------------- several, and in odd places


def test_two_objects_that_save_in_turn_number_on(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    one = Checkpointer(tmp_path / "real", {"model": linear()})
    two = Checkpointer(tmp_path / "link", {"model": linear()})
    commits = [
        each.save_checkpoint({"n": n}).wait().commit for n, each in enumerate((one, two, two, one, two))
    ]
    assert commits == [1, 2, 3, 4, 5]
    assert [c.meta["n"] for c in one.list_checkpoints()] == [4, 3, 2, 1, 0]
    one.save_checkpoint({"n": 5})
    assert two.find_checkpoint().meta["n"] == 5, "through a link, too, one waits"


def test_what_was_let_go_is_not_what_was_written(tmp_path: Path) -> None:
    """A run that stops here has to save, instead of pointing to it."""
    checkpointer = Checkpointer(tmp_path, {"model": linear()})
    checkpointer.save_and_keep_only({"loss": 1.0}, min_keys=["loss"], keep_recent=False).wait()
    good = checkpointer.written
    checkpointer.save_and_keep_only({"loss": 2.0}, min_keys=["loss"], keep_recent=False)
    assert checkpointer.written == good, "the coming one goes as soon as it is there"
    checkpointer.wait()
    assert checkpointer.written is None
    assert [c.meta["loss"] for c in checkpointer.list_checkpoints()] == [1.0]
    checkpointer.delete(checkpointer.save_checkpoint())
    assert checkpointer.written is None


def test_a_save_inside_a_save_is_told(tmp_path: Path) -> None:
    def hook(obj: Counter, path: Path) -> None:
        checkpointer.save_checkpoint()

    checkpointer = Checkpointer(
        tmp_path, custom_save_hooks={"c": hook}, custom_load_hooks={"c": lambda obj, path, end_of_epoch: None}
    )
    checkpointer.add_recoverable("c", Counter(1))
    with pytest.raises(CheckpointError, match="a save began while another one"):
        checkpointer.save_checkpoint()
    assert not list(tmp_path.glob(".*"))


def test_it_can_be_pickled(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": linear(3.0)})
    checkpointer.save_checkpoint()
    again = pickle.loads(pickle.dumps(checkpointer))
    assert again.save_checkpoint().wait().commit == 2


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "deepcopy inside of something": lambda checkpoint: copy.deepcopy({"best": [checkpoint]})["best"][0],
    "copy of a copy": lambda checkpoint: copy.copy(copy.deepcopy(checkpoint)),
    "pickle": lambda checkpoint: pickle.loads(pickle.dumps(checkpoint)),
    "pickle of a copy": lambda checkpoint: pickle.loads(pickle.dumps(copy.deepcopy(checkpoint))),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES.keys())
def test_a_copy_of_a_checkpoint_waits_too(copied: Callable[[Any], Any], tmp_path: Path) -> None:
    disk = SlowDisk()
    checkpointer = beside(disk, tmp_path, linear())
    checkpoint = checkpointer.save_checkpoint({"n": 1})
    twin = copied(checkpoint)
    assert twin is not checkpoint and twin == checkpoint and twin.files == {} and checkpointer.busy
    threading.Timer(0.05, disk.gate.set).start()
    assert twin.wait() is twin
    assert (twin.path / "manifest.json").exists() and not checkpointer.busy
    assert twin.files == checkpoint.files and set(twin.files) == {"model.pt"}
    assert twin.paramfiles == {"model": tmp_path / "commit-00000001" / "model.pt"}
    assert twin.saved("model").kind == "module" and twin.wait() is twin
    assert copied(twin).wait().files == twin.files, "once it is there"


@pytest.mark.parametrize("copied", [COPIES["copy"], COPIES["deepcopy"], COPIES["copy of a copy"]])
def test_a_copy_learns_of_an_error(copied: Callable[[Any], Any], tmp_path: Path) -> None:
    disk = FullDisk()
    disk.full = True
    checkpointer = beside(disk, tmp_path, linear(), retry=Retry(()))
    twin = copied(checkpointer.save_checkpoint())
    with pytest.raises(OSError, match="No space left"):
        twin.wait()


def test_what_a_pickled_copy_cannot_wait_for_is_said(tmp_path: Path) -> None:
    """In another process: nothing is there yet, nothing is there any more, and another checkpoint is there."""
    disk = SlowDisk()
    checkpointer = beside(disk, tmp_path, linear())
    checkpoint = checkpointer.save_checkpoint({"n": 1})
    (tmp_path / "pickle").write_bytes(pickle.dumps(checkpoint))
    script = f"""
import pathlib, pickle
from brainlib.checkpoint import CheckpointError
twin = pickle.loads(pathlib.Path({str(tmp_path / "pickle")!r}).read_bytes())
try:
    print(sorted(twin.wait().files))
except CheckpointError as error:
    print(error)
"""

    def elsewhere() -> str:
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    told = elsewhere()
    assert told.startswith(f"{checkpoint.path} is not there, or not yet: it has no manifest.json.")
    assert "only the process that writes it can wait for it: call wait() there" in told
    disk.gate.set()
    checkpoint.wait()
    assert elsewhere() == "['model.pt']"
    checkpointer.delete(checkpoint)
    assert elsewhere().startswith(f"{checkpoint.path} is not there")
    other = Checkpointer(tmp_path, {"model": linear()}).save_checkpoint().wait()
    other.path.rename(checkpoint.path)
    assert "is another checkpoint (commit" in elsewhere()


def test_ctrl_c_in_saves_loses_nothing_and_blocks_nothing(tmp_path: Path) -> None:
    """Real ones, at random moments, from outside."""
    script = (
        "import gc, logging, signal, sys, time, threading, torch, brainlib as bl\n"
        "logging.getLogger('brainlib').setLevel('ERROR')\n"  # nobody reads the pipe meanwhile
        "model = torch.nn.Linear(400, 400)\n"
        f"c = bl.Checkpointer({str(tmp_path)!r}, {{'model': model}}, background=sys.argv[1] == '1')\n"
        "def interrupt(number, frame):\n"  # anywhere in a save, not in the few lines around it
        "    while frame is not None:\n"
        "        if frame.f_code.co_name == 'save_and_keep_only':\n"
        "            raise KeyboardInterrupt\n"
        "        frame = frame.f_back\n"
        "signal.signal(signal.SIGINT, interrupt)\n"
        "end, n = time.time() + 2, 0\n"
        "print('ready', flush=True)\n"
        "while time.time() < end:\n"
        "    try:\n"
        "        while time.time() < end:\n"
        "            c.save_and_keep_only({'n': n}, num_to_keep=2); n += 1\n"
        "    except KeyboardInterrupt:\n"
        "        pass\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "c.wait(); c.save_checkpoint({'last': 1}).wait()\n"
        "assert c.recover_if_possible().meta == {'last': 1}\n"
        "gc.collect()\n"  # an error that was interrupted itself keeps its frames in a ring
        "deadline = time.time() + 5\n"
        "def left():\n"  # not what Python goes on listing when it was interrupted before it began
        "    return [thread for thread in threading.enumerate()[1:] if thread.ident is not None]\n"
        "while left() and time.time() < deadline:\n"
        "    time.sleep(0.01)\n"
        "print('saved', n, left(), flush=True)\n"
    )
    for background in "10":
        process = subprocess.Popen(
            [sys.executable, "-c", script, background],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        rng = random.Random(3)
        while process.poll() is None:
            time.sleep(rng.uniform(0.005, 0.06))
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0 and "saved" in out and "[]" in out, (background, out, err)
