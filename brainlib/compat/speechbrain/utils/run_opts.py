"""``speechbrain.utils.run_opts``: run options, as brainlib has it."""

from brainlib.compat.fallback import refused
from brainlib.options import RunOptions

__all__ = ["RunOptions"]

__getattr__ = refused(__name__)
