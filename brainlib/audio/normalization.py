"""Features with mean 0 and standard deviation 1: of the corpus, of a speaker, or of the utterance itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from brainlib.common.errors import quoted
from brainlib.common.units import length_mask

__all__ = ["InputNormalization"]

_TYPES = ("global", "speaker", "utterance")


class InputNormalization(nn.Module):
    """Subtracts a mean from features and divides them by a standard deviation, both taken over frames.

    The statistics of "global" and "speaker" are buffers of the module, so they are saved with it, and put back when an
    update is skipped. They are exact over all that was seen, in float64 (merged as Chan, Golub and LeVeque 1979 do).
    They are learned from a pass over the training set, by `learn`, or along the way in training mode; with several
    processes only the former is the same on all.

    Args:
        norm_type: "global": one statistic for all. "speaker": one a speaker; an utterance of a speaker who was never
            seen is normalized by itself. "utterance": each by itself, nothing is learned.
        input_size: features of a frame; "utterance" needs none.
        num_speakers: for "speaker": speakers are numbers from 0 up to, and without, this.
        mean_norm: whether the mean is subtracted.
        std_norm: whether the deviation is divided by.
        learn_in_training: whether what is seen in training mode is learned from. An attribute, to be set to False when
            it is enough.
        min_std: no deviation is taken for smaller than this, so that silence stays finite.

    Raises:
        ValueError: for an unknown type, or a size that is missing.

    Attributes:
        count: frames seen, [S], of each speaker (of all with "global": S is 1).
        mean: [S, M].
        squares: [S, M], sums of squared deviations from the mean.

    >>> norm = InputNormalization("global", input_size=2)
    >>> norm.learn([(torch.tensor([[[0.0, 1.0], [2.0, 5.0], [9.0, 9.0]]]), torch.tensor([2]))])
    >>> norm.eval()(torch.tensor([[[2.0, 3.0]]]))
    tensor([[[1., 0.]]])
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(
        self,
        norm_type: str = "global",
        input_size: int | None = None,
        num_speakers: int | None = None,
        *,
        mean_norm: bool = True,
        std_norm: bool = True,
        learn_in_training: bool = True,
        min_std: float = 1e-5,
    ) -> None:
        super().__init__()
        if norm_type not in _TYPES:
            raise ValueError(f"norm_type={norm_type!r}: one of {quoted(_TYPES)}")
        if norm_type != "utterance" and not input_size:
            raise ValueError(f"norm_type={norm_type!r} needs input_size, the number of features of a frame")
        if norm_type == "speaker" and not num_speakers:
            raise ValueError("norm_type='speaker' needs num_speakers; speakers are numbers from 0 on")
        if norm_type != "speaker" and num_speakers is not None:
            raise ValueError(f"num_speakers={num_speakers!r} has no effect with norm_type={norm_type!r}")
        self.norm_type = norm_type
        self.mean_norm = mean_norm
        self.std_norm = std_norm
        self.learn_in_training = learn_in_training
        self.min_std = min_std
        self._seen = False
        if norm_type != "utterance":
            shape = (num_speakers or 1, input_size or 1)
            self.register_buffer("count", torch.zeros(shape[0], dtype=torch.int64))
            self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
            self.register_buffer("squares", torch.zeros(shape, dtype=torch.float64))

    def forward(
        self, features: Tensor, lengths: Tensor | None = None, speakers: Tensor | None = None
    ) -> Tensor:
        """Normalized features; in training mode they are learned from first, unless that is switched off.

        Args:
            features: [B, F, M], or [F, M] for a single item.
            lengths: [B], counts of frames or parts of F; what is behind an item's end counts for nothing and becomes 0.
            speakers: [B], integers; -1 is somebody who is not among them. Needed with "speaker" alone.

        Returns:
            The same shape, float32 (float64 for float64).

        Raises:
            ValueError: for speakers that are missing or out of range, another number of features, or where nothing
                was learned yet.
        """
        if features.dim() == 2:
            lengths = None if lengths is None else lengths.reshape(1)
            speakers = None if speakers is None else speakers.reshape(1)
            return self.forward(features.unsqueeze(0), lengths, speakers).squeeze(0)
        frames = _mask(features, lengths)
        own_count, own_mean, own_squares = _moments(features, frames)
        if self.norm_type == "utterance":
            mean, deviation = own_mean, _deviation(own_squares, own_count)
        else:
            rows = self._rows(features, speakers)
            if self.training and self.learn_in_training:
                self._add(own_count, own_mean, own_squares, rows)
            mean, deviation = self._stored(rows)
            if self.norm_type == "speaker":
                known = ((rows >= 0) & (self.count[rows.clamp(min=0)] > 0)).unsqueeze(1)
                mean = torch.where(known, mean, own_mean)
                deviation = torch.where(known, deviation, _deviation(own_squares, own_count))
        kind = torch.promote_types(features.dtype, torch.float32)
        result = features.to(kind)
        if self.mean_norm:
            result = result - mean.to(kind).unsqueeze(1)
        if self.std_norm:
            result = result / deviation.clamp(min=self.min_std).to(kind).unsqueeze(1)
        return result if lengths is None else result * frames.unsqueeze(-1)

    @torch.no_grad()
    def learn(self, batches: Iterable[Sequence[Tensor]]) -> None:
        """Take in what a pass over a set gives, beside what was learned before.

        Args:
            batches: each (features, lengths) or (features, lengths, speakers), as in `forward`.

        Raises:
            ValueError: as `forward`; and with "utterance", which has nothing to learn.
        """
        self._refuse_without_statistics()
        for features, lengths, *speakers in batches:
            rows = self._rows(features, speakers[0] if speakers else None)
            self._add(*_moments(features, _mask(features, lengths)), rows)

    @torch.no_grad()
    def merge(self, other: InputNormalization) -> None:
        """Take in what another one has learned, as if this had seen it, too.

        Raises:
            ValueError: the other is of another type or size.
        """
        self._refuse_without_statistics()
        if other.norm_type != self.norm_type or other.mean.shape != self.mean.shape:
            raise ValueError(
                f"this has {self.norm_type!r} statistics of shape {tuple(self.mean.shape)}, and the other "
                f"{other.norm_type!r} ones; merge what is alike"
            )
        rows = torch.arange(len(self.count), device=self.count.device)
        device = self.count.device
        self._add(other.count.to(device), other.mean.to(device), other.squares.to(device), rows)

    def _refuse_without_statistics(self) -> None:
        if self.norm_type == "utterance":
            raise ValueError(
                "norm_type='utterance' has no statistics: each utterance is normalized by itself"
            )

    def _rows(self, features: Tensor, speakers: Tensor | None) -> Tensor:
        """The row of the statistics that each item belongs to, [B]; -1: none."""
        if features.shape[-1] != self.mean.shape[1]:
            raise ValueError(
                f"the features have {features.shape[-1]} numbers a frame, and input_size is {self.mean.shape[1]}"
            )
        if self.norm_type == "global":
            return torch.zeros(len(features), dtype=torch.int64, device=features.device)
        if speakers is None:
            raise ValueError("norm_type='speaker' needs to be told the speakers, [batch]")
        if speakers.device.type == "cpu" and len(speakers):
            low, high = int(speakers.min()), int(speakers.max())
            if low < -1 or high >= len(self.count):
                raise ValueError(
                    f"speakers from {low} to {high}, and num_speakers is {len(self.count)}: give 0 to "
                    f"{len(self.count) - 1}, or -1 for somebody else"
                )
        return speakers.to(features.device, torch.int64)

    @torch.no_grad()
    def _add(self, count: Tensor, mean: Tensor, squares: Tensor, rows: Tensor) -> None:
        """Merge moments, [B] and [B, M], into the rows they belong to."""
        count = count * (rows >= 0)
        rows = rows.clamp(min=0)
        total = self.count.index_add(0, rows, count)
        weight = count.double().unsqueeze(1)
        summed = (self.mean * self.count.unsqueeze(1)).index_add(0, rows, mean.double() * weight)
        new_mean = summed / total.clamp(min=1).unsqueeze(1)
        apart = squares.double() * (weight > 0) + weight * (mean.double() - new_mean[rows]) ** 2
        moved = self.squares + self.count.unsqueeze(1) * (self.mean - new_mean) ** 2
        self.squares.copy_(moved.index_add(0, rows, apart))
        self.mean.copy_(new_mean)
        self.count.copy_(total)

    def _stored(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        if not self._seen:  # asked of the device until the answer is yes
            self._seen = bool((self.count > 0).any())
            if not self._seen:
                raise ValueError(
                    "no statistics have been learned yet: call learn() with a pass over the training set"
                    + (
                        "; learn_in_training=True learns with the first training batch, and this is before it"
                        if self.learn_in_training
                        else ", or let it learn in training mode (learn_in_training=True)"
                    )
                )
        rows = rows.clamp(min=0)
        return self.mean[rows], _deviation(self.squares[rows], self.count[rows])

    def extra_repr(self) -> str:
        """What stands in the representation of a model."""
        return f"{self.norm_type!r}, mean_norm={self.mean_norm}, std_norm={self.std_norm}"


def _mask(features: Tensor, lengths: Tensor | None) -> Tensor:
    """Where an item is, [B, F]."""
    if lengths is None:
        return torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)
    return length_mask(lengths.to(features.device), features.shape[1], len(features))


def _moments(features: Tensor, frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each item its number of frames, [B], their mean and their sum of squared deviations, [B, M], in float64."""
    inside = frames.unsqueeze(-1)
    count = frames.sum(dim=1)
    values = features.double() * inside
    mean = values.sum(dim=1) / count.clamp(min=1).unsqueeze(1)
    squares = (((values - mean.unsqueeze(1)) * inside) ** 2).sum(dim=1)
    return count, mean, squares


def _deviation(squares: Tensor, count: Tensor) -> Tensor:
    return (squares / count.clamp(min=1).unsqueeze(1)).sqrt()
