"""Real files of every kind, whole, cut off, spoiled and empty."""

from __future__ import annotations

import math
import pickle
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import torchaudio
from torch import Tensor

from brainlib.audio import (
    AudioError,
    AudioReader,
    audio_info,
    find_bad_audio,
    read_audio,
    resample,
    write_audio,
)

RATE = 8000


def speechlike(num_samples: int = 8000) -> Tensor:
    """Of 16 bits, so that they can be written and read without a loss."""
    time = torch.arange(num_samples) / RATE
    wave = 0.3 * torch.sin(2 * torch.pi * 440 * time) + 0.05 * torch.randn(num_samples)
    return (wave * 32768).round() / 32768


@pytest.fixture
def wave() -> Tensor:
    return speechlike()


# ---- what is well


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_what_is_written_comes_back_with_the_same_bits(tmp_path: Path, wave: Tensor, suffix: str) -> None:
    wave[:2] = torch.tensor([1.0 - 1 / 32768, -1.0])
    path = tmp_path / f"a.{suffix}"
    write_audio(path, wave, RATE)
    back = read_audio(path)
    assert back.dtype == torch.float32 and torch.equal(back, wave)
    again = tmp_path / f"b.{suffix}"
    write_audio(again, back, RATE)
    assert again.read_bytes() == path.read_bytes()
    info = audio_info(path)
    assert (info.sample_rate, info.num_samples, info.num_channels, info.seconds) == (RATE, 8000, 1, 1.0)


def test_an_ogg_has_the_same_length_and_nearly_the_same_sound(tmp_path: Path, wave: Tensor) -> None:
    write_audio(tmp_path / "a.ogg", wave, RATE)
    back = read_audio(tmp_path / "a.ogg")
    assert len(back) == len(wave)
    assert torch.corrcoef(torch.stack([back, wave]))[0, 1] > 0.98


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg"])
def test_minutes_are_written_as_well(tmp_path: Path, suffix: str) -> None:
    """libsndfile dies of an ogg that it is given in one piece."""
    waves = 0.1 * torch.randn(2, 3_000_000)
    write_audio(tmp_path / f"a.{suffix}", waves, RATE)
    assert audio_info(tmp_path / f"a.{suffix}").seconds == 375.0
    assert (
        torch.corrcoef(torch.stack([read_audio(tmp_path / f"a.{suffix}", channel=1), waves[1]]))[0, 1] > 0.7
    )


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg"])
def test_a_segment_is_a_part_of_the_whole(tmp_path: Path, wave: Tensor, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    write_audio(path, wave, RATE)
    whole = read_audio(path)
    assert torch.equal(read_audio(path, 0.25, 0.5), whole[2000:4000])
    assert torch.equal(read_audio(path, 0.9), whole[7200:])
    assert torch.equal(read_audio(path, stop=0.1), whole[:800])
    assert torch.equal(read_audio(path, 0.5, 1.005), whole[4000:])  # manifests round


def test_what_libsndfile_reads_is_what_we_read(data_dir: Callable[[str], Path]) -> None:
    paths = sorted((data_dir("fsdd") / "recordings").glob("*.wav"))[::37]
    assert len(paths) > 50 and not find_bad_audio(paths, sample_rate=RATE)
    for path in paths:
        expected, rate = soundfile.read(path, dtype="float32")
        assert rate == RATE and torch.equal(read_audio(path), torch.from_numpy(expected))


def test_a_wav_of_16_bits_is_read_as_libsndfile_reads_it(tmp_path: Path) -> None:
    """It is read without libsndfile; every value there is, and every way of writing one."""
    path = tmp_path / "a.wav"
    everything = np.arange(-32768, 32768, dtype=np.int16)
    for samples, rate, form in (
        (everything, RATE, "WAV"),
        (everything.reshape(-1, 2), 44100, "WAV"),
        (everything.reshape(-1, 8), 16000, "WAVEX"),
        (everything[:1], RATE, "RF64"),
        (everything[:7], RATE, "W64"),
        (everything[:7], RATE, "AIFF"),
    ):
        soundfile.write(path, samples, rate, format=form, subtype="PCM_16")
        expected, _ = soundfile.read(path, dtype="float32", always_2d=True)
        for channel in range(expected.shape[1]):
            read = read_audio(path, channel=channel)
            assert torch.equal(read, torch.from_numpy(expected[:, channel].copy())), (form, channel)
        info, theirs = audio_info(path), soundfile.info(str(path))
        assert (info.sample_rate, info.num_samples) == (theirs.samplerate, theirs.frames)
        assert (info.num_channels, info.subtype) == (theirs.channels, theirs.subtype)
    for subtype in ("PCM_U8", "PCM_24", "PCM_32", "FLOAT", "ULAW", "IMA_ADPCM"):
        soundfile.write(path, np.sin(np.arange(800) / 10) / 2, RATE, subtype=subtype)
        assert torch.equal(read_audio(path), torch.from_numpy(soundfile.read(path, dtype="float32")[0])), (
            subtype
        )


def test_floats_beyond_one_and_24_bits(tmp_path: Path) -> None:
    loud = torch.tensor([3.5, -2.25, 0.1])
    write_audio(tmp_path / "a.wav", loud, RATE, subtype="FLOAT")
    assert torch.equal(read_audio(tmp_path / "a.wav"), loud)
    write_audio(tmp_path / "b.wav", torch.tensor([0.1, -0.2]), RATE, subtype="PCM_24")
    assert torch.allclose(read_audio(tmp_path / "b.wav"), torch.tensor([0.1, -0.2]), atol=2**-22)


def wav_bytes(samples: Any, *, size: int | None = None, before: bytes = b"", behind: bytes = b"") -> bytes:
    """A wav of 16 bits by hand, whose header may say another size."""
    data = np.asarray(samples, dtype="<i2").tobytes()
    chunks = b"fmt " + struct.pack("<IHHIIHH", 16, 1, 1, RATE, 2 * RATE, 2, 16) + before
    chunks += b"data" + struct.pack("<I", len(data) if size is None else size) + data + behind
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


@pytest.mark.parametrize(
    "parts",
    [
        {"size": 0xFFFFFFFF},  # written to a pipe, by ffmpeg
        {"size": 0x7FFFF000},
        {"before": b"LIST" + struct.pack("<I", 1001) + bytes(1002)},  # an odd size is padded
        {"behind": b"LIST" + struct.pack("<I", 4) + b"hey!"},
        {"behind": b"junk"},
    ],
    ids=["size unknown", "size unknown to another", "long header", "chunk behind", "junk behind"],
)
def test_unusual_wavs_are_read(tmp_path: Path, parts: dict[str, Any]) -> None:
    (tmp_path / "a.wav").write_bytes(wav_bytes([1, -2, 3], **parts))
    assert torch.equal(read_audio(tmp_path / "a.wav")[:3] * 32768, torch.tensor([1.0, -2.0, 3.0]))


# ---- rates and channels


def test_another_rate_is_an_error_that_names_both_or_resampled(tmp_path: Path, wave: Tensor) -> None:
    path = tmp_path / "a.wav"
    write_audio(path, wave, RATE)
    with pytest.raises(
        AudioError, match=r"a\.wav: it has 8000 samples a second, and 16000 are needed"
    ) as caught:
        read_audio(path, sample_rate=16000)
    assert caught.value.kind == "rate" and caught.value.path == str(path)
    higher = read_audio(path, sample_rate=16000, resample=True)
    assert torch.allclose(higher, torchaudio.functional.resample(wave, RATE, 16000), atol=1e-5)
    assert torch.equal(higher, resample(wave, RATE, 16000))
    # times are those of the file
    assert torch.equal(
        read_audio(path, 0.5, sample_rate=16000, resample=True), resample(wave[4000:], RATE, 16000)
    )
    assert torch.equal(read_audio(path, sample_rate=RATE, resample=True), wave)


def test_stereo_is_an_error_or_mixed_or_one_of_the_two(tmp_path: Path, wave: Tensor) -> None:
    path = tmp_path / "a.flac"
    write_audio(path, torch.stack([wave, -0.5 * wave]), RATE)
    assert audio_info(path).num_channels == 2
    with pytest.raises(
        AudioError, match=r"a\.flac: it has 2 channels, and one is needed.*channel='mix'"
    ) as caught:
        read_audio(path)
    assert caught.value.kind == "channels"
    assert torch.allclose(read_audio(path, channel="mix"), wave / 4, atol=1e-4)
    assert torch.allclose(read_audio(path, 0.25, channel=1), -0.5 * wave[2000:], atol=1e-4)
    with pytest.raises(AudioError, match="channel 2 is asked for, and it has 2, from 0"):
        read_audio(path, channel=2)
    write_audio(tmp_path / "mono.flac", wave, RATE)
    assert torch.equal(read_audio(tmp_path / "mono.flac", channel="mix"), wave)
    with pytest.raises(AudioError, match="channel 1 is asked for, and it has one, 0"):
        read_audio(tmp_path / "mono.flac", channel=1)
    with pytest.raises(ValueError, match="channel='left': give a number from 0, 'mix' or None"):
        AudioReader(channel="left")


def test_a_segment_that_is_not_there(tmp_path: Path, wave: Tensor) -> None:
    path = tmp_path / "a.wav"
    write_audio(path, wave, RATE)
    with pytest.raises(
        AudioError, match=r"from 0.5 s to 2 s is not in it: it has 1 s \(8000 samples at 8000 Hz\)"
    ):
        read_audio(path, 0.5, 2.0)
    with pytest.raises(AudioError, match="from 1 s to its end is not in it"):
        read_audio(path, 1.0)
    with pytest.raises(ValueError, match=r"a segment from 0.5 to 0.5 s has no length"):
        read_audio(path, 0.5, 0.5)
    with pytest.raises(ValueError, match="a time of -1 seconds"):
        read_audio(path, -1)


# ---- what is spoiled


def spoiled(folder: Path, name: str) -> Path:
    """A file with one defect."""
    good = folder / "good.flac"
    write_audio(good, speechlike(), RATE)
    write_audio(folder / "good.wav", speechlike(), RATE)
    write_audio(folder / "good.ogg", speechlike(), RATE)
    flac = good.read_bytes()
    kind, suffix = name.split(".")
    path = folder / name
    if kind == "nothing":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("<html>404 not found</html>")
    elif kind == "no-sample":
        soundfile.write(path, np.zeros(0), RATE)
    elif kind == "cut":
        data = (folder / f"good.{suffix}").read_bytes()
        path.write_bytes(data[: len(data) // 2])
    elif kind == "last-byte":
        path.write_bytes((folder / f"good.{suffix}").read_bytes()[:-1])
    elif kind == "header-only":
        path.write_bytes(flac[:100])
    elif kind == "garbled":
        path.write_bytes(flac[:200] + random.randbytes(len(flac) - 200))
    elif kind == "zeros":
        path.write_bytes(flac[:4000] + bytes(2000) + flac[6000:])
    elif kind == "nan":
        soundfile.write(path, np.array([0.0, np.nan]), RATE, subtype="FLOAT")
    return path


DEFECTS = {
    "nothing.wav": "empty",
    "nothing.flac": "empty",
    "text.wav": "corrupt",
    "no-sample.wav": "empty",
    "no-sample.flac": "empty",
    "cut.wav": "truncated",
    "cut.flac": "corrupt",
    "cut.ogg": "truncated",
    "last-byte.wav": "truncated",
    "last-byte.flac": "corrupt",
    "last-byte.ogg": "truncated",
    "header-only.flac": "corrupt",
    "garbled.flac": "corrupt",
    "zeros.flac": "corrupt",
    "nan.wav": "corrupt",
}


@pytest.mark.parametrize(("name", "kind"), DEFECTS.items())
def test_a_spoiled_file_is_an_error_that_names_it(tmp_path: Path, name: str, kind: str) -> None:
    path = spoiled(tmp_path, name)
    with pytest.raises(AudioError) as caught:
        read_audio(path)
    assert caught.value.kind == kind
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("name", ["garbled.flac", "zeros.flac"])
def test_the_header_of_such_a_flac_reads_well(tmp_path: Path, name: str) -> None:
    path = spoiled(tmp_path, name)
    assert audio_info(path).num_samples == 8000
    with pytest.raises(AudioError, match="its data cannot be decoded"):
        read_audio(path)


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg"])
def test_wherever_a_file_is_cut_it_is_noticed(tmp_path: Path, wave: Tensor, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    write_audio(path, wave, RATE)
    data = path.read_bytes()
    for size in sorted(random.sample(range(len(data)), 60)):
        path.write_bytes(data[:size])
        with pytest.raises(AudioError):
            read_audio(path)


def test_wherever_a_flac_is_spoiled_it_is_noticed(tmp_path: Path, wave: Tensor) -> None:
    path = tmp_path / "a.flac"
    write_audio(path, wave, RATE)
    data = path.read_bytes()
    for place in random.sample(range(200, len(data)), 60):
        path.write_bytes(data[:place] + bytes([data[place] ^ random.randrange(1, 256)]) + data[place + 1 :])
        with pytest.raises(AudioError):
            read_audio(path)


# ---- skipped, and counted


class Corpus(torch.utils.data.Dataset[Any]):
    def __init__(self, paths: list[Path], reader: AudioReader) -> None:
        self.paths = paths
        self.reader = reader

    def __getitem__(self, place: int) -> Any:
        return self.reader(self.paths[place])

    def __len__(self) -> int:
        return len(self.paths)


def without_missing(items: list[Any]) -> list[int]:
    return [len(item) for item in items if item is not None]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_bad_files_alone_in_a_batch_and_among_good_ones_are_skipped(tmp_path: Path, num_workers: int) -> None:
    bad = [spoiled(tmp_path, name) for name in ("no-sample.wav", "cut.wav", "garbled.flac", "nothing.ogg")]
    good = tmp_path / "good.wav"
    paths = [
        good,
        bad[0],
        good,
        bad[1],
        bad[2],
        good,
        bad[3],
    ]  # among good ones, alone with each other, alone
    loader = torch.utils.data.DataLoader(
        Corpus(paths, AudioReader(RATE, bad_files="skip")),
        batch_size=3,
        collate_fn=without_missing,
        num_workers=num_workers,
    )
    assert list(loader) == [[8000, 8000], [8000], []]


def test_what_is_skipped_is_counted_and_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad, good = spoiled(tmp_path, "cut.wav"), tmp_path / "good.wav"
    reader = AudioReader(RATE, bad_files="skip")
    with caplog.at_level("WARNING", "brainlib"):
        assert [reader(path) is None for path in (good, bad, good, bad)] == [False, True, False, True]
    assert reader.num_read == 2 and list(reader.skipped) == [str(bad)]
    (line,) = caplog.messages
    assert line.startswith(f"skipped, number 1: {bad}: its header speaks of 16044 bytes at least")


def test_what_is_no_accident_of_one_file_is_never_skipped(tmp_path: Path, wave: Tensor) -> None:
    write_audio(tmp_path / "stereo.wav", torch.stack([wave, wave]), RATE)
    write_audio(tmp_path / "fast.wav", wave, 16000)
    write_audio(tmp_path / "short.wav", wave, RATE)
    reader = AudioReader(RATE, bad_files="skip")
    with pytest.raises(AudioError, match="2 channels"):
        reader(tmp_path / "stereo.wav")
    with pytest.raises(AudioError, match="16000 samples a second, and 8000 are needed"):
        reader(tmp_path / "fast.wav")
    with pytest.raises(AudioError, match="is not in it"):
        reader(tmp_path / "short.wav", 0.0, 5.0)
    with pytest.raises(FileNotFoundError, match="missing.wav"):
        reader(tmp_path / "missing.wav")
    with pytest.raises(ValueError, match="bad_files='ignore': give 'error' or 'skip'"):
        AudioReader(bad_files="ignore")
    with pytest.raises(ValueError, match="sample_rate=0: give a number of samples a second"):
        AudioReader(0)


def test_an_error_in_a_worker_names_the_file(tmp_path: Path) -> None:
    bad = spoiled(tmp_path, "garbled.flac")
    loader = torch.utils.data.DataLoader(Corpus([bad], AudioReader()), num_workers=1)
    batches = iter(loader)
    with pytest.raises(AudioError, match=r"garbled\.flac: its data cannot be decoded"):
        next(batches)
    assert list(batches) == []  # the worker goes
    error = pickle.loads(pickle.dumps(AudioError("a.wav", "empty", "there is nothing in it")))
    assert (error.path, error.kind, str(error)) == ("a.wav", "empty", "a.wav: there is nothing in it")


def test_a_corpus_is_looked_through_before_a_run(tmp_path: Path) -> None:
    paths = [spoiled(tmp_path, name) for name in DEFECTS] + [tmp_path / "good.wav", tmp_path / "good.ogg"]
    bad = find_bad_audio(paths, sample_rate=RATE)
    assert {Path(path).name: error.kind for path, error in bad.items()} == DEFECTS


def test_the_look_goes_on_after_a_file_that_is_not_there(tmp_path: Path, wave: Tensor) -> None:
    write_audio(tmp_path / "good.wav", wave, RATE)
    write_audio(tmp_path / "slow.wav", wave, RATE // 2)
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "dangling.wav").symlink_to(tmp_path / "nowhere.wav")
    names = (
        "gone.wav",
        "folder.wav",
        "good.wav",
        "dangling.wav",
        "good.wav/inside.wav",
        "slow.wav",
        "a" * 300,
    )
    bad = find_bad_audio([tmp_path / name for name in names], sample_rate=RATE)
    assert [(Path(path).relative_to(tmp_path).as_posix(), error.kind) for path, error in bad.items()] == [
        ("gone.wav", "missing"),
        ("folder.wav", "unreadable"),
        ("dangling.wav", "missing"),
        ("good.wav/inside.wav", "unreadable"),
        ("slow.wav", "rate"),
        ("a" * 300, "unreadable"),
    ]
    assert str(bad[str(tmp_path / "gone.wav")]) == f"{tmp_path}/gone.wav: there is no such file"
    assert "it cannot be read (Is a directory)" in str(bad[str(tmp_path / "folder.wav")])
    with pytest.raises(FileNotFoundError):  # a run is not to go on without it
        read_audio(tmp_path / "gone.wav")


# ---- writing


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path, wave: Tensor) -> None:
    path = tmp_path / "a.wav"
    write_audio(path, wave, RATE)
    for samples, told in (
        (wave * 5, "and what is beyond 1 would be clipped"),
        (torch.tensor([0.0, float("nan")]), "there are samples that are no finite numbers"),
        (torch.zeros(0), r"the samples have the shape \(0,\)"),
        (torch.zeros(1, 2, 3), r"give \[time\] or \[channel, time\]"),
    ):
        with pytest.raises(ValueError, match=told):
            write_audio(path, samples, RATE)
    with pytest.raises(ValueError, match=r"audio is written as '.wav', '.flac', '.ogg'.*this is '.mp3'"):
        write_audio(tmp_path / "a.mp3", wave, RATE)
    assert torch.equal(read_audio(path), wave)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.wav"]


def test_another_rate_for_samples_of_any_kind() -> None:
    wave = torch.sin(torch.arange(400, dtype=torch.float64) / 5)
    exact = resample(wave, 8000, 16000)
    assert exact.dtype == torch.float64 and exact.shape == (800,)
    for kind, near in ((torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
        made = resample(wave.to(kind), 8000, 16000)
        assert made.dtype == kind and (made.double() - exact).abs().max() < near
    assert resample(torch.zeros(2, 0), 8000, 16000).shape == (2, 0)
    with pytest.raises(ValueError, match="the samples are of the type torch.int16"):
        resample(torch.zeros(5, dtype=torch.int16), 8000, 16000)


@pytest.mark.parametrize("rate", [0, -8000, 44100.5, "8000", True, math.inf])
def test_a_rate_is_a_positive_whole_number(tmp_path: Path, rate: Any) -> None:
    write_audio(tmp_path / "a.wav", torch.zeros(5), 8000)
    for use in (
        lambda: read_audio(tmp_path / "a.wav", sample_rate=rate, resample=True),
        lambda: write_audio(tmp_path / "b.wav", torch.zeros(5), rate),
        lambda: resample(torch.zeros(5), 8000, rate),
    ):
        with pytest.raises(ValueError, match=re.escape(f"rate={rate!r}: give a number of samples a second")):
            use()
    assert not (tmp_path / "b.wav").exists()


@pytest.mark.parametrize(
    ("name", "samples", "rate", "subtype", "told"),
    [
        ("a.flac", torch.zeros(5), 8000, "FLOAT", "no flac of 1 channel with subtype='FLOAT' at 8000 Hz"),
        ("a.wav", torch.zeros(5), 8000, "NOPE", "no wav of 1 channel with subtype='NOPE' at 8000 Hz"),
        ("a.flac", torch.zeros(9, 5), 8000, None, "no flac of 9 channels with subtype='PCM_16' at 8000 Hz"),
        (
            "a.flac",
            torch.zeros(5),
            1_000_000,
            None,
            "no flac of 1 channel with subtype='PCM_16' at 1000000 Hz",
        ),
        ("a.wav", np.zeros(5), 8000, None, "the samples are ndarray; give a tensor of real numbers"),
        (
            "a.wav",
            torch.zeros(5, dtype=torch.complex64),
            8000,
            None,
            "the samples are torch.complex64; give a tensor",
        ),
    ],
)
def test_what_cannot_be_written_names_the_file(
    tmp_path: Path, name: str, samples: Any, rate: int, subtype: str | None, told: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path / name}: ")) as failure:
        write_audio(tmp_path / name, samples, rate, subtype)
    assert told in str(failure.value) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT"])
def test_a_wav_for_more_than_4_gb_that_was_cut_off(tmp_path: Path, subtype: str) -> None:
    path = tmp_path / "a.wav"
    wave = np.sin(np.arange(4000) / 9) / 2
    soundfile.write(path, wave, 8000, subtype=subtype, format="RF64")
    whole = path.read_bytes()
    assert whole[:4] == b"RF64"
    assert (read_audio(path) - torch.from_numpy(wave)).abs().max() < 1e-4
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(AudioError, match="its header speaks of") as failure:
        read_audio(path)
    assert failure.value.kind == "truncated"
