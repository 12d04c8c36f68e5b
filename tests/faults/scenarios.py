"""What is saved, rotated and pruned while something fails, and who judges afterwards what is left.

The judge knows from outside the folder which states there were and which of them must have survived. It reads the
folder twice: with its own few lines, which share nothing with the library, and as a new run would.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from brainlib.checkpoint import Checkpointer
from brainlib.common.files import Disk
from brainlib.common.retrying import Retry
from tests.checkpoint.small import ONCE, Counter, checkpointer_on, fill, linear, pretend_dead, value_of
from tests.faults.disks import Call, ToldDisk

LARGE = 300_000  # numbers: more than what a file of ours holds back before it writes, so that there are several writes


def save_folder(obj: Counter, path: Path) -> None:
    """A hook that writes files of its own."""
    path.mkdir()
    (path / "one.txt").write_text(str(obj.n))
    (path / "two.txt").write_text(str(obj.n))


def load_folder(obj: Counter, path: Path, end_of_epoch: bool) -> None:
    one, two = (int((path / name).read_text()) for name in ("one.txt", "two.txt"))
    assert one == two
    obj.n = one


def objects(n: int, *, large: bool = False, hook: bool = False) -> dict[str, Any]:
    """Objects whose every number is `n`."""
    model = fill(linear(), float(n))
    found: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=float(n) + 1),
        "counter": Counter(n),
    }
    if large:
        found["large"] = fill(torch.nn.ParameterList([torch.zeros(LARGE)]), float(n))
    if hook:
        found["folder"] = Counter(n)
    return found


def number_of(found: dict[str, Any]) -> int:
    """The one number that all objects have; more than one is a state that was put together from two."""
    numbers = {value_of(obj) for obj in found.values() if isinstance(obj, torch.nn.Module)}
    numbers |= {float(obj.n) for obj in found.values() if isinstance(obj, Counter)}
    numbers.add(found["optimizer"].param_groups[0]["lr"] - 1)
    (number,) = numbers
    return int(number)


def checkpointer(
    folder: Path,
    found: dict[str, Any],
    disk: Disk | None = None,
    retry: Retry = ONCE,
    background: bool = False,
) -> Checkpointer:
    hooks: dict[str, Any] = {}
    if "folder" in found:
        hooks = {"custom_save_hooks": {"folder": save_folder}, "custom_load_hooks": {"folder": load_folder}}
    return checkpointer_on(disk or ToldDisk(), folder, found, retry, background=background, **hooks)


@dataclass(frozen=True)
class Scenario:
    """What is done to a folder while something fails.

    Args:
        act: The operation; `n` is the number of what it saves.
        before: How many saves there were before.
        keeps: Which of those before no fault may take, beside the newest.
        commits: Whether it saves something.
        large: Whether a file is so large that it takes several writes.
        hook: Whether an object writes files of its own.
        leftover: Whether a process that is gone has left something to sweep.
        prepare: How the saves before are made; by default as `act` does it.
    """

    act: Callable[[Checkpointer, int], object]
    before: int = 2
    keeps: tuple[int, ...] = ()
    commits: bool = True
    large: bool = False
    hook: bool = False
    leftover: bool = False
    prepare: Callable[[Checkpointer, int], object] | None = None

    def objects(self, n: int) -> dict[str, Any]:
        return objects(n, large=self.large, hook=self.hook)

    def make(self, folder: Path) -> None:
        """The folder as it is before anything fails."""
        for n in range(1, self.before + 1):
            (self.prepare or self.act)(checkpointer(folder, self.objects(n)), n)
        if self.leftover:
            left = folder / f".writing-4194399-1-ab-{platform.node() or 'unknown'}" / "sub"  # no such process
            left.mkdir(parents=True)
            (left / "half.pt").write_text("half")
            (left.parent / "model.pt").write_text("half")

    def run(self, folder: Path, disk: Disk, retry: Retry = ONCE, background: bool = False) -> None:
        """What something fails in, on this thread or on the one that writes."""
        n = self.before + 1
        acting = checkpointer(folder, self.objects(n), disk, retry, background)
        self.act(acting, n)
        acting.wait()


def plainly(c: Checkpointer, n: int) -> object:
    return c.save_checkpoint({"n": n})


def twice(c: Checkpointer, n: int) -> object:
    """The second one finds all that the first one knows."""
    plainly(c, n)
    return plainly(c, n)


SCENARIOS: dict[str, Scenario] = {
    "the first save": Scenario(plainly, before=0),
    "save": Scenario(plainly, keeps=(1,)),
    "save, several writes a file": Scenario(plainly, keeps=(1,), large=True),
    "save, files of a hook": Scenario(plainly, keeps=(1,), hook=True),
    "save, after a sweep": Scenario(plainly, keeps=(1,), leftover=True),
    "save twice": Scenario(twice, keeps=(1,)),
    "save under a name": Scenario(lambda c, n: c.save_checkpoint({"n": n}, name="best")),
    "save by the trainer": Scenario(lambda c, n: c.save_checkpoint({"n": n}, reason="timed"), before=3),
    "rotate, keep 1": Scenario(lambda c, n: c.save_and_keep_only({"n": n})),
    "rotate, keep 2": Scenario(lambda c, n: c.save_and_keep_only({"n": n}, num_to_keep=2)),
    "rotate, keep the best": Scenario(
        lambda c, n: c.save_and_keep_only({"n": n}, min_keys=["n"]), before=3, keeps=(1,)
    ),
    "prune to 1": Scenario(
        lambda c, n: c.delete_checkpoints(num_to_keep=1), before=3, commits=False, prepare=plainly
    ),
    "prune to the best": Scenario(
        lambda c, n: c.delete_checkpoints(num_to_keep=1, max_keys=["n"]),
        before=4,
        commits=False,
        prepare=plainly,
    ),
}


# ------------------------------------------------------------------------------------------------------------ the judge


def look(folder: Path) -> tuple[dict[int, Path], list[str]]:
    """What is intact, by number, and the names of folders that look like a checkpoint and are not intact."""
    intact: dict[int, tuple[int, Path]] = {}
    damaged: list[str] = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name.startswith(".") or not path.is_dir():
            continue
        try:
            content = json.loads((path / "manifest.json").read_text())
            told = content.pop("sha256")
            text = json.dumps(content, sort_keys=True, separators=(",", ":"))
            assert told == hashlib.sha256(text.encode()).hexdigest()
            for name, told in content["files"].items():
                data = (path / name).read_bytes()
                assert (len(data), hashlib.sha256(data).hexdigest()) == (told["size"], told["sha256"])
        except (OSError, ValueError, KeyError, AssertionError):
            damaged.append(path.name)
            continue
        number = int(content["meta"]["n"])
        if number not in intact or intact[number][0] < content["commit"]:
            intact[number] = content["commit"], path
    return {number: path for number, (_, path) in intact.items()}, damaged


def recovered(folder: Path, scenario: Scenario) -> int | None:
    """The number that a new run goes on from; None: from scratch."""
    live = scenario.objects(0)
    resuming = checkpointer(folder, live)
    checkpoint = resuming.recover_if_possible()
    number = number_of(live)
    listed = [(c.path, c.commit, c.meta) for c in resuming.list_checkpoints()]
    told = [(record.path, record.commit, record.metrics) for record in resuming.records()]
    assert told == listed, f"the journal tells of {told} and there are {listed}"
    assert number == (0 if checkpoint is None else checkpoint.meta["n"]), (
        f"the numbers of {number} were loaded from {checkpoint}"
    )
    return number or None


def judge(folder: Path, scenario: Scenario, newest: int | None, must: set[int]) -> list[str]:
    """What is wrong with a folder after a fault; empty when nothing is.

    Args:
        folder: As the fault left it.
        scenario: What was being done.
        newest: The number that recovery has to choose.
        must: The numbers that have to be there.
    """
    wrong = []
    intact, damaged = look(folder)
    if damaged:
        wrong.append(f"{damaged} look like checkpoints and are not intact")
    if not must <= set(intact):
        wrong.append(f"{sorted(must - set(intact))} lost; intact are {sorted(intact)}")
    try:
        with pretend_dead(
            folder
        ):  # of a fault that is no kill, this process, which lives, has left something
            found = recovered(folder, scenario)
    except Exception as error:  # noqa: BLE001  # whatever it is: that is the verdict
        return [*wrong, f"not recoverable: {error!r}"]
    if found != newest:
        wrong.append(f"{found} was chosen and {newest} is the newest")
    if left := [path.name for path in folder.glob(".*")]:
        wrong.append(f"{left} left after a new run has looked")
    # The folder goes on being used.
    later = scenario.before + 2
    plainly(checkpointer(folder, scenario.objects(later)), later)
    if (found := recovered(folder, scenario)) != later:
        wrong.append(f"{found} was chosen after a further save of {later}")
    return wrong


def committing(calls: list[Call]) -> int:
    """The number of the call that makes the new checkpoint one."""
    return next(
        i
        for i, call in enumerate(calls)
        if call.name == "rename"
        and call.path.name.startswith(".writing-")
        and call.target is not None
        and not call.target.suffix
    )
