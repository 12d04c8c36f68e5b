"""Which checkpoints win and which may go, against a definition by pairs."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from brainlib.checkpoint import Checkpointer, CheckpointError
from brainlib.checkpoint.retention import by_metric, doomed, rank, recency, require_metric
from tests.checkpoint.small import linear


@dataclass
class Info:
    commit: int
    meta: dict[str, Any] = field(default_factory=dict)


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


def better(a: Info, b: Info, key: str, order: str) -> bool:
    """Whether `a` goes before `b`: numbers before NaN, then the value, then the newer."""
    x, y = a.meta[key], b.meta[key]
    if math.isnan(x) != math.isnan(y):
        return math.isnan(y)
    if math.isnan(x) or x == y:
        return a.commit > b.commit
    return x > y if order == "max" else x < y


def kept_by_pairs(
    infos: list[Info], rules: list[tuple[str, str]], keep_recent: bool, num_to_keep: int
) -> list[int]:
    """A checkpoint stays when fewer than `num_to_keep` are better in some rule, or when it is in no rule."""
    kept = []
    for info in infos:
        wins, takes_part = False, keep_recent
        if keep_recent and sum(other.commit > info.commit for other in infos) < num_to_keep:
            wins = True
        for key, order in rules:
            if info.meta.get(key) is None:
                continue
            takes_part = True
            rivals = [other for other in infos if other.meta.get(key) is not None]
            if sum(better(other, info, key, order) for other in rivals) < num_to_keep:
                wins = True
        if wins or not takes_part:
            kept.append(info.commit)
    return kept


def random_history(rng: random.Random) -> tuple[list[Info], list[tuple[str, str]], bool, int]:
    infos = []
    for commit in rng.sample(range(1, 60), rng.randint(0, 12)):
        meta: dict[str, Any] = {}
        for key in ("loss", "acc/top-1"):
            if rng.random() < 0.8:
                meta[key] = rng.choice(VALUES) if rng.random() < 0.7 else rng.random()
            elif rng.random() < 0.3:
                meta[key] = None
        infos.append(Info(commit, meta))
    rules = rng.sample([("loss", "min"), ("loss", "max"), ("acc/top-1", "max")], rng.randint(0, 3))
    return infos, rules, rng.random() < 0.5, rng.randint(0, 4)


@pytest.mark.parametrize("block", range(4))
def test_random_histories_agree_with_the_definition(block: int) -> None:
    rng = random.Random(block)
    for _ in range(250):
        infos, rules, keep_recent, num_to_keep = random_history(rng)
        scores = [*([recency] if keep_recent else []), *(by_metric(key, order) for key, order in rules)]
        going = [info.commit for info in doomed(infos, scores, num_to_keep)]
        assert going == sorted(going), "the oldest goes first"
        left = sorted({info.commit for info in infos} - set(going))
        assert left == sorted(kept_by_pairs(infos, rules, keep_recent, num_to_keep))
        for key, order in rules:
            ranked = rank(infos, by_metric(key, order))
            for a, b in itertools.pairwise(ranked):
                assert better(a, b, key, order)
            assert {i.commit for i in ranked} == {
                i.commit for i in infos if i.meta.get(key) is not None and not math.isnan(i.meta[key])
            }


def test_random_histories_on_the_disk(tmp_path: Path) -> None:
    """The same through the Checkpointer, save by save, with restarts in between."""
    rng = random.Random(7)
    for number in range(12):
        folder = tmp_path / str(number)
        checkpointer = Checkpointer(folder, {"model": linear()})
        expected: list[Info] = []
        num_to_keep, keep_recent = rng.randint(1, 2), rng.random() < 0.5
        for _ in range(8):
            if rng.random() < 0.3:
                checkpointer = Checkpointer(folder, {"model": linear()})
            loss = rng.choice([math.nan, 0.1, 0.2, 0.2, 0.3])
            saved = checkpointer.save_and_keep_only(
                {"loss": loss}, num_to_keep=num_to_keep, keep_recent=keep_recent, min_keys=["loss"]
            )
            assert all(saved.commit > info.commit for info in expected)
            expected.append(Info(saved.commit, {"loss": loss}))
            kept = kept_by_pairs(expected, [("loss", "min")], keep_recent, num_to_keep)
            expected = [info for info in expected if info.commit in kept]
            assert sorted(c.commit for c in checkpointer.list_checkpoints()) == sorted(kept)
            numbers = [info for info in expected if not math.isnan(info.meta["loss"])]
            best = checkpointer.find_checkpoint(min_key="loss")
            assert (best is None) == (not numbers)
            if best is not None:
                assert all(
                    info.commit == best.commit or better(best, info, "loss", "min") for info in numbers
                )


def test_nan_never_evicts_and_never_wins() -> None:
    infos = [Info(1, {"loss": 0.5}), Info(2, {"loss": math.nan}), Info(3, {"loss": math.nan})]
    assert doomed(infos, [by_metric("loss", "min")], 1) == infos[1:]
    assert rank(infos, by_metric("loss", "max")) == infos[:1]
    assert doomed(infos[1:], [by_metric("loss", "min")], 1) == infos[1:2], (
        "of nothing but NaN the newest stays"
    )


def test_a_missing_metric_is_out_of_the_game() -> None:
    infos = [Info(1, {}), Info(2, {"loss": 1.0}), Info(3, {"loss": 2.0})]
    assert doomed(infos, [by_metric("loss", "min")], 1) == infos[2:]
    assert doomed(infos, [by_metric("loss", "min")], 0) == infos[1:]


def test_minus_one_keeps_all_and_the_candidates_are_left_alone() -> None:
    infos = [Info(i, {"loss": float(i)}) for i in (3, 1, 2)]
    assert doomed(infos, [recency], -1) == []
    assert doomed(infos, [recency], 0) == sorted(infos, key=lambda info: info.commit)
    assert [info.commit for info in infos] == [3, 1, 2]


def test_scores_of_the_user_may_be_tensors_and_may_decline() -> None:
    import torch

    infos = [Info(1, {"x": 1}), Info(2, {"x": 3}), Info(3, {"x": 2}), Info(4)]
    score = lambda info: torch.tensor(float(info.meta["x"])) if info.meta else None  # noqa: E731
    assert [info.commit for info in rank(infos, score)] == [2, 3, 1]


def test_a_metric_that_is_a_word() -> None:
    with pytest.raises(
        CheckpointError, match="the metric 'loss' of a checkpoint is 'low'; only numbers can be compared"
    ):
        rank([Info(1, {"loss": "low"})], by_metric("loss", "min"))


def test_a_metric_that_nobody_has() -> None:
    infos = [Info(1, {"WER": 3.0, "remark": "x"}), Info(2, {"CER": 1.0})]
    require_metric("CER", infos)
    with pytest.raises(
        CheckpointError,
        match="no checkpoint has the metric 'WRE'. Those there are: 'CER', 'WER'. Did you mean 'WER'",
    ):
        require_metric("WRE", infos)
