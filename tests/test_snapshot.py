"""Snapshots against an oracle, on the disk, and in runs that fail, are cut and go on."""

from __future__ import annotations

import errno
import logging
import math
import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import brainlib as bl
from brainlib.checkpoint import Checkpointer, CheckpointError, load_weights
from brainlib.common.retrying import Retry
from brainlib.extension import Extension
from brainlib.options import RunOptions
from brainlib.snapshot import Snapshot
from tests.brain.small import Regression, batches, linear, sgd
from tests.checkpoint.small import Crash as DiskDied
from tests.checkpoint.small import DyingDisk, RecordingDisk, checkpointer_on

NUM_HISTORIES = int(os.environ.get("BRAINLIB_HISTORIES", "600"))
VALUES = [
    0.0,
    -0.0,
    0.25,
    0.25000001,
    0.5,
    -1.0,
    3,
    True,
    math.nan,
    math.nan,
    math.inf,
    -math.inf,
    1e-300,
    10**30,
]


# ------------------------------------------------------------------------------------------- against an oracle


class Crash(BaseException):
    """The process is gone."""


@dataclass
class Info:
    """What of a Checkpoint the rules and the oracle look at."""

    commit: int
    meta: dict[str, Any]
    reason: str
    snapshot_of: str | None = None
    number: int = 0
    path: Path = Path("x")

    def wait(self) -> Info:
        return self


@dataclass
class Shelf:
    """A Checkpointer in memory: the same four calls, without a disk, and it may die at a deletion."""

    infos: list[Info] = field(default_factory=list)
    last: int = 0
    dies_at_delete: bool = False
    loaded: Info | None = None
    written: Info | None = None

    def save_checkpoint(
        self, meta: Any, end_of_epoch: bool = True, *, reason: str, snapshot: tuple[str, int] | None = None
    ) -> Info:
        self.last += 1
        info = Info(self.last, meta, reason, *(snapshot or (None, 0)))
        self.infos.append(info)
        self.written = info
        return info

    def save_automatically(
        self, meta: Any, end_of_epoch: bool, *, on_error: str, going: list[Info], **given: Any
    ) -> Info:
        saved = self.save_checkpoint(meta, end_of_epoch, **given)
        for info in going:
            self.delete(info)
        return saved

    def list_checkpoints(self) -> list[Info]:
        return sorted(self.infos, key=lambda info: -info.commit)

    def delete(self, info: Info) -> None:
        if self.dies_at_delete:
            raise Crash
        self.infos = [each for each in self.infos if each is not info]


def better(a: Info, b: Info, key: str, order: str) -> bool:
    x, y = a.meta[key], b.meta[key]
    return a.commit > b.commit if x == y else x > y if order == "max" else x < y


def wins(info: Info, series: list[Info], rules: dict[str, Any]) -> bool:
    """Whether one rule keeps it, by counting those that are before it."""
    if rules["max_size"] == -1 or sum(each.commit > info.commit for each in series) < rules["max_size"]:
        return True
    if rules["keep_every"] and info.number % rules["keep_every"] == 0:
        return True
    for key, order, num in rules["best"]:
        if info.meta.get(key) is None or math.isnan(info.meta[key]):
            continue
        rivals = [
            each for each in series if each.meta.get(key) is not None and not math.isnan(each.meta[key])
        ]
        if sum(better(each, info, key, order) for each in rivals) < num:
            return True
    return False


def random_rules(rng: random.Random) -> dict[str, Any]:
    metrics = [("loss", "min"), ("loss", "max"), ("acc/top-1", "max")]
    return {
        "max_size": rng.choice([-1, 0, 1, 1, 2, 3]),
        "best": [(key, order, rng.randint(1, 3)) for key, order in rng.sample(metrics, rng.randint(0, 3))],
        "keep_every": rng.choice([0, 0, 1, 2, 3]),
    }


def random_meta(rng: random.Random) -> dict[str, Any]:
    meta: dict[str, Any] = {"step": 1}
    for key in ("loss", "acc/top-1"):
        if rng.random() < 0.8:
            meta[key] = rng.choice(VALUES) if rng.random() < 0.7 else rng.random()
        elif rng.random() < 0.3:
            meta[key] = None
    return meta


def play(rng: random.Random) -> None:
    """One history: two Snapshots, the user's and the trainer's own saves, restarts, other limits, crashes."""
    shelf, meta = Shelf(), {"loss": 0.5, "acc/top-1": 0.5}
    brain: Any = SimpleNamespace(
        checkpointer=shelf, run_state=SimpleNamespace(step=0), _options=SimpleNamespace(on_save_error="raise")
    )
    rules = {name: random_rules(rng) for name in ("a", "b")}
    ever: dict[str, list[Info]] = {
        "a": [],
        "b": [],
    }  # all that each has made: the oracle's memory, not the folder's
    changed = False

    def made() -> dict[str, Snapshot]:
        return {name: Snapshot(name=name, meta=lambda _: meta, **rules[name]) for name in rules}

    snapshots = made()
    counts = {"a": 0, "b": 0}
    for event in range(rng.randint(1, 14)):
        if rng.random() < 0.2:  # a restart, perhaps with other limits
            if rng.random() < 0.4:
                rules[rng.choice("ab")] = random_rules(rng)
                changed = True
            snapshots = made()
            shelf.written, shelf.loaded = None, shelf.list_checkpoints()[0] if shelf.infos else None
            for name, snapshot in snapshots.items():
                snapshot.load_state_dict({"count": counts[name]})
                before = list(shelf.infos)
                snapshot.start(brain)
                check(shelf, before, name, rules[name])
            continue
        if rng.random() < 0.2:
            shelf.save_checkpoint({}, reason=rng.choice(["user", "epoch", "error"]))
            continue
        name = rng.choice("ab")
        meta = random_meta(rng)
        if event == 0:
            meta = {"loss": 0.5, "acc/top-1": 0.5}
        before, last, shelf.dies_at_delete = list(shelf.infos), shelf.last, rng.random() < 0.15
        counts[name] += 1
        ever[name].append(Info(shelf.last + 1, meta, "snapshot", name, counts[name]))
        own = [info for info in before if info.snapshot_of == name and info.reason == "snapshot"]
        known = {
            key for info in [*own, ever[name][-1]] for key, value in info.meta.items() if value is not None
        }
        missing = [key for key, _, _ in rules[name]["best"] if key not in known]
        try:
            snapshots[name](brain)
        except Crash:
            shelf.dies_at_delete = False
            assert all(any(info is each for each in shelf.infos) for info in before), (
                "only deletions die here"
            )
            snapshots = made()  # what was saved counts, so the count is that of the crash
            for other, snapshot in snapshots.items():
                snapshot.load_state_dict({"count": counts[other]})
            snapshots[name].start(brain)
        except CheckpointError as error:
            shelf.dies_at_delete = False
            assert missing and f"no checkpoint has the metric {missing[0]!r}" in str(error)
            assert shelf.infos[-1].meta == meta, "the weights are safe first"
            continue
        else:
            assert not missing
        shelf.dies_at_delete = False
        if shelf.last > last:
            before.append(ever[name][-1])
        check(shelf, before, name, rules[name])
    if not changed:  # then what is there is what a memory without any deletion would keep
        for name, series in ever.items():
            left = {info.number for info in shelf.infos if info.snapshot_of == name}
            should = {info.number for info in series if wins(info, series, rules[name])}
            newest = max(
                (i for i in shelf.infos if i.reason != "error"), key=lambda i: i.commit, default=None
            )
            spare = {newest.number} if newest is not None and newest.snapshot_of == name else set()
            if not any(
                key for info in series for key, _, _ in rules[name]["best"] if info.meta.get(key) is None
            ):
                assert left - spare == should - spare


def check(shelf: Shelf, before: list[Info], name: str, rules: dict[str, Any]) -> None:
    """What is left of `before` is what the rules keep; nothing of anybody else is gone; there is one to go on from."""
    alive = [info for info in before if info.reason != "error"]
    newest = max(alive, key=lambda info: info.commit, default=None)
    series = [info for info in before if info.snapshot_of == name and info.reason == "snapshot"]
    for info in before:
        mine = info in series
        stays = not mine or wins(info, series, rules) or info is newest
        in_use = info is shelf.loaded and shelf.written is None
        assert any(info.commit == each.commit for each in shelf.infos) == (stays or in_use), info


@pytest.mark.parametrize("block", range(6))
def test_random_histories_agree_with_the_oracle(block: int) -> None:
    for number in range(NUM_HISTORIES // 6 + 1):
        seed = block * 1_000_000 + number
        try:
            play(random.Random(seed))
        except BaseException:
            print(f"history {seed}")
            raise


# --------------------------------------------------------------------------------------------------- real runs


def run(folder: Path, *extensions: Extension, cls: type[bl.Brain] = Regression, **run_opts: Any) -> Any:
    return cls(
        {"model": linear()},
        sgd,
        hparams={"seed": 0},
        run_opts={"noprogressbar": True, "device": "cpu", **run_opts},
        checkpointer=Checkpointer(folder),
        extensions=extensions,
    )


def epochs_in(folder: Path, reason: str = "snapshot") -> list[int]:
    return [
        c.counters["epoch"] for c in reversed(Checkpointer(folder).list_checkpoints()) if c.reason == reason
    ]


def test_the_last_ones_stay_and_a_smaller_limit_works_at_once(tmp_path: Path) -> None:
    data = batches(4, 4)
    run(tmp_path, Snapshot(max_size=3)).fit(bl.EpochCounter(5), data)
    assert epochs_in(tmp_path) == [3, 4, 5] and epochs_in(tmp_path, "epoch") == []
    snapshot = Snapshot(max_size=1)
    brain = run(tmp_path, snapshot)
    brain.on_stage_start = lambda stage, epoch: (_ for _ in ()).throw(RuntimeError("stop"))
    with pytest.raises(RuntimeError, match="stop"):
        brain.fit(bl.EpochCounter(6), data)
    assert epochs_in(tmp_path) == [5], "pruned at the start of the fit"


def test_a_run_goes_on_from_a_snapshot(tmp_path: Path) -> None:
    data = batches(4, 4, 4)
    whole = run(tmp_path / "a", Snapshot(trigger=(2, "step")))
    whole.fit(bl.EpochCounter(3), data)
    cut = run(tmp_path / "b", Snapshot(trigger=(2, "step")))
    cut.fit(bl.EpochCounter(2), data)
    again = run(tmp_path / "b", Snapshot(trigger=(2, "step")))
    again.fit(bl.EpochCounter(3), data)
    for one, two in zip(whole.modules.parameters(), again.modules.parameters(), strict=True):
        assert torch.equal(one, two)
    assert again._extensions["Snapshot"].count == whole._extensions["Snapshot"].count == 4


def test_best_and_every_nth(tmp_path: Path) -> None:
    wers = iter([30.0, 10.0, math.nan, 20.0, 25.0, 40.0])
    snapshot = Snapshot(0, best=[("WER", "min", 1)], keep_every=4, meta=lambda brain: {"WER": next(wers)})
    run(tmp_path, snapshot).fit(bl.EpochCounter(6), batches(4))
    assert epochs_in(tmp_path) == [2, 4]
    assert epochs_in(tmp_path, "epoch") == [5, 6], (
        "where nothing is kept, the trainer's own is there to go on from"
    )
    best = Checkpointer(tmp_path).find_checkpoint(min_key="WER")
    assert best is not None and best.meta == {"WER": 10.0} and best.snapshot_of == "Snapshot"


def test_several_share_a_folder_with_the_users_own(tmp_path: Path) -> None:
    class Saving(Regression):
        def on_stage_end(self, stage: Any, loss: float, epoch: Any) -> None:
            if stage == bl.Stage.TRAIN and epoch == 1:
                self.checkpointer.save_checkpoint({"mine": 1}, name="mine")

    often = Snapshot(2, trigger=(1, "step"), name="often")
    seldom = Snapshot(2, trigger=(2, "epoch"), name="seldom", best=[("train_loss", "min", 1)])
    run(tmp_path, often, seldom, cls=Saving).fit(bl.EpochCounter(6), batches(4, 4))
    found = Checkpointer(tmp_path).list_checkpoints()
    steps = {
        name: sorted(c.counters["optimizer_step"] for c in found if c.snapshot_of == name)
        for name in ("often", "seldom")
    }
    assert steps == {"often": [11, 12], "seldom": [8, 12]}
    assert [c.name for c in found if c.reason == "user"] == ["mine"]
    Checkpointer(tmp_path).delete_checkpoints(num_to_keep=0)
    assert len(Checkpointer(tmp_path).list_checkpoints()) == len(found) - 1, (
        "the user's rules leave snapshots alone"
    )


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_an_error_leaves_a_snapshot_from_which_nothing_goes_on(tmp_path: Path, error: BaseException) -> None:
    class Failing(Regression):
        def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Any, should_step: bool) -> None:
            if self.optimizer_step == 3:
                raise error

    for _ in range(2):  # the second time the older one of this kind goes
        brain = run(tmp_path, Snapshot(snapshot_on_error=True), cls=Failing)
        with pytest.raises(type(error)):
            brain.fit(bl.EpochCounter(3), batches(4, 4))
        found = Checkpointer(tmp_path).list_checkpoints()
        assert [(c.reason, c.counters["optimizer_step"]) for c in found] == [("error", 3), ("snapshot", 2)]
        assert found[0].meta == {"error": type(error).__name__, "message": str(error)}
    newest = Checkpointer(tmp_path).newest()
    assert newest is not None and newest.reason == "snapshot"
    going_on = run(tmp_path, Snapshot(snapshot_on_error=True))
    going_on.fit(bl.EpochCounter(1), batches(4, 4))
    assert going_on.optimizer_step == 2
    weights = load_weights(tmp_path, "model")["weight"]
    assert torch.equal(weights, torch.load(newest.path / "model.pt", weights_only=True)["weight"])


def test_without_being_asked_an_error_leaves_nothing(tmp_path: Path) -> None:
    class Failing(Regression):
        def on_stage_start(self, stage: Any, epoch: Any) -> None:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        run(tmp_path, Snapshot(), cls=Failing).fit(bl.EpochCounter(1), batches(4))
    assert [path.name for path in tmp_path.glob("*")] == ["starts.jsonl"], "of the ledger"


def test_a_misspelt_metric_is_told_after_the_weights_are_safe(tmp_path: Path) -> None:
    brain = run(tmp_path, Snapshot(0, best=[("train_los", "min", 1)]))
    with pytest.raises(
        CheckpointError,
        match="metric 'train_los'. Those there are: 'epoch', 'train_loss'. Did you mean 'train_loss'",
    ):
        brain.fit(bl.EpochCounter(1), batches(4))
    assert epochs_in(tmp_path) == [1]
    again = run(tmp_path, Snapshot(0, best=[("train_loss", "min", 1)]))
    again.fit(bl.EpochCounter(2), batches(4))
    assert again.optimizer_step == 2


def test_a_metric_that_was_only_logged_is_told_how_it_comes_into_a_checkpoint(tmp_path: Path) -> None:
    class Logging(Regression):
        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
            self.metrics = {"CER": 10.0 - (epoch or 0)}

    yaml = "snapshot: !new:brainlib.snapshot.Snapshot\n    max_size: 0\n    best: [[CER, min, 1]]\n"
    asked = "    meta: !new:operator.attrgetter [metrics]"
    brain = run(tmp_path, bl.load_hyperpyyaml(yaml)["snapshot"], cls=Logging)
    with pytest.raises(
        CheckpointError, match="goes to the loggers alone; the metrics of a snapshot"
    ) as error:
        brain.fit(bl.EpochCounter(1), batches(4))
    assert asked.strip() in str(error.value)
    brain = run(tmp_path, bl.load_hyperpyyaml(yaml + asked)["snapshot"], cls=Logging)
    brain.fit(bl.EpochCounter(3), batches(4))
    assert brain.checkpointer.find_checkpoint(min_key="CER").meta == {"CER": 7.0}


@pytest.mark.parametrize("again", [False, True])
def test_the_only_metric_of_the_rules_is_what_best_means(
    again: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = iter([3.0, 1.0, 2.0])
    rules: dict[str, Any] = {"best": [("WER", "min", 1)], "meta": lambda brain: {"WER": next(values)}}
    brain = run(tmp_path, Snapshot(**rules), Snapshot(1, name="often"))
    brain.fit(bl.EpochCounter(3), batches(4))
    if again:
        brain = run(tmp_path)
    caplog.set_level(logging.INFO, "brainlib")
    best = brain.checkpointer.find_checkpoint(min_key="WER")
    for choice in ("best", None):
        caplog.clear()
        brain.evaluate(batches(2), checkpoint=choice)
        assert f"{best.path} (smallest WER)" in caplog.text
    assert best.criterion == ("min", "WER"), "as `ckpt show` tells it"


def test_several_metrics_in_the_rules_are_named_where_best_is_asked_for(tmp_path: Path) -> None:
    snapshots = [
        Snapshot(best=[("train_loss", "min", 1)]),
        Snapshot(best=[("epoch", "max", 2)], name="other"),
    ]
    brain = run(tmp_path, *snapshots)
    brain.fit(bl.EpochCounter(1), batches(4))
    with pytest.raises(ValueError, match="give evaluate min_key='train_loss' or max_key='epoch' instead"):
        brain.evaluate(batches(2), checkpoint="best")
    brain.evaluate(batches(2))  # of the newest


def test_by_default_the_newest_where_no_snapshot_was_due(tmp_path: Path) -> None:
    brain = run(tmp_path, Snapshot(best=[("WER", "min", 1)], trigger=(9, "epoch")))
    brain.fit(bl.EpochCounter(1), batches(4))
    brain.evaluate(batches(2))
    with pytest.raises(CheckpointError, match="no checkpoint has the metric 'WER'"):
        brain.evaluate(batches(2), checkpoint="best")


def test_a_metric_that_is_a_word_is_told_after_the_weights_are_safe(tmp_path: Path) -> None:
    snapshot = Snapshot(0, best=[("loss", "min", 1)], meta=lambda brain: {"loss": "low"})
    with pytest.raises(CheckpointError, match="is 'low'; only numbers can be compared"):
        run(tmp_path, snapshot).fit(bl.EpochCounter(1), batches(4))
    assert epochs_in(tmp_path) == [1]


@pytest.mark.parametrize(("num", "expected"), [(2, [4, 5]), (-1, [1, 2, 3, 4, 5]), (0, [])])
def test_the_option(tmp_path: Path, num: int, expected: list[int]) -> None:
    run(tmp_path, num_snapshots=num).fit(bl.EpochCounter(5), batches(4))
    assert epochs_in(tmp_path) == expected
    again = run(tmp_path)  # the option comes and goes
    again.fit(bl.EpochCounter(6), batches(4))
    assert again.optimizer_step == 6


def test_the_option_in_a_file_and_without_a_checkpointer(caplog: pytest.LogCaptureFixture) -> None:
    assert RunOptions.resolve(None, {"run_opts": {"num_snapshots": 5}}).num_snapshots == 5
    with caplog.at_level(logging.WARNING, "brainlib"):
        Regression({"model": linear()}, sgd, run_opts={"num_snapshots": 5, "device": "cpu"})
    assert "num_snapshots has no effect: the Brain has no checkpointer" in caplog.text


def test_it_needs_a_checkpointer() -> None:
    brain = Regression({"model": linear()}, sgd, run_opts={"device": "cpu"}, extensions=[Snapshot()])
    with pytest.raises(
        ValueError, match="the extension 'Snapshot' saves checkpoints, and this Brain has no checkpointer"
    ):
        brain.fit(range(1), batches(4))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_size": -2}, "max_size is -2; give how many of the last to keep, 0 for none or -1 for all"),
        ({"max_size": True}, "max_size is True"),
        ({"max_size": 2.0}, "max_size is 2.0"),
        ({"keep_every": -1}, "keep_every is -1; give every how many one is kept for ever, or 0 for none"),
        ({"best": "WER"}, "best holds 'WER'; a rule is a metric, 'min' or 'max', and how many are kept"),
        ({"best": ("WER", "min", 3)}, r"best holds 'WER'; .*best=\[\(\"WER\", \"min\", 3\)\]"),
        ({"best": [("WER", "least", 3)]}, r"best holds \('WER', 'least', 3\); a rule is"),
        ({"best": [("WER", "min", 0)]}, r"best holds \('WER', 'min', 0\); a rule is"),
    ],
)
def test_slips_are_told_at_once(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Snapshot(**given)


def test_as_yaml_gives_it() -> None:
    snapshot = Snapshot(trigger=[2, "epoch"], best=[["WER", "min", 3]])  # type: ignore[arg-type,list-item]
    assert snapshot.trigger == (2, "epoch") and snapshot.best == (("WER", "min", 3),)


def test_a_state_of_something_else() -> None:
    with pytest.raises(
        ValueError, match="the saved state of the extension 'Snapshot' has the keys 'total', not 'count'"
    ):
        Snapshot().load_state_dict({"total": 3})


def test_dying_at_any_call_leaves_one_to_go_on_from(tmp_path: Path) -> None:
    """Also with a limit of one: the older goes only after the newer is on the disk."""
    brain: Any = SimpleNamespace(
        run_state=SimpleNamespace(step=0), _options=SimpleNamespace(on_save_error="raise")
    )
    at = 0
    while True:
        folder = tmp_path / str(at)
        brain.checkpointer = Checkpointer(folder, {"model": linear()})
        Snapshot(1, meta=lambda _: {"loss": 0.5})(brain)
        disk = DyingDisk(at)
        brain.checkpointer = checkpointer_on(disk, folder, {"model": linear()})
        snapshot = Snapshot(1, meta=lambda _: {"loss": 0.25})
        snapshot.load_state_dict({"count": 1})
        try:
            snapshot(brain)
            break
        except DiskDied:
            found = Checkpointer(folder, {"model": linear()}).recover_if_possible()
            assert found is not None and found.meta["loss"] in (0.5, 0.25), disk.calls[-1]
            at += 1
    assert at > 10 and [c.meta["loss"] for c in Checkpointer(folder).list_checkpoints()] == [0.25]


class FullDisk(RecordingDisk):
    """Takes nothing."""

    def call(self, name: str, path: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_may_only_be_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Checkpointer(tmp_path, {"model": linear()}).save_checkpoint(reason="snapshot", snapshot=("Snapshot", 1))
    checkpointer = checkpointer_on(FullDisk(), tmp_path, {"model": linear()})
    checkpointer.retry = Retry(())
    options = SimpleNamespace(on_save_error="warn")
    brain: Any = SimpleNamespace(
        checkpointer=checkpointer, run_state=SimpleNamespace(step=0), _options=options
    )
    snapshot = Snapshot(1, meta=lambda _: {})
    snapshot(brain)
    assert "NOT SAVED" in caplog.text and [c.number for c in checkpointer.list_checkpoints()] == [1]
    options.on_save_error = "raise"
    with pytest.raises(OSError, match="No space left on device"):
        snapshot(brain)
