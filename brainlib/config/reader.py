"""Turn the nodes of an experiment into Python objects: the meaning of each tag.

Why not hyperpyyaml's own loader? It works in two passes, references first (on text), objects second, so a reference to
something computed (``!ref <count> * 2`` where count is ``!apply:``) can only give the spelling of the tag. It also
changes defaults inside PyYAML and ruamel while it loads, names no lines, and reports an import error inside a module as
a missing class. Here a value is computed when it is first asked for, once, whatever asks; the language is the same, and
the tests compare the two on files that hyperpyyaml reads right.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from types import ModuleType
from typing import Any

from brainlib.common.errors import nearest, quoted
from brainlib.common.logs import logger
from brainlib.common.option_fields import same_name
from brainlib.config.names import NameNotFound, WrongArguments, check_arguments, locate, renamed
from brainlib.config.placeholders import refuse_placeholders
from brainlib.config.references import Reference, TemplateError, combine, is_date_like, split_template
from brainlib.config.scalars import AmbiguousWord, is_tuple, read_boolean, read_plain
from brainlib.config.source import HparamsTree, Scope
from brainlib.config.yaml_nodes import (
    MappingNode,
    Node,
    Path,
    PythonNode,
    ScalarNode,
    SequenceNode,
    custom_tag,
    is_plain,
    items,
    parse,
    show_path,
    text_of,
    walk,
    where,
)
from brainlib.options import all_options

__all__ = ["LATER", "HparamsReader"]

_CALLS = ("!new", "!name", "!apply", "!applyref", "!module")
_TAGS = (
    "!ref",
    "!copy",
    "!new:",
    "!name:",
    "!apply:",
    "!applyref:",
    "!module:",
    "!include:",
    "!tuple",
    "!PLACEHOLDER",
)
_SEEDING = ("seed_everything", "manual_seed")


class _Later:
    """Stands for a value that exists only once objects are built."""


LATER = _Later()


class HparamsReader:
    """Computes values of one tree, each at most once.

    Args:
        tree: the experiment, with overrides applied.
        build: False computes only what needs no object: everything else is `LATER`. That pass finds unknown keys,
            cycles and wrong tags before anything is built, and it is what the saved file is made of.
        aliases: names, or beginnings of dotted names, to replace in tags.
    """

    def __init__(self, tree: HparamsTree, *, build: bool, aliases: Mapping[str, str] | None = None) -> None:
        self._tree = tree
        self._build = build
        self._aliases = aliases
        self._main = Scope(tree.root)
        self._values: dict[int, Any] = {}
        self._kept: list[Node] = []
        self._entries: dict[
            int, tuple[dict[Any, Any], dict[str, Any]]
        ] = {}  # of a mapping by key, and by its text
        self._open: list[tuple[int, str]] = []  # what is being computed right now, outermost first

    def read(self) -> dict[Any, Any]:
        """Every top-level value, computed in the order of the file, except that seeding comes first.

        Models are built while the file is read, so a seed that is set after them would come too late.
        """
        entries = [(key, value) for key, _, value in items(self._tree.root)]
        for key, node in sorted(entries, key=lambda entry: not _is_seeding(entry[1])):
            self.value(node, (key,), self._main)
        return {key: self.value(node, (key,), self._main) for key, node in entries}

    def value(self, node: Node, path: Path, scope: Scope) -> Any:
        """The value of one node.

        Args:
            node: what to compute.
            path: where it sits, for messages.
            scope: the document in which its references are looked up.
        """
        if id(node) in self._values:
            return self._values[id(node)]
        opened = [each for each, _ in self._open]
        if id(node) in opened:
            names = [name for _, name in self._open[opened.index(id(node)) :]]
            raise ValueError(
                f"{where(node)}: {names[0]!r} refers to itself: {' -> '.join([*names, names[0]])}."
            )
        self._open.append((id(node), show_path(path)))
        try:
            result = self._compute(node, path, self._tree.scopes.get(id(node), scope))
        finally:
            self._open.pop()
        self._values[id(node)] = result
        return result

    def _compute(self, node: Node, path: Path, scope: Scope) -> Any:
        tag = custom_tag(node)
        kind, _, name = tag.partition(":")
        if isinstance(node, PythonNode):
            return node.python
        if not tag:
            return self._plain(node, path, scope)
        if tag in ("!ref", "!copy") and isinstance(node, ScalarNode):
            return self._template(node, path, scope, copy=tag == "!copy")
        if tag in ("!tuple", "!!python/tuple") and isinstance(node, SequenceNode):
            return tuple(self._plain(node, path, scope))
        if tag == "!tuple" and isinstance(node, ScalarNode) and is_tuple(node.value):
            return self._tuple(node, path, scope)
        if kind in _CALLS and name:
            return self._call(kind, renamed(name, self._aliases), node, path, scope)
        if tag == "!PLACEHOLDER":
            refuse_placeholders(self._tree)
        near = nearest(kind, (each.rstrip(":") for each in _TAGS))
        raise ValueError(
            f"{where(node)}: {show_path(path)!r} has the tag {tag!r}.{near} There are {quoted(_TAGS)}."
        )

    def _plain(self, node: Node, path: Path, scope: Scope) -> Any:
        if isinstance(node, MappingNode):
            return {key: self.value(each, (*path, key), scope) for key, _, each in items(node)}
        if isinstance(node, SequenceNode):
            return [self.value(each, (*path, index), scope) for index, each in enumerate(node.value)]
        assert isinstance(node, ScalarNode), node
        if not is_plain(node):
            return _typed(node)
        if is_tuple(node.value):
            return self._tuple(node, path, scope)
        try:
            return read_plain(node.value)
        except AmbiguousWord as ambiguous:
            if ambiguous.boolean is not None and _is_switch(path):
                return ambiguous.boolean  # here the word can only be a boolean
            raise ValueError(f"{where(node)}: {show_path(path)!r}: {ambiguous}.") from None

    def _tuple(self, node: Node, path: Path, scope: Scope) -> Any:
        """``(1, (2, a))``: parentheses are the brackets of a list, at every depth."""
        listed = parse(_with_brackets(node.value), where(node))
        assert listed is not None, "brackets hold at least an empty list"
        self._kept.append(
            listed
        )  # values are remembered by the identity of nodes, which therefore must live on
        for each in walk(listed):
            each.start_mark = node.start_mark
        return self.value(listed, path, scope)

    # -- references ------------------------------------------------------------------------------------------------

    def _template(self, node: Node, path: Path, scope: Scope, *, copy: bool) -> Any:
        """``<folder>/save``, ``<lr> * 2``, or one reference alone, which keeps the object it refers to."""
        try:
            pieces = split_template(text_of(node))
            references = [piece for piece in pieces if isinstance(piece, Reference)]
            if len(pieces) == len(references) == 1:
                return self._refer(references[0], node, scope, copy=copy)
            if not references and self._entry(scope.root, node.value) is not None:
                raise TemplateError(f"{node.value} is a key: to refer to it write <{node.value}>")
            values = [self._refer(each, node, scope, copy=copy) for each in references]
            if any(value is LATER for value in values):
                return LATER
            result = combine(pieces, values)
        except TemplateError as error:
            raise ValueError(f"{where(node)}: {show_path(path)!r} is '{node.value}': {error}.") from None
        if self._build and is_date_like(pieces) and not any(isinstance(value, str) for value in values):
            logger.warning(
                "%s: '%s' is read as a text, '%s'. For arithmetic write spaces around the operator.",
                where(node),
                node.value,
                result,
            )
        return result

    def _refer(self, reference: Reference, node: Node, scope: Scope, *, copy: bool) -> Any:
        try:
            place = self._find(reference, scope)
            if not copy:
                return self._value_at(place)
            while (
                place.node is not None and custom_tag(place.node) == "!ref"
            ):  # copy the object, not the arrow to it
                pieces = split_template(place.node.value)
                if len(pieces) != 1 or not isinstance(pieces[0], Reference):
                    break
                place = self._find(pieces[0], place.scope)
        except _NoSuchThing as error:
            raise ValueError(f"{where(node)}: <{reference.text}>: {error}") from None
        if place.node is None:
            return place.value if place.value is LATER else deepcopy(place.value)
        return self._anew(place.node, place)

    def _find(self, reference: Reference, scope: Scope) -> _Place:
        """Follow a reference as far as it leads through the file, and from there through values."""
        parts = reference.head.split(".")
        for cut in range(len(parts), 0, -1):
            entry = self._entry(scope.root, ".".join(parts[:cut]))
            if entry is not None:
                break
        else:
            keys = [str(key) for key, _, _ in items(scope.root)]
            raise _NoSuchThing(
                f"there is no key {parts[0]!r}.{nearest(parts[0], keys)} There are {quoted(keys)}."
            )
        key, node = entry
        place = _Place((*scope.path, key), scope, node)
        for step in [*((".", attribute) for attribute in parts[cut:]), *reference.steps]:
            place = self._step(place, *step)
        return place

    def _entry(self, node: MappingNode, key: Any) -> tuple[Any, Node] | None:
        """As `find_key`, for a tree that no longer changes: looked up, where a file has thousands of references."""
        if id(node) not in self._entries:
            by_key: dict[Any, Any] = {}
            by_text: dict[str, Any] = {}
            for own, _, value in items(node):
                by_key.setdefault(own, (own, value))
                by_text.setdefault(str(own), (own, value))
            self._entries[id(node)] = by_key, by_text
            self._kept.append(node)
        by_key, by_text = self._entries[id(node)]
        return by_key.get(key) or by_text.get(str(key))

    def _step(self, place: _Place, kind: str, name: str) -> _Place:
        inner = (*place.path, name)
        if kind == "[]" and isinstance(place.node, MappingNode):
            entry = self._entry(place.node, name)
            if entry is not None:
                return _Place(inner, self._tree.scopes.get(id(place.node), place.scope), entry[1])
            if not custom_tag(place.node).startswith(
                "!apply"
            ):  # whose value may have what its arguments lack
                keys = [str(key) for key, _, _ in items(place.node)]
                raise _NoSuchThing(
                    f"there is no key {name!r} in {show_path(place.path)!r}.{nearest(name, keys)} "
                    f"There are {quoted(keys)}."
                )
        if kind == "[]" and isinstance(place.node, SequenceNode) and not custom_tag(place.node):
            return _Place(inner, place.scope, _item(place.node.value, name, place.path))
        value = self._value_at(place)
        if value is LATER:
            return _Place(inner, place.scope, None, LATER)
        if kind == "[]":
            return _Place(inner, place.scope, None, _item(value, name, place.path))
        if not hasattr(value, name):
            hint = nearest(name, dir(value))
            if isinstance(value, Mapping) and name in value:
                hint = f" Its keys are reached with brackets: <{show_path(inner)}>."
            raise _NoSuchThing(
                f"{show_path(place.path)!r} is a {type(value).__name__} without {name!r}.{hint}"
            )
        return _Place(inner, place.scope, None, getattr(value, name) if self._build else LATER)

    def _value_at(self, place: _Place) -> Any:
        return place.value if place.node is None else self.value(place.node, place.path, place.scope)

    def _anew(self, node: Node, place: _Place) -> Any:
        """What a node describes, built a second time; what it refers to elsewhere in the file stays shared."""
        inside = {id(each) for each in walk(node)}
        kept = {key: self._values.pop(key) for key in inside & self._values.keys()}
        try:
            return self.value(node, place.path, place.scope)
        finally:
            for key in inside:
                self._values.pop(key, None)
            self._values.update(kept)

    # -- objects ---------------------------------------------------------------------------------------------------

    def _call(self, kind: str, name: str, node: Node, path: Path, scope: Scope) -> Any:
        args, kwargs = self._arguments(node, path, scope)
        if not self._build:
            return LATER
        try:
            with _noting(node, path):
                target = locate(name)
            refusal = _refusal(kind, target, bool(args or kwargs))
            if refusal:
                raise ValueError(f"{where(node)}: {show_path(path)!r} is {kind}:{name}, but {refusal}.")
            if kind == "!module" or (kind == "!name" and not (args or kwargs)):
                return target
            check_arguments(target, name, args, kwargs, partial=kind == "!name")
        except NameNotFound as error:
            raise ImportError(f"{where(node)}: {show_path(path)!r}: {error}") from None
        except WrongArguments as error:
            raise ValueError(f"{where(node)}: {show_path(path)!r}: {error}") from None
        if kind == "!name":
            return functools.partial(target, *args, **kwargs)
        with _noting(node, path):
            return target(*args, **kwargs)

    def _arguments(self, node: Node, path: Path, scope: Scope) -> tuple[list[Any], dict[str, Any]]:
        if isinstance(node, SequenceNode):
            return self._plain(node, path, scope), {}
        if isinstance(node, MappingNode):
            given = self._plain(node, path, scope)
            if set(given) == {"_args", "_kwargs"}:
                return list(given["_args"]), dict(given["_kwargs"])
            wrong = [key for key in given if not isinstance(key, str)]
            if wrong:
                raise ValueError(
                    f"{where(node)}: {show_path(path)!r}: an argument's name is a text, not {wrong[0]!r}."
                )
            return [], given
        if node.value:
            raise ValueError(
                f"{where(node)}: {show_path(path)!r}: give arguments as a list, [{node.value}], or by name, "
                f"{{name: {node.value}}}."
            )
        return [], {}


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a reference has led: to a node of the file, or, beyond one, to a value."""

    path: Path
    scope: Scope
    node: Node | None
    value: Any = None


class _NoSuchThing(ValueError):
    """A reference that leads nowhere; its own place is added by whoever knows it."""


def _item(value: Any, name: str, path: Path) -> Any:
    """One element of a container, by the text between brackets."""
    if isinstance(value, Mapping):
        for key in value:
            if str(key) == name:
                return value[key]
        raise _NoSuchThing(
            f"there is no key {name!r} in {show_path(path)!r}.{nearest(name, map(str, value))}"
        )
    if isinstance(value, str) or not hasattr(value, "__getitem__"):
        raise _NoSuchThing(f"{show_path(path)!r} is {value!r}, in which there is no [{name}].")
    try:
        return value[int(name)]
    except ValueError:
        raise _NoSuchThing(
            f"{show_path(path)!r} is a list, whose places are numbers from 0, not {name!r}."
        ) from None
    except IndexError:
        raise _NoSuchThing(
            f"{show_path(path)!r} has {len(value)} places, counted from 0, and none is {name}."
        ) from None


def _refusal(kind: str, target: Any, has_arguments: bool) -> str:
    """Why a tag cannot be on this object, or nothing."""
    if kind == "!new" and not inspect.isclass(target):
        return f"that is no class but a {type(target).__name__}; to call it write !apply:"
    if kind in ("!apply", "!applyref") and not callable(target):
        return f"that is no function but a {type(target).__name__}; to refer to it write !name:"
    if kind == "!name" and has_arguments and not callable(target):
        return f"that is no class or function but a {type(target).__name__}, which takes no arguments"
    if kind == "!module" and (has_arguments or not isinstance(target, ModuleType)):
        return "that is no module" if not has_arguments else "a module takes no arguments"
    return ""


@contextmanager
def _noting(node: Node, path: Path) -> Iterator[None]:
    """Let an error of somebody else's code come out as it is, with a note on where the file asked for it."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "add_note") and not getattr(error, "__notes__", None):  # from Python 3.11 on
            error.add_note(f"This happened for {show_path(path)!r}: {where(node)}.")
        raise


def _typed(node: ScalarNode) -> Any:
    """A word in quotes, or with one of YAML's own tags (``!!str 5``)."""
    kind, word = str(node.tag).rpartition(":")[2], text_of(node)
    try:
        if node.style is not None or kind in ("str", "timestamp"):
            return word
        if kind == "bool":
            return _boolean(word)
        return int(word, 0) if kind == "int" else float(word) if kind == "float" else None
    except ValueError:
        raise ValueError(f"{where(node)}: '{word}' is no {kind}, as its tag says.") from None


def _boolean(word: str) -> bool:
    result = read_boolean(word)
    if result is None:
        raise ValueError(word)
    return result


def _is_switch(path: Path) -> bool:
    """Whether a place in the file holds a boolean run option."""
    section = path[:-1]
    option = all_options().get(same_name(str(path[-1]))) if path else None
    return (
        option is not None
        and option.is_flag
        and (section == ("run_opts",) or (not section and not option.ours))
    )


def _is_seeding(node: Node) -> bool:
    kind, _, name = custom_tag(node).partition(":")
    return kind == "!apply" and name.rpartition(".")[2] in _SEEDING


def _with_brackets(word: str) -> str:
    """A tuple's text with ``!tuple [ ]`` for its parentheses; those inside words and quotes stay."""
    written: list[str] = []
    parentheses: list[bool] = []  # whether each open one belongs to a tuple
    quote = previous = ""
    for character in word:
        begins = previous in ("", *"([{,:")
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"" and begins:
            quote = character
        elif character == "(":
            parentheses.append(begins)
            character = "!tuple [" if begins else character
        elif character == ")" and parentheses:
            character = "]" if parentheses.pop() else character
        written.append(character)
        previous = character[-1:] if not character.isspace() else previous
    return "".join(written)
