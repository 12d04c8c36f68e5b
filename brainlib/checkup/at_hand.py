"""Runs of a Brain at hand: each in a copy of this process."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Any

import torch

from brainlib.checkup.examine import Start
from brainlib.checkup.session import Plan, Session
from brainlib.common.logs import PoliteConsole
from brainlib.experiment import end_experiment
from brainlib.onlooker import invite
from brainlib.seeding import draw_seed, generator_states, set_generator_states

__all__ = ["start_of"]


def start_of(brain: Any, epoch_counter: Iterable[Any] | None, sets: tuple[Any, ...]) -> Start:
    """What becomes a run of `brain`, in a process that was forked for it.

    Raises:
        ValueError: for a Brain that no such process can run.
    """
    if brain._prepared or brain._fits_done or brain._fitting:
        raise ValueError(
            "doctor was given a Brain that has been fitted already; it looks at a run from its beginning: give it "
            "a Brain that was just made"
        )
    if not hasattr(os, "fork"):
        raise ValueError(
            "doctor copies its process with fork, which this system does not have: use it on Linux or macOS"
        )
    if brain.device.type != "cpu":
        raise ValueError(
            f"doctor was given a Brain on {brain.device}; a process that uses an accelerator cannot be copied. Make "
            "the Brain with run_opts={'device': 'cpu'}, or call `brainlib doctor SCRIPT HPARAMS`, which starts fresh "
            "processes"
        )
    if epoch_counter is None:
        epoch_counter = getattr(brain.hparams, "epoch_counter", None) or range(3)
    seed = draw_seed() if brain._seed is None else brain._seed
    torch.optim.SGD(
        [torch.zeros(1)], 0.1
    )  # the first optimizer of a process imports a third of torch: once, not in each
    generators = generator_states()

    def start(name: str, plan: Plan) -> None:
        set_generator_states(generators)  # Python seeds its own anew in a process that was forked
        _leave_logs_alone()
        end_experiment()
        brain._experiment = None
        torch.set_num_threads(1)  # a pool of threads does not survive a fork
        brain._seed = seed  # the same for all runs: two of a Brain without a seed would differ by design
        session = Session(plan)
        invite(session)
        try:
            brain.fit(epoch_counter, *sets[:2], None, *sets[2:])
        except BaseException as error:  # noqa: BLE001  # whatever it is: it goes into the trace
            session.fail(error)

    return start


def _leave_logs_alone() -> None:
    """What a run says goes to its own output, and into none of the files that this process has open."""
    known = [logging.getLogger(), *logging.getLogger().manager.loggerDict.values()]
    for each in known:
        if isinstance(each, logging.Logger):
            each.handlers = [handler for handler in each.handlers if isinstance(handler, PoliteConsole)]
