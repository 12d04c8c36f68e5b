"""``speechbrain.dataio.batch``: padded batches, as brainlib has it."""

from brainlib.compat.fallback import refused
from brainlib.data.padded_batch import PaddedBatch

__all__ = ["PaddedBatch"]

__getattr__ = refused(__name__)
