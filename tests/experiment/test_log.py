"""train_log.txt: each experiment in its own file, errors included, and nothing else touched."""

from __future__ import annotations

import contextvars
import logging
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from brainlib.common.logs import logger
from brainlib.experiment import current_experiment, end_experiment, experiment_log, in_experiment
from brainlib.loggers.file import FileTrainLogger


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    end_experiment()  # of whoever came before
    handlers = list(logger.handlers)
    yield
    end_experiment()
    assert logger.handlers == handlers, "a handler was left on the logger"
    assert current_experiment() is None


def said(folder: Path) -> list[str]:
    """The messages in a log, without their time."""
    path = folder / "train_log.txt"
    if not path.exists():
        return []
    return [
        re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ", "", line) for line in path.read_text().splitlines()
    ]


def test_what_the_library_says_is_written_with_time_and_level(tmp_path: Path) -> None:
    experiment_log(tmp_path / "run")
    logger.info("resumed from %s", "step-00000010")
    logger.warning("careful")
    logger.debug("too fine")
    assert said(tmp_path / "run") == ["INFO resumed from step-00000010", "WARNING careful"]


def test_others_are_not_written_and_the_root_logger_is_left_alone(tmp_path: Path) -> None:
    root, hook = list(logging.getLogger().handlers), sys.excepthook
    experiment_log(tmp_path)
    logging.getLogger("another.library").warning("not ours")
    assert said(tmp_path) == []
    assert logging.getLogger().handlers == root and sys.excepthook is hook


def test_a_log_goes_on_and_a_torn_line_stays_alone(tmp_path: Path) -> None:
    (tmp_path / "train_log.txt").write_text("2026-01-01 00:00:00,000 INFO cut in the mid")
    experiment_log(tmp_path)
    logger.info("again")
    assert said(tmp_path) == ["INFO cut in the mid", "INFO again"]


def test_two_experiments_one_after_the_other(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    experiment_log(a)
    logger.info("first")
    experiment_log(b)
    logger.info("second")
    with in_experiment(a):  # the Brain of the first one trains
        logger.info("third")
        with in_experiment(b):
            logger.info("fourth")
        with in_experiment(None):
            logger.info("fifth")
    logger.info("sixth")
    assert said(a) == ["INFO first", "INFO third", "INFO fifth"]
    assert said(b) == ["INFO second", "INFO fourth", "INFO sixth"]


def test_two_experiments_in_two_threads(tmp_path: Path) -> None:
    barrier = threading.Barrier(2)

    def run(name: str) -> None:
        experiment_log(tmp_path / name)
        for number in range(20):
            barrier.wait()
            logger.info("%s %d", name, number)
        end_experiment()

    threads = [threading.Thread(target=run, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in ("a", "b"):
        assert said(tmp_path / name) == [f"INFO {name} {number}" for number in range(20)]


def in_thread(target) -> None:  # type: ignore[no-untyped-def]
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()


def test_a_thread_without_context_belongs_to_the_only_experiment_or_to_none(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    experiment_log(a)
    in_thread(lambda: logger.info("only one"))
    with in_experiment(b):
        in_thread(lambda: logger.info("whose?"))
        context = contextvars.copy_context()
        in_thread(lambda: context.run(logger.info, "handed on"))
    in_thread(lambda: logger.info("only one again"))
    assert said(a) == ["INFO only one", "INFO only one again"]
    assert said(b) == ["INFO handed on"]


def test_it_holds_from_one_notebook_cell_to_the_next(tmp_path: Path) -> None:
    """Each cell runs in a context of its own, in one thread."""
    a, b = tmp_path / "a", tmp_path / "b"
    for cell in (
        lambda: experiment_log(a),
        lambda: logger.info("one"),
        lambda: experiment_log(b),
        lambda: logger.info("two"),
    ):
        contextvars.copy_context().run(cell)
    assert said(a) == ["INFO one"] and said(b) == ["INFO two"]


def test_after_the_last_experiment_nothing_is_written(tmp_path: Path) -> None:
    with in_experiment(tmp_path / "a"):
        assert current_experiment() == tmp_path / "a"
    logger.info("afterwards")
    experiment_log(tmp_path / "b")
    end_experiment()
    end_experiment()
    logger.info("afterwards")
    assert said(tmp_path / "a") == said(tmp_path / "b") == []


# ----------------------------------------------------------------------------------------------------------- errors


def test_an_error_is_written_with_its_traceback_and_raised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        with in_experiment(tmp_path):
            1 / 0  # noqa: B018
    assert caught.value.__cause__ is None
    text = (tmp_path / "train_log.txt").read_text()
    assert "ERROR ended by an error: Traceback (most recent call last)" in text
    assert "1 / 0" in text and text.endswith("ZeroDivisionError: division by zero\n")
    assert capsys.readouterr().err == ""  # Python itself shows it


def test_an_error_inside_two_is_written_once(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        with in_experiment(tmp_path):
            with in_experiment(tmp_path):
                1 / 0  # noqa: B018
    assert (tmp_path / "train_log.txt").read_text().count("ended by an error") == 1


def test_an_error_in_the_fit_of_a_named_experiment_is_written(tmp_path: Path) -> None:
    experiment_log(tmp_path)
    with pytest.raises(ZeroDivisionError):
        with in_experiment(tmp_path):
            1 / 0  # noqa: B018
    assert (tmp_path / "train_log.txt").read_text().count("ended by an error") == 1


def test_an_interruption_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        with in_experiment(tmp_path):
            raise KeyboardInterrupt
    assert said(tmp_path) == ["ERROR ended by an error: KeyboardInterrupt()"]


# ------------------------------------------------------------------------------------------------------------ folders


def test_a_removed_folder_stays_removed_and_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    experiment_log(folder)
    logger.info("here")
    shutil.rmtree(folder)
    logger.info("lost")
    logger.info("lost again")
    assert not folder.exists()
    gone = [record.getMessage() for record in caplog.records if "is gone" in record.getMessage()]
    assert gone == [f"the experiment folder {folder} is gone; its train_log.txt ends here"]

    experiment_log(folder)  # begun anew
    logger.info("back")
    assert said(folder) == ["INFO back"]


def test_an_error_after_the_folder_was_removed_stays_the_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        with in_experiment(tmp_path / "run"):
            shutil.rmtree(tmp_path / "run")
            1 / 0  # noqa: B018
    assert not (tmp_path / "run").exists()


def test_a_relative_folder_is_that_of_the_moment_it_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    experiment_log("run")
    monkeypatch.chdir(tmp_path / "elsewhere")
    logger.info("here")
    assert said(tmp_path / "run") == ["INFO here"]


def test_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="file"):
        experiment_log(tmp_path / "file")


def test_a_file_train_logger_has_train_log_txt_for_itself(tmp_path: Path) -> None:
    """As recipes of SpeechBrain's name it; what brainlib says is beside it, as theirs is."""
    stats = FileTrainLogger(tmp_path / "run" / "train_log.txt")
    with pytest.raises(ZeroDivisionError), in_experiment(tmp_path / "run"):
        logger.info("resumed")
        stats.log_stats({"epoch": 1}, {"loss": 0.5})
        raise ZeroDivisionError
    assert (tmp_path / "run/train_log.txt").read_text() == "epoch: 1 - train loss: 0.50\n"
    beside = (tmp_path / "run/log.txt").read_text()
    assert "INFO resumed" in beside and "ended by an error: Traceback" in beside


def test_one_with_a_file_of_another_name_changes_nothing(tmp_path: Path) -> None:
    FileTrainLogger(tmp_path / "run" / "train_stats.txt")
    FileTrainLogger(tmp_path / "other" / "train_log.txt")
    experiment_log(tmp_path / "run")
    logger.info("resumed")
    assert said(tmp_path / "run") == ["INFO resumed"] and not (tmp_path / "run/log.txt").exists()


def test_a_link_to_the_folder_is_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    monkeypatch.chdir(tmp_path)
    FileTrainLogger("link/train_log.txt")
    experiment_log("run")
    logger.info("resumed")
    assert said(tmp_path / "run") == [] and "resumed" in (tmp_path / "run/log.txt").read_text()
