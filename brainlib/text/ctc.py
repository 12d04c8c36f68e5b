"""TextEncoder and CTCTextEncoder: tokens as numbers, with the marks that sequence models need."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from torch import Tensor

from brainlib.common.units import absolute_lengths
from brainlib.text.categorical import CategoricalEncoder

__all__ = ["CTCTextEncoder", "TextEncoder"]


class TextEncoder(CategoricalEncoder):
    """Tokens of sequences (characters, phones, words) as numbers, with marks for the beginning and the end.

    Args:
        starting_index: the number of the first label.
        unk_label: stands for unknown tokens; None: those are errors.
        bos_label: marks the beginning.
        eos_label: marks the end; it may be the same.

    >>> encoder = TextEncoder(bos_label="<bos>", eos_label="<eos>")
    >>> encoder.update_from_iterable(["abc", "b"])
    >>> encoder.append_eos_index(encoder.encode_sequence("ab"))
    [2, 3, 1]
    """

    def __init__(
        self,
        starting_index: int = 0,
        unk_label: Hashable | None = None,
        bos_label: Hashable | None = None,
        eos_label: Hashable | None = None,
    ) -> None:
        super().__init__(starting_index)
        self.bos_label: Any = None
        self.eos_label: Any = None
        if (bos_label is None) != (eos_label is None):
            raise ValueError(f"bos_label={bos_label!r}, eos_label={eos_label!r}: give both or none")
        if bos_label is not None and eos_label is not None:
            self.add_bos_eos(bos_label, eos_label)
        if unk_label is not None:
            self.add_unk(unk_label)

    def update_from_iterable(self, iterable: Iterable[Any], sequence_input: bool = True) -> None:
        """As in `CategoricalEncoder`, from sequences unless said otherwise."""
        super().update_from_iterable(iterable, sequence_input)

    def update_from_didataset(self, didataset: Any, output_key: str, sequence_input: bool = True) -> None:
        """As in `CategoricalEncoder`, from sequences unless said otherwise."""
        super().update_from_didataset(didataset, output_key, sequence_input)

    def limited_labelset_from_iterable(
        self,
        iterable: Iterable[Any],
        sequence_input: bool = True,
        n_most_common: int | None = None,
        min_count: int = 1,
    ) -> Any:
        """As in `CategoricalEncoder`, from sequences unless said otherwise."""
        return super().limited_labelset_from_iterable(iterable, sequence_input, n_most_common, min_count)

    def load_or_create(
        self,
        path: Any,
        from_iterables: Sequence[Iterable[Any]] = (),
        from_didatasets: Sequence[Any] = (),
        sequence_input: bool = True,
        output_key: str | None = None,
        special_labels: Mapping[str, Any] | None = None,
    ) -> None:
        """As in `CategoricalEncoder`, from sequences unless said otherwise."""
        super().load_or_create(
            path, from_iterables, from_didatasets, sequence_input, output_key, special_labels
        )

    def add_bos_eos(self, bos_label: Hashable = "<bos>", eos_label: Hashable = "<eos>") -> None:
        """Number the marks behind the others."""
        self.bos_label = self.ind2lab[self.ensure_label(bos_label)]
        self.eos_label = self.ind2lab[self.ensure_label(eos_label)]

    def insert_bos_eos(
        self,
        bos_label: Hashable = "<bos>",
        eos_label: Hashable = "<eos>",
        bos_index: int = 0,
        eos_index: int | None = None,
    ) -> None:
        """Give the marks these numbers (the end that behind the beginning's); whichever had them move to the end."""
        self.enforce_label(bos_label, bos_index)
        self.bos_label = self.ind2lab[bos_index]
        if eos_label != bos_label:
            self.enforce_label(eos_label, bos_index + 1 if eos_index is None else eos_index)
        self.eos_label = self.ind2lab[self.lab2ind[eos_label]]

    def get_bos_index(self) -> int:
        """The number of the mark for the beginning."""
        return self._index_of("bos_label", "add_bos_eos")

    def get_eos_index(self) -> int:
        """The number of the mark for the end."""
        return self._index_of("eos_label", "add_bos_eos")

    def prepend_bos_label(self, x: Iterable[Any]) -> list[Any]:
        """The tokens with the mark before them."""
        self.get_bos_index()
        return [self.bos_label, *x]

    def prepend_bos_index(self, x: Iterable[int]) -> list[int]:
        """The numbers with that of the mark before them."""
        return [self.get_bos_index(), *x]

    def append_eos_label(self, x: Iterable[Any]) -> list[Any]:
        """The tokens with the mark behind them."""
        self.get_eos_index()
        return [*x, self.eos_label]

    def append_eos_index(self, x: Iterable[int]) -> list[int]:
        """The numbers with that of the mark behind them."""
        return [*x, self.get_eos_index()]

    def _mark(self, special: dict[str, Any]) -> None:
        bos, eos = special.pop("bos_label", None), special.pop("eos_label", None)
        if (bos is None) != (eos is None):
            raise ValueError(f"special_labels: bos_label={bos!r}, eos_label={eos!r}: give both or none")
        if bos is not None:
            self.insert_bos_eos("<bos>", "<bos>" if bos == eos else "<eos>", bos, eos)
        super()._mark(special)

    def _index_of(self, name: str, method: str) -> int:
        label = getattr(self, name)
        if label is None:
            raise ValueError(f"there is no {name} yet; call {method}()")
        return self.lab2ind[label]

    def _extras(self) -> dict[str, Any]:
        marks = {"bos_label": self.bos_label, "eos_label": self.eos_label}
        return super()._extras() | {name: label for name, label in marks.items() if label is not None}

    def _set_extras(self, extras: dict[str, Any]) -> None:
        super()._set_extras(extras)
        self.bos_label, self.eos_label = extras.pop("bos_label", None), extras.pop("eos_label", None)


class CTCTextEncoder(TextEncoder):
    """Tokens as numbers, with CTC's blank.

    Graves et al. 2006, "Connectionist temporal classification".

    Args:
        starting_index: as in `TextEncoder`.
        unk_label: as in `TextEncoder`.
        bos_label: as in `TextEncoder`.
        eos_label: as in `TextEncoder`.
        blank_label: the blank; it gets the first number. None: call `insert_blank` or `add_blank`.

    >>> import torch
    >>> encoder = CTCTextEncoder(blank_label="<blank>")
    >>> encoder.update_from_iterable(["abba"])
    >>> encoder.encode_sequence_torch("ab")
    tensor([1, 2])
    >>> encoder.collapse_labels(["a", "a", "<blank>", "a", "b"])
    ['a', 'a', 'b']
    """

    def __init__(
        self,
        starting_index: int = 0,
        unk_label: Hashable | None = None,
        bos_label: Hashable | None = None,
        eos_label: Hashable | None = None,
        blank_label: Hashable | None = None,
    ) -> None:
        self.blank_label: Any = None
        super().__init__(starting_index, unk_label, bos_label, eos_label)
        if blank_label is not None:
            self.insert_blank(blank_label, starting_index)

    def insert_blank(self, blank_label: Hashable = "<blank>", index: int = 0) -> None:
        """Give the blank this number; whichever had it moves behind the others.

        Raises:
            ValueError: it is a label of the texts already.
        """
        self._check_blank(blank_label)
        self.enforce_label(blank_label, index)
        self.blank_label = self.ind2lab[index]

    def add_blank(self, blank_label: Hashable = "<blank>") -> None:
        """Number the blank behind the others.

        Raises:
            ValueError: it is a label of the texts already.
        """
        self._check_blank(blank_label)
        self.blank_label = self.ind2lab[self.ensure_label(blank_label)]

    def add_unk(self, unk_label: Hashable = "<unk>") -> int:
        """As in `CategoricalEncoder`; the blank cannot stand for unknown tokens."""
        if self.blank_label is not None and unk_label == self.blank_label:
            raise ValueError(
                f"{unk_label!r} is the blank, which is no token, so it cannot stand for unknown ones; take another"
            )
        return super().add_unk(unk_label)

    def _check_blank(self, label: Hashable) -> None:
        if label in self.lab2ind and label != self.blank_label:
            raise ValueError(
                f"the blank is to be {label!r}, which is a label already, {self.lab2ind[label]}: it would be taken out "
                "of all that is decoded. Take a label that no text has"
            )

    def get_blank_index(self) -> int:
        """The number of the blank."""
        return self._index_of("blank_label", "insert_blank")

    def collapse_labels(self, x: Iterable[Any], merge_repeats: bool = True) -> list[Any]:
        """What a path through frames says: repeats become one, then blanks go.

        Args:
            x: labels, one a frame.
            merge_repeats: whether repeats become one; they do in CTC.
        """
        self.get_blank_index()
        return _collapsed(x, self.blank_label, merge_repeats)

    def collapse_indices_ndim(self, x: Any, merge_repeats: bool = True) -> Any:
        """As `collapse_labels`, for the numbers in lists in lists, or in a tensor; the innermost are paths."""
        if hasattr(x, "tolist"):
            x = x.tolist()
        if x and isinstance(x[0], (list, tuple)):
            return [self.collapse_indices_ndim(each, merge_repeats) for each in x]
        return _collapsed(x, self.get_blank_index(), merge_repeats)

    def decode_greedy(self, probabilities: Tensor, lengths: Tensor | None = None) -> list[list[Any]]:
        """The tokens of the best path: of each frame the likeliest, then collapsed.

        Args:
            probabilities: [batch, frames, tokens]; probabilities, their logarithms, or what comes before a softmax.
            lengths: [batch], counts of frames or parts of them. None: all frames.

        Returns:
            The tokens of each item.

        >>> import torch
        >>> encoder = CTCTextEncoder(blank_label="<blank>")
        >>> encoder.update_from_iterable(["ab"])
        >>> best = torch.tensor([[1, 1, 0, 1, 2]])
        >>> encoder.decode_greedy(torch.nn.functional.one_hot(best), torch.tensor([4]))
        [['a', 'a']]
        """
        best = probabilities.argmax(dim=-1)
        paths = best.tolist()
        if lengths is not None:
            counts = absolute_lengths(lengths, best.shape[1], len(best)).tolist()
            paths = [path[:count] for path, count in zip(paths, counts, strict=True)]
        return [self.decode_ndim(self.collapse_indices_ndim(path)) for path in paths]

    def _mark(self, special: dict[str, Any]) -> None:
        if (index := special.pop("blank_label", None)) is not None:
            self.insert_blank(index=index)
        super()._mark(special)

    def _extras(self) -> dict[str, Any]:
        blank = {} if self.blank_label is None else {"blank_label": self.blank_label}
        return super()._extras() | blank

    def _set_extras(self, extras: dict[str, Any]) -> None:
        super()._set_extras(extras)
        self.blank_label = extras.pop("blank_label", None)


def _collapsed(path: Iterable[Any], blank: Any, merge_repeats: bool) -> list[Any]:
    each = (label for label, _ in groupby(path)) if merge_repeats else path
    return [label for label in each if label != blank]
