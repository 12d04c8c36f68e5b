"""What the model's tokens are: the characters of words, or their phones. Between words stands a separator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import brainlib as bl
from brainlib.metrics import align
from brainlib.text.decoding import PrefixBeamSearch, WordNgram

BLANK, SEPARATOR = "<blank>", "_"


class Characters:
    """Words are spelled as they are written.

    Args:
        dictionary: whose words there are.
        texts: of the training set; not needed here.
    """

    def __init__(
        self, dictionary: Mapping[str, Sequence[tuple[str, ...]]], texts: Sequence[str] = ()
    ) -> None:
        self.spellings = {word: [tuple(word)] for word in dictionary}

    def spell(self, text: str) -> list[str]:
        """The tokens of a text, with the separator between words; each word in its usual spelling."""
        tokens: list[str] = []
        for word in text.split():
            tokens += [SEPARATOR] if tokens else []
            tokens += self.spellings[word][0]
        return tokens

    def read(self, tokens: Sequence[str]) -> list[str]:
        """The words that tokens are, whatever they are."""
        return [self.word(part) for part in parts_of(tokens)]

    def word(self, part: tuple[str, ...]) -> str:
        """The word that tokens between separators are."""
        return "".join(part)


class Phones(Characters):
    """Words are spelled as the dictionary says they sound.

    What is heard is read as the word that sounds most like it: with the fewest phones to change, and of several the one
    that is most frequent in the training set.

    Args:
        dictionary: from words to pronunciations, the usual one first.
        texts: of the training set.
    """

    def __init__(
        self, dictionary: Mapping[str, Sequence[tuple[str, ...]]], texts: Sequence[str] = ()
    ) -> None:
        self.spellings = {word: list(pronunciations) for word, pronunciations in dictionary.items()}
        counts = dict.fromkeys(dictionary, 0)
        for text in texts:
            for word in text.split():
                counts[word] += 1
        words = sorted(dictionary, key=lambda word: -counts[word])
        self.sounds = [(phones, word) for word in words for phones in dictionary[word]]
        self.known: dict[tuple[str, ...], str] = {}

    def word(self, part: tuple[str, ...]) -> str:
        """The word that sounds most like these phones."""
        if part not in self.known:
            self.known[part] = min(self.sounds, key=lambda sound: num_edits(sound[0], part))[1]
        return self.known[part]


def num_edits(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """How many tokens have to be put in, left out or changed."""
    return sum(edit.kind != "=" for edit in align(reference, hypothesis))


def parts_of(tokens: Sequence[str]) -> list[tuple[str, ...]]:
    """What stands between separators, where there is something."""
    parts: list[list[str]] = [[]]
    for token in tokens:
        if token == SEPARATOR:
            parts.append([])
        else:
            parts[-1].append(token)
    return [tuple(part) for part in parts if part]


def make_encoder(units: Characters) -> bl.CTCTextEncoder:
    """The blank, the separator, and all tokens of the dictionary."""
    encoder = bl.CTCTextEncoder(blank_label=BLANK)
    encoder.add_label(SEPARATOR)
    used = {token for spellings in units.spellings.values() for spelling in spellings for token in spelling}
    encoder.update_from_iterable(sorted(used), sequence_input=False)
    return encoder


def make_search(
    units: Characters, encoder: bl.CTCTextEncoder, ngram: WordNgram | None, **options: Any
) -> PrefixBeamSearch:
    """A search for words of the dictionary; `options` are those of `PrefixBeamSearch`."""
    lexicon = {
        word: [encoder.encode_sequence(spelling) for spelling in spellings]
        for word, spellings in units.spellings.items()
    }
    return PrefixBeamSearch(
        lexicon,
        blank=encoder.get_blank_index(),
        separator=encoder.encode_label(SEPARATOR),
        ngram=ngram,
        **options,
    )
