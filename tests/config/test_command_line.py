from __future__ import annotations

import sys

import pytest

from brainlib.brain import Brain
from brainlib.config import load_hyperpyyaml, parse_arguments
from brainlib.config.command_line import help_text
from brainlib.options import RunOptions


def error_of(*words: str) -> str:
    with pytest.raises(ValueError) as caught:
        parse_arguments(list(words))
    return str(caught.value)


def test_file_options_and_overrides() -> None:
    words = ["cnn.yaml", "--device", "cpu", "--lr=0.1", "--max-grad-norm", "null", "--data-folder", "/x y"]
    file, run_opts, overrides = parse_arguments(words)
    assert file == "cnn.yaml"
    assert run_opts == {"device": "cpu", "max_grad_norm": None} and isinstance(run_opts, dict)
    assert overrides == "lr: 0.1\ndata_folder: /x y\n"
    assert parse_arguments(["cnn.yaml"]) == ("cnn.yaml", {}, "")


def test_the_words_of_the_process_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "cnn.yaml", "--debug"])
    assert parse_arguments() == ("cnn.yaml", {"debug": True}, "")


def test_the_file_may_stand_anywhere() -> None:
    for words in (
        ["--debug", "a.yaml"],
        ["--lr", "1", "a.yaml"],
        ["a.yaml", "--debug", "no"],
        ["--debug=1", "a.yaml"],
    ):
        assert parse_arguments(words)[0] == "a.yaml"


def test_the_later_wins() -> None:
    _, run_opts, overrides = parse_arguments(
        ["a.yaml", "--debug", "--lr", "1", "--lr", "2", "--debug", "off"]
    )
    assert (run_opts, overrides) == ({"debug": False}, "lr: 2\n")


def test_options_that_take_lists() -> None:
    for words in (
        ["--compile_module_keys", "a", "b"],
        ["--compile-module-keys=a,b"],
        ["--compile_module_keys", "[a, b]"],
    ):
        assert parse_arguments(["x.yaml", *words, "--debug"])[1] == {
            "compile_module_keys": ["a", "b"],
            "debug": True,
        }
    assert "A list of values goes after the file" in error_of("--compile_module_keys", "a", "x.yaml")


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--x", "[1, a]"], [1, "a"]),
        (["--x={a: 1}"], {"a": 1}),
        (["--x", "(1, 2)"], (1, 2)),
        (["--x", "!new:collections.Counter {a: 2}"], {"a": 2}),
        (["--x", "!ref <y> * 2"], 6),
        (["--x", "'5'"], "5"),
        (["--x", "null"], None),
        (["--x", "None"], None),
        (["--x="], ""),
        (["--x", ""], ""),
        (["--x"], True),
        (["--x", "--y", "3"], True),
        (["--x", "false"], False),
        (["--x", "a: b"], "a: b"),
        (["--x", "a #b"], "a #b"),
        (["--x", "#b"], "#b"),
        (["--x", "*"], "*"),
        (["--x", "&a"], "&a"),
        (["--x", "%d"], "%d"),
        (["--x", "@home"], "@home"),
        (["--x", "- a"], "- a"),
        (["--x", "-"], "-"),
        (["--x", "-a"], "-a"),
        (["--x", "---"], "---"),
        (["--x", "? a"], "? a"),
        (["--x", ":a"], ":a"),
        (["--x", "a:"], "a:"),
        (["--x", "C:\\new\\x"], "C:\\new\\x"),
        (["--x", "http://a.b:80/c?d=e&f"], "http://a.b:80/c?d=e&f"),
        (["--x", " a "], " a "),
        (["--x", "two\nlines"], "two\nlines"),
        (["--x", "tab\there"], "tab\there"),
        (["--x", "é\u2028"], "é\u2028"),
        (["--x", "\x7f\x01"], "\x7f\x01"),
        (["--x", '😀 \\ "'], '😀 \\ "'),
        (["--x", "0_"], "0_"),
        (["--x", "]"], "]"),
        (["--x", "> 1"], "> 1"),
        (["--x", "it's"], "it's"),
        (["--x", "<y>"], "<y>"),
        (["--x", "=3"], "=3"),
        (["--x", "<<"], "<<"),
    ],
)
def test_values_of_overrides_are_what_was_typed(words: list[str], value: object) -> None:
    _, _, overrides = parse_arguments(["a.yaml", *words])
    loaded = load_hyperpyyaml("x: null\ny: 3\n", overrides)["x"]
    assert loaded == value and (type(loaded) is type(value) or isinstance(loaded, dict))


def test_keys_that_yaml_would_take_for_something_else() -> None:
    _, _, overrides = parse_arguments(["a.yaml", "--on", "3", "--a.b=4"])
    assert load_hyperpyyaml("on: 1\na.b: 2\n", overrides) == {"on": 3, "a.b": 4}


def test_mistakes() -> None:
    assert "There is no hparams file. A list of values goes after the file. usage: " in error_of("--debug")
    assert "There is one hparams file, not 2: ['a.yaml', 'b.yaml']" in error_of("a.yaml", "b.yaml")
    assert "'-x' is no argument: names begin with two dashes" in error_of("a.yaml", "-x")
    assert "--device needs a value: it takes a text, or null." in error_of("a.yaml", "--device", "--debug")
    assert "--precision needs a value" in error_of("a.yaml", "--precision")
    assert "'precision' (on the command line) is 'bf61', but it takes one of" in error_of(
        "a.yaml", "--precision=bf61"
    )
    message = error_of("a.yaml", "--x", "[abc")
    assert "The value of --x is '[abc', which begins like YAML and is none" in message
    assert """put it in double quotes inside single ones: --x '"[abc"'.""" in message


def test_what_was_not_given_is_answered_with_the_default() -> None:
    _, run_opts, _ = parse_arguments(["a.yaml"])
    assert run_opts["precision"] == "fp32" and run_opts["device"] in ("cpu", "cuda:0", "mps")
    assert "device" not in run_opts and run_opts.get("device") is None
    with pytest.raises(KeyError):
        run_opts["devise"]


def test_help_lists_every_option_and_exits(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("--help", "-h"):
        with pytest.raises(SystemExit) as caught:
            parse_arguments(["a.yaml", word, "--nonsense"])
        assert caught.value.code == 0
        printed = capsys.readouterr().out
        assert printed == help_text()
        assert all(f"  --{name}  (" in printed for name in RunOptions.names())
    assert "--max_grad_norm  (a number, or null; default 5.0)" in printed
    assert max(map(len, printed.splitlines()[1:])) <= 110  # the first names the program, wherever it lies


def test_from_the_command_line_to_a_brain() -> None:
    words = ["a.yaml", "--limit-train-batches", "3", "--max_grad_norm=-1", "--lr", "1e-3"]
    _, run_opts, overrides = parse_arguments(words)
    hparams = load_hyperpyyaml(
        "lr: 0.1\nmax_grad_norm: 2.0\nrun_opts: {debug_epochs: 4, noprogressbar: yes}\n", overrides
    )
    brain = Brain(hparams=hparams, run_opts=run_opts)
    assert (brain.hparams.lr, brain.max_grad_norm, brain.limit_train_batches) == (0.001, None, 3)
    assert (brain.debug_epochs, brain.noprogressbar) == (4, True)
