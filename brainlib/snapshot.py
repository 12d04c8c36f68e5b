"""Snapshot: an extension that saves the run now and then, and keeps the last few, the best few, or every n-th.

Any number of them share one folder. Each looks after its own checkpoints, which say in their manifest whose they are,
and never touches those of another, the user's own, or the trainer's automatic ones. What it keeps is worked out anew
from the manifests each time, so that it survives a restart and a changed limit works at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brainlib.checkpoint.checkpointer import Checkpointer
from brainlib.checkpoint.manifest import Checkpoint
from brainlib.checkpoint.metadata import plain
from brainlib.checkpoint.retention import Rule, best, every, kept, newest, require_metric
from brainlib.common.errors import quoted
from brainlib.common.logs import logger
from brainlib.distributed.group import from_main
from brainlib.distributed.world import if_main_process
from brainlib.extension import Extension
from brainlib.stopping.endings import Stopped
from brainlib.triggers import TriggerSpec

__all__ = ["Snapshot"]

Best = tuple[str, str, int]  # a metric, "min" or "max", how many


@dataclass(frozen=True)
class Coming:
    """A checkpoint that is not written yet, as the rules see it."""

    commit: int
    meta: dict[str, Any]
    number: int


class Snapshot(Extension):
    """Saves the run at each trigger and keeps what at least one of its rules keeps: the last, the best, every n-th.

    What no rule would keep is not written at all. An older one goes only after the newer is on the disk, and the newest
    checkpoint of the folder is never taken away, so that there always is one to go on from.

    Args:
        max_size: how many of the last are kept; -1 all, 0 none (then give `best` or `keep_every`).
        snapshot_on_error: whether an error that ends the fit, Ctrl-C included, leaves a checkpoint of that moment, to
            be looked at. A run never goes on from it by itself, and only the newest of them is kept.
        trigger: when: ``(n, "epoch" | "step" | "seconds")``, or whatever else a trigger may be. At the end of an epoch
            it is after ``on_stage_end``.
        best: rules such as ``("WER", "min", 3)``: the metric, which end of it is best, and how many are kept. NaN and
            a missing metric never win and never push another out; among equals the newest wins. If it is the only
            metric in the rules of all Snapshots, it is what "best" means, as in ``evaluate(checkpoint="best")``.
        keep_every: every so many snapshots one is kept for ever; 0: none.
        meta: a function of the Brain that returns the metrics to note beside a snapshot. By default, at the end of an
            epoch, its number and ``train_loss`` and ``valid_loss``; nothing inside one. In an hparams file,
            ``!new:operator.attrgetter [metrics]`` gives what stands in ``self.metrics``, a dict.
        name: two Snapshots in one Brain need two names. The name is how one knows its own again after a restart.
        priority: below 0 by default, so that it saves what the other extensions have done.

    Raises:
        ValueError: for a limit or rule that is none; when a fit starts, if the Brain has no checkpointer.
        CheckpointError: when it is due, for a metric that no snapshot has; it lists those there are. The snapshot is
            on the disk by then.

    Example:
        >>> import tempfile, torch
        >>> from brainlib.brain import Brain
        >>> class Line(Brain):
        ...     def compute_forward(self, batch, stage):
        ...         return self.modules.model(batch)
        ...     def compute_objectives(self, predictions, batch, stage):
        ...         return predictions.pow(2).mean()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     brain = Line(
        ...         {"model": torch.nn.Linear(2, 1)}, lambda p: torch.optim.SGD(p, 0.1),
        ...         checkpointer=Checkpointer(folder), extensions=[Snapshot(max_size=2)],
        ...         run_opts={"noprogressbar": True},
        ...     )
        ...     brain.fit(range(5), [torch.ones(3, 2)])
        ...     [checkpoint.counters["epoch"] for checkpoint in brain.checkpointer.list_checkpoints()]
        [5, 4]
    """

    trigger: TriggerSpec = (1, "epoch")
    priority = -100

    def __init__(
        self,
        max_size: int = 5,
        snapshot_on_error: bool = False,
        trigger: TriggerSpec = (1, "epoch"),
        *,
        best: Sequence[Best] = (),
        keep_every: int = 0,
        meta: Callable[[Any], Mapping[str, Any]] | None = None,
        name: str | None = None,
        priority: int | None = None,
    ) -> None:
        as_given: Any = tuple(trigger) if isinstance(trigger, list) else trigger  # YAML knows no tuples
        super().__init__(name=name, trigger=as_given, priority=priority)
        if not _is_count(max_size, -1):
            raise ValueError(
                f"max_size is {max_size!r}; give how many of the last to keep, 0 for none or -1 for all"
            )
        if not _is_count(keep_every, 0):
            raise ValueError(
                f"keep_every is {keep_every!r}; give every how many one is kept for ever, or 0 for none"
            )
        self.max_size = max_size
        self.snapshot_on_error = snapshot_on_error
        self.keep_every = keep_every
        self.best = _checked(best)
        self.count = 0  # how often it was due, over the whole run
        self._meta = meta

    # ---- what the loop calls

    def start(self, brain: Any) -> None:
        """A limit that was made smaller works at once."""
        checkpointer: Checkpointer | None = brain.checkpointer
        if checkpointer is None:
            raise ValueError(
                f"the extension {self._tag!r} saves checkpoints, and this Brain has no checkpointer: give it one, "
                "Brain(..., checkpointer=Checkpointer(folder))"
            )
        self._prune(checkpointer)

    def __call__(self, brain: Any) -> None:
        """Save, unless no rule would keep it; then let go of those that no rule keeps any more."""
        checkpointer: Checkpointer = brain.checkpointer
        self.count += 1  # before the save: in what it saves it has been called
        noted: dict[str, Any] = plain(dict((self._meta or _losses)(brain)))
        own, keeping, sound, wanted = from_main(lambda: self._look(checkpointer, noted))
        if not wanted:
            self._prune(checkpointer)
            return
        saved = checkpointer.save_automatically(
            noted,
            end_of_epoch=brain.run_state.step == 0,
            reason="snapshot",
            snapshot=(self._tag, self.count),
            on_error=brain._options.on_save_error,
            going=[c for c in reversed(own) if c not in keeping] if sound else [],
        )
        if saved is not None and not sound:
            saved.wait()
            for key, _, _ in self.best:
                require_metric(key, self._own(checkpointer, "snapshot"), _how(key))
            self._prune(checkpointer)

    def _look(
        self, checkpointer: Checkpointer, noted: dict[str, Any]
    ) -> tuple[list[Checkpoint], list[Checkpoint | Coming], bool, bool]:
        """Its own checkpoints, which of them stay, whether the rules apply, and whether to save one. Main only."""
        own = self._own(checkpointer, "snapshot")
        coming = Coming(max((c.commit for c in own), default=0) + 1, noted, self.count)
        sound = all(_is_number(noted.get(key)) or _anywhere(key, noted, own) for key, _, _ in self.best)
        series: list[Checkpoint | Coming] = [*own, coming]
        keeping = kept(series, self._rules()) if sound else []
        return own, keeping, sound, not sound or coming in keeping

    def on_error(self, brain: Any, exc: BaseException) -> None:
        """Leave a checkpoint to be looked at, if asked to; the older ones of this kind go."""
        if not self.snapshot_on_error or brain.checkpointer is None or isinstance(exc, Stopped):
            return  # that the machine is taken away is no error, and the run is saved already
        if not if_main_process():
            return  # the others write nothing, and cannot be waited for
        told = {"error": type(exc).__name__, "message": str(exc)}
        saved = brain.checkpointer.save_checkpoint(
            told, end_of_epoch=brain.run_state.step == 0, reason="error", snapshot=(self._tag, self.count)
        )
        if brain._is_trial:
            logger.info(
                "saved the state at the error: %s (until the Brain is gone: a trial keeps nothing)",
                saved.path,
            )
        else:
            logger.info("saved the state at the error: %s (no run goes on from it by itself)", saved.path)
        for older in self._own(brain.checkpointer, "error"):
            if older.commit < saved.commit:
                brain.checkpointer.delete(older)

    def state_dict(self) -> dict[str, Any]:
        """How often it was due; everything else is in the manifests."""
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` returned."""
        if state.keys() != {"count"}:
            raise ValueError(
                f"the saved state of the extension {self._tag!r} has the keys {quoted(sorted(state))}, not 'count': is "
                "it another extension's? Give this one another name"
            )
        self.count = state["count"]

    # ---- its checkpoints

    @property
    def _tag(self) -> str:
        return self.name or type(self).__name__

    def _rules(self) -> list[Rule]:
        return [
            newest(self.max_size),
            *(best(key, order, num) for key, order, num in self.best),
            *([every(self.keep_every)] if self.keep_every else []),
        ]

    def _own(self, checkpointer: Checkpointer, reason: str) -> list[Checkpoint]:
        """Those that it made, the newest first."""
        found = checkpointer.list_checkpoints()
        return [c for c in found if c.reason == reason and c.snapshot_of == self._tag]

    def _prune(self, checkpointer: Checkpointer) -> None:
        """Let go of what no rule keeps, the oldest first; but never of what the run would go on from."""
        own = self._own(checkpointer, "snapshot")
        keeping = kept(own, self._rules())
        resume_point = next((c for c in checkpointer.list_checkpoints() if c.reason != "error"), None)
        # What was loaded is read once more when the open epoch's on_stage_start has been run.
        in_use = (resume_point, checkpointer.loaded if checkpointer.written is None else None)
        for checkpoint in reversed(own):
            if checkpoint not in keeping and checkpoint not in in_use:
                checkpointer.delete(checkpoint)
                logger.debug("%s let go of %s", self._tag, checkpoint.path)


def _losses(brain: Any) -> dict[str, Any]:
    """At a closed epoch, what the trainer's own checkpoint of it would say."""
    run = brain.run_state
    return {} if run.step else {"epoch": run.epoch_start + run.epoch, **brain._scope.losses}


def _how(key: str) -> str:
    return (
        "What log_stats is given goes to the loggers alone; the metrics of a snapshot are what its argument `meta`, a "
        f"function of the Brain, returns: set self.metrics = {{{key!r}: ...}} in on_stage_end, and give "
        "meta=lambda brain: brain.metrics, or in an hparams file meta: !new:operator.attrgetter [metrics]"
    )


def _anywhere(key: str, noted: Mapping[str, Any], own: Sequence[Checkpoint]) -> bool:
    """Whether a metric that is missing now is one that other snapshots have."""
    return noted.get(key) is None and any(c.meta.get(key) is not None for c in own)


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float))


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _checked(rules: Any) -> tuple[Best, ...]:
    """The rules for the best; a slip is an error when the Snapshot is made, not after the first epoch."""
    checked: list[Best] = []
    for rule in [rules] if isinstance(rules, str) else rules:
        parts: Any = rule if isinstance(rule, (list, tuple)) and len(rule) == 3 else (None, None, None)
        key, order, num = parts
        if not isinstance(key, str) or order not in ("min", "max") or not _is_count(num, 1):
            raise ValueError(
                f"best holds {rule!r}; a rule is a metric, 'min' or 'max', and how many are kept: "
                'best=[("WER", "min", 3)]'
            )
        checked.append((key, order, num))
    return tuple(checked)
