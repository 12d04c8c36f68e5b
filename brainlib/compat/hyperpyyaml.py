"""``hyperpyyaml`` as brainlib has it, for scripts whose hparams file has the tags of speechbrain."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import IO, Any

from brainlib.config import dump_hyperpyyaml
from brainlib.config import load_hyperpyyaml as _load

__all__ = ["dump_hyperpyyaml", "load_hyperpyyaml"]


def load_hyperpyyaml(
    yaml_stream: str | os.PathLike[str] | IO[Any],
    overrides: str | Mapping[str, Any] | None = None,
    overrides_must_match: bool = True,
) -> dict[str, Any]:
    """`brainlib.load_hyperpyyaml` with ``aliases="speechbrain"``: tags that name speechbrain's trainer build ours.

    Args:
        yaml_stream: a path, an open file, or the text itself.
        overrides: values that replace those of the file.
        overrides_must_match: whether a key that the file lacks is an error.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: something in the file or in the overrides is wrong.
        ImportError: a tag names something that is not there.

    >>> load_hyperpyyaml("epochs: !new:speechbrain.utils.epoch_loop.EpochCounter {limit: 3}")
    {'epochs': EpochCounter(limit=3, current=0)}
    """
    return _load(yaml_stream, overrides, overrides_must_match, aliases="speechbrain")
