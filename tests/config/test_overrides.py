from __future__ import annotations

import torch

from brainlib.config import load_hyperpyyaml
from tests.config.helpers import HERE, error_of

TEXT = f"""
lr: 0.1
layers: [1, 2]
nested: {{a: {{b: 1, c: 2}}}}
box: !new:{HERE}.Box
    width: 2
empty: !new:collections.Counter
"""


def test_no_overrides() -> None:
    for nothing in (None, "", "  \n", {}, "# only a comment\n"):
        assert load_hyperpyyaml("lr: 0.1\n", nothing) == {"lr": 0.1}


def test_a_mapping_changes_the_keys_it_names_and_the_rest_replaces() -> None:
    loaded = load_hyperpyyaml(TEXT, {"nested": {"a": {"b": 5}}, "layers": [3], "box": {"width": 7}})
    assert loaded["nested"] == {"a": {"b": 5, "c": 2}}
    assert loaded["layers"] == [3] and loaded["box"].width == 7
    assert load_hyperpyyaml(TEXT, "box: null\nnested: 3\nlr: {x: 1}")["lr"] == {"x": 1}


def test_a_tagged_value_describes_the_object_completely() -> None:
    loaded = load_hyperpyyaml(TEXT, f"box: !new:{HERE}.Box {{content: 1}}\nlr: !ref <layers[1]>\n")
    assert (loaded["box"].content, loaded["box"].width, loaded["lr"]) == (1, 1, 2)


def test_an_object_without_arguments() -> None:
    assert "there is no key 'x' in 'empty'" in error_of(TEXT, {"empty": {"x": 1}})
    assert "To build another object, give all of it: empty: '!new:collections.Counter {…}'" in error_of(
        TEXT, {"empty": {"x": 1}}
    )
    assert load_hyperpyyaml(TEXT, {"empty": {"x": 1}}, overrides_must_match=False)["empty"] == {"x": 1}


def test_python_objects_are_passed_through() -> None:
    model = torch.nn.Linear(1, 1)
    loaded = load_hyperpyyaml(
        "model: !PLACEHOLDER\nsame: !ref <model>\nd: 1\n", {"model": model, "d": torch.float32}
    )
    assert loaded["same"] is loaded["model"] is model and loaded["d"] is torch.float32


def test_texts_given_as_texts_stay_texts() -> None:
    given = {"a": "1e-4", "b": "no", "c": "(1, 2)", "d": "!ref <a>", "e": "two\nlines", "f": ""}
    assert load_hyperpyyaml("a: 1\nb: x\nc: 1\nd: 1\ne: 1\nf: 1\n", given) == given
    assert load_hyperpyyaml("a: 1\nb: 1\n", {"a": (1, (2, "x")), "b": [None, True]}) == {
        "a": (1, (2, "x")),
        "b": [None, True],
    }


def test_dashes_and_underscores_are_alike() -> None:
    assert load_hyperpyyaml("data_folder: x\nout-folder: y\n", {"data-folder": "a", "out_folder": "b"}) == {
        "data_folder": "a",
        "out-folder": "b",
    }
    assert load_hyperpyyaml("a_b: 1\na-b: 2\n", {"a-b": 3}) == {"a_b": 1, "a-b": 3}


def test_a_merged_key_can_be_overridden() -> None:
    text = "base: &base {x: 1, y: 2}\nown:\n  <<: *base\n  y: 3\n"
    assert load_hyperpyyaml(text, {"own": {"x": 9}}) == {"base": {"x": 1, "y": 2}, "own": {"x": 9, "y": 3}}


def test_the_file_is_not_changed_by_an_override_of_another_load() -> None:
    overrides = {"nested": {"a": {"b": 5}}}
    load_hyperpyyaml(TEXT, overrides)
    assert load_hyperpyyaml(TEXT)["nested"]["a"]["b"] == 1 and overrides == {"nested": {"a": {"b": 5}}}


def test_overrides_that_are_none() -> None:
    assert "The overrides are 'lr', but they are a dict, or YAML such as 'lr: 0.1'." in error_of(TEXT, "lr")
    assert "the overrides, line 2: the key 'lr' is given twice" in error_of(TEXT, "lr: 1\nlr: 2\n")
    assert "the overrides, line 1: there is no key 'lrr' in the hparams text. Did you mean 'lr'?" in error_of(
        TEXT, "lrr: 1"
    )
    assert "There are 'lr', 'layers'" in error_of(TEXT, {"zzz": 1})


def test_words_where_the_file_has_a_number() -> None:
    assert error_of(TEXT, "box: {width: wide}") == (
        "the overrides, line 1: 'box[width]' is 'wide', which is no number, and the hparams text, line 6 has 2. Give a "
        "number or null. To replace it by a text, put that in quotes: 'wide'."
    )
    for overrides in ({"lr": "wide"}, "lr: 'wide'", "lr: !ref <text>"):
        assert load_hyperpyyaml(TEXT + "text: wide\n", overrides)["lr"] == "wide"
    assert load_hyperpyyaml(TEXT, {"lr": True})["lr"] is True  # Python's own are meant as they are
