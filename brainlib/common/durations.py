"""Lengths of time as people and schedulers write them."""

from __future__ import annotations

import re

__all__ = ["as_clock", "meant_by", "seconds_of"]

# 1-12:00:00, 1-12:00 and 1-12 (days-hours:minutes:seconds) as SLURM has it; 1:12:00:00 and 12:00:00 as trainers do.
_WITH_DAYS = re.compile(r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?")
_COLONS = re.compile(r"(?:(\d+):)?(\d+):(\d+):(\d+)")
_ONE_COLON = re.compile(r"(\d+):(\d+)")
_WITH_UNIT = re.compile(r"(\d+(?:\.\d+)?) ?(s(?=$|ec)|m(?=$|in)|h(?=$|r|our)|d(?=$|ay))[a-z]*", re.IGNORECASE)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(text: str) -> float | None:
    """The seconds that a text stands for; None where it stands for none.

    Two numbers with one colon are no length of time: some read hours and minutes, others minutes and seconds.

    >>> [seconds_of(text) for text in ("90", "12:00:00", "1:12:00:00", "1-12", "1-12:30:05", "5:30")]
    [90.0, 43200.0, 129600.0, 129600.0, 131405.0, None]
    """
    match = _WITH_DAYS.fullmatch(text.strip()) or _COLONS.fullmatch(text.strip())
    if match is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    try:
        return float(text)
    except ValueError:
        return None


def meant_by(text: str) -> str:
    """What a text that `seconds_of` refuses may have meant, and how that is written; "" where nobody could say.

    >>> meant_by("1:30")
    "'1:30' may be hours and minutes or minutes and seconds: write 1:30:00, or 0:01:30"
    >>> meant_by("1.5h"), meant_by("90 min"), meant_by("90 ms")
    ("for '1.5h' write 1:30:00", "for '90 min' write 1:30:00", '')
    """
    if match := _ONE_COLON.fullmatch(text.strip()):
        first, second = (int(part) for part in match.groups())
        one, other = as_clock((first * 60 + second) * 60), as_clock(first * 60 + second)
        return f"{text!r} may be hours and minutes or minutes and seconds: write {one}, or {other}"
    if match := _WITH_UNIT.fullmatch(text.strip()):
        return f"for {text!r} write {as_clock(float(match[1]) * _UNITS[match[2].lower()])}"
    return ""


def as_clock(seconds: float) -> str:
    """Seconds as days-hours:minutes:seconds, without days where there are none.

    >>> as_clock(90), as_clock(131405.0)
    ('0:01:30', '1-12:30:05')
    """
    minutes, left = divmod(round(seconds), 60)
    days, hours = divmod(minutes // 60, 24)
    return f"{f'{days}-' if days else ''}{hours}:{minutes % 60:02d}:{left:02d}"
