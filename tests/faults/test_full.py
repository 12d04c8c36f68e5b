"""A disk that is really full: the system's own refusals, not played ones."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from brainlib.checkpoint import Checkpointer
from brainlib.common.files import Disk
from tests.checkpoint.small import checkpointer_on, fill

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="needs fork: limits and mounts are a child's own"
)

CANNOT_MOUNT = 77


def in_a_child(work: Callable[[], None]) -> tuple[int, str]:
    """Its exit status, and what it said when it failed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            work()
            status = 0
        except SystemExit as leaving:
            status = int(str(leaving.code))
        except BaseException:  # noqa: BLE001  # it is told by the other end of the pipe
            os.write(writing, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), told


def small_and_large(value: float, numbers: int) -> dict[str, object]:
    """One whose numbers are many, with a name that comes last."""
    return {
        "model": fill(torch.nn.Linear(4, 4), value),
        "vast": fill(torch.nn.ParameterList([torch.zeros(numbers)]), value),
    }


def mount_small(folder: Path) -> None:
    """A file system of 2 MB, which only this process sees and which goes with it."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_user, new_mounts = 0x10000000, 0x00020000
    user, group = os.getuid(), os.getgid()
    if libc.unshare(new_user | new_mounts) != 0:
        raise SystemExit(CANNOT_MOUNT)
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    except OSError:
        raise SystemExit(CANNOT_MOUNT) from None
    if libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, b"size=2m") != 0:
        raise SystemExit(CANNOT_MOUNT)


def test_a_file_system_that_is_full(tmp_path: Path) -> None:
    def work() -> None:
        mount_small(tmp_path)
        checkpointer = Checkpointer(tmp_path / "save", small_and_large(1.0, 100_000))
        checkpointer.save_checkpoint({"n": 1}).wait()
        (tmp_path / "of somebody else").write_bytes(bytes(1_400_000))
        try:
            checkpointer_on(Disk(), tmp_path / "save", small_and_large(2.0, 100_000)).save_checkpoint(
                {"n": 2}
            )
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
            assert "recoverable 'vast'" in str(error), error
        else:
            raise AssertionError("it fitted")
        assert not list((tmp_path / "save").glob(".*")), "what was written of it is gone"
        again = small_and_large(0.0, 100_000)
        found = Checkpointer(tmp_path / "save", again).recover_if_possible()
        assert found is not None and found.meta == {"n": 1}
        (tmp_path / "of somebody else").unlink()
        Checkpointer(tmp_path / "save", small_and_large(2.0, 100_000)).save_checkpoint({"n": 2}).wait()
        found = Checkpointer(tmp_path / "save", again).recover_if_possible()
        assert found is not None and found.meta == {"n": 2}

    status, told = in_a_child(work)
    if status == CANNOT_MOUNT:
        pytest.skip("a small file system cannot be mounted here (user namespaces are off)")
    assert status == 0, told


def test_a_file_that_may_not_grow_further(tmp_path: Path) -> None:
    """The limit of a process: the system writes what fits, a short write, and then refuses."""

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        Checkpointer(tmp_path, small_and_large(1.0, 10_000)).save_checkpoint({"n": 1}).wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
        try:
            Checkpointer(tmp_path, small_and_large(2.0, 1_000_000)).save_checkpoint({"n": 2}).wait()
        except OSError as error:
            assert error.errno == errno.EFBIG, error
            assert "recoverable 'vast'" in str(error), error
        else:
            raise AssertionError("it fitted")
        assert not list(tmp_path.glob(".*"))
        found = Checkpointer(tmp_path, small_and_large(0.0, 10_000)).recover_if_possible()
        assert found is not None and found.meta == {"n": 1}

    status, told = in_a_child(work)
    assert status == 0, told
