"""Where a debug or benchmark run writes, and that nothing of the file is built to find that out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import brainlib as bl

FILE = """
output_folder: !PLACEHOLDER
save: !ref <output_folder>/save
made: !apply:pathlib.Path.touch [!apply:pathlib.Path [!ref <output_folder>/made]]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.yaml"
    path.write_text(FILE)
    return path


OUT = "results/my run: a"


@pytest.mark.parametrize(
    "overrides",
    [
        {"output-folder": OUT},
        {"output_folder": OUT},
        f"output_folder: '{OUT}'  # mine\n",
        bl.parse_arguments(["a.yaml", "--output-folder", OUT])[2],
    ],
    ids=["dashes", "dict", "text", "typed"],
)
def test_the_folder_is_another_one_however_it_was_given(file: Path, overrides: Any) -> None:
    for options, name in ({"debug": True}, "/debug"), ({"benchmark_max_step": 3}, "/benchmark"), ({}, ""):
        found = bl.set_trial_apart(file, options, overrides)
        assert (found is overrides) == (name == "")
        assert type(found) is type(overrides)
        text = bl.dump_hyperpyyaml({"output_folder": OUT, "save": ""})
        loaded = bl.load_hyperpyyaml(text.replace("save: ''", "save: !ref <output_folder>/save"), found)
        assert loaded == {"output_folder": OUT + name, "save": f"{OUT}{name}/save"}


def test_what_was_typed_is_still_known(file: Path) -> None:
    _, run_opts, overrides = bl.parse_arguments(["a.yaml", "--output_folder", "x", "--save", "--debug"])
    with pytest.raises(ValueError, match="--save has no value"):
        bl.set_trial_apart(file, run_opts, overrides)
    file.write_text(FILE + "shuffle: true\n")
    _, run_opts, overrides = bl.parse_arguments(["a.yaml", "--shuffle", "maybe", "--output_folder", "x"])
    with pytest.raises(ValueError, match="--shuffle: 'shuffle' is 'maybe'"):
        bl.load_hyperpyyaml(file, overrides.with_value("output_folder", "y"))


def test_nothing_is_built_and_the_real_folder_is_left_alone(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="brainlib")
    real, trial = tmp_path / "out", tmp_path / "out" / "debug"
    trial.mkdir(parents=True)
    for folder in (real, trial):
        (folder / "metrics.jsonl").write_text("{}\n")
    given = {"output_folder": str(real)}
    bl.set_trial_apart(file, {"debug": True, "debug_persistently": True}, given)
    assert (trial / "metrics.jsonl").exists()
    found = bl.set_trial_apart(file, {"debug": True}, given)
    assert not (trial / "metrics.jsonl").exists() and (real / "metrics.jsonl").exists()
    assert caplog.messages == [f"debug: a few batches only; the files of this run go to {trial}"] * 2
    assert not (real / "made").exists() and not (trial / "made").exists()
    bl.load_hyperpyyaml(file, found)
    assert (trial / "made").exists() and not (real / "made").exists()


@pytest.mark.parametrize(
    "where", ["debug: true\n", "run_opts: {debug: true}\n", "run_opts: {debug: !ref <on>}\n"]
)
def test_the_option_may_stand_in_the_file(file: Path, where: str) -> None:
    file.write_text(f"{FILE}on: true\n{where}")
    assert bl.set_trial_apart(file, {}, {"output_folder": "a"}) == {"output_folder": str(Path("a/debug"))}
    assert bl.set_trial_apart(file, {"debug": False}, {"output_folder": "a"}) == {"output_folder": "a"}


def test_a_folder_that_is_not_known_is_an_error(file: Path, tmp_path: Path) -> None:
    def error(text: str, run_opts: Mapping[str, Any], **options: Any) -> str:
        file.write_text(text)
        with pytest.raises(ValueError) as caught:
            bl.set_trial_apart(file, run_opts, **options)
        return str(caught.value)

    debug = {"debug": True}
    assert "'output_folder' has no value yet" in error(FILE, debug)
    assert f"{file} has no such key. Give it as a text, or call" in error("out: a\n", debug)
    assert "has None there" in error("output_folder: null\n", debug)
    assert "computes it by an object" in error("output_folder: !apply:str [a]\n", debug)
    assert "'debug' comes from an object, and has to be known" in error("debug: !apply:bool [1]\n", {})
    assert "'run_opts' comes from an object" in error("run_opts: !new:dict\n", {})
    file.write_text("out: a\n")
    assert bl.set_trial_apart(file) is None
    assert bl.set_trial_apart(file, debug, key="out") == {"out": str(Path("a/debug"))}
    with pytest.raises(FileNotFoundError):
        bl.set_trial_apart(tmp_path / "none.yaml")
