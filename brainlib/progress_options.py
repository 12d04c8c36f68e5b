"""The options of the progress bar."""

from __future__ import annotations

import dataclasses

from brainlib.common.errors import nearest, quoted
from brainlib.common.option_fields import OptionGroup, option

__all__ = ["ProgressOptions"]

_COLORS = {"train": "GREEN", "valid": "MAGENTA", "test": "CYAN"}


@dataclasses.dataclass(frozen=True)
class ProgressOptions(OptionGroup):
    """What the progress bar shows, and how often it is drawn.

    >>> ProgressOptions().tqdm_barcolor["train"]
    'GREEN'
    """

    noprogressbar: bool = option(False, "Show no progress bar.")
    tqdm_colored_bar: bool = option(False, "Color the progress bar by stage.")
    tqdm_barcolor: dict[str, str] = option(
        _COLORS, "The color of each stage's bar, as train=GREEN,valid=MAGENTA,test=CYAN."
    )
    progress_seconds: float = option(
        0.1, "Least time between two redraws of the bar on a terminal, in seconds.", ours=True, minimum=0
    )

    def settle(self, explicit: frozenset[str]) -> ProgressOptions:
        """Give the stages that were not named their usual color; refuse stages that do not exist."""
        for stage in self.tqdm_barcolor:
            if stage not in _COLORS:
                raise ValueError(
                    f"The option 'tqdm_barcolor' names the stage {stage!r}; there are {quoted(_COLORS)}."
                    + nearest(stage, _COLORS)
                )
        return dataclasses.replace(self, tqdm_barcolor={**_COLORS, **self.tqdm_barcolor})
