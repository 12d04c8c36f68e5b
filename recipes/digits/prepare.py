"""Get real handwritten digits ready: read or download them, split them, and check them before anything trains.

Two sets, one shape. ``embedded`` is the 1,797 digits of 8 x 8 pixels that come inside scikit-learn: no network, no
files. ``mnist`` is the complete MNIST, 60,000 + 10,000 digits of 28 x 28 pixels, read from its idx files and downloaded
when they are absent. Either way the result is a train, a valid and a test :class:`Split`.

Which split an image belongs to depends on its place in the set and on nothing else: not on the seed of the run, not
on a random generator that another version of a library might change. So runs can be compared, and test stays test.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import struct
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

NUM_CLASSES = 10
IMAGE_SIZES = {"embedded": 8, "mnist": 28}

VALID_FRACTION = {"embedded": 0.1, "mnist": 1 / 12}  # of all images; of the 60,000 of MNIST: about 5,000
TEST_FRACTION = 0.2  # of the embedded images; MNIST has a test set of its own

# SHA-256 of the *uncompressed* idx files: mirrors compress them differently, the content is the same everywhere.
MNIST_FILES = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
DOWNLOAD_TIMEOUT_SECONDS = 30


@dataclass(frozen=True, eq=False)
class Split(Dataset[dict[str, Tensor]]):
    """One part of the data; an item is ``{"index", "image", "label"}``, ready for torch's default collate.

    Args:
        name: "train", "valid" or "test".
        images: float32, [num_images, 1, size, size], 0 is paper and 1 is ink.
        labels: int64, [num_images], 0 to 9.
        indices: int64, [num_images]; the place of each image in the set it came from, for messages and pictures.
    """

    name: str
    images: Tensor
    labels: Tensor
    indices: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, position: int) -> dict[str, Tensor]:
        return {
            "index": self.indices[position],
            "image": self.images[position],
            "label": self.labels[position],
        }


def image_size(dataset: str) -> int:
    """Pixels on a side, so that an hparams file can size its model: ``!apply:prepare.image_size [!ref <dataset>]``."""
    if dataset not in IMAGE_SIZES:
        raise ValueError(
            f"dataset is {dataset!r}, and there are 'embedded' and 'mnist'. Give --dataset one of these."
        )
    return IMAGE_SIZES[dataset]


def prepare_digits(
    dataset: str = "embedded", data_folder: str | os.PathLike[str] | None = None
) -> dict[str, Split]:
    """Give the checked train, valid and test splits of a set.

    Args:
        dataset: "embedded" (scikit-learn's, needs no files) or "mnist".
        data_folder: where MNIST's four idx files are, gzipped or not; what is missing there is downloaded into
            it. Not used by "embedded".

    Raises:
        ValueError: when the name is unknown, MNIST has no folder, a file is not what it should be, or a check fails.
    """
    size = image_size(dataset)
    if dataset == "embedded":
        splits = _split_embedded(*_read_embedded())
    elif data_folder is None:
        raise ValueError(
            "dataset mnist needs a folder. Give --data_folder DIR; what is missing there is downloaded."
        )
    else:
        splits = _split_mnist(Path(data_folder))
    check_splits(splits, size)
    return splits


# ---------------------------------------------------------------------------------------------------------- reading


def _read_embedded() -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's digits: images with values 0 to 16, and labels."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as missing:
        raise ValueError(
            "dataset embedded comes inside scikit-learn, which is not installed. pip install 'brainlib[demo]'"
        ) from missing
    digits = load_digits()
    return (digits.images / 16).astype(np.float32), digits.target.astype(np.int64)


def read_idx(content: bytes, name: str = "idx data") -> np.ndarray:
    """Read the idx format of MNIST.

    Two zero bytes, a type byte, the number of dimensions, big-endian sizes, then the values. Only unsigned bytes (type
    8) are read, which is all that MNIST uses. ``name`` stands in the messages.
    """
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != 8:
        raise ValueError(
            f"{name} is no idx file of unsigned bytes: it begins with {content[:4].hex(' ')}, not with 00 00 08 0n."
        )
    num_dimensions = content[3]
    start = 4 + 4 * num_dimensions
    if len(content) < start:
        raise ValueError(f"{name} ends inside its header, after {len(content)} bytes.")
    shape = struct.unpack(f">{num_dimensions}I", content[4:start])
    expected = start + int(np.prod(shape))
    if len(content) != expected:
        raise ValueError(f"{name} should have {expected} bytes for its shape {shape} and has {len(content)}.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _mnist_content(folder: Path, name: str) -> bytes:
    """The uncompressed bytes of one MNIST file, from ``folder`` or else from a mirror, with their sum checked."""
    for path in (folder / f"{name}.gz", folder / name, folder / "MNIST" / "raw" / name):
        if path.is_file():
            content = _uncompressed(path.read_bytes(), str(path))
            found = hashlib.sha256(content).hexdigest()
            if found != MNIST_FILES[name]:
                raise ValueError(
                    f"{path} is not MNIST's {name}: its SHA-256 is {found}, not {MNIST_FILES[name]}."
                    " Delete the file, and the next start downloads it."
                )
            return content
    return _download(folder, name)


def _uncompressed(raw: bytes, source: str) -> bytes:
    if raw[:2] != b"\x1f\x8b":  # what every gzip file begins with
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, OSError) as damage:
        raise ValueError(
            f"{source} is a damaged gzip file ({damage}). Delete it, and the next start downloads it."
        ) from damage


def _download(folder: Path, name: str) -> bytes:
    """Fetch one file from the first mirror that has the right content; it appears in ``folder`` whole or not at all."""
    failures = []
    for mirror in MNIST_MIRRORS:
        address = f"{mirror}{name}.gz"
        try:
            with urllib.request.urlopen(address, timeout=DOWNLOAD_TIMEOUT_SECONDS) as response:
                raw = response.read()
            content = _uncompressed(raw, address)
        except (urllib.error.URLError, OSError, ValueError) as failure:
            failures.append(f"  {address}: {failure}")
            continue
        found = hashlib.sha256(content).hexdigest()
        if found != MNIST_FILES[name]:
            failures.append(f"  {address}: SHA-256 {found}, not {MNIST_FILES[name]}")
            continue
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{name}.gz.{os.getpid()}"
        temporary.write_bytes(raw)
        os.replace(temporary, folder / f"{name}.gz")
        return content
    raise ValueError(
        f"{name} is not in {folder}, and no mirror gave it:\n" + "\n".join(failures) + "\n"
        f"Get {name}.gz from elsewhere and put it there, or use --dataset embedded, which needs no files."
    )


# -------------------------------------------------------------------------------------------------------- splitting


def _split_embedded(images: np.ndarray, labels: np.ndarray) -> dict[str, Split]:
    indices = np.arange(len(labels))
    rest, test = _part(labels, indices, TEST_FRACTION)
    train, valid = _part(labels, rest, VALID_FRACTION["embedded"] / (1 - TEST_FRACTION))
    return {
        name: _split(name, images, labels, chosen)
        for name, chosen in (("train", train), ("valid", valid), ("test", test))
    }


def _split_mnist(folder: Path) -> dict[str, Split]:
    arrays = {name: read_idx(_mnist_content(folder, name), name) for name in MNIST_FILES}
    images = arrays["train-images-idx3-ubyte"].astype(np.float32) / 255
    labels = arrays["train-labels-idx1-ubyte"].astype(np.int64)
    train, valid = _part(labels, np.arange(len(labels)), VALID_FRACTION["mnist"])
    test_images = arrays["t10k-images-idx3-ubyte"].astype(np.float32) / 255
    test_labels = arrays["t10k-labels-idx1-ubyte"].astype(np.int64)
    return {
        "train": _split("train", images, labels, train),
        "valid": _split("valid", images, labels, valid),
        "test": _split("test", test_images, test_labels, np.arange(len(test_labels))),
    }


def _part(labels: np.ndarray, indices: np.ndarray, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Part ``indices`` in two, the second with this fraction of every class; both in ascending order.

    The order within a class is that of the SHA-256 of the index, which is as good as a shuffle and never changes.
    """
    second: list[int] = []
    for digit in range(NUM_CLASSES):
        members = [int(index) for index in indices if labels[index] == digit]
        members.sort(key=lambda index: hashlib.sha256(str(index).encode()).digest())
        second += members[: round(fraction * len(members))]
    chosen = np.array(sorted(second), dtype=np.int64)
    return np.setdiff1d(indices, chosen), chosen


def _split(name: str, images: np.ndarray, labels: np.ndarray, chosen: np.ndarray) -> Split:
    return Split(
        name,
        images=torch.from_numpy(images[chosen]).unsqueeze(1),
        labels=torch.from_numpy(labels[chosen]),
        indices=torch.from_numpy(chosen),
    )


# --------------------------------------------------------------------------------------------------------- checking


def check_splits(splits: dict[str, Split], size: int) -> None:
    """Stop before training on data that would train to a wrong or a too good number.

    Raises:
        ValueError: it names the split, what was found, what was expected, and why it matters.
    """
    for split in splits.values():
        _check_images(split, size)
        _check_labels(split)
    _check_disjoint(list(splits.values()))


def _check_images(split: Split, size: int) -> None:
    if split.images.dtype != torch.float32:
        raise ValueError(
            f"{split.name}: images are {split.images.dtype}, and the model computes in torch.float32."
        )
    expected = (len(split), 1, size, size)
    if tuple(split.images.shape) != expected:
        raise ValueError(f"{split.name}: images have shape {tuple(split.images.shape)}, not {expected}.")
    low, high = split.images.min().item(), split.images.max().item()
    if not (0 <= low < high <= 1):  # also false for NaN
        raise ValueError(
            f"{split.name}: pixels run from {low:g} to {high:g}, not from 0 to 1."
            " The model expects that scale; were the images divided twice, or not at all?"
        )
    blank = (split.images.flatten(1).amax(1) == split.images.flatten(1).amin(1)).nonzero().flatten()
    if len(blank) > 0:
        where = split.indices[blank[:5]].tolist()
        raise ValueError(
            f"{split.name}: blank images: {len(blank)}, the first at {where}. Nothing can be learned from them."
        )


def _check_labels(split: Split) -> None:
    if split.labels.dtype != torch.int64:
        raise ValueError(f"{split.name}: labels are {split.labels.dtype}, and the losses take torch.int64.")
    if len(split.labels) != len(split.images):
        raise ValueError(f"{split.name}: {len(split.labels)} labels for {len(split.images)} images.")
    wrong = ((split.labels < 0) | (split.labels >= NUM_CLASSES)).nonzero().flatten()
    if len(wrong) > 0:
        first = int(wrong[0])
        raise ValueError(
            f"{split.name}: the label at {int(split.indices[first])} is {int(split.labels[first])},"
            f" not 0 to {NUM_CLASSES - 1}."
        )
    counts = class_counts(split)
    if min(counts) == 0 or max(counts) > 2 * min(counts):
        raise ValueError(
            f"{split.name}: images per class are {counts}. Accuracy says little when a class is missing or"
            " more than twice as frequent as another."
        )


def _check_disjoint(splits: Sequence[Split]) -> None:
    """No image, compared by its pixels, twice: neither in one split nor in two."""
    seen: dict[bytes, tuple[str, int]] = {}
    for split in splits:
        for position, image in enumerate(split.images.numpy()):
            here = (split.name, int(split.indices[position]))
            digest = hashlib.blake2b(image.tobytes(), digest_size=16).digest()
            before = seen.setdefault(digest, here)
            if before is not here:
                raise ValueError(
                    f"The image at {here[1]} of {here[0]} is the same, pixel by pixel, as the one at {before[1]} of"
                    f" {before[0]}. A model that has seen the answer makes the accuracy look better than it is."
                )


def class_counts(split: Split) -> list[int]:
    """How many images of each digit, from 0 to 9."""
    return torch.bincount(split.labels, minlength=NUM_CLASSES).tolist()


def describe(splits: dict[str, Split]) -> str:
    """One line a split for the log: how many images, of which size, and how many of each digit."""
    lines = []
    for split in splits.values():
        counts = " ".join(f"{digit}:{count}" for digit, count in enumerate(class_counts(split)))
        size = split.images.shape[-1]
        lines.append(f"{split.name:<5} {len(split):>6} images of {size} x {size}   {counts}")
    return "\n".join(lines)
