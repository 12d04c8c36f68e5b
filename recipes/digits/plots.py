"""The pictures of a run: its curves, its confusion matrix, and the mistakes it was surest of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib import colormaps
from matplotlib.figure import Figure  # figures without pyplot: no window, no global state
from torch import Tensor

TRAIN, VALID, CHOSEN = "#1f77b4", "#d95f02", "#555555"
DPI = 110


def plot_curves(
    rows: Sequence[Mapping[str, Any]], path: Path, title: str, chosen_epoch: int | None = None
) -> None:
    """Loss and accuracy of train and valid over the epochs, in one picture.

    Args:
        rows: what `read_metrics` gives: one an epoch, with "epoch", "train" and "valid".
        path: of the PNG.
        title: what was run.
        chosen_epoch: the one whose weights were tested, to be marked.
    """
    epochs = [row["epoch"] for row in rows]
    figure = Figure(figsize=(8.5, 3.5), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for group, color in (("train", TRAIN), ("valid", VALID)):
            values = [row[group][name] for row in rows]
            axes.plot(epochs, values, color=color, label=group, marker="o", markersize=3)
        if chosen_epoch is not None:
            axes.axvline(
                chosen_epoch, color=CHOSEN, linestyle="--", linewidth=1, label=f"tested: epoch {chosen_epoch}"
            )
        axes.set_xlabel("epoch")
        axes.set_ylabel(name)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=DPI)


def plot_confusion(labels: Tensor, digits: Tensor, path: Path, num_classes: int = 10) -> None:
    """How often each digit was read as each other; the number of right ones stands on the diagonal.

    Args:
        labels: int64, [num_images], what is written.
        digits: int64, [num_images], what was read.
        path: of the PNG.
        num_classes: how many digits there are.
    """
    counts = torch.bincount(labels * num_classes + digits, minlength=num_classes**2).view(
        num_classes, num_classes
    )
    figure = Figure(figsize=(5, 4.6), layout="constrained")
    axes = figure.subplots()
    wrong = counts.clone().fill_diagonal_(0)
    # Colored by the mistakes alone: the diagonal is so large that beside it every mistake would look white.
    shades = wrong.float().fill_diagonal_(float("nan"))
    axes.imshow(
        shades.numpy(),
        cmap=colormaps["Oranges"].with_extremes(bad="#e8e8e8"),
        vmin=0,
        vmax=max(1.5 * float(wrong.max()), 4),
    )
    for row in range(num_classes):
        for column in range(num_classes):
            if counts[row, column] > 0:
                weight = "normal" if row == column else "bold"
                axes.text(
                    column, row, int(counts[row, column]), ha="center", va="center", size=8, weight=weight
                )
    axes.set_xticks(range(num_classes))
    axes.set_yticks(range(num_classes))
    axes.set_xlabel("read as")
    axes.set_ylabel("written")
    axes.set_title(f"{int(wrong.sum())} of {len(labels)} test images are read wrong")
    figure.savefig(path, dpi=DPI)


def plot_mistakes(
    images: Tensor, labels: Tensor, digits: Tensor, confidences: Tensor, path: Path, most: int = 12
) -> None:
    """The wrongly read images with the highest confidence, the surest first.

    Args:
        images: [num_images, 1, size, size].
        labels: int64, [num_images], what is written.
        digits: int64, [num_images], what was read.
        confidences: [num_images], 0 to 1.
        path: of the PNG.
        most: how many are shown at most.
    """
    wrong = (labels != digits).nonzero().flatten()
    shown = wrong[confidences[wrong].argsort(descending=True, stable=True)][:most].tolist()
    few = (
        "No mistakes" if not shown else "The one mistake" if len(wrong) == 1 else f"All {len(wrong)} mistakes"
    )
    many = f"The {len(shown)} surest of {len(wrong)} mistakes"
    # All on one sheet, in cells that leave room for two lines of text above each image; at least as wide as the title.
    rows = max(1, -(-len(shown) // 6))
    columns = -(-len(shown) // rows)
    size = images.shape[-1]
    height, width = round(1.5 * size), round(1.25 * size)
    left_edge = max(0, 3 - columns) * width // 2
    sheet = torch.zeros(rows * height, max(columns, 3) * width)
    inches = 1.67 * rows + 0.5
    figure = Figure(figsize=(1.42 * max(columns, 3), inches))
    axes = figure.add_axes((0.01, 0.02, 0.98, 0.98 - 0.35 / inches))
    for place, i in enumerate(shown):
        bottom = (place // columns + 1) * height
        left = left_edge + place % columns * width + (width - size) // 2
        sheet[bottom - size : bottom, left : left + size] = images[i, 0]
        text = f"{int(labels[i])} read as {int(digits[i])}\n{float(confidences[i]):.0%} sure"
        axes.text(left + size / 2 - 0.5, bottom - size - 0.8, text, ha="center", va="bottom", size=9)
    axes.imshow(sheet.numpy(), cmap="gray_r", vmin=0, vmax=1)
    axes.set_axis_off()
    figure.suptitle(f"{many if len(wrong) > len(shown) else few} on the test images", fontsize=11)
    figure.savefig(path, dpi=DPI)
