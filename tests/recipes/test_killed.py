"""The recipes on real speech, killed in the middle of a short run and started again, end as if they had not been."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.recipes.outcome import assert_same_run, num_rows, num_saved, results, rows_of
from tests.recipes.warm import WarmScript

pytest.importorskip("sklearn", reason="the process that starts recipes imports what any of them needs")
pytest.importorskip("matplotlib", reason="the recipes draw with matplotlib")

ROOT = Path(__file__).resolve().parents[2]
NUM_EPOCHS = 3


@dataclass(frozen=True)
class Short:
    """A short run of a recipe.

    Args:
        recipe: its folder.
        hparams: the file, without its end.
        data: the data set.
        modules: whose weights are compared.
        arguments: what makes it short.
        files: what it leaves besides, which has to be the same to the byte.
    """

    recipe: str
    hparams: str
    data: str
    modules: tuple[str, ...]
    arguments: tuple[str, ...]
    files: tuple[str, ...]


FEW_UTTERANCES = (
    *("--num_utterances", "9", "--max_batch_frames", "900", "--channels", "16", "--hidden_size", "16"),
    *("--num_warmup", "2", "--ngram_weights", "[1.0]", "--word_scores", "[0.0]", "--beam_size", "5"),
)
ERRORS = ("errors_greedy.txt", "errors_lexicon.txt", "errors_n-gram.txt")
WORKERS = "{batch_size: 16, shuffle: True, num_workers: 2}"

RUNS = {
    "yesno": Short("yesno", "cnn", "yesno", ("model",), ("--items_per_epoch", "64"), ("errors.txt",)),
    "yesno with workers": Short(
        *("yesno", "cnn", "yesno", ("model",)),
        ("--items_per_epoch", "64", "--train_loader", WORKERS),
        ("errors.txt",),
    ),
    "an4": Short("an4", "characters", "an4", ("scale", "model"), FEW_UTTERANCES, ERRORS),
}


@pytest.fixture(scope="module")
def started() -> Iterator[Callable[..., int]]:
    """`started(short, data, out, kill_when=...)` runs the recipe and returns its status; output to out/output.txt."""
    with ExitStack() as stack:
        warm: dict[str, WarmScript] = {}

        def run(short: Short, data: Path, out: Path, kill_when: Callable[[], bool] = lambda: False) -> int:
            if short.recipe not in warm:
                script = ROOT / "recipes" / short.recipe / "train.py"
                warm[short.recipe] = stack.enter_context(WarmScript(script, ROOT))
            out.mkdir(exist_ok=True)
            words = [str(ROOT / "hparams" / short.recipe / f"{short.hparams}.yaml"), "--noprogressbar"]
            words += ["--data_folder", str(data), "--output_folder", str(out)]
            # Not beside training: which of these saves are put off there depends on the clock.
            words += ["--ckpt_interval_steps", "1", "--ckpt_async", "False"]
            words += ["--number_of_epochs", str(NUM_EPOCHS), *short.arguments]
            return warm[short.recipe].run(*words, output=out / "output.txt", kill_when=kill_when)

        yield run


@pytest.mark.parametrize("name", RUNS)
def test_killed_in_the_middle_it_ends_as_an_uncut_run(
    started: Callable[..., int], data_dir: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    short, uncut, out = RUNS[name], tmp_path / "uncut", tmp_path / "cut"
    data = data_dir(short.data)
    assert started(short, data, uncut) == 0, (uncut / "output.txt").read_text()
    assert [row["epoch"] for row in rows_of(uncut)] == list(range(1, NUM_EPOCHS + 1))

    moments: list[Callable[[], bool]] = [
        lambda: num_saved(out) >= 2,  # inside the first epoch
        lambda: num_rows(out) >= 1,  # between logging an epoch and closing it, or just after
        lambda: num_rows(out) >= NUM_EPOCHS,  # in the last epoch, or beginning to evaluate
    ]
    for number, moment in enumerate(moments):
        status = started(short, data, out, kill_when=moment)
        assert status == -9, (number, (out / "output.txt").read_text())
        assert not (out / "results.json").exists()
    assert started(short, data, out) == 0, (out / "output.txt").read_text()

    assert_same_run(out, uncut, short.modules)
    for file in short.files:
        assert (out / file).read_bytes() == (uncut / file).read_bytes(), file
    told = (out / "train_log.txt").read_text()
    assert told.count("starting from scratch") == 1 and told.count("resumed from") == len(moments)
    assert results(out)["seconds"] > 0
