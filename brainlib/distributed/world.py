"""The world: rank and size of this process. One process is the ordinary case, not a special one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["World", "if_main_process", "run_on_main"]

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """Who takes part. The defaults are one process alone.

    >>> World().is_main, World().size
    (True, 1)
    """

    rank: int = 0
    local_rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes, logs and decides."""
        return self.rank == 0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> World:
        """The world as a launcher describes it; refused while brainlib trains in one process only.

        >>> World.from_environment({}).size
        1
        >>> World.from_environment({"RANK": "1", "WORLD_SIZE": "2"})
        Traceback (most recent call last):
        ...
        RuntimeError: WORLD_SIZE is 2: this version of brainlib trains in one process. ...
        """
        environ = os.environ if environ is None else environ
        size = int(environ.get("WORLD_SIZE", "1"))
        if size > 1:
            raise RuntimeError(
                f"WORLD_SIZE is {size}: this version of brainlib trains in one process. Start the script without a "
                "launcher, or with --nproc-per-node 1."
            )
        return cls()


def if_main_process() -> bool:
    """Whether this process is the main one: always, while there is one.

    >>> if_main_process()
    True
    """
    return World.from_environment().is_main


def run_on_main(
    func: Callable[..., T], args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None
) -> T:
    """Call `func` on the main process (data preparation, downloads); the others would wait for it.

    >>> run_on_main(sum, args=([1, 2],))
    3
    """
    return func(*(args or ()), **(kwargs or {}))
