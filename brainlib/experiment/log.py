"""train_log.txt: what the library said, each experiment in its own file. Where a FileTrainLogger has that, log.txt.

Which experiment a record belongs to is a context variable, so two experiments in one process (a loop over seeds, two
threads, a notebook) keep their logs apart. Only the library's own logger gets a handler, and ``sys.excepthook`` is left
alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TypeAlias

from brainlib.common.files import make_folder
from brainlib.common.lines import append_line
from brainlib.common.logs import file_is_taken, logger
from brainlib.distributed.world import if_main_process

__all__ = ["current_experiment", "end_experiment", "experiment_log", "in_experiment"]

PathLike: TypeAlias = str | os.PathLike[str]

LOG_NAME = "train_log.txt"
OTHER_NAME = "log.txt"  # where that is the file of a FileTrainLogger, as in recipes of SpeechBrain's

_current: ContextVar[Path | None] = ContextVar("brainlib_experiment", default=None)
_entered: ContextVar[tuple[Path, ...]] = ContextVar("brainlib_experiments_entered", default=())
# A context is not handed on to new threads, nor from one cell of a notebook to the next; these two stand in for it.
_of_thread = threading.local()  # .folder: the one that experiment_log named last in this thread
_active: Counter[Path] = Counter()  # named or entered somewhere in the process, and how often
_gone: set[Path] = set()  # removed while they were active


class _ExperimentHandler(logging.Handler):
    """Appends a record to the log of the experiment it belongs to. One for all experiments of the process."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        folder = current_experiment()
        if folder is None or folder in _gone:
            return
        if not folder.is_dir():  # removed or moved while it was in use: do not bring it back to life
            _gone.add(folder)
            logger.warning("the experiment folder %s is gone; its %s ends here", folder, _log_of(folder).name)
            return
        try:
            append_line(_log_of(folder), self.format(record))
        except OSError:
            self.handleError(
                record
            )  # as every handler of the standard library: say it, and let training go on


_handler = _ExperimentHandler()


def _log_of(folder: Path) -> Path:
    """The file that receives what is said."""
    log = folder / LOG_NAME
    return folder / OTHER_NAME if file_is_taken(log) else log


def current_experiment() -> Path | None:
    """The folder whose log receives what is said now; None when there is none.

    A thread that was not given a context belongs to the only active experiment of the process or, if there are several,
    to none. Hand it one with ``contextvars.copy_context().run``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with in_experiment(folder):
    ...         current_experiment() == Path(folder).resolve()
    True
    """
    folder = _current.get() or getattr(_of_thread, "folder", None)
    if folder is None and len(_active) == 1:
        return next(iter(_active))
    return folder


def experiment_log(path: PathLike) -> None:
    """Send what the library says from now on to ``train_log.txt`` in this folder, until another is named.

    Where a `FileTrainLogger` writes that file, ``log.txt`` is taken.

    Args:
        path: the folder of the experiment; made when it is missing.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     experiment_log(folder)
        ...     current_experiment() == Path(folder).resolve()
        ...     end_experiment()
        True
    """
    folder = _opened(path)
    if former := getattr(_of_thread, "folder", None):
        _closed(former)
    _of_thread.folder = folder
    _current.set(folder)


def end_experiment() -> None:
    """Stop writing to the log that `experiment_log` or `create_experiment_directory` began; without one, do nothing.

    >>> end_experiment()
    """
    _current.set(None)
    if former := getattr(_of_thread, "folder", None):
        _of_thread.folder = None
        _closed(former)


@contextlib.contextmanager
def in_experiment(path: PathLike | None) -> Iterator[None]:
    """Inside, what the library says goes to this experiment's log; an error that leaves is written there too.

    The error is raised again, as it was. Enter it around a whole script to have errors of the preparation in the log.

    Args:
        path: the folder of the experiment, made when it is missing; None changes nothing.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with in_experiment(folder):
        ...         logger.debug("goes to train_log.txt, if the level of the logger allows")
    """
    if path is None or not if_main_process():
        yield
        return
    folder = _opened(path)
    outermost = folder not in _entered.get()
    current, entered = _current.set(folder), _entered.set((*_entered.get(), folder))
    try:
        yield
    except BaseException as error:
        if outermost:  # an inner one leaves it to the outer, so that it is written once
            _write_error(folder, error)
        raise
    finally:
        _current.reset(current)
        _entered.reset(entered)
        _closed(folder)


def _write_error(folder: Path, error: BaseException) -> None:
    """Only into the file: on the console Python shows the traceback itself."""
    text = "".join(traceback.format_exception(error)) if isinstance(error, Exception) else repr(error)
    record = logger.makeRecord(
        logger.name, logging.ERROR, __file__, 0, "ended by an error: %s", (text.rstrip(),), None
    )
    if folder.is_dir():
        with contextlib.suppress(OSError):  # perhaps the disk is full; the error that is on its way says more
            append_line(_log_of(folder), _handler.format(record))


def _opened(path: PathLike) -> Path:
    folder = Path(path).resolve()
    make_folder(folder)
    _gone.discard(folder)
    _active[folder] += 1
    if _handler not in logger.handlers:
        logger.addHandler(_handler)
    return folder


def _closed(folder: Path) -> None:
    _active[folder] -= 1
    if _active[folder] <= 0:
        del _active[folder]
    if not _active:
        logger.removeHandler(_handler)
