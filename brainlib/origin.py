"""Where a run begins: at a checkpoint, with the weights of another run, or from scratch. The one place that decides it.

A run that was cut is started again with the same command line, and must then be the same run. So whatever it began
from counts once: as soon as it has a checkpoint of its own, it goes on from there. Each checkpoint notes in its
manifest (``environment``, ``began``) what the run began from, which tells runs that share a folder apart.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from brainlib.checkpoint.beside import settled
from brainlib.checkpoint.checkpointer import Checkpoint, Checkpointer, Owner
from brainlib.checkpoint.errors import CheckpointError, DamagedCheckpointError
from brainlib.checkpoint.manifest import MANIFEST
from brainlib.checkpoint.options import AUTO, NEVER, CheckpointOptions
from brainlib.checkpoint.warm_start import Loaded
from brainlib.checkpoint.weights import checkpoint_at
from brainlib.common.errors import nearest, quoted
from brainlib.common.files import sha256_of
from brainlib.common.logs import logger
from brainlib.distributed.group import from_main
from brainlib.distributed.shared_disk import check_shared
from brainlib.distributed.world import if_main_process

__all__ = ["Origin"]


class Origin:
    """What the run options `resume` and `init_from` mean for one Brain.

    Args:
        options: Those of checkpoints.

    Attributes:
        record: What the checkpoints of the run note: ``{}`` from scratch; else under "resume" and "init_from" the path
            as it was given, the name of what was there, and its sums.
        warm: What `init_from` has loaded, when the run began with that in this process.

    >>> Origin(CheckpointOptions()).lends()
    False
    """

    def __init__(self, options: CheckpointOptions) -> None:
        self._resume = os.path.expanduser(options.resume)
        self._init_from = options.init_from and os.path.expanduser(options.init_from)
        # Where they lie stays the same when the script changes its directory; what is said and noted is as given.
        self._resume_place = os.path.abspath(self._resume) if self._is_path() else self._resume
        self._init_from_place = self._init_from and os.path.abspath(self._init_from)
        self.record: dict[str, Any] = {}
        self.warm: Loaded | None = None
        self._begun = False
        self._note = ""  # what the line of a resumed run says besides

    # ------------------------------------------------------------------------------------------- a fit, the first one

    def begin(self, checkpointer: Checkpointer | None, owner: Owner) -> None:
        """Loads what the run goes on from or begins with. All ranks.

        Args:
            checkpointer: The Brain's; None: nothing is saved, so nothing is resumed.
            owner: The Brain, as a checkpointer sees it.

        Raises:
            ValueError: For a path that leads nowhere, `resume` with a path and no checkpointer, or a folder that some
                rank does not see.
            CheckpointError: What is there does not fit; nothing was touched.
        """
        if checkpointer is not None:
            check_shared(checkpointer.checkpoints_dir)
        self.record, self.warm, self._note = {}, None, ""
        found = self._go_on(checkpointer)
        if found is not None:
            self.record = {**_began(found), **self.record}
            self._say_what_init_from_was(found)
        elif self._init_from is not None:
            self.warm = self._take_weights(checkpointer, owner)
            self.record["init_from"] = {
                "path": self._init_from,
                "name": self.warm.path.name,
                "sums": self.warm.sums,
            }
        self._begun = True

    def _go_on(self, checkpointer: Checkpointer | None) -> Checkpoint | None:
        """Loads the checkpoint from which the run goes on, all that it holds; None: there is none."""
        if checkpointer is None:
            self._refuse_a_path()
            return None
        if self._resume == NEVER:
            _set_others_aside(checkpointer)
            return None
        if not self._is_path() or _same(self._resume_place, checkpointer.checkpoints_dir):
            return checkpointer.recover_if_possible()
        if _same(Path(os.path.realpath(self._resume_place)).parent, checkpointer.checkpoints_dir):
            return self._go_back(checkpointer)
        if checkpointer.newest() is None:
            return self._enter(checkpointer)
        found = checkpointer.recover_if_possible()
        assert found is not None  # where all are damaged, newest() has said so
        if _Place(self._resume, self._resume_place).is_in(_began(found)):
            self._note += f"; it began at resume={self._resume}"
        else:
            logger.warning(
                "resume=%s has no effect: %s has checkpoints of its own, and the run goes on from the newest of them. "
                "To begin there, give a new folder.",
                self._resume,
                checkpointer.checkpoints_dir,
            )
        return found

    def _go_back(self, checkpointer: Checkpointer) -> Checkpoint:
        """To a checkpoint in the run's own folder. Those made since then go before it, those of before do not."""
        own = [c for c in checkpointer.list_checkpoints() if c.reason != "error"]
        place = _Place(self._resume, self._resume_place)
        for checkpoint in (c for c in own if place.is_in(_began(c))):
            try:
                found = checkpointer.load_checkpoint(checkpoint)
            except DamagedCheckpointError as error:
                logger.warning("the checkpoint %s is skipped: %s", checkpoint.path, error)
                continue
            self._note += f"; it had gone back to resume={self._resume} before"
            return found
        found = self._enter(checkpointer)
        if later := [c for c in own if c.commit > found.commit]:
            logger.warning(
                "going back to %s: %s, which were made later, stay for now. What is 'best' looks at them as well, and "
                "the rules for keeping may let them go. Started again, the run goes on from its own newest; to go back "
                "a second time, copy the checkpoint into a new folder.",
                found.path,
                quoted(c.path.name for c in later),
            )
        return found

    def _enter(self, checkpointer: Checkpointer) -> Checkpoint:
        """Loads what is at the path of `resume`, and notes that the run began there."""
        checkpoint = self._at_path(checkpointer)
        try:
            checkpointer.load_checkpoint(checkpoint)
        except DamagedCheckpointError:
            raise
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}\nTo begin with the weights that are there, and nothing else, give "
                f"init_from={self._resume!r} instead of resume"
            ) from error
        self.record["resume"] = {
            "path": self._resume,
            "name": checkpoint.path.name,
            "commit": checkpoint.commit,
            "manifest": sha256_of(checkpoint.path / MANIFEST),
        }
        self._note += f"; as resume={self._resume} asks"
        return checkpoint

    def _refuse_a_path(self) -> None:
        if self._is_path():
            raise ValueError(
                f"resume={self._resume!r} needs a Brain with a checkpointer, which saves what comes after it: "
                "Brain(..., checkpointer=Checkpointer(folder)). To begin with the weights that are there, and nothing "
                f"else, give init_from={self._resume!r}."
            )

    def _at_path(self, checkpointer: Checkpointer) -> Checkpoint:
        path = self._resume
        if not settled(self._resume_place).exists():
            there = quoted(c.path.name for c in checkpointer.list_checkpoints())
            raise ValueError(
                f"resume={path!r}: there is no such path; give {AUTO!r}, {NEVER!r}, or the path of a checkpoint or of "
                f"a folder of them.{nearest(path, (AUTO, NEVER))} In {checkpointer.checkpoints_dir} there are: {there}"
            )
        checkpoint = checkpoint_at(self._resume_place)
        if checkpoint.commit == 0:  # ours are numbered from 1
            raise CheckpointError(
                f"{checkpoint.path} is a checkpoint of SpeechBrain's, of which only the weights can be taken over: "
                f"give init_from={path!r} instead of resume"
            )
        return checkpoint

    def _say_what_init_from_was(self, found: Checkpoint) -> None:
        if self._init_from is None:
            return
        told = self.record.get("init_from", {})
        if told.get("path") == self._init_from:
            self._note += f"; init_from={self._init_from} was applied when the run began"
            return
        logger.warning(
            "init_from=%s has no effect: the run goes on from %s, and it began %s. To begin with other weights, give a "
            "new folder.",
            self._init_from,
            found.path,
            f"with the weights of {told['path']}" if told else "without init_from",
        )

    def _take_weights(self, checkpointer: Checkpointer | None, owner: Owner) -> Loaded:
        path = self._init_from_place
        assert path is not None
        if not settled(path).exists():
            raise ValueError(
                f"init_from={self._init_from!r}: there is no such path; give a checkpoint, a folder of checkpoints, or "
                "a file with a state dict"
            )
        if checkpointer is None:
            checkpointer = Checkpointer(os.curdir)  # touches no disk: it knows which modules there are
            checkpointer.attach(owner)
        loaded = checkpointer.load_modules(path)
        if loaded.lacking:
            logger.warning(
                "init_from: there are no weights of %s in %s, so these are as they were made",
                quoted(loaded.lacking),
                loaded.path,
            )
        return loaded

    def pass_over(self) -> None:
        """The first fit has started, and its on_fit_start, which is the user's, has not called `begin`."""
        given = [f"init_from={self._init_from}"] if self._init_from is not None else []
        given += [f"resume={self._resume}"] if self._is_path() else []
        if given and not self._begun:
            logger.warning(
                "%s has no effect: your on_fit_start does not call super().on_fit_start(), which loads it",
                " and ".join(given),
            )
        self._begun = True

    # --------------------------------------------------------------------------------------- an evaluation before a fit

    def lends(self) -> bool:
        """Whether an evaluation may have to take the weights with which a fit would begin."""
        return not self._begun and (self._init_from is not None or self._is_path())

    def lend(self, checkpointer: Checkpointer | None, owner: Owner) -> Path | None:
        """Before the first fit, where an evaluation would take the weights as they are: those of the run's beginning.

        The caller puts them back. Nothing else is loaded, and nothing is said to have begun.

        Returns:
            Where they are from; None when the weights as they are are right: the run has begun, or has checkpoints
            to go on from.
        """
        if not self.lends():
            return None
        if checkpointer is None:
            self._refuse_a_path()
        elif self._resume != NEVER:
            if checkpointer.newest() is not None:
                return None
            if self._is_path():
                with checkpointer.weights_only():
                    return checkpointer.load_checkpoint(self._at_path(checkpointer)).path
        if self._init_from is None:
            return None
        return self._take_weights(checkpointer, owner).path

    # ------------------------------------------------------------------------------------------------------- the line

    def lines(self, checkpointer: Checkpointer | None) -> tuple[str, str]:
        """What is said of a run that was resumed, behind that; and, in full, of one that was not.

        >>> Origin(CheckpointOptions()).lines(None)
        ('', 'starting from scratch: without a checkpointer nothing is saved')
        """
        if self.warm is not None:
            told = (
                f"warm start from {self.warm.path}: weights of {quoted(self.warm.names)}; optimizers, schedules and "
                "counters start afresh"
            )
        elif checkpointer is None:
            told = "starting from scratch: without a checkpointer nothing is saved"
        elif self._resume == NEVER:
            told = f"starting from scratch: resume is {NEVER!r}"
        else:
            told = f"starting from scratch: there is no checkpoint in {checkpointer.checkpoints_dir}"
        return self._note, told

    def _is_path(self) -> bool:
        return self._resume not in (AUTO, NEVER)


def _began(checkpoint: Checkpoint) -> dict[str, Any]:
    """What the run of a checkpoint began from, as its manifest notes it."""
    told = checkpoint.environment.get("began")
    return told if isinstance(told, dict) else {}


class _Place:
    """The checkpoint at a path, which may have been moved, or be gone, since somebody noted it."""

    def __init__(self, path: str, lies_at: str) -> None:
        place = settled(lies_at)
        manifest = place / MANIFEST
        self._path, self._name = path, place.name
        self._sum = sha256_of(manifest) if manifest.is_file() else None

    def is_in(self, began: dict[str, Any]) -> bool:
        """Whether it is the one that a note says a run was resumed from."""
        told = began.get("resume", {})
        if told.get("path") == self._path:
            return True
        return bool(told.get("manifest") == self._sum if self._sum else told.get("name") == self._name)


def _same(one: str | os.PathLike[str], two: str | os.PathLike[str]) -> bool:
    """Whether two paths are of one folder."""
    return os.path.realpath(one) == os.path.realpath(two)


def _set_others_aside(checkpointer: Checkpointer) -> None:
    """Else the rules for keeping would let them go, and "best" might be one of them."""
    former = from_main(checkpointer.set_aside)
    if former is not None and if_main_process():
        logger.warning(
            "resume is 'never', and %s held checkpoints of an earlier run: they are in %s now. Started again with "
            "'never', this run begins from scratch, too.",
            checkpointer.checkpoints_dir,
            former,
        )
