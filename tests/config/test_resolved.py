from __future__ import annotations

from pathlib import Path

import pytest

from brainlib.config import dump_hyperpyyaml, load_hyperpyyaml, resolve_hyperpyyaml
from tests.config import helpers
from tests.config.helpers import HERE

TEXT = f"""# An experiment
seed: 7  # of everything
__set_seed: !apply:{HERE}.seed_everything [!ref <seed>]
out: results
save: !ref <out>/<seed>/save
lr: 1e-4
twice: !ref <lr> * 2
none: !ref <nothing>
nothing: null
word: !ref <quoted>
quoted: 'no'
box: !new:{HERE}.Box  # holds things
    width: !ref <seed>
    content: [1, !ref <out>]
again: !ref <box>
inside: !ref <box.width> + 1
copied: !copy <box>
pair: (1, (2, x))
"""


def same(first: dict[str, object], second: dict[str, object]) -> bool:
    def plain(value: object) -> object:
        return (value.content, value.width) if isinstance(value, helpers.Box) else value

    return {key: plain(value) for key, value in first.items()} == {
        key: plain(value) for key, value in second.items()
    }


def test_the_resolved_text_is_the_same_experiment_and_builds_nothing() -> None:
    overrides = "seed: 8\nout: /tmp/o\nbox: {content: x}\n"
    before = helpers.Box.made
    text = resolve_hyperpyyaml(TEXT, overrides)
    assert helpers.Box.made == before
    loaded = load_hyperpyyaml(text)
    assert same(loaded, load_hyperpyyaml(TEXT, overrides))
    assert loaded["again"] is loaded["box"] and loaded["copied"] is not loaded["box"]
    assert loaded["word"] == "no" and loaded["none"] is None
    assert resolve_hyperpyyaml(text) == text


def test_the_resolved_text_can_be_read_by_people() -> None:
    lines = resolve_hyperpyyaml(TEXT, {"seed": 8}).splitlines()
    assert lines[:5] == [
        "# An experiment",
        "seed: 8  # of everything",
        f"__set_seed: !apply:{HERE}.seed_everything [8]",
        "out: results",
        "save: results/8/save",
    ]
    assert (
        "twice: 0.0002" in lines and "again: !ref <box>" in lines and "inside: !ref <box.width> + 1" in lines
    )


def test_included_files_are_in_the_resolved_text(tmp_path: Path) -> None:
    (tmp_path / "part.yaml").write_text(
        f"a: 1\nb: !ref <a> + 1\nbox: !new:{HERE}.Box [!ref <a>]\nsame: !ref <box>\n"
    )
    (tmp_path / "main.yaml").write_text(
        "part: !include:part.yaml {a: 3}\nlist:\n- !include:part.yaml\nc: !ref <list[0][b]>\n"
    )
    text = resolve_hyperpyyaml(tmp_path / "main.yaml", {"part": {"a": 5}})
    assert "same: !ref <part[box]>" in text and "same: !ref <list[0][box]>" in text
    loaded = load_hyperpyyaml(text)
    assert (loaded["part"]["b"], loaded["list"][0]["b"], loaded["c"]) == (6, 2, 2)
    assert loaded["part"]["same"] is loaded["part"]["box"]
    assert loaded["list"][0]["same"] is loaded["list"][0]["box"]


def test_what_cannot_be_written_is_an_error() -> None:
    with pytest.raises(ValueError, match="override 'a\\[0\\]' is a object .* has no spelling in a file"):
        resolve_hyperpyyaml("a: 1\n", {"a": [object()]})
    with pytest.raises(ValueError, match="'a' has no value yet"):
        resolve_hyperpyyaml("a: !PLACEHOLDER\n")
    with pytest.raises(ValueError, match=r"<object object at .*> is a object, which has no spelling"):
        dump_hyperpyyaml({"a": object()})


def test_dumped_values_come_back() -> None:
    values = {
        "texts": [
            "no",
            "1e5",
            "0123",
            "None",
            "(a)",
            "2024-01-01",
            "a: b",
            "# x",
            "",
            " x ",
            "two\nlines",
            "é",
            "&",
            "?0",
            "😀\x7f",
            "!x",
            "-",
        ],
        "numbers": [1, -2, 0.1, 1e-7, 1e22, float("inf")],
        "others": [True, None, (1, ("no", [2]))],
        "nested": {"on": {"1": 2}, 3: "x"},
        "empty": [[], {}, ()],
        "path": "a/b",
    }
    assert load_hyperpyyaml(dump_hyperpyyaml(values)) == values


def test_hyperpyyamls_own_objects_are_dumped_as_their_tags() -> None:
    hyperpyyaml = pytest.importorskip("hyperpyyaml")
    values = {"a": hyperpyyaml.Placeholder(), "b": hyperpyyaml.RefTag("<a>")}
    assert dump_hyperpyyaml(values) == "a: !PLACEHOLDER\nb: !ref <a>\n"
