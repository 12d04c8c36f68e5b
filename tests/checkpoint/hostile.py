"""Files that somebody made to do harm, and what happens when they are loaded.

``python -m tests.checkpoint.hostile FOLDER`` prints a JSON object for each: its name, the error, and by how much the
memory of the process grew while it was loaded. The sums in the manifests agree: whoever can write a file can also write
its sum.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import resource
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from brainlib.checkpoint import load_weights
from brainlib.checkpoint.manifest import LARGEST_MANIFEST
from tests.checkpoint.small import Foreground as Checkpointer

MEGABYTE = 1 << 20
CANARY = "ran"  # what the payloads would make

CALLABLES = [
    ("os", "system"), ("posix", "system"), ("builtins", "exec"), ("builtins", "eval"), ("builtins", "open"),
    ("builtins", "__import__"), ("builtins", "getattr"), ("builtins", "compile"), ("subprocess", "Popen"),
    ("subprocess", "check_output"), ("runpy", "_run_code"), ("runpy", "run_path"), ("pathlib", "Path.touch"),
    ("shutil", "rmtree"), ("importlib", "import_module"), ("functools", "partial"), ("operator", "attrgetter"),
    ("torch", "load"), ("torch.hub", "load"), ("torch.jit", "load"), ("torch.storage", "_load_from_bytes"),
    ("torch", "zeros"), ("torch.utils.cpp_extension", "load_inline"), ("numpy", "load"), ("numpy", "fromfile"),
    ("pickle", "loads"), ("marshal", "loads"), ("types", "CodeType"), ("ctypes", "CDLL"), ("sys", "exit"),
    ("tests.checkpoint.hostile", "touch"),
]  # fmt: skip


def touch(*_: object) -> None:
    Path(CANARY).touch()


COMMAND = f"touch {CANARY}"
BYTES = b"__import__('pathlib').Path('ran').touch()"


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def pickles_that_call() -> Iterator[tuple[str, bytes]]:
    """Every way in which a pickle can name a thing and have it called."""
    for module, name in CALLABLES:
        wanted = f"c{module}\n{name}\n".encode()
        told = f"{module}.{name}"
        yield f"reduce {told}", b"\x80\x02}" + text("weight") + wanted + text(COMMAND) + b"\x85Rs."
        yield f"inst {told}", b"(S'" + COMMAND.encode() + b"'\ni" + f"{module}\n{name}\n".encode() + b"."
        yield f"obj {told}", b"(" + wanted + text(COMMAND) + b"o."
        yield f"newobj {told}", b"\x80\x02" + wanted + text(COMMAND) + b"\x85\x81."
        yield (
            f"build {told}",
            b"\x80\x02" + wanted + text(COMMAND) + b"\x85R}" + text("a") + text("b") + b"sb.",
        )
        stack = (
            b"\x8c"
            + bytes([len(module)])
            + module.encode()
            + b"\x8c"
            + bytes([len(name)])
            + name.encode()
            + b"\x93"
        )
        yield f"stack {told}", b"\x80\x04" + stack + text(COMMAND) + b"\x85R."


def tensor(numel: int = 4, offset: int = 0, shape: int = 4, stride: int = 1, key: str = "0") -> bytes:
    number = lambda n: b"\x8a\x09" + n.to_bytes(9, "little", signed=True)  # noqa: E731
    return (
        b"\x80\x02}" + text("weight") + b"ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage")
        + b"ctorch\nFloatStorage\n"
        + text(key) + text("cpu") + number(numel) + b"tQ" + number(offset) + number(shape) + b"\x85" + number(stride)
        + b"\x85\x89ccollections\nOrderedDict\n)RtRs."
    )  # fmt: skip


def pickles_that_swell() -> Iterator[tuple[str, bytes]]:
    """Little that would become much, or reach out of what is there."""
    much = 1 << 33
    for name, number in (
        ("int", b"J\xff\xff\xff\x7f"), ("long", b"\x8a\x05" + much.to_bytes(5, "little")),
        ("long4", b"\x8b\x05\0\0\0" + much.to_bytes(5, "little")), ("text", b"I8589934592\n"),
        ("list", b"](J\xff\xff\xff\x00e"),
    ):  # fmt: skip
        yield f"bytearray of {name}", b"\x80\x02c__builtin__\nbytearray\n" + number + b"\x85R."
        yield f"FloatTensor of {name}", b"\x80\x02ctorch\nFloatTensor\n" + number + b"\x85R."
        yield f"UntypedStorage of {name}", b"\x80\x02ctorch.storage\nUntypedStorage\n" + number + b"\x85R."
    yield (
        "bytearray through the memo",
        b"\x80\x02c__builtin__\nbytearray\nq\x000J\xff\xff\xff\x7fq\x010h\x00h\x01\x85R.",
    )
    for codec in ("utf-32", "hex", "zlib", "rot13", "idna", "raw_unicode_escape"):
        again = b"c_codecs\nencode\n" + text("a" * 1000) + text(codec) + b"\x86R"
        yield f"encode {codec}", b"\x80\x02" + again + b"."
    yield "more numbers than there are", tensor(numel=much)
    yield "a shape out of the storage", tensor(shape=5)
    yield "an offset out of the storage", tensor(offset=much)
    yield "a negative offset", tensor(offset=-4)
    yield "a negative stride", tensor(stride=-1)
    yield "a stride out of the storage", tensor(stride=much)
    yield "a storage that is not there", tensor(key="7")
    yield "a storage from elsewhere", tensor(key="../../0")
    for protocol in (3, 4, 5):
        yield f"protocol {protocol}", pickle.dumps({"weight": 1}, protocol)
    yield "bytearray8", b"\x80\x05\x96" + struct.pack("<Q", much) + b"."
    yield "bytearray8 of protocol 2", b"\x80\x02\x96" + struct.pack("<Q", much) + b"."
    yield "binunicode8", b"\x80\x02\x8d" + struct.pack("<Q", much) + b"."
    yield "a text longer than the file", b"\x80\x02X\xff\xff\xff\x7fabc."
    yield "a number longer than the file", b"\x80\x02\x8b\xff\xff\xff\x7fabc."
    yield "a place in the memo far away", b"\x80\x02]r\xff\xff\xff\x7f."
    yield "nothing", b""
    yield "no end", b"\x80\x02}"
    yield "an empty stack", b"\x80\x020000."
    yield "deep lists", b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."
    yield "an extension code", b"\x80\x02\x82\x01."
    yield "a persistent id of text", b"P../../etc/passwd\n."


def archive_of(entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED, swelling: str = "") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
        if swelling:  # in pieces, so that making it moves no peak
            with archive.open(swelling, "w") as file:
                for _ in range(64):
                    file.write(bytes(MEGABYTE))
    return buffer.getvalue()


def usual_entries() -> dict[str, bytes]:
    buffer = io.BytesIO()
    torch.save({"weight": torch.arange(4.0)}, buffer)
    with zipfile.ZipFile(buffer) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def state_files() -> Iterator[tuple[str, str, bytes]]:
    """What stands where a model's state is expected: (what it is, the file's name, its bytes)."""
    usual = usual_entries()
    for name, data in (*pickles_that_call(), *pickles_that_swell()):
        yield name, "model.pt", archive_of({**usual, "archive/data.pkl": data})
    for module, name in CALLABLES[:6]:
        yield (
            f"a bare pickle of {module}.{name}",
            "model.pt",
            f"c{module}\n{name}\n(S'{COMMAND}'\ntR.".encode(),
        )
    for kind, compression in (
        ("deflate", zipfile.ZIP_DEFLATED),
        ("bzip2", zipfile.ZIP_BZIP2),
        ("lzma", zipfile.ZIP_LZMA),
    ):
        for swelling in ("archive/data.pkl", "archive/data/0", "archive/extra"):
            bomb = archive_of({key: usual[key] for key in usual if key != swelling}, compression, swelling)
            yield f"a bomb of {kind} in {swelling}", "model.pt", bomb
    plain = archive_of(usual)
    place = plain.rindex(b"PK\x01\x02")
    for field, told in ((24, "size"), (20, "packed size")):
        lying = bytearray(plain)
        lying[place + field : place + field + 4] = b"\xf0\xff\xff\xff"
        yield f"an entry that lies about its {told}", "model.pt", bytes(lying)
    for number in range(10):
        yield f"torn at {number} tenths", "model.pt", plain[: len(plain) * number // 10]
    yield "two pickles", "model.pt", archive_of({**usual, "other/data.pkl": usual["archive/data.pkl"]})
    yield "TorchScript", "model.pt", archive_of({**usual, "archive/constants.pkl": b"\x80\x02)."})
    tagged = f'!!python/object/apply:os.system ["{COMMAND}"]\n'.encode()
    yield "YAML where a model is", "model.pt", tagged
    for name, data in (
        ("YAML", tagged), ("deep lists", b"[" * 200_000), ("torn", b'{"weight": '), ("no text", b"\xff\xfe\x00"),
        ("a pickle", pickle.dumps([1])), ("nothing", b""), ("a long number", b"[" + b"9" * 10_000 + b"]"),
    ):  # fmt: skip
        yield f"{name} as JSON", "model.json", data


def forged(content: dict[str, Any]) -> bytes:
    """A manifest whose own sum agrees."""
    content.pop("sha256", None)
    told = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return json.dumps({**content, "sha256": hashlib.sha256(told.encode()).hexdigest()}).encode()


def manifests(usual: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    outside = ["../../outside", "/etc/passwd", "a/../../outside", "..", "a\\..\\b", "nul\0", "", "."]
    for name in outside:
        files = {**usual["files"], name: next(iter(usual["files"].values()))}
        saved = usual["recoverables"]["model"]
        yield f"a file {name!r}", forged({**usual, "files": files})
        for key, value in (("path", name), ("files", [name])):
            yield f"{key} {name!r}", forged({**usual, "recoverables": {"model": {**saved, key: value}}})
    for key in usual:
        if key not in ("sha256", "name", "snapshot_of", "number", "criterion"):
            yield f"no {key}", forged({k: v for k, v in usual.items() if k != key})
    for key in usual.keys() - {"sha256", "format", "end_of_epoch"}:
        yield f"{key} is of another type", forged({**usual, key: [[1]]})
    yield "a later version", forged({**usual, "version": 99})
    yield "a commit that is no number", forged({**usual, "commit": "1e400"})
    yield "places that are not there", forged({**usual, "meta_nonfinite": [["a", "b"]]})
    yield "an empty place", forged({**usual, "meta_nonfinite": [[]]})
    yield "deep lists", b"[" * 200_000
    yield "a long number", b'{"commit": ' + b"9" * 10_000 + b"}"
    yield "YAML", f'!!python/object/apply:os.system ["{COMMAND}"]\n'.encode()
    yield "no object", b"[]"
    yield "no text", b"\xff\xfe\x00\x00"
    yield "nothing", b""
    yield "no sum", json.dumps({k: v for k, v in usual.items() if k != "sha256"}).encode()


def resident(what: str) -> int:
    """Bytes of memory: "VmRSS" now, "VmHWM" at most since the peak was forgotten."""
    try:
        status = Path("/proc/self/status").read_text()
    except FileNotFoundError:  # no Linux: the peak of the whole process, in bytes or kilobytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(status.partition(f"{what}:")[2].split()[0]) * 1024


def forget_peak() -> None:
    with contextlib.suppress(OSError):  # not everywhere allowed; then an earlier peak hides a smaller one
        Path("/proc/self/clear_refs").write_text("5")


def report(name: str, size: int, act: Callable[[], object]) -> None:
    forget_peak()
    before, error = resident("VmRSS"), ""
    try:
        act()
    except BaseException as raised:  # noqa: BLE001  # sys.exit is one of the payloads
        error = f"{type(raised).__name__}: {raised}"
    grew = resident("VmHWM") - before
    print(json.dumps({"name": name, "size": size, "error": error, "grew": grew}), flush=True)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    os.chdir(folder)
    model = torch.nn.Linear(4, 1, bias=False)
    place = Checkpointer("usual", {"model": model}).save_checkpoint().path
    usual = json.loads((place / "manifest.json").read_bytes())
    load = lambda where: Checkpointer("elsewhere", {"model": model}).load_checkpoint(where)  # noqa: E731
    load(place)  # what a first load takes once is not the files' doing

    number = 0
    for name, file, data in state_files():
        number += 1
        where = Path(f"state-{number}")
        where.mkdir()
        (where / file).write_bytes(data)
        sums = {file: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}}
        saved = {"model": {"kind": "module", "path": file, "files": [file], "class": "Linear"}}
        (where / "manifest.json").write_bytes(forged({**usual, "files": sums, "recoverables": saved}))
        size = len(data)
        del data
        report(f"state: {name}", size, lambda where=where: load(where))
        if number % 10 == 0:
            report(f"weights: {name}", size, lambda where=where: load_weights(where, "model"))
    for name, data in manifests(usual):
        number += 1
        where = Path(f"manifest-{number}")
        where.mkdir()
        (where / "model.pt").write_bytes((place / "model.pt").read_bytes())
        (where / "manifest.json").write_bytes(data)
        report(f"manifest: {name}", len(data), lambda where=where: load(where))
    where = Path("manifest-huge")
    where.mkdir()
    with open(where / "manifest.json", "wb") as file:
        file.truncate(1 << 32)  # takes no room on the disk
    report("manifest: huge", LARGEST_MANIFEST, lambda: load(where))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
