"""Overrides: values that replace those of an hparams file, checked at every depth.

The rules: a key must be there already; a mapping changes the keys it names and leaves the others; everything else
replaces, and so does a value with a tag (``!new:``, ``!name:``, …), which describes an object completely. A word is
read by what it replaces: where the file has a boolean or a number, another word is most likely a mistake, and refused.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from brainlib.common.errors import nearest, quoted
from brainlib.common.option_fields import same_name
from brainlib.config.scalars import AmbiguousWord, is_tuple, read_boolean, read_plain
from brainlib.config.typed import Typed, TypedOverrides, metavar
from brainlib.config.yaml_nodes import (
    MappingNode,
    Node,
    Path,
    ScalarNode,
    SequenceNode,
    custom_tag,
    find_key,
    is_plain,
    items,
    key_of,
    node_of,
    parse,
    serialize,
    show_path,
    walk,
    where,
)
from brainlib.options import RunOptions

__all__ = ["apply_overrides", "overrides_with", "read_overrides"]

_SPECIAL = ("inf", "infinity", "nan")


def read_overrides(overrides: str | Mapping[str, Any] | None) -> MappingNode | None:
    """Overrides as nodes, from YAML text (`parse_arguments` returns it) or from a dict; None if there are none.

    Raises:
        ValueError: they are neither.
    """
    if overrides is None or (isinstance(overrides, str) and not overrides.strip()):
        return None
    node = parse(overrides, "the overrides") if isinstance(overrides, str) else node_of(overrides)
    if node is None:
        return None
    if not isinstance(node, MappingNode) or custom_tag(node):
        raise ValueError(f"The overrides are {overrides!r}, but they are a dict, or YAML such as 'lr: 0.1'.")
    if isinstance(overrides, TypedOverrides):  # messages name what was typed, not a line of our own text
        for (key_node, value), typed in zip(node.value, overrides.typed, strict=True):
            for each in (key_node, *walk(value)):
                each.start_mark = typed
    return node


def overrides_with(overrides: str | Mapping[str, Any] | None, key: str, value: str) -> str | dict[str, Any]:
    r"""Overrides, and one more in place of what they say of this top-level key; of the kind that was given.

    >>> overrides_with({"lr": 0.1}, "out", "a/b"), overrides_with("out: a  # here\nlr: 1", "out", "a/b")
    ({'lr': 0.1, 'out': 'a/b'}, 'lr: 1\nout: a/b\n')
    """
    if isinstance(overrides, TypedOverrides):
        return overrides.with_value(same_name(key), value)
    if not isinstance(overrides, str):
        others = {own: each for own, each in (overrides or {}).items() if not _same_key(own, key)}
        return {**others, key: value}
    node = read_overrides(overrides) or MappingNode("tag:yaml.org,2002:map", [])
    node.value = [pair for pair in node.value if not _same_key(key_of(pair[0]), key)]
    node.value.append((node_of(key), node_of(value)))
    return serialize(node)


def _same_key(one: Hashable, other: Hashable) -> bool:
    """Whether they differ in dashes and underscores at most."""
    return isinstance(one, str) and isinstance(other, str) and same_name(one) == same_name(other)


def apply_overrides(
    target: MappingNode,
    given: MappingNode,
    label: str,
    *,
    must_match: bool = True,
    path: Path = (),
) -> None:
    """Change a mapping in place.

    Args:
        target: the mapping of the hparams file.
        given: the overrides for it.
        label: what messages call the file.
        must_match: whether a key that the file lacks is an error; otherwise it is added.
        path: where `target` sits in the file.

    Raises:
        ValueError: an unknown key; a word that is no boolean, or no number, where the file has one; on a command line
            a name without a value where the file has no boolean.
    """
    for key, key_node, value in items(given):
        found = find_key(target, key) or _alike(target, key)
        if found is None:
            if must_match:
                raise ValueError(_unknown(target, key, key_node, label, path))
            target.value.append((key_node, value))
            continue
        own, old = found
        inner = (*path, own)
        if isinstance(value, MappingNode) and not custom_tag(value) and _holds_keys(old):
            old = _opened(target, own, old)
            apply_overrides(old, value, label, must_match=must_match, path=inner)
        else:
            _put(target, own, _fitted(value, old, inner))


def _alike(target: MappingNode, key: Hashable) -> tuple[Hashable, Node] | None:
    """The entry whose key differs only in dashes and underscores."""
    for own, _, value in items(target):
        if _same_key(own, key):
            return own, value
    return None


def _holds_keys(node: Node) -> bool:
    """Whether a mapping given for this node changes some of its keys, rather than replacing it."""
    empty_object = (
        isinstance(node, ScalarNode)
        and not node.value
        and custom_tag(node).startswith(("!new:", "!name:", "!apply"))
    )
    return isinstance(node, MappingNode) or empty_object


def _opened(target: MappingNode, key: Hashable, node: Node) -> MappingNode:
    """The node as a mapping: an object without arguments (``!new:collections.Counter``) has an empty one."""
    if isinstance(node, MappingNode):
        return node
    opened = MappingNode(node.ctag, [], node.start_mark, node.end_mark)
    _put(target, key, opened)
    return opened


def _put(target: MappingNode, key: Hashable, value: Node) -> None:
    for index, (key_node, old) in enumerate(target.value):
        if key_of(key_node) == key:
            value.comment = value.comment or (old.comment if isinstance(value, ScalarNode) else None)
            target.value[index] = (key_node, value)
            return
    target.value.append((node_of(key), value))  # so far it came in through <<


def _fitted(value: Node, old: Node, path: Path) -> Node:
    """The override, with a word that could mean several things read by the value that it replaces."""
    kind = _kind_of(old)
    typed = value.start_mark if isinstance(value.start_mark, Typed) else None
    if typed is not None and typed.how == "alone" and kind is not bool:
        raise ValueError(
            f"{typed.name} has no value. A name alone means true, and replaces only true or false; {where(old)} has "
            f"{_shown(old)}. Write {typed.name} {metavar(str(path[-1]))}, or {typed.name}=true if that is meant."
        )
    is_word = is_plain(value) or (typed is not None and typed.how == "word")
    if not is_word or is_tuple(str(value.value)):
        return value
    word = str(value.value)
    try:
        meant: Any = read_plain(word) if is_plain(value) else word
    except AmbiguousWord as ambiguous:
        if kind is str:
            return node_of(word)
        if kind is None or ambiguous.boolean is None:
            return value  # refused, with the line, where all words are read
        meant = ambiguous.boolean
    if kind is bool and meant is not None and not isinstance(meant, bool):
        meant = read_boolean(word)
        if meant is None:
            raise ValueError(
                f"{where(value)}: {show_path(path)!r} is {word!r}, but it takes true or false, as {where(old)} has it. "
                f"{_advice(value, word)}"
            )
    # A text in a dict of overrides is meant as one; in a file or on a command line it is a typing mistake first.
    if kind in (int, float) and isinstance(meant, (str, bool)) and value.start_mark is not None:
        hint = " In YAML these are .inf and .nan." if word.lower().strip("+-") in _SPECIAL else ""
        raise ValueError(
            f"{where(value)}: {show_path(path)!r} is {word!r}, which is no number, and {where(old)} has "
            f"{_shown(old)}. Give a number or null.{hint} {_advice(value, word)}"
        )
    return node_of(meant) if isinstance(meant, bool) else value


def _advice(value: Node, word: str) -> str:
    """How to write a text where a text is unlikely."""
    quotes = "'{}'".format(word.replace("'", "''"))
    if isinstance(value.start_mark, Typed) and value.start_mark.how == "word":
        return f'To replace it by a text, put that in quotes inside the quotes: {value.start_mark.name} "{quotes}".'
    return f"To replace it by a text, put that in quotes: {quotes}."


def _shown(node: Node) -> str:
    """A value of the file in a few words."""
    tag = custom_tag(node)
    if isinstance(node, ScalarNode):
        return f"{tag} {node.value}".strip() or "null"
    return tag or ("a list" if isinstance(node, SequenceNode) else "a mapping")


def _kind_of(node: Node) -> type | None:
    """The type of a value in the file as far as it can be told without building anything."""
    if not isinstance(node, ScalarNode) or custom_tag(node):
        return None
    if not is_plain(node):
        return str
    if is_tuple(node.value):
        return None
    try:
        value = read_plain(node.value)
    except AmbiguousWord:
        return None
    return None if value is None else type(value)


def _unknown(target: MappingNode, key: Hashable, key_node: Node, label: str, path: Path) -> str:
    keys = [str(own) for own, _, _ in items(target)]
    place = f"{show_path(path)!r} in {label}" if path else label
    message = f"{where(key_node)}: there is no key {str(key)!r} in {place}."
    hint = nearest(same_name(str(key)), keys)
    options = [] if path else [each for each in RunOptions.names() if each.startswith(same_name(str(key)))]
    option = options[0] if options else ""
    if not option and not path:
        option = (
            nearest(same_name(str(key)), RunOptions.names())
            .removeprefix(" Did you mean '")
            .removesuffix("'?")
        )
    if hint:
        return message + hint
    if option:
        return f"{message} Did you mean the run option --{option}? Options are not abbreviated."
    if path and custom_tag(target):
        message += (
            f" To build another object, give all of it: {show_path(path)}: '{custom_tag(target)} {{…}}'."
        )
    return f"{message} There are {quoted(keys)}."
