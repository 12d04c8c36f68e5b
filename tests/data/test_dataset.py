"""DynamicItemDataset: only what is asked for is computed, failures name the item and leave nothing behind."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import brainlib as bl
from brainlib.data.pipeline import DynamicItem

ROWS = {
    "utt1": {"text": "it costs $5", "duration": 1.5, "n": 1},
    "utt2": {"text": "{no}", "duration": 0.5, "n": 0},
    "utt3": {"text": "yes", "duration": 1.0, "n": 2},
}


class Log:
    """Functions that note that they were called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def length(self, text: str) -> int:
        self.calls.append("length")
        return len(text)

    def both(self, length: int) -> tuple[int, int]:
        self.calls.append("both")
        return length + 1, length + 2

    def steps(self, length: int) -> Iterator[Any]:
        try:
            for number in range(3):
                self.calls.append(f"step {number}")
                yield length * 10 + number
        finally:
            self.calls.append("closed")


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def data(log: Log) -> bl.DynamicItemDataset:
    data = bl.DynamicItemDataset(ROWS)
    data.add_dynamic_item(log.length, takes="text", provides="length")
    data.add_dynamic_item(log.both, takes=["length"], provides=["one", "two"])
    data.add_dynamic_item(log.steps, takes="length", provides=["a", "b", "c"])
    return data


@pytest.mark.parametrize(
    ("keys", "calls"),
    [
        (["id", "text"], []),
        (["length"], ["length"]),
        (["two"], ["length", "both"]),
        (["one", "two", "length"], ["length", "both"]),
        (["a"], ["length", "step 0", "closed"]),
        (["b", "one"], ["length", "step 0", "step 1", "both", "closed"]),
        (["c", "a"], ["length", "step 0", "step 1", "step 2", "closed"]),
    ],
)
def test_only_what_is_asked_for_is_computed_and_once(
    data: bl.DynamicItemDataset, log: Log, keys: list[str], calls: list[str]
) -> None:
    data.set_output_keys(keys)
    whole = {"id": "utt3", "text": "yes", "length": 3, "one": 4, "two": 5, "a": 30, "b": 31, "c": 32}
    assert data[2] == {key: whole[key] for key in keys}
    assert log.calls == calls


def test_without_output_keys_an_item_is_its_row(data: bl.DynamicItemDataset, log: Log) -> None:
    assert data[-1] == {"id": "utt3", **ROWS["utt3"]} and log.calls == []


def test_names_outside_may_be_others(data: bl.DynamicItemDataset) -> None:
    data.set_output_keys({"utterance": "id", "size": "length"})
    assert data[0] == {"utterance": "utt1", "size": 11}


def test_output_keys_for_a_while(data: bl.DynamicItemDataset) -> None:
    data.set_output_keys(["id"])
    with pytest.raises(KeyError), data.output_keys_as(["length"]):
        assert data[1] == {"length": 4}
        raise KeyError
    assert data[1] == {"id": "utt2"}


def test_decorators_in_either_order() -> None:
    @bl.takes("n")
    @bl.provides("m")
    def one(n: int) -> int:
        return n + 1

    @bl.provides("k")
    @bl.takes("m")
    def two(m: int) -> int:
        return 2 * m

    data = bl.DynamicItemDataset(ROWS, dynamic_items=[two, one], output_keys=["k"])
    assert [item["k"] for item in data] == [4, 2, 6]
    assert one(4) == 5 and one.__name__ == "one"


def test_over_many_sets_at_once() -> None:
    sets = {"train": bl.DynamicItemDataset(ROWS), "valid": bl.DynamicItemDataset(ROWS)}
    bl.add_dynamic_item(sets.values(), lambda n: n + 1, takes="n", provides="m")
    bl.set_output_keys(sets, ["m"])
    assert [data[0] for data in sets.values()] == [{"m": 2}] * 2
    with pytest.raises(ValueError, match="datasets is one data set; give a list of them"):
        bl.set_output_keys(sets["train"], ["m"])


# ------------------------------------------------------------------------------------------------------------ failures
def failing_generator(n: int) -> Iterator[int]:
    yield n
    yield 1 // n


def test_a_failing_item_is_named_and_the_next_one_is_as_ever() -> None:
    data = bl.DynamicItemDataset(ROWS)
    data.add_dynamic_item(failing_generator, takes="n", provides=["first", "second"])
    data.set_output_keys(["first", "second"])
    for _ in range(2):
        assert data[0] == {"first": 1, "second": 1}
        with pytest.raises(bl.ItemError) as error:
            data[1]
        assert str(error.value).startswith("the item 'utt2': 'second' by failing_generator (")
        assert str(error.value).endswith("failed: ZeroDivisionError: integer division or modulo by zero")
        assert isinstance(error.value.__cause__, ZeroDivisionError)
        assert data[2] == {"first": 2, "second": 0}
    data.set_output_keys(["first"])
    assert [item["first"] for item in data] == [1, 0, 2]


def stops(n: int) -> int:
    raise StopIteration(n)


@pytest.mark.parametrize(
    ("func", "provides", "message"),
    [
        (lambda n: {}[n], "m", "the item 'utt1': 'm' by <lambda> (.*) failed: KeyError: 1"),
        (stops, "m", "'m' by stops .* failed: StopIteration: 1"),
        (
            lambda n: (n, n),
            ["a", "b", "c"],
            "provides 'a', 'b', 'c' and returned a tuple of 2; it must return a tuple",
        ),
        (lambda n: n, ["a", "b"], "provides 'a', 'b' and returned a int; it must return a tuple of 2"),
    ],
)
def test_what_goes_wrong_in_a_function(func: Any, provides: Any, message: str) -> None:
    data = bl.DynamicItemDataset(ROWS)
    data.add_dynamic_item(func, takes="n", provides=provides)
    data.set_output_keys(["m" if provides == "m" else "b"])
    with pytest.raises(bl.ItemError, match=message):
        data[0]


def test_a_generator_that_yields_too_little() -> None:
    data = bl.DynamicItemDataset(ROWS)
    data.add_dynamic_item(failing_generator, takes="n", provides=["a", "b", "c"])
    data.set_output_keys(["c"])
    with pytest.raises(bl.ItemError, match="the item 'utt1': the generator .* and yielded 2 of them"):
        data[0]


def test_a_failing_item_is_named_from_a_worker_too() -> None:
    data = bl.DynamicItemDataset(ROWS)
    data.add_dynamic_item(failing_generator, takes="n", provides=["first", "second"])
    data.set_output_keys(["second"])
    loader = bl.SaveableDataLoader(data, batch_size=1, num_workers=1)
    with pytest.raises(bl.ItemError, match="the item 'utt2': 'second' by failing_generator"):
        list(loader)


def test_a_row_without_the_key() -> None:
    data = bl.DynamicItemDataset({"a": {"x": 1}, "b": {}}, output_keys=["x"])
    with pytest.raises(bl.ItemError, match="the item 'b' has no 'x'"):
        data[1]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda d: d.set_output_keys(["lenght"]), "there is no key 'lenght' .* Did you mean 'length'"),
        (lambda d: d.set_output_keys("length"), "must be a list of keys: \\['length'\\]"),
        (
            lambda d: d.add_dynamic_item(len, takes="text", provides="length"),
            "provides 'length', and so does length",
        ),
        (lambda d: d.add_dynamic_item(len, takes="text", provides="n"), "which the rows have already"),
        (lambda d: d.add_dynamic_item(len, takes="text"), "provides no key; say which"),
        (lambda d: d.add_dynamic_item(3, takes="text", provides="m"), "func is 3; it must be a function"),
        (lambda d: d.add_dynamic_item(len, takes="text", provides=["m", "m"]), "each key once"),
        (lambda d: d.filtered_sorted(sort_key="durations"), "there is no key 'durations'"),
    ],
)
def test_a_wrong_key_is_refused_at_once(data: bl.DynamicItemDataset, act: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        act(data)
    data.set_output_keys(["length"])
    assert data[0] == {"length": 11}


def test_a_key_of_the_rows_is_handed_on_as_it_is() -> None:
    """SpeechBrain's recipes yield ``word`` and then what they make of it."""
    data = bl.DynamicItemDataset({"a": {"word": "one"}, "b": {"word": "Two"}})

    @bl.takes("word")
    @bl.provides("word", "length")
    def measure(word: str) -> Any:
        yield word.lower()
        yield len(word)

    data.add_dynamic_item(measure)
    data.set_output_keys(["word", "length"])
    assert data[0] == {"word": "one", "length": 3}
    with pytest.raises(
        bl.ItemError, match="provides 'word', which the row has already, as 'two' in place of 'Two'"
    ):
        data[1]
    with pytest.raises(ValueError, match="which the rows have already"):
        data.add_dynamic_item(lambda word: word, takes="word", provides="word")


def test_what_is_handed_on_does_not_spare_a_cache(tmp_path: Path) -> None:
    data = bl.DynamicItemDataset({"a": {"word": "one"}})
    data.add_dynamic_item(both, takes="word", provides=["word", "size"], cache_dir=tmp_path)
    data.set_output_keys(["word", "size"])
    assert data[0] == data[0] == {"word": "one", "size": 3}


def both(word: str) -> tuple[str, int]:
    return word, len(word)


def test_a_key_that_needs_itself() -> None:
    data = bl.DynamicItemDataset(ROWS)
    data.add_dynamic_item(lambda b: b, takes="b", provides="a")
    data.add_dynamic_item(lambda a: a, takes="a", provides="b")
    with pytest.raises(ValueError, match="the key 'a' needs itself: a <- b <- a"):
        data.set_output_keys(["a"])


def test_an_argument_that_nobody_provides() -> None:
    data = bl.DynamicItemDataset(ROWS)
    data.add_dynamic_item(len, takes="wav", provides="m")
    with pytest.raises(ValueError, match="there is no key 'wav' .* It is needed for 'm', which len takes"):
        data.set_output_keys(["m"])


@pytest.mark.parametrize(
    "ask",
    [
        lambda d: d.set_output_keys(["id", "wav"]),
        lambda d: d.values("wav"),
        lambda d: d.filtered_sorted(sort_key="wav"),
        lambda d: d.filtered_sorted(key_min_value={"wav": 1}),
        lambda d: d.set_output_keys(["wave"]),
        lambda d: d.filtered_sorted().set_output_keys(["wave"]),
        lambda d: bl.DynamicBatchSampler(d, 1.0, length_func="wav"),
    ],
)
def test_an_empty_set_says_so_wherever_a_key_is_asked_for(ask: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("ID,wav\n")
    for data, told in (
        (bl.DynamicItemDataset({}), "Look at its rows: "),
        (
            bl.DynamicItemDataset.from_csv(tmp_path / "a.csv"),
            f"Look at its rows, which come from {tmp_path}/a.csv: ",
        ),
    ):
        data.add_dynamic_item(len, takes="wav", provides="wave")
        with pytest.raises(ValueError, match="^the data set is empty: it holds no item") as caught:
            ask(data)
        assert told in str(caught.value)


@pytest.mark.parametrize("wrong", [[1], {"a": 1}, {1: {}}])
def test_what_is_no_data(wrong: Any) -> None:
    with pytest.raises(ValueError, match="must be a"):
        bl.DynamicItemDataset(wrong)


# --------------------------------------------------------------------------------------------------------------- parts
def test_filtered_and_sorted(data: bl.DynamicItemDataset) -> None:
    def ids(**options: Any) -> list[str]:
        return list(data.filtered_sorted(**options).data_ids)

    assert ids(sort_key="duration") == ["utt2", "utt3", "utt1"]
    assert ids(sort_key="duration", reverse=True) == ["utt1", "utt3", "utt2"]
    assert ids(key_min_value={"duration": 1.0}, key_max_value={"n": 1}) == ["utt1"]
    assert ids(key_test={"text": lambda text: "$" not in text}) == ["utt2", "utt3"]
    assert ids(key_min_value={"length": 4}, sort_key="length") == ["utt2", "utt1"]
    assert ids(sort_key="text") == ["utt1", "utt3", "utt2"]
    assert ids(select_n=2, sort_key="duration") == ["utt2", "utt1"]
    assert ids(key_test={"n": bool}, select_n=1) == ["utt1"]
    assert ids(key_min_value={"duration": 9.0}) == []


@pytest.mark.parametrize("key", ["n", "m"])
@pytest.mark.parametrize("reverse", [False, True])
def test_equal_values_keep_their_order(key: str, reverse: bool) -> None:
    values = [1, 0, 1, 0, 1]
    data = bl.DynamicItemDataset({str(k): {"n": n} for k, n in enumerate(values)})
    data.add_dynamic_item(lambda n: n, takes="n", provides="m")
    expected = sorted(range(5), key=values.__getitem__, reverse=reverse)
    assert list(data.filtered_sorted(sort_key=key, reverse=reverse).data_ids) == list(map(str, expected))


def test_the_source_stays_as_it_is() -> None:
    rows = copy.deepcopy(ROWS)
    data = bl.DynamicItemDataset(rows)
    data.filtered_sorted(sort_key="duration", key_test={"n": bool})
    assert rows == ROWS
    bl.DynamicItemDataset(rows)


def test_a_part_of_a_part(data: bl.DynamicItemDataset) -> None:
    data.set_output_keys(["id", "length"])
    part = data.filtered_sorted(sort_key="duration").subset([2, 0])
    assert [item["id"] for item in part] == ["utt1", "utt2"] and part[1]["length"] == 4
    assert list(part.subset(["utt2"]).data_ids) == ["utt2"] and len(part.subset([])) == 0
    assert list(part.data) == ["utt1", "utt2"] and part.data["utt2"]["n"] == 0
    assert part.values("duration").tolist() == [1.5, 0.5] and part.values("id") == ["utt1", "utt2"]
    assert list(data.subset(np.array([-1])).data_ids) == ["utt3"]
    with pytest.raises(KeyError, match="'utt3' is not in this set"):
        part.subset(["utt3"])
    with pytest.raises(KeyError, match="no row with the id 'utt9'"):
        part.subset(["utt9"])
    assert list(data.subset(np.array([True, False, True])).data_ids) == ["utt1", "utt3"]
    with pytest.raises(IndexError, match=r"the mask has the shape \(2,\), and the set has 3 items"):
        data.subset(np.array([True, False]))
    with pytest.raises(IndexError, match="the set has 2 items"):
        part.subset([2])
    with pytest.raises(IndexError, match="a data set of 2 items"):
        part[2]


def test_a_part_has_functions_of_its_own(data: bl.DynamicItemDataset) -> None:
    part = data.subset([0])
    part.add_dynamic_item(lambda n: -n, takes="n", provides="minus")
    part.set_output_keys(["minus"])
    assert part[0] == {"minus": -1}
    with pytest.raises(ValueError, match="no key 'minus'"):
        data.set_output_keys(["minus"])


# ------------------------------------------------------------------------------------------------------------- values
@pytest.mark.parametrize(
    "value",
    [
        1,
        -(2**70),
        1.5,
        float("inf"),
        True,
        None,
        "",
        "é\ud800",
        [1, "a", None],
        {"a": {"b": (1, 2)}},
        torch.ones(2),
        1j,
    ],
    ids=repr,
)
def test_any_value_of_a_row_comes_back(value: Any) -> None:
    data = bl.DynamicItemDataset({"a": {"x": value}, "b": {"x": value, "y": {1}}})
    copied = pickle.loads(pickle.dumps(data))
    assert "y" not in copied[0] and copied[1]["y"] == {1}
    for item in (data[0], copied[1]):
        assert type(item["x"]) is type(value)
        assert torch.equal(item["x"], value) if isinstance(value, torch.Tensor) else item["x"] == value
    assert "y" not in data[0] and data[1]["y"] == {1}


# -------------------------------------------------------------------------------------------------------------- spawn
@bl.takes("n")
@bl.provides("m")
def module_function(n: int) -> int:
    return n + 1


def test_a_decorated_function_of_a_module_is_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(module_function)) is module_function
    assert pickle.loads(pickle.dumps(DynamicItem("n", abs, "m")))(-3) == 3


def test_spawned_workers_read_it() -> None:
    data = bl.DynamicItemDataset(ROWS, [module_function], ["id", "m"])
    loader = bl.SaveableDataLoader(data, batch_size=2, num_workers=1, multiprocessing_context="spawn")
    assert [(batch.id, batch.m.tolist()) for batch in loader] == [(["utt1", "utt2"], [2, 1]), (["utt3"], [3])]


def test_what_cannot_be_sent_to_spawned_workers_is_said_before_they_start(
    data: bl.DynamicItemDataset,
) -> None:
    data.add_dynamic_item(lambda n: n, takes="n", provides="m")
    loader = bl.SaveableDataLoader(data, batch_size=2, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(
        ValueError, match="started by spawn or forkserver, and <lambda> .*, which provides 'm', cannot"
    ):
        iter(loader)
    assert (
        len(list(bl.SaveableDataLoader(data, batch_size=2, num_workers=1, multiprocessing_context="fork")))
        == 2
    )


def mixed() -> bl.DynamicItemDataset:
    rows: dict[str, dict[str, Any]] = {
        "a": {"n": 1, "text": "5", "mixed": 1, "missing": 1.5},
        "b": {"n": 2, "text": "7", "mixed": 2, "missing": None},
        "c": {"n": 3, "text": "6", "mixed": "3", "missing": 0.5},
    }
    data = bl.DynamicItemDataset(rows)
    data.add_dynamic_item(str, takes="n", provides="as_text")
    return data


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"key_min_value": {"text": 6}},
            "'text' of the item 'a' is of the type str ('5'),"
            " and key_min_value['text'] is of the type int (6)",
        ),
        (
            {"key_max_value": {"n": "2"}},
            "'n' of the item 'a' is of the type int (1), and key_max_value['n'] is of the type str ('2')",
        ),
        ({"key_min_value": {"n": None}}, "key_min_value['n'] is of the type NoneType (None)"),
        (
            {"key_max_value": {"as_text": 2.5}},
            "'as_text' of the item 'a' is of the type str ('1'),"
            " and key_max_value['as_text'] is of the type float (2.5)",
        ),
        ({"key_min_value": {"mixed": 0}}, "'mixed' of the item 'c' is of the type str ('3')"),
        ({"key_min_value": {"missing": 0.0}}, "'missing' of the item 'b' is of the type NoneType (None)"),
        (
            {"sort_key": "mixed"},
            "'mixed' cannot be sorted by: of the item 'a' it is of the type int (1),"
            " and of 'c' of the type str ('3')",
        ),
        ({"sort_key": "mixed", "reverse": True}, "of the type int (1), and of 'c' of the type str ('3')"),
        (
            {"sort_key": "missing"},
            "of the item 'a' it is of the type float (1.5), and of 'b' of the type NoneType (None)",
        ),
    ],
)
def test_what_cannot_be_compared_is_said_with_key_item_and_types(given: dict[str, Any], told: str) -> None:
    data = mixed()
    with pytest.raises(ValueError, match="one type: types=") as caught:
        data.filtered_sorted(**given)
    assert told in str(caught.value)
    part = data.subset([2, 1, 0])  # the id is that of the item, wherever it stands in a part
    with pytest.raises(ValueError, match="one type: types="):
        part.filtered_sorted(**given)
    assert data[0]["n"] == 1, "the output keys are as before"


def test_what_can_be_compared_is_compared() -> None:
    data = mixed()
    assert list(data.filtered_sorted(key_min_value={"n": np.int64(2)}).data_ids) == ["b", "c"]
    assert list(data.filtered_sorted(key_min_value={"n": True}).data_ids) == ["a", "b", "c"]
    assert list(data.filtered_sorted(key_max_value={"text": "6"}, sort_key="text").data_ids) == ["a", "c"]
    assert list(data.filtered_sorted(key_max_value={"n": torch.tensor(2)}).data_ids) == ["a", "b"]
    known = data.filtered_sorted(key_test={"missing": lambda value: value is not None}, sort_key="missing")
    assert list(known.data_ids) == ["c", "a"]


def test_a_set_tells_what_it_is(data: bl.DynamicItemDataset) -> None:
    assert repr(bl.DynamicItemDataset(ROWS)) == (
        "DynamicItemDataset(3 items; rows: id, text, duration, n; items hold the rows)"
    )
    data.set_output_keys({"id": "id", "size": "length"})
    computed = "length, one, two, a, b, c"
    assert repr(data) == (
        f"DynamicItemDataset(3 items; rows: id, text, duration, n; computed: {computed}; "
        "items hold id, size=length)"
    )
    assert repr(data.subset([1])).startswith("DynamicItemDataset(1 item; rows: id, text")
    many = bl.DynamicItemDataset({f"utt{n}": {f"key{k}": n for k in range(30)} for n in range(1000)})
    assert len(repr(many)) < 120 and "key6, ...;" in repr(many)
    for shown in (many.data, many.subset(range(500)).data, many.data_ids, many.subset(range(500)).data_ids):
        assert len(repr(shown)) < 80 and "'utt0'" in repr(shown) and "00 in all" in repr(shown)
    assert repr(data.data_ids) == "['utt1', 'utt2', 'utt3']"
    assert repr(data.subset([0]).data) == "{'utt1': {...}}"
    assert repr(bl.DynamicItemDataset({})) == "DynamicItemDataset(0 items; rows: id; items hold the rows)"


def test_a_generator_that_fails_when_it_is_closed_is_named_and_the_others_are_closed() -> None:
    closed = []

    def fails(n: int) -> Any:
        try:
            yield n
            yield n
        finally:
            raise ValueError("no disk")

    def well(n: int) -> Any:
        try:
            yield n
            yield n
        finally:
            closed.append(n)

    data = bl.DynamicItemDataset({"a": {"n": 1}})
    data.add_dynamic_item(fails, takes="n", provides=["first", "second"])
    data.add_dynamic_item(well, takes="n", provides=["third", "fourth"])
    data.set_output_keys(["first", "third"])
    with pytest.raises(
        bl.ItemError, match=r"the item 'a': fails .* failed when it was closed: ValueError: no disk"
    ):
        data[0]
    assert closed == [1]


def test_a_mask_is_a_mask_in_any_form_and_fractions_are_no_numbers_of_items() -> None:
    data = bl.DynamicItemDataset({name: {"n": 1} for name in "abc"})
    for mask in ([False, True, True], np.array([False, True, True]), torch.tensor([False, True, True])):
        assert list(data.subset(mask).data_ids) == ["b", "c"]
    assert list(data.subset(torch.tensor([2, 0])).data_ids) == ["c", "a"]
    assert len(data.subset(np.array([]))) == 0
    with pytest.raises(IndexError, match=r"the mask has the shape \(1,\), and the set has 3 items"):
        data.subset([True])
    with pytest.raises(IndexError, match="an array of float64; give numbers, ids, or a mask"):
        data.subset(np.array([0.7]))


@pytest.mark.parametrize("test", [None, {"n": bool}])
def test_fewer_than_no_items_cannot_be_selected(test: Any) -> None:
    data = bl.DynamicItemDataset({name: {"n": 1} for name in "abc"})
    assert len(data.filtered_sorted(select_n=0, key_test=test)) == 0
    with pytest.raises(ValueError, match="select_n is -1; it must be 0 or more"):
        data.filtered_sorted(select_n=-1, key_test=test)


def test_an_id_is_not_empty() -> None:
    with pytest.raises(ValueError, match="an id is ''; it must be a string that is not empty"):
        bl.DynamicItemDataset({"": {"n": 1}})
