"""What goes wrong with HyperPyYAML files elsewhere, each with the value that is right."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections import Counter, OrderedDict
from pathlib import Path

import pytest

from brainlib.config import load_hyperpyyaml, parse_arguments
from brainlib.options import RunOptions
from tests.config import helpers
from tests.config.helpers import HERE, error_of

# -- 1. abbreviations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["--prec", "bf16"], "prec", "bf16"),
        (["--test", "x"], "test", "x"),
        (["--data=/x"], "data", "/x"),
        (["--profile", "5"], "profile", 5),
    ],
)
def test_a_key_that_begins_like_an_option_is_the_key(words: list[str], key: str, value: object) -> None:
    _, run_opts, overrides = parse_arguments(["x.yaml", *words])
    assert run_opts == {}
    assert load_hyperpyyaml(f"{key}: null\n", overrides) == {key: value}


def test_a_shortened_option_is_an_error_when_the_file_has_no_such_key() -> None:
    _, _, overrides = parse_arguments(["x.yaml", "--prec", "bf16"])
    message = error_of("lr: 0.1\n", overrides)
    assert "there is no key 'prec' in the hparams text. Did you mean the run option --precision?" in message
    _, _, overrides = parse_arguments(["x.yaml", "--precison=bf16"])
    assert "Did you mean the run option --precision?" in error_of("lr: 0.1\n", overrides)


# -- 2. booleans -------------------------------------------------------------------------------------------------------


def test_booleans_on_the_command_line() -> None:
    words = ["--find_unused_parameters", "False", "--debug=True", "--augment", "--lr", "1"]
    _, run_opts, overrides = parse_arguments(["x.yaml", *words])
    assert run_opts == {"find_unused_parameters": False, "debug": True}
    assert load_hyperpyyaml("augment: false\nlr: 2\n", overrides) == {"augment": True, "lr": 1}


@pytest.mark.parametrize("word", ["true", "True", "TRUE", "yes", "Yes", "on", "ON", "1"])
def test_a_boolean_key_takes_every_spelling(word: str) -> None:
    for opposite, text in (("false", word), ("true", {"1": "0"}.get(word, "no"))):
        _, _, overrides = parse_arguments(["x.yaml", "--augment", text])
        value = load_hyperpyyaml(f"augment: {opposite}\n", overrides)["augment"]
        assert value is (opposite == "false")


def test_a_boolean_key_refuses_other_words() -> None:
    assert "'augment' is 'Flase', but it takes true or false" in error_of(
        "augment: false\n", "augment: Flase\n"
    )
    assert load_hyperpyyaml("augment: false\n", "augment: \"'speed'\"\n") == {"augment": "'speed'"}
    assert load_hyperpyyaml("augment: false\n", "augment: null\n") == {"augment": None}


# -- 3. values with "=" and values that begin with "--" ----------------------------------------------------------------


def test_values_with_equal_signs_and_dashes() -> None:
    words = ["--p=/a=b", "--q", "x=1,y=2", "--r=--fast --loud", "--s", "-3", "--t=-x"]
    _, _, overrides = parse_arguments(["x.yaml", *words])
    assert load_hyperpyyaml("{p: null, q: null, r: null, s: null, t: null}\n", overrides) == {
        "p": "/a=b",
        "q": "x=1,y=2",
        "r": "--fast --loud",
        "s": -3,
        "t": "-x",
    }


# -- 4. overrides at every depth ---------------------------------------------------------------------------------------


def test_an_unknown_key_is_an_error_at_every_depth() -> None:
    text = "a:\n  hidden: {layers: 2}\nmodel: !new:collections.Counter\n  width: 3\n"
    assert "there is no key 'laers' in 'a[hidden]' in the hparams text. Did you mean 'layers'?" in error_of(
        text, {"a": {"hidden": {"laers": 3}}}
    )
    assert "there is no key 'widht' in 'model' in the hparams text. Did you mean 'width'?" in error_of(
        text, "model: {widht: 3}"
    )
    loaded = load_hyperpyyaml(text, {"a": {"new": 1}}, overrides_must_match=False)
    assert loaded["a"] == {"hidden": {"layers": 2}, "new": 1}


# -- 5. another class replaces the object ------------------------------------------------------------------------------


def test_an_override_with_another_class_replaces_the_object() -> None:
    text = "x: !new:collections.OrderedDict\n  a: 1\n"
    loaded = load_hyperpyyaml(text, "x: !new:collections.Counter {y: 2}")["x"]
    assert type(loaded) is Counter and loaded == {"y": 2}
    loaded = load_hyperpyyaml(text, "x: {a: 5}")["x"]  # without a tag it changes arguments
    assert type(loaded) is OrderedDict and loaded == {"a": 5}


def test_a_mapping_can_be_replaced_too() -> None:
    assert load_hyperpyyaml("x: {a: 1, b: 2}\n", "x: !new:dict {c: 3}") == {"x": {"c": 3}}


# -- 6. arithmetic with negative numbers -------------------------------------------------------------------------------


def test_arithmetic_with_negative_numbers() -> None:
    text = "a: -3\nb: !ref <a> * 2\nc: !ref -<a>\nd: !ref (1 - <a>) ** 2 // 3\ne: !ref <c> - -<a>\n"
    assert load_hyperpyyaml(text) == {"a": -3, "b": -6, "c": 3, "d": 5, "e": 0}


# -- 7. texts that look like arithmetic --------------------------------------------------------------------------------


def test_dates_and_paths_of_numbers_are_not_arithmetic(caplog: pytest.LogCaptureFixture) -> None:
    loaded = load_hyperpyyaml("d: 2024\na: 10\nday: !ref <d>-<a>-5\nfold: !ref <a>/2\nhalf: !ref <a> / 2\n")
    assert (loaded["day"], loaded["fold"], loaded["half"]) == ("2024-10-5", "10/2", 5.0)
    assert "line 3: '<d>-<a>-5' is read as a text, '2024-10-5'. For arithmetic write spaces" in caplog.text
    assert len(caplog.records) == 2


# -- 8. words ----------------------------------------------------------------------------------------------------------


def test_words_that_other_readers_take_for_something_else() -> None:
    assert load_hyperpyyaml("a: None\nb: ~\nc: 2024-01-02\nd: '0123'\ne: 'no'\n") == {
        "a": None,
        "b": None,
        "c": "2024-01-02",
        "d": "0123",
        "e": "no",
    }
    for word, boolean in (("yes", "true"), ("No", "false"), ("off", "false"), ("ON", "true")):
        message = error_of(f"x: 1\na: {word}\n")
        assert message.startswith("the hparams text, line 2: 'a': ")
        assert f"write {boolean} for the boolean, or '{word}', in quotes, for the word" in message
    assert "write 123 for the number, or '0123', in quotes, for the text" in error_of("a: 0123\n")


def test_such_a_word_is_read_by_the_value_it_replaces() -> None:
    text = "language: en\nspeaker: abc\naugment: true\n"
    _, _, overrides = parse_arguments(["x.yaml", "--language", "no", "--speaker", "0123", "--augment", "no"])
    assert load_hyperpyyaml(text, overrides) == {"language": "no", "speaker": "0123", "augment": False}
    assert "the overrides, line 1: 'x': no means different things" in error_of("x: null\n", "x: no\n")


# -- 9. tuples, list places, keys with dots, keys that are numbers -----------------------------------------------------


def test_tuples_list_places_and_odd_keys() -> None:
    text = (
        "t: (a, (b, c), [1, (2, 3)], {k}, 'x, y')\nb: [5, 6]\nc: !ref <b[1]>\nd: !ref <b[-2]> + 1\n"
        "a.b: 7\ne: !ref <a.b>\n1: one\nf: !ref <1>\ng: !ref <t[1][0]>\nempty: ()\nh: (a) and (b)\n"
    )
    assert load_hyperpyyaml(text) == {
        "t": ("a", ("b", "c"), [1, (2, 3)], {"k": None}, "x, y"),
        "b": [5, 6],
        "c": 6,
        "d": 6,
        "a.b": 7,
        "e": 7,
        1: "one",
        "f": "one",
        "g": "b",
        "empty": (),
        "h": "(a) and (b)",
    }


# -- 10. the seed ------------------------------------------------------------------------------------------------------


def test_seeding_comes_before_every_object_wherever_it_stands() -> None:
    helpers.calls.clear()
    text = f"model: !apply:{HERE}.note [model]\nseed: 7\n__set_seed: !apply:{HERE}.seed_everything [!ref <seed>]\n"
    assert list(load_hyperpyyaml(text)) == ["model", "seed"]
    assert helpers.calls == ["seed 7", "model"]


def test_nothing_is_built_when_the_file_is_wrong() -> None:
    for wrong in ("!ref <modle>", "!PLACEHOLDER", "!nwe:dict", "!ref <wrong>", "[on]"):
        helpers.calls.clear()
        error_of(f"model: !apply:{HERE}.note [model]\nwrong: {wrong}\n")
        assert helpers.calls == []


# -- 11. errors --------------------------------------------------------------------------------------------------------


def test_an_import_error_inside_a_module_is_shown_as_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_missing.py").write_text("import not_installed_anywhere\n")
    (tmp_path / "fails.py").write_text("raise RuntimeError('no license')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    message = error_of("x: !new:needs_missing.Model\n", kind=ModuleNotFoundError)
    assert message == "No module named 'not_installed_anywhere'"
    assert error_of("x: !new:fails.Model\n", kind=RuntimeError) == "no license"


def test_errors_have_the_file_and_the_line(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("a: 1\nx: !new:collections.Conter\n")
    message = error_of(file, kind=ImportError)
    assert message == f"{file}, line 2: 'x': there is no 'Conter' in collections. Did you mean 'Counter'?"
    with open(file) as stream:
        assert error_of(stream, kind=ImportError) == message


def test_cycles_name_their_keys_and_the_line() -> None:
    assert error_of("z: 1\na: !ref <b>/x\nb: !ref <c>\nc: !ref <a>\n") == (
        "the hparams text, line 2: 'a' refers to itself: a -> b -> c -> a."
    )
    assert error_of("a: {x: !ref <a>}\n").endswith("'a' refers to itself: a -> a[x] -> a.")
    assert error_of("a: !new:dict {x: !ref <b>}\nb: !ref <a>\n").endswith(
        "'a' refers to itself: a -> a[x] -> b -> a."
    )
    assert "refers to itself" in error_of("a: &here [1, *here]\n")


# -- 12. nothing global ------------------------------------------------------------------------------------------------


def test_loading_changes_nothing_in_the_yaml_libraries() -> None:
    code = (
        "import yaml, ruamel.yaml, sys\n"
        "from brainlib.config import load_hyperpyyaml\n"
        "def state():\n"
        "    found = []\n"
        "    for module in (yaml.constructor, yaml.loader, ruamel.yaml.constructor, ruamel.yaml.loader,\n"
        "                   ruamel.yaml.representer, ruamel.yaml.resolver):\n"
        "        for name, thing in sorted(vars(module).items()):\n"
        "            if isinstance(thing, type):\n"
        "                for key, value in sorted(vars(thing).items()):\n"
        "                    found.append((name, key, repr(value), repr(getattr(value, '__defaults__', None))))\n"
        "    return found\n"
        "before = state()\n"
        "load_hyperpyyaml('a: (1, 2)\\nb: !new:dict {x: !ref <a>}\\n', {'a': [3]})\n"
        "try: load_hyperpyyaml('b: !apply:divmod [1, 0]')\n"
        "except ZeroDivisionError: pass\n"
        "print(state() == before, 'hyperpyyaml' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_a_constructor_may_load_a_file_itself() -> None:
    text = "inner: !apply:brainlib.config.load_hyperpyyaml ['a: [1, {b: 2}]']\nouter: {x: [!ref <inner>]}\n"
    assert load_hyperpyyaml(text)["outer"] == {"x": [{"a": [1, {"b": 2}]}]}


# -- 13. a file is code: docs/hparams.md says so -----------------------------------------------------------------------


def test_pythons_own_yaml_tags_are_not_understood() -> None:
    assert "has the tag '!!python/object/apply:os.getcwd'" in error_of(
        "a: !!python/object/apply:os.getcwd []\n"
    )


# -- 14. one place for a setting ---------------------------------------------------------------------------------------


def test_a_misspelt_option_in_the_file_is_not_lost() -> None:
    loaded = load_hyperpyyaml("max_grad_nrom: 1.0\nrun_opts: {limit_train_batches: 3}\n")
    assert RunOptions.resembling(loaded) == [("max_grad_nrom", "max_grad_norm")]
    assert RunOptions.resolve(None, loaded).limit_train_batches == 3


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("1e-4", 1e-4),
        (".5e-3", 0.0005),
        (".5e3", 500.0),
        ("1E-5", 1e-5),
        ("1e5", 1e5),
        ("-.5", -0.5),
        ("1.", 1.0),
        ("+3", 3),
        ("-7", -7),
        ("0", 0),
        ("1_000_000", 1000000),
        ("0x1F", 31),
        (".inf", float("inf")),
    ],
)
def test_numbers_stay_numbers_on_every_path(word: str, value: float) -> None:
    for words in (["--lr", word], [f"--lr={word}"]):
        _, _, overrides = parse_arguments(["x.yaml", *words])
        from_command_line = load_hyperpyyaml("lr: 0.1\ntwice: !ref <lr> * 2\n", overrides)
        assert from_command_line == {"lr": value, "twice": value * 2}
        assert type(from_command_line["lr"]) is type(value)
    assert load_hyperpyyaml(f"lr: {word}\nsame: [!ref <lr>]\n") == {"lr": value, "same": [value]}
    assert load_hyperpyyaml("lr: 0.1\nsame: !ref <lr>\n", {"lr": value}) == {"lr": value, "same": value}


@pytest.mark.parametrize("word", ["1.2.3", "2024_01", "1e", "v1", "1:30", "12ab", "-", ".", "1e-4x"])
def test_other_words_stay_texts(word: str) -> None:
    assert load_hyperpyyaml(f"a: {word if word != '-' else repr(word)}\n") == {"a": word}


def test_a_mistyped_number_is_refused_where_the_file_has_one() -> None:
    for word in ("1e-4x", "auto"):
        assert f"'lr' is '{word}', which is no number, and the hparams text, line 1 has 0.1." in error_of(
            "lr: 0.1\n", f"lr: {word}\n"
        )
    assert load_hyperpyyaml("workers: 4\n", "workers: 'auto'\n") == {"workers": "auto"}


# -- references to what is computed ------------------------------------------------------------------------------------


def test_a_reference_to_a_computed_value_gives_the_value() -> None:
    helpers.calls.clear()
    text = (
        f"twice: !ref <n> * 2\nn: !apply:{HERE}.count\nname: !ref run_<n>\nlist: [!ref <n>, !ref <twice> + 1]\n"
        f"train: !ref <table[train][1]>\ntable: !apply:{HERE}.table\nbox: !new:{HERE}.Box {{content: !ref <n>}}\n"
        "inside: !ref <box.content> + <box.width>\n"
    )
    loaded = load_hyperpyyaml(text)
    assert (loaded["twice"], loaded["name"], loaded["list"]) == (8, "run_4", [4, 9])
    assert (loaded["train"], loaded["inside"]) == (20, 5)
    assert helpers.calls == ["count"]  # once, however many refer to it


def test_a_reference_to_an_object_is_the_object() -> None:
    text = f"b: {{same: !ref <a>}}\na: !new:{HERE}.Box\nother: !copy <a>\nmake: !name:{HERE}.Box [!ref <a>]\n"
    loaded = load_hyperpyyaml(text)
    assert loaded["b"]["same"] is loaded["a"]
    assert type(loaded["other"]) is type(loaded["a"]) and loaded["other"] is not loaded["a"]
    assert isinstance(loaded["make"], functools.partial) and loaded["make"]().content is loaded["a"]


# -- missing, empty, duplicate, placeholder ----------------------------------------------------------------------------


def test_missing_and_empty_files_name_the_path(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("# nothing yet\n")
    message = error_of(tmp_path / "trian.yaml", kind=FileNotFoundError)
    assert f"There is no hparams file '{tmp_path / 'trian.yaml'}'" in message
    assert message.endswith("Did you mean 'train.yaml'?")
    assert "The folder 'no_such' does not exist either" in error_of("no_such/x.yaml", kind=FileNotFoundError)
    assert (
        error_of(str(tmp_path / "train.yaml"))
        == f"{tmp_path / 'train.yaml'} is empty: there are no hyperparameters in it."
    )
    assert "the hparams text is empty" in error_of("")
    (tmp_path / "list.yaml").write_text("\n- 1\n")
    assert f"{tmp_path / 'list.yaml'}, line 2: an hparams file is a mapping" in error_of(
        tmp_path / "list.yaml"
    )


def test_duplicate_keys_name_the_key_and_both_lines() -> None:
    assert error_of("lr: 1\nb: 2\nlr: 3\n") == (
        "the hparams text, line 3: the key 'lr' is given twice; it first stands in line 1. Remove one of them."
    )
    assert "line 2: the key 'a' is given twice" in error_of("x:\n  - {a: 1, a: 2}\n")


def test_a_placeholder_says_what_to_pass() -> None:
    text = "data_folder: !PLACEHOLDER # where\nx: 1\nmodel:\n  num_layers: !PLACEHOLDER how deep\n"
    first, second = error_of(text).split("\n")
    assert first == (
        "the hparams text, line 1: 'data_folder' has no value yet: pass --data_folder DIR on the command line, "
        "or give it in overrides."
    )
    assert (
        "line 4: 'model[num_layers]' has no value yet (how deep): pass --model '{num_layers: NUMBER}'"
        in second
    )
    assert load_hyperpyyaml(text, {"data_folder": "/x", "model": {"num_layers": 3}})["model"] == {
        "num_layers": 3
    }
