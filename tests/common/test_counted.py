"""What counts things in a message says "1 epoch" and "2 epochs"."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from brainlib.common.counted import counted

PACKAGE = Path(__file__).resolve().parents[2] / "brainlib"

COUNTED = (
    "attempts", "batches", "calls", "channels", "checkpoints", "columns", "entries", "epochs", "errors", "fields",
    "files", "ids", "items", "labels", "lines", "parameters", "predictions", "processes", "ranks", "rows", "samples",
    "scores", "speakers", "starts", "steps", "targets", "updates", "values", "windows", "words",
)  # fmt: skip
A_NUMBER_OF = re.compile(rf"(%d|\0) ({'|'.join(COUNTED)})\b(?!/)")

# Where the number is never 1, by what stands around it.
NEVER_ONE = (
    "records %d updates; the trace may be too large",  # more than a hundred
    "\0 processes,",  # told where there are several
    "all its \0 epochs are closed",
    "not all of the \0 ranks have connected",
    "it holds \0 entries named",  # one is what is needed
    "less than the window of \0 samples",  # it has two, or there is another error
    "it has \0 channels, and one is needed",
    "it has \0 samples a second",
    "\0 ranks, the slowest of a round",  # told where there are several
)


@pytest.mark.parametrize(
    ("number", "told"), [(0, "0 batches"), (1, "1 batch"), (2, "2 batches"), (1000, "1000 batches")]
)
def test_one_and_several(number: int, told: str) -> None:
    assert counted(number, "batch", "batches") == told


def test_an_s_is_added_where_no_plural_is_given_and_large_numbers_have_commas() -> None:
    assert [counted(n, "epoch") for n in (0, 1, 2)] == ["0 epochs", "1 epoch", "2 epochs"]
    assert counted(12345, "item", spec=",") == "12,345 items" and counted(1, "item", spec=",") == "1 item"


def messages(source: str) -> list[str]:
    """The texts of a module, with a zero byte for each value in a formatted one; docstrings are left out."""
    tree = ast.parse(source)
    documents = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
            found.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in documents and id(node) not in inside:
                found.append(node.value)
    return found


def test_what_the_scan_below_would_find() -> None:
    bad = 'log("%d epochs closed", n)\nf"after {run.epoch} epochs"\n'
    good = 'f"{speed:.1f} updates/s"\nf"after {counted(n, \'epoch\')}"\nlog("epoch %d", n)\n"""%d epochs"""\n'
    assert [bool(A_NUMBER_OF.search(text)) for text in messages(bad)] == [True, True]
    assert not any(A_NUMBER_OF.search(text) for text in messages(good))


def test_no_message_puts_a_plural_behind_a_number_by_itself() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}: {text!r}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for text in messages(path.read_text(encoding="utf-8"))
        if A_NUMBER_OF.search(text) and not any(known in text for known in NEVER_ONE)
    ]
    assert not found, "use brainlib.common.counted, or say in NEVER_ONE why not:\n" + "\n".join(found)
