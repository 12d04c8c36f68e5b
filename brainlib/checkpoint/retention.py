"""Which checkpoints are better, and which may go: pure functions over what is known of them.

A *score* gives a checkpoint's value as "larger is better", or None when it takes no part. Ties go to the newest. NaN is
ranked behind every number: it never wins, and it never takes the place of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from brainlib.checkpoint.errors import CheckpointError
from brainlib.common.errors import nearest, quoted

__all__ = [
    "Numbered",
    "Ranked",
    "Rule",
    "Score",
    "best",
    "by_metric",
    "doomed",
    "every",
    "kept",
    "known_metrics",
    "newest",
    "rank",
    "recency",
    "require_metric",
]


class Ranked(Protocol):
    """What retention looks at: the commit number, which orders checkpoints in time, and the metadata.

    >>> from types import SimpleNamespace
    >>> recency(SimpleNamespace(commit=3, meta={}))
    3
    """

    @property
    def commit(self) -> int:
        """Grows with every commit to a folder."""
        ...

    @property
    def meta(self) -> dict[str, Any]:
        """What the user noted, metrics among it."""
        ...


C = TypeVar("C", bound=Ranked)
Score = Callable[[C], Any]


def recency(checkpoint: Ranked) -> int:
    """The score of "keep the newest".

    >>> from types import SimpleNamespace
    >>> recency(SimpleNamespace(commit=3, meta={}))
    3
    """
    return checkpoint.commit


def by_metric(key: str, best: str) -> Callable[[Ranked], float | None]:
    """The score of a metric in the metadata.

    Args:
        key: The metric's name.
        best: "max" or "min".

    Raises:
        CheckpointError: (by the score) The metric of some checkpoint is no number.

    >>> from types import SimpleNamespace
    >>> score = by_metric("loss", "min")
    >>> score(SimpleNamespace(commit=1, meta={"loss": 0.5})), score(SimpleNamespace(commit=2, meta={}))
    (-0.5, None)
    """

    def score(checkpoint: Ranked) -> float | None:
        value = checkpoint.meta.get(key)
        if value is None:
            return None
        if not isinstance(value, (bool, int, float)):
            raise CheckpointError(
                f"the metric {key!r} of {getattr(checkpoint, 'path', 'a checkpoint')} is {value!r}; only numbers can "
                "be compared"
            )
        return -value if best == "min" else +value

    return score


def rank(checkpoints: Iterable[C], score: Score[C], *, nan_last: bool = False) -> list[C]:
    """Those that have a score, the best first, the newest first among equals.

    Args:
        checkpoints: In any order.
        score: Larger is better; None takes no part. What it raises comes through.
        nan_last: Whether those whose score is NaN are left out (the default: they are never "best") or put at the end.

    >>> from types import SimpleNamespace as Info
    >>> infos = [Info(commit=i, meta={"loss": x}) for i, x in enumerate([0.5, math.nan, 0.1, 0.5])]
    >>> [info.commit for info in rank(infos, by_metric("loss", "min"))]
    [2, 3, 0]
    """
    scored = []
    for checkpoint in checkpoints:
        value = score(checkpoint)
        if value is None:
            continue
        value = (
            value if isinstance(value, int) else float(value)
        )  # a tensor or numpy scalar from a user's function
        nan = isinstance(value, float) and math.isnan(value)
        if not nan or nan_last:
            scored.append(((nan, 0 if nan else -value, -checkpoint.commit), checkpoint))
    return [checkpoint for _, checkpoint in sorted(scored, key=lambda pair: pair[0])]


def doomed(checkpoints: Iterable[C], scores: Sequence[Score[C]], num_to_keep: int) -> list[C]:
    """Those that no rule keeps, the oldest first.

    Each score keeps its best `num_to_keep`; what one keeps is kept. A checkpoint that takes no part in any score (it
    has none of the metrics) is not touched. NaN comes last in each score, so that it goes first.

    Args:
        checkpoints: The candidates, in any order.
        scores: The rules.
        num_to_keep: For each score; -1 keeps all.

    >>> from types import SimpleNamespace as Info
    >>> infos = [Info(commit=i, meta={"loss": x}) for i, x in enumerate([0.5, 0.1, math.nan, 0.3])]
    >>> [info.commit for info in doomed(infos, [recency, by_metric("loss", "min")], 1)]
    [0, 2]
    """
    if num_to_keep < 0:
        return []
    pool = list(checkpoints)
    taking_part: set[int] = set()
    kept: set[int] = set()
    for score in scores:
        ranked = rank(pool, score, nan_last=True)
        taking_part.update(id(checkpoint) for checkpoint in ranked)
        kept.update(id(checkpoint) for checkpoint in ranked[:num_to_keep])
    going = [checkpoint for checkpoint in pool if id(checkpoint) in taking_part - kept]
    return sorted(going, key=lambda checkpoint: checkpoint.commit)


def known_metrics(checkpoints: Iterable[Ranked]) -> list[str]:
    """The names of all numbers in the metadata, sorted.

    >>> from types import SimpleNamespace as Info
    >>> known_metrics([Info(commit=1, meta={"loss": 0.5, "remark": "warm"})])
    ['loss']
    """
    return sorted(
        {key for c in checkpoints for key, value in c.meta.items() if isinstance(value, (bool, int, float))}
    )


def require_metric(key: str, checkpoints: Sequence[Ranked], how: str = "") -> None:
    """Raises when none of the checkpoints has the metric; that is a slip of the pen, not a reason to find nothing.

    Args:
        key: The metric's name.
        checkpoints: Those in question.
        how: A sentence on how a metric would come into them.

    Raises:
        CheckpointError: It lists the metrics there are.

    >>> from types import SimpleNamespace as Info
    >>> require_metric("los", [Info(commit=1, meta={"loss": 0.5})])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    brainlib.checkpoint.errors.CheckpointError: no checkpoint has the metric 'los'. Those there are: 'loss'. Did you ...
    """
    if not any(checkpoint.meta.get(key) is not None for checkpoint in checkpoints):
        there = known_metrics(checkpoints)
        raise CheckpointError(
            f"no checkpoint has the metric {key!r}. Those there are: {quoted(there)}.{nearest(key, there)}"
            f"{' ' * bool(how)}{how}"
        )


# ------------------------------------------------------------------------------------- rules that say what they keep


class Numbered(Ranked, Protocol):
    """What rules look at besides: which one of its series a checkpoint is.

    >>> from types import SimpleNamespace
    >>> every(2)([SimpleNamespace(commit=7, meta={}, number=3)])
    []
    """

    @property
    def number(self) -> int:
        """From 1, those counted that were never written."""
        ...


N = TypeVar("N", bound=Numbered)
Rule = Callable[[Sequence[Any]], Sequence[Any]]  # from all of a series to those that it keeps


def newest(num: int) -> Rule:
    """Keeps the last `num`; all with -1, none with 0.

    >>> from types import SimpleNamespace as Info
    >>> newest(1)([Info(commit=4, meta={}), Info(commit=9, meta={})])
    [namespace(commit=9, meta={})]
    """

    def keeps(series: Sequence[N]) -> list[N]:
        ranked = rank(series, recency)
        return ranked if num < 0 else ranked[:num]

    return keeps


def best(key: str, order: str, num: int) -> Rule:
    """Keeps the `num` best by a metric. One without it, or with NaN, is never among them and never in their way.

    >>> from types import SimpleNamespace as Info
    >>> infos = [Info(commit=i, meta={"loss": x}) for i, x in enumerate([math.nan, 0.5, 0.1])]
    >>> [info.commit for info in best("loss", "min", 1)([*infos, Info(commit=3, meta={})])]
    [2]
    """

    def keeps(series: Sequence[N]) -> list[N]:
        return rank(series, by_metric(key, order))[:num]

    return keeps


def every(num: int) -> Rule:
    """Keeps number `num`, 2 · `num`, … of the series, for ever.

    >>> from types import SimpleNamespace as Info
    >>> [info.number for info in every(2)([Info(commit=i, meta={}, number=i) for i in range(1, 6)])]
    [2, 4]
    """

    def keeps(series: Sequence[N]) -> list[N]:
        return [info for info in series if info.number % num == 0]

    return keeps


def kept(series: Sequence[N], rules: Iterable[Rule]) -> list[N]:
    """Those that at least one rule keeps, in the order given; all others may go.

    Args:
        series: All that the rules look after: those of one `Snapshot`.
        rules: Such as `newest`, `best` and `every`. Without any, none is kept.

    >>> from types import SimpleNamespace as Info
    >>> infos = [Info(commit=i, meta={"loss": x}, number=i) for i, x in enumerate([0.5, 0.1, 0.7, 0.3], start=1)]
    >>> [info.commit for info in kept(infos, [newest(1), best("loss", "min", 1), every(3)])]
    [2, 3, 4]
    """
    keeping = {id(info) for rule in rules for info in rule(series)}
    return [info for info in series if id(info) in keeping]
