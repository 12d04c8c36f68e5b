"""Where an hparams text comes from: a path, an open file, a string. And the files that it includes."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import IO, Any

from brainlib.common.errors import nearest
from brainlib.config.overrides import apply_overrides
from brainlib.config.yaml_nodes import MappingNode, Node, SequenceNode, custom_tag, parse, where
from brainlib.config.yaml_nodes import Path as YamlPath

__all__ = ["HparamsTree", "Scope", "read_tree"]

TEXT = "the hparams text"  # what messages call a document without a path


@dataclasses.dataclass(frozen=True)
class Scope:
    """The document in which a reference is looked up: the file it was written in.

    Attributes:
        root: the mapping at the top of that file.
        path: where this mapping sits in the whole tree; () for the main file.
    """

    root: MappingNode
    path: YamlPath = ()


@dataclasses.dataclass
class HparamsTree:
    """One experiment as nodes, with its included files in their places.

    Attributes:
        label: what messages call it.
        root: the top mapping.
        scopes: the scope of each included file's top mapping, by the identity of that node.
    """

    label: str
    root: MappingNode
    scopes: dict[int, Scope]


def read_tree(source: str | os.PathLike[str] | IO[Any]) -> HparamsTree:
    """Read a document and the files it includes.

    Args:
        source: a path, an open file, or the text itself (a string with more than one line or with ": " in it).

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is empty, no YAML, no mapping, or includes itself.
    """
    text, label, folder = _read_source(source)
    root = _read_mapping(text, label)
    tree = HparamsTree(label, root, {})
    _include(root, (), folder, tree, (os.path.realpath(label),))
    return tree


def _read_source(source: str | os.PathLike[str] | IO[Any]) -> tuple[str, str, Path]:
    if isinstance(source, str) and (
        "\n" in source or ": " in source or source.endswith(":") or not source.strip()
    ):
        return source, TEXT, Path()
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        return _read_file(path, "There is no hparams file"), str(source), path.parent
    text = source.read()
    name = getattr(source, "name", None)
    text = text.decode("utf-8") if isinstance(text, bytes) else text
    return (text, name, Path(name).parent) if isinstance(name, str) else (text, TEXT, Path())


def _read_file(path: Path, missing: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        folder = path.parent
        if not folder.is_dir():
            hint = f" The folder {str(folder)!r} does not exist either."
        else:
            hint = nearest(path.name, (each.name for each in folder.iterdir() if each.suffix == path.suffix))
        raise FileNotFoundError(f"{missing} {str(path)!r} (seen from {str(Path.cwd())!r}).{hint}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: this is not a text in UTF-8: {error}.") from error


def _read_mapping(text: str, label: str) -> MappingNode:
    node = parse(text, label)
    if node is None:
        raise ValueError(f"{label} is empty: there are no hyperparameters in it.")
    if not isinstance(node, MappingNode):
        raise ValueError(
            f"{where(node)}: an hparams file is a mapping, 'key: value' line by line, and this is none."
        )
    return node


def _include(
    node: Node,
    path: YamlPath,
    folder: Path,
    tree: HparamsTree,
    chain: tuple[str, ...],
    depth: int = 0,
) -> None:
    """Replace every ``!include:file`` under a node by the file's mapping, with the include's own keys as overrides."""
    if depth > 100:
        return  # an anchor that contains itself; found again, and named, when it is evaluated
    if isinstance(node, MappingNode):
        for index, (key, value) in enumerate(node.value):
            inner = (*path, key.value)
            node.value[index] = (key, _included(value, inner, folder, tree, chain, depth))
    elif isinstance(node, SequenceNode):
        for index, value in enumerate(node.value):
            node.value[index] = _included(value, (*path, index), folder, tree, chain, depth)


def _included(
    node: Node,
    path: YamlPath,
    folder: Path,
    tree: HparamsTree,
    chain: tuple[str, ...],
    depth: int,
) -> Node:
    tag = custom_tag(node)
    if not tag.startswith("!include:"):
        _include(node, path, folder, tree, chain, depth + 1)
        return node
    file = folder / tag.removeprefix("!include:")
    real = os.path.realpath(file)
    if real in chain:
        raise ValueError(f"{where(node)}: {file} includes itself: {' -> '.join([*chain, real])}.")
    root = _read_mapping(_read_file(file, f"{where(node)}: there is no file to include,"), str(file))
    tree.scopes[id(root)] = Scope(root, path)
    _include(root, path, file.parent, tree, (*chain, real))
    if isinstance(node, MappingNode):
        apply_overrides(root, node, str(file))
    elif node.value:
        raise ValueError(
            f"{where(node)}: {tag} takes a mapping of the values to replace in that file, or nothing."
        )
    return root
