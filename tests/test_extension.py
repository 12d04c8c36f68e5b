"""Extensions: order, state, errors, and hooks that are missing."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from brainlib.extension import Extension, Extensions, make_extension
from brainlib.triggers import LimitTrigger


class Run:
    """A stand-in for a Brain: a few epochs of a few updates, driven as `fit` drives extensions."""

    def __init__(self, *extensions: Extension) -> None:
        self.extensions = Extensions(extensions)
        self.run_state = SimpleNamespace(optimizer_step=0, epoch=0)

    def fit(self, epochs: int = 1, steps: int = 3) -> None:
        self.run_state.epoch = 0
        self.extensions.start(self)
        try:
            for _ in range(epochs):
                for _ in range(steps):
                    self.run_state.optimizer_step += 1
                    self.extensions.fire(self)
                self.run_state.epoch += 1
                self.extensions.fire(self)
        except BaseException as error:
            self.extensions.on_error(self, error)
            raise
        finally:
            self.extensions.close(self)


class Noting(Extension):
    """Writes down what happens to it."""

    def __init__(self, notes: list[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.notes = notes

    def note(self, what: str) -> None:
        self.notes.append(f"{self.name} {what}")

    def start(self, brain: Any) -> None:
        self.note("start")

    def __call__(self, brain: Any) -> None:
        self.note(str(brain.run_state.optimizer_step))

    def on_error(self, brain: Any, exc: BaseException) -> None:
        self.note(f"error {exc!r}")

    def close(self, brain: Any) -> None:
        self.note("close")


class Counting(Extension):
    total = 0

    def __call__(self, brain: Any) -> None:
        self.total += 1

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


class Failing(Extension):
    """Fails in the hooks it is told to."""

    def __init__(self, *hooks: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hooks = hooks

    def fail(self, hook: str) -> None:
        if hook in self.hooks:
            raise RuntimeError(f"{self.name} failed in {hook}")

    def __call__(self, brain: Any) -> None:
        self.fail("call")

    def on_error(self, brain: Any, exc: BaseException) -> None:
        self.fail("on_error")

    def close(self, brain: Any) -> None:
        self.fail("close")


# ----------------------------------------------------------------------------------------------------------- order


def test_the_higher_priority_comes_first_and_equals_keep_their_order() -> None:
    notes: list[str] = []
    run = Run(
        Noting(notes, name="save", priority=-100),
        Noting(notes, name="first"),
        Noting(notes, name="write", priority=300),
        Noting(notes, name="second"),
    )
    run.fit(steps=1)
    names = ["write", "first", "second", "save"]
    assert notes == [f"{name} {what}" for what in ("start", "1", "close") for name in names]


def test_triggers_of_several_extensions_are_independent() -> None:
    notes: list[str] = []
    run = Run(
        Noting(notes, name="every", trigger=(1, "step")),
        Noting(notes, name="second", trigger=(2, "step")),
        Noting(notes, name="epoch", trigger=(1, "epoch")),
        Noting(notes, name="late", trigger=LimitTrigger(3, "step")),
        Noting(notes, name="never", trigger=None),
        Noting(notes, name="asked", trigger=lambda brain: brain.run_state.optimizer_step == 2),
    )
    run.fit(epochs=1, steps=3)
    fired = [note for note in notes if note.split()[1].isdigit()]
    assert fired == [
        "every 1", "every 2", "second 2", "asked 2", "every 3", "late 3",
        "epoch 3", "late 3",
    ]  # fmt: skip


def test_a_missing_hook_is_a_no_op() -> None:
    run = Run(Extension())
    run.fit()
    run.extensions.on_error(run, ValueError())


def test_a_subclass_need_not_call_super_init() -> None:
    class Mine(Extension):
        trigger = (1, "epoch")

        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, brain: Any) -> None:
            self.calls += 1

    mine = Mine()
    Run(mine).fit(epochs=2)
    assert mine.calls == 2


def test_no_extensions_are_false() -> None:
    assert not Extensions()
    assert len(Extensions([Extension()])) == 1


def test_a_second_fit_calls_them_again() -> None:
    counting = Counting(trigger=(1, "epoch"))
    run = Run(counting)
    run.fit(epochs=2)
    run.fit(epochs=3)
    assert counting.total == 5


# ----------------------------------------------------------------------------------------------------------- names


def test_two_of_one_class_need_two_names() -> None:
    with pytest.raises(
        ValueError,
        match=r"two extensions are called 'Counting'.*Counting\(..., name='Counting-2'\), or set its attribute",
    ):
        Extensions([Counting(), Counting()])
    extensions = Extensions([Counting(), Counting(name="Counting-2")])
    assert extensions["Counting-2"].name == "Counting-2"
    with pytest.raises(KeyError, match=r"no extension is called 'Countin'.*Did you mean 'Counting'\?"):
        extensions["Countin"]


def test_one_trigger_object_serves_one_extension() -> None:
    shared = LimitTrigger(1, "step")
    with pytest.raises(
        ValueError, match=r"'a' and 'b' have the same trigger object, LimitTrigger\(1, 'step'\)"
    ):
        Extensions([Counting(name="a", trigger=shared), Counting(name="b", trigger=shared)])


@pytest.mark.parametrize(
    ("item", "hint"),
    [
        (Counting, r"Pass an instance: Counting\(\)\."),
        (print, r"Decorate the function with @make_extension\(trigger=...\)"),
        (3, "Subclass brainlib.Extension"),
    ],
)
def test_what_is_no_extension(item: Any, hint: str) -> None:
    with pytest.raises(ValueError, match=rf"extensions\[1\] is .*, which is no extension\. {hint}"):
        Extensions([Extension(), item])


def test_a_wrong_trigger_names_the_extension() -> None:
    with pytest.raises(ValueError, match="the extension 'Counting': a trigger cannot count in 'batch'"):
        Extensions([Counting(trigger=(1, "batch"))])


# ----------------------------------------------------------------------------------------------------------- state


@pytest.mark.parametrize("cut", range(1, 12))
def test_first_k_save_restore_rest_equals_all(cut: int) -> None:
    def life(steps: int, run: Run) -> None:
        run.extensions.start(run)
        for _ in range(steps):
            run.run_state.optimizer_step += 1
            run.extensions.fire(run)

    def new() -> tuple[list[str], Run]:
        notes: list[str] = []
        return notes, Run(Noting(notes, name="third", trigger=(3, "step")), Counting(trigger=(2, "step")))

    all_notes, whole = new()
    life(12, whole)

    notes, first = new()
    life(cut, first)
    state = json.loads(json.dumps(first.extensions.state_dict()))
    more, second = new()
    second.run_state.optimizer_step = cut
    second.extensions.load_state_dict(state)
    life(12 - cut, second)

    assert notes + [note for note in more if "start" not in note] == all_notes
    assert second.extensions.state_dict() == whole.extensions.state_dict()


def test_one_that_is_not_kept_comes_and_goes(caplog: pytest.LogCaptureFixture) -> None:
    class Looks(Counting):
        kept = False

    looks = Looks()
    state = Extensions([looks, Counting()]).state_dict()
    assert list(state) == ["Counting"]
    Extensions([Counting()]).load_state_dict(state)  # it has gone
    Extensions([Counting(), Looks()]).load_state_dict(state)  # it has come, and nothing is said
    assert not caplog.records
    before = Extensions([Counting(name="Looks"), Counting()]).state_dict()  # of when it was still kept
    before["Looks"]["state"]["total"] = 5
    Extensions([looks, Counting()]).load_state_dict(before)
    assert looks.total == 0


def test_one_that_saves_is_not_due_again_and_those_after_it_are_made_up_for() -> None:
    saved: dict[str, Any] = {}

    def new() -> tuple[Run, Counting]:
        @make_extension(trigger=(5, "step"), priority=200)
        def save(brain: Run) -> None:
            saved.update(brain.extensions.state_dict())

        after = Counting(trigger=(5, "step"))
        return Run(save, after), after

    first, _ = new()
    first.fit(steps=5)
    second, after = new()
    second.run_state.optimizer_step = 5
    second.extensions.load_state_dict(dict(saved))
    saved.clear()
    second.fit(steps=1)
    assert saved == {}
    assert after.total == 1


def test_a_new_extension_starts_afresh_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    state = Extensions([Counting()]).state_dict()
    Extensions([Counting(), Extension()]).load_state_dict(state)
    assert "knows nothing of the extensions 'Extension': they start afresh" in caplog.text


def test_one_that_is_gone_is_an_error_that_says_the_way_out() -> None:
    first = Run(Counting(), Extension())
    first.fit()
    state = first.extensions.state_dict()
    gone = Extensions([Extension()])
    with pytest.raises(
        ValueError, match=r"the state of the extensions 'Counting', which .* it has 'Extension'"
    ):
        gone.load_state_dict(state)
    never = Counting(trigger=None)
    Extensions([never, Extension()]).load_state_dict(state)  # what the message advises
    assert never.total == 3


def test_state_that_nobody_reads_is_an_error() -> None:
    state = Extensions([Counting()]).state_dict()
    with pytest.raises(
        ValueError, match=r"state of the extension 'Counting' has the keys 'total', but Extension reads"
    ):
        Extensions([Extension(name="Counting")]).load_state_dict(state)
    with pytest.raises(ValueError, match="state of the extension 'Counting' has the keys 'state', not"):
        Extensions([Counting()]).load_state_dict({"Counting": {"state": {}}})


# ---------------------------------------------------------------------------------------------------------- errors


def test_an_error_is_told_to_all_and_raised(caplog: pytest.LogCaptureFixture) -> None:
    notes: list[str] = []
    run = Run(
        Failing("call", "on_error", "close", name="bad", priority=200),
        Noting(notes, name="good"),
    )
    with pytest.raises(RuntimeError, match="bad failed in call"):
        run.fit()
    assert notes == ["good start", "good error RuntimeError('bad failed in call')", "good close"]
    logged = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert logged == [
        (logging.ERROR, "the extension 'bad' failed in on_error"),
        (logging.ERROR, "the extension 'bad' failed in close"),
    ]
    assert "bad failed in close" in caplog.text  # with its traceback


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_interruptions_are_told_too(kind: type[BaseException]) -> None:
    notes: list[str] = []

    @make_extension
    def stop(brain: Any) -> None:
        raise kind()

    with pytest.raises(kind):
        Run(Noting(notes, name="good"), stop).fit()
    assert notes == ["good start", "good 1", f"good error {kind()!r}", "good close"]


def test_an_error_while_closing_surfaces_after_all_were_closed() -> None:
    notes: list[str] = []
    with pytest.raises(RuntimeError, match="bad failed in close"):
        Run(Failing("close", name="bad", priority=200), Noting(notes, name="good")).fit(steps=1)
    assert notes == ["good start", "good 1", "good close"]


# ------------------------------------------------------------------------------------------------------- functions


def test_functions_become_extensions() -> None:
    notes: list[str] = []

    @make_extension(
        trigger=(2, "step"),
        priority=7,
        start=lambda brain: notes.append("start"),
        on_error=lambda brain, error: notes.append(f"error {error}"),
        close=lambda brain: notes.append("close"),
    )
    def tell(brain: Run) -> None:
        notes.append(str(brain.run_state.optimizer_step))
        if brain.run_state.optimizer_step == 4:
            raise ValueError("four")

    assert (tell.name, tell.priority) == ("tell", 7)
    with pytest.raises(ValueError, match="four"):
        Run(tell).fit(steps=9)
    assert notes == ["start", "2", "4", "error four", "close"]


def test_functions_without_hooks() -> None:
    calls: list[int] = []

    @make_extension
    def tell(brain: Run) -> None:
        calls.append(brain.run_state.optimizer_step)

    run = Run(tell)
    run.fit(steps=2)
    run.extensions.on_error(run, ValueError())
    assert calls == [1, 2]


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(ValueError, match="a lambda has no name to save its state under: pass name="):
        make_extension(trigger=(1, "epoch"))(lambda brain: None)
    assert make_extension(name="mine")(lambda brain: None).name == "mine"
