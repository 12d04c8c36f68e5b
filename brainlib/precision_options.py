"""The options of mixed precision."""

from __future__ import annotations

import dataclasses
from typing import Literal

from brainlib.common.logs import logger
from brainlib.common.option_fields import OptionGroup, option

__all__ = ["PrecisionOptions"]

Precision = Literal["fp32", "fp16", "bf16"]


@dataclasses.dataclass(frozen=True)
class PrecisionOptions(OptionGroup):
    """In which precision a Brain computes.

    >>> PrecisionOptions().precision
    'fp32'
    """

    precision: Precision = option(
        "fp32", "Precision of training: autocast for fp16 and bf16, and scaled gradients for fp16."
    )
    eval_precision: Precision = option("fp32", "Precision of validation and test.")
    auto_mix_prec: bool = option(False, "Deprecated: write precision: fp16.")
    bfloat16_mix_prec: bool = option(False, "Deprecated: write precision: bf16.")

    def settle(self, explicit: frozenset[str]) -> PrecisionOptions:
        """Let the two deprecated names mean what they meant, once, with a warning."""
        aliases: dict[str, Precision] = {"auto_mix_prec": "fp16", "bfloat16_mix_prec": "bf16"}
        given = [name for name in aliases if getattr(self, name)]
        if not given:
            return self
        wanted = {aliases[name] for name in given}
        if "precision" in explicit:
            wanted.add(self.precision)
        if len(wanted) > 1:
            raise ValueError(
                f"{' and '.join(sorted(wanted))} were asked for, and only one can be: remove the deprecated "
                f"{' and '.join(given)}, and write 'precision' alone."
            )
        (precision,) = wanted
        logger.warning("%s is deprecated: write precision: %s.", given[0], precision)
        return dataclasses.replace(self, precision=precision)
