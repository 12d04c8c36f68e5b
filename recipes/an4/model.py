"""Convolutions over time, then LSTMs in both directions: from features to log-probabilities of tokens."""

# Dimensions: B utterances, F frames, M features, T frames of the output (a quarter of F), H hidden, N tokens

from __future__ import annotations

import torch
from torch import Tensor, nn

from brainlib.audio import length_mask


class ConvBlstm(nn.Module):
    """Three convolutions, two of which halve the number of frames, and bidirectional LSTMs.

    What comes out for an utterance does not depend on the batch it is in.

    Args:
        num_features: M.
        num_tokens: N, the blank included.
        channels: of the first two convolutions.
        hidden_size: H, of each direction.
        num_layers: of LSTMs.
        dropout: between them; half of it between convolutions.
    """

    def __init__(
        self,
        num_features: int,
        num_tokens: int,
        channels: int = 128,
        hidden_size: int = 160,
        num_layers: int = 2,
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        self.front = nn.ModuleList(
            [
                _convolution(num_features, channels, 2, dropout / 2),
                _convolution(channels, channels, 1, dropout / 2),
                _convolution(channels, hidden_size, 2, dropout / 2),
            ]
        )
        sizes = [hidden_size] + [2 * hidden_size] * (num_layers - 1)
        self.forwards = nn.ModuleList(nn.LSTM(size, hidden_size, batch_first=True) for size in sizes)
        self.backwards = nn.ModuleList(nn.LSTM(size, hidden_size, batch_first=True) for size in sizes)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(2 * hidden_size, num_tokens)

    def forward(self, features_BFM: Tensor, counts_B: Tensor) -> Tensor:
        """Log-probabilities, [B, T, N]; `num_frames` says how many of the T are each utterance's."""
        values = features_BFM.transpose(1, 2)
        for convolution in self.front:
            values = convolution(values)
            counts_B = _strided(counts_B, convolution[0].stride[0])
            values = values * length_mask(counts_B, values.shape[2]).unsqueeze(
                1
            )  # what is behind an end stays 0
        values_BTH = values.transpose(1, 2)
        places_T = torch.arange(values_BTH.shape[1], device=counts_B.device)
        inside = length_mask(counts_B, values_BTH.shape[1])
        # Where to read an utterance from, backwards from its own end; padding stays where it is. This takes the place
        # of packed sequences, with which LSTMs are half as fast on a CPU.
        backwards = torch.where(inside, counts_B.unsqueeze(1) - 1 - places_T, places_T).unsqueeze(-1)
        for number, (there, back) in enumerate(zip(self.forwards, self.backwards, strict=True)):
            if number:
                values_BTH = self.dropout(values_BTH)
            turned = values_BTH.gather(1, backwards.expand_as(values_BTH))
            turned = back(turned)[0]
            turned = turned.gather(1, backwards.expand_as(turned))
            values_BTH = torch.cat([there(values_BTH)[0], turned], dim=-1)
        return self.output(self.dropout(values_BTH)).log_softmax(-1)

    def num_frames(self, counts_B: Tensor) -> Tensor:
        """How many frames of the output so many frames of features become: a quarter, rounded up."""
        for convolution in self.front:
            counts_B = _strided(counts_B, convolution[0].stride[0])
        return counts_B


def _convolution(before: int, after: int, stride: int, dropout: float) -> nn.Sequential:
    # batch norm has a bias of its own
    layer = nn.Conv1d(before, after, kernel_size=5, stride=stride, padding=2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm1d(after), nn.ReLU(), nn.Dropout(dropout))


def _strided(counts_B: Tensor, stride: int) -> Tensor:
    return torch.div(counts_B + stride - 1, stride, rounding_mode="floor")
