"""What is promised of every metric. A new one joins with a row in METRICS."""

from __future__ import annotations

import io
import math
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import brainlib as bl
from brainlib.metrics import (
    AccuracyStats,
    BinaryMetricStats,
    ClassificationStats,
    ErrorRateStats,
    Metric,
    MetricStats,
)


def distance(guess: Any, target: Any) -> Any:
    return (guess - target).abs()


class Row(NamedTuple):
    make: Callable[[], Any]
    batch: Callable[[random.Random, int], tuple[Any, ...]]  # what append gets for the n-th batch, never empty


def scores(draw: random.Random, number: int) -> tuple[Any, ...]:
    values = [draw.uniform(-1, 1) * 10 ** draw.randrange(6) for _ in range(number)]
    return torch.tensor(values), torch.tensor([0.1] * number)


def sentences(draw: random.Random, number: int) -> tuple[Any, ...]:
    return tuple(
        [[draw.choice("abc") for _ in range(draw.randrange(6))] for _ in range(number)] for _ in "rh"
    )


def logits(draw: random.Random, number: int) -> tuple[Any, ...]:
    values = [[[draw.random() for _ in range(3)] for _ in range(4)] for _ in range(number)]
    targets = [[draw.randrange(3) for _ in range(4)] for _ in range(number)]
    return (
        torch.tensor(values),
        torch.tensor(targets),
        torch.tensor([draw.randrange(1, 5) for _ in range(number)]),
    )


def classes(draw: random.Random, number: int) -> tuple[Any, ...]:
    return tuple([draw.choice(["no", "yes", "maybe"]) for _ in range(number)] for _ in "pt")


def trials(draw: random.Random, number: int) -> tuple[Any, ...]:
    return torch.tensor([draw.gauss(0, 1) for _ in range(number)]), torch.tensor(
        [n % 2 for n in range(number)]
    )


METRICS = {
    "MetricStats": Row(lambda: MetricStats(distance), scores),
    "MetricStats item by item": Row(lambda: MetricStats(distance, batch_eval=False), scores),
    "ErrorRateStats": Row(ErrorRateStats, sentences),
    "AccuracyStats": Row(AccuracyStats, logits),
    "ClassificationStats": Row(ClassificationStats, classes),
    "BinaryMetricStats": Row(BinaryMetricStats, trials),
}
WITHOUT_IDS = {"AccuracyStats"}


def batches_of(name: str, number: int = 9) -> list[tuple[Any, ...]]:
    draw = random.Random(3)
    batches = []
    for place in range(number):
        size = draw.randrange(2, 6)
        ids = () if name in WITHOUT_IDS else ([f"utt-{place}-{item}" for item in range(size)],)
        batches.append((*ids, *METRICS[name].batch(draw, size)))
    return batches


def counted(name: str, batches: list[tuple[Any, ...]]) -> Any:
    metric = METRICS[name].make()
    for batch in batches:
        metric.append(*batch)
    return metric


def told(metric: Any) -> Any:
    """All that it answers; exact, the last bit included."""
    text = io.StringIO()
    if hasattr(metric, "write_stats"):
        metric.write_stats(text)
    return repr(metric.summarize()), text.getvalue()


@pytest.mark.parametrize("name", METRICS)
class TestEveryMetric:
    def test_the_order_of_batches_makes_no_difference(self, name: str) -> None:
        batches = batches_of(name)
        assert told(counted(name, batches[::-1])) == told(counted(name, batches))

    def test_parts_that_are_merged_are_the_whole(self, name: str) -> None:
        batches = batches_of(name)
        first, second = counted(name, batches[:4]), counted(name, batches[4:])
        kept = told(second)
        first.merge(second)
        assert told(first) == told(counted(name, batches)) and told(second) == kept
        first.append(*batches[0])
        assert told(second) == kept

    def test_the_first_saved_restored_and_the_rest_are_the_whole(self, name: str) -> None:
        batches = batches_of(name)
        state = counted(name, batches[:4]).state_dict()
        restored = counted(name, batches[7:])  # what was there goes
        restored.load_state_dict(state)
        for batch in batches[4:]:
            restored.append(*batch)
        assert told(restored) == told(counted(name, batches))
        again = METRICS[name].make()
        again.load_state_dict(state)  # the state is a copy, and was left alone
        assert told(again) == told(counted(name, batches[:4]))

    def test_a_state_with_other_keys_is_refused_and_changes_nothing(self, name: str) -> None:
        metric = counted(name, batches_of(name))
        kept, state = told(metric), metric.state_dict()
        short = dict(list(state.items())[1:])
        for wrong in ({**state, "more": 1}, short):
            with pytest.raises(ValueError, match=f"the state of a {type(metric).__name__} has the keys '"):
                metric.load_state_dict(wrong)
        assert told(metric) == kept

    def test_begins_anew(self, name: str) -> None:
        metric = counted(name, batches_of(name))
        metric.clear()
        for batch in batches_of(name, 3):
            metric.append(*batch)
        assert told(metric) == told(counted(name, batches_of(name, 3)))

    def test_says_that_there_is_nothing(self, name: str) -> None:
        with pytest.raises(ValueError, match="nothing was appended|positive_scores is empty"):
            METRICS[name].make().summarize()

    def test_merges_with_its_own_kind_alone(self, name: str) -> None:
        with pytest.raises(ValueError, match="cannot take in a Other"):
            METRICS[name].make().merge(type("Other", (Metric,), {})())

    def test_gathers_itself_in_one_process(self, name: str) -> None:
        metric = counted(name, batches_of(name))
        assert metric.gather() is metric

    def test_can_be_sent_to_another_process(self, name: str) -> None:
        metric = counted(name, batches_of(name))
        assert told(pickle.loads(pickle.dumps(metric))) == told(metric)

    def test_takes_no_summary_for_an_answer_that_is_not_there(self, name: str) -> None:
        if name == "AccuracyStats":
            pytest.skip("it has one answer")
        metric = counted(name, batches_of(name))
        for field, value in metric.summarize().items():
            assert metric.summarize(field) == value or math.isnan(value)
        with pytest.raises(ValueError, match="there is no 'wrong'; there is '"):
            metric.summarize("wrong")

    def test_an_append_that_fails_counts_nothing(self, name: str) -> None:
        if name in WITHOUT_IDS:
            pytest.skip("it has no ids")
        batches = batches_of(name)
        metric = counted(name, batches)
        with pytest.raises(ValueError, match="1 id and "):
            metric.append(["one"], *batches[0][1:])
        with pytest.raises(ValueError, match="the ids are one text, 'utt'"):
            metric.append("utt", *batches[0][1:])
        assert told(metric) == told(counted(name, batches))


def share(name: str) -> Any:
    """On a rank: every second batch, as an evaluation deals them out."""
    from brainlib.distributed.world import World

    world = World.from_environment()
    metric = counted(name, batches_of(name)[world.rank :: world.size])
    return told(metric.gather()), told(metric) == told(
        counted(name, batches_of(name)[world.rank :: world.size])
    )


def shares() -> dict[str, Any]:
    bl.ddp_init_group({"device": "cpu"})
    return {name: share(name) for name in METRICS}


def test_ranks_together_answer_as_one_process() -> None:
    for rank in bl.spawn(shares, 2):
        for name, (answer, own_is_kept) in rank.items():
            assert answer == told(counted(name, batches_of(name))), name
            assert own_is_kept


class Counting(bl.Brain):
    """Counts in training, so that a checkpoint in the middle of an epoch has to hold what was counted."""

    def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None:
        if stage == bl.Stage.TRAIN and self.run_state.step == 0:
            for metric in self.metrics.values():
                metric.clear()

    def compute_forward(self, batch: Any, stage: bl.Stage) -> Any:
        return self.modules.model(batch["x"])

    def compute_objectives(self, predictions: Any, batch: Any, stage: bl.Stage) -> Any:
        for name, metric in self.metrics.items():
            metric.append(*batch[name])
        return predictions.square().mean()

    def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Any, should_step: bool) -> None:
        if self.optimizer_step == self.hparams.dies_at:
            raise KeyError("dies here")

    def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: int | None = None) -> None:
        self.answers = {name: told(metric.gather()) for name, metric in self.metrics.items()}


def make_counting(folder: Path, dies_at: int) -> Counting:
    brain = Counting(
        {"model": torch.nn.Linear(2, 2)},
        lambda parameters: torch.optim.SGD(parameters, 0.1),
        {"seed": 1, "dies_at": dies_at},
        {"noprogressbar": True, "ckpt_interval_steps": 1},
        bl.Checkpointer(folder, background=False),
    )
    brain.metrics = {name.replace(" ", "_"): METRICS[name].make() for name in METRICS}
    return brain


def test_what_was_counted_survives_a_run_that_is_cut(tmp_path: Path) -> None:
    columns = {name.replace(" ", "_"): batches_of(name) for name in METRICS}
    data = [
        {"x": torch.ones(1, 2), **{name: column[n] for name, column in columns.items()}} for n in range(9)
    ]
    with pytest.raises(KeyError, match="dies here"):
        make_counting(tmp_path, dies_at=5).fit(range(1), data)
    resumed = make_counting(tmp_path, dies_at=0)
    resumed.fit(range(1), data)
    assert resumed.answers == {
        name.replace(" ", "_"): told(counted(name, batches_of(name))) for name in METRICS
    }
