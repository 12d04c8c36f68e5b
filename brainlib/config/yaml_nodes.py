"""YAML text to a tree of nodes and back. The only file that knows ruamel.yaml.

The tree is what ruamel's `compose` gives: mappings, sequences and scalars, each with its tag, its raw text, its
comments and its line. Nothing has been turned into Python objects yet, which is what makes it possible to change
values, follow references and name lines in messages. Only ruamel's public composing and serializing are used; nothing
of it is patched.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

# Under these names the other files of this room get them from here.
from ruamel.yaml.nodes import MappingNode as MappingNode
from ruamel.yaml.nodes import Node as Node
from ruamel.yaml.nodes import ScalarNode as ScalarNode
from ruamel.yaml.nodes import SequenceNode as SequenceNode

from brainlib.config.scalars import AmbiguousWord, is_tuple, read_plain
from brainlib.config.typed import Typed

__all__ = [
    "PythonNode",
    "custom_tag",
    "find_key",
    "is_plain",
    "items",
    "key_of",
    "node_of",
    "parse",
    "serialize",
    "show_path",
    "text_of",
    "walk",
    "where",
]

_YAML = "tag:yaml.org,2002:"
_STANDARD = frozenset(
    _YAML + kind for kind in ("map", "seq", "str", "int", "float", "bool", "null", "merge", "timestamp")
)


# Texts that are a plain word wherever they stand; all others are quoted, needed or not.
_UNQUOTED = re.compile(r"[A-Za-z_./]([\w ./+=@~-]*\w)?/?")


Path = tuple[Hashable, ...]  # the keys that lead to a node, from the top of the main file


class PythonNode(ScalarNode):
    """A node for a Python object that came in through overrides and has no spelling in YAML."""

    __slots__ = ("python",)

    def __init__(self, python: Any) -> None:
        super().__init__(f"!python:{type(python).__name__}", repr(python))
        self.python = python


class _NamedText(io.StringIO):
    """A text that knows what to be called in messages."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name


def parse(text: str, label: str) -> Node | None:
    r"""Read one YAML document; None if there is nothing in it.

    Args:
        text: the document.
        label: what messages call it: a path, or words such as "the overrides".

    Raises:
        ValueError: the text is not YAML, or a mapping has a key twice; the message has the line.

    >>> parse("a: 1\na: 2", "lr.yaml")
    Traceback (most recent call last):
    ...
    ValueError: lr.yaml, line 2: the key 'a' is given twice; it first stands in line 1. Remove one of them.
    """
    try:
        node = YAML().compose(_NamedText(text, label))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = " ".join(str(part) for part in (error.context, error.problem) if part)
        hint = " A value that has ': ' in it needs quotes." if "mapping values" in problem else ""
        raise ValueError(f"{label}{line}: this is not YAML: {problem}.{hint}") from error
    except YAMLError as error:
        raise ValueError(f"{label}: this is not YAML: {error}") from error
    if node is not None:
        for inner in walk(node):
            _drop_foreign_tag(inner)
            _refuse_duplicates(inner)
    return node  # type: ignore[no-any-return]


def _drop_foreign_tag(node: Node) -> None:
    """Make an unquoted word a text again where another library in this process taught ruamel to give it a tag.

    hyperpyyaml does so for tuples when it loads its first file, and what it changes holds for all users of ruamel.
    """
    if isinstance(node, ScalarNode) and node.ctag.handle is None and str(node.tag) not in _STANDARD:
        node.tag = _YAML + "str"


def _refuse_duplicates(node: Node) -> None:
    if not isinstance(node, MappingNode):
        return
    lines: dict[Hashable, int] = {}
    for key_node, _ in node.value:
        key, line = key_of(key_node), key_node.start_mark.line + 1
        if key in lines:
            raise ValueError(
                f"{where(key_node)}: the key {key!r} is given twice; it first stands in line {lines[key]}. "
                "Remove one of them."
            )
        lines[key] = line


def where(node: Node) -> str:
    """The file and line of a node, or its name on the command line, to begin a message with."""
    mark = node.start_mark
    if isinstance(mark, Typed):
        return mark.name
    return "the overrides" if mark is None else f"{mark.name}, line {mark.line + 1}"


def show_path(path: Path) -> str:
    """A path as a reference spells it.

    >>> show_path(("model", "layers", 0))
    'model[layers][0]'
    """
    return str(path[0]) + "".join(f"[{key}]" for key in path[1:]) if path else "the whole file"


def custom_tag(node: Node) -> str:
    """The tag that somebody wrote on a node (``!new:torch.nn.Linear``), or nothing."""
    tag = str(node.tag)
    return "" if tag in _STANDARD else tag.replace(_YAML, "!!", 1)


def is_plain(node: Node) -> bool:
    """Whether a node is an unquoted, untagged word, whose meaning is read off its spelling."""
    return (
        isinstance(node, ScalarNode)
        and not custom_tag(node)
        and node.style is None
        and node.ctag.handle is None
    )


def text_of(node: Node) -> str:
    """The text of a scalar, without the marks that ruamel puts where the lines of a folded block (``>``) were."""
    return str(node.value).replace("\a", "") if getattr(node, "style", None) == ">" else str(node.value)


def key_of(node: Node) -> Hashable:
    """The Python value of a key. Words that could be misread are texts: nobody means a boolean by the key ``on``."""
    if isinstance(node, SequenceNode):
        return tuple(key_of(item) for item in node.value)
    if not isinstance(node, ScalarNode):
        raise ValueError(f"{where(node)}: a mapping cannot be a key.")
    if not is_plain(node):
        return text_of(node)
    if is_tuple(node.value):
        inner = parse(f"[{node.value[1:-1]}]", where(node))
        return key_of(inner) if inner is not None else ()
    try:
        return read_plain(node.value)
    except AmbiguousWord:
        return str(node.value)


def items(node: MappingNode) -> list[tuple[Hashable, Node, Node]]:
    """The (key, key node, value node) of a mapping; what ``<<`` merges in comes first and gives way to the rest."""
    merged: dict[Hashable, tuple[Node, Node]] = {}
    for key_node, value in node.value:
        if str(key_node.tag) == _YAML + "merge":
            sources = value.value if isinstance(value, SequenceNode) else [value]
            for source in reversed(sources):  # of several, the first wins
                if not isinstance(source, MappingNode):
                    raise ValueError(f"{where(key_node)}: << takes a mapping or a list of mappings.")
                merged.update({key: (inner, each) for key, inner, each in items(source)})
    own = {key_of(key): (key, value) for key, value in node.value if str(key.tag) != _YAML + "merge"}
    return [(key, *pair) for key, pair in {**merged, **own}.items()]


def find_key(node: MappingNode, key: Hashable) -> tuple[Hashable, Node] | None:
    """The entry of a mapping for a key, or for the text of a key, as references and command lines have it."""
    entries = [(own, value) for own, _, value in items(node)]
    for matches in (lambda own: own == key, lambda own: str(own) == str(key)):
        for own, value in entries:
            if matches(own):
                return own, value
    return None


def walk(node: Node) -> Iterator[Node]:
    """A node and all nodes under it, each once."""
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, MappingNode):
            waiting += [each for pair in reversed(node.value) for each in reversed(pair)]
        elif isinstance(node, SequenceNode):
            waiting += reversed(node.value)


def node_of(value: Any) -> Node:
    r"""The node for a Python value: numbers, texts, lists and dicts are spelled, anything else is carried along.

    >>> serialize(node_of({"a": [1, "no"], "b": 1e-05}))
    "a:\n- 1\n- 'no'\nb: 1e-05\n"
    """
    tag = getattr(value, "yaml_tag", None)
    if tag in ("!ref", "!PLACEHOLDER"):  # hyperpyyaml's objects for writing these tags
        return ScalarNode(tag, getattr(value, "ref_str", ""))
    if isinstance(value, Mapping):
        return MappingNode(_YAML + "map", [(node_of(key), node_of(each)) for key, each in value.items()])
    if isinstance(value, (list, tuple)):
        kind = "!tuple" if isinstance(value, tuple) else _YAML + "seq"
        return SequenceNode(
            kind, [node_of(each) for each in value], flow_style=isinstance(value, tuple) or None
        )
    if value is None:
        return ScalarNode(_YAML + "null", "null")
    if isinstance(value, bool):
        return ScalarNode(_YAML + "bool", str(value).lower())
    if type(value) is int:
        return ScalarNode(_YAML + "int", str(value))
    if type(value) is float:
        text = repr(value)
        return ScalarNode(
            _YAML + "float",
            text if text[-1].isdigit() else text.replace("inf", ".inf").replace("nan", ".nan"),
        )
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        return ScalarNode(_YAML + "str", str(value), style=_style(value))
    return PythonNode(value)


def _style(text: str) -> str | None:
    """How to quote a text so that it is read back as this text; None where no quotes are needed."""
    if not text.isprintable():
        return '"'
    try:
        return None if _UNQUOTED.fullmatch(text) and read_plain(text) == text else "'"
    except AmbiguousWord:
        return "'"


def serialize(node: Node) -> str:
    """The text of a tree, with the comments that it was read with."""
    yaml = YAML()
    yaml.width = 1 << 16  # never fold a line
    for each in walk(node):
        if is_plain(each):  # stays unquoted even where ruamel, with rules of its own, would quote it
            each.ctag = yaml.resolver.resolve(ScalarNode, each.value, (True, False))
    stream = io.StringIO()
    yaml.serialize(node, stream)
    return stream.getvalue()
