from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from brainlib.metrics import AccuracyStats, ClassificationStats, MetricStats


def identity(scores: Tensor) -> Tensor:
    return scores


def test_the_mean_the_least_and_the_greatest() -> None:
    stats = MetricStats(identity)
    stats.append(["b", "c"], torch.tensor([3.0, 1.0], requires_grad=True))
    stats.append(["a", "d"], torch.tensor([3.0, 1.0], dtype=torch.float64))
    assert stats.summarize() == {
        "average": 2.0, "min_score": 1.0, "min_id": "c", "max_score": 3.0, "max_id": "a",
    }  # fmt: skip
    text = io.StringIO()
    stats.write_stats(text)
    assert text.getvalue().splitlines()[-4:] == ["a: 3.0", "b: 3.0", "c: 1.0", "d: 1.0"]
    assert all(type(score) is float for score in stats.state_dict()["scores"])


def test_an_average_that_rounds_once() -> None:
    stats = MetricStats(identity)
    stats.append(list("abcd"), torch.tensor([1e16, 1.0, 1.0, -1e16], dtype=torch.float64))
    assert stats.summarize("average") == 0.5


def test_a_score_that_is_no_number_is_not_hidden() -> None:
    stats = MetricStats(identity)
    stats.append(list("abc"), torch.tensor([1.0, math.nan, 2.0]))
    found = stats.summarize()
    assert math.isnan(found["average"]) and (found["min_id"], found["max_id"]) == ("a", "c")
    stats.clear()
    stats.append(["a"], torch.tensor([math.nan]))
    assert stats.summarize("max_id") == "a"


def test_item_by_item() -> None:
    stats = MetricStats(lambda guess, target, scale: scale * len(set(guess) - set(target)), batch_eval=False)
    stats.append(["a", "b"], ["abc", "ab"], ["b", "ab"], scale=2)
    stats.append([], [], [], scale=2)
    assert stats.summarize("max_score") == 4.0 and stats.ids == ["a", "b"]


def test_a_mean_over_the_batch_is_refused() -> None:
    stats = MetricStats(lambda guess: guess.mean())
    with pytest.raises(
        ValueError, match=r"scores of the shape \(\); one number an item .* reduction=\"none\""
    ):
        stats.append(["a", "b"], torch.ones(2))
    assert not stats.ids


def test_accuracy_of_items_and_of_places() -> None:
    stats = AccuracyStats()
    stats.append(torch.eye(3), torch.tensor([0, 1, 1]))
    assert stats.summarize() == pytest.approx(2 / 3)
    stats.clear()
    log_probabilities = torch.eye(3).repeat(2, 1, 1)  # [2, 3, 3]
    targets = torch.tensor([[0, 1, 2], [0, 0, 0]])
    for length in (torch.tensor([3, 2]), torch.tensor([1.0, 0.67])):
        stats.clear()
        stats.append(log_probabilities, targets, length)
        assert (stats.state_dict(), stats.summarize()) == ({"correct": 4, "total": 5}, 0.8)
    with pytest.raises(ValueError, match=r"scores of the shape \(2, 3\), targets of the shape \(3,\)"):
        stats.append(torch.ones(2, 3), torch.ones(3))
    with pytest.raises(ValueError, match="lengths belong to sequences"):
        stats.append(torch.ones(2, 3), torch.ones(2), torch.ones(2))


def test_classes_by_hand() -> None:
    stats = ClassificationStats()
    stats.append(range(6), torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 1, 1, 2, 0, 2]))
    found = stats.summarize()
    assert found["accuracy"] == pytest.approx(4 / 6)
    assert found["confusion_matrix"] == {0: {0: 1, 1: 0, 2: 1}, 1: {0: 1, 1: 1, 2: 0}, 2: {0: 0, 1: 0, 2: 2}}
    assert found["precision"] == {0: 0.5, 1: 1.0, 2: pytest.approx(2 / 3)}
    assert found["recall"] == found["classwise_accuracy"] == {0: 0.5, 1: 0.5, 2: 1.0}
    assert found["f_score"] == {0: 0.5, 1: pytest.approx(2 / 3), 2: pytest.approx(0.8)}
    assert found["macro_f_score"] == pytest.approx((0.5 + 2 / 3 + 0.8) / 3)


def test_a_class_that_never_occurs_and_one_that_is_never_predicted() -> None:
    stats = ClassificationStats()
    stats.append(["a", "b"], ["yes", "maybe"], ["yes", "no"])
    found = stats.summarize()
    assert found["precision"] == {"maybe": 0.0, "no": 0.0, "yes": 1.0} == found["recall"]
    assert found["classwise_accuracy"] == {"no": 0.0, "yes": 1.0}
    text = io.StringIO()
    stats.write_stats(text)
    assert text.getvalue() == (
        "accuracy: 0.5000\nmacro_f_score: 0.3333\n" + "=" * 80 + "\n"
        "class  items  precision  recall  f_score\n"
        "maybe      0     0.0000  0.0000   0.0000\n"
        "no         1     0.0000  0.0000   0.0000\n"
        "yes        1     1.0000  1.0000   1.0000\n" + "=" * 80 + "\n"
        "       maybe  no  yes\n"
        "maybe      0   0    0\n"
        "no         1   0    0\n"
        "yes        0   0    1\n" + "=" * 80 + "\n"
        "b: maybe instead of no\n"
    )


def test_scores_that_are_no_numbers_are_never_right() -> None:
    stats = AccuracyStats()
    stats.append(torch.tensor([[math.nan, math.nan], [0.1, math.nan], [0.9, 0.1]]), torch.tensor([0, 1, 0]))
    assert stats.summarize() == 1 / 3


def test_classes_of_several_kinds_have_an_order() -> None:
    stats = ClassificationStats()
    stats.append(["1", "2", "3", "4"], [2, None, "a", (1, 2)], [1.5, "b", "a", True])
    assert list(stats.summarize("confusion_matrix")) == [True, 1.5, 2, "a", "b", (1, 2), None]
    with pytest.raises(ValueError, match=r"predictions have the shape \(2, 2\)"):
        stats.append(["5", "6"], torch.zeros(2, 2), torch.zeros(2))


def test_a_path_as_an_id_is_kept_as_its_text() -> None:
    stats = MetricStats(lambda scores: scores)
    stats.append([Path("a.wav"), "b"], torch.tensor([1.0, 2.0]))
    assert stats.state_dict()["ids"] == ["a.wav", "b"]
