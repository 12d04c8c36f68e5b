"""Who is called at which signal: while something runs, ours; before and afterwards, whoever was."""

from __future__ import annotations

import asyncio
import faulthandler
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from brainlib.stopping.signals import LISTENED_TO
from tests.brain.small import Regression, batches, same, small, weights


@pytest.fixture(autouse=True)
def _puts_back_handlers() -> Iterator[None]:
    """And is the proof that none is left behind: what a test itself set is compared by the test."""
    before = {signum: signal.getsignal(signum) for signum in (*LISTENED_TO, signal.SIGCHLD)}
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)
    assert signal.set_wakeup_fd(wakeup) == wakeup


def handlers() -> list[Any]:
    return [signal.getsignal(signum) for signum in LISTENED_TO]


class Asks(Regression):
    """Does something in the second batch of training, or of an evaluation."""

    stage = bl.Stage.TRAIN

    def does(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def compute_forward(self, batch: Any, stage: bl.Stage) -> torch.Tensor:
        if stage == self.stage and self.step == 2:
            self.does()
        return super().compute_forward(batch, stage)


def noted(brain: Any) -> list[Any]:
    seen: list[Any] = []
    brain.does = lambda: seen.extend(handlers())
    return seen


def test_only_while_something_runs() -> None:
    before = handlers()
    brain = small(Asks)
    assert handlers() == before
    inside = noted(brain)
    brain.fit(range(1), batches(4, 4))
    assert all(handler not in before for handler in inside) and len(inside) == 3
    assert handlers() == before
    brain.stage = bl.Stage.TEST
    inside = noted(brain)
    brain.evaluate(batches(4, 4))
    assert all(handler not in before for handler in inside) and len(inside) == 3
    assert handlers() == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_put_back_after_an_error(error: type[BaseException]) -> None:
    def fails() -> None:
        raise error

    before = handlers()
    brain = small(Asks)
    brain.does = fails
    with pytest.raises(error):
        brain.fit(range(1), batches(4, 4))
    assert handlers() == before


def test_put_back_after_a_signal() -> None:
    before = handlers()
    with pytest.raises(bl.Stopped) as stopped:
        small(Asks).fit(range(1), batches(4, 4))
    assert stopped.value.code == 143 and stopped.value.signal is signal.SIGTERM
    assert handlers() == before


def test_a_fit_inside_a_fit_leaves_them_alone() -> None:
    seen: list[Any] = []

    class Outer(Regression):
        inside = False

        def on_stage_start(self, stage: bl.Stage, epoch: Any = None) -> None:
            if not self.inside:
                self.inside = True
                seen.append(handlers())
                self.fit(range(1), batches(4))
                seen.append(handlers())
                self.evaluate(batches(4))
                seen.append(handlers())
                small().fit(range(1), batches(4))
                seen.append(handlers())

    before = handlers()
    small(Outer).fit(range(1), batches(4, 4))
    assert seen == [seen[0]] * 4 and seen[0] != before
    assert handlers() == before


def test_a_handler_of_the_users_own_is_called_too() -> None:
    heard: list[int] = []

    def mine(signum: int, frame: Any) -> None:
        heard.append(signum)

    signal.signal(signal.SIGTERM, mine)
    brain = small(Asks)
    with pytest.raises(bl.Stopped):
        brain.fit(range(1), batches(4, 4, 4))
    assert heard == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is mine
    assert brain.run_state.step == 2


def test_what_it_raises_waits_until_the_run_is_saved(tmp_path: Path) -> None:
    """``sys.exit`` in a handler is usual. Raised at once it would cut a batch in two."""

    def mine(signum: int, frame: Any) -> None:
        raise SystemExit(7)

    signal.signal(signal.SIGTERM, mine)
    brain = small(Asks, checkpointer=bl.Checkpointer(tmp_path))
    with pytest.raises(SystemExit) as caught:
        brain.fit(range(1), batches(4, 4, 4))
    assert caught.value.code == 7
    assert [c.counters["step"] for c in bl.Checkpointer(tmp_path).list_checkpoints()] == [2]


def test_one_that_is_set_inside_stays() -> None:
    def mine(signum: int, frame: Any) -> None: ...

    brain = small(Asks)
    brain.does = lambda: signal.signal(signal.SIGUSR1, mine)
    brain.fit(range(1), batches(4, 4))
    assert signal.getsignal(signal.SIGUSR1) is mine


def test_what_is_ignored_stays_ignored() -> None:
    """As ``nohup`` and a shell's background jobs have it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    brain = small(Asks)
    brain.does = lambda: [os.kill(os.getpid(), signum) for signum in (signal.SIGTERM, signal.SIGINT)]
    brain.fit(range(1), batches(4, 4, 4))
    assert brain.run_state.epoch == 1


def test_a_handler_in_c_stays_in_place(tmp_path: Path) -> None:
    """`faulthandler.register` is not to be seen from Python, and could not be put back."""
    with open(tmp_path / "stacks", "w") as file:
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=False)
        try:
            brain = small(Asks)
            brain.does = lambda: os.kill(os.getpid(), signal.SIGUSR1)
            brain.fit(range(1), batches(4, 4))
            os.kill(os.getpid(), signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
    assert (tmp_path / "stacks").read_text().count("most recent call first") == 2


def test_a_timer_of_the_users_own_runs_on(tmp_path: Path) -> None:
    with open(tmp_path / "stacks", "w") as file:
        faulthandler.dump_traceback_later(0.3, file=file)
        try:
            brain = small(Asks)
            brain.does = lambda: time.sleep(0.5)
            brain.fit(range(1), batches(4, 4))
        finally:
            faulthandler.cancel_dump_traceback_later()
    assert "Timeout" in (tmp_path / "stacks").read_text()


def test_an_event_loop_still_hears_of_signals() -> None:
    """It reads their numbers from a file descriptor of its own (a notebook's kernel may have one)."""
    heard: list[int] = []

    async def train() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: heard.append(signal.SIGTERM))
        with pytest.raises(bl.Stopped):
            small(Asks).fit(range(1), batches(4, 4))
        await asyncio.sleep(0.05)
        loop.remove_signal_handler(signal.SIGTERM)

    asyncio.run(train())
    assert heard == [signal.SIGTERM]


def test_in_a_thread_nothing_is_listened_to() -> None:
    inside: list[Any] = []
    before = handlers()

    def train() -> None:
        brain = small(Asks)
        inside.extend(noted(brain))
        brain.fit(range(1), batches(4, 4))
        inside.append(brain.run_state.epoch)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert inside == [1] and handlers() == before


def test_the_second_ctrl_c_at_once() -> None:
    twice = False
    brain = small(Asks)

    def does() -> None:
        nonlocal twice
        os.kill(os.getpid(), signal.SIGINT)
        twice = True
        os.kill(os.getpid(), signal.SIGINT)

    brain.does = does
    with pytest.raises(KeyboardInterrupt):
        brain.fit(range(1), batches(4, 4))
    assert twice, "the first one came to an end of its own"
    assert brain.run_state.step == 1, "the batch in hand is taken back"
    brain.stage = None
    brain.fit(range(1), batches(4, 4))
    reference = small()
    reference.fit(range(1), batches(4, 4))
    assert same(weights(brain), weights(reference))


def test_ctrl_c_while_another_signal_is_seen_to() -> None:
    brain = small(Asks)
    brain.does = lambda: [os.kill(os.getpid(), signum) for signum in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(KeyboardInterrupt):
        brain.fit(range(1), batches(4, 4))


@pytest.mark.parametrize(
    "signals",
    [(signal.SIGINT, signal.SIGTERM), (signal.SIGUSR1, signal.SIGTERM), (signal.SIGTERM, signal.SIGUSR1)],
)
def test_sigterm_is_the_last_word(signals: tuple[int, ...]) -> None:
    brain = small(Asks)
    brain.does = lambda: [os.kill(os.getpid(), signum) for signum in signals]
    with pytest.raises(bl.Stopped) as stopped:
        brain.fit(range(1), batches(4, 4))
    assert stopped.value.code == 143


def test_one_that_comes_after_the_last_batch_is_not_lost() -> None:
    class Late(Regression):
        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: Any = None) -> None:
            if epoch == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    brain = small(Late)
    with pytest.raises(bl.Stopped):
        brain.fit(range(2), batches(4, 4))
    assert brain.run_state.epoch == 2, "both epochs are closed"


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_in_an_evaluation_of_its_own(method: str) -> None:
    brain = small(Asks)
    brain.stage = bl.Stage.TEST
    brain.does = lambda: os.kill(os.getpid(), signal.SIGINT)
    if method == "predict":  # it has no step to look at
        brain.stage = None
        brain.compute_forward = lambda batch, stage: brain.does()
    before = [each.clone() for each in weights(brain)]
    with pytest.raises(KeyboardInterrupt):
        getattr(brain, method)(batches(4, 4, 4, 4))
    assert same(weights(brain), before)
    assert all(module.training for module in brain.modules.modules())


def test_an_evaluation_in_a_hook_of_a_batch_is_not_cut() -> None:
    """The point before the batch cannot be gone back to, so the run ends after it."""
    losses: list[float] = []

    class Evaluates(Regression):
        def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Any, should_step: bool) -> None:
            if self.run_state.step == 2:
                os.kill(os.getpid(), signal.SIGTERM)
                losses.append(self.evaluate(batches(4, 4)))

    brain = small(Evaluates)
    with pytest.raises(bl.Stopped):
        brain.fit(range(1), batches(4, 4, 4))
    assert brain.run_state.step == 2 and len(losses) == 1


def test_another_brain_in_a_hook_ends_both(tmp_path: Path) -> None:
    """Both are saved where they are."""
    inner = small(Asks, checkpointer=bl.Checkpointer(tmp_path / "inner"))

    class Outer(Regression):
        def on_stage_start(self, stage: bl.Stage, epoch: Any = None) -> None:
            if stage == bl.Stage.TRAIN and epoch == 1:
                inner.fit(range(1), batches(4, 4, 4))

    outer = small(Outer, checkpointer=bl.Checkpointer(tmp_path / "outer"))
    with pytest.raises(bl.Stopped):
        outer.fit(range(3), batches(4, 4, 4))
    assert inner.checkpointer.newest().counters["step"] == 2
    counters = outer.checkpointer.newest().counters
    assert (counters["epoch"], counters["step"]) == (1, 0)


def child() -> None:
    time.sleep(60)


def test_a_process_that_a_hook_starts_has_the_handlers_of_before() -> None:
    """It ends when it is told to, and the watcher does not hear of it."""
    statuses: list[int | None] = []

    def does() -> None:
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.terminate()
        process.join()
        statuses.append(process.exitcode)

    brain = small(Asks)
    brain.does = does
    brain.fit(range(1), batches(4, 4))
    assert statuses == [-signal.SIGTERM]


def test_extensions_hear_how_it_ends() -> None:
    told: list[BaseException] = []

    class Listens(bl.Extension):
        def on_error(self, brain: Any, exc: BaseException) -> None:
            told.append(exc)

    brain = Asks(
        {"model": torch.nn.Linear(3, 2).double()},
        lambda p: torch.optim.SGD(p, 0.1),
        run_opts={"noprogressbar": True, "device": "cpu"},
        extensions=[Listens()],
    )
    with pytest.raises(bl.Stopped) as stopped:
        brain.fit(range(1), batches(4, 4))
    assert told == [stopped.value]


def test_it_says_where_it_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="brainlib")
    brain = small(Asks, checkpointer=bl.Checkpointer(tmp_path))
    with pytest.raises(bl.Stopped, match="stopped by SIGTERM"):
        brain.fit(range(1), batches(4, 4, 4))
    newest = brain.checkpointer.newest()
    assert newest.reason == "signal" and newest.path.name == "step-00000002"
    assert (
        f"stopped by SIGTERM in epoch 1, after batch 2, update 2; the run goes on from {newest.path}"
        in caplog.text
    )


def test_what_is_on_the_disk_is_not_written_twice(tmp_path: Path) -> None:
    brain = small(Asks, checkpointer=bl.Checkpointer(tmp_path), ckpt_interval_steps=1, ckpt_async=False)
    with pytest.raises(bl.Stopped):
        brain.fit(range(1), batches(4, 4, 4))
    assert [c.reason for c in brain.checkpointer.list_checkpoints()] == ["timed", "timed"]


def test_a_snapshot_for_errors_is_none_for_a_signal(tmp_path: Path) -> None:
    checkpointer = bl.Checkpointer(tmp_path)
    brain = Asks(
        {"model": torch.nn.Linear(3, 2).double()},
        lambda p: torch.optim.SGD(p, 0.1),
        checkpointer=checkpointer,
        run_opts={"noprogressbar": True, "device": "cpu"},
        extensions=[bl.Snapshot(snapshot_on_error=True)],
    )
    with pytest.raises(bl.Stopped):
        brain.fit(range(1), batches(4, 4, 4))
    assert [c.reason for c in checkpointer.list_checkpoints()] == ["signal"]
