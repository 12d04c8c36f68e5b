"""A script that trains one of the seven, for processes that are killed and started again with the same command line.

``python starts_job.py REQUEST``, where REQUEST is JSON: `style`, `folder`, `seed` (of the process, not of the run),
`options`, `kill` (before which forward of training the process ends by SIGKILL; 0: never), `output` (gets the ending).
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import brainlib as bl
from tests.contracts.brains import SEVEN, Plain, ending, make, two_fits


def kill_before(brain: Plain, number: int) -> None:
    """End the process, as the system does it, before the `number`-th forward of training, from 1."""
    original, calls = brain.compute_forward, 0

    def compute_forward(batch: Any, stage: bl.Stage) -> torch.Tensor:
        nonlocal calls
        calls += stage == bl.Stage.TRAIN and not getattr(brain, "inside", False)
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(batch, stage)

    brain.compute_forward = compute_forward  # type: ignore[method-assign]


def main(request: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    style = next(cls for cls in SEVEN if cls.__name__ == request["style"])
    options = {
        "ckpt_interval_steps": 1, "ckpt_async": False, "grad_accumulation_factor": 3, **request["options"]
    }  # fmt: skip
    brain = make(style, bl.Checkpointer(request["folder"]), global_seed=request["seed"], **options)
    if request["kill"]:
        kill_before(brain, request["kill"])
    two_fits(brain)
    Path(request["output"]).write_text(json.dumps(ending(brain)))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
