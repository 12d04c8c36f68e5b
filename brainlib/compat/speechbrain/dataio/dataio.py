"""``speechbrain.dataio.dataio``: audio files, as brainlib has it."""

from brainlib.audio import read_audio, write_audio
from brainlib.compat.fallback import installed

__all__ = ["read_audio", "write_audio"]

__getattr__ = installed(__name__)
