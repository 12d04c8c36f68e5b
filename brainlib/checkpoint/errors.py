"""What can go wrong with a checkpoint, as errors that a user reads."""

from __future__ import annotations

__all__ = ["CheckpointError", "DamagedCheckpointError"]


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
