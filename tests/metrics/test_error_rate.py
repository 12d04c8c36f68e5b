from __future__ import annotations

import functools
import io
import random
from pathlib import Path

import pytest
import torch

from brainlib.metrics import ErrorRateStats, align
from brainlib.text import CTCTextEncoder


def distance(reference: str, hypothesis: str) -> int:
    """From the definition."""

    @functools.cache
    def d(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        return min(
            d(i - 1, j) + 1, d(i, j - 1) + 1, d(i - 1, j - 1) + (reference[i - 1] != hypothesis[j - 1])
        )

    return d(len(reference), len(hypothesis))


def test_an_alignment_has_the_fewest_edits_and_spells_both() -> None:
    for _ in range(400):
        reference, hypothesis = ("".join(random.choices("abc", k=random.randrange(8))) for _ in "rh")
        edits = align(reference, hypothesis)
        assert sum(edit.kind != "=" for edit in edits) == distance(reference, hypothesis)
        assert "".join(edit.reference or "" for edit in edits) == reference
        assert "".join(edit.hypothesis or "" for edit in edits) == hypothesis
        for edit in edits:
            kind = (
                "I" if edit.reference is None else "D" if edit.hypothesis is None
                else "=" if edit.reference == edit.hypothesis else "S"
            )  # fmt: skip
            assert edit.kind == kind


def test_a_long_alignment() -> None:
    reference = random.choices(range(30), k=2000)
    hypothesis = [token for token in reference if random.random() > 0.1]
    assert sum(edit.kind != "=" for edit in align(reference, hypothesis)) == 2000 - len(hypothesis)


def test_counts_by_hand() -> None:
    stats = ErrorRateStats()
    stats.append(
        ["b", "a", "c"],
        [["one", "two"], ["a", "x", "c", "d"], []],
        [["one", "two"], ["a", "b", "c"], ["z"]],
    )
    assert stats.summarize() == {
        "WER": 50.0,
        "SER": pytest.approx(200 / 3),
        "num_edits": 3,
        "num_scored_tokens": 6,
        "num_erroneous_sents": 2,
        "num_scored_sents": 3,
        "insertions": 1,
        "deletions": 1,
        "substitutions": 1,
        "error_rate": 50.0,
    }


def test_the_table(tmp_path: Path) -> None:
    stats = ErrorRateStats()
    stats.append(["b", "a", "c"], [["one"], ["a", "x"], []], [["one"], ["a", "bcd", "e"], []])
    stats.write_stats(tmp_path / "wer.txt")
    expected = f"""%WER 50.00 [ 2 / 4, 0 ins, 1 del, 1 sub ]
%SER 33.33 [ 1 / 3 ]
{"=" * 80}
a, %WER 66.67 [ 2 / 3, 0 ins, 1 del, 1 sub ]
ref: a bcd   e
     = D     S
hyp: a <eps> x
{"=" * 80}
b, %WER 0.00 [ 0 / 1, 0 ins, 0 del, 0 sub ]
ref: one
     =
hyp: one
{"=" * 80}
c, %WER 0.00 [ 0 / 0, 0 ins, 0 del, 0 sub ]
ref:

hyp:
"""
    assert (tmp_path / "wer.txt").read_text() == expected
    stream = io.StringIO()
    stats.write_stats(stream)
    assert stream.getvalue() == expected


def test_characters_from_words_and_words_from_characters() -> None:
    characters = ErrorRateStats(split_tokens=True)
    characters.append(["a"], [["ab", "c"]], [["ab", "d"]])
    assert characters.references == [list("ab_d")] and characters.summarize("WER") == 25.0
    words = ErrorRateStats(merge_tokens=True, space_token=" ")
    words.append(["a"], [list("ab  c")], [list("ab d")])
    assert words.hypotheses == [["ab", "c"]] and words.summarize("WER") == 50.0
    with pytest.raises(ValueError, match="give one of them"):
        ErrorRateStats(merge_tokens=True, split_tokens=True)


def test_padded_tensors_with_lengths_of_both_kinds() -> None:
    encoder = CTCTextEncoder(blank_label="_")
    encoder.update_from_iterable(["abc"])
    predict = torch.tensor([[1, 2, 3], [1, 0, 0]])
    target = torch.tensor([[1, 2, 2, 0], [2, 1, 0, 0]])
    for predict_len, target_len in (
        (torch.tensor([3, 1]), torch.tensor([3, 2])),
        (torch.tensor([1.0, 0.34]), torch.tensor([0.75, 0.5])),
    ):
        stats = ErrorRateStats()
        stats.append(torch.tensor([7, 8]), predict, target, predict_len, target_len, encoder.decode_ndim)
        assert stats.references == [["a", "b", "b"], ["b", "a"]] and stats.hypotheses == [
            ["a", "b", "c"],
            ["a"],
        ]
        assert stats.ids == [7, 8] and stats.summarize("error_rate") == 40.0
    plain = ErrorRateStats()
    plain.append([1], [[1, torch.tensor(2)]], [[1, 2]])
    assert plain.summarize("WER") == 0.0


def test_references_without_a_token() -> None:
    stats = ErrorRateStats()
    stats.append(["a"], [[]], [[]])
    assert stats.summarize("WER") == 0.0
    stats.append(["b"], [["x"]], [[]])
    assert stats.summarize("WER") == float("inf")


def test_what_is_no_list_of_tokens_is_refused() -> None:
    stats = ErrorRateStats()
    with pytest.raises(
        ValueError, match=r"predict has the text 'one two' .*: give its words, text.split\(\), or its"
    ):
        stats.append(["a"], ["one two"], [["one"]])
    with pytest.raises(ValueError, match="2 predictions and 1 target: one of each an item"):
        stats.append(["a"], [["x"], ["y"]], [["x"]])
    assert not stats.ids and not stats.references
