"""The pictures of a run: its curves, and what the model hears in one recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure  # figures without pyplot: no window, no global state
from torch import Tensor

COLORS = ("#1f77b4", "#d95f02", "#555555")  # train, valid, the tested epoch
DPI = 110


def plot_curves(
    rows: Sequence[Mapping[str, Any]], path: Path, title: str, chosen_epoch: int | None = None
) -> None:
    """Loss and word error rate of train and valid over the epochs.

    Args:
        rows: what `read_metrics` gives: one an epoch, with "epoch", "train" and "valid".
        path: of the PNG.
        title: what was run.
        chosen_epoch: the one whose weights were tested, to be marked.
    """
    figure = Figure(figsize=(8.5, 3.5), layout="constrained")
    for axes, name, unit in zip(
        figure.subplots(1, 2), ("loss", "WER"), ("loss", "word error rate, %"), strict=True
    ):
        for group, color in zip(("train", "valid"), COLORS, strict=False):
            known = [row for row in rows if name in row[group]]
            if known:
                epochs, values = [row["epoch"] for row in known], [row[group][name] for row in known]
                axes.plot(epochs, values, color=color, label=group, marker="o", markersize=3)
        if chosen_epoch is not None:
            axes.axvline(
                chosen_epoch,
                color=COLORS[2],
                linestyle="--",
                linewidth=1,
                label=f"tested: epoch {chosen_epoch}",
            )
        axes.set_xlabel("epoch")
        axes.set_ylabel(unit)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=DPI)


def plot_emissions(
    features: Tensor, log_probs: Tensor, tokens: Sequence[str], path: Path, title: str, seconds: float
) -> None:
    """One recording: its log-mels, and below them the probability of each word over time.

    Args:
        features: [frames, mels].
        log_probs: [frames of the output, tokens].
        tokens: their names, the blank first, which is not drawn.
        path: of the PNG.
        title: what is said and what was heard.
        seconds: how long the recording is.
    """
    figure = Figure(figsize=(8.5, 4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    above.imshow(features.T.numpy(), origin="lower", aspect="auto", extent=(0, seconds, 0, features.shape[1]))
    above.set_ylabel("mel")
    times = np.linspace(0, seconds, len(log_probs))
    for number, (token, color) in enumerate(zip(tokens[1:], COLORS, strict=False), start=1):
        below.plot(times, log_probs[:, number].exp().numpy(), color=color, label=token)
    below.set_xlabel("seconds")
    below.set_ylabel("probability")
    below.set_ylim(-0.02, 1.02)
    below.legend(loc="upper right")
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=DPI)
