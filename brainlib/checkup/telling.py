"""From what differs to what is said: what it is, what it likely comes from, what to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from brainlib.checkup.comparison import Difference, Suspect
from brainlib.checkup.report import Finding
from brainlib.checkup.trace import Place, Trace
from brainlib.common.counted import counted

__all__ = [
    "RESUME",
    "SAME_AGAIN",
    "SPLIT",
    "failed_resume",
    "not_restored",
    "not_resumed",
    "not_split",
    "not_the_same",
]

SAME_AGAIN, RESUME, SPLIT = "same again", "cut and resume", "accumulation"
_MOST = 4  # of a list that are named
_DATA = ("train_set", "valid_set", "train_loader_kwargs")


def not_the_same(difference: Difference, one: Trace, suspects: list[Suspect]) -> Finding:
    """Two runs from the same start are not the same."""
    what, wanted = _what(difference)
    if difference.kind in ("generators", "modules", "optimizers") and difference.place == (0, 0):
        return _unseeded(difference, one)
    in_data = difference.kind == "batch"
    calls = [
        f"{name} uses {', '.join(what)}"
        for root, name, what in one.start["calls"]
        if root.startswith(_DATA) == in_data
    ]
    causes = []
    if suspects:
        told = _some(each.told("in one", "in the other") for each in suspects)
        causes.append(f"not the same at the start already: {told}")
    if calls:
        causes.append(_some(calls))
    if not causes and in_data:
        kinds = [f"{name} ({kind})" for name, kind in one.start["kinds"].items()]
        causes.append(
            f"what gives the batches: {', '.join(kinds)}. It draws from a generator that nobody seeds, or reads a clock"
        )
    elif not causes and difference.kind == "loss":
        causes.append(
            "a generator without a seed, a clock, or an operation that is not deterministic in the forward"
        )
    elif not causes:
        causes.append("an operation that is not deterministic in the backward")
    todo = "; ".join(
        [
            *_instead(one.start["calls"], in_data),
            _in_its_place(difference, ordered=in_data and "order" in what, found=bool(calls)),
        ]
    )
    names = [each.name for each in suspects] + [call.partition(" uses ")[0] for call in calls]
    return Finding(
        SAME_AGAIN,
        wanted,
        f"compared with a run from the same start: {what}",
        "; ".join(causes),
        todo,
        tuple(names),
    )


def _unseeded(difference: Difference, one: Trace) -> Finding:
    if difference.kind == "modules":
        what = f"two starts of the script begin with other weights: {_some(map(repr, difference.names))}"
        where = f"module {difference.names[0].partition('.')[0]!r} at the start"
    else:
        what = f"two starts of the script begin with other {difference.kind}: {_some(map(repr, difference.names))}"
        where = "the start"
    return Finding(
        SAME_AGAIN,
        where,
        what,
        _not_seeded(difference),
        "seed it first of all: in the hparams file, seed: 1234 and __set_seed: !apply:brainlib.seed_everything "
        "[!ref <seed>]; in a script, brainlib.seed_everything(1234). A run that was resumed is exact without it",
        tuple(difference.names),
    )


def _not_seeded(difference: Difference) -> str:
    """Which of the process's generators nobody seeded, as far as they show it."""
    states, theirs = (event["state"]["generators"] for event in (difference.one, difference.other))
    unseeded = [name for name in states if states[name] != theirs.get(name)]
    seeded = [name for name in states if name not in unseeded and name != "cuda"]
    if not seeded:
        return "the process is not seeded, or not before this was made"
    if not unseeded:
        return "the process is seeded, but not before this was made"
    others = f"; {_and(seeded)} {'are' if len(seeded) > 1 else 'is'}"
    one = len(unseeded) == 1
    return (
        f"the generator{'' if one else 's'} of {_and(unseeded)} {'is' if one else 'are'} not seeded{others}"
        + ("" if difference.kind == "generators" else ", or not before this was made")
    )


def _and(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def not_resumed(cut: Place, difference: Difference, one: Trace, suspects: list[Suspect]) -> Finding:
    """A resumed run goes on in another way than the one that was not cut."""
    what, wanted = _what(difference)
    in_data = difference.kind == "batch"
    first = suspects[0] if suspects else None
    if first is not None and first.kind == "iterator":
        cause = f"what has a place that nobody can look into, and that starts anew after a resume: {_told(suspects)}"
        todo = _todo(first, one)
    elif first is not None and _comes_late(first):
        cause = f"not there yet when the checkpoint that holds it is loaded: {_told(suspects)}"
        todo = _todo(first, one)
    elif first is not None:
        cause = f"in no checkpoint, and after the resume not what it was: {_told(suspects)}"
        todo = _todo(first, one)
    elif in_data:
        generators = [
            p
            for p, leaf in one.walked(cut).items()
            if leaf.kind == "generator" and leaf.root.startswith(_DATA)
        ]
        kinds = [f"{name} ({kind})" for name, kind in one.start["kinds"].items()]
        cause = "what gives the batches keeps a state of its own: " + ", ".join(generators or kinds)
        todo = _DATA_TODO
    else:
        calls = [
            f"{name} uses {', '.join(what)}"
            for root, name, what in one.start["calls"]
            if not root.startswith(_DATA)
        ]
        cause = "a state that is in no attribute of the Brain, its hparams and its data"
        cause += f"; {_some(calls)}" if calls else ""
        todo = (
            "keep what changes during training in attributes of the Brain, and return it from get_extra_state"
        )
    return Finding(
        RESUME, f"{wanted}, resumed {cut}", f"compared with the run that was not cut: {what}", cause, todo,
        tuple(each.name for each in suspects),
    )  # fmt: skip


def not_restored(cut: Place, one: Trace, suspect: Suspect) -> Finding:
    """An object with a state that no checkpoint holds; no difference was seen in the few batches of the test."""
    if _comes_late(suspect):
        return Finding(
            RESUME,
            f"{suspect.name}, resumed {cut}",
            f"{_told([suspect])} is not there when the checkpoint that holds it is loaded. In the few batches of this "
            "test nothing else differs yet",
            "a checkpoint gives a state back to what is there when it is loaded",
            _todo(suspect, one),
            (suspect.name,),
        )
    return Finding(
        RESUME,
        f"{suspect.name}, resumed {cut}",
        f"{_told([suspect])} is in no checkpoint: after the resume it is not what it was. In the few batches of this "
        "test nothing else differs yet",
        "a checkpoint holds what is an attribute of the Brain, or stands in a list or dict that is one",
        _todo(suspect, one),
        (suspect.name,),
    )


def failed_resume(cut: Place, error: str) -> Finding:
    """The resumed run ends with an error."""
    return Finding(
        RESUME,
        f"the start of the run, resumed {cut}",
        f"the resumed run fails: {error}",
        f"what is raised: {error.rpartition(': ')[2]}",
        "let what is loaded be what was saved; a second start of the script in the same folder shows where it fails",
    )


def not_split(result: dict[str, Any]) -> Finding:
    """A batch and its parts give other gradients."""
    one, other = (f"{each:g}" for each in result["weights"])
    why, suspects = result["why"], ("loss_weight", "compute_objectives")
    if why == "padding":
        suspects = ("compute_forward", "compute_objectives")
        cause = (
            "padding counts: the same parts give the gradient of the whole if they are padded as it is, to its longest "
            "sample, and another one if they are padded to their own. What was filled up is taken for data (in a mean "
            "over time, as the last frame, by a layer that is not told the lengths, or in the loss)"
        )
        todo = (
            "use the lengths of the batch, .mask(), .num_entries or .lengths of what is padded: take means over what "
            "is there, tell layers the lengths, and leave the rest out of the loss. loss_weight is not the cause"
        )
    elif why == "sum":
        cause = (
            "compute_objectives returns a sum over the batch: the losses of the parts add up to that of the whole. "
            "loss_weight says how many items the loss is a mean over"
        )
        todo = "return a mean over the items of the batch (reduction='mean')"
    elif why.startswith("share"):
        share, told = why.split()[1:]
        cause = (
            "loss_weight does not say what the loss is a mean over: the first part counts for "
            f"{abs(float(share)):.0%} of the loss, and for {float(told):.0%} by loss_weight"
        )
        todo = (
            "override loss_weight(batch, stage) to return what the loss is divided by, such as the number of tokens or "
            "frames"
        )
    else:
        cause = (
            "the loss is no mean over the items that loss_weight counts, or that of an item depends on the others in "
            "its batch (contrastive losses)"
        )
        todo = (
            "make loss_weight say what the loss is a mean over; if items are meant to see each other, do not "
            "accumulate, and switch this check off"
        )
    return Finding(
        SPLIT,
        "the gradient of one batch",
        f"a batch (weight {float(one) + float(other):g}) and its two parts (weights {one} and {other}) give gradients "
        f"that differ by {result['difference']:.2g} of their length: an update depends on how the samples are split",
        cause,
        todo,
        suspects,
    )


# -------------------------------------------------------------------------------------------------------------- parts

# What to do about what `suspicious_calls` finds, by the words that it has for them.
_REMEDIES = {
    "the time": "use no time, also not as a seed",
    "the system's random numbers": "use none of the system's random numbers",
    "a generator that is made without a seed, if none is given": "make no generator",
    "a seed, which is drawn from the system if none is given": "give the seed a number, or seed nothing",
    "the number of the process": "leave the number of the process out",
    "hash(), which differs between processes for texts": "write zlib.crc32(text.encode()) for hash(text)",
    "id(), which differs between processes": "take the index of an item for id()",
    "the order of a set, which differs between processes for texts": "sort what comes from a set",
    "the order of a folder, which the file system decides": "sort what comes from a folder",
}


def _instead(calls: Iterable[tuple[str, str, list[str]]], in_data: bool) -> list[str]:
    """What to change in each function that uses what differs from one process to the next.

    >>> _instead([("train_set", "Items.__getitem__", ["the time (time)"])], in_data=True)
    ['in Items.__getitem__ use no time, also not as a seed (time)']
    """
    found = []
    for root, name, uses in calls:
        if root.startswith(_DATA) == in_data:
            told = [use.partition(" (") for use in uses]
            each = [f"{_REMEDIES[kind]} ({names}" for kind, _, names in told]
            found.append(f"in {name} {', and '.join(each)}")
    return found[:_MOST]


def _in_its_place(difference: Difference, ordered: bool, found: bool) -> str:
    """Where what shall vary comes from instead."""
    if ordered:
        return (
            "an order that shall differ between epochs comes from shuffle=True in the options of the loader, or from "
            "torch.randperm in the sampler's __iter__: both follow the seed of the run"
        )
    if difference.kind == "batch":
        return (
            "draw from the global generators of Python, numpy or torch, which are seeded for each item, and let a "
            "sampler draw from them or have set_epoch(epoch); sort what comes from a set or a folder"
        )
    if difference.kind == "loss":
        todo = "draw from torch's global generator, whose state is in every checkpoint"
        deterministic = "if no line of yours draws, try torch.use_deterministic_algorithms(True)"
        return todo if found else f"{todo}; {deterministic}"
    return "torch.use_deterministic_algorithms(True) names the operation"


def _what(difference: Difference) -> tuple[str, str]:
    """What differs in a sentence, and where."""
    place, names = difference.place, difference.names
    where = f"batch {place.batch} of epoch {place.epoch + 1}"
    if difference.kind == "batch":
        return _which_sample(difference, where)
    if difference.kind == "length":
        return f"one of them ends before {where}", where
    if difference.kind == "stage losses":
        values = ", ".join(
            f"{n} {difference.one['losses'].get(n)} and {difference.other['losses'].get(n)}" for n in names
        )
        return (
            f"the losses of epoch {place.epoch} differ ({values}), and its last batch does not",
            f"epoch {place.epoch}",
        )
    if difference.kind == "loss":
        losses = [event["state"]["mean_loss"] for event in (difference.one, difference.other)]
        if all(losses):
            short = [f"{float(each):.6g}" for each in losses]
            losses = losses if short[0] == short[1] else short
        told = f" (mean of the epoch so far {losses[0]} and {losses[1]})" if all(losses) else ""
        return (
            f"the loss of {where} differs{told}, while its samples and the weights before it are the same",
            where,
        )
    things = {
        "modules": f"parameter or buffer {_some(map(repr, names))}",
        "optimizers": _some(names),
        "objects": f"object {_some(map(repr, names))}",
        "counters": f"counter {_some(map(repr, names))}",
        "generators": f"global generator of {_some(names)}",
    }
    owner = {
        "modules": f"module {names[0].partition('.')[0]!r}",
        "optimizers": f"optimizer {names[0].rpartition(' optimizer ')[2]}",
        "objects": f"object {names[0]!r}",
    }.get(difference.kind, difference.kind)
    if difference.after_batch:
        return (
            f"{things[difference.kind]} differs after {where}, while samples and loss are the same",
            f"{owner}, {where}",
        )
    return f"{things[difference.kind]} differs {place}", f"{owner}, {place}"


def _which_sample(difference: Difference, where: str) -> tuple[str, str]:
    one, other = difference.one, difference.other
    for number, (here, there) in enumerate(zip(one["ids"], other["ids"], strict=False)):
        if here != there:
            return (
                f"sample {number} of {where} is {here!r} in one and {there!r} in the other: the order differs",
                where,
            )
    if len(one["ids"]) != len(other["ids"]):
        return (
            f"{where} has {counted(len(one['ids']), 'sample')} in one and {len(other['ids'])} in the other",
            where,
        )
    sizes = [max((len(rows) for rows in event["fields"].values()), default=0) for event in (one, other)]
    if sizes[0] != sizes[1]:
        return f"{where} has {counted(sizes[0], 'sample')} in one and {sizes[1]} in the other", where
    rows = [
        [
            n
            for n, (a, b) in enumerate(
                zip(one["fields"].get(f, []), other["fields"].get(f, []), strict=False)
            )
            if a != b
        ]
        for f in difference.names
    ]
    first = min((each[0] for each in rows if each), default=0)
    known = f" ({one['ids'][first]!r})" if len(one["ids"]) > first else ""
    fields = [field for field, each in zip(difference.names, rows, strict=True) if first in each]
    named = f"field {_some(map(repr, fields))} of " if any(fields) else ""
    if any(
        sorted(one["fields"][f]) == sorted(other["fields"].get(f, []))
        for f in difference.names
        if f in one["fields"]
    ):
        return f"the samples of {where} come in another order", where
    if not known and len(fields) == len(one["fields"]) > 1:
        return f"sample {first} of {where} is another one, in all its fields: the order differs", where
    return f"{named}sample {first}{known} of {where} differs", f"sample {first}{known} of {where}"


_DATA_TODO = (
    "let an item be a function of its index and of the global generators of Python, numpy and torch, which are seeded "
    "for each item; give a sampler that counts set_epoch(epoch)"
)


def _comes_late(suspect: Suspect) -> bool:
    """Whether it is an attribute of the Brain already, and is made only after the resume."""
    has_place = "." not in suspect.name.removeprefix("brain.") and suspect.name.startswith("brain.")
    return has_place and suspect.kind in ("parameter", "object", "generator") and not suspect.other


def _todo(suspect: Suspect, one: Trace) -> str:
    if suspect.in_data:
        return _DATA_TODO
    if _comes_late(suspect):
        return (
            "make it earlier: in __init__, in on_fit_start, or in on_stage_start of Stage.TRAIN, too; what then has "
            "its name is given its state back"
        )
    if suspect.kind == "parameter":
        return "put the module into `modules`, or make it an attribute of the Brain"
    if suspect.kind == "object":
        return "make it an attribute of the Brain itself, or register it: checkpointer.add_recoverable(name, object)"
    if suspect.kind == "iterator":
        return "let a number that is saved say what comes next, such as self.optimizer_step or one in get_extra_state"
    if suspect.kind == "generator":
        return (
            "draw from torch's global generator, or make this one an attribute of the Brain itself, so that a "
            "checkpoint holds it"
        )
    if suspect.kind == "setting":
        return (
            "a checkpoint holds weights and buffers, not the settings of a module: set it anew in on_stage_start from "
            "something that is saved, such as self.optimizer_step, or in set_extra_state"
        )
    if suspect.name.startswith("extensions["):
        return "return it from the extension's state_dict, and put it back in load_state_dict"
    word = suspect.name.partition(".")[2].partition("[")[0].partition(".")[0]
    if word in one.start["saves"] and word in one.start["restores"]:
        return (
            "it is in get_extra_state, and was changed after the save: make the save the last line of the last hook "
            "of an epoch"
        )
    if word in one.start["saves"]:
        return "it is in get_extra_state, and set_extra_state does not put it back: do so there"
    return "return it from get_extra_state, and put it back in set_extra_state"


def _told(suspects: list[Suspect]) -> str:
    return _some(each.told("at the cut", "after the resume") for each in suspects)


def _some(things: Iterable[str]) -> str:
    """The first few of them."""
    things = list(things)
    more = f" and {len(things) - _MOST} more" if len(things) > _MOST else ""
    return ", ".join(things[:_MOST]) + more
