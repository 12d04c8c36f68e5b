"""Checkpoints of SpeechBrain's, read for the weights in them: ``CKPT+…`` folders, and save folders that hold them.

Such a folder has a ``CKPT.yaml`` and one file an object, such as ``model.ckpt``: for a module a state dict, as
``torch.save`` writes it. There are no sums, so that a damaged one is recognized only where a file is torn. Of the YAML
two lines are read, as text: it may name classes, and nothing here makes one.
"""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path

from brainlib.checkpoint.manifest import Checkpoint, Saved
from brainlib.checkpoint.store import FOREIGN
from brainlib.common.logs import logger

__all__ = ["is_speechbrain", "newest_speechbrain", "read_speechbrain"]

SUFFIX = ".ckpt"
LARGEST_META = 1 << 20  # bytes; real ones are a few lines
ZIP = b"PK\x03\x04"  # how a file of torch.save begins
UNIXTIME = re.compile(rb"^unixtime:[ \t]*([0-9.eE+-]+)[ \t]*\r?$", re.MULTILINE)
INSIDE_EPOCH = re.compile(rb"^end-of-epoch:[ \t]*false[ \t]*\r?$", re.MULTILINE)


def is_speechbrain(folder: Path) -> bool:
    """Whether a folder is one checkpoint of SpeechBrain's.

    >>> is_speechbrain(Path("/nowhere"))
    False
    """
    return (folder / FOREIGN).is_file()


def read_speechbrain(folder: Path) -> Checkpoint:
    r"""What is in a checkpoint of SpeechBrain's, in our words: without sums, so `files` is empty. Opens no object.

    Args:
        folder: One for which `is_speechbrain` is true.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "CKPT.yaml").write_text("WER: 9.5\nend-of-epoch: true\nunixtime: 1700000000.5\n")
    ...     torch.save(torch.nn.Linear(2, 1).state_dict(), f"{folder}/model.ckpt")
    ...     checkpoint = read_speechbrain(Path(folder))
    >>> checkpoint.time, checkpoint.recoverables["model"].kind
    (1700000000.5, 'module')
    """
    with open(folder / FOREIGN, "rb") as file:
        meta = file.read(LARGEST_META)
    saved = {}
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        name = entry.name.removesuffix(SUFFIX)
        if name != entry.name and name:
            # What torch.save did not write is a text or a format of the object's own: a counter, a loader's place.
            kind = "module" if entry.is_file() and zipfile.is_zipfile(entry.path) else "object"
            saved[name] = Saved(kind, entry.name, (), "as SpeechBrain saves it")
    return Checkpoint(
        path=folder,
        meta={},
        commit=0,
        end_of_epoch=INSIDE_EPOCH.search(meta) is None,
        time=_unixtime(meta) or 0.0,
        recoverables=saved,
    )


def newest_speechbrain(folder: Path) -> Checkpoint | None:
    """The newest checkpoint of SpeechBrain's in a folder of them, by the time that it notes; None when there is none.

    One that was being saved when its process was killed looks complete to SpeechBrain. Here it is skipped, with a
    warning, where that shows: without a time, or with a file that is empty or torn.

    >>> newest_speechbrain(Path("/nowhere")) is None
    True
    """
    found = []
    try:
        paths = [Path(entry.path) for entry in os.scandir(folder)]
    except OSError:
        paths = []
    for path in paths:
        if not is_speechbrain(path):
            continue
        if wrong := _torn(path):
            logger.warning("the checkpoint %s is skipped: %s", path, wrong)
            continue
        found.append(read_speechbrain(path))
    return max(found, key=lambda checkpoint: (checkpoint.time, checkpoint.path.name), default=None)


def _unixtime(meta: bytes) -> float | None:
    found = UNIXTIME.search(meta)
    try:
        return float(found[1]) if found else None
    except ValueError:
        return None


def _torn(folder: Path) -> str | None:
    """What shows that a save was not finished."""
    with open(folder / FOREIGN, "rb") as file:
        if _unixtime(file.read(LARGEST_META)) is None:
            return f"its {FOREIGN} notes no time, so its save was not finished"
    for entry in list(os.scandir(folder)):
        if not entry.name.endswith(SUFFIX) or not entry.is_file():
            continue
        with open(entry.path, "rb") as file:
            begins = file.read(len(ZIP))
        if not begins or (begins == ZIP and not zipfile.is_zipfile(entry.path)):
            return f"its {entry.name} is {'torn' if begins else 'empty'}, so its save was not finished"
    return None
