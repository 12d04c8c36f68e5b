from __future__ import annotations

import sys
from pathlib import Path

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
        (["--x=true"], True),
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


def test_a_name_alone_is_true_where_the_file_has_a_boolean() -> None:
    for words in (["--x"], ["--x", "--y", "3"], ["--y", "3", "--x"]):
        assert load_hyperpyyaml("x: false\ny: 3\n", parse_arguments(["a.yaml", *words])[2])["x"] is True
    assert (
        load_hyperpyyaml("y: 3\n", parse_arguments(["a.yaml", "--x"])[2], overrides_must_match=False)["x"]
        is True
    )


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (
            "!PLACEHOLDER",
            "!PLACEHOLDER. Write --output_folder DIR, or --output_folder=true if that is meant.",
        ),
        ("results", "results. Write --output_folder DIR"),
        ("3", "3. Write"),
        ("null", "null. Write"),
        ("[1, 2]", "a list. Write"),
        ("{a: 1}", "a mapping. Write"),
        ("!new:dict {a: 1}", "!new:dict. Write"),
        ("!ref <x>", "!ref <x>. Write"),
    ],
)
def test_a_name_alone_anywhere_else_says_what_to_write(given: str, shown: str) -> None:
    _, _, overrides = parse_arguments(["a.yaml", "--output-folder", "--x"])
    with pytest.raises(ValueError) as caught:
        load_hyperpyyaml(f"x: true\noutput_folder: {given}\n", overrides)
    assert str(caught.value).startswith(
        "--output_folder has no value. A name alone means true, and replaces only true or false; the hparams text, "
        f"line 2 has {shown}"
    )


def test_messages_name_what_was_typed_and_no_line() -> None:
    def error(*words: str) -> str:
        _, _, overrides = parse_arguments(["a.yaml", "--y", "3", *words])
        with pytest.raises((ValueError, ImportError)) as caught:
            load_hyperpyyaml("x: 1\ny: 2\nlist: {a: 1}\n", overrides)
        return str(caught.value)

    assert error("--lrr", "3").startswith("--lrr: there is no key 'lrr' in the hparams text.")
    assert error("--x", "!new:no.such").startswith("--x: 'x': there is no module 'no'")
    assert error("--list", "{a: !ref <zz>}").startswith("--list: <zz>: there is no key 'zz'.")
    assert error("--list", "{b: 1}").startswith("--list: there is no key 'b' in 'list' in the hparams text.")
    assert error("--list", "{a: off}").startswith("--list: 'list[a]' is 'off', which is no number")
    assert error("--list", "[yes]").startswith("--list: 'list[0]': yes means different things")


def test_a_word_for_a_number_is_refused() -> None:
    def loaded(text: str, *words: str) -> object:
        return load_hyperpyyaml(text, parse_arguments(["a.yaml", *words])[2])["lr"]

    def error(*words: str) -> str:
        with pytest.raises(ValueError) as caught:
            loaded("lr: 3.0e-3\nk: 5\n", *words)
        return str(caught.value)

    assert error("--lr", "fast") == (
        "--lr: 'lr' is 'fast', which is no number, and the hparams text, line 1 has 3.0e-3. Give a number or null. "
        """To replace it by a text, put that in quotes inside the quotes: --lr "'fast'"."""
    )
    for word in ("", "3.", "1e-3x", "1/3", "two words", "a: b", "true", "no", "007", "it's"):
        if word not in ("3.", "007"):
            assert f"'lr' is {word!r}, which is no number" in error("--lr", word), word
    assert loaded("lr: 1\n", "--lr", "3.") == 3.0
    assert "write 7 for the number" in error("--lr", "007")
    assert "In YAML these are .inf and .nan." in error("--lr=-inf")
    assert loaded("lr: 1\n", "--lr=-.inf") == float("-inf")
    for word, value in (
        ("null", None),
        ("None", None),
        ("!ref <k>", 5),
        ("[1]", [1]),
        ("(1, 2)", (1, 2)),
        ("'fast'", "fast"),
    ):
        assert loaded("lr: 1\nk: 5\n", "--lr", word) == value


def test_keys_that_yaml_would_take_for_something_else() -> None:
    _, _, overrides = parse_arguments(["a.yaml", "--on", "3", "--a.b=4"])
    assert load_hyperpyyaml("on: 1\na.b: 2\n", overrides) == {"on": 3, "a.b": 4}


def test_mistakes() -> None:
    listed = "A list of values goes after the file."
    assert (
        "There is no hparams file. usage: " in error_of()
        and "There is no hparams file. usage" in error_of("--debug")
    )
    assert f"There is no hparams file. {listed} usage" in error_of("--compile_module_keys", "a", "a.yaml")
    assert f"There is one hparams file, not 2: ['a.yaml', 'b.yaml']. {listed}" in error_of("a.yaml", "b.yaml")
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
        listed, old = printed.split("Accepted for old files: ")
        assert listed.endswith("\n\n") and len(old.splitlines()) < 5
        assert all(f"  --{name}  (" in listed or f"--{name}" in old for name in RunOptions.names())
        assert "--jit," in old and "--jit " not in listed
        assert "There is no hparams file 'a.yaml'" in printed
    assert "--max_grad_norm  (a number, or null; default 5.0)" in printed
    assert max(map(len, printed.splitlines()[1:])) <= 110  # the first names the program, wherever it lies


def test_help_lists_the_keys_of_the_file_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        "# a recipe\n__seed: !apply:random.seed [1]\nout: !PLACEHOLDER\nlr: 1e-3   # falls\n# not this one\n"
        "model: !new:torch.nn.Linear\n    in_features: !ref <n>\n    out_features: 3\nn:\nname: 'a  b'\n"
        f"long: {'x' * 200}\nfolded: >\n  one\n  two\n"
    )
    for words in ([str(file), "--help"], ["--lr", "3", str(file), "-h"]):
        with pytest.raises(SystemExit):
            parse_arguments(words)
        printed = capsys.readouterr().out
        lines = (
            printed.split(f"Keys of {file}, with its values:\n\n")[1].split("\n\nRun options")[0].split("\n")
        )
        assert lines[:5] == [
            "  --out     !PLACEHOLDER, has to be given",
            "  --lr      1e-3  # falls",
            "  --model   !new:torch.nn.Linear {in_features: !ref <n>, out_features: 3}",
            "  --n       null",
            "  --name    'a b'",
        ]
        assert lines[5].endswith("xxx …") and len(lines[5]) <= 110
        assert lines[6:] == ["  --folded  'one two'"]
    file.write_text("a: [1\n")
    assert f"{file}, line 2: this is not YAML" in help_text(str(file)).replace("\n ", "")
    assert "give the file to see them" in help_text()


def test_from_the_command_line_to_a_brain() -> None:
    words = ["a.yaml", "--limit-train-batches", "3", "--max_grad_norm=-1", "--lr", "1e-3"]
    _, run_opts, overrides = parse_arguments(words)
    hparams = load_hyperpyyaml(
        "lr: 0.1\nmax_grad_norm: 2.0\nrun_opts: {debug_epochs: 4, noprogressbar: yes}\n", overrides
    )
    brain = Brain(hparams=hparams, run_opts=run_opts)
    assert (brain.hparams.lr, brain.max_grad_norm, brain.limit_train_batches) == (0.001, None, 3)
    assert (brain.debug_epochs, brain.noprogressbar) == (4, True)
