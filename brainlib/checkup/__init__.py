"""The doctor: a self-test of the user's own Brain (docs/doctor.md).

Short runs in processes of their own: the same again, cut and resumed, a batch against its parts. `doctor` is for a
Brain at hand, ``brainlib doctor`` for a script; both end in `examine`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brainlib.brain import Brain
    from brainlib.checkup.report import Report

__all__ = ["doctor"]


def doctor(
    brain: Brain,
    train_set: Any,
    valid_set: Any = None,
    train_loader_kwargs: Mapping[str, Any] | None = None,
    valid_loader_kwargs: Mapping[str, Any] | None = None,
    *,
    epoch_counter: Iterable[Any] | None = None,
    num_batches: int | None = None,
    accumulation: bool = True,
    timeout: float = 300.0,
) -> Report:
    """Look whether a Brain keeps the promises, with its own data: is it the same run when it is made again, and when it
    is cut and resumed; does an update depend on how the samples are split?

    Four short runs are made in processes that are copies of this one, with checkpoints in a temporary folder and the
    Brain's loggers silent. The Brain and this process stay as they are. What differs only between fresh processes (a
    script without a seed, the order of a set) is seen by ``brainlib doctor SCRIPT HPARAMS`` alone.

    Args:
        brain: one that has not been fitted yet, on the CPU.
        train_set: as for `Brain.fit`.
        valid_set: the same.
        train_loader_kwargs: the same.
        valid_loader_kwargs: the same.
        epoch_counter: the same; by default ``hparams.epoch_counter``, else ``range(3)``. Two epochs are enough, three
            show more.
        num_batches: how many batches an epoch has; by default those of two updates, at least 4 and at most 12.
        accumulation: whether the gradient of a batch is compared with that of its two parts. Switch it off for a loss
            in which the items of a batch are meant to see each other.
        timeout: seconds for one run.

    Returns:
        A report: true when nothing was found, ``report.findings`` otherwise; printed, it is a page to read.

    Raises:
        ValueError: the Brain was fitted already, or is on an accelerator.
        CheckupError: the run itself fails, or takes too long.

    Example:
        >>> import torch, brainlib as bl
        >>> class Regressor(bl.Brain):
        ...     def compute_forward(self, batch, stage):
        ...         return self.modules.model(batch["input"])
        ...
        ...     def compute_objectives(self, predictions, batch, stage):
        ...         return torch.nn.functional.mse_loss(predictions, batch["target"])
        >>> brain = Regressor({"model": torch.nn.Linear(3, 1)}, lambda p: torch.optim.Adam(p, 1e-2))
        >>> report = doctor(brain, [{"input": torch.rand(4, 3), "target": torch.rand(4, 1)} for _ in range(4)])
        >>> bool(report), report.findings
        (True, [])
    """
    from brainlib.checkup.at_hand import start_of  # what is needed for this alone, which few runs ask for
    from brainlib.checkup.examine import examine

    start = start_of(brain, epoch_counter, (train_set, valid_set, train_loader_kwargs, valid_loader_kwargs))
    return examine(
        start,
        num_batches=num_batches,
        timeout=timeout,
        at_once=2,
        quiet_loggers=True,
        accumulation=accumulation,
    )
