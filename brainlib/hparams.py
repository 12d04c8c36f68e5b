"""The hyperparameters on a Brain: dot access, and a memory of the suspicious keys that nothing read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

__all__ = ["HParams"]


class HParams(SimpleNamespace):
    """``brain.hparams``: every key of the experiment as an attribute.

    A key that looks like a misspelt option (`watch`) is held apart until it is first read; what is still
    held at the end of the first fit was read by nobody, and the Brain says so. All other keys are plain
    attributes from the start.

    >>> hparams = HParams({"lr": 0.1, "max_grad_nrom": 1.0}, watch=["max_grad_nrom"])
    >>> hparams.lr, hparams.unread()
    (0.1, ['max_grad_nrom'])
    >>> hparams.max_grad_nrom, hparams.unread()
    (1.0, [])
    """

    def __init__(self, values: Mapping[str, Any], watch: Collection[str] = ()) -> None:
        super().__init__(**{str(key): value for key, value in values.items() if key not in watch})
        object.__setattr__(self, "_held", {key: values[key] for key in watch if key in values})

    def __getattr__(self, name: str) -> Any:  # reached only for what is not a plain attribute
        held: dict[str, Any] = self.__dict__.get("_held", {})
        if name in held:
            setattr(self, name, held.pop(name))
            return getattr(self, name)
        raise AttributeError(f"hparams has no key {name!r}; there are {sorted(self.keys())}")

    def __reduce__(self) -> Any:
        values = {key: value for key, value in self.__dict__.items() if key != "_held"}
        return type(self), ({**values, **self._held}, list(self._held))

    def keys(self) -> list[str]:
        """All keys, read or not."""
        return [*(key for key in self.__dict__ if key != "_held"), *self._held]

    def unread(self) -> list[str]:
        """The watched keys that nothing has read."""
        return list(self._held)

    def forget_unread(self) -> None:
        """Stop watching: every key becomes a plain attribute."""
        for name in self.unread():
            getattr(self, name)
