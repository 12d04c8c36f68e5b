"""The search against brute force over all hypotheses, and the n-gram against its formula."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from brainlib.text.decoding import PrefixBeamSearch, WordNgram

LEXICON = {"A": [[1]], "AA": [[1, 1]], "AB": [[1, 2], [2, 1]], "B": [[2]], "BEE": [[2]]}
SEPARATOR = 3
ALL = 100_000  # a beam with room for every hypothesis
SENTENCES = [["AB", "A"], ["A", "AB"], ["BEE"], ["AB", "AB", "B"]]


def log_prob_of_tokens(log_probs: torch.Tensor, tokens: tuple[int, ...]) -> float:
    """By torch's own CTC loss: all paths through the frames that collapse to these tokens."""
    return -torch.nn.functional.ctc_loss(
        log_probs.unsqueeze(1),
        torch.tensor([tokens], dtype=torch.int64),
        torch.tensor([len(log_probs)]),
        torch.tensor([len(tokens)]),
        reduction="sum",
    ).item()


def brute_force(
    log_probs: torch.Tensor,
    separator: int | None,
    ngram: WordNgram | None = None,
    weight: float = 1.0,
    word_score: float = 0.0,
) -> dict[tuple[str, ...], float]:
    """The score of each sequence of words that fits into the frames."""
    scores = {}
    for number in range(len(log_probs) + 1):
        for words in itertools.product(LEXICON, repeat=number):
            total = 0.0
            for spellings in itertools.product(*(LEXICON[word] for word in words)):
                tokens: list[int] = []
                for spelling in spellings:
                    tokens += [separator] if separator is not None and tokens else []
                    tokens += spelling
                if len(tokens) <= len(log_probs):
                    total += math.exp(log_prob_of_tokens(log_probs, tuple(tokens)))
            if total > 0:
                told = word_score * number
                if ngram is not None:
                    told += weight * sum(
                        ngram.log_prob(words[:place], word) for place, word in enumerate((*words, None))
                    )
                scores[words] = math.log(total) + told
    return scores


@pytest.mark.parametrize("separator", [SEPARATOR, None])
@pytest.mark.parametrize("order", [None, 1, 2, 3])
def test_with_room_for_all_the_search_is_brute_force(separator: int | None, order: int | None) -> None:
    ngram = None if order is None else WordNgram(SENTENCES, order, vocabulary=LEXICON)
    for _ in range(3):
        log_probs = (2 * torch.randn(4, 4)).log_softmax(1).double()
        expected = brute_force(log_probs, separator, ngram, 0.7, 0.3)
        search = PrefixBeamSearch(
            LEXICON,
            separator=separator,
            ngram=ngram,
            ngram_weight=0.7,
            word_score=0.3,
            beam_size=ALL,
            min_log_prob=-math.inf,
        )
        found = dict(search.search(log_probs))
        assert found.keys() == expected.keys()
        for words, score in expected.items():
            assert found[words] == pytest.approx(score, abs=1e-6), words
        best = max(expected, key=expected.__getitem__)
        assert expected[tuple(search(log_probs))] == pytest.approx(expected[best])


def test_a_small_beam_finds_what_is_clear_and_never_scores_it_higher() -> None:
    for _ in range(5):
        log_probs = (4 * torch.randn(5, 4)).log_softmax(1).double()
        expected = brute_force(log_probs, SEPARATOR)
        found = PrefixBeamSearch(LEXICON, separator=SEPARATOR, beam_size=20).search(log_probs)
        assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
        assert all(each.score <= expected[each.words] + 1e-6 for each in found)


def test_without_a_lexicon_the_tokens_are_the_words() -> None:
    # The best path says nothing, 0.36; all paths that say 1 have 0.64 - 0.04 together (Graves 2006 has such a case).
    log_probs = torch.tensor([[0.6, 0.4], [0.6, 0.4]]).log()
    (best, second) = PrefixBeamSearch({1: [[1]]}, min_log_prob=-math.inf).search(log_probs)[:2]
    assert best.words == (1,) and math.exp(best.score) == pytest.approx(0.64)
    assert second.words == () and math.exp(second.score) == pytest.approx(0.36)


def test_of_words_that_sound_alike_the_ngram_takes_the_one_that_fits() -> None:
    log_probs = torch.tensor([[0.05, 0.05, 0.85, 0.05]]).log()
    for word in ("B", "BEE"):
        ngram = WordNgram([[word]], vocabulary=LEXICON)
        assert PrefixBeamSearch(LEXICON, separator=SEPARATOR, ngram=ngram)(log_probs) == [word]


def test_a_word_that_is_not_whole_at_the_end_is_left_out() -> None:
    log_probs = torch.full((3, 4), -30.0)
    log_probs[0, 2] = log_probs[1, 3] = log_probs[2, 1] = 0.0  # B, then the beginning of ABBA
    lexicon = {"B": [[2]], "ABBA": [[1, 2, 2, 1]]}
    assert PrefixBeamSearch(lexicon, separator=SEPARATOR)(log_probs) == ["B"]
    assert PrefixBeamSearch(lexicon, separator=SEPARATOR)(log_probs[:0]) == []


@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_probabilities_after_any_history_sum_to_one(order: int) -> None:
    ngram = WordNgram(SENTENCES, order, vocabulary=[*LEXICON, "NEVER"])
    for history in ([], ["AB"], ["AB", "AB"], ["NEVER"], ["B", "NEVER"], ["BEE", "A"]):
        total = sum(math.exp(ngram.log_prob(history, word)) for word in [*ngram.vocabulary, None])
        assert total == pytest.approx(1.0)


def test_witten_bell_by_hand() -> None:
    ngram = WordNgram([["one", "two"], ["one", "three"]], order=2, vocabulary=["four"])
    alike = 1 / 5  # four words and the end
    single = (1 + 4 * alike) / (6 + 4)  # "two" is one of six, of which four are different
    assert math.exp(ngram.log_prob(["one"], "two")) == pytest.approx((1 + 2 * single) / (2 + 2))
    assert math.exp(ngram.log_prob(["three"], None)) == pytest.approx(
        (1 + (2 + 4 * alike) / 10) / 2
    )  # the end is two of the six
    assert ngram.log_prob(["far", "away", "one"], "two") == ngram.log_prob(["one"], "two")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PrefixBeamSearch({}), "the lexicon is empty: there is no word to be found"),
        (
            lambda: PrefixBeamSearch({"A": [[1, 0]]}),
            "the word 'A' is spelled [1, 0]; it needs tokens, none of which is the blank (0) or the separator (None)",
        ),
        (
            lambda: PrefixBeamSearch({"A": [[]]}, separator=3),
            "the word 'A' is spelled []; it needs tokens, none of which is the blank (0) or the separator (3)",
        ),
        (lambda: PrefixBeamSearch(LEXICON, beam_size=0), "beam_size=0: at least 1 hypothesis is kept"),
        (
            lambda: PrefixBeamSearch(LEXICON, ngram=WordNgram([["A"]])),
            "the word 'AA' is not among the 1 of the n-gram; name it in vocabulary",
        ),
        (lambda: WordNgram([], order=0), "order=0: 1 for single words, 2 for pairs of words, and so on"),
        (lambda: WordNgram(["A B"]), "the sentence 'A B' is a text; give its words, text.split()"),
        (
            lambda: WordNgram([["<s>"]]),
            "'<s>' among the words: the model marks beginning and end so",
        ),
        (
            lambda: PrefixBeamSearch(LEXICON).search(torch.zeros(2, 3, 4)),
            "log_probs has the shape (2, 3, 4); give [frames, tokens]",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_an_error_that_says_what_to_do(make: object, message: str) -> None:
    with pytest.raises(ValueError) as error:
        make()  # type: ignore[operator]
    assert str(error.value) == message
