"""What can go wrong with a checkpoint, as errors that a user reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brainlib.checkpoint.manifest import Checkpoint

__all__ = ["CheckpointError", "DamagedCheckpointError", "UnfitCheckpointError"]


class CheckpointError(ValueError):
    """A checkpoint cannot be written, found or applied; the message says which object, which file, and what to do.

    >>> from brainlib.checkpoint import Checkpointer
    >>> try:
    ...     Checkpointer("save", {"../up": object()})
    ... except CheckpointError as error:
    ...     print(str(error).split(";")[0])
    '../up' cannot be the name of a recoverable: it holds '/'
    """


class DamagedCheckpointError(CheckpointError):
    """The files of a checkpoint are not those that were written: one is missing, cut short or altered.

    Recovery goes on with the checkpoint before it; who asked for this very one gets this error.

    >>> issubclass(DamagedCheckpointError, CheckpointError)
    True
    """


class UnfitCheckpointError(CheckpointError):
    """A whole `checkpoint` that is of other objects than those here; nothing of it was loaded.

    >>> issubclass(UnfitCheckpointError, CheckpointError)
    True
    """

    def __init__(
        self, message: str, checkpoint: Checkpoint | None = None
    ) -> None:  # None: as pickle makes it
        super().__init__(message)
        self.checkpoint = checkpoint
