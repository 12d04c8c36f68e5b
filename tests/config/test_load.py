from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
import torch

from brainlib.config import load_hyperpyyaml
from tests.config import helpers
from tests.config.helpers import HERE, Box, error_of

# -- where the text comes from -----------------------------------------------------------------------------------------


def test_a_path_an_open_file_and_a_text_are_alike(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("lr: 0.1\nname: é\n", encoding="utf-8")
    expected = {"lr": 0.1, "name": "é"}
    assert (
        load_hyperpyyaml(file)
        == load_hyperpyyaml(str(file))
        == load_hyperpyyaml("lr: 0.1\nname: é")
        == expected
    )
    assert load_hyperpyyaml(io.StringIO("lr: 0.1\nname: é")) == expected
    for mode, encoding in (("r", "utf-8"), ("rb", None)):
        with open(file, mode, encoding=encoding) as stream:
            assert load_hyperpyyaml(stream) == expected


def test_a_file_that_is_no_text_or_no_yaml_is_named(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    assert f"{file}: this is not a text in UTF-8" in error_of(file)
    file.write_text("a: 1\nb: [1, 2\n")
    assert error_of(file).startswith(f"{file}, line 3: this is not YAML: ")
    file.write_text("a: b: c\n")
    assert (
        "line 1: this is not YAML: mapping values are not allowed here. A value that has ': ' in it"
        in error_of(file)
    )


def test_keys_with_two_underscores_are_dropped_at_the_top_only() -> None:
    assert load_hyperpyyaml("__a: 1\nb: {__c: !ref <__a>}\n") == {"b": {"__c": 1}}


def test_values_are_plain_python_objects() -> None:
    loaded = load_hyperpyyaml(
        "a: 1\nb: 0.5\nc: text\nd: true\ne: [1]\nf: {x: 1}\ng: |\n  two\n  lines\nh: .nan\n"
    )
    kinds = [int, float, str, bool, list, dict, str, float]
    assert [type(value) for value in loaded.values()] == kinds
    assert loaded["g"] == "two\nlines\n" and math.isnan(loaded["h"])


def test_anchors_and_merges() -> None:
    loaded = load_hyperpyyaml(
        "a: &a {x: 1, y: 2}\nb: *a\nc:\n  <<: *a\n  y: 3\nd:\n  <<: [*a, {z: 4, x: 5}]\n"
    )
    assert loaded["b"] is loaded["a"]
    assert loaded["c"] == {"x": 1, "y": 3}
    assert loaded["d"] == {"x": 1, "y": 2, "z": 4}
    assert "<< takes a mapping" in error_of("a:\n  <<: 3\n")


def test_yamls_own_tags() -> None:
    assert load_hyperpyyaml(
        "a: !!str 5\nb: !!float 5\nc: !!int '7'\nd: !!python/tuple [1, 2]\ne: !!bool yes\n"
    ) == {
        "a": "5",
        "b": 5.0,
        "c": "7",
        "d": (1, 2),
        "e": True,
    }
    assert "line 1: 'x' is no int, as its tag says" in error_of("a: !!int x\n")


# -- objects -----------------------------------------------------------------------------------------------------------


def test_every_tag() -> None:
    text = (
        f"new: !new:{HERE}.Box [1, 2]\nnamed: !name:{HERE}.Box {{width: 3}}\nbare: !name:{HERE}.Box\n"
        f"constant: !name:torch.float32\nmodule: !module:math\ncall: !apply:divmod [7, 2]\n"
        "ordered: !applyref:sorted\n  _args:\n    - [3, 1, 2]\n  _kwargs:\n    reverse: true\nrange: !apply:range [3]\n"
    )
    loaded = load_hyperpyyaml(text)
    assert (loaded["new"].content, loaded["new"].width) == (1, 2)
    assert loaded["named"](content=4).width == 3 and loaded["bare"] is Box
    assert loaded["constant"] is torch.float32 and loaded["module"] is math
    assert (loaded["call"], loaded["ordered"], loaded["range"]) == ((3, 1), [3, 2, 1], range(3))


def test_objects_are_built_once_in_the_order_of_the_file() -> None:
    helpers.calls.clear()
    text = f"a: !apply:{HERE}.note [!ref <c>]\nb: !apply:{HERE}.note [b]\nc: !apply:{HERE}.note [c]\n"
    load_hyperpyyaml(text)
    assert helpers.calls == ["c", "c", "b"]  # c when a asks for it


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"a: !new:{HERE}.count\n", "that is no class but a function; to call it write !apply:"),
        (f"a: !apply:{HERE}.CONSTANT\n", "that is no function but a int; to refer to it write !name:"),
        (
            f"a: !name:{HERE}.CONSTANT [1]\n",
            "that is no class or function but a int, which takes no arguments",
        ),
        ("a: !module:math [1]\n", "a module takes no arguments"),
        ("a: !module:math.pi\n", "that is no module"),
        (f"a: !new:{HERE}.Box 5\n", "give arguments as a list, [5], or by name, {name: 5}"),
        (f"a: !new:{HERE}.Box {{1: 5}}\n", "an argument's name is a text, not 1"),
        ("a: !nwe:dict\n", "'a' has the tag '!nwe:dict'. Did you mean '!new'?"),
        ("a: !new:\n", "'a' has the tag '!new:'."),
        (f"a: !new:{HERE}.Strict {{widht: 1}}\n", "Strict takes no argument 'widht'. Did you mean 'width'?"),
        (f"a: !new:{HERE}.Strict {{depth: 1}}\n", "missing a required argument: 'width'"),
        (f"a: !name:{HERE}.Strict [1, 2, 3]\n", "too many positional arguments"),
    ],
)
def test_a_mistake_in_the_file_names_line_and_key(text: str, message: str) -> None:
    text = f"first: 1\n{text}"
    assert message in error_of(text)
    assert error_of(text).startswith("the hparams text, line 2: 'a'")


def test_names_that_are_not_there() -> None:
    assert error_of("a: !new:torch.nn.Liner [1, 2]\n", kind=ImportError) == (
        "the hparams text, line 1: 'a': there is no 'Liner' in torch.nn. Did you mean 'Linear'?"
    )
    assert "there is no module 'nowhere', in which nowhere.Thing would be" in error_of(
        "a: !name:nowhere.Thing\n", kind=ImportError
    )
    assert "is not the dotted name of something" in error_of("a: !name:a-b\n", kind=ImportError)


def test_an_error_inside_a_constructor_comes_out_as_it_is() -> None:
    with pytest.raises(TypeError) as caught:
        load_hyperpyyaml(f"a: 1\nb: {{c: !new:{HERE}.Strict [-1]}}\n")
    assert str(caught.value) == "inside the constructor"
    if hasattr(caught.value, "__notes__"):
        assert caught.value.__notes__ == ["This happened for 'b[c]': the hparams text, line 2."]


def test_aliases_rename_the_beginning_of_a_name() -> None:
    aliases = {"old": "collections", "old.nnet": "torch.nn", "old.Box": f"{HERE}.Box"}
    loaded = load_hyperpyyaml(
        "a: !new:old.Counter\nb: !new:old.nnet.Linear [1, 2]\nc: !new:old.Box\n", aliases=aliases
    )
    assert [type(each).__name__ for each in loaded.values()] == ["Counter", "Linear", "Box"]
    assert "no module 'older'" in error_of("a: !new:older.Counter\n", kind=ImportError, aliases=aliases)


def test_a_copy_is_built_again_and_shares_what_it_refers_to() -> None:
    text = (
        f"shared: !new:{HERE}.Box\na: !new:{HERE}.Box {{content: !ref <shared>, width: 2}}\nb: !copy <a>\n"
        "arrow: !ref <a>\nc: !copy <arrow>\nd: !copy <a.others>\n"
    )
    loaded = load_hyperpyyaml(text)
    a, b, c = loaded["a"], loaded["b"], loaded["c"]
    assert len({id(a), id(b), id(c)}) == 3 and b.width == c.width == 2
    assert a.content is b.content is c.content is loaded["shared"]
    assert loaded["d"] == {} and loaded["d"] is not a.others


# -- references --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("<fodler>", "<fodler>: there is no key 'fodler'. Did you mean 'folder'?"),
        ("<model[widht]>", "there is no key 'widht' in 'model'. Did you mean 'width'?"),
        ("<list[2]>", "'list' has 2 places, counted from 0, and none is 2."),
        ("<list[x]>", "'list' is a list, whose places are numbers from 0, not 'x'."),
        ("<folder[x]>", "'folder' is 'out', in which there is no [x]."),
        ("<table[tran]>", "there is no key 'tran' in 'table'. Did you mean 'train'?"),
        ("<table[size][x]>", "in which there is no [x]."),
        ("<box.cntent>", "'box' is a Box without 'cntent'. Did you mean 'content'?"),
        ("<model.width>", "Its keys are reached with brackets: <model[width]>."),
        ("<a[b>", "<a[b> is not a reference; write <key>, <key[sub]> or <key.attribute>"),
        ("folder", "folder is a key: to refer to it write <folder>"),
        ("<folder>/<model>", "<model> is a dict, which cannot be part of a text or of arithmetic"),
        ("<nothing>/x", "<nothing> is null, which cannot be part of a text; give it a value"),
        ("<zero> / <zero>", "this has no result: division by zero"),
    ],
)
def test_a_wrong_reference_says_why(template: str, message: str) -> None:
    text = (
        f"bad: !ref {template}\nfolder: out\nmodel: {{width: 1}}\nlist: [1, 2]\ntable: !apply:{HERE}.table\n"
        f"box: !new:{HERE}.Box\nnothing: null\nzero: 0\n"
    )
    assert message in error_of(text)
    assert error_of(text).startswith("the hparams text, line 1: ")


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("<n> * 2", 6),
        ("<n>*2", 6),
        ("2*<n>-1", 5),
        ("<n> // 2", 1),
        ("<n>//2", 1),
        ("<n> / 2", 1.5),
        ("<n> % 2 + 2 ** <n>", 9),
        ("(<n>-1)", 2),
        ("-<n>", -3),
        ("1e-1 * <n>", 0.1 * 3),
        ("2 * 3", 6),
        ("<n>-1", "3-1"),
        ("<n>/<n>", "3/3"),
        ("<n><n>", "33"),
        ("<n> items", "3 items"),
        ("<n>", 3),
        ("<digits> * 2", "12 * 2"),
        ("<yes> + 1", "True + 1"),
        ("<out>/<n>/save", "res/3/save"),
        ("<out> / 2", "res / 2"),
        ("plain", "plain"),
        ("a < b", "a < b"),
        ("(<n>, 2)", "(3, 2)"),
    ],
)
def test_templates(template: str, value: object) -> None:
    loaded = load_hyperpyyaml(f"n: 3\ndigits: '12'\nyes: true\nout: res\nx: !ref '{template}'\n")
    assert loaded["x"] == value and type(loaded["x"]) is type(value)


def test_a_path_object_can_be_part_of_a_text() -> None:
    assert load_hyperpyyaml("a: null\nb: !ref <a>/x\n", {"a": Path("/data")}) == {
        "a": "/data",
        "b": "/data/x",
    }


# -- included files ----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "model.yaml").write_text(
        f"width: 3\ndeep: !include:deep.yaml\nmodel: !new:{HERE}.Box\n  width: !ref <width> * 2\n"
    )
    (tmp_path / "sub" / "deep.yaml").write_text("a: 1\nb: !ref <a> + 1\n")
    (tmp_path / "main.yaml").write_text(
        "width: 100\npart: !include:sub/model.yaml\n  width: 5\ntwice: !ref <part[width]> * 2\n"
    )
    return tmp_path


def test_an_included_file_refers_to_itself(folder: Path) -> None:
    loaded = load_hyperpyyaml(folder / "main.yaml")
    assert (loaded["width"], loaded["part"]["width"], loaded["twice"]) == (100, 5, 10)
    assert loaded["part"]["model"].width == 10
    assert loaded["part"]["deep"] == {"a": 1, "b": 2}


def test_overrides_reach_into_included_files(folder: Path) -> None:
    loaded = load_hyperpyyaml(folder / "main.yaml", {"part": {"width": 7, "deep": {"a": 5}}})
    assert (loaded["part"]["model"].width, loaded["twice"], loaded["part"]["deep"]["b"]) == (14, 14, 6)
    assert "there is no key 'c' in 'part[deep]'" in error_of(
        folder / "main.yaml", {"part": {"deep": {"c": 5}}}
    )


def test_mistakes_with_includes(folder: Path) -> None:
    main = folder / "main.yaml"
    main.write_text("part: !include:sub/modle.yaml\n")
    message = error_of(main, kind=FileNotFoundError)
    assert message.startswith(
        f"{main}, line 1: there is no file to include, '{folder / 'sub' / 'modle.yaml'}'"
    )
    assert message.endswith("Did you mean 'model.yaml'?")
    main.write_text("part: !include:sub/model.yaml {wdith: 5}\n")
    assert f"there is no key 'wdith' in {folder / 'sub' / 'model.yaml'}. Did you mean 'width'?" in error_of(
        main
    )
    main.write_text("part: !include:sub/model.yaml 5\n")
    assert "takes a mapping of the values to replace in that file, or nothing" in error_of(main)
    main.write_text("part: [!include:main.yaml ]\n")
    assert "includes itself" in error_of(main)
    (folder / "sub" / "deep.yaml").write_text("a: 1\nb: !ref <width>\n")
    main.write_text("part: !include:sub/deep.yaml\n")
    assert f"{folder / 'sub' / 'deep.yaml'}, line 2: <width>: there is no key 'width'" in error_of(main)
