"""A part of `make faults` that is quick enough for every day, and whether the sweep would see what it is there for."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from brainlib.checkpoint import Checkpointer
from brainlib.common.files import Disk
from tests.checkpoint.small import Counter as Numbered
from tests.checkpoint.small import RecordingDisk, checkpointer_on
from tests.faults import scenarios, sweep
from tests.faults.disks import FAULTS, Call, ToldDisk, WatchedDisk
from tests.faults.scenarios import SCENARIOS, Scenario, judge, look
from tests.faults.sweep import Fault, Folders, all_damages, all_faults, try_damage, try_fault

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="needs fork: a new interpreter for each kill takes long"
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folders]:
    home = tmp_path_factory.mktemp("faults")
    yield Folders(home)
    shutil.rmtree(home)


def test_a_part_of_the_sweep(folders: Folders) -> None:
    """One of each kind at each kind of call, and some more."""
    rng = random.Random(7)
    faults = all_faults(folders)
    rng.shuffle(faults)
    one_of_each = list({(fault.kind, fault.call, fault.background): fault for fault in faults}.values())
    some = [*one_of_each, *rng.sample(faults, 180 - len(one_of_each))]
    assert [(fault, wrong) for fault in some if (wrong := try_fault(folders, fault))] == []


def test_a_part_of_the_damage(folders: Folders) -> None:
    damages = random.Random(8).sample(all_damages(folders), 40)
    assert [(damage, wrong) for damage in damages if (wrong := try_damage(folders, damage))] == []


def test_the_sweep_is_complete(folders: Folders) -> None:
    """Every call of a save, a rotation and a pruning gets every fault that it can have, and there are a thousand."""
    faults = all_faults(folders)
    assert len(faults) + len(all_damages(folders)) >= 1000
    places = {(damage.file, damage.offset) for damage in all_damages(folders)}
    assert len(places) == 200
    assert {file for file, _ in places} >= {"manifest.json", "model.pt", "counter.json"}
    for name in ("save", "rotate, keep 1", "prune to 1"):
        for background in (False, True) if SCENARIOS[name].commits else (False,):
            got = {(f.at, f.kind) for f in faults if f.scenario == name and f.background == background}
            calls = folders.calls(name)
            assert got == {
                (at, kind)
                for at, call in enumerate(calls)
                for kind, at_calls in FAULTS.items()
                if call.name in at_calls
            }
    swept = {fault.call for fault in faults}
    assert swept == {name for name in vars(Disk) if not name.startswith("_")}, "all methods of a Disk"


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_thread_beside_makes_the_same_calls(name: str, folders: Folders) -> None:
    """So the faults of the sweep fall on the same calls in both."""
    disk = ToldDisk()
    SCENARIOS[name].run(folders.copy(name), disk, background=True)
    assert [call.name for call in disk.calls] == [call.name for call in folders.calls(name)]


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("name", SCENARIOS)
def test_an_intact_one_is_there_at_every_instant(name: str, background: bool, folders: Folders) -> None:
    """Looked at before and after each call by a reader of our own; also when only one is kept."""
    folder = folders.copy(name)
    scenario = SCENARIOS[name]
    seen: list[set[int]] = []

    def watch(call: Call) -> None:
        intact, damaged = look(folder)
        assert not damaged, call
        seen.append(set(intact))

    scenario.run(folder, WatchedDisk(watch), background=background)
    had_one = [bool(each) for each in seen]
    assert had_one == sorted(had_one), "once there is one, there always is"
    assert had_one[0] is (scenario.before > 0)
    assert had_one[-1]
    newest = [max(each, default=0) for each in seen]
    assert newest == sorted(newest), "and never an older one than before"


# --------------------------------------------------------------------------- no byte escapes, and does the sweep see it


def bytes_this_process_wrote() -> int:
    """As the kernel counts them: also those that C++ writes."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("wchar")))


@pytest.mark.skipif(
    not os.access("/proc/self/io", os.R_OK), reason="needs the kernel's count of bytes in /proc/self/io"
)
def test_no_byte_of_a_commit_escapes_the_disk(tmp_path: Path) -> None:
    """What the kernel counts is what went through the disk, and that is what lies there."""
    model = torch.nn.Linear(700, 700)
    model(torch.ones(1, 700)).sum().backward()
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.step()
    disk = RecordingDisk()
    checkpointer = checkpointer_on(
        disk, tmp_path, {"model": model, "optimizer": optimizer, "counter": Numbered(3)}
    )
    checkpointer.save_checkpoint(
        verbosity=0
    )  # what is written once only, such as a compiled file, is written now
    before, told_before = bytes_this_process_wrote(), disk.bytes_written
    checkpoint = checkpointer.save_checkpoint(verbosity=0)
    counted, told = bytes_this_process_wrote() - before, disk.bytes_written - told_before
    assert counted == told
    in_it = sum(path.stat().st_size for path in checkpoint.path.iterdir())
    assert in_it > 5_000_000
    assert 0 <= told - in_it < 10_000, "what is not in the checkpoint is the journal"


def test_a_checkpointer_that_deletes_first_is_found_out(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge is worth something only if it sees what other trainers do."""

    def delete_first(c: Checkpointer, n: int) -> object:
        c.delete_checkpoints(num_to_keep=0)
        return c.save_checkpoint({"n": n})

    rash = Scenario(delete_first, prepare=scenarios.plainly)
    monkeypatch.setattr(scenarios, "SCENARIOS", {"rash": rash})
    monkeypatch.setattr(sweep, "SCENARIOS", {"rash": rash})
    own = Folders(folders.home / "rash")
    own.home.mkdir()
    late = [fault for fault in all_faults(own) if fault.kind == "killed before" and fault.call == "open_new"]
    assert "lost" in str(try_fault(own, late[0]))


def test_a_judge_sees_damage_and_a_wrong_choice(folders: Folders) -> None:
    folder = folders.copy("save")
    scenario = SCENARIOS["save"]
    (look(folder)[0][2] / "model.pt").write_bytes(b"")
    wrong = judge(folder, scenario, newest=2, must={1, 2})
    assert "look like checkpoints and are not intact" in wrong[0]
    assert any("[2] lost; intact are [1]" in each for each in wrong)
    assert any("1 was chosen and 2 is the newest" in each for each in wrong)


def test_a_fault_that_does_not_come_to_pass_is_seen(folders: Folders) -> None:
    fault = Fault("save", 10_000, "write", "", "killed before")
    assert "it was not killed" in str(try_fault(folders, fault))
