"""A small corpus, and a Brain on it as recipes have it: computed keys, augmentation, batches of a total length."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import brainlib as bl

NUM_ITEMS = 60
RATE = 1000  # samples a second
ROWS = {
    f"utt{n:02}": {"number": n, "duration": round(0.05 + (n * 37 % 61) / 100, 2), "label": n % 3}
    for n in range(NUM_ITEMS)
}


@bl.takes("number", "duration")
@bl.provides("signal", "gain")
def augmented(number: int, duration: float) -> Any:
    """Another version each time it is read: all three generators are drawn from."""
    signal = torch.sin(torch.arange(int(duration * RATE)) * (0.1 + number / 100))
    gain = random.uniform(0.5, 2.0)
    yield signal * gain + 0.1 * torch.rand(len(signal)) + float(np.random.rand())
    yield gain


def corpus() -> bl.DynamicItemDataset:
    return bl.DynamicItemDataset(ROWS, [augmented], ["id", "signal", "gain", "label"])


def loader_options(data: bl.DynamicItemDataset, num_workers: int) -> dict[str, Any]:
    sampler = bl.DynamicBatchSampler(data, max_batch_length=2.0, num_buckets=4, mix=0.1)
    return {"batch_sampler": sampler, "num_workers": num_workers}


class Classifier(nn.Module):
    """[batch, time] and relative lengths → [batch, 3]; what an item gives does not depend on how far it is padded."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv1d(1, 6, 9, padding=4), nn.Linear(6, 3)
        self.dropout = nn.Dropout(0.3)

    def forward(self, signals: Tensor, mask: Tensor) -> Tensor:
        hidden = torch.relu(self.conv(signals.unsqueeze(1))) * mask.unsqueeze(1)
        return self.out(self.dropout(hidden.sum(2) / mask.sum(1, keepdim=True)))


class Speaker(bl.Brain):
    """Notes what it was trained on: the ids, and a digest of all that was in the batch."""

    at = (0, 0)  # epoch and batch

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.trace: list[list[Any]] = []

    def compute_forward(self, batch: bl.PaddedBatch, stage: bl.Stage) -> Tensor:
        return self.modules.model(batch.signal.data, batch.signal.mask().float())

    def compute_objectives(self, predictions: Tensor, batch: bl.PaddedBatch, stage: bl.Stage) -> Tensor:
        return nn.functional.cross_entropy(predictions, batch.label)

    def on_fit_batch_end(self, batch: bl.PaddedBatch, outputs: Any, loss: Tensor, should_step: bool) -> None:
        data = batch.signal.data.numpy().tobytes() + batch.gain.numpy().tobytes()
        run = self.run_state
        self.trace.append(
            [run.epoch, run.step, batch.id, hashlib.sha256(data).hexdigest()[:12], float(loss.detach()).hex()]
        )


def make(
    checkpointer: bl.Checkpointer | None,
    global_seed: int,
    cls: type[Speaker] = Speaker,
    at: tuple[int, int] = (0, 0),
    **run_opts: Any,
) -> Speaker:
    """`global_seed`: of the process; the run's seed is 3, whatever it is. `at`: where one that is cut is cut."""
    torch.manual_seed(global_seed)
    brain = cls(
        {"model": Classifier()},
        lambda parameters: torch.optim.Adam(parameters, 1e-2),
        hparams={"seed": 3},
        run_opts={"noprogressbar": True, "device": "cpu", **run_opts},
        checkpointer=checkpointer,
    )
    brain.at = at
    return brain
