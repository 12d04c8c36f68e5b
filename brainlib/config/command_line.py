"""``train.py hparams.yaml --precision bf16 --lr 1e-3``: run options on one side, overrides of the file on the other.

No abbreviations: ``--prec`` is not ``--precision`` but a key ``prec`` of the file, and if the file has none, loading it
says so. That is why argparse, which guesses, is not used.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from brainlib.common.option_fields import Option, same_name
from brainlib.config.scalars import read_boolean
from brainlib.config.typed import How, TypedOverrides, spelled
from brainlib.distributed.devices import find_device
from brainlib.options import all_options

__all__ = ["CommandLineOptions", "help_text", "parse_arguments"]

_FLAG = re.compile(r"--([A-Za-z_][\w.-]*)(?:=(.*))?", re.DOTALL)
_USAGE = "usage: {program} HPARAMS.yaml [--option VALUE] [--key VALUE]"
_OLD = "Accepted for old files"  # how the help of such an option begins
_FLOW = ("[", "{", "!", "'", '"')  # a value that begins like this is YAML


class CommandLineOptions(dict[str, Any]):
    """The run options that were given, by name. Asked for another option, it answers with the default.

    So ``run_opts["device"]`` works whether or not somebody wrote ``--device``, and what was given can still be told
    from what was not (``"device" in run_opts``).

    >>> options = CommandLineOptions(debug=True)
    >>> options["debug"], options["precision"], len(options)
    (True, 'fp32', 1)
    """

    def __missing__(self, name: str) -> Any:
        if same_name(name) not in all_options():
            raise KeyError(name)
        return str(find_device()) if name == "device" else all_options()[same_name(name)].default


def parse_arguments(argv: Sequence[str] | None = None) -> tuple[str, CommandLineOptions, str]:
    r"""Read a command line: the hparams file, the run options, and the overrides of the file.

    Every ``--name value`` or ``--name=value`` whose name is a run option is one; all others change keys of the file.
    Dashes and underscores in names are alike. A name without a value is switched on; for a key of the file that is an
    error, once it is loaded, unless the file has true or false there. A value that begins with ``--`` is written with
    ``=``. Given twice, the later wins. With ``--help`` it prints the keys of the file and all options, and exits.

    Args:
        argv: the words of the command line without the program; None: those of this process.

    Returns:
        The path of the file, the options with their values (for `Brain`), and the overrides as YAML text (for
        `load_hyperpyyaml`).

    Raises:
        ValueError: no file, more than one, or a value that its option does not take.

    >>> parse_arguments(["cnn.yaml", "--max-grad-norm=1", "--debug", "--lr", "1E-5", "--out=/a=b"])
    ('cnn.yaml', {'max_grad_norm': 1.0, 'debug': True}, 'lr: 1E-5\nout: /a=b\n')
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if "-h" in words or "--help" in words:
        sys.stdout.write(help_text(_likely_file(words)))
        raise SystemExit(0)
    files: list[str] = []
    options = CommandLineOptions()
    overrides: dict[str, tuple[How, str]] = {}
    while words:
        word = words.pop(0)
        match = _FLAG.fullmatch(word)
        if match is not None:
            name, value = same_name(match[1]), match[2]
            if name in all_options():
                options[name] = _option_value(all_options()[name], word, value, words)
            else:
                overrides[name] = _override(name, value, words)
        elif word.startswith("-"):
            raise ValueError(f"{word!r} is no argument: names begin with two dashes. {_usage()}")
        else:
            files.append(word)
    if len(files) != 1:
        problem = (
            "There is no hparams file"
            if not files
            else f"There is one hparams file, not {len(files)}: {files}"
        )
        lists = len(files) > 1 or any(all_options()[name].is_list for name in options)
        hint = "A list of values goes after the file. " * lists
        raise ValueError(f"{problem}. {hint}{_usage()}")
    return files[0], options, TypedOverrides(overrides, {name: _key(name) for name in overrides})


def _likely_file(words: Sequence[str]) -> str | None:
    """The hparams file in a line that asks for help, and so may be half written."""
    named = [word for word in words if word.endswith((".yaml", ".yml")) and not word.startswith("-")]
    return named[0] if named else None


def _usage() -> str:
    return _USAGE.format(program=sys.argv[0] or "train.py") + ". --help lists the options."


def _option_value(option: Option, word: str, value: str | None, words: list[str]) -> Any:
    given: Any = value
    if value is None and option.is_flag:
        follows = bool(words) and read_boolean(words[0]) is not None
        given = words.pop(0) if follows else True
    elif value is None:
        if not words or _FLAG.fullmatch(words[0]):
            raise ValueError(f"{word} needs a value: it takes {option.takes}.")
        given = words.pop(0)
        if option.is_list:
            given = [given]
            while words and not _FLAG.fullmatch(words[0]):
                given.append(words.pop(0))
            given = given[0] if len(given) == 1 else given
    return option.read(given, "on the command line")


def _override(name: str, value: str | None, words: list[str]) -> tuple[How, str]:
    """How an override was typed, and its value as YAML that is read back as what was typed."""
    if value is None:
        if not words or _FLAG.fullmatch(words[0]):
            return "alone", "true"
        value = words.pop(0)
    if value.startswith(_FLOW):
        from brainlib.config.yaml_nodes import parse  # ruamel only where a value is more than a word

        try:
            parse(f"value: {value}\n", f"--{name}")
        except ValueError as error:
            raise ValueError(
                f"The value of --{name} is {value!r}, which begins like YAML and is none ({error}). To pass it as a "
                f"text, put it in double quotes inside single ones: --{name} '{spelled(value)}'."
            ) from None
        return "yaml", value
    return "word", value if _is_one_word(value) else spelled(value)


def _is_one_word(value: str) -> bool:
    """Whether YAML reads an unquoted value as exactly this text; if not, it is a text that needs quotes."""
    if not value or not value.isprintable() or value != value.strip() or re.search(r":(\s|$)|\s#", value):
        return False
    # A dash begins a number or a word here, not an item of a list.
    begins_a_word = value[0] not in "#&*|>@`%,}]?:-"
    return begins_a_word or (re.match(r"-[^\s-]", value) is not None)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][\w.]*", name) and read_boolean(name) is None else spelled(name)


def help_text(file: str | None = None) -> str:
    """What ``--help`` prints: the keys of the hparams file, and every run option with its default and what it does.

    Args:
        file: the hparams file, if there is one on the command line.

    >>> "--max_grad_norm" in help_text()
    True
    """
    old = [option for option in all_options().values() if option.help.startswith(_OLD)]
    lines = [_USAGE.format(program=sys.argv[0] or "train.py"), ""]
    if file is not None:
        lines += [f"Keys of {file}, with its values:", "", *_keys_of(file), ""]
    about = "Run options. Names are not abbreviated; dashes and underscores are alike."
    if file is None:
        about += (
            " All other names change keys of the hparams file, as in --lr 1e-3; give the file to see them."
        )
    lines += [*textwrap.wrap(about, 100), ""]
    for option in all_options().values():
        if option not in old:
            lines.append(f"  --{option.name}  ({option.takes}; default {option.default_in_words})")
            lines += textwrap.wrap(option.help, 100, initial_indent=" " * 6, subsequent_indent=" " * 6)
    names = ", ".join(f"--{option.name}" for option in old)
    lines += ["", *textwrap.wrap(f"{_OLD}: {names}. docs/options.md says what to write instead.", 100)]
    return "\n".join(lines) + "\n"


def _keys_of(file: str) -> list[str]:
    from brainlib.config.listing import list_keys

    try:
        return [f"  {line}" for line in list_keys(file)]
    except (OSError, ValueError) as error:  # the options are worth showing all the same
        return textwrap.wrap(str(error), 100, initial_indent="  ", subsequent_indent="  ")
