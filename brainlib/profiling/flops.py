"""Floating point operations of an update, by torch's own counter, and the peak of the device they are held against."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from brainlib.common.logs import logger
from brainlib.profiling.phases import put_over

if TYPE_CHECKING:
    from brainlib.brain import Brain

__all__ = ["FlopCounter", "known_peak", "recurrent_flops"]

# Dense operations a second, without sparsity, as NVIDIA's data sheets have them: what stands in the name of the
# device → (16 bit, TF32, float32). The first that fits counts.
_PEAKS = (
    ("H200", (989.5e12, 494.7e12, 67e12)),
    ("H100 PCIe", (756e12, 378e12, 51e12)),
    ("H100 NVL", (835e12, 417.5e12, 60e12)),
    ("H100", (989.5e12, 494.7e12, 67e12)),
    ("A100", (312e12, 156e12, 19.5e12)),
)


def known_peak(name: str, precision: str, tf32: bool) -> float | None:
    """The peak of a device in operations a second; None where it is not known here.

    Args:
        name: of the device, as `torch.cuda.get_device_name` tells it.
        precision: the run option.
        tf32: whether products in float32 are computed in TF32.

    >>> known_peak("NVIDIA H200", "bf16", False), known_peak("NVIDIA A100-SXM4-80GB", "fp32", True)
    (989500000000000.0, 156000000000000.0)
    >>> known_peak("Abacus", "fp32", False) is None
    True
    """
    for part, (half, reduced, single) in _PEAKS:
        if part in name:
            return half if precision in ("bf16", "fp16") else reduced if tf32 else single
    return None


def recurrent_flops(frames: Sequence[int], weights: Iterable[Sequence[int]], times: int = 1) -> int:
    """Of recurrent layers that are one operator: each frame meets each matrix once, a multiply-add as two.

    Args:
        frames: the shape of the input, ``[..., num_inputs]``.
        weights: the shapes of its weights; biases do not count.
        times: 1 for the forward, 2 for the backward, which needs the gradients of both factors.

    >>> recurrent_flops([5, 2, 8], [[24, 8], [24, 6], [24], [24]])
    6720
    """
    size = sum(shape[0] * shape[1] for shape in weights if len(shape) == 2)
    return 2 * times * math.prod(frames[:-1]) * size


def _recurrent_operators() -> dict[Any, Callable[..., int]]:
    """Torch's counter knows none of them. Where an LSTM is computed in parts, it counts those."""
    aten = torch.ops.aten

    # Of one layer and one direction; without biases the operator repeats the matrices.
    def of_a_layer(times: int) -> Callable[..., int]:
        return lambda frames, *args, out_shape=None: recurrent_flops(frames, args[:2], times)

    def of_a_stack(times: int) -> Callable[..., int]:
        return lambda frames, weights, *args, out_shape=None: recurrent_flops(frames, weights, times)

    return {
        aten.mkldnn_rnn_layer: of_a_layer(1),
        aten.mkldnn_rnn_layer_backward: of_a_layer(2),
        aten._cudnn_rnn: of_a_stack(1),
        aten._cudnn_rnn_backward: of_a_stack(2),
    }


class FlopCounter:
    """Counts the operations of one update of each fit, the first that is seen from its first batch on; then it is gone.

    It stands on the `fit_batch` of the Brain meanwhile, so that validation and hooks between the batches do not count.

    Args:
        peak: of one device, in operations a second; None: as it is known.

    >>> FlopCounter().exits
    ''
    """

    exits = ""

    def __init__(self, peak: float | None = None) -> None:
        self._peak = peak
        self._take_off: Callable[[], None] = lambda: None
        self._count: int | None = None  # of the open window

    def start(self) -> None:
        """A fit begins."""
        self._count = None

    def begin(self, brain: Brain) -> None:
        """The first batch is about to be asked for."""
        self._take_off = put_over(brain, "fit_batch", functools.partial(self._counted, brain))

    def _counted(self, brain: Brain, method: Any, batch: Any) -> Any:
        from torch.utils.flop_counter import FlopCounterMode

        if brain._scope.inner:
            return method(batch)
        closes = brain.should_step
        if brain._scope.run.micro == 1:
            self._count = 0
        if self._count is None:  # resumed inside a window
            return method(batch)
        with FlopCounterMode(display=False, custom_mapping=_recurrent_operators()) as mode:
            loss = method(batch)
        self._count += mode.get_total_flops()
        if closes:
            self._take_off()
            brain._ledger.flops = self._count
            brain._ledger.peak = self._peak or _peak_of(brain)
            if not self._count:
                logger.warning(
                    "count_flops: in the first update there was no product, convolution, attention or recurrent layer "
                    "that can be counted, so there is nothing to tell"
                )
        return loss

    def waits(self, batches: Iterator[Any], phase: str) -> Iterator[Any]:
        """The batches."""
        return batches

    def step(self) -> None:
        """One more update was made."""

    def stop(self, error: BaseException | None = None) -> None:
        """The fit is over."""
        self._take_off()


def _peak_of(brain: Brain) -> float | None:
    if brain.device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(brain.device)
    return known_peak(name, brain._options.precision, torch.backends.cuda.matmul.allow_tf32)
