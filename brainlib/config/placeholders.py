"""``!PLACEHOLDER``: values that a file leaves to whoever runs it."""

from __future__ import annotations

from collections.abc import Iterator

from brainlib.config.source import HparamsTree
from brainlib.config.typed import metavar
from brainlib.config.yaml_nodes import (
    MappingNode,
    Node,
    Path,
    SequenceNode,
    custom_tag,
    items,
    show_path,
    where,
)

__all__ = ["refuse_placeholders"]


def refuse_placeholders(tree: HparamsTree) -> None:
    """Say about every value that the file leaves to the user how to pass it.

    Raises:
        ValueError: there is at least one ``!PLACEHOLDER``.
    """
    lines = []
    for node, path in _placeholders(tree.root, (), set()):
        example = metavar(str(path[-1]))
        for key in reversed(path[1:]):
            example = f"{{{key}: {example}}}"
        example = f"'{example}'" if len(path) > 1 else example
        hint = f" ({node.value})" if node.value else ""
        lines.append(
            f"{where(node)}: {show_path(path)!r} has no value yet{hint}: pass --{path[0]} {example} on the command "
            "line, or give it in overrides."
        )
    if lines:
        raise ValueError("\n".join(lines))


def _placeholders(node: Node, path: Path, seen: set[int]) -> Iterator[tuple[Node, Path]]:
    if id(node) in seen:
        return
    seen.add(id(node))
    if custom_tag(node) == "!PLACEHOLDER":
        yield node, path
    elif isinstance(node, MappingNode):
        for key, _, value in items(node):
            yield from _placeholders(value, (*path, key), seen)
    elif isinstance(node, SequenceNode):
        for index, value in enumerate(node.value):
            yield from _placeholders(value, (*path, index), seen)
