"""The world: rank and size of this process. One process is the ordinary case, not a special one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["World", "if_main_process"]


@dataclass(frozen=True)
class World:
    """Who takes part. The defaults are one process alone.

    Attributes:
        rank: the number of this process among all, from 0.
        local_rank: its number among those of its machine.
        size: how many there are.
        local_size: how many there are on its machine.

    >>> World().is_main, World().is_node_main, World().size
    (True, True, 1)
    """

    rank: int = 0
    local_rank: int = 0
    size: int = 1
    local_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes, logs and decides; there is one in the world."""
        return self.rank == 0

    @property
    def is_node_main(self) -> bool:
        """Whether this is the first process of its machine: what is done once a machine is done there."""
        return self.local_rank == 0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> World:
        """The world as a launcher (``brainlib launch``, torchrun) describes it; without one, one process.

        Raises:
            ValueError: for a description that is not complete or contradicts itself.

        >>> World.from_environment({}).size
        1
        >>> World.from_environment({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"})
        World(rank=1, local_rank=1, size=2, local_size=2)
        >>> World.from_environment({"WORLD_SIZE": "2"})
        Traceback (most recent call last):
        ...
        ValueError: the environment says WORLD_SIZE=2 and has no RANK and no LOCAL_RANK: ...
        """
        environ = os.environ if environ is None else environ
        size = _number(environ, "WORLD_SIZE", 1)
        if size <= 1:
            return cls()
        lacking = [name for name in ("RANK", "LOCAL_RANK") if name not in environ]
        if lacking:
            raise ValueError(
                f"the environment says WORLD_SIZE={size} and has no {' and no '.join(lacking)}: start the script with "
                "brainlib launch or torchrun, which set all of them; or unset WORLD_SIZE to train in one process"
            )
        rank, local_rank = _number(environ, "RANK", 0), _number(environ, "LOCAL_RANK", 0)
        local_size = _number(environ, "LOCAL_WORLD_SIZE", size)
        if not (0 <= rank < size and 0 <= local_rank < local_size <= size):
            raise ValueError(
                f"the environment says RANK={rank}, WORLD_SIZE={size}, LOCAL_RANK={local_rank} and "
                f"LOCAL_WORLD_SIZE={local_size}: ranks count from 0, and are smaller than the size"
            )
        return cls(rank, local_rank, size, local_size)


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    told = environ.get(name, str(default))
    try:
        return int(told)
    except ValueError:
        raise ValueError(f"the environment says {name}={told!r}, which is no whole number") from None


def if_main_process() -> bool:
    """Whether this process is the main one, the first of all machines: always, while there is one.

    >>> if_main_process()
    True
    """
    return World.from_environment().is_main
