"""Reading, downloading, splitting and checking the digits, on the real sets and on small files made for it."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def prepare() -> Iterator[ModuleType]:
    """recipes/digits/prepare.py, under a name that no other recipe's prepare.py has."""
    spec = importlib.util.spec_from_file_location(
        "digits_prepare", ROOT / "recipes" / "digits" / "prepare.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def identity(splits: dict[str, object]) -> str:
    digest = hashlib.sha256()
    for split in splits.values():
        for part in (split.images, split.labels, split.indices):
            digest.update(part.numpy().tobytes())
    return digest.hexdigest()[:16]


# ----------------------------------------------------------------------------------------------------- the real sets


def test_embedded_digits_are_all_there_once(prepare: ModuleType) -> None:
    pytest.importorskip("sklearn")
    splits = prepare.prepare_digits()
    assert {name: len(split) for name, split in splits.items()} == {"train": 1259, "valid": 179, "test": 359}
    indices = torch.cat([split.indices for split in splits.values()])
    assert torch.equal(indices.sort().values, torch.arange(1797))
    shares = [torch.tensor(prepare.class_counts(split)) / len(split) for split in splits.values()]
    assert all((share - 0.1).abs().max() < 0.01 for share in shares)


def test_embedded_split_is_the_same_for_ever(prepare: ModuleType) -> None:
    pytest.importorskip("sklearn")
    torch.manual_seed(1)
    np.random.seed(1)
    first = identity(prepare.prepare_digits())
    torch.manual_seed(2)
    assert identity(prepare.prepare_digits()) == first == "cac3a8a404ed9383"


def test_an_item_is_ready_for_the_default_collate(prepare: ModuleType) -> None:
    pytest.importorskip("sklearn")
    train = prepare.prepare_digits()["train"]
    batch = torch.utils.data.default_collate([train[0], train[1]])
    assert batch["image"].shape == (2, 1, 8, 8) and batch["image"].dtype == torch.float32
    assert batch["label"].tolist() == train.labels[:2].tolist() and batch["label"].dtype == torch.int64
    assert batch["index"].tolist() == train.indices[:2].tolist()


def test_the_real_mnist(prepare: ModuleType, data_dir: Callable[[str], Path]) -> None:
    splits = prepare.prepare_digits("mnist", data_dir("mnist"))
    assert {name: len(split) for name, split in splits.items()} == {
        "train": 54999,
        "valid": 5001,
        "test": 10000,
    }
    assert (
        prepare.describe(splits)
        .splitlines()[2]
        .startswith("test   10000 images of 28 x 28   0:980 1:1135 2:1032")
    )
    pixels = torch.cat([splits["train"].images, splits["valid"].images])
    assert float(pixels.mean()) == pytest.approx(0.1307, abs=1e-4)
    assert float(pixels.std()) == pytest.approx(0.3081, abs=1e-4)


# ------------------------------------------------------------------------------------------------------ names, files


def test_unknown_set(prepare: ModuleType) -> None:
    with pytest.raises(ValueError, match="dataset is 'minst', and there are 'embedded' and 'mnist'"):
        prepare.prepare_digits("minst")


def test_mnist_needs_a_folder(prepare: ModuleType) -> None:
    with pytest.raises(ValueError, match="Give --data_folder DIR; what is missing there is downloaded"):
        prepare.prepare_digits("mnist")


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def test_idx_is_read(prepare: ModuleType) -> None:
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    assert np.array_equal(prepare.read_idx(idx(values)), values)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x00\x00\x0d\x01\0\0\0\1\0\0\0\0", "begins with 00 00 0d 01, not with 00 00 08 0n"),
        (b"<html>", "begins with 3c 68 74 6d"),
        (b"", "is no idx file"),
        (b"\x00\x00\x08\x03\0\0", "ends inside its header, after 6 bytes"),
        (b"\x00\x00\x08\x01\0\0\0\3ab", r"should have 11 bytes for its shape \(3,\) and has 10"),
    ],
)
def test_what_is_no_idx_file_is_refused(prepare: ModuleType, content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare.read_idx(content, "some-file")


@pytest.fixture
def small_mnist(prepare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """120 + 40 images in the place of MNIST; no mirror can be reached. Gives the uncompressed contents."""
    drawn = np.random.default_rng(0)
    contents = {
        "train-images-idx3-ubyte": idx(drawn.integers(0, 256, (120, 28, 28), dtype=np.uint8)),
        "train-labels-idx1-ubyte": idx(np.arange(120, dtype=np.uint8) % 10),
        "t10k-images-idx3-ubyte": idx(drawn.integers(0, 256, (40, 28, 28), dtype=np.uint8)),
        "t10k-labels-idx1-ubyte": idx(np.arange(40, dtype=np.uint8) % 10),
    }
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(prepare, "MNIST_FILES", sums)
    monkeypatch.setattr(prepare, "MNIST_MIRRORS", ((tmp_path / "down").as_uri() + "/",))
    return contents


def mirror(folder: Path, contents: dict[str, bytes]) -> str:
    folder.mkdir()
    for name, content in contents.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    return folder.as_uri() + "/"


@pytest.mark.parametrize("layout", ["gz", "plain", "torchvision"])
def test_files_are_found_zipped_and_not(
    prepare: ModuleType, small_mnist: dict[str, bytes], tmp_path: Path, layout: str
) -> None:
    folder = tmp_path / "data"
    place = folder / "MNIST" / "raw" if layout == "torchvision" else folder
    place.mkdir(parents=True)
    for name, content in small_mnist.items():
        if layout == "gz":
            (place / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (place / name).write_bytes(content)
    splits = prepare.prepare_digits("mnist", folder)
    assert [len(splits[name]) for name in ("train", "valid", "test")] == [110, 10, 40]


def test_missing_files_come_from_the_first_mirror_that_has_the_right_ones(
    prepare: ModuleType, small_mnist: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {name: content[:-1] + b"?" for name, content in small_mnist.items()}
    mirrors = [
        *prepare.MNIST_MIRRORS,
        mirror(tmp_path / "wrong", wrong),
        mirror(tmp_path / "right", small_mnist),
    ]
    monkeypatch.setattr(prepare, "MNIST_MIRRORS", mirrors)
    folder = tmp_path / "new" / "folder"

    first = identity(prepare.prepare_digits("mnist", folder))

    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{name}.gz" for name in small_mnist)
    monkeypatch.setattr(prepare, "MNIST_MIRRORS", ())  # what was downloaded is enough from now on
    assert identity(prepare.prepare_digits("mnist", folder)) == first


def test_no_mirror_says_what_each_answered_and_what_to_do(
    prepare: ModuleType, small_mnist: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = mirror(tmp_path / "wrong", {name: content + b"?" for name, content in small_mnist.items()})
    torn = tmp_path / "torn"
    mirror(torn, small_mnist)
    for path in torn.iterdir():
        path.write_bytes(path.read_bytes()[:-20])
    monkeypatch.setattr(prepare, "MNIST_MIRRORS", [*prepare.MNIST_MIRRORS, wrong, torn.as_uri() + "/"])
    with pytest.raises(ValueError) as caught:
        prepare.prepare_digits("mnist", tmp_path / "data")
    message = str(caught.value)
    assert message.startswith(
        f"train-images-idx3-ubyte is not in {tmp_path / 'data'}, and no mirror gave it:\n"
    )
    assert "/down/train-images-idx3-ubyte.gz: <urlopen error" in message
    assert "/wrong/train-images-idx3-ubyte.gz: SHA-256" in message
    assert "/torn/train-images-idx3-ubyte.gz is a damaged gzip file" in message
    assert message.endswith("put it there, or use --dataset embedded, which needs no files.")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda content: gzip.compress(content + b"?"),
            "is not MNIST's t10k-labels-idx1-ubyte: its SHA-256 is",
        ),
        (lambda content: gzip.compress(content)[:-9], "is a damaged gzip file"),
    ],
)
def test_a_wrong_file_in_the_folder_is_named(
    prepare: ModuleType,
    small_mnist: dict[str, bytes],
    tmp_path: Path,
    damage: Callable[[bytes], bytes],
    message: str,
) -> None:
    folder = tmp_path / "data"
    mirror(folder, small_mnist)
    bad = folder / "t10k-labels-idx1-ubyte.gz"
    bad.write_bytes(damage(small_mnist["t10k-labels-idx1-ubyte"]))
    with pytest.raises(ValueError, match=message) as caught:
        prepare.prepare_digits("mnist", folder)
    assert str(bad) in str(caught.value) and "the next start downloads it" in str(caught.value)


# --------------------------------------------------------------------------------------------------------- the checks


@pytest.fixture
def splits(prepare: ModuleType) -> dict[str, object]:
    drawn = torch.Generator().manual_seed(0)
    return {
        name: prepare.Split(
            name,
            torch.rand(20, 1, 8, 8, generator=drawn),
            torch.arange(20) % 10,
            torch.arange(start, start + 20),
        )
        for name, start in (("train", 0), ("valid", 20), ("test", 40))
    }


def test_good_splits_pass(prepare: ModuleType, splits: dict[str, object]) -> None:
    prepare.check_splits(splits, 8)


def changed(tensor: torch.Tensor, place: object, value: object) -> torch.Tensor:
    tensor = tensor.clone()
    tensor[place] = value
    return tensor


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        (
            "images",
            lambda x: x.double(),
            "valid: images are torch.float64, and the model computes in torch.float32",
        ),
        ("images", lambda x: x[:, 0], r"valid: images have shape \(20, 8, 8\), not \(20, 1, 8, 8\)"),
        ("images", lambda x: x[:-1], r"valid: images have shape \(19, 1, 8, 8\), not \(20, 1, 8, 8\)"),
        (
            "images",
            lambda x: changed(x, (0, 0, 0, 0), 16.0),
            "valid: pixels run from .* to 16, not from 0 to 1",
        ),
        (
            "images",
            lambda x: changed(x, (0, 0, 0, 0), -0.5),
            "valid: pixels run from -0.5 to .*divided twice",
        ),
        ("images", lambda x: changed(x, (0, 0, 0, 0), float("nan")), "valid: pixels run from nan to nan"),
        ("images", lambda x: changed(x, 3, 0.0), r"valid: blank images: 1, the first at \[23\]"),
        ("labels", lambda x: x.int(), "valid: labels are torch.int32, and the losses take torch.int64"),
        ("labels", lambda x: changed(x, 4, 10), "valid: the label at 24 is 10, not 0 to 9"),
        ("labels", lambda x: changed(x, 4, -1), "valid: the label at 24 is -1, not 0 to 9"),
        (
            "labels",
            lambda x: x.where(x != 7, 6),
            r"valid: images per class are \[2, 2, 2, 2, 2, 2, 4, 0, 2, 2\]",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_split(
    prepare: ModuleType,
    splits: dict[str, object],
    field: str,
    change: Callable[[torch.Tensor], torch.Tensor],
    message: str,
) -> None:
    splits["valid"] = replace(splits["valid"], **{field: change(getattr(splits["valid"], field))})
    with pytest.raises(ValueError, match=message):
        prepare.check_splits(splits, 8)


@pytest.mark.parametrize(("name", "place"), [("test", 45), ("train", 5)])
def test_an_image_that_is_there_twice_is_found(
    prepare: ModuleType, splits: dict[str, object], name: str, place: int
) -> None:
    images = changed(splits[name].images, 5, splits["train"].images[2])
    splits[name] = replace(splits[name], images=images)
    with pytest.raises(ValueError) as caught:
        prepare.check_splits(splits, 8)
    assert str(caught.value).startswith(
        f"The image at {place} of {name} is the same, pixel by pixel, as the one at 2 of train."
    )
    assert "seen the answer" in str(caught.value)
