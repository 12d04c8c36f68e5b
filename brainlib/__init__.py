"""brainlib: a PyTorch trainer made for speech."""

from brainlib.brain import Brain
from brainlib.stage import Stage

__all__ = ["Brain", "Stage"]
