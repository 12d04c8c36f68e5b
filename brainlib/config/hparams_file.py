"""The three things done with an hparams file: load it, write it out resolved, write a new one.

ruamel.yaml takes a twentieth of a second to import and most of brainlib never needs it, so it is imported when the
first file is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brainlib.config.source import HparamsTree

__all__ = ["dump_hyperpyyaml", "load_hyperpyyaml", "resolve_hyperpyyaml"]

_Source = str | os.PathLike[str] | IO[Any]


def load_hyperpyyaml(
    source: _Source,
    overrides: str | Mapping[str, Any] | None = None,
    overrides_must_match: bool = True,
    aliases: Mapping[str, str] | str | None = None,
) -> dict[str, Any]:
    """Load an experiment written in HyperPyYAML: values, references, and the objects that its tags describe.

    An hparams file is code: its tags import and call whatever they name. Load only files you would run.
    ``docs/hparams.md`` describes the language.

    Args:
        source: a path, an open file, or the text itself (a string with more than one line or with ": " in it).
        overrides: values that replace those of the file: a dict, or YAML text as `parse_arguments` returns it. A
            mapping changes the keys it names; a value with a tag, and every other value, replaces.
        overrides_must_match: whether a key that the file lacks is an error, at any depth; otherwise it is added.
        aliases: dotted names, or beginnings of them, to replace in tags: ``{"old_package": "new_package"}``. The word
            "speechbrain" stands for those of its trainer (``docs/porting.md``); its layers stay its own.

    Returns:
        The top-level keys with their values, without the keys that begin with two underscores.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: something in the file or in the overrides is wrong; the message has the file and the line.
        ImportError: a tag names something that is not there. What goes wrong inside a module or a call comes out as it
            is.

    >>> text = '''
    ... width: 3
    ... counts: !new:collections.Counter
    ...     a: !ref <width> * 2
    ... '''
    >>> load_hyperpyyaml(text, {"width": 5})
    {'width': 5, 'counts': Counter({'a': 10})}
    """
    from brainlib.config.aliases import aliases_of
    from brainlib.config.placeholders import refuse_placeholders
    from brainlib.config.reader import HparamsReader

    renames = aliases_of(aliases)
    tree = _overridden(source, overrides, overrides_must_match)
    refuse_placeholders(tree)
    HparamsReader(tree, build=False).read()  # finds what is wrong with the file before anything is built
    loaded = HparamsReader(tree, build=True, aliases=renames).read()
    return {key: value for key, value in loaded.items() if not str(key).startswith("__")}


def resolve_hyperpyyaml(
    source: _Source, overrides: str | Mapping[str, Any] | None = None, overrides_must_match: bool = True
) -> str:
    r"""The text of an experiment with overrides applied, files included and references filled in; builds nothing.

    Loading this text gives the same experiment. Comments are kept.

    Args:
        source: as in `load_hyperpyyaml`.
        overrides: as in `load_hyperpyyaml`.
        overrides_must_match: as in `load_hyperpyyaml`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: something in the file or in the overrides is wrong, or an override cannot be written as text.

    >>> print(resolve_hyperpyyaml("out: results\nsave: !ref <out>/save", {"out": "/tmp/x"}), end="")
    out: /tmp/x
    save: /tmp/x/save
    """
    from brainlib.config.resolved import resolved_text

    return resolved_text(_overridden(source, overrides, overrides_must_match))


def dump_hyperpyyaml(values: Mapping[str, Any], stream: IO[str] | None = None) -> str:
    """Write a dict of numbers, texts, booleans, lists, tuples and dicts so that loading it gives the same.

    Args:
        values: what to write. hyperpyyaml's `RefTag` and `Placeholder` are written as their tags.
        stream: where to write it too, if anywhere.

    Raises:
        ValueError: a value has no spelling in YAML.

    >>> print(dump_hyperpyyaml({"language": "no", "lr": 1e-4}), end="")
    language: 'no'
    lr: 0.0001
    """
    from brainlib.config.yaml_nodes import PythonNode, node_of, serialize, walk

    node = node_of(values)
    for each in walk(node):
        if isinstance(each, PythonNode):
            raise ValueError(
                f"{each.value} is a {type(each.python).__name__}, which has no spelling in an hparams file."
            )
    text = serialize(node)
    if stream is not None:
        stream.write(text)
    return text


def unbuilt_values(
    source: _Source, overrides: str | Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[str]]:
    r"""What the file says at its top level, and under ``run_opts``, as far as that is known without any object.

    Args:
        source: as in `load_hyperpyyaml`.
        overrides: as in `load_hyperpyyaml`.

    Returns:
        The values by key, and the keys whose values come from objects; those under ``run_opts`` by their bare names.

    >>> unbuilt_values("lr: 0.1\ncount: !apply:int [3]\nrun_opts: {debug: !ref <count>, compile: true}")
    ({'lr': 0.1, 'run_opts': {'compile': True}}, ['count', 'debug'])
    """
    from brainlib.config.placeholders import refuse_placeholders
    from brainlib.config.reader import LATER, HparamsReader

    tree = _overridden(source, overrides, must_match=True)
    refuse_placeholders(tree)
    values = HparamsReader(tree, build=False).read()
    computed = [key for key, value in values.items() if value is LATER]
    known = {key: value for key, value in values.items() if value is not LATER}
    if isinstance(options := known.get("run_opts"), Mapping):
        computed += [key for key, value in options.items() if value is LATER]
        known["run_opts"] = {key: value for key, value in options.items() if value is not LATER}
    return known, computed


def _overridden(source: _Source, overrides: str | Mapping[str, Any] | None, must_match: bool) -> HparamsTree:
    from brainlib.config.overrides import apply_overrides, read_overrides
    from brainlib.config.source import read_tree

    tree = read_tree(source)
    given = read_overrides(overrides)
    if given is not None:
        apply_overrides(tree.root, given, tree.label, must_match=must_match)
    return tree
