from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import brainlib as bl
from brainlib.text import CategoricalEncoder, CTCTextEncoder, TextEncoder

ODD = [
    "a => b",
    "",
    " ",
    "line\nbreak",
    "quote's",
    '"',
    "日本",
    "\u2028",
    "# no comment",
    "====",
    "$5 {x}",
    "\\",
    "é",
]


def test_labels_are_numbered_as_they_come() -> None:
    encoder = CategoricalEncoder(starting_index=5)
    encoder.update_from_iterable(["b", "a", "b", np.str_("c")])
    encoder.update_from_iterable([["a", "d"]], sequence_input=True)
    assert encoder.lab2ind == {"b": 5, "a": 6, "c": 7, "d": 8} and encoder.is_continuous()
    assert encoder.encode_sequence(["d", "b"]) == [8, 5] and encoder.encode_label("c") == 7
    assert torch.equal(encoder.encode_sequence_torch(["a", "a"]), torch.tensor([6, 6]))
    assert torch.equal(encoder.encode_label_torch("a"), torch.tensor([6]))
    assert encoder.encode_sequence_torch([]).dtype == torch.int64
    assert encoder.decode_torch(torch.tensor([[[5, 6]], [[8, 8]]])) == [[["b", "a"]], [["d", "d"]]]
    assert encoder.decode_ndim(7) == "c" and encoder.decode_ndim(np.array([5])) == ["b"]
    encoder.expect_len(4)
    with pytest.raises(ValueError, match="10 labels are expected, and there are 4: 'b', 'a', 'c', 'd'"):
        encoder.expect_len(10)


def test_numbers_are_labels_too() -> None:
    encoder = CategoricalEncoder()
    encoder.update_from_iterable([torch.tensor(7), np.int64(3), 7, (1, "x")])
    assert encoder.lab2ind == {7: 0, 3: 1, (1, "x"): 2}
    assert encoder.encode_label(torch.tensor(3)) == 1
    for bad in (None, True, ["a"], b"a"):
        with pytest.raises(ValueError, match="labels are text, numbers, or tuples of them"):
            encoder.add_label(bad)  # type: ignore[arg-type]


def test_what_is_not_known() -> None:
    encoder = CategoricalEncoder()
    encoder.update_from_iterable(["seven", "three"])
    with pytest.raises(
        ValueError, match="'sevne' is not among the 2: 'seven', 'three'. Did you mean 'seven'\\?"
    ):
        encoder.encode_label("sevne")
    with pytest.raises(ValueError, match="number 2 has no label; there are 2, from 0 on"):
        encoder.decode_torch(torch.tensor([0, 2]))
    with pytest.raises(ValueError, match="'seven, three' is one text: give a list"):
        encoder.update_from_iterable("seven, three")
    encoder.add_unk()
    assert encoder.encode_sequence(["seven", "nine"]) == [0, 2]
    with pytest.raises(ValueError, match="'nine' is not among the 3"):
        encoder.encode_label("nine", allow_unk=False)
    with pytest.raises(ValueError, match="unknown labels are '<unk>' already"):
        encoder.add_unk("?")


def test_labels_move_where_they_are_put() -> None:
    encoder = CategoricalEncoder()
    encoder.update_from_iterable("abc", sequence_input=True)
    encoder.insert_label("x", 0)
    assert encoder.ind2lab == {0: "x", 1: "b", 2: "c", 3: "a"}
    encoder.enforce_label("c", 0)
    assert encoder.lab2ind == {"b": 1, "a": 3, "c": 0, "x": 4} and not encoder.is_continuous()
    encoder.enforce_label("c", 0)
    assert encoder.add_label("y") == 5
    for again in (encoder.add_label, lambda label: encoder.insert_label(label, 0)):
        with pytest.raises(ValueError, match="the label 'a' is there already, as 3"):
            again("a")


def test_only_what_is_frequent() -> None:
    encoder = CategoricalEncoder()
    counts = encoder.limited_labelset_from_iterable("abracadabra", True, n_most_common=3, min_count=2)
    assert counts == {"a": 5, "b": 2, "r": 2} and encoder.lab2ind == {"a": 0, "b": 1, "r": 2}


# ---- files


@pytest.mark.parametrize(
    "make",
    [
        CategoricalEncoder,
        lambda: CategoricalEncoder(3, unk_label="<unk>"),
        lambda: TextEncoder(bos_label="<s>", eos_label="</s>"),
        lambda: CTCTextEncoder(1, "<unk>", "<s>", "<s>", "<blank>"),
    ],
    ids=["plain", "with unknown", "text", "CTC"],
)
def test_whatever_the_labels_a_file_gives_them_back(tmp_path: Path, make: Any) -> None:
    encoder, other = make(), make()
    encoder.update_from_iterable([*ODD, 7, -1, 2.5, (1, "x")], sequence_input=False)
    encoder.save(tmp_path / "labels.txt")
    other.load(tmp_path / "labels.txt")
    assert vars(other) == vars(encoder)
    assert list(other.lab2ind.items()) == sorted(encoder.lab2ind.items(), key=lambda each: each[1])
    assert not make().load_if_possible(tmp_path / "none.txt") and make().load_if_possible(
        tmp_path / "labels.txt"
    )


def test_the_file_can_be_read_by_people(tmp_path: Path) -> None:
    encoder = CTCTextEncoder(blank_label="<blank>")
    encoder.update_from_iterable(["no", "yes"], sequence_input=False)
    encoder.save(tmp_path / "labels.txt")
    assert (tmp_path / "labels.txt").read_text().splitlines() == [
        "'<blank>' => 0",
        "'no' => 1",
        "'yes' => 2",
        "================",
        "'starting_index' => 0",
        "'blank_label' => '<blank>'",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("'a' => 0\n", "the line of ================ at its end is missing; it is no label file, or cut off"),
        ("'a' => 0\nb => 1\n=====\n", "line 2: 'b => 1' is not of the form 'label' => number"),
        ("'a' => 0\n'b' = 1\n=====\n", "line 2: \"'b' = 1\" is not of the form"),
        ("'a' => 0\n'b' => 0\n=====\n", "line 2: .* a label and a number stand for each other, each once"),
        ("'a' => 0\n'a' => 1\n=====\n", "each once"),
        ("'a' => 'b'\n=====\n", "each once"),
        ("'a' => __import__('os').getpid()\n====\n", "line 1: .* is not of the form"),
        ("'a' => 0\n====\n'blank_label' => 'a'\n", "a CategoricalEncoder knows nothing of 'blank_label'"),
    ],
)
def test_a_file_that_is_none_is_refused_and_changes_nothing(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "labels.txt"
    path.write_text(text)
    encoder = CategoricalEncoder()
    encoder.add_label("x")
    with pytest.raises(ValueError, match=f"{path}.*{told}"):
        encoder.load(path)
    assert encoder.lab2ind == {"x": 0}


def test_comments_and_empty_lines_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("# the words\n\n'a' => 0\n====\n")
    encoder = CategoricalEncoder()
    encoder.load(tmp_path / "labels.txt")
    assert encoder.lab2ind == {"a": 0}


class Dynamic:
    """As much of a dataset with dynamic items as an encoder asks for."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.keys: list[str] = []

    @contextmanager
    def output_keys_as(self, keys: list[str]) -> Any:
        self.keys, before = keys, self.keys
        yield
        self.keys = before

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {key: self.rows[place][key] for key in self.keys}


def test_made_once_and_read_ever_after(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    data = Dynamic([{"words": ["no", "yes"]}, {"words": ["no"]}])
    first = CTCTextEncoder(blank_label="<blank>")
    first.load_or_create(path, from_didatasets=[data], output_key="words")
    assert first.lab2ind == {"<blank>": 0, "no": 1, "yes": 2} and data.keys == []
    second = CTCTextEncoder(blank_label="<blank>")
    second.load_or_create(path, from_iterables=[[["yes"], ["no"]]])
    assert second.lab2ind == first.lab2ind
    with pytest.raises(
        ValueError, match="the data has labels that are not in this file: 'maybe'. It was written for"
    ):
        CTCTextEncoder().load_or_create(path, from_iterables=[[["maybe"]]])
    with pytest.raises(ValueError, match="from_didatasets needs output_key"):
        CTCTextEncoder().load_or_create(tmp_path / "other.txt", from_didatasets=[data])
    assert not (tmp_path / "other.txt").exists()


def test_special_labels_as_recipes_of_speechbrain_give_them(tmp_path: Path) -> None:
    special = {"blank_label": 0, "bos_label": 1, "eos_label": 1, "unk_label": "<unk>"}
    encoder = CTCTextEncoder()
    encoder.load_or_create(tmp_path / "a.txt", [["ab"]], special_labels=special)
    assert (
        encoder.lab2ind == {"<blank>": 0, "<bos>": 1, "<unk>": 2, "a": 3, "b": 4} and encoder.is_continuous()
    )
    assert (encoder.get_eos_index(), encoder.encode_label("z")) == (1, 2)
    again = CTCTextEncoder()
    again.load_or_create(tmp_path / "a.txt", [["ab"]], special_labels=special)
    assert vars(again) == vars(encoder)
    with pytest.raises(
        ValueError, match="special_labels: a CategoricalEncoder knows nothing of 'blank_label'"
    ):
        CategoricalEncoder().load_or_create(tmp_path / "b.txt", special_labels=special)
    with pytest.raises(ValueError, match="bos_label=0, eos_label=None: give both or none"):
        TextEncoder().load_or_create(tmp_path / "b.txt", special_labels={"bos_label": 0})


def test_a_file_that_speechbrain_wrote(tmp_path: Path) -> None:
    """Its form, with what it writes for labels that were not set."""
    (tmp_path / "a.txt").write_text(
        "'b' => 1\n'c => d' => 2\n'<blank>' => 0\n================\n'starting_index' => 0\n"
        "'unk_label' => None\n'blank_label' => '<blank>'\n"
    )
    encoder = CTCTextEncoder()
    encoder.load(tmp_path / "a.txt")
    assert encoder.collapse_indices_ndim([1, 1, 0, 2]) == [1, 2] and encoder.encode_label("c => d") == 2


def makes_labels(path: str) -> Any:
    encoder = CategoricalEncoder()
    rank = int(os.environ["RANK"])
    encoder.load_or_create(path, from_iterables=[["a", "b"] if rank == 0 else ["b", "a"]])
    return encoder.lab2ind


def test_ranks_have_the_labels_of_the_main_one(tmp_path: Path) -> None:
    assert bl.spawn(makes_labels, 2, args=(str(tmp_path / "labels.txt"),)) == [{"a": 0, "b": 1}] * 2


# ---- state


class Labelled(bl.Brain):
    encoder: CategoricalEncoder

    def compute_forward(self, batch: Any, stage: bl.Stage) -> Any:
        return self.modules.model(batch)

    def compute_objectives(self, predictions: Any, batch: Any, stage: bl.Stage) -> Any:
        return predictions.square().mean()


def run_with(labels: list[str], folder: Path, epochs: int) -> CategoricalEncoder:
    torch.manual_seed(0)
    brain = Labelled(
        {"model": torch.nn.Linear(2, 2)},
        lambda parameters: torch.optim.SGD(parameters, 0.1),
        run_opts={"noprogressbar": True},
        checkpointer=bl.Checkpointer(folder),
    )
    brain.encoder = CTCTextEncoder()
    brain.encoder.update_from_iterable(labels, sequence_input=False)
    brain.fit(range(epochs), [torch.ones(1, 2)])
    return brain.encoder


def test_labels_are_saved_with_a_run_and_others_stop_it(tmp_path: Path) -> None:
    run_with(["a", "b"], tmp_path / "save", 1)
    assert run_with(["a", "b"], tmp_path / "save", 2).lab2ind == {"a": 0, "b": 1}
    assert run_with([], tmp_path / "save", 3).lab2ind == {"a": 0, "b": 1}
    with pytest.raises(
        Exception, match="numbers 2 labels otherwise than this run: 'a' is 0 there and 1 here"
    ):
        run_with(["b", "a"], tmp_path / "save", 4)


def test_the_state_is_read_strictly() -> None:
    encoder = CategoricalEncoder()
    for state in ({}, {"labels": encoder.state_dict()["labels"], "more": 1}):
        with pytest.raises(ValueError, match="the state of a CategoricalEncoder has the key 'labels', not"):
            encoder.load_state_dict(state)
    encoder.update_from_iterable(["a"])
    with pytest.raises(ValueError, match="1 label otherwise than this run: 'b' is 1 there and not here"):
        encoder.load_state_dict({"labels": "'a' => 0\n'b' => 1\n====\n"})
    with pytest.raises(ValueError, match="'starting_index': 3.* there and .*'starting_index': 0.* here"):
        encoder.load_state_dict({"labels": "'a' => 0\n====\n'starting_index' => 3\n"})


# ---- marks and blanks


def test_marks_for_the_beginning_and_the_end() -> None:
    encoder = TextEncoder()
    encoder.update_from_iterable(["ab"])
    with pytest.raises(ValueError, match=r"there is no eos_label yet; call add_bos_eos\(\)"):
        encoder.append_eos_label(["a"])
    encoder.insert_bos_eos()
    assert encoder.lab2ind == {"<bos>": 0, "<eos>": 1, "a": 2, "b": 3}
    assert encoder.prepend_bos_index(encoder.encode_sequence("ab")) == [0, 2, 3]
    assert encoder.append_eos_label(encoder.prepend_bos_label("ab")) == ["<bos>", "a", "b", "<eos>"]
    same = TextEncoder(bos_label="|", eos_label="|")
    assert len(same) == 1 and same.get_bos_index() == same.get_eos_index() == 0
    with pytest.raises(ValueError, match="bos_label='<s>', eos_label=None: give both or none"):
        TextEncoder(bos_label="<s>")


def test_paths_collapse() -> None:
    encoder = CTCTextEncoder()
    encoder.update_from_iterable(["ab"])
    with pytest.raises(ValueError, match=r"there is no blank_label yet; call insert_blank\(\)"):
        encoder.collapse_labels(["a"])
    encoder.add_blank("_")
    assert encoder.get_blank_index() == 2
    encoder.insert_blank("-")
    assert encoder.lab2ind == {"-": 0, "b": 1, "_": 2, "a": 3}
    assert encoder.collapse_labels("aa-abb--b") == list("aabb")
    assert encoder.collapse_labels("aa-b", merge_repeats=False) == list("aab")
    assert encoder.collapse_indices_ndim(torch.tensor([[[3, 3, 0, 3], [0, 0, 0, 0]]])) == [[[3, 3], []]]
    assert encoder.collapse_indices_ndim([]) == []


def test_greedy_decoding_reads_as_far_as_an_item_goes() -> None:
    encoder = CTCTextEncoder(blank_label="-")
    encoder.update_from_iterable(["ab"])
    best = torch.tensor([encoder.encode_sequence("aa-a"), encoder.encode_sequence("-bba")])
    log_probs = torch.nn.functional.one_hot(best).float().log_softmax(-1)
    assert encoder.decode_greedy(log_probs) == [["a", "a"], ["b", "a"]]
    assert encoder.decode_greedy(log_probs, torch.tensor([4, 3])) == [["a", "a"], ["b"]]
    assert encoder.decode_greedy(log_probs, torch.tensor([0.5, 0.25])) == [["a"], []]


@pytest.mark.parametrize("label", [float("inf"), float("nan"), (1, float("inf")), (1, None, object())])
def test_a_label_that_a_file_could_not_give_back_is_refused(label: Any) -> None:
    with pytest.raises(ValueError, match="cannot be read back from a label file"):
        CategoricalEncoder().add_label(label)


def test_a_label_file_of_another_encoding_is_named_and_a_mark_of_order_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    encoder = CategoricalEncoder()
    encoder.update_from_iterable(["é"])
    encoder.save(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    other = CategoricalEncoder()
    other.load(path)
    assert other.lab2ind == encoder.lab2ind
    path.write_bytes("'é' => 0\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"labels\.txt is not UTF-8, so it is no label file"):
        other.load(path)


def test_the_blank_is_no_token() -> None:
    encoder = CTCTextEncoder()
    encoder.update_from_iterable(["ab"])
    for put in (encoder.insert_blank, encoder.add_blank):
        with pytest.raises(ValueError, match="the blank is to be 'a', which is a label already, 0"):
            put("a")
    encoder.insert_blank("<blank>")
    encoder.insert_blank("<blank>")
    assert encoder.lab2ind == {"<blank>": 0, "b": 1, "a": 2}
    with pytest.raises(ValueError, match="'<blank>' is the blank, which is no token"):
        encoder.add_unk("<blank>")
