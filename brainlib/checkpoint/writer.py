"""One save, from the states that were taken to a checkpoint on the disk: what may happen beside training.

Nothing here looks at a live object: states are copies (or training stands still), and what objects write by themselves
they have written before, on the thread that asked for the save.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from brainlib.checkpoint.errors import CheckpointError
from brainlib.checkpoint.hooks import SaveHook
from brainlib.checkpoint.manifest import Checkpoint, Saved
from brainlib.checkpoint.recoverables import Recoverable, class_name
from brainlib.checkpoint.states import Memory, as_json, refuse_unsafe, write_torch
from brainlib.checkpoint.store import Draft, Store
from brainlib.common.background import hurried
from brainlib.common.retrying import Retry

__all__ = ["Entry", "Save", "entries_of", "write_by_hooks", "write_checkpoint"]


@dataclass
class Entry:
    """One object of a save: its state, or what it has written itself.

    Args:
        recoverable: The object, of which only what never changes is asked: its kind, its name.
        stem: Its file's name without the suffix.
        state: What is written; None for an object that writes by itself.
        odd: Whether the state holds something that is not plainly safe to read back.
        saved: How it is saved, once it is.
    """

    recoverable: Recoverable
    stem: str
    state: Any = None
    odd: bool = False
    saved: Saved | None = None


@dataclass
class Save:
    """What one save writes, and what is done once that is on the disk.

    Args:
        told: The checkpoint as it was promised to who asked for it.
        entries: The objects.
        stem: The folder's name.
        on_error: "raise" or "warn", see `Checkpointer.save_automatically`.
        verbosity: The level of the log line.
        going: The checkpoints that go once this one is there; `told` itself may be among them.
        draft: The folder that it is written into, once there is one.
        error: What it failed with.
    """

    told: Checkpoint
    entries: list[Entry]
    stem: str
    on_error: str
    verbosity: int
    going: list[Checkpoint] = field(default_factory=list)
    draft: Draft | None = None
    error: BaseException | None = None


def entries_of(recoverables: list[Recoverable]) -> list[Entry]:
    """An entry for each object, under file names that differ also where "Model" and "model" are the same.

    >>> entries_of([])
    []
    """
    taken: set[str] = set()
    return [Entry(recoverable, _free_stem(recoverable.name, taken)) for recoverable in recoverables]


def _free_stem(name: str, taken: set[str]) -> str:
    """A file name that differs from the others also where the file system does not tell "Model" from "model"."""
    stem, number = name, 1
    while stem.casefold() in taken or stem.casefold() == "manifest":
        number += 1
        stem = f"{name}-{number}"
    taken.add(stem.casefold())
    return stem


def write_by_hooks(save: Save, store: Store, retry: Retry) -> None:
    """Lets those objects write that do it by themselves; on the thread on which they live.

    Raises:
        CheckpointError: A hook failed, or wrote nothing, or no regular file.
        OSError: The disk refused, in all tries.
    """
    writing = [
        (entry, entry.recoverable.saver) for entry in save.entries if entry.recoverable.saver is not None
    ]
    if not writing:
        return
    what = f"saving a checkpoint to {store.folder}"
    draft = save.draft = retry.run(store.open_draft, what)
    for entry, saver in writing:

        def attempt(entry: Entry = entry, saver: SaveHook = saver) -> Saved:
            store.begin_again(draft)
            return _write_by_hook(draft, entry, saver)

        entry.saved = retry.run(attempt, what)


def write_checkpoint(
    save: Save, store: Store, retry: Retry, pace: Callable[[], None] = hurried
) -> Checkpoint:
    """Writes and commits it, and that again from the start where it failed for a moment.

    Args:
        save: What is written; its draft is closed here, whatever happens.
        store: Where to.
        retry: How often it is tried.
        pace: See `background.Pace`.

    Raises:
        CheckpointError: Something cannot be read back; nothing is left of it.
        OSError: The disk refused, in all tries; the message names the object.
    """

    def attempt() -> Checkpoint:
        if save.draft is None:
            save.draft = store.open_draft()
        else:
            store.begin_again(save.draft)
        draft = save.draft
        saved = {each.recoverable.name: each.saved or _write(draft, each, pace) for each in save.entries}
        return store.commit(draft, replace(save.told, path=draft.path, recoverables=saved), save.stem)

    try:
        return retry.run(attempt, f"saving a checkpoint to {store.folder}")
    finally:
        if save.draft is not None:
            store.close_draft(save.draft)


def _write(draft: Draft, entry: Entry, pace: Callable[[], None]) -> Saved:
    """Writes one object into the draft."""
    recoverable = entry.recoverable
    try:
        text = as_json(entry.state)
        name = f"{entry.stem}.pt" if text is None else f"{entry.stem}.json"
        lasting = Memory(entry.state) if text is None else None
        with draft.file(name, pace, lasting) as file:
            if text is None:
                write_torch(entry.state, file, pace)
            else:
                file.write(text)
        if entry.odd:
            refuse_unsafe(draft.path / name, recoverable.told)
    except OSError as error:
        # The class follows from the number, so a full disk stays recognizable; the words say which object it was.
        raise OSError(
            error.errno, f"{recoverable.told} could not be written: {error.strerror or error}", error.filename
        ) from error
    return Saved(recoverable.kind.name, name, (name,), class_name(recoverable.obj))


def _write_by_hook(draft: Draft, entry: Entry, saver: SaveHook) -> Saved:
    recoverable, name = entry.recoverable, f"{entry.stem}.ckpt"
    try:
        saver(recoverable.obj, draft.path / name)
    except (OSError, CheckpointError):
        raise
    except Exception as error:
        raise CheckpointError(f"{recoverable.told} failed in its save hook: {error!r}") from error
    try:
        files = draft.adopt()
    except OSError as error:
        raise OSError(
            error.errno, f"{recoverable.told} could not be written: {error.strerror or error}", error.filename
        ) from error
    if not files:
        raise CheckpointError(
            f"{recoverable.told}: its save hook wrote nothing to the path it was given; write a file there, or a "
            "folder with files"
        )
    return Saved("hook", name, tuple(files), class_name(recoverable.obj))
