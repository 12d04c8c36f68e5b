"""Get AN4 ready: find or download it, check it, split it, and read the dictionary.

AN4 (CMU, 1991): people spell names and addresses, and say digits and control words. 948 utterances by 74 speakers are
for training, 130 by 10 others for testing. This is the distribution with 13 MFCCs a frame, 100 frames a second. Ten of
the training speakers, chosen by a sum of their names, are kept for validation, so no speaker is in two splits.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

NUM_FEATURES = 13
FRAMES_PER_SECOND = 100
NUM_VALID_SPEAKERS = 10
COUNTS = {"train": 948, "test": 130}

ADDRESS = "https://codeload.github.com/cphazen/Machine-Learning-Project-ASR/tar.gz/5e478f0ee6c5b060edf702acdd563948cad5545f"
# Of what is in the corpus, whatever it is packed in: all utterances (split, id, text, frames) and the dictionary.
CONTENT_SHA256 = "bb47b8b45613a0b6814b7001664337f37b71d2a258bfca51afa2e02d0805cf28"
DOWNLOAD_TIMEOUT_SECONDS = 120
FEATURES, MANIFEST, DICTIONARY = "an4_mfcc.npz", "manifest_mfcc.csv", "an4.dic"


@dataclass(frozen=True, eq=False)
class Utterance:
    """One of AN4.

    Attributes:
        name: such as "an251-fash-b".
        split: "train" or "test", as the corpus has it.
        text: words in capitals.
        frames: float32, [num_frames, 13].
    """

    name: str
    split: str
    text: str
    frames: Tensor

    @property
    def speaker(self) -> str:
        """Who says it."""
        return self.name.split("-")[1]


@dataclass(frozen=True, eq=False)
class Corpus:
    """The utterances by split, and from words to their pronunciations.

    Attributes:
        splits: train, valid and test.
        dictionary: from a word to the ways to say it, the first one being the usual one; phones.
    """

    splits: dict[str, list[Utterance]]
    dictionary: dict[str, list[tuple[str, ...]]]


def prepare_an4(data_folder: str | os.PathLike[str] | None) -> Corpus:
    """The checked corpus.

    Args:
        data_folder: with an4_mfcc.npz, manifest_mfcc.csv and an4.dic; what is missing is downloaded into it.

    Raises:
        ValueError: there is no folder, nothing could be downloaded, or the files are not those of AN4.
    """
    if data_folder is None:
        raise ValueError("AN4 needs a folder. Give --data_folder DIR; what is missing there is downloaded.")
    folder = Path(data_folder)
    if not all((folder / name).is_file() for name in (FEATURES, MANIFEST, DICTIONARY)):
        _download(folder)
    utterances = _read(folder)
    dictionary = read_dictionary((folder / DICTIONARY).read_text(encoding="utf-8"))
    check_content(utterances, dictionary, folder)
    valid = set(choose_speakers({each.speaker for each in utterances if each.split == "train"}))
    splits: dict[str, list[Utterance]] = {"train": [], "valid": [], "test": []}
    for each in utterances:
        splits["valid" if each.split == "train" and each.speaker in valid else each.split].append(each)
    return Corpus(splits, dictionary)


def choose_speakers(speakers: Iterable[str], number: int = NUM_VALID_SPEAKERS) -> list[str]:
    """Some of the speakers: as good as drawn, and always the same."""
    return sorted(speakers, key=lambda name: hashlib.sha256(name.encode()).digest())[:number]


def read_dictionary(text: str) -> dict[str, list[tuple[str, ...]]]:
    """From words to pronunciations; ``A(2)`` is another one of ``A``."""
    dictionary: dict[str, list[tuple[str, ...]]] = {}
    for line in text.splitlines():
        word, *phones = line.split()
        dictionary.setdefault(word.split("(")[0], []).append(tuple(phones))
    return dictionary


def _read(folder: Path) -> list[Utterance]:
    with np.load(folder / FEATURES) as arrays:
        frames = torch.from_numpy(arrays["X"].astype(np.float32, copy=False))
    with (folder / MANIFEST).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        Utterance(
            row["utt_id"], row["split"], row["text"], frames[int(row["offset"]) :][: int(row["frames"])]
        )
        for row in rows
    ]


def content_sum(utterances: Iterable[Utterance], dictionary: Mapping[str, list[tuple[str, ...]]]) -> str:
    """SHA-256 of all utterances, by split and name, and of the dictionary."""
    digest = hashlib.sha256()
    for each in sorted(utterances, key=lambda each: (each.split, each.name)):
        digest.update(f"{each.split} {each.name} {len(each.frames)} {each.text}\n".encode())
        digest.update(each.frames.numpy().astype("<f4").tobytes())
    for word in sorted(dictionary):
        for phones in dictionary[word]:
            digest.update(f"{word} {' '.join(phones)}\n".encode())
    return digest.hexdigest()


def check_content(
    utterances: list[Utterance], dictionary: Mapping[str, list[tuple[str, ...]]], folder: Path
) -> None:
    """Stop on another corpus than the one that the results are of.

    Raises:
        ValueError: it says what is missing, or that the sum differs.
    """
    for split, expected in COUNTS.items():
        found = sum(each.split == split for each in utterances)
        if found != expected:
            raise ValueError(
                f"AN4 has {expected} utterances for {split}, and {folder} has {found}."
                f" Delete {FEATURES} and {MANIFEST}, and the next start downloads them."
            )
    found_sum = content_sum(utterances, dictionary)
    if found_sum != CONTENT_SHA256:
        raise ValueError(
            f"The content of {folder} is not that of AN4: its SHA-256 is {found_sum}, not {CONTENT_SHA256}."
            f" Delete {FEATURES}, {MANIFEST} and {DICTIONARY}, and the next start downloads them."
        )


# ------------------------------------------------------------------------------------------------------- downloading


def _download(folder: Path, address: str = ADDRESS) -> None:
    """Fetch the archive, read it, check what is in it, and write the three files."""
    try:
        with urllib.request.urlopen(address, timeout=DOWNLOAD_TIMEOUT_SECONDS) as response:
            archive = response.read()
    except (urllib.error.URLError, OSError) as failure:
        raise ValueError(
            f"{folder} does not have {FEATURES}, {MANIFEST} and {DICTIONARY}, and {address} gave nothing: {failure}"
        ) from failure
    utterances, dictionary_text = read_archive(archive)
    check_content(utterances, read_dictionary(dictionary_text), Path(address))
    folder.mkdir(parents=True, exist_ok=True)
    arrays, manifest = io.BytesIO(), io.StringIO(newline="")
    np.savez_compressed(arrays, X=torch.cat([each.frames for each in utterances]).numpy())
    writer = csv.writer(manifest, lineterminator="\n")
    writer.writerow(["utt_id", "split", "offset", "frames", "text"])
    offset = 0
    for each in utterances:
        writer.writerow([each.name, each.split, offset, len(each.frames), each.text])
        offset += len(each.frames)
    for name, content in (
        (FEATURES, arrays.getvalue()),
        (MANIFEST, manifest.getvalue().encode()),
        (DICTIONARY, dictionary_text.encode()),
    ):
        temporary = folder / f".{name}.{os.getpid()}"
        temporary.write_bytes(content)
        os.replace(temporary, folder / name)


def read_archive(archive: bytes) -> tuple[list[Utterance], str]:
    """The utterances and the text of the dictionary, from a tar with .mfc, .transcription and .dic files.

    Raises:
        ValueError: a file of features is not what it should be.
    """
    frames: dict[str, tuple[str, Tensor]] = {}
    texts: dict[str, str] = {}
    dictionary = ""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            path = Path(member.name)
            if not member.isfile() or path.suffix not in (".mfc", ".transcription", ".dic"):
                continue
            content = tar.extractfile(member).read()
            if path.suffix == ".mfc":
                split = "test" if "an4test_clstk" in path.parts else "train"
                frames[path.stem] = split, read_mfc(content, member.name)
            elif path.suffix == ".dic":
                dictionary = content.decode()
            else:
                for line in content.decode().splitlines():  # <s> YES </s> (an251-fash-b)
                    words = [word for word in line.split() if word not in ("<s>", "</s>")]
                    if words:
                        texts[words[-1].strip("()")] = " ".join(words[:-1])
    names = sorted(frames, key=lambda name: (frames[name][0] != "train", name.split("-")[1], name))
    return [
        Utterance(name, frames[name][0], texts.get(name, ""), frames[name][1]) for name in names
    ], dictionary


def read_mfc(content: bytes, name: str) -> Tensor:
    """Sphinx's format: a 32-bit count of numbers, then as many 32-bit floats, in either order of bytes. [F, 13]."""
    for order in ("<", ">"):
        count = int(np.frombuffer(content[:4], f"{order}i4")[0]) if len(content) >= 4 else -1
        if len(content) == 4 + 4 * count and count % NUM_FEATURES == 0:
            values = np.frombuffer(content, f"{order}f4", offset=4).astype(np.float32)
            return torch.from_numpy(values).view(-1, NUM_FEATURES)
    raise ValueError(
        f"{name} is no file of {NUM_FEATURES} MFCCs: it has {len(content)} bytes and begins with {content[:4].hex(' ')}"
    )


def describe(corpus: Corpus) -> str:
    """One line a split for the log."""
    lines = []
    for name, utterances in corpus.splits.items():
        minutes = sum(len(each.frames) for each in utterances) / FRAMES_PER_SECOND / 60
        speakers = len({each.speaker for each in utterances})
        words = sum(len(each.text.split()) for each in utterances)
        lines.append(
            f"{name:<5} {len(utterances):>4} utterances by {speakers} speakers, {minutes:4.1f} min, {words} words"
        )
    return "\n".join(lines)
