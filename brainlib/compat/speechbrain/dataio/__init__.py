"""``speechbrain.dataio``: the modules that brainlib has; others from an installed speechbrain."""

from brainlib.compat.fallback import installed
from brainlib.compat.speechbrain.dataio import batch, dataio, dataloader, dataset, encoder, sampler

__all__ = ["batch", "dataio", "dataloader", "dataset", "encoder", "sampler"]

__getattr__ = installed(__name__)
