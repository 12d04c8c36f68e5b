"""Words from the outputs of a CTC model: prefix beam search through a lexicon, with a word n-gram."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from brainlib.common.errors import quoted

__all__ = ["Hypothesis", "PrefixBeamSearch", "WordNgram"]

_NEVER = -math.inf
_END = "</s>"
_START = "<s>"


class Hypothesis(NamedTuple):
    """What a search found.

    Attributes:
        words: in order.
        score: its logarithm of a probability, with what the n-gram and the words add.
    """

    words: tuple[Any, ...]
    score: float


class WordNgram:
    """Probabilities of a word after others, counted in sentences and smoothed.

    Witten-Bell smoothing, interpolated down to all words being equally likely: p(w | h) = (c(h w) + n(h) p(w | h')) /
    (c(h) + n(h)), where n(h) is how many different words followed h, and h' is h without its first word. Chen and
    Goodman 1998, "An empirical study of smoothing techniques for language modeling". Every word of the vocabulary has a
    probability, seen or not, and those of a history sum to 1, the end of the sentence included.

    Args:
        sentences: lists of words.
        order: 1 for single words, 2 for pairs, 3 for triples. Try 2 or 3.
        vocabulary: further words, which may come.

    Raises:
        ValueError: for an order below 1, a sentence that is a text, or one that uses a mark of the model.

    >>> ngram = WordNgram([["one", "two"], ["one", "three"]], order=2, vocabulary=["four"])
    >>> round(math.exp(ngram.log_prob(["one"], "two")), 3), round(math.exp(ngram.log_prob(["one"], "four")), 3)
    (0.34, 0.04)
    """

    def __init__(
        self, sentences: Iterable[Sequence[str]], order: int = 2, vocabulary: Iterable[str] = ()
    ) -> None:
        if order < 1:
            raise ValueError(f"order={order!r}: 1 for single words, 2 for pairs of words, and so on")
        self.order = order
        self.counts: Counter[tuple[str, ...]] = Counter()
        words = set(vocabulary)
        for sentence in sentences:
            if isinstance(sentence, str):
                raise ValueError(f"the sentence {sentence!r} is a text; give its words, text.split()")
            words.update(sentence)
            padded = [_START] * (order - 1) + [*sentence, _END]
            for place in range(order - 1, len(padded)):
                for length in range(order):
                    self.counts[tuple(padded[place - length : place + 1])] += 1
        if marks := words & {_START, _END}:
            raise ValueError(f"{quoted(sorted(marks))} among the words: the model marks beginning and end so")
        self.vocabulary = frozenset(words)
        self._followed: Counter[tuple[str, ...]] = Counter()  # c(h), and n(h)
        self._different: Counter[tuple[str, ...]] = Counter()
        for ngram, count in self.counts.items():
            self._followed[ngram[:-1]] += count
            self._different[ngram[:-1]] += 1
        self._known: dict[tuple[tuple[str, ...], str], float] = {}

    def log_prob(self, history: Sequence[str], word: str | None) -> float:
        """The natural logarithm of the probability that a word comes next.

        Args:
            history: the words before it, from the beginning of the sentence on.
            word: of the vocabulary; None: the end of the sentence.

        Raises:
            ValueError: the word is not in the vocabulary.
        """
        if word is not None and word not in self.vocabulary:
            raise ValueError(
                f"the word {word!r} is not among the {len(self.vocabulary)} of the n-gram; name it in vocabulary"
            )
        before = self.order - 1
        context = ((_START,) * before + tuple(history[-before:]))[-before:] if before else ()
        key = context, _END if word is None else word
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = math.log(self._prob(*key))
        return found

    def _prob(self, context: tuple[str, ...], word: str) -> float:
        prob = 1.0 / (len(self.vocabulary) + 1)
        for length in range(len(context) + 1):
            part = context[len(context) - length :]
            if different := self._different[part]:
                count = self.counts[(*part, word)]
                prob = (count + different * prob) / (self._followed[part] + different)
        return prob


class _Node:
    """A place in the tree of all pronunciations: the way there are tokens."""

    __slots__ = ("children", "token", "words")

    def __init__(self, token: int | None) -> None:
        self.token = token
        self.children: dict[int, _Node] = {}
        self.words: list[Any] = []  # that end here


class PrefixBeamSearch:
    """Finds the likeliest words for the outputs of a CTC model, among those that a lexicon spells.

    A hypothesis is a sequence of words. Its score is

        log P(words | outputs) + ngram_weight · log P(words) + word_score · number of words

    where the first term sums over all paths through the frames and over all ways to spell each word. Words are read
    off a tree of the lexicon; the n-gram has its say where a word ends. With a beam as large as the number of
    hypotheses the search is exact. Hannun et al. 2014, "First-pass large vocabulary continuous speech recognition
    using bi-directional recurrent DNNs" (https://arxiv.org/abs/1408.2873).

    Args:
        lexicon: from words to the ways to spell them, each a sequence of numbers of tokens. For a search without one,
            let each token be a word: ``{t: [[t]] for t in tokens}``.
        blank: the number of the blank.
        separator: the number of the token between words; None: there is none, words follow one another.
        ngram: None: all words are equal.
        ngram_weight: try 0.3 to 1.5.
        word_score: what each word adds: above 0 for more and shorter words. Try -1 to 2.
        beam_size: hypotheses that are kept after each frame. Try 20 to 200.
        min_log_prob: tokens below it are not looked at in a frame; -inf: all are.

    Raises:
        ValueError: for an empty lexicon or spelling, one with the blank or the separator in it, a beam below 1, or a
            word that the n-gram does not know.

    >>> import torch
    >>> lexicon = {"A": [[1]], "B": [[2]], "AB": [[1, 2]]}    # token 0 is the blank
    >>> search = PrefixBeamSearch(lexicon, ngram=WordNgram([["AB"]] * 9, vocabulary=lexicon))
    >>> search(torch.tensor([[0.1, 0.8, 0.1], [0.2, 0.2, 0.6]]).log())
    ['AB']
    """

    def __init__(
        self,
        lexicon: Mapping[Any, Iterable[Sequence[int]]],
        *,
        blank: int = 0,
        separator: int | None = None,
        ngram: WordNgram | None = None,
        ngram_weight: float = 1.0,
        word_score: float = 0.0,
        beam_size: int = 50,
        min_log_prob: float = -12.0,
    ) -> None:
        if beam_size < 1:
            raise ValueError(f"beam_size={beam_size!r}: at least 1 hypothesis is kept")
        self.blank, self.separator = blank, separator
        self.ngram, self.ngram_weight, self.word_score = ngram, ngram_weight, word_score
        self.beam_size, self.min_log_prob = beam_size, min_log_prob
        self._root = _Node(None)
        for word, spellings in lexicon.items():
            if ngram is not None:
                ngram.log_prob((), word)  # raises where it is not known
            for spelling in {tuple(each) for each in spellings}:
                self._add(word, spelling)
        if not self._root.children:
            raise ValueError("the lexicon is empty: there is no word to be found")

    def _add(self, word: Hashable, spelling: tuple[int, ...]) -> None:
        if not spelling or self.blank in spelling or self.separator in spelling:
            raise ValueError(
                f"the word {word!r} is spelled {list(spelling)}; it needs tokens, none of which is the blank "
                f"({self.blank}) or the separator ({self.separator})"
            )
        node = self._root
        for token in spelling:
            node = node.children.setdefault(token, _Node(token))
        node.words.append(word)

    def __call__(self, log_probs: Tensor) -> list[Any]:
        """The words of the best hypothesis.

        Args:
            log_probs: [frames, tokens], logarithms of probabilities (`torch.log_softmax`) of one utterance, without
                padding.
        """
        return list(self.search(log_probs)[0].words)

    def search(self, log_probs: Tensor) -> list[Hypothesis]:
        """All hypotheses that are left at the end, the best first; at least one.

        Where the beam holds none whose last word is whole, they are what it holds without the words that are begun.

        Args:
            log_probs: as above.

        Raises:
            ValueError: for another shape.
        """
        if log_probs.dim() != 2:
            raise ValueError(f"log_probs has the shape {tuple(log_probs.shape)}; give [frames, tokens]")
        # What a prefix is: its words and the place in the tree. Its value: the logarithms of the probability of all
        # paths to it that end with the blank, and of those that end with its last token; and what its words add.
        beam: dict[tuple[tuple[Any, ...], _Node], list[float]] = {((), self._root): [0.0, _NEVER, 0.0]}
        for frame in log_probs.tolist():
            tokens = [(token, value) for token, value in enumerate(frame) if value >= self.min_log_prob]
            grown: dict[tuple[tuple[Any, ...], _Node], list[float]] = {}
            for (words, node), (ends_blank, ends_token, bonus) in beam.items():
                last = self._last(words, node)
                either = _sum(ends_blank, ends_token)
                stays = _sum(either + frame[self.blank], _NEVER)
                repeats = _NEVER if last is None else ends_token + frame[last]
                _merge(grown, (words, node), stays, repeats, bonus)
                for token, value in tokens:
                    if token != self.blank:
                        arrives = value + (ends_blank if token == last else either)
                        for next_words, next_node, more in self._steps(words, node, token):
                            _merge(grown, (next_words, next_node), _NEVER, arrives, bonus + more)
            kept = sorted(grown.items(), key=lambda item: -_total(item[1]))[: self.beam_size]
            beam = dict(kept)
        return self._finished(beam)

    def _last(self, words: tuple[Any, ...], node: _Node) -> int | None:
        """The last token of a prefix."""
        return node.token if node is not self._root else self.separator if words else None

    def _steps(
        self, words: tuple[Any, ...], node: _Node, token: int
    ) -> Iterable[tuple[tuple[Any, ...], _Node, float]]:
        """The prefixes that a token leads to, and what the words that end there add."""
        child = node.children.get(token)
        if child is not None:
            yield words, child, 0.0
        if token == self.separator:
            for word in node.words:
                yield (*words, word), self._root, self._bonus(words, word)
        elif self.separator is None and token in self._root.children:
            for word in node.words:
                yield (*words, word), self._root.children[token], self._bonus(words, word)

    def _bonus(self, words: tuple[Any, ...], word: Any) -> float:
        told = 0.0 if self.ngram is None else self.ngram_weight * self.ngram.log_prob(words, word)
        return told + self.word_score

    def _finished(self, beam: dict[tuple[tuple[Any, ...], _Node], list[float]]) -> list[Hypothesis]:
        """The hypotheses whose last word is whole; where there are none, the prefixes without the word begun."""
        found: dict[tuple[Any, ...], list[float]] = {}
        for (words, node), (ends_blank, ends_token, bonus) in beam.items():
            ends = [((*words, word), bonus + self._bonus(words, word)) for word in node.words]
            for whole, added in ends if words or node is not self._root else [((), 0.0)]:
                _merge(found, whole, ends_blank, ends_token, added)
        if not found:
            for (words, _), (ends_blank, ends_token, bonus) in beam.items():
                _merge(found, words, ends_blank, ends_token, bonus)
        hypotheses = [
            Hypothesis(words, _total(value) + self._end_bonus(words)) for words, value in found.items()
        ]
        return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)

    def _end_bonus(self, words: tuple[Any, ...]) -> float:
        return 0.0 if self.ngram is None else self.ngram_weight * self.ngram.log_prob(words, None)


def _merge(
    into: dict[Any, list[float]], key: Any, ends_blank: float, ends_token: float, bonus: float
) -> None:
    """Add the paths to those that lead to the same prefix already, unless there are none."""
    if ends_blank == ends_token == _NEVER:
        return
    there = into.get(key)
    if there is None:
        into[key] = [ends_blank, ends_token, bonus]
    else:
        there[0], there[1] = _sum(there[0], ends_blank), _sum(there[1], ends_token)


def _total(value: Sequence[float]) -> float:
    return _sum(value[0], value[1]) + value[2]


def _sum(first: float, second: float) -> float:
    """log(exp(first) + exp(second))."""
    if first < second:
        first, second = second, first
    return first if second == _NEVER else first + math.log1p(math.exp(second - first))
