"""CategoricalEncoder: labels and their numbers, in a file that one can read."""

from __future__ import annotations

import ast
import os
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from brainlib.common.counted import counted
from brainlib.common.errors import nearest, quoted
from brainlib.common.files import write_atomic
from brainlib.common.logs import logger
from brainlib.distributed.group import run_on_main

__all__ = ["CategoricalEncoder"]

_ARROW = " => "
_LINE = "=" * 16
_SHOWN = 5  # labels in an error


class CategoricalEncoder:
    """Labels as numbers, and back: classes, speakers, phones.

    Labels are numbered in the order in which they are first seen. The mapping can be saved as a text, one
    ``'label' => number`` a line (SpeechBrain's label files are read, too); and it has a state, so that an encoder that
    is an attribute of a Brain is saved with the run. A run that is resumed with labels numbered otherwise is stopped:
    its model would mean other things by its outputs.

    Args:
        starting_index: the number of the first label.
        unk_label: stands for labels that are not known; None: those are errors.

    Attributes:
        lab2ind: the number of each label.
        ind2lab: the label of each number.

    >>> encoder = CategoricalEncoder()
    >>> encoder.update_from_iterable(["no", "yes", "no"])
    >>> encoder.encode_label("yes"), encoder.decode_torch(torch.tensor([[0, 1], [1, 1]]))
    (1, [['no', 'yes'], ['yes', 'yes']])
    """

    def __init__(self, starting_index: int = 0, unk_label: Hashable | None = None) -> None:
        self.starting_index = starting_index
        self.lab2ind: dict[Any, int] = {}
        self.ind2lab: dict[int, Any] = {}
        self.unk_label: Any = None
        if unk_label is not None:
            self.add_unk(unk_label)

    def __len__(self) -> int:
        return len(self.lab2ind)

    def __contains__(self, label: object) -> bool:
        return label in self.lab2ind

    def __repr__(self) -> str:
        return f"{type(self).__name__}({counted(len(self), 'label')}: {self._told()})"

    # ---- labels come in

    def update_from_iterable(self, iterable: Iterable[Any], sequence_input: bool = False) -> None:
        """Number what is not known yet, in the order in which it comes.

        Args:
            iterable: labels.
            sequence_input: whether it holds sequences of labels instead.
        """
        for label in _flat(iterable, sequence_input):
            self.ensure_label(label)

    def update_from_didataset(self, didataset: Any, output_key: str, sequence_input: bool = False) -> None:
        """As `update_from_iterable`, from one key of a dataset with dynamic items; nothing else is computed."""
        with didataset.output_keys_as([output_key]):
            self.update_from_iterable(
                (didataset[place][output_key] for place in range(len(didataset))), sequence_input
            )

    def limited_labelset_from_iterable(
        self,
        iterable: Iterable[Any],
        sequence_input: bool = False,
        n_most_common: int | None = None,
        min_count: int = 1,
    ) -> Counter[Any]:
        """Number the labels that occur often enough, the most frequent first; of two alike, the one seen first.

        Args:
            iterable: labels, or sequences of them.
            sequence_input: whether it holds sequences.
            n_most_common: how many, at most; None: all.
            min_count: how often one has to occur.

        Returns:
            How often each of them occurs.
        """
        counts = Counter(_flat(iterable, sequence_input))
        kept = Counter({label: n for label, n in counts.most_common(n_most_common) if n >= min_count})
        for label in kept:
            self.ensure_label(label)
        return kept

    def add_label(self, label: Hashable) -> int:
        """Number a new label, behind the others.

        Returns:
            Its number.

        Raises:
            ValueError: it is known already, or nothing that a file could hold: text, numbers, tuples of them.
        """
        label = _bare(label)
        if label in self.lab2ind:
            raise ValueError(f"the label {label!r} is there already, as {self.lab2ind[label]}")
        return self._put(label, self._next())

    def ensure_label(self, label: Hashable) -> int:
        """The number of a label, which is added if it is new."""
        label = _bare(label)
        known = self.lab2ind.get(label)
        return self._put(label, self._next()) if known is None else known

    def insert_label(self, label: Hashable, index: int) -> None:
        """Give a new label a number; whichever had it moves behind the others.

        Raises:
            ValueError: the label is known already.
        """
        label = _bare(label)
        if label in self.lab2ind:
            raise ValueError(
                f"the label {label!r} is there already, as {self.lab2ind[label]}; enforce_label moves it"
            )
        self.enforce_label(label, index)

    def enforce_label(self, label: Hashable, index: int) -> None:
        """Give a label this number, wherever it was; whichever had it moves behind the others."""
        label = _bare(label)
        if self.lab2ind.get(label) == index:
            return
        if label in self.lab2ind:
            del self.ind2lab[self.lab2ind.pop(label)]
        other = self.ind2lab.pop(index, None)
        if other is not None:
            del self.lab2ind[other]
        self._put(label, index)
        if other is not None:
            self._put(other, self._next())

    def add_unk(self, unk_label: Hashable = "<unk>") -> int:
        """Let a label stand for all that are not known; returns its number."""
        if self.unk_label is not None:
            raise ValueError(f"unknown labels are {self.unk_label!r} already")
        index = self.ensure_label(unk_label)
        self.unk_label = self.ind2lab[index]
        return index

    def _put(self, label: Any, index: int) -> int:
        self.lab2ind[label] = index
        self.ind2lab[index] = label
        return index

    def _next(self) -> int:
        index = self.starting_index + len(self.lab2ind)
        while index in self.ind2lab:
            index += 1
        return index

    # ---- from labels to numbers and back

    def is_continuous(self) -> bool:
        """Whether the numbers go from the starting index on, without a gap."""
        return sorted(self.ind2lab) == list(
            range(self.starting_index, self.starting_index + len(self.ind2lab))
        )

    def expect_len(self, expected_len: int) -> None:
        """Make sure that there are as many labels as a model has outputs.

        Raises:
            ValueError: there are not.
        """
        if len(self) != expected_len:
            raise ValueError(
                f"{counted(expected_len, 'label is', 'labels are')} expected, and there are {len(self)}: {self._told()}"
            )

    def encode_label(self, label: Hashable, allow_unk: bool = True) -> int:
        """The number of a label.

        Args:
            label: what is looked up.
            allow_unk: whether the label for unknown ones may stand in.

        Raises:
            ValueError: it is not known, and nothing may stand for it.
        """
        index = self.lab2ind.get(label)
        if index is None:
            index = self.lab2ind.get(_bare(label))
        if index is None and allow_unk and self.unk_label is not None:
            index = self.lab2ind[self.unk_label]
        if index is None:
            near = nearest(str(label), map(str, self.lab2ind))
            raise ValueError(
                f"the label {label!r} is not among the {len(self)}: {self._told()}.{near} Let one stand for "
                "all unknown ones with add_unk()"
            )
        return index

    def encode_label_torch(self, label: Hashable, allow_unk: bool = True) -> Tensor:
        """As `encode_label`; int64, [1]."""
        return torch.tensor([self.encode_label(label, allow_unk)])

    def encode_sequence(self, sequence: Iterable[Hashable], allow_unk: bool = True) -> list[int]:
        """The numbers of labels, one after the other."""
        return [self.encode_label(label, allow_unk) for label in sequence]

    def encode_sequence_torch(self, sequence: Iterable[Hashable], allow_unk: bool = True) -> Tensor:
        """As `encode_sequence`; int64, [length]."""
        return torch.tensor(self.encode_sequence(sequence, allow_unk), dtype=torch.int64)

    def decode_torch(self, x: Tensor) -> list[Any]:
        """The labels of a tensor of numbers of any shape, as lists in lists.

        Raises:
            ValueError: a number has no label.
        """
        return self.decode_ndim(x.tolist())  # type: ignore[no-any-return]

    def decode_ndim(self, x: Any) -> Any:
        """The labels of numbers in lists in lists, in tensors or arrays; of a single number its label."""
        if hasattr(x, "tolist"):
            x = x.tolist()
        if isinstance(x, (list, tuple)):
            return [self.decode_ndim(each) for each in x]
        if x not in self.ind2lab:
            raise ValueError(
                f"number {x!r} has no label; there are {len(self)}, from {self.starting_index} on"
            )
        return self.ind2lab[x]

    # ---- files and state

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the label file, as a whole or not at all."""
        write_atomic(path, self._as_text())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Take over a label file; what was there before is replaced.

        Raises:
            OSError: there is none.
            ValueError: it is no label file; the message names the line.
        """
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{os.fspath(path)} is not UTF-8, so it is no label file: {error}") from error
        self._take(text, os.fspath(path))

    def load_if_possible(self, path: str | os.PathLike[str]) -> bool:
        """Take over a label file, if there is one; says whether there was.

        Raises:
            ValueError: it is no label file.
        """
        try:
            self.load(path)
        except FileNotFoundError:
            return False
        return True

    def load_or_create(
        self,
        path: str | os.PathLike[str],
        from_iterables: Sequence[Iterable[Any]] = (),
        from_didatasets: Sequence[Any] = (),
        sequence_input: bool = False,
        output_key: str | None = None,
        special_labels: Mapping[str, Any] | None = None,
    ) -> None:
        """Take over the label file, or number the labels of the data and write it. All ranks; the main one writes.

        Args:
            path: the label file.
            from_iterables: labels, or sequences of them.
            from_didatasets: datasets whose `output_key` holds them.
            sequence_input: whether they are sequences.
            output_key: of the datasets.
            special_labels: as SpeechBrain has it, for a file that is made: ``unk_label`` and its label, and the number
                of ``blank_label``, ``bos_label`` and ``eos_label``.

        Raises:
            ValueError: it is no label file, or one of other data: a label is not in it, and nothing stands for it.
        """

        def update(encoder: CategoricalEncoder) -> None:
            for iterable in from_iterables:
                encoder.update_from_iterable(iterable, sequence_input)
            for dataset in from_didatasets:
                if output_key is None:
                    raise ValueError("from_didatasets needs output_key, the key that holds the labels")
                encoder.update_from_didataset(dataset, output_key, sequence_input)

        def main() -> None:
            if not self.load_if_possible(path):
                self._mark(dict(special_labels or {}))
                update(self)
                # SpeechBrain's recipes put it beside the checkpoints, before there is one.
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                self.save(path)
                logger.info("%s written to %s", counted(len(self), "label is", "labels are"), os.fspath(path))
                return
            wider = CategoricalEncoder()
            wider.lab2ind, wider.ind2lab = dict(self.lab2ind), dict(self.ind2lab)
            update(wider)
            new = [label for label in wider.lab2ind if label not in self.lab2ind]
            if new and self.unk_label is None:
                raise ValueError(
                    f"{os.fspath(path)}: the data has labels that are not in this file: {quoted(new[:_SHOWN])}. It was "
                    "written for other data; remove it, or let a label stand for unknown ones (unk_label)"
                )

        run_on_main(main, post_func=self.load, post_args=(path,))

    def state_dict(self) -> dict[str, str]:
        """The label file as a text."""
        return {"labels": self._as_text()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned, into an encoder without labels or with the same ones.

        Raises:
            ValueError: for missing or leftover keys, and for labels that are numbered otherwise than here.
        """
        if set(state) != {"labels"}:
            raise ValueError(
                f"the state of a {type(self).__name__} has the key 'labels', not {quoted(state)}"
            )
        saved = type(self)()
        saved._take(state["labels"], "the saved labels")
        if not self.lab2ind:
            self._take(state["labels"], "the saved labels")
            return
        if saved.lab2ind != self.lab2ind or saved._extras() != self._extras():
            differing = [
                label
                for label in {**saved.lab2ind, **self.lab2ind}
                if saved.lab2ind.get(label) != self.lab2ind.get(label)
            ]
            told = "; ".join(
                f"{label!r} is {_number(saved.lab2ind, label)} there and {_number(self.lab2ind, label)} here"
                for label in differing[:_SHOWN]
            )
            raise ValueError(
                f"the checkpoint numbers {counted(len(differing), 'label')} otherwise than this run: "
                f"{told or f'{saved._extras()} there and {self._extras()} here'}. Use the label file of that run"
            )

    def _mark(self, special: dict[str, Any]) -> None:
        """Make special labels; takes those it knows out of `special`."""
        if (unk_label := special.pop("unk_label", None)) is not None:
            self.add_unk(unk_label)
        if special:
            raise ValueError(f"special_labels: a {type(self).__name__} knows nothing of {quoted(special)}")

    def _extras(self) -> dict[str, Any]:
        """What stands below the line of a label file."""
        extras: dict[str, Any] = {"starting_index": self.starting_index}
        if self.unk_label is not None:
            extras["unk_label"] = self.unk_label
        return extras

    def _set_extras(self, extras: dict[str, Any]) -> None:
        self.starting_index = extras.pop("starting_index", 0)
        self.unk_label = extras.pop("unk_label", None)

    def _as_text(self) -> str:
        lines = [f"{self.ind2lab[index]!r}{_ARROW}{index}" for index in sorted(self.ind2lab)]
        lines += [_LINE, *(f"{name!r}{_ARROW}{value!r}" for name, value in self._extras().items())]
        return "\n".join(lines) + "\n"

    def _take(self, text: str, where: str) -> None:
        fresh = type(self)()
        extras: dict[str, Any] = {}
        below = False
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            if not line.strip("="):
                below = True
                continue
            left, _, right = line.partition(_ARROW) if below else line.rpartition(_ARROW)
            try:
                key, value = ast.literal_eval(left), ast.literal_eval(right)
                hash(key)
            except (ValueError, SyntaxError, TypeError) as error:
                raise ValueError(
                    f"{where}, line {number}: {line!r} is not of the form 'label'{_ARROW}number"
                ) from error
            if below:
                extras[key] = value
            elif not isinstance(value, int) or key in fresh.lab2ind or value in fresh.ind2lab:
                raise ValueError(
                    f"{where}, line {number}: {line!r}: a label and a number stand for each other, each once"
                )
            else:
                fresh._put(key, value)
        if not below:
            raise ValueError(
                f"{where}: the line of {_LINE} at its end is missing; it is no label file, or cut off"
            )
        fresh._set_extras(extras)
        if extras:
            raise ValueError(f"{where}: a {type(self).__name__} knows nothing of {quoted(extras)}")
        vars(self).update(vars(fresh))

    def _told(self) -> str:
        first = quoted(list(self.lab2ind)[:_SHOWN])
        return first + (", ..." if len(self) > _SHOWN else "")


def _flat(iterable: Iterable[Any], sequence_input: bool) -> Iterable[Any]:
    if isinstance(iterable, str) and not sequence_input:
        raise ValueError(
            f"{iterable[:40]!r} is one text: give a list of labels, or of texts with sequence_input=True"
        )
    return (_bare(label) for each in iterable for label in each) if sequence_input else map(_bare, iterable)


def _bare(label: Any) -> Any:
    """Numbers and texts of torch and numpy as Python's; what cannot be written into a file is refused."""
    if type(label) in (str, int):
        return label
    if hasattr(label, "item"):
        label = label.item()
    if type(label) not in (str, int, float, tuple):
        raise ValueError(
            f"{label!r} is a {type(label).__name__}; labels are text, numbers, or tuples of them"
        )
    if type(label) in (float, tuple) and not _comes_back(label):
        raise ValueError(
            f"the label {label!r} cannot be read back from a label file; labels are text, finite numbers, or tuples of "
            "them"
        )
    return label


def _comes_back(label: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(label)) == label)
    except (ValueError, SyntaxError, TypeError):
        return False


def _number(numbers: dict[Any, int], label: Any) -> str:
    return str(numbers[label]) if label in numbers else "not"
