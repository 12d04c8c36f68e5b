"""What a check-up has found."""

from __future__ import annotations

import dataclasses
import textwrap
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CheckupError", "Finding", "Report"]

_WIDTH = 110


class CheckupError(RuntimeError):
    """Why a check-up could not be made: the script fails, never trains, or takes too long.

    >>> raise CheckupError("the script ended without a fit")
    Traceback (most recent call last):
    ...
    brainlib.checkup.report.CheckupError: the script ended without a fit
    """


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be.

    Attributes:
        check: "same again", "cut and resume" or "accumulation".
        where: the first thing that differs.
        what: how it differs.
        cause: what it likely comes from.
        todo: what to do about it.
        suspects: what the cause may lie in, by the names it has in the user's code; the likeliest first.

    >>> finding = Finding("same again", "batch 1 of epoch 1", "sample 0 differs", "a clock", "use none")
    >>> print(finding)
    same again: batch 1 of epoch 1
      what   sample 0 differs
      cause  a clock
      to do  use none
    """

    check: str
    where: str
    what: str
    cause: str
    todo: str
    suspects: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.check}: {self.where}"]
        for name, text in (("what", self.what), ("cause", self.cause), ("to do", self.todo)):
            if text:
                lines += textwrap.wrap(
                    text,
                    _WIDTH,
                    initial_indent=f"  {name:<5}  ",
                    subsequent_indent=" " * 9,
                    break_on_hyphens=False,
                )
        return "\n".join(lines)


@dataclass
class Report:
    """The result of a check-up; true when nothing was found.

    Attributes:
        findings: what is not as it should be, the first to look at first.
        checks: a line a check: its name, and how it went.
        notes: what is worth knowing and no fault.
        seconds: how long it took.

    >>> report = Report(checks=[("same again", "equal bits in 10 batches")])
    >>> bool(report), len(report.findings)
    (True, 0)
    """

    findings: list[Finding] = field(default_factory=list)
    checks: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __bool__(self) -> bool:
        return not self.findings

    def __str__(self) -> str:
        lines = []
        for name, text in self.checks:
            lines += textwrap.wrap(text, _WIDTH, initial_indent=f"{name:<16}", subsequent_indent=" " * 16)
        for note in self.notes:
            lines += textwrap.wrap(
                note, _WIDTH, initial_indent="note            ", subsequent_indent=" " * 16
            )
        for number, finding in enumerate(self.findings, 1):
            lines += ["", f"{number}. {finding}"]
        found = f"{len(self.findings)} found" if self.findings else "nothing found"
        return "\n".join([*lines, "", f"{found}, in {self.seconds:.0f} s"])

    def to_plain(self) -> dict[str, Any]:
        """As plain values, for JSON.

        >>> Report().to_plain()["findings"]
        []
        """
        return dataclasses.asdict(self)
