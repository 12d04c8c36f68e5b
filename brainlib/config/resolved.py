"""The experiment as one self-contained text: overrides applied, files included, references filled in."""

from __future__ import annotations

from brainlib.config.placeholders import refuse_placeholders
from brainlib.config.reader import HparamsReader
from brainlib.config.references import Reference, split_template
from brainlib.config.source import HparamsTree, Scope
from brainlib.config.yaml_nodes import (
    MappingNode,
    Node,
    Path,
    PythonNode,
    ScalarNode,
    SequenceNode,
    custom_tag,
    items,
    node_of,
    serialize,
    show_path,
    text_of,
)

__all__ = ["resolved_text"]


def resolved_text(tree: HparamsTree) -> str:
    """Write a tree so that reading the text gives the same experiment. Comments are kept; nothing is built.

    References to numbers and texts become those; references to objects stay references, because two copies of an
    object's description would be two objects.

    Args:
        tree: the experiment; it is changed.

    Raises:
        ValueError: a value is missing, or an override is an object that has no spelling.
    """
    refuse_placeholders(tree)
    reader = HparamsReader(tree, build=False)
    reader.read()
    # First all values, then all changes: a reference is computed from the words of others.
    found: list[tuple[ScalarNode, Path, Scope]] = []
    _collect(tree.root, (), Scope(tree.root), tree, found, set())
    values = [reader.value(node, path, scope) for node, path, scope in found]
    for (node, _, scope), value in zip(found, values, strict=True):
        if custom_tag(node) == "!ref" and (value is None or type(value) in (str, int, float, bool)):
            spelled = node_of(value)
            assert isinstance(spelled, ScalarNode), spelled
            node.ctag, node.value, node.style = spelled.ctag, spelled.value, spelled.style
        else:
            pieces = split_template(text_of(node))
            node.value = "".join(p.below(scope.path) if isinstance(p, Reference) else p for p in pieces)
    return serialize(tree.root)


def _collect(
    node: Node,
    path: Path,
    scope: Scope,
    tree: HparamsTree,
    found: list[tuple[ScalarNode, Path, Scope]],
    seen: set[int],
) -> None:
    """List every reference under a node, with the document it belongs to."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, PythonNode):
        raise ValueError(
            f"The override {show_path(path)!r} is a {type(node.python).__name__} ({node.value}), which has no "
            "spelling in a file. Describe it with a tag, such as !new: or !name:, in overrides given as YAML text."
        )
    scope = tree.scopes.get(id(node), scope)
    if isinstance(node, MappingNode):
        for key, _, value in items(node):
            _collect(value, (*path, key), scope, tree, found, seen)
    elif isinstance(node, SequenceNode):
        for index, value in enumerate(node.value):
            _collect(value, (*path, index), scope, tree, found, seen)
    elif isinstance(node, ScalarNode) and custom_tag(node) in ("!ref", "!copy"):
        found.append((node, path, scope))
