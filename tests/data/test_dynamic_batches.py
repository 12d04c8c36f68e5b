"""DynamicBatchSampler: every item once, the cap never exceeded, little padded, and still near to random."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import brainlib as bl
from brainlib.data.buckets import learn_edges

NUM = 8_000
CAP = 120.0


def lengths_like_speech(num: int = NUM, seed: int = 0) -> np.ndarray[Any, Any]:
    """Seconds: two thirds about 14, the rest down to 1."""
    generator = np.random.default_rng(seed)
    short = generator.uniform(1.4, 13.0, num)
    return np.where(generator.random(num) < 0.65, generator.normal(14.2, 1.6, num).clip(1.3, 25.0), short)


LENGTHS = lengths_like_speech()


@pytest.fixture(scope="module")
def sampler() -> bl.DynamicBatchSampler:
    return bl.DynamicBatchSampler(range(NUM), CAP, lengths_list=LENGTHS, seed=0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": False},
        {"mix": 0.0},
        {"mix": 1.0},
        {"num_buckets": 1},
        {"num_buckets": 500},
        {"max_batch_ex": 7},
        {"batch_ordering": "ascending"},
        {"bucket_boundaries": [5.0, 10.0, 99.0]},
        {"num_alike": 3},
    ],
    ids=str,
)
def test_every_item_once_and_the_cap_never_exceeded(options: dict[str, Any]) -> None:
    sampler = bl.DynamicBatchSampler(range(NUM), CAP, lengths_list=LENGTHS, **options)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(batches) == len(sampler)
        assert sorted(index for batch in batches for index in batch) == list(range(NUM))
        assert max(len(batch) * LENGTHS[batch].max() for batch in batches) <= CAP
        assert max(map(len, batches)) <= options.get("max_batch_ex", NUM)


def test_little_is_padded_and_work_is_even(sampler: bl.DynamicBatchSampler) -> None:
    report = sampler.report(num_ranks=8)
    assert report.padding < 0.035 and report.num_items == NUM and report.longest <= CAP
    assert report.mean > 0.9 * CAP
    forced = bl.DynamicBatchSampler(range(NUM), CAP, lengths_list=LENGTHS, seed=0, num_alike=8)
    assert forced.report(num_ranks=8).imbalance < 0.02
    assert f"{report.num_items} items in {report.num_batches} batches" in str(report)
    assert "8 ranks, the slowest of a round" in str(report) and "120 allowed" in str(report)


def test_learnt_edges_pad_less_than_even_ones() -> None:
    def padding(edges: Any) -> float:
        sampler = bl.DynamicBatchSampler(
            range(NUM), CAP, lengths_list=LENGTHS, bucket_boundaries=edges, mix=0.0, seed=0
        )
        return sampler.report().padding

    learnt = learn_edges(np.sort(LENGTHS), 12)
    assert len(learnt) == 12 and learnt[-1] == LENGTHS.max()
    assert padding(learnt) < 0.9 * padding(np.linspace(LENGTHS.min(), LENGTHS.max(), 13)[1:])
    assert padding(learnt) < 0.95 * padding(np.quantile(LENGTHS, np.linspace(0, 1, 13)[1:]))


def test_the_best_edges_are_found() -> None:
    """Against all ways to cut twelve lengths into three."""
    lengths = np.sort(np.random.default_rng(3).uniform(1, 20, 12))

    def cost(edges: Any) -> float:
        return float((np.asarray(edges)[np.searchsorted(edges, lengths)] - lengths).sum())

    best = min(cost([lengths[i], lengths[j], lengths[-1]]) for i in range(10) for j in range(i + 1, 11))
    assert cost(learn_edges(lengths, 3)) == pytest.approx(best)


def test_it_is_near_to_random(sampler: bl.DynamicBatchSampler) -> None:
    """The order of batches says nothing of lengths, batches differ from epoch to epoch, and items meet far ones."""
    plans = [sampler.plan(0, epoch) for epoch in range(30)]
    for plan in plans:
        tops = np.maximum.reduceat(LENGTHS[plan.indices], plan.starts[:-1])
        ranks = np.argsort(np.argsort(tops, kind="stable"))
        assert abs(np.corrcoef(ranks, np.arange(len(plan)))[0, 1]) < 0.1
        parts = [part.mean() for part in np.array_split(tops, 16)]
        assert np.ptp(parts) < 0.3 * tops.mean(), "each part of the epoch has all lengths"
    pairs = [
        {
            tuple(sorted(pair))
            for number in range(len(p))
            for pair in zip(p.batch(number), p.batch(number)[1:], strict=False)
        }
        for p in plans[:2]
    ]
    assert len(pairs[0] & pairs[1]) < 0.02 * len(pairs[0])

    rank = np.empty(NUM, int)
    rank[np.argsort(LENGTHS, kind="stable")] = np.arange(NUM)
    item = int(np.argsort(LENGTHS)[NUM // 2])
    met: set[int] = set()
    for plan in plans:
        batch = np.searchsorted(plan.starts, np.flatnonzero(plan.indices == item)[0], side="right") - 1
        met |= set((rank[plan.batch(int(batch))] * 50 // NUM).tolist())
    assert len(met) >= 8, "an item in the middle meets others from more than a few fiftieths of the lengths"


def test_orders_of_batches() -> None:
    def tops(ordering: str) -> list[float]:
        sampler = bl.DynamicBatchSampler(
            range(NUM), CAP, lengths_list=LENGTHS, batch_ordering=ordering, mix=0.0
        )
        return [LENGTHS[batch].max() for batch in sampler]

    edges = learn_edges(np.sort(LENGTHS), 50)
    up, down = (np.searchsorted(edges, tops(each)) for each in ("ascending", "descending"))
    assert (np.diff(up) >= -1).all() and (np.diff(down) <= 1).all()
    assert up[0] == down[-1] == 0 and up[-1] > 40 and down[0] > 40


@pytest.mark.parametrize("num_items", [1, 2, 3, 10, 65])
def test_few_items(num_items: int) -> None:
    lengths = lengths_like_speech(num_items, seed=num_items)
    sampler = bl.DynamicBatchSampler(range(num_items), 60.0, lengths_list=lengths)
    assert sorted(index for batch in sampler for index in batch) == list(range(num_items))
    assert sampler.report(num_ranks=4).num_items == num_items


def test_equal_lengths_are_plain_batches() -> None:
    sampler = bl.DynamicBatchSampler(range(100), 1.0, lengths_list=[0.1] * 100)
    assert [len(batch) for batch in sampler] == [10] * 10, "0.1 * 10 fits, however it is rounded"
    assert sampler.report().padding == 0.0


def test_the_last_batch_may_be_dropped() -> None:
    sizes = [
        sorted(map(len, bl.DynamicBatchSampler(range(25), 10.0, lengths_list=[1.0] * 25, drop_last=drop)))
        for drop in (False, True)
    ]
    assert sizes == [[5, 10, 10], [10, 10]]


DATA = bl.DynamicItemDataset(
    {f"utt{n}": {"duration": length} for n, length in enumerate([1.0, 9.0, 2.0, 12.0])}
)


def test_too_long_is_an_error_that_names_it() -> None:
    with pytest.raises(
        ValueError,
        match=r"2 of 4 items are longer than max_batch_length=8: 'utt1' \(9\), 'utt3' \(12\)\. Raise",
    ):
        bl.DynamicBatchSampler(DATA, 8.0)


def test_too_long_is_dropped_by_name_where_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="brainlib"):
        sampler = bl.DynamicBatchSampler(DATA, 8.0, over_long="drop")
    assert (
        "2 of 4 items are longer than max_batch_length=8 and dropped: 'utt1' (9), 'utt3' (12)" in caplog.text
    )
    assert sorted(index for batch in sampler for index in batch) == [0, 2]
    assert sampler.dropped == ["utt1", "utt3"] and sampler.report().num_dropped == 2
    with pytest.raises(ValueError, match="all items are longer than max_batch_length=0.5"):
        bl.DynamicBatchSampler(DATA, 0.5, over_long="drop")


def test_where_lengths_come_from() -> None:
    by_key = bl.DynamicBatchSampler(DATA, 20.0)
    by_row = bl.DynamicBatchSampler(DATA, 20.0, length_func=lambda row: row["duration"])
    assert by_key.lengths.tolist() == by_row.lengths.tolist() == [1.0, 9.0, 2.0, 12.0]
    data = bl.DynamicItemDataset(DATA.data)
    data.add_dynamic_item(lambda duration: int(duration * 100), takes="duration", provides="num_frames")
    assert bl.DynamicBatchSampler(data, 2000, length_func="num_frames").lengths.tolist() == [
        100,
        900,
        200,
        1200,
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_batch_length": 0}, "max_batch_length is 0; it must be a positive number"),
        ({"num_buckets": 0}, "num_buckets is 0; it must be at least 1, or None"),
        ({"max_batch_ex": 0}, "max_batch_ex is 0; it must be at least 1, or None"),
        (
            {"batch_ordering": "up"},
            "batch_ordering is 'up'; it must be 'random', 'ascending' or 'descending'",
        ),
        ({"over_long": "keep"}, "over_long is 'keep'; it must be 'error' or 'drop'"),
        ({"mix": 2}, "mix is 2; it must be a share from 0 to 1"),
        ({"lengths_list": [1.0]}, "lengths_list has 1 entry, and the data set 4 items"),
        (
            {"lengths_list": [1.0, 0.0, 2.0, 1.0]},
            "1 item has a length that is no positive number: 'utt1' (the first",
        ),
        ({"lengths_list": [1.0, float("nan"), 2.0, 1.0]}, "no positive number: 'utt1'"),
        ({"length_func": "seconds"}, "there is no key 'seconds' in this data set"),
    ],
    ids=str,
)
def test_what_is_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        bl.DynamicBatchSampler(DATA, **{"max_batch_length": 20.0, **options})
    assert message in str(error.value)


def test_no_items_and_no_lengths() -> None:
    with pytest.raises(ValueError, match="the data set is empty"):
        bl.DynamicBatchSampler([], 1.0, lengths_list=[])
    with pytest.raises(
        ValueError, match="dataset is a range, of which the lengths are not known: give lengths_list"
    ):
        bl.DynamicBatchSampler(range(3), 1.0)


def test_the_worst_batches(sampler: bl.DynamicBatchSampler) -> None:
    worst = bl.find_worst_batches(sampler)
    batches = list(sampler)
    total = [len(batch) * LENGTHS[batch].max() for batch in batches]
    assert len(worst["longest total"]) * LENGTHS[worst["longest total"]].max() == max(total)
    assert int(np.argmax(LENGTHS)) in worst["longest item"]
    assert len(worst["most items"]) == max(map(len, batches))
    assert all(batch in batches for batch in worst.values())


def test_a_length_that_is_no_number_names_the_item() -> None:
    data = bl.DynamicItemDataset({"a": {"n": 1.0}, "b": {"n": "long"}})
    with pytest.raises(
        ValueError, match="names the key 'n', and of the item 'b' it is 'long', which is no number"
    ):
        bl.DynamicBatchSampler(data, 6.0, length_func="n")
