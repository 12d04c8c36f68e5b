"""Three models for images of handwritten digits, from the plainest to the best."""

# Dimensions: B images, C channels, H rows, W columns, N outputs

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class Softmax(nn.Module):
    """One linear layer on the pixels: softmax regression, the model to beat.

    Args:
        image_size: pixels on a side.
        num_outputs: what the loss asks for: 10 for cross-entropy, 1 for a squared error.
    """

    def __init__(self, image_size: int, num_outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(image_size**2, num_outputs))

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Outputs of shape [B, N]; no softmax, the loss does that."""
        return self.layers(images_BCHW)


class Mlp(nn.Module):
    """Fully connected layers with ReLU and dropout between them.

    Args:
        image_size: pixels on a side.
        num_outputs: what the loss asks for.
        hidden_sizes: width of each hidden layer; try one or two of 64 to 512.
        dropout: share of the hidden values set to zero in training; try 0 to 0.5.
    """

    def __init__(
        self,
        image_size: int,
        num_outputs: int,
        hidden_sizes: Sequence[int] = (128, 128),
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        size = image_size**2
        for hidden_size in hidden_sizes:
            layers += [nn.Linear(size, hidden_size), nn.ReLU(), nn.Dropout(dropout)]
            size = hidden_size
        self.layers = nn.Sequential(*layers, nn.Linear(size, num_outputs))

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Outputs of shape [B, N]."""
        return self.layers(images_BCHW)


class Cnn(nn.Module):
    """Convolutions of 3 x 3 with batch norm, the first two followed by pooling, then two linear layers with dropout.

    Pooling twice takes 28 pixels to 7 and 8 to 2, so one model serves both sets.

    Args:
        image_size: pixels on a side.
        num_outputs: what the loss asks for.
        channels: channels after each convolution; the cost grows with their products, and the first two are the
            dear ones.
        hidden_size: width of the linear layer before the last.
        dropout: share of the values set to zero in training before each linear layer; try 0 to 0.5.
    """

    def __init__(
        self,
        image_size: int,
        num_outputs: int,
        channels: Sequence[int] = (16, 32, 64),
        hidden_size: int = 64,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        num_before, size = 1, image_size
        for number, num_channels in enumerate(channels):
            # batch norm has a bias of its own
            layers += [
                nn.Conv2d(num_before, num_channels, kernel_size=3, padding=1, bias=False),
                nn.BatchNorm2d(num_channels),
                nn.ReLU(),
            ]
            if number < 2:
                layers.append(nn.MaxPool2d(2))
                size //= 2
            num_before = num_channels
        layers += [nn.Flatten(), nn.Dropout(dropout), nn.Linear(num_before * size**2, hidden_size), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Dropout(dropout), nn.Linear(hidden_size, num_outputs))

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Outputs of shape [B, N]."""
        return self.layers(images_BCHW)
