"""``speechbrain.utils.distributed``: who does what among several processes, as brainlib has it."""

from brainlib.compat.fallback import refused
from brainlib.distributed.group import ddp_init_group, run_on_main
from brainlib.distributed.world import if_main_process

__all__ = ["ddp_init_group", "if_main_process", "run_on_main"]

__getattr__ = refused(__name__)
