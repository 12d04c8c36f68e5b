"""``speechbrain.nnet``: its schedulers as far as brainlib has them; its layers from an installed speechbrain."""

from brainlib.compat.fallback import installed
from brainlib.compat.speechbrain.nnet import schedulers

__all__ = ["schedulers"]

__getattr__ = installed(__name__)
