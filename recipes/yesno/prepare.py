"""Get the 60 recordings of YesNo ready: find or download them, check them, split them, and cut out single words.

Each recording is eight words, "yes" or "no", by one speaker; its name says which: 1 is yes, 0 is no. The first 30 by
name are for training, the last 30 for testing, so all of the first begin with "no" and 29 of the last with "yes". A
model that hears whole recordings can learn where in them which word is likely. That is why the words are cut apart
at their pauses: training recordings are put together from them, in any order (`ShuffledWords`).
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from brainlib.audio import read_audio

SAMPLE_RATE = 8000
WORDS = {"0": "no", "1": "yes"}
NUM_WORDS = 8  # in a recording
NUM_RECORDINGS = 60
NUM_TRAIN = 30  # the first by name; of these every sixth is kept for validation

ADDRESS = "https://www.openslr.org/resources/1/waves_yesno.tar.gz"
ARCHIVE_SHA256 = "c3f49e0cca421f96b75b41640749167b52118f232498667ca7a5f9416aef8e73"
# Of the samples, whatever the files are packed in: names and 16-bit samples of all recordings, in the order of names.
CONTENT_SHA256 = "67a1424e4a95b35be6b9e092f93aa521b71fee2b49b032479b5c4e66e0106198"
DOWNLOAD_TIMEOUT_SECONDS = 60

FRAME, HOP = 200, 80  # samples: levels over 25 ms, each 10 ms
SMOOTH, SHORTEST_PAUSE, SHORTEST_WORD = 9, 8, 15  # frames
LEVELS = range(-60, -15)  # dB; each is tried as the border between word and pause
MOST_UNEVEN = 2.0  # the longest word over the shortest; beyond, the cut is not trusted

Rows = dict[str, dict[str, Any]]


def prepare_yesno(data_folder: str | os.PathLike[str] | None) -> dict[str, Rows]:
    """The checked recordings as train, valid and test: from ids to path, words and duration.

    Args:
        data_folder: where the recordings are, as .wav or .flac, themselves or in ``waves_yesno`` or ``audio``. What is
            not there is downloaded into it.

    Raises:
        ValueError: there is no folder, nothing could be downloaded, or the recordings are not those of YesNo.
    """
    if data_folder is None:
        raise ValueError("YesNo needs a folder. Give --data_folder DIR; what is missing there is downloaded.")
    folder = Path(data_folder)
    paths = _find(folder)
    if not paths:
        _download(folder)
        paths = _find(folder)
    waves = {name: read_audio(path, sample_rate=SAMPLE_RATE) for name, path in sorted(paths.items())}
    check_content(waves, folder)
    rows: Rows = {
        name: {
            "path": str(paths[name]),
            "words": [WORDS[digit] for digit in name.split("_")],
            "duration": len(wave) / SAMPLE_RATE,
        }
        for name, wave in waves.items()
    }
    names = list(rows)
    valid = names[:NUM_TRAIN:6]
    train = [name for name in names[:NUM_TRAIN] if name not in valid]
    return {
        split: {name: rows[name] for name in chosen}
        for split, chosen in (("train", train), ("valid", valid), ("test", names[NUM_TRAIN:]))
    }


def _find(folder: Path) -> dict[str, Path]:
    for place in (folder, folder / "waves_yesno", folder / "audio"):
        found = {
            path.stem: path
            for ending in ("wav", "flac")
            for path in place.glob(f"[01]_[01]_[01]_[01]_[01]_[01]_[01]_[01].{ending}")
        }
        if found:
            return found
    return {}


def check_content(waves: Mapping[str, Tensor], folder: Path) -> None:
    """Stop on other recordings than those that the results are of.

    Raises:
        ValueError: it says what is missing, or that the sum differs.
    """
    if len(waves) != NUM_RECORDINGS:
        raise ValueError(
            f"YesNo has {NUM_RECORDINGS} recordings, and {folder} has {len(waves)}."
            " Delete them, and the next start downloads all."
        )
    digest = hashlib.sha256()
    for name in sorted(waves):
        digest.update(name.encode())
        digest.update((waves[name] * 32768).round().to(torch.int16).numpy().tobytes())
    if digest.hexdigest() != CONTENT_SHA256:
        raise ValueError(
            f"The samples in {folder} are not those of YesNo: their SHA-256 is {digest.hexdigest()}, not"
            f" {CONTENT_SHA256}. Delete the recordings, and the next start downloads them."
        )


def _download(folder: Path, address: str = ADDRESS) -> None:
    """Fetch the archive, check it, and unpack the recordings into the folder."""
    try:
        with urllib.request.urlopen(address, timeout=DOWNLOAD_TIMEOUT_SECONDS) as response:
            archive = response.read()
    except (urllib.error.URLError, OSError) as failure:
        raise ValueError(
            f"There are no recordings in {folder}, and {address} gave none: {failure}. Get waves_yesno.tar.gz from"
            " elsewhere and unpack it there."
        ) from failure
    found = hashlib.sha256(archive).hexdigest()
    if found != ARCHIVE_SHA256:
        raise ValueError(
            f"{address} gave something else: its SHA-256 is {found}, not {ARCHIVE_SHA256}. Nothing was kept."
        )
    unpack(archive, folder)


def unpack(archive: bytes, folder: Path) -> None:
    """Put the recordings of the archive into ``folder / "waves_yesno"``, which is there whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        packed = Path(place, "archive.tar.gz")
        packed.write_bytes(archive)
        with tarfile.open(packed) as tar:
            tar.extractall(place, filter="data")
        os.replace(Path(place, "waves_yesno"), folder / "waves_yesno")


# ------------------------------------------------------------------------------------------------------------- words


def cut_words(wave: Tensor, num_words: int = NUM_WORDS) -> list[Tensor] | None:
    """The words of a recording, each with half of the pauses beside it; None where they cannot be told apart.

    A word is where the level stays above a border. All borders are tried, and of those that give the right number of
    words that one is taken whose words are most alike in length.

    Args:
        wave: [time].
        num_words: how many there are.
    """
    powers = wave.unfold(0, FRAME, HOP).square().mean(1)
    smoothed = torch.nn.functional.avg_pool1d(powers[None], SMOOTH, 1, SMOOTH // 2)[0]
    levels = 10 * torch.log10(smoothed + 1e-7)
    best, found = MOST_UNEVEN, None
    for border in LEVELS:
        runs = _runs((levels > border).tolist())
        if len(runs) == num_words:
            lengths = [end - begin for begin, end in runs]
            uneven = max(lengths) / min(lengths)
            if uneven <= best:
                best, found = uneven, runs
    if found is None:
        return None
    cuts = [(end + begin) // 2 * HOP for (_, end), (begin, _) in pairwise(found)]
    return [wave[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(wave)], strict=True)]


def _runs(loud: list[bool]) -> list[tuple[int, int]]:
    """Where it is loud, from and to; short pauses do not part a word, and short noises are none."""
    runs: list[tuple[int, int]] = []
    for frame, is_loud in enumerate(loud):
        if not is_loud:
            continue
        if runs and frame - runs[-1][1] < SHORTEST_PAUSE:
            runs[-1] = (runs[-1][0], frame + 1)
        else:
            runs.append((frame, frame + 1))
    return [(begin, end) for begin, end in runs if end - begin >= SHORTEST_WORD]


class ShuffledWords:
    """Recordings that never were: a few words drawn from all training recordings, in any order.

    A function for a data set, from an id to a signal and its words. What it draws comes from torch's generator, so that
    it is a function of the seed and of the item's place in the run.

    Args:
        rows: the training recordings.
        most_words: in a recording; each number from 1 on is as likely. Few are better: with one word CTC has little to
            choose where it is, and with eight some runs never find out.
    """

    def __init__(self, rows: Rows, most_words: int = 3) -> None:
        self.most_words = most_words
        self.words: dict[str, list[Tensor]] = {word: [] for word in WORDS.values()}
        self.not_cut: list[str] = []
        for name, row in rows.items():
            segments = cut_words(read_audio(row["path"], sample_rate=SAMPLE_RATE))
            if segments is None:
                self.not_cut.append(name)
                continue
            for word, segment in zip(row["words"], segments, strict=True):
                self.words[word].append(segment)

    def __call__(self, name: str) -> tuple[Tensor, list[str]]:
        """A signal, [time], and its words; the id says nothing but that another one is wanted."""
        number = int(torch.randint(1, self.most_words + 1, ()))
        words = [list(self.words)[chosen] for chosen in torch.randint(len(self.words), (number,)).tolist()]
        signal = [self.words[word][int(torch.randint(len(self.words[word]), ()))] for word in words]
        return torch.cat(signal), words

    def __str__(self) -> str:
        counts = ", ".join(f"{len(segments)} {word}" for word, segments in self.words.items())
        left_out = f"; not cut: {', '.join(self.not_cut)}" if self.not_cut else ""
        return f"words to train on: {counts}{left_out}"


def describe(splits: dict[str, Rows]) -> str:
    """One line a split for the log."""
    lines = []
    for name, rows in splits.items():
        seconds = sum(row["duration"] for row in rows.values())
        begins = sum(row["words"][0] == "yes" for row in rows.values())
        lines.append(
            f"{name:<5} {len(rows):>3} recordings, {seconds:5.1f} s, {begins} of them begin with yes"
        )
    return "\n".join(lines)
