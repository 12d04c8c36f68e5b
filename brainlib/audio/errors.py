"""What can be wrong with an audio file, said with its name."""

from __future__ import annotations

__all__ = ["AudioError"]


class AudioError(ValueError):
    """An audio file cannot be used as it was asked for.

    Attributes:
        path: the file.
        kind: "empty" (not a sample in it), "truncated" (it ends before what its header says), "corrupt" (it cannot be
            decoded, or not a number), "rate", "channels" or "segment" (it has other ones than were asked for). In what
            `find_bad_audio` returns also "missing" (there is no such file) and "unreadable" (the system refuses it).

    >>> error = AudioError("a.wav", "empty", "there is not a sample in it")
    >>> print(error.kind, "-", error)
    empty - a.wav: there is not a sample in it
    """

    def __init__(self, path: str, kind: str = "", message: str = "") -> None:
        # A loader makes the error of a worker anew from its text alone.
        super().__init__(path, kind, message)
        self.path = path
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.message else self.path
