"""speechbrain's trainer as brainlib has it: ``import brainlib.compat.speechbrain as sb`` in place of ``speechbrain``.

The trainer changes, your layers stay: ``sb.Brain``, ``sb.dataio.dataset`` and so on are brainlib's; ``sb.lobes``,
``sb.nnet.losses`` and all else that is no part of a trainer comes from an installed speechbrain, which is imported when
it is first asked for. ``docs/porting.md`` has the table.

>>> import brainlib as bl
>>> import brainlib.compat.speechbrain as sb
>>> sb.Brain is bl.Brain and sb.utils.epoch_loop.EpochCounter is bl.EpochCounter
True
"""

from brainlib.compat.fallback import installed
from brainlib.compat.speechbrain import core, dataio, nnet, utils
from brainlib.compat.speechbrain.core import Brain, Stage, create_experiment_directory, parse_arguments
from brainlib.compat.speechbrain.utils.run_opts import RunOptions

__all__ = [
    "Brain",
    "RunOptions",
    "Stage",
    "core",
    "create_experiment_directory",
    "dataio",
    "nnet",
    "parse_arguments",
    "utils",
]

__getattr__ = installed(__name__)
