"""A benchmark run: exactly so many updates, and one line of JSON that says how fast they were."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torch import Tensor

from brainlib.common.counted import counted
from brainlib.common.logs import logger
from brainlib.common.plain import to_json
from brainlib.profiling.report import gpu_in_use, peak_memory
from brainlib.update.loss_weight import num_items

if TYPE_CHECKING:
    from brainlib.brain import Brain

__all__ = ["Benchmark", "loader_options_for", "percentiles", "speech_in"]

_WARM_UP = 10  # updates at most that do not count: caches, allocators and cudnn settle in them
_AUDIO = ("sig", "wav", "wavs", "audio", "waveform", "speech")


class Benchmark:
    """Measures the updates of one fit, and ends it after the last of them.

    Time is counted from one update to the next, with the wait for data and what hangs on the loop; between the last
    batch of an epoch and the first of the next, with its validation, the clock stands still.

    Args:
        num_updates: how many are made. The first ten of them, or a fifth if that is less, do not count.
        stream: where the line goes; standard output, looked up then, by default.
        clock: a function that returns seconds; tests pass their own.

    >>> Benchmark(100).exits
    ''
    """

    def __init__(
        self,
        num_updates: int,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.num_updates = num_updates
        self.line: dict[str, Any] = {}
        self._stream, self._clock = stream, clock
        self._warm_up = min(_WARM_UP, num_updates // 5)
        self._brain: Brain | None = None
        self.start()

    def start(self) -> None:
        """A fit begins."""
        self._count, self._running = 0, False
        self._forget()

    def _forget(self) -> None:
        """What was measured so far was the warm-up."""
        self._update_seconds: list[float] = []
        self._waited = self._open = 0.0
        self._items: float | None = 0.0
        self._audio: float | None = 0.0
        self._padding: list[float] = []
        if gpu_in_use():
            import torch

            torch.cuda.synchronize()
        self._since = self._clock()

    def begin(self, brain: Brain) -> None:
        """The first batch is about to be asked for."""
        self._running, self._brain = True, brain

    def waits(self, batches: Iterator[Any], phase: str) -> Iterator[Any]:
        """The batches, with the time that they take; a new epoch begins."""
        is_data = phase == "data wait"
        if is_data:
            self._since = self._clock()
        return self._timed(batches, is_data)

    def _timed(self, batches: Iterator[Any], is_data: bool) -> Iterator[Any]:
        rate = getattr(self._brain.hparams, "sample_rate", None) if self._brain is not None else None
        while True:
            began, before = self._clock(), self._waited
            try:
                batch = next(batches)
            except StopIteration:
                return
            self._waited = before + self._clock() - began  # of a copy, too, with the wait inside it
            if is_data:
                self._count_items(batch, rate)
            yield batch

    def _count_items(self, batch: Any, rate: Any) -> None:
        items = num_items(batch)
        self._items = None if items is None or self._items is None else self._items + items
        seconds, padding = speech_in(batch, rate)
        self._audio = None if seconds is None or self._audio is None else self._audio + seconds
        if padding is not None:
            self._padding.append(padding)

    def step(self) -> None:
        """One more update was made."""
        self._count += 1
        now = self._clock()
        self._update_seconds.append(now - self._since)
        self._since = now
        if self._count == self._warm_up:
            self._forget()

    @property
    def exits(self) -> str:
        """Why the fit is to end now; "" for no reason."""
        done = self._count >= self.num_updates or bool(self.line.get("benchmark", {}).get("finished"))
        return f"benchmark_max_step ({self.num_updates})" if done else ""

    def stop(self, error: BaseException | None = None) -> None:
        """The fit is over: print the line."""
        if not self._running or self._brain is None:
            return
        self._running = False
        if gpu_in_use():
            import torch

            torch.cuda.synchronize()
            if self._update_seconds:  # the device was behind the host by so much
                self._update_seconds[-1] += self._clock() - self._since
        if self._count < self.num_updates:
            logger.warning(
                "benchmark: %d of the %s of benchmark_max_step were made; what there is is told",
                self._count,
                counted(self.num_updates, "update"),
            )
        self.line = {"benchmark": self._measured()}
        stream = self._stream or sys.stdout
        stream.write(to_json(self.line) + "\n")
        stream.flush()

    def _measured(self) -> dict[str, Any]:
        brain, seconds = self._brain, sum(self._update_seconds)
        assert brain is not None

        def each_second(amount: float | None) -> float | None:
            return None if not amount or not seconds else round(amount / seconds, 4)

        return {
            "updates": self._count,
            "counted": len(self._update_seconds),
            "finished": self._count >= self.num_updates,
            "seconds": round(seconds, 6),
            "items_per_second": each_second(self._items),
            "audio_seconds_per_second": each_second(self._audio),
            "padding": round(sum(self._padding) / len(self._padding), 6) if self._padding else None,
            "update_seconds": percentiles(self._update_seconds),
            "data_wait": round(min(self._waited / seconds, 1.0), 6) if seconds else None,
            "peak_memory": peak_memory(),
            "batch_size": brain._options.benchmark_batch_size,
            "grad_accumulation_factor": brain._options.grad_accumulation_factor,
            "device": str(brain.device),
            "precision": brain._options.precision,
        }


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """The 50th, 90th and 99th percentile and the largest, each a value that was measured.

    >>> percentiles([0.1 * n for n in range(1, 101)])["p90"]
    9.0
    >>> percentiles([])
    {}
    """
    if not seconds:
        return {}
    ordered = sorted(seconds)
    ranks = {f"p{share}": ordered[math.ceil(share / 100 * len(ordered)) - 1] for share in (50, 90, 99)}
    return {name: round(value, 6) for name, value in {**ranks, "max": ordered[-1]}.items()}


def speech_in(batch: Any, sample_rate: Any = None) -> tuple[float | None, float | None]:
    """Seconds of audio in a batch, and the share of it that is padding; None for what cannot be told.

    Told by pairs of padded data ``[B, T, …]`` with relative lengths ``[B]``, as PaddedBatch has them. Where there are
    several, the largest is taken; one that is called like audio gives seconds, where the hparams have `sample_rate`.

    >>> import torch
    >>> batch = {"id": ["a", "b"], "sig": (torch.zeros(2, 16000), torch.tensor([1.0, 0.5]))}
    >>> speech_in(batch, 16000)
    (1.5, 0.25)
    >>> speech_in(batch), speech_in([torch.zeros(2)])
    ((None, 0.25), (None, None))
    """
    values = batch if isinstance(batch, Mapping) else getattr(batch, "__dict__", {})
    pairs = {str(name): pair for name, value in values.items() if (pair := _pair_of(value)) is not None}
    if not pairs:
        return None, None
    widest = max(pairs, key=lambda name: pairs[name][0].numel())
    audio = next((name for name in _AUDIO if name in pairs), None)
    padding = 1.0 - float(pairs[audio or widest][1].float().mean())
    if audio is None or not isinstance(sample_rate, (int, float)) or not sample_rate:
        return None, padding
    data, lengths = pairs[audio]
    return float(lengths.double().sum()) * data.shape[1] / sample_rate, padding


def _pair_of(value: Any) -> tuple[Tensor, Tensor] | None:
    if hasattr(value, "data") and hasattr(value, "lengths"):
        value = (value.data, value.lengths)
    if not (
        isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(v, Tensor) for v in value)
    ):
        return None
    data, lengths = value
    fits = (
        data.dim() >= 2 and lengths.dim() == 1 and len(lengths) == len(data) and lengths.is_floating_point()
    )
    return (data, lengths) if fits and bool(((lengths > 0) & (lengths <= 1)).all()) else None


def loader_options_for(
    batch_size: int, data: Any, options: Mapping[str, Any], is_ready: bool
) -> dict[str, Any]:
    """The loader options with the batch size of the benchmark.

    Raises:
        ValueError: where the batches are made already, or by a sampler.

    >>> loader_options_for(8, [1, 2, 3], {"shuffle": True}, is_ready=False)
    {'shuffle': True, 'batch_size': 8}
    """
    if is_ready or options.get("batch_sampler") is not None:
        what = (
            "has a batch_sampler"
            if not is_ready
            else f"is a {type(data).__name__} of batches that are made already"
        )
        raise ValueError(
            f"benchmark_batch_size is {batch_size}, but train_set {what}: give fit a Dataset and "
            "train_loader_kwargs={'batch_size': ...}, or leave benchmark_batch_size away"
        )
    return {**options, "batch_size": batch_size}
