"""Manifests in four forms: what stands in them comes out, and what is wrong with them is said with file and line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brainlib.data.manifests import read_csv, read_json, read_jsonl, read_kaldi

TRAPS = [
    "it costs $5",
    "$data_roots",
    "{laughs} no",
    "{data_root",
    "${",
    "100 % {} $$",
    "naïve 日本語",
    'a "b", c',
    "",
]


def test_a_transcript_is_text_whatever_stands_in_it(tmp_path: Path) -> None:
    rows = {f"utt{n}": {"text": text, "wav": "{data_root}/1.wav"} for n, text in enumerate(TRAPS)}
    (tmp_path / "a.json").write_text(json.dumps(rows))
    lines = [json.dumps({"id": id_, **row}, ensure_ascii=False) for id_, row in rows.items()]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    cells = [
        f'{id_},"{row["text"].replace(chr(34), chr(34) * 2)}",$data_root/1.wav' for id_, row in rows.items()
    ]
    (tmp_path / "a.csv").write_text("\n".join(["ID,text,wav", *cells]), encoding="utf-8-sig")
    replacements = {"data_root": Path("/corpus")}
    for read in (
        read_csv(tmp_path / "a.csv", replacements),
        read_json(tmp_path / "a.json", replacements),
        read_jsonl(tmp_path / "a.jsonl", replacements),
    ):
        assert [row["text"] for row in read.values()] == TRAPS
        assert {row["wav"] for row in read.values()} == {"/corpus/1.wav"}


def test_without_replacements_nothing_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("ID,wav\n1,$data_root/${x}.wav\n")
    assert read_csv(tmp_path / "a.csv")["1"]["wav"] == "$data_root/${x}.wav"
    assert read_csv(tmp_path / "a.csv", {"x": 7})["1"]["wav"] == "$data_root/7.wav"


def written(folder: Path, form: str, wav: str) -> tuple[Callable[..., Any], Path]:
    """A corpus of one item in one of the four forms, and what reads it."""
    path = folder / f"a.{form}"
    if form == "kaldi":
        path.mkdir()
        (path / "wav.scp").write_text(f"utt1 {wav}\n")
        return read_kaldi, path
    item = {"wav": wav, "text": "it costs $5 {laughs}"}
    text = {
        "csv": f"ID,wav,text\nutt1,{wav},it costs $5 {{laughs}}\n",
        "json": json.dumps({"utt1": item}),
        "jsonl": json.dumps({"id": "utt1", **item}) + "\n",
    }
    path.write_text(text[form])
    return {"csv": read_csv, "json": read_json, "jsonl": read_jsonl}[form], path


FORMS = {"csv": "$NAME or ${NAME}", "kaldi": "$NAME or ${NAME}", "json": "{NAME}", "jsonl": "{NAME}"}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("stands", "nearest"),
    [
        ("{data_rot}", "the nearest that it has is {data_rot}"),
        ("$data_root_x", "the nearest that it has is $data_root_x"),
        ("${DATA_root}", "the nearest that it has is ${DATA_root}"),
        ("plain", None),
    ],
)
def test_a_replacement_that_is_never_used_is_said(
    form: str, stands: str, nearest: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read, path = written(tmp_path, form, f"{stands}/1.wav")
    rows = read(path, {"data_root": "/corpus", "noise": "/n"})
    assert rows["utt1"]["wav"] == f"{stands}/1.wav"
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 and "the replacement 'noise' has no effect" in told[1]
    file = path / "wav.scp" if form == "kaldi" else path
    placeholder = FORMS[form].replace("NAME", "data_root")
    assert told[0].startswith(
        f"the replacement 'data_root' has no effect: {file} has no placeholder {placeholder}; "
    )
    last = "it has none at all" if form == "kaldi" else "it has {laughs}"
    assert told[0].endswith(nearest or last)


@pytest.mark.parametrize("form", FORMS)
def test_the_way_of_another_form_is_recognized(
    form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = "{data_root}" if "$" in FORMS[form] else "$data_root"
    read, path = written(tmp_path, form, f"{other}/1.wav")
    assert read(path, {"data_root": "/corpus"})["utt1"]["wav"] == f"{other}/1.wav"
    assert caplog.text.strip().endswith(f"; the nearest that it has is {other}")


@pytest.mark.parametrize("form", FORMS)
def test_replacements_that_are_used_are_passed_in_silence(
    form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mark = "$data_root" if "$" in FORMS[form] else "{data_root}"
    read, path = written(tmp_path, form, f"{mark}/1.wav")
    assert read(path, {"data_root": "/corpus"})["utt1"]["wav"] == "/corpus/1.wav"
    assert read(path)["utt1"]["wav"] == f"{mark}/1.wav" and read(path, {})
    assert not caplog.records


def test_replacements_reach_into_json(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"1": {"files": ["{root}/a", {"b": "{root}/{c}"}], "n": 3}}')
    assert read_json(tmp_path / "a.json", {"root": "/r"})["1"] == {
        "id": "1",
        "files": ["/r/a", {"b": "/r/{c}"}],
        "n": 3,
    }


def test_numbers_of_a_csv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("ID, duration, n, code\na, 1.5, 3, 007\n\nb, 2, 4, 1\n")
    rows = read_csv(tmp_path / "a.csv", types={"n": int})
    assert rows["a"] == {"id": "a", "duration": 1.5, "n": 3, "code": "007"}
    assert rows["b"]["duration"] == 2.0
    assert read_csv(tmp_path / "a.csv", types={"duration": str})["a"]["duration"] == "1.5"


def test_rows_may_have_keys_of_their_own(tmp_path: Path) -> None:
    lines = [{"id": "a", "x": 1}, {"id": "b", "y": [1, 2]}, {"id": "c", "x": 2.5, "y": None}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert list(read_jsonl(tmp_path / "a.jsonl").values()) == lines


def test_many_rows_come_back_in_order(tmp_path: Path) -> None:
    """Several chunks, the first of another kind than the last."""
    rows = [{"id": f"u{n}", "n": n if n < 9000 else n + 0.5, "t": "é" * (n % 3)} for n in range(10_000)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    read = read_jsonl(tmp_path / "a.jsonl")
    assert [read.row(n) for n in range(len(read))] == rows
    assert read["u8999"]["n"] == 8999 and type(read["u8999"]["n"]) is int


KALDI = {
    "wav.scp": "rec1 $root/1.wav\nrec2\t$root/2.wav\n",
    "segments": "utt1 rec1 0.0 1.5\nutt2 rec2 0.25 0.75\n",
    "text": "utt1 it costs $root\nutt2\n",
    "utt2spk": "utt1 anna\nutt2 bob\n",
    "spk2gender": "anna f\nbob m\n",
    "utt2lang": "utt1 en\nutt2 de\n",
}


def kaldi(folder: Path, **changed: str | None) -> Path:
    folder.mkdir()
    for name, text in (KALDI | {key.replace("_", "."): text for key, text in changed.items()}).items():
        if text is not None:
            (folder / name).write_text(text)
    return folder


def test_a_kaldi_folder(tmp_path: Path) -> None:
    rows = read_kaldi(kaldi(tmp_path / "d"), {"root": "/r"})
    assert rows["utt1"] == {
        "id": "utt1",
        "wav": "/r/1.wav",
        "start": 0.0,
        "stop": 1.5,
        "duration": 1.5,
        "text": "it costs $root",
        "lang": "en",
        "spk": "anna",
        "gender": "f",
    }
    assert rows["utt2"]["text"] == ""


def test_a_kaldi_folder_with_files_alone(tmp_path: Path) -> None:
    folder = kaldi(
        tmp_path / "d",
        segments=None,
        wav_scp="utt1 1.wav\nutt2 2.wav\n",
        utt2dur="utt1 1.5\nutt2 2\n",
        text=None,
        utt2spk=None,
        spk2gender=None,
        utt2lang=None,
    )
    assert read_kaldi(folder)["utt2"] == {"id": "utt2", "wav": "2.wav", "duration": 2.0}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"wav_scp": None}, "there is no wav.scp in "),
        (
            {"wav_scp": "rec1 sox 1.flac |\n"},
            "the recording 'rec1' is the command 'sox 1.flac |'. Nothing is run",
        ),
        ({"wav_scp": "rec1\n"}, "wav.scp, line 1: behind 'rec1' there must be a path"),
        ({"segments": "utt1 rec9 0 1\n"}, "the item 'utt1' is a part of 'rec9', which is not in wav.scp"),
        (
            {"segments": "utt1 rec1 2 1\n"},
            "the item 'utt1' goes from 2.0 to 1.0 s; it must end after it starts",
        ),
        (
            {"segments": "utt1 rec1 0\n"},
            "the item 'utt1' has 'rec1 0'; it must be a recording, a start and a stop",
        ),
        ({"segments": "utt1 rec1 0 x\n"}, "the item 'utt1' has 'x', which is no number"),
        ({"utt2spk": "utt1 anna\n"}, "utt2spk lacks the item 'utt2', which segments has"),
        (
            {"text": "utt1 a\nutt2 b\nutt3 c\nutt4 d\n"},
            "segments lacks the item 'utt3' and 1 more, which text has",
        ),
        ({"text": "utt1 a\nutt1 b\n"}, "text, line 2: the id 'utt1' is there twice"),
        ({"spk2gender": "anna f\n"}, "spk2gender lacks the speaker 'bob' of the item 'utt2'"),
    ],
)
def test_what_is_wrong_with_a_kaldi_folder(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        read_kaldi(kaldi(tmp_path / "d", **changed))
    assert message in str(error.value) and str(tmp_path) in str(error.value)


WRONG: list[tuple[str, Callable[..., Any], bytes, str]] = [
    ("no csv", read_csv, b"", "is empty; its first line must name the columns, one of them ID"),
    (
        "no ID",
        read_csv,
        b"id_,wav\n",
        "line 1 names the columns 'id_', 'wav'; just one of them must be ID or id",
    ),
    ("twice a column", read_csv, b"ID,wav,wav\n", "line 1 names the column 'wav' more than once"),
    (
        "too many",
        read_csv,
        b'ID,text\n1,"a\nb"\n2,a,b\n',
        "line 4 has 3 fields, and the header has 2 columns.",
    ),
    (
        "no number",
        read_csv,
        b"ID,duration\n1,2\n\n2,1.5s\n",
        "line 4: 'duration' is '1.5s', which is no float",
    ),
    ("no id", read_csv, b"ID,n\n1,2\n,3\n", "line 3: the column 'ID' is empty"),
    ("same id", read_csv, b"ID,n\n1,2\n\n2,3\n1,4\n", "the id '1' is there twice: on lines 2 and 5 of "),
    ("open quote", read_csv, b'ID,n\n1,"2\n2,3\n', "line 3: unexpected end of data"),
    ("latin-1", read_csv, b"ID,n\n1,a\n2,\xe9\n", "line 3 is not UTF-8: byte 3 of it is 0xe9"),
    ("no json", read_json, b'{"a": {"n": 1},\n "b": }', "line 2, column 7: this is no JSON: Expecting value"),
    ("no object", read_json, b"[1]", "holds a list; it must hold an object, from ids to objects"),
    ("no row", read_json, b'{"a": 1}', "the row of 'a' is a int; it must be a dict from keys to values"),
    ("same key", read_json, b'{"a": {"n": 1}, "a": {}}', "the key 'a' is there twice in one object"),
    ("other id", read_json, b'{"a": {"id": "b"}}', "the row of 'a' has the key 'id' with the value 'b'"),
    (
        "no line",
        read_jsonl,
        b'{"id": "a"}\n\n{"id": }\n',
        "line 3, column 8: this is no JSON: Expecting value",
    ),
    ("a list", read_jsonl, b'{"id": "a"}\n[1]\n', "line 2 holds a list; each line must hold an object"),
    (
        "two in one",
        read_jsonl,
        b'{"id": "a"},{"id": "b"}\n',
        "line 1, column 12: this is no JSON: Extra data",
    ),
    (
        "without id",
        read_jsonl,
        b'{"id": "a"}\n{"n": 1}\n',
        "line 2: there is no 'id'; each line must have one",
    ),
    ("id a number", read_jsonl, b'{"id": 7}\n', "line 1: 'id' is 7; each line must have one, a string"),
    (
        "same id",
        read_jsonl,
        b'{"id": "a"}\n{"id": "b"}\n\n{"id": "a"}',
        "'a' is there twice: on lines 1 and 4 of ",
    ),
    ("latin-1", read_jsonl, b'{"id": "\xe9"}', "line 1 is not UTF-8: byte 9 of it is 0xe9"),
]


@pytest.mark.parametrize(
    ("read", "content", "message"), [w[1:] for w in WRONG], ids=[f"{w[1].__name__} {w[0]}" for w in WRONG]
)
def test_what_is_wrong_is_said_with_file_and_line(
    tmp_path: Path, read: Callable[..., Any], content: bytes, message: str
) -> None:
    path = tmp_path / "manifest"
    path.write_bytes(content)
    with pytest.raises(ValueError) as error:
        read(path)
    assert message in str(error.value) and str(path) in str(error.value)


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("ID,n\n1,2\n")
    with pytest.raises(ValueError, match="a.csv has no column 'm'; it has 'ID', 'n'"):
        read_csv(tmp_path / "a.csv", types={"m": int})


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="a.csv"):
        read_csv(tmp_path / "a.csv")


def test_a_name_that_cannot_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("ID,n\n1,2\n")
    with pytest.raises(ValueError, match="replacements has the name 'data-root'"):
        read_csv(tmp_path / "a.csv", {"data-root": "x"})
