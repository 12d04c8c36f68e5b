"""The pictures of a run: its curves, and which words are taken for which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure  # figures without pyplot: no window, no global state

import brainlib as bl
from brainlib.metrics import align

TRAIN, VALID = "#1f77b4", "#d95f02"
DPI = 110


def plot_curves(rows: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Loss of train and valid, and the error rates of valid, over the epochs.

    Args:
        rows: what `read_metrics` gives: one an epoch, with "epoch", "train" and "valid".
        path: of the PNG.
        title: what was run.
    """
    figure = Figure(figsize=(8.5, 3.5), layout="constrained")
    losses, errors = figure.subplots(1, 2)
    for axes, group, name, color in (
        (losses, "train", "loss", TRAIN),
        (losses, "valid", "loss", VALID),
        (errors, "valid", "WER", VALID),
        (errors, "valid", "TER", TRAIN),
    ):
        known = [row for row in rows if name in row.get(group, ())]
        label = group if name == "loss" else {"WER": "words", "TER": "tokens"}[name]
        axes.plot(
            [row["epoch"] for row in known], [row[group][name] for row in known], color=color, label=label
        )
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
    losses.set_ylabel("loss")
    errors.set_ylabel("greedy error rate on valid, %")
    errors.set_ylim(bottom=0)
    losses.legend()
    errors.legend()
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=DPI)


def plot_confusions(stats: Mapping[str, bl.ErrorRateStats], path: Path, most: int = 15) -> None:
    """The most frequent errors of each way to decode.

    Args:
        stats: from what it is called to its errors.
        path: of the PNG.
        most: how many are shown of each, at most.
    """
    figure = Figure(figsize=(4.2 * len(stats), 4.6), layout="constrained")
    for axes, (name, errors) in zip(
        figure.subplots(1, len(stats), squeeze=False)[0], stats.items(), strict=True
    ):
        edits = Counter(
            f"{edit.reference or '–'} → {edit.hypothesis or '–'}"
            for reference, hypothesis in zip(errors.references, errors.hypotheses, strict=True)
            for edit in align(reference, hypothesis)
            if edit.kind != "="
        )
        shown = edits.most_common(most)[::-1]
        axes.barh([pair for pair, _ in shown], [count for _, count in shown], color=VALID)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_title(f"{name}: {errors.summarize('WER'):.1f} % of words wrong", fontsize=10)
    figure.suptitle("Said → taken for, the most frequent on the test", fontsize=11)
    figure.savefig(path, dpi=DPI)
