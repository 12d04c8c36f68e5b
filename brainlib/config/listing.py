"""The keys of an hparams file in a few lines, for ``--help``."""

from __future__ import annotations

import os

from brainlib.config.source import read_tree
from brainlib.config.yaml_nodes import (
    MappingNode,
    Node,
    ScalarNode,
    SequenceNode,
    custom_tag,
    is_plain,
    items,
)

__all__ = ["list_keys"]

WIDTH = 108


def list_keys(path: str | os.PathLike[str]) -> list[str]:
    r"""One line for each top-level key: its name as on the command line, its value, and the comment beside it.

    Nothing is built, and keys that begin with two underscores are left out.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it cannot be read.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.yaml")
    ...     _ = path.write_text("lr: 0.1  # falls\nlayers: [!ref <lr>, {a: 1}]\n")
    ...     print(*list_keys(path), sep="\n")
    --lr      0.1  # falls
    --layers  [!ref <lr>, {a: 1}]
    """
    entries = [(f"--{key}", value) for key, _, value in items(read_tree(path).root)]
    entries = [(name, value) for name, value in entries if not name.startswith("--__")]
    longest = max((len(name) for name, _ in entries), default=0)
    return [_cut(f"{name:<{longest}}  {_in_one_line(value)}{_comment(value)}") for name, value in entries]


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 2] + " …"


def _in_one_line(node: Node) -> str:
    tag = custom_tag(node)
    if isinstance(node, MappingNode):
        value = "{" + ", ".join(f"{key}: {_in_one_line(each)}" for key, _, each in items(node)) + "}"
    elif isinstance(node, SequenceNode):
        value = "[" + ", ".join(_in_one_line(each) for each in node.value) + "]"
    elif isinstance(node, ScalarNode):
        words = " ".join(str(node.value).replace("\a", "").split())
        value = words if tag or is_plain(node) else f"'{words}'"
    if tag == "!PLACEHOLDER":
        return f"{tag} {value}".strip() + ", has to be given"
    return f"{tag} {value}".strip() or "null"


def _comment(node: Node) -> str:
    """What stands behind the value on its line; the comment lines below belong to what follows."""
    if not isinstance(node, ScalarNode) or not node.comment or node.comment[0] is None:
        return ""
    first = str(node.comment[0].value).split("\n")[0].strip()
    return f"  {first}" if first else ""
