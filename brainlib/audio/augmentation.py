"""What all augmentations have in common: batches or single items, one draw an item, nothing outside of training.

What is random is drawn from torch's global generators: how and where from that of the CPU, whatever the device, and
noise from that of the device. So it is a function of the seed; inside a dataset that a Brain reads, of an item's place
in the epoch alone; and a run that is cut and started again draws the same.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from brainlib.common.units import absolute_lengths, length_mask

__all__ = ["Augmentation"]


class Augmentation(nn.Module):
    """Changes items by chance and keeps their lengths. A subclass overrides `augment`.

    Args:
        prob: the probability with which an item is changed, from 0 to 1.

    Raises:
        ValueError: for a probability out of range.

    >>> class Louder(Augmentation):
    ...     def augment(self, items, counts):
    ...         return items * self.draw(items, 1.0, 2.0).unsqueeze(1)
    >>> waves = torch.ones(2, 5)
    >>> louder = Louder(prob=0.5)
    >>> louder(waves).shape, torch.equal(louder.eval()(waves), waves)
    (torch.Size([2, 5]), True)
    """

    item_dims = 1  # of a single item: [time]
    shape = "[batch, time] or [time]"

    def __init__(self, prob: float = 1.0) -> None:
        super().__init__()
        if not 0 <= prob <= 1:
            raise ValueError(f"prob={prob!r}: a probability from 0 to 1")
        self.prob = float(prob)

    def forward(self, items: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Augmented items in training mode; outside of it the items as they are.

        Args:
            items: a batch, or a single item without that dimension.
            lengths: [B], counts or parts of the second dimension; behind an item's end nothing is drawn, and nothing
                put. None: all is signal.

        Returns:
            The same shape and type, on the same device. The input is left alone.

        Raises:
            ValueError: for another number of dimensions, items that are no floating-point numbers, or lengths that are
                not one an item.
        """
        if not self.training:
            return items
        if items.dim() == self.item_dims:
            return self.forward(items.unsqueeze(0), None if lengths is None else lengths.reshape(1))[0]
        if items.dim() != self.item_dims + 1:
            raise ValueError(
                f"{type(self).__name__}: the items have the shape {tuple(items.shape)}; give {self.shape}"
            )
        if not items.is_floating_point():
            raise ValueError(
                f"{type(self).__name__}: the items are of the type {items.dtype}; give floating-point numbers"
            )
        counts = self.counts_of(items, lengths)
        if not items.numel():
            return items
        chosen = (torch.rand(len(items)) < self.prob).to(items.device)  # drawn in any case
        wide = items.to(torch.promote_types(items.dtype, torch.float32))  # no transform is defined on 16 bits
        changed = self.augment(wide, counts).to(items.dtype)
        keep = _fit(chosen, items)
        if lengths is not None:
            keep = keep & _fit(length_mask(counts, items.shape[1]), items)
        return torch.where(keep, changed, items)

    def augment(self, items: Tensor, counts: Tensor) -> Tensor:
        """The items, all of them changed.

        Args:
            items: [B, T] or [B, F, M]; not to be changed in place.
            counts: [B], int64, on the same device: the length of each.
        """
        return items

    def counts_of(self, items: Tensor, lengths: Tensor | None) -> Tensor:
        """The lengths as counts on the items' device, [B]."""
        if lengths is None:
            return torch.full((len(items),), items.shape[1], dtype=torch.int64, device=items.device)
        return absolute_lengths(lengths, items.shape[1], len(items)).to(items.device)

    def draw(self, items: Tensor, low: float, high: float, *shape: int) -> Tensor:
        """Numbers between two limits, [B, *shape], float32, on the items' device; drawn on the CPU."""
        drawn = torch.rand(len(items), *shape) * (high - low) + low
        return drawn.to(items.device)

    def draw_whole(self, items: Tensor, low: int, high: int, *shape: int) -> Tensor:
        """Integers from low to high, both included, [B, *shape], on the items' device; drawn on the CPU."""
        return torch.randint(low, high + 1, (len(items), *shape)).to(items.device)


def _fit(mask: Tensor, items: Tensor) -> Tensor:
    """[B] or [B, T] with as many dimensions as the items."""
    return mask.reshape(*mask.shape, *[1] * (items.dim() - mask.dim()))
