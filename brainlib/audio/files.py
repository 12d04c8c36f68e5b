"""Audio files: in as float32 [time], out as wav, flac or ogg; whatever is wrong with one is said with its name.

libsndfile reads and writes here; a wav of 16 bits is read directly, in a third of the time. libsndfile takes a wav or
an ogg that was cut off for a shorter one. So the end of the file is looked at as well: where the header of a wav says
that it is, and whether the last page of an ogg says that it is the last. A flac says how many samples it has, and each
of its frames has a checksum.
"""

from __future__ import annotations

import io
import math
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
import torch
from torch import Tensor
from torchaudio.transforms import Resample

from brainlib.audio.errors import AudioError
from brainlib.common.counted import counted
from brainlib.common.errors import quoted
from brainlib.common.files import write_atomic
from brainlib.common.logs import logger
from brainlib.common.units import samples_to_seconds, seconds_to_samples

__all__ = [
    "AudioInfo",
    "AudioReader",
    "audio_info",
    "find_bad_audio",
    "read_audio",
    "resample",
    "write_audio",
]

ROUNDING_SECONDS = 0.01  # a segment may end so much behind its file: manifests round
_SUBTYPES = {".wav": "PCM_16", ".flac": "PCM_16", ".ogg": "VORBIS"}
_WRITTEN_AT_ONCE = (
    1 << 16
)  # samples; libsndfile 1.2.2 dies of an ogg that is handed over in one piece of minutes
_UNSAID = 0x7FFF0000  # from here on, the size in a wav header says that whoever wrote it could not know
_PLAIN_BYTES = 1 << 30  # so many are read at once without libsndfile
_OGG_PAGE = 65307  # bytes, at most
_ENDLESS = 1 << 40  # samples; what a flac has that does not say how many


@dataclass(frozen=True)
class AudioInfo:
    """What the header of an audio file says.

    Attributes:
        sample_rate: in Hz.
        num_samples: in each channel.
        num_channels: 1 is mono.
        format: such as "WAV".
        subtype: such as "PCM_16".

    >>> AudioInfo(8000, 4000, 1, "WAV", "PCM_16").seconds
    0.5
    """

    sample_rate: int
    num_samples: int
    num_channels: int
    format: str
    subtype: str

    @property
    def seconds(self) -> float:
        """The duration."""
        return samples_to_seconds(self.num_samples, self.sample_rate)


def audio_info(path: str | os.PathLike[str]) -> AudioInfo:
    """What the header of a file says; nothing is decoded.

    Args:
        path: a wav, flac or ogg.

    Raises:
        OSError: there is no such file, or it may not be read.
        AudioError: it is no audio file, has no sample, or ends before its header says.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_audio(f"{folder}/a.flac", torch.zeros(4000), 8000)
    ...     audio_info(f"{folder}/a.flac")
    AudioInfo(sample_rate=8000, num_samples=4000, num_channels=1, format='FLAC', subtype='PCM_16')
    """
    with _opened(path) as (_, file):
        return AudioInfo(file.samplerate, file.frames, file.channels, file.format, file.subtype)


def read_audio(
    path: str | os.PathLike[str],
    start: float = 0.0,
    stop: float | None = None,
    *,
    sample_rate: int | None = None,
    resample: bool = False,
    channel: int | str | None = None,
) -> Tensor:
    """The samples of a file, or of a segment of it.

    Args:
        path: a wav, flac or ogg.
        start: where the segment begins, in seconds.
        stop: where it ends, in seconds; None: where the file does. It may lie 10 ms behind that, since manifests round.
        sample_rate: the rate that is needed, in Hz; None: whatever the file has.
        resample: whether a file with another rate is resampled; if not, it is an error.
        channel: which one of several is read, from 0, or "mix" for their mean; None: a file with several is an error.

    Returns:
        float32, [time], from -1 to 1.

    Raises:
        OSError: there is no such file, or it may not be read.
        AudioError: the file has no sample, ends before its header says, cannot be decoded, holds something that is not
            a number, or has another rate, more channels or less time than were asked for; the message names both.
        ValueError: for arguments out of their range.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_audio(f"{folder}/a.wav", torch.arange(4) / 8, 8000)
    ...     read_audio(f"{folder}/a.wav"), read_audio(f"{folder}/a.wav", start=2 / 8000)
    (tensor([0.0000, 0.1250, 0.2500, 0.3750]), tensor([0.2500, 0.3750]))
    """
    _check_wanted(sample_rate, channel)
    with _opened(path) as (name, file):
        rate = file.samplerate
        if sample_rate is not None and rate != sample_rate and not resample:
            raise AudioError(
                name,
                "rate",
                f"it has {rate} samples a second, and {sample_rate} are needed. Convert the file, or ask for it to be "
                "resampled (resample=True)",
            )
        first, count = _segment(name, file, start, stop)
        samples = _decoded(name, file, first, count)
        if samples.ndim == 2:
            samples = _one_channel(name, samples, channel)
        elif channel not in (None, 0, "mix"):
            raise AudioError(name, "channels", f"channel {channel!r} is asked for, and it has one, 0")
    wave = torch.from_numpy(samples)
    return wave if sample_rate is None or rate == sample_rate else _resampled(wave, rate, sample_rate)


class AudioReader:
    """`read_audio` with its settings kept, and a rule for files that cannot be used: what a data pipeline calls.

    Args:
        sample_rate: as in `read_audio`.
        resample: as in `read_audio`.
        channel: as in `read_audio`.
        bad_files: "error", or "skip": files that are empty, truncated or corrupt then give None, are counted, and each
            is named in a warning once. Whoever builds batches leaves out what is None. A file that is missing, or has
            another rate or more channels than asked for, is an error in any case: that is no accident of one file.

    Attributes:
        num_read: files read so far, in this process.
        skipped: why, by path, files were skipped in this process.

    Raises:
        ValueError: for another word in `bad_files`.

    >>> import tempfile
    >>> reader = AudioReader(8000, bad_files="skip")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_audio(f"{folder}/a.wav", torch.zeros(5), 8000)
    ...     _ = Path(folder, "b.wav").write_bytes(b"")
    ...     [reader(f"{folder}/{name}.wav") for name in "ab"]
    [tensor([0., 0., 0., 0., 0.]), None]
    >>> reader.num_read, list(reader.skipped.values())
    (1, ['there is nothing in it'])
    """

    def __init__(
        self,
        sample_rate: int | None = None,
        *,
        resample: bool = False,
        channel: int | str | None = None,
        bad_files: str = "error",
    ) -> None:
        if bad_files not in ("error", "skip"):
            raise ValueError(f"bad_files={bad_files!r}: give 'error' or 'skip'")
        _check_wanted(sample_rate, channel)
        self.sample_rate = sample_rate
        self.resample = resample
        self.channel = channel
        self.bad_files = bad_files
        self.num_read = 0
        self.skipped: dict[str, str] = {}

    def __call__(
        self, path: str | os.PathLike[str], start: float = 0.0, stop: float | None = None
    ) -> Tensor | None:
        """The samples, float32 [time]; None for a file that is skipped. Times in seconds."""
        try:
            wave = read_audio(
                path,
                start,
                stop,
                sample_rate=self.sample_rate,
                resample=self.resample,
                channel=self.channel,
            )
        except AudioError as error:
            if self.bad_files == "error" or error.kind not in ("empty", "truncated", "corrupt"):
                raise
            if error.path not in self.skipped:
                self.skipped[error.path] = error.message
                logger.warning("skipped, number %d: %s", len(self.skipped), error)
            return None
        self.num_read += 1
        return wave


def find_bad_audio(
    paths: Iterable[str | os.PathLike[str]],
    *,
    sample_rate: int | None = None,
    resample: bool = False,
    channel: int | str | None = None,
) -> dict[str, AudioError]:
    """Read every file to its end, and say which ones cannot be used: for the preparation of a corpus.

    Args:
        paths: of wav, flac or ogg files.
        sample_rate: as in `read_audio`.
        resample: as in `read_audio`.
        channel: as in `read_audio`.

    Returns:
        What is wrong, by path, in the order given; empty where all is well. A file that is missing or may not be read
        is one of the bad ones: the look through the others goes on.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_audio(f"{folder}/a.wav", torch.zeros(5), 8000)
    ...     write_audio(f"{folder}/b.wav", torch.zeros(5), 16000)
    ...     bad = find_bad_audio([f"{folder}/a.wav", f"{folder}/b.wav"], sample_rate=8000)
    >>> [error.kind for error in bad.values()]
    ['rate']
    """
    bad: dict[str, AudioError] = {}
    for path in paths:
        try:
            read_audio(path, sample_rate=sample_rate, resample=resample, channel=channel)
        except AudioError as error:
            bad[os.fspath(path)] = error
        except FileNotFoundError:
            bad[os.fspath(path)] = AudioError(os.fspath(path), "missing", "there is no such file")
        except OSError as error:
            told = f"it cannot be read ({error.strerror or error})"
            bad[os.fspath(path)] = AudioError(os.fspath(path), "unreadable", told)
    return bad


def write_audio(
    path: str | os.PathLike[str], samples: Tensor, sample_rate: int, subtype: str | None = None
) -> None:
    """Write a wav, flac or ogg, by the end of its name; it is there as a whole or not at all.

    With 16 bits, what `read_audio` gave is written back with the same bits.

    Args:
        path: the file; its folder exists.
        samples: [time] or [channel, time], from -1 to 1.
        sample_rate: in Hz.
        subtype: libsndfile's word for how a sample is stored; None: PCM_16, for ogg VORBIS. "FLOAT" in a wav keeps
            float32 as it is, also beyond 1.

    Raises:
        ValueError: for an unknown end of name, nothing to write, a rate, subtype or number of channels that such a file
            cannot have, or samples that are not finite or beyond 1, which would be clipped.
        OSError: the disk refused.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_audio(f"{folder}/a.flac", torch.tensor([0.5, -1.0]), 16000)
    ...     read_audio(f"{folder}/a.flac")
    tensor([ 0.5000, -1.0000])
    """
    name = os.fspath(path)
    suffix = Path(name).suffix.lower()
    if suffix not in _SUBTYPES:
        raise ValueError(
            f"{name}: audio is written as {quoted(_SUBTYPES)}, by the end of the name, and this is {suffix!r}"
        )
    _check_rate("sample_rate", sample_rate)
    if not isinstance(samples, Tensor) or samples.is_complex():
        kind = samples.dtype if isinstance(samples, Tensor) else type(samples).__name__
        raise ValueError(
            f"{name}: the samples are {kind}; give a tensor of real numbers, [time] or [channel, time]"
        )
    if samples.dim() not in (1, 2) or not samples.numel():
        raise ValueError(
            f"{name}: the samples have the shape {tuple(samples.shape)}; give [time] or [channel, time], not empty"
        )
    values = samples.detach().to("cpu", torch.float32).numpy()
    subtype = subtype or _SUBTYPES[suffix]
    peak = float(np.abs(values).max())
    if not math.isfinite(peak):
        raise ValueError(f"{name}: there are samples that are no finite numbers")
    if peak > 1 and subtype not in ("FLOAT", "DOUBLE"):
        raise ValueError(
            f"{name}: the samples reach {peak:g}, and what is beyond 1 would be clipped. Divide them by their peak, or "
            "write a wav with subtype='FLOAT'"
        )
    if subtype == "PCM_16":
        values = np.rint(values * 32768).clip(-32768, 32767).astype(np.int16)
    values = values.T  # [time] or [time, channel]
    channels = 1 if values.ndim == 1 else values.shape[1]
    with io.BytesIO() as memory:
        try:
            file = soundfile.SoundFile(
                memory, "w", int(sample_rate), channels, subtype=subtype, format=suffix[1:]
            )
        except (soundfile.LibsndfileError, ValueError) as error:
            told = getattr(error, "error_string", error)
            raise ValueError(
                f"{name}: there is no {suffix[1:]} of {counted(channels, 'channel')} with subtype={subtype!r} at "
                f"{sample_rate} Hz: {told}"
            ) from error
        with file:
            for first in range(0, len(values), _WRITTEN_AT_ONCE):
                file.write(np.ascontiguousarray(values[first : first + _WRITTEN_AT_ONCE]))
        write_atomic(name, memory.getvalue())


def resample(samples: Tensor, from_rate: int, to_rate: int) -> Tensor:
    """The same sound at another rate, by torchaudio's windowed sinc.

    Args:
        samples: [..., time].
        from_rate: the rate it has, in Hz.
        to_rate: the rate it gets, in Hz.

    Returns:
        [..., ceil(time · to_rate / from_rate)], of the same type on the same device.

    Raises:
        ValueError: for samples that are no floating-point numbers, or rates that are no positive whole ones.

    >>> resample(torch.ones(2, 100), 16000, 8000).shape
    torch.Size([2, 50])
    """
    return _resampled(samples, from_rate, to_rate)


def _resampled(samples: Tensor, from_rate: int, to_rate: int) -> Tensor:
    _check_rate("from_rate", from_rate)
    _check_rate("to_rate", to_rate)
    if not samples.is_floating_point():
        raise ValueError(f"the samples are of the type {samples.dtype}; give floating point, from -1 to 1")
    if not samples.numel():
        return samples.new_zeros(*samples.shape[:-1], -(-samples.shape[-1] * int(to_rate) // int(from_rate)))
    kind = torch.promote_types(samples.dtype, torch.float32)  # the kernel is in this: not in 16 bits
    player = _resampler(int(from_rate), int(to_rate), str(samples.device), kind)
    resampled: Tensor = player(samples.to(kind))
    return resampled.to(samples.dtype)


@lru_cache(maxsize=16)
def _resampler(from_rate: int, to_rate: int, device: str, kind: torch.dtype) -> Any:
    return Resample(from_rate, to_rate, dtype=kind if kind is torch.float64 else None).to(device)


# ---- reading


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[tuple[str, Any]]:
    """The name and the open file; it has a sample, and does not end before its header says."""
    name = os.fspath(path)
    descriptor = os.open(name, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        size = os.fstat(descriptor).st_size
        header = _WavHeader.read(descriptor)
        if header is not None and header.end > size:
            raise AudioError(
                name, "truncated", f"its header speaks of {header.end} bytes at least, and {size} are there"
            )
        if header is not None and header.is_plain:
            file: Any = _PlainWav(descriptor, header)
        else:
            file = _sound_file(name, descriptor, size)
        with file:
            if file.format == "OGG" and not _has_last_page(descriptor, size):
                raise AudioError(name, "truncated", "its last page is missing")
            if not file.frames:
                raise AudioError(name, "empty", "there is not a sample in it")
            if file.frames > _ENDLESS:
                raise AudioError(
                    name, "corrupt", "it does not say how many samples it has; decode and write it anew"
                )
            yield name, file
    finally:
        os.close(descriptor)


def _sound_file(name: str, descriptor: int, size: int) -> Any:
    try:
        return soundfile.SoundFile(descriptor, closefd=False)
    except soundfile.LibsndfileError as error:
        if not size:
            raise AudioError(name, "empty", "there is nothing in it") from error
        raise AudioError(name, "corrupt", f"it cannot be read as audio: {error.error_string}") from error


class _WavHeader(NamedTuple):
    """What stands before the samples of a wav. https://en.wikipedia.org/wiki/WAV."""

    form: bytes  # the chunk "fmt ", without its head
    first: int  # where the samples begin
    length: int  # bytes of samples

    @property
    def end(self) -> int:
        return self.first + self.length

    @property
    def is_plain(self) -> bool:
        """16 bits, as nearly all speech is."""
        kind, channels, rate, _, align, bits = struct.unpack("<HHIIHH", self.form)
        told = kind == 1 and bits == 16 and align == 2 * channels > 0 and rate > 0
        return told and self.length < _PLAIN_BYTES

    @staticmethod
    def read(descriptor: int) -> _WavHeader | None:
        """None for what is no wav, or does not say where it ends; libsndfile is to judge that."""
        head = os.pread(descriptor, 256, 0)
        if head[:4] not in (b"RIFF", b"RF64") or head[8:12] != b"WAVE":
            return None
        place, form, wide = 12, b"", None
        while True:
            chunk = head[place : place + 24]
            if len(chunk) < 24:
                chunk = os.pread(descriptor, 24, place)
                if len(chunk) < 8:
                    return None
            kind, length = chunk[:4], int.from_bytes(chunk[4:8], "little")
            if kind == b"fmt ":
                form = chunk[8:]
            elif kind == b"ds64":  # of a file that may be longer than 4 GB: there the length is
                wide = int.from_bytes(chunk[16:24], "little")
            elif kind == b"data":
                if wide is not None and length == 0xFFFFFFFF:
                    return _WavHeader(form, place + 8, wide) if len(form) == 16 else None
                return _WavHeader(form, place + 8, length) if length < _UNSAID and len(form) == 16 else None
            place += 8 + length + length % 2


class _PlainWav:
    """As much of a `soundfile.SoundFile` as is needed, for 16 bits: in a third of the time."""

    format, subtype = "WAV", "PCM_16"

    def __init__(self, descriptor: int, header: _WavHeader) -> None:
        self.descriptor = descriptor
        self.channels, self.samplerate = struct.unpack_from("<HI", header.form, 2)
        self.frames = header.length // (2 * self.channels)
        self._place = header.first

    def seek(self, frames: int) -> None:
        self._place += frames * 2 * self.channels

    def read(self, frames: int, dtype: str) -> Any:
        data = os.pread(self.descriptor, frames * 2 * self.channels, self._place)
        samples = np.frombuffer(data, "<i2").astype(dtype)
        samples *= 1 / 32768
        return samples if self.channels == 1 else samples.reshape(-1, self.channels)

    def __enter__(self) -> _PlainWav:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _has_last_page(descriptor: int, size: int) -> bool:
    """Whether an ogg ends with a whole page that says that it is the last (RFC 3533)."""
    tail = os.pread(descriptor, _OGG_PAGE, max(0, size - _OGG_PAGE))
    page = tail[tail.rfind(b"OggS") :]
    if len(page) < 28 or not page[5] & 4:
        return False
    lacing = page[27 : 27 + page[26]]
    return len(page) >= 27 + len(lacing) + sum(lacing)


def _segment(name: str, file: Any, start: float, stop: float | None) -> tuple[int, int]:
    """The first sample and how many there are."""
    if not start and stop is None:
        return 0, file.frames
    rate, total = file.samplerate, file.frames
    first = seconds_to_samples(start, rate)
    last = total if stop is None else seconds_to_samples(stop, rate)
    if last <= first and stop is not None:
        raise ValueError(f"{name}: a segment from {start!r} to {stop!r} s has no length")
    if first >= total or last > total + ROUNDING_SECONDS * rate:
        end = "its end" if stop is None else f"{stop:g} s"
        raise AudioError(
            name,
            "segment",
            f"the segment from {start:g} s to {end} is not in it: it has {samples_to_seconds(total, rate):g} s "
            f"({counted(total, 'sample')} at {rate} Hz)",
        )
    return first, min(last, total) - first


def _decoded(name: str, file: Any, first: int, count: int) -> Any:
    try:
        if first:
            file.seek(first)
        samples = file.read(count, dtype="float32")
    except soundfile.LibsndfileError as error:
        raise AudioError(name, "corrupt", f"its data cannot be decoded: {error.error_string}") from error
    if len(samples) < count:
        raise AudioError(
            name,
            "truncated",
            f"samples {first} to {first + count} were to be read, and {len(samples)} of these {count} could be decoded",
        )
    if file.subtype in ("FLOAT", "DOUBLE") and not np.isfinite(samples).all():
        raise AudioError(name, "corrupt", "there are samples in it that are no finite numbers")
    return samples


def _one_channel(name: str, samples: Any, channel: int | str | None) -> Any:
    """[time] of [time, channel]."""
    number = samples.shape[1]
    if channel == "mix":
        return samples.mean(axis=1)
    if channel is None:
        raise AudioError(
            name,
            "channels",
            f"it has {number} channels, and one is needed. Say which (channel=0), or take their mean (channel='mix')",
        )
    if channel >= number:
        raise AudioError(name, "channels", f"channel {channel} is asked for, and it has {number}, from 0")
    return np.ascontiguousarray(samples[:, channel])


def _check_wanted(sample_rate: int | None, channel: int | str | None) -> None:
    if sample_rate is not None:
        _check_rate("sample_rate", sample_rate)
    whole = isinstance(channel, int) and not isinstance(channel, bool) and channel >= 0
    if not (channel is None or channel == "mix" or whole):
        raise ValueError(f"channel={channel!r}: give a number from 0, 'mix' or None")


def _check_rate(name: str, rate: Any) -> None:
    number = isinstance(rate, (int, float, np.integer)) and not isinstance(rate, bool)
    if not number or rate < 1 or not float(rate).is_integer():
        raise ValueError(f"{name}={rate!r}: give a number of samples a second, a whole one such as 16000")
