"""After a power cut at any call, with any part of what was not synced gone, an intact checkpoint is there."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.disks import Call, ToldDisk
from tests.faults.replay import Forgetful, outcomes, write_out
from tests.faults.scenarios import SCENARIOS, Scenario, committing, look, recovered

REPLAYED = [name for name, scenario in SCENARIOS.items() if not scenario.large]


def recorded(scenario: Scenario, home: Path) -> tuple[Forgetful, list[Call]]:
    """The disk as it was before, and the calls of the operation."""
    (home / "a").mkdir(parents=True)
    scenario.make(home / "a" / "save")
    before = Forgetful(home)
    disk = ToldDisk()
    scenario.run(home / "a" / "save", disk)
    return before, disk.calls


def lost(scenario: Scenario, home: Path, without: str = "") -> Iterator[str]:
    """What a power cut after each of the calls would lose.

    Args:
        scenario: What is done.
        home: A free folder.
        without: A kind of sync that is left out, to see that it is missed.
    """
    disk, calls = recorded(scenario, home / "real")
    new = scenario.before + 1
    safe_from = len(calls)  # the call after which the new one has to be there
    if scenario.commits:
        commit = committing(calls)
        safe_from = next(i for i, call in enumerate(calls) if i > commit and call.name == "fsync_dir")
    rng = random.Random(1)
    seen: set[tuple[bool, int]] = set()
    for number in range(len(calls) + 1):
        for told, keep_changes, keep_bytes in outcomes(rng):
            what = disk.after_a_cut(keep_changes, keep_bytes)
            key = (number > safe_from, hash(tuple(sorted(what.items(), key=lambda item: item[0]))))
            if key in seen:
                continue
            seen.add(key)
            left = home / "left"
            write_out(what, left)
            where = f"after {number} calls, kept: {told}"
            intact, damaged = look(left / "a" / "save")
            must = set(scenario.keeps) | (
                {scenario.before} if number <= safe_from and scenario.before else set()
            )
            if not scenario.commits:
                must |= {scenario.before}
            elif number > safe_from:
                must = set(scenario.keeps) | {new}
            if damaged:
                yield f"{where}: {damaged} look like checkpoints and are not intact"
            if scenario.before and not intact:
                yield f"{where}: nothing is left"
            elif number > safe_from or not scenario.commits or new not in intact:
                if not must <= set(intact):
                    yield f"{where}: {must - set(intact)} lost"
            if not damaged and recovered(left / "a" / "save", scenario) != max(intact, default=None):
                yield f"{where}: another than {max(intact)} was chosen"
            shutil.rmtree(left)
        if number < len(calls):
            call = calls[number]
            if without and described(call) == without:
                continue
            disk.play(call)


def described(call: Call) -> str:
    if call.name == "fsync_dir":
        return (
            "fsync_dir of the draft" if call.path.name.startswith(".writing") else "fsync_dir of the folder"
        )
    if call.name == "fsync":
        return "fsync of the manifest" if call.path.name == "manifest.json" else "fsync of a file"
    return call.name


@pytest.mark.parametrize("name", REPLAYED)
def test_nothing_is_lost_by_a_power_cut(name: str, tmp_path: Path) -> None:
    assert list(lost(SCENARIOS[name], tmp_path)) == []


@pytest.mark.parametrize(
    "without",
    ["fsync of a file", "fsync of the manifest", "fsync_dir of the draft", "fsync_dir of the folder"],
)
def test_each_sync_is_needed(without: str, tmp_path: Path) -> None:
    """Left out, it is missed: the model really forgets."""
    assert next(lost(SCENARIOS["rotate, keep 1"], tmp_path, without), None) is not None


def test_the_syncs_are_counted_and_in_order(tmp_path: Path) -> None:
    """One for each file before the rename, one for the draft, one for the folder; then one for each that goes."""
    for name, scenario in SCENARIOS.items():
        _, calls = recorded(scenario, tmp_path / name)
        going = [
            i for i, c in enumerate(calls) if c.name == "rename" and c.target and c.target.name[0] == "."
        ]
        for i in going:
            assert calls[i + 1].name == "fsync_dir", "its removal lasts before its files go"
        if not scenario.commits:
            assert len(going) == scenario.before - 1
            continue
        commit = committing(calls)
        before = Counter(described(call) for call in calls[:commit])
        num_files = before["open_new"] + (2 if scenario.hook else 0)
        assert before["fsync of a file"] == num_files - 1, name
        assert before["fsync of the manifest"] == 1, name
        assert before["fsync_dir of the draft"] == 1, name
        assert sum(c.name == "fsync_dir" and c.path.name == "folder.ckpt" for c in calls) == scenario.hook, (
            name
        )
        assert [described(call) for call in calls[commit - 1 : commit + 2]] == [
            "fsync_dir of the draft",
            "rename",
            "fsync_dir of the folder",
        ]
        assert described([c for c in calls[:commit] if c.name == "fsync"][-1]) == "fsync of the manifest"
        assert all(i > commit + 1 for i in going), "the older goes only after the newer is there for good"
