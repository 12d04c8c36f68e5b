"""``speechbrain.utils.seed``: the seed, as brainlib has it."""

from brainlib.compat.fallback import refused
from brainlib.seeding import seed_everything

__all__ = ["seed_everything"]

__getattr__ = refused(__name__)
