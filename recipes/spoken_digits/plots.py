"""The pictures of a run: its curves, its confusion matrix, and the mistakes it was surest of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure  # figures without pyplot: no window, no global state

TRAIN, VALID = "#1f77b4", "#d95f02"
DPI = 110
MOST = 12  # mistakes that are shown
COLUMNS = 4


def plot_curves(rows: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Loss and accuracy of train and valid over the epochs, in one picture.

    Args:
        rows: what `read_metrics` gives: one an epoch, with "epoch", "train" and "valid".
        path: of the PNG.
        title: what was run.
    """
    figure = Figure(figsize=(8.5, 3.5), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for group, color in (("train", TRAIN), ("valid", VALID)):
            values = [row[group][name] for row in rows]
            axes.plot(
                [row["epoch"] for row in rows], values, color=color, label=group, marker="o", markersize=3
            )
        axes.set_xlabel("epoch")
        axes.set_ylabel(name)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=DPI)


def plot_confusion(matrix: Mapping[str, Mapping[str, int]], path: Path) -> None:
    """How often each class was taken for each other; the number of right ones stands on the diagonal.

    Args:
        matrix: ``matrix[target][prediction]`` counts, as `ClassificationStats` gives it.
        path: of the PNG.
    """
    names = list(matrix)
    counts = np.array([[matrix[row][column] for column in names] for row in names])
    wrong = counts - np.diag(counts.diagonal())
    # Colored by the mistakes alone: the diagonal is so large that beside it every mistake would look white.
    shades = wrong.astype(float)
    np.fill_diagonal(shades, np.nan)
    figure = Figure(figsize=(5.4, 4.8), layout="constrained")
    axes = figure.subplots()
    colors = colormaps["Oranges"].with_extremes(bad="#e8e8e8")
    axes.imshow(shades, cmap=colors, vmin=0, vmax=max(1.5 * wrong.max(), 4))
    for row, column in np.argwhere(counts > 0):
        weight = "normal" if row == column else "bold"
        axes.text(column, row, counts[row, column], ha="center", va="center", size=8, weight=weight)
    axes.set_xticks(range(len(names)), names, rotation=90 if max(map(len, names)) > 2 else 0)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("heard as")
    axes.set_ylabel("spoken")
    axes.set_title(f"{wrong.sum()} of {counts.sum()} test recordings are heard wrong")
    figure.savefig(path, dpi=DPI)


def plot_mistakes(
    shown: Sequence[tuple[str, str, str, float, np.ndarray]], num_wrong: int, path: Path
) -> None:
    """The log-mels of the recordings that were heard wrong with the highest confidence, the surest first.

    Args:
        shown: of each its id, what was heard, what was spoken, the confidence, 0 to 1, and its log-mels [frames, mels].
        num_wrong: how many there are.
        path: of the PNG.
    """
    rows = max(1, -(-len(shown) // COLUMNS))
    figure = Figure(figsize=(10, 2.3 * rows + 0.5), layout="constrained")
    for axes in (grid := figure.subplots(rows, COLUMNS, squeeze=False)).flat:
        axes.set_axis_off()
    for axes, (id_, told, right, confidence, log_mels) in zip(grid.flat, shown, strict=False):
        axes.imshow(log_mels.T, origin="lower", aspect="auto", cmap="magma")
        axes.set_title(f"{id_}\n{right} heard as {told}, {confidence:.0%} sure", size=8)
    few = "No mistakes" if not shown else "The one mistake" if num_wrong == 1 else f"All {num_wrong} mistakes"
    many = f"The {len(shown)} surest of {num_wrong} mistakes"
    figure.suptitle(f"{many if num_wrong > len(shown) else few} on the test recordings", fontsize=11)
    figure.savefig(path, dpi=DPI)
