"""The language inside ``!ref``: references in angle brackets, text around them, a little arithmetic.

The rule for arithmetic: every reference is a number, and the rest are numbers, operators (``+ - * / // % **``) and
parentheses. Otherwise it is text. One thing could be both: numbers joined by ``-`` or ``/`` alone, without a space,
are what a date or a path looks like (``<year>-<month>``, ``<fold>/<seed>``), so that is text, and a division is written
with spaces.
"""

from __future__ import annotations

import ast
import dataclasses
import operator
import os
import re
from collections.abc import Sequence
from typing import Any

__all__ = ["Reference", "TemplateError", "combine", "is_date_like", "split_template"]

_REFERENCE = re.compile(r"<([^<>]+)>")
_STEP = re.compile(r"\[([^\[\]]*)\]|\.([A-Za-z_]\w*)")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)|(?P<operator>\*\*|//|[-+*/%()]))\s*"
)
_DATE_LIKE = re.compile(r"(?:#|[0-9.]+)(?:[-/](?:#|[0-9.]+))+")

_OPERATIONS: dict[type[ast.AST], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


class TemplateError(ValueError):
    """What is wrong with a template; the place is added by whoever knows it.

    >>> str(TemplateError("<a is no reference"))
    '<a is no reference'
    """


@dataclasses.dataclass(frozen=True)
class Reference:
    """One ``<key[sub].attribute>``.

    Attributes:
        text: what stands between the angle brackets.
        head: the part before the first ``[``; only the file knows whether its dots are part of a key.
        steps: what follows: ("[]", key) or (".", attribute), in order.

    >>> Reference.parse("model[layers][0].weight").steps
    (('[]', 'layers'), ('[]', '0'), ('.', 'weight'))
    """

    text: str
    head: str
    steps: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Take a reference apart.

        Raises:
            TemplateError: it is not written like one.
        """
        head, bracket, rest = text.strip().partition("[")
        steps: list[tuple[str, str]] = []
        rest = bracket + rest
        while rest:
            match = _STEP.match(rest)
            if match is None:
                break
            key, attribute = match.groups()
            steps.append(("[]", key.strip()) if attribute is None else (".", attribute))
            rest = rest[match.end() :]
        if not head or rest:
            raise TemplateError(f"<{text}> is not a reference; write <key>, <key[sub]> or <key.attribute>")
        return cls(text, head, tuple(steps))

    def below(self, path: Sequence[object]) -> str:
        """The same reference as seen from a file in which this one's sits at `path`.

        >>> Reference.parse("a[b].c").below(["included"])
        '<included[a][b].c>'
        """
        if not path:
            return f"<{self.text}>"
        inside = "".join(f"[{key}]" for key in (*path[1:], self.head))
        steps = "".join(f"[{key}]" if kind == "[]" else f".{key}" for kind, key in self.steps)
        return f"<{path[0]}{inside}{steps}>"


def split_template(text: str) -> list[str | Reference]:
    """The pieces of a template: texts and references, in order, without empty texts.

    >>> [piece if isinstance(piece, str) else piece.head for piece in split_template("<out>/save")]
    ['out', '/save']
    """
    pieces: list[str | Reference] = []
    for index, piece in enumerate(_REFERENCE.split(text)):
        if index % 2:
            pieces.append(Reference.parse(piece))
        elif piece:
            pieces.append(piece)
    return pieces


def combine(pieces: Sequence[str | Reference], values: Sequence[Any]) -> Any:
    """The value of a template with more in it than one reference.

    Args:
        pieces: from `split_template`.
        values: what its references refer to, in order.

    Returns:
        A number if it is arithmetic, else the text with the references filled in.

    Raises:
        TemplateError: a value that cannot be part of a text, or arithmetic that has no result.

    >>> combine(split_template("(<a> + 1) * -2"), [-3])
    4
    >>> combine(split_template("<year>-<month>"), [2024, 10])
    '2024-10'
    >>> combine(split_template("<folder>/<seed>"), ["results", 7])
    'results/7'
    """
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        expression = _as_expression(pieces)
        if expression is not None:
            try:
                return _evaluate(expression, dict(zip(_names(values), values, strict=True)))
            except (ArithmeticError, ValueError) as error:
                raise TemplateError(f"this has no result: {error}") from error
    rest = iter(values)
    return "".join(piece if isinstance(piece, str) else _as_text(piece, next(rest)) for piece in pieces)


def is_date_like(pieces: Sequence[str | Reference]) -> bool:
    """Whether this is text only because it has the shape of a date or a path of numbers.

    >>> is_date_like(split_template("<a>/2")), is_date_like(split_template("<a> / 2"))
    (True, False)
    """
    skeleton = "".join(piece if isinstance(piece, str) else "#" for piece in pieces)
    return _DATE_LIKE.fullmatch(skeleton) is not None


def _names(values: Sequence[Any]) -> list[str]:
    return [f"r{index}" for index in range(len(values))]


def _as_expression(pieces: Sequence[str | Reference]) -> ast.expr | None:
    """The syntax tree of a template that is arithmetic, else None."""
    if is_date_like(pieces):
        return None
    written: list[str] = []
    count = 0
    for piece in pieces:
        if isinstance(piece, Reference):
            written.append(f" r{count} ")
            count += 1
        else:
            end = 0
            while end < len(piece):
                token = _TOKEN.match(piece, end)
                if token is None:
                    return None
                end = token.end()
            written.append(piece)
    try:
        tree = ast.parse("".join(written).strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return tree if isinstance(tree, (ast.BinOp, ast.UnaryOp)) and _is_arithmetic(tree) else None


def _is_arithmetic(tree: ast.expr) -> bool:
    return all(
        isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Constant, ast.Name, ast.Load))
        or type(node) in _OPERATIONS
        for node in ast.walk(tree)
    )


def _evaluate(tree: ast.expr, values: dict[str, Any]) -> Any:
    if isinstance(tree, ast.BinOp):
        return _OPERATIONS[type(tree.op)](_evaluate(tree.left, values), _evaluate(tree.right, values))
    if isinstance(tree, ast.UnaryOp):
        return _OPERATIONS[type(tree.op)](_evaluate(tree.operand, values))
    if isinstance(tree, ast.Name):
        return values[tree.id]
    assert isinstance(tree, ast.Constant), tree
    return tree.value


def _as_text(reference: Reference, value: Any) -> str:
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, (str, int, float)):
        return str(value)
    if value is None:
        raise TemplateError(f"<{reference.text}> is null, which cannot be part of a text; give it a value")
    raise TemplateError(
        f"<{reference.text}> is a {type(value).__name__}, which cannot be part of a text or of arithmetic"
    )
