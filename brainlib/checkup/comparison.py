"""Two traces compared: the first place where they differ, what differs there, and what it may come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from brainlib.checkup.trace import START, Place, Trace
from brainlib.checkup.walk import Leaf

__all__ = [
    "Difference",
    "Suspect",
    "first_difference",
    "likely",
    "made_anew",
    "noise_in_objects",
    "noise_in_walks",
    "suspects_of",
]

_AFTER_A_BATCH = ("loss", "modules", "optimizers", "counters", "generators", "objects")
_AT_A_POINT = ("modules", "optimizers", "counters", "loss", "generators", "objects")
_UNREAD = 5  # the rank of a suspect that is not read
_DATA = ("train_set", "valid_set", "train_loader_kwargs")


@dataclass(frozen=True)
class Difference:
    """The first thing that differs between two runs.

    Attributes:
        place: where.
        kind: "batch", one of the parts of a state, "stage losses" or "length".
        names: which entries of it differ.
        one, other: the events in the two traces.
        after_batch: whether the batch before it was the same and the difference came with its training.
    """

    place: Place
    kind: str
    names: tuple[str, ...]
    one: dict[str, Any]
    other: dict[str, Any]
    after_batch: bool = False


@dataclass(frozen=True)
class Suspect:
    """Something that is not what it was, and that a difference may come from.

    Attributes:
        name: what the user's code calls it.
        kind: as that of a `Leaf`, or "setting" for what stands on a module.
        one, other: its value in the two runs, for a reader; "" where it is not there.
        in_data: whether it was reached from the data.
        read: whether the code that computes a batch reads a name like that.
    """

    name: str
    kind: str
    one: str
    other: str
    in_data: bool
    read: bool

    def told(self, here: str, there: str) -> str:
        """Name and values; `here` and `there` say which run each is from.

        >>> Suspect("brain.best", "value", "0.5", "", False, True).told("at the cut", "after the resume")
        'brain.best (0.5 at the cut, not there after the resume)'
        """
        if self.kind in ("parameter", "object", "generator", "iterator"):
            return f"{self.name} ({self.one or self.other})"
        if self.one == self.other:
            return f"{self.name} ({self.one}, with other values {there})"
        return f"{self.name} ({self.one or 'not there'} {here}, {self.other or 'not there'} {there})"


Key = tuple[int, int, int]  # where an event stands in a trace: they are sorted by it


def made_anew(
    one: Trace, other: Trace, since: Place, noise: frozenset[str] = frozenset()
) -> tuple[dict[str, Key], frozenset[str]]:
    """Objects on the Brain that a resumed run has no need of, because they are assigned anew before they are used.

    One is not there after the resume. In the run that was not cut it stays as it is, to the bit, until another object
    takes its place; by then it is there in the resumed run, too, in the same state. (What is filled or emptied, and is
    the same object all the time, is not among them, even where its state happens to be the same in the end.) Whoever
    reads it all the same fails in the resumed run, or trains another way, which the rest of the comparison sees.

    Args:
        one: the run that was not cut.
        other: the resumed one.
        since: where it was cut.
        noise: names of objects whose states differ in any case.

    Returns:
        From which event on each counts again, by name; and the paths of the walk that lead to them.
    """
    events = [(key, event["state"]["made"]) for key, event in _events(one, since) if "state" in event]
    theirs = {key: event["state"]["made"] for key, event in _events(other, since) if "state" in event}
    found: dict[str, Key] = {}
    at_cut = events[0][1] if events else {}
    for name, (number, state, _) in at_cut.items():
        for key, made in events:
            here, there = made.get(name), theirs.get(key, {}).get(name)
            if key not in theirs or here is None:
                break
            if here[0] != number:
                if there is not None and (here[1] == there[1] or name in noise):
                    found[name] = key
                break
            if there is not None or here[1] != state:
                break
    left = {attribute for name, (_, _, attribute) in at_cut.items() if name not in found}
    attributes = {at_cut[name][2] for name in found} - left
    paths = {*one.walked(since), *other.walked(since)}
    return found, frozenset(
        path for path in paths if path.startswith("brain.") and _words(path)[0] in attributes
    )


def first_difference(
    one: Trace,
    other: Trace,
    since: Place = START,
    noise: frozenset[str] | None = None,
    anew: Mapping[str, Key] | None = None,
) -> Difference | None:
    """The first thing in which two runs differ from a place on.

    Args:
        one: the run to compare with.
        other: the run that is compared.
        since: where the comparison begins.
        noise: names of objects with a state that differ in any case; None: no such object is compared.
        anew: names of objects that do not count before an event, see `made_anew`.
    """
    anew = anew or {}
    without = frozenset() if noise is None else noise
    theirs = dict(_events(other, since))
    for key, event in _events(one, since):
        place, kind = Place(*key[:2]), event["event"]
        found = theirs.get(key)
        if found is None:
            if kind == "point" and place != since:
                continue
            return Difference(place, "length", (), event, {})
        if kind == "batch":
            if event["fields"] != found["fields"] or event["ids"] != found["ids"]:
                return Difference(place, "batch", _differing(event["fields"], found["fields"]), event, found)
            continue
        if kind == "point" and not place.batch and place != since and event["losses"] != found["losses"]:
            return Difference(
                place, "stage losses", _differing(event["losses"], found["losses"]), event, found
            )
        for part in _AFTER_A_BATCH if kind == "after" else _AT_A_POINT:
            if part == "objects" and noise is None:
                continue
            names = _differing(event["state"][part], found["state"][part])
            if part == "objects":
                names = tuple(n for n in names if n not in without and not (n in anew and key < anew[n]))
            if names:
                return Difference(place, part, names, event, found, after_batch=kind == "after")
    return None


def _events(trace: Trace, since: Place) -> Iterator[tuple[tuple[int, int, int], dict[str, Any]]]:
    """Points, batches and what stood after them, from a place on, in their order."""
    events = [((*place, 2), point) for place, point in trace.points.items() if place >= since]
    for place, batch, after in trace.steps:
        if place > since:
            events.append(((*place, 0), batch))
            if after is not None:
                events.append(((*place, 1), after))
    yield from sorted(events, key=lambda each: each[0])


def _differing(one: dict[str, Any], other: dict[str, Any]) -> tuple[str, ...]:
    return tuple(name for name in {**one, **other} if one.get(name) != other.get(name))


def noise_in_walks(one: Trace, other: Trace, place: Place) -> frozenset[str]:
    """The paths that differ at a place between two runs that are the same: times, numbers of processes."""
    return frozenset(_differing(_digests(one.walked(place)), _digests(other.walked(place))))


def noise_in_objects(one: Trace, other: Trace) -> frozenset[str]:
    """The names of the objects whose states differ somewhere between two runs that are the same."""
    theirs = dict(_events(other, START))
    return frozenset(
        name
        for key, event in _events(one, START)
        if "state" in event and key in theirs
        for name in _differing(event["state"]["objects"], theirs[key]["state"]["objects"])
    )


def _digests(leaves: dict[str, Leaf]) -> dict[str, str]:
    return {path: leaf.digest for path, leaf in leaves.items()}


def suspects_of(
    one: Trace, other: Trace, place: Place, noise: frozenset[str] = frozenset(), *, data_first: bool = False
) -> list[Suspect]:
    """What is another at this place in the second run, the likeliest cause of a difference first.

    Args:
        one: the run to compare with.
        other: the run that is compared.
        place: where both are looked at.
        noise: paths that differ in any case.
        data_first: whether the data is where the cause is to be looked for.
    """
    leaves, theirs = one.walked(place), other.walked(place)
    paths = [path for path in _differing(_digests(leaves), _digests(theirs)) if path not in noise]
    containers = [path for path in paths if (leaves.get(path) or theirs[path]).kind == "container"]
    paths = [path for path in paths if not any(path.startswith((f"{c}[", f"{c}.")) for c in containers)]
    owners = {
        (leaves.get(p) or theirs[p]).owner for p in paths if (leaves.get(p) or theirs[p]).kind == "object"
    }
    read = set(one.start.get("read", ()))
    found: dict[str, Suspect] = {}
    for path in paths:
        leaf = leaves.get(path) or theirs[path]
        name, kind = path, leaf.kind
        if kind in ("parameter", "object", "generator") or leaf.owner in owners:
            name = leaf.owner
            kind = "object" if leaf.owner in owners else kind
        elif path.startswith("modules."):
            kind = "setting"
        if name not in found:
            here, there = leaves.get(path), theirs.get(path)
            found[name] = Suspect(
                name,
                kind,
                here.shown if here else "",
                there.shown if there else "",
                in_data=leaf.root.startswith(_DATA),
                read=bool(read.intersection(_words(path))),
            )
    if not found:  # an iterator has a place, and cannot be asked for it
        iterators = [(p, leaf) for p, leaf in leaves.items() if leaf.kind == "iterator" and p in theirs]
        found = {
            p: Suspect(p, leaf.kind, leaf.shown, leaf.shown, leaf.root.startswith(_DATA), False)
            for p, leaf in iterators
        }
    return sorted(found.values(), key=lambda each: (each.in_data != data_first, _rank(each)))


def _rank(suspect: Suspect) -> int:
    ranks = {"parameter": 0, "object": 1, "generator": 2, "setting": 3}
    return ranks.get(suspect.kind, 4 if suspect.read else _UNREAD)


def likely(suspects: list[Suspect]) -> list[Suspect]:
    """Those of `suspects` that a difference may have come from; the others have come from it.

    Where the code that computes a batch reads one of them, those that it does not read are left out, and where the
    likeliest is reached from the data, those that are not; and the other way round.

    >>> suspects = [Suspect(f"brain.{name}", "value", "1", "0", False, name == "used") for name in ("used", "told")]
    >>> [suspect.name for suspect in likely(suspects)]
    ['brain.used']
    """
    if not suspects:
        return []
    first = suspects[0]
    return [
        each
        for each in suspects
        if each.in_data == first.in_data and (_rank(each) < _UNREAD or _rank(first) == _UNREAD)
    ]


def _words(path: str) -> list[str]:
    """The names in a path: ``brain.a['b']`` is read as ``a`` and ``b``."""
    for letter in "[].'\"()":
        path = path.replace(letter, " ")
    return path.split()[1:]
