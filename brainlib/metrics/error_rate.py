"""ErrorRateStats: the error rate of words, characters or phones, and a table of what went wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

from torch import Tensor

from brainlib.common.counted import counted
from brainlib.common.units import absolute_lengths
from brainlib.metrics.alignment import Edit, align
from brainlib.metrics.metric import Metric, field_of, plain_ids, stream_to

__all__ = ["ErrorRateStats"]

GAP = "<eps>"


class ErrorRateStats(Metric):
    """Edits over the tokens of the references, in percent: WER of words, CER of characters, PER of phones.

    Args:
        merge_tokens: whether tokens are characters that are to be joined to words: a WER from characters.
        split_tokens: whether tokens are words that are to be taken apart: a CER from words. Between words stands the
            space, which counts as a character.
        space_token: the character between words, for both.

    Raises:
        ValueError: for both at once.

    Attributes:
        ids: of the utterances.
        references: the tokens of each.
        hypotheses: the tokens of each.
        edits: insertions, deletions and substitutions of each.

    >>> stats = ErrorRateStats()
    >>> stats.append(["utt1"], [["one", "seven", "three"]], [["one", "two", "three", "four"]])
    >>> stats.summarize("WER"), stats.summarize("deletions")
    (50.0, 1)
    >>> import sys
    >>> stats.write_stats(sys.stdout)
    %WER 50.00 [ 2 / 4, 0 ins, 1 del, 1 sub ]
    %SER 100.00 [ 1 / 1 ]
    ================================================================================
    utt1, %WER 50.00 [ 2 / 4, 0 ins, 1 del, 1 sub ]
    ref: one two   three four
         =   S     =     D
    hyp: one seven three <eps>
    """

    kept = ("ids", "references", "hypotheses", "edits")

    def __init__(
        self, merge_tokens: bool = False, split_tokens: bool = False, space_token: str = "_"
    ) -> None:
        if merge_tokens and split_tokens:
            raise ValueError("merge_tokens makes words and split_tokens takes them apart: give one of them")
        self.merge_tokens = merge_tokens
        self.split_tokens = split_tokens
        self.space_token = space_token
        super().__init__()

    def clear(self) -> None:
        self.ids: list[Any] = []
        self.references: list[list[Any]] = []
        self.hypotheses: list[list[Any]] = []
        self.edits: list[list[int]] = []

    def append(
        self,
        ids: Iterable[Any],
        predict: Any,
        target: Any,
        predict_len: Tensor | None = None,
        target_len: Tensor | None = None,
        ind2lab: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        """Align a batch.

        Args:
            ids: one an utterance.
            predict: what came out: a list of tokens for each, or a tensor [batch, tokens] of numbers.
            target: what is right, in the same form.
            predict_len: [batch], counts of tokens or parts of the longest, where `predict` is padded.
            target_len: the same of `target`.
            ind2lab: makes tokens of lists of lists of numbers, such as an encoder's `decode_ndim`.

        Raises:
            ValueError: the numbers of items differ, or one is a text where a list of tokens is needed.
        """
        hypotheses = self._tokens(predict, predict_len, ind2lab, "predict")
        references = self._tokens(target, target_len, ind2lab, "target")
        if len(hypotheses) != len(references):
            raise ValueError(
                f"{counted(len(hypotheses), 'prediction')} and {counted(len(references), 'target')}: one of each "
                "an item"
            )
        self.ids += plain_ids(ids, len(references), "targets")
        for reference, hypothesis in zip(references, hypotheses, strict=True):
            kinds = [edit.kind for edit in align(reference, hypothesis)]
            self.references.append(reference)
            self.hypotheses.append(hypothesis)
            self.edits.append([kinds.count(kind) for kind in "IDS"])

    def summarize(self, field: str | None = None) -> Any:
        """The counts of all, or one of them, under SpeechBrain's names.

        ``WER`` and ``error_rate`` (the same, whatever the tokens are), ``SER``, ``num_edits``, ``insertions``,
        ``deletions``, ``substitutions``, ``num_scored_tokens``, ``num_scored_sents``, ``num_erroneous_sents``. Rates
        are percentages. Where no reference has a token, the rate is 0, or infinite if something was inserted.

        Raises:
            ValueError: nothing was appended, or there is no such field.
        """
        if not self.ids:
            raise ValueError("there is no error rate: nothing was appended since the last clear()")
        insertions, deletions, substitutions = (sum(each) for each in zip(*self.edits, strict=True))
        num_edits = insertions + deletions + substitutions
        num_tokens = sum(map(len, self.references))
        wrong = sum(any(each) for each in self.edits)
        rate = _percent(num_edits, num_tokens)
        summary = {
            "WER": rate,
            "SER": _percent(wrong, len(self.ids)),
            "num_edits": num_edits,
            "num_scored_tokens": num_tokens,
            "num_erroneous_sents": wrong,
            "num_scored_sents": len(self.ids),
            "insertions": insertions,
            "deletions": deletions,
            "substitutions": substitutions,
            "error_rate": rate,
        }
        return field_of(summary, field)

    def write_stats(self, filestream: str | os.PathLike[str] | TextIO) -> None:
        """Write the rates, then each utterance with its alignment, in the order of their ids.

        Args:
            filestream: a path, or something with `write`.

        Raises:
            ValueError: nothing was appended.
        """
        found = self.summarize()
        counts = [found[name] for name in ("insertions", "deletions", "substitutions")]
        with stream_to(filestream) as stream:
            stream.write(_rate_line(counts, found["num_scored_tokens"]))
            wrong, sentences = found["num_erroneous_sents"], found["num_scored_sents"]
            stream.write(f"%SER {found['SER']:.2f} [ {wrong} / {sentences} ]\n")
            for place in sorted(range(len(self.ids)), key=lambda place: str(self.ids[place])):
                reference = self.references[place]
                stream.write("=" * 80 + "\n")
                stream.write(f"{self.ids[place]}, {_rate_line(self.edits[place], len(reference))}")
                _write_alignment(stream, align(reference, self.hypotheses[place]))

    def _tokens(
        self, batch: Any, lengths: Tensor | None, ind2lab: Callable[[list[Any]], Any] | None, what: str
    ) -> list[list[Any]]:
        if lengths is not None:
            size = batch.shape[1] if isinstance(batch, Tensor) else max(map(len, batch), default=0)
            counts = absolute_lengths(lengths, size, len(batch)).tolist()
            listed = batch.tolist() if isinstance(batch, Tensor) else batch
            batch = [list(each)[:count] for each, count in zip(listed, counts, strict=True)]
        elif isinstance(batch, Tensor):
            batch = batch.tolist()
        if ind2lab is not None:
            batch = ind2lab(batch)
        for each in batch:
            if isinstance(each, str):
                raise ValueError(
                    f"{what} has the text {each!r} where a list of tokens is needed: give its words, "
                    "text.split(), or its characters, list(text)"
                )
        sequences = [[token.item() if hasattr(token, "item") else token for token in each] for each in batch]
        if self.merge_tokens:
            return [
                [word for word in "".join(map(str, each)).split(self.space_token) if word]
                for each in sequences
            ]
        if self.split_tokens:
            return [list(self.space_token.join(map(str, each))) for each in sequences]
        return sequences


def _percent(part: int, whole: int) -> float:
    if not whole:
        return float("inf") if part else 0.0
    return 100.0 * part / whole


def _rate_line(edits: Sequence[int], num_tokens: int) -> str:
    insertions, deletions, substitutions = edits
    return (
        f"%WER {_percent(sum(edits), num_tokens):.2f} [ {sum(edits)} / {num_tokens}, "
        f"{insertions} ins, {deletions} del, {substitutions} sub ]\n"
    )


def _write_alignment(stream: TextIO, edits: list[Edit]) -> None:
    """Three rows with a column for each edit."""
    columns = [
        (
            GAP if edit.kind == "I" else str(edit.reference),
            edit.kind,
            GAP if edit.kind == "D" else str(edit.hypothesis),
        )
        for edit in edits
    ]
    widths = [max(map(len, column)) for column in columns]
    for row, title in enumerate(("ref:", "    ", "hyp:")):
        cells = [column[row].ljust(width) for column, width in zip(columns, widths, strict=True)]
        stream.write(" ".join([title, *cells]).rstrip() + "\n")
