"""Files that grow by whole lines."""

from __future__ import annotations

from pathlib import Path

from brainlib.common.lines import append_line


def test_the_folder_is_made_and_lines_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "log.txt"
    append_line(path, "one")
    append_line(path, "zwölf")
    assert path.read_text(encoding="utf-8") == "one\nzwölf\n"


def test_a_torn_last_line_stays_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(b'{"a": 1}\n{"b": "\xc3')  # cut in the middle of a letter
    append_line(path, "next")
    assert path.read_bytes().split(b"\n") == [b'{"a": 1}', b'{"b": "\xc3', b"next", b""]


def test_a_text_that_is_no_valid_unicode_is_still_written(tmp_path: Path) -> None:
    append_line(tmp_path / "log.txt", "file \udcff name")
    assert (tmp_path / "log.txt").read_text() == "file \\udcff name\n"
