"""Get the Free Spoken Digit Dataset ready: download it, check it, split it, and write a manifest for each part.

3000 recordings, 8 kHz, mono: 6 speakers said each of 10 digits 50 times. The file's name says all of it:
``7_jackson_32.wav`` is the 7 of jackson, take 32. Two ways to split them:

- official: takes 0 to 4 of everybody are the test, as the authors want it;
- one speaker held out: all takes of that speaker are the test, and nothing of his is in train or valid.

Valid is a part of what is left: three takes of each speaker and digit, or all takes of one more speaker. What belongs
where depends on the names alone, not on the seed of a run.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import shutil
import tarfile
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

from brainlib.audio import audio_info

SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
NUM_DIGITS = 10
NUM_TAKES = 50
TEST_TAKES = range(5)
VALID_TAKES = range(5, 8)

COMMIT = "26eb9aaf76e81b692f806f9140c2d2777410d7a1"
ADDRESSES = (
    f"https://github.com/Jakobovski/free-spoken-digit-dataset/archive/{COMMIT}.tar.gz",
    f"https://codeload.github.com/Jakobovski/free-spoken-digit-dataset/tar.gz/{COMMIT}",
)
# Of the recordings and their names, as the shell has it: cd recordings; LC_ALL=C sha256sum *.wav | sha256sum
# An archive is packed anew now and then and has another sum; what is in it stays.
SHA256 = "1801eae019c063377d98f831d3f93574f259475df7332bb0e3d1b080fb5e6959"
DOWNLOAD_TIMEOUT_SECONDS = 60

_NAME = re.compile(r"(\d)_([a-z]+)_(\d+)\.wav")


def prepare_spoken_digits(
    data_folder: str | os.PathLike[str],
    manifest_folder: str | os.PathLike[str],
    hold_out: str | None = None,
    valid_speaker: str | None = None,
) -> str:
    """Write ``train.csv``, ``valid.csv`` and ``test.csv``; say in three lines what is in them.

    Args:
        data_folder: what holds the folder ``recordings``; where that is not there, it is downloaded (21 MB).
        manifest_folder: where the manifests go. Paths in them begin with ``$data_root``, for the folder to be moved.
        hold_out: the speaker who is the test; None: the official split.
        valid_speaker: the speaker who is valid; None: takes 5 to 7 of those who are trained on.

    Raises:
        ValueError: for a speaker who is not there, a folder with other recordings, or a download that failed.
    """
    for name, speaker in (("hold_out", hold_out), ("valid_speaker", valid_speaker)):
        if speaker is not None and speaker not in SPEAKERS:
            raise ValueError(f"{name} is {speaker!r}, and the speakers are {', '.join(SPEAKERS)}.")
    if hold_out is not None and hold_out == valid_speaker:
        raise ValueError(
            f"hold_out and valid_speaker are both {hold_out!r}: choices would be made on the test."
        )
    recordings = Path(data_folder) / "recordings"
    if not recordings.is_dir():
        download(recordings)
    check(recordings)

    parts: dict[str, list[dict[str, object]]] = {"train": [], "valid": [], "test": []}
    for path in sorted(recordings.glob("*.wav")):
        digit, speaker, take = read_name(path.name)
        parts[part_of(speaker, take, hold_out, valid_speaker)].append(
            {
                "ID": path.stem,
                "duration": round(audio_info(path).seconds, 6),
                "wav": f"$data_root/recordings/{path.name}",
                "digit": digit,
                "speaker": speaker,
                "take": take,
            }
        )
    folder = Path(manifest_folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in parts.items():
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    return "\n".join(_told(name, rows) for name, rows in parts.items())


def read_name(name: str) -> tuple[int, str, int]:
    """Digit, speaker and take of a file.

    >>> read_name("7_jackson_32.wav")
    (7, 'jackson', 32)
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} is no recording of this set: they are named like 7_jackson_32.wav.")
    return int(match[1]), match[2], int(match[3])


def part_of(speaker: str, take: int, hold_out: str | None, valid_speaker: str | None) -> str:
    """Which part a recording belongs to.

    >>> part_of("theo", 3, None, None), part_of("theo", 3, "theo", None), part_of("lucas", 3, "theo", None)
    ('test', 'test', 'train')
    """
    if speaker == hold_out or (hold_out is None and take in TEST_TAKES):
        return "test"
    if speaker == valid_speaker or (valid_speaker is None and take in VALID_TAKES):
        return "valid"
    return "train"


def _told(name: str, rows: list[dict[str, object]]) -> str:
    seconds = sum(float(str(row["duration"])) for row in rows)
    speakers = Counter(str(row["speaker"]) for row in rows)
    counts = " ".join(f"{speaker}:{count}" for speaker, count in sorted(speakers.items()))
    return f"{name:<5} {len(rows):>5} recordings, {seconds / 60:5.1f} min   {counts}"


# ---------------------------------------------------------------------------------------------- checking, downloading


def sum_of(contents: dict[str, bytes]) -> str:
    """The SHA-256 that `SHA256` is compared with, of files by their names."""
    lines = (f"{hashlib.sha256(contents[name]).hexdigest()}  {name}\n" for name in sorted(contents))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def check(recordings: Path) -> None:
    """Stop before anything trains on other recordings than those of the results.

    Raises:
        ValueError: it says how many there are, and what to do.
    """
    contents = {path.name: path.read_bytes() for path in recordings.glob("*.wav")}
    found = sum_of(contents)
    if found != SHA256:
        raise ValueError(
            f"{recordings} holds {len(contents)} recordings whose SHA-256 is {found}. The results are those of "
            f"{len(SPEAKERS) * NUM_DIGITS * NUM_TAKES} recordings, commit {COMMIT[:12]}, with {SHA256}. Move the "
            "folder away, and the next start downloads them."
        )


def download(recordings: Path) -> None:
    """Fetch the archive from the first address that has the right content; the folder appears whole or not at all."""
    failures = []
    for address in ADDRESSES:
        try:
            with urllib.request.urlopen(address, timeout=DOWNLOAD_TIMEOUT_SECONDS) as response:
                contents = unpack(response.read())
        except (urllib.error.URLError, OSError, tarfile.TarError, EOFError) as failure:
            failures.append(f"  {address}: {failure}")
            continue
        found = sum_of(contents)
        if found != SHA256:
            failures.append(f"  {address}: {len(contents)} recordings with SHA-256 {found}, not {SHA256}")
            continue
        beside = recordings.with_name(f".recordings.{os.getpid()}")
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        for name, content in contents.items():
            (beside / name).write_bytes(content)
        os.replace(beside, recordings)
        return
    raise ValueError(
        f"There is no folder {recordings}, and the recordings could not be downloaded:\n"
        + "\n".join(failures)
        + "\nGet them from elsewhere, put them there, or name the folder that holds them: --data_folder DIR."
    )


def unpack(archive: bytes) -> dict[str, bytes]:
    """The recordings in a packed copy of the repository, by their names. Nothing is written to the disk."""
    contents = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        for member in packed:
            folder, name = os.path.split(member.name)
            if member.isfile() and os.path.basename(folder) == "recordings" and _NAME.fullmatch(name):
                file = packed.extractfile(member)
                assert file is not None  # a plain file, as was asked
                contents[name] = file.read()
    return contents
