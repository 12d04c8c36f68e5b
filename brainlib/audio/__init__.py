"""Audio: files, features, normalization, augmentation. torchaudio and soundfile are used in this room alone.

Imported when it is asked for, ``from brainlib.audio import read_audio, Fbank``; ``import brainlib`` leaves it alone.
"""

from brainlib.audio.augmentation import Augmentation
from brainlib.audio.errors import AudioError
from brainlib.audio.features import MFCC, Deltas, Fbank
from brainlib.audio.files import (
    AudioInfo,
    AudioReader,
    audio_info,
    find_bad_audio,
    read_audio,
    resample,
    write_audio,
)
from brainlib.audio.normalization import InputNormalization
from brainlib.audio.spectrogram import VTLP, SpecAugment
from brainlib.audio.waveform import (
    AddNoise,
    AddReverb,
    DropChunk,
    DropFreq,
    SpeedPerturb,
    TimeShift,
    exponential_response,
)
from brainlib.common.units import (
    absolute_lengths,
    frames_to_seconds,
    length_mask,
    relative_lengths,
    samples_to_frames,
    samples_to_seconds,
    seconds_to_samples,
)

__all__ = [
    "MFCC",
    "VTLP",
    "AddNoise",
    "AddReverb",
    "AudioError",
    "AudioInfo",
    "AudioReader",
    "Augmentation",
    "Deltas",
    "DropChunk",
    "DropFreq",
    "Fbank",
    "InputNormalization",
    "SpecAugment",
    "SpeedPerturb",
    "TimeShift",
    "absolute_lengths",
    "audio_info",
    "exponential_response",
    "find_bad_audio",
    "frames_to_seconds",
    "length_mask",
    "read_audio",
    "relative_lengths",
    "resample",
    "samples_to_frames",
    "samples_to_seconds",
    "seconds_to_samples",
    "write_audio",
]
