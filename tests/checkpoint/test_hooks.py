"""Hooks of the user's own: on the class, or given beside the object."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from brainlib.checkpoint import (
    CheckpointError,
    mark_as_loader,
    mark_as_saver,
    mark_as_transfer,
    register_checkpoint_hooks,
)
from brainlib.checkpoint.hooks import hooks_of
from tests.checkpoint.small import Counter, fill, linear, value_of
from tests.checkpoint.small import Foreground as Checkpointer


@register_checkpoint_hooks
class Note:
    """SpeechBrain's scenario 5: the class writes and reads its own format."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.told: bool | None = None

    @mark_as_saver
    def _save(self, path: Path) -> None:
        path.write_text(self.text)

    @mark_as_loader
    def _load(self, path: Path, end_of_epoch: bool, device: object = None) -> None:
        self.text = path.read_text()
        self.told = end_of_epoch


@pytest.mark.parametrize("end_of_epoch", [True, False])
def test_a_decorated_class(tmp_path: Path, end_of_epoch: bool) -> None:
    checkpoint = Checkpointer(tmp_path, {"note": Note("größe")}).save_checkpoint(end_of_epoch=end_of_epoch)
    assert [path.name for path in checkpoint.path.iterdir() if path.name != "manifest.json"] == ["note.ckpt"]
    note = Note()
    assert Checkpointer(tmp_path, {"note": note}).recover_if_possible() == checkpoint
    assert (note.text, note.told) == ("größe", end_of_epoch)


def test_hooks_are_inherited_and_may_be_overridden(tmp_path: Path) -> None:
    class Plain(Note):
        pass

    class Overridden(Note):
        def _save(self, path: Path) -> None:
            path.write_text(self.text.upper())

    @register_checkpoint_hooks
    class OwnSaver(Note):
        @mark_as_saver
        def _save_loudly(self, path: Path) -> None:
            path.write_text(self.text + "!")

    for cls, expected in ((Plain, "a"), (Overridden, "A"), (OwnSaver, "a!")):
        Checkpointer(tmp_path / cls.__name__, {"note": cls("a")}).save_checkpoint()
        note = cls()
        Checkpointer(tmp_path / cls.__name__, {"note": note}).recover_if_possible()
        assert note.text == expected
    assert hooks_of(OwnSaver()) is not hooks_of(Note())


def test_hooks_come_before_what_the_object_is(tmp_path: Path) -> None:
    @register_checkpoint_hooks
    class Special(torch.nn.Linear):
        @mark_as_saver
        def _save(self, path: Path) -> None:
            path.write_text("special")

        @mark_as_loader
        def _load(self, path: Path, end_of_epoch: bool) -> None:
            assert path.read_text() == "special"
            fill(self, 9.0)

    Checkpointer(tmp_path, {"model": Special(1, 1)}).save_checkpoint()
    model = Special(1, 1)
    Checkpointer(tmp_path, {"model": model}).recover_if_possible()
    assert value_of(model) == 9.0


@pytest.mark.parametrize(
    ("mark", "method", "told"),
    [
        (
            mark_as_saver,
            lambda self: None,
            r"mark_as_saver is called as \(self, path\), which <lambda>\(self\) does not take",
        ),
        (mark_as_saver, lambda self, path, more: None, r"\(self, path\)"),
        (
            mark_as_loader,
            lambda self, path: None,
            r"mark_as_loader is called as \(self, path, end_of_epoch\)",
        ),
        (mark_as_loader, lambda self, path, end, device: None, r"\(self, path, end_of_epoch\)"),
        (mark_as_transfer, lambda self: None, r"mark_as_transfer is called as \(self, path\)"),
    ],
)
def test_a_wrong_signature_is_refused_when_the_class_is_defined(mark: Any, method: Any, told: str) -> None:
    """SpeechBrain's scenario 10."""
    with pytest.raises(TypeError, match=told):
        mark(method)


def test_other_signatures_are_fine() -> None:
    mark_as_loader(lambda *args: None)
    mark_as_loader(lambda self, path, end_of_epoch=True, device=None: None)
    mark_as_saver(lambda self, path, **kwargs: None)
    assert hooks_of(Note()).transfer == ""  # type: ignore[union-attr]


def test_what_is_saved_has_to_be_loaded() -> None:
    with pytest.raises(TypeError, match="Half is decorated .* no method marked with mark_as_loader"):

        @register_checkpoint_hooks
        class Half:
            @mark_as_saver
            def _save(self, path: Path) -> None: ...

    with pytest.raises(TypeError, match="no method marked with mark_as_saver"):
        register_checkpoint_hooks(type("Nothing", (), {}))


def test_the_option_of_speechbrain_is_taken_and_said_to_be_without_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    register_checkpoint_hooks(save_on_main_only=True)(Note)
    assert not caplog.records
    register_checkpoint_hooks(save_on_main_only=False)(Note)
    assert "save_on_main_only=False has no effect" in caplog.text


# ---------------------------------------------------------------------------------------------- given beside the object


def save_text(obj: Any, path: Path) -> None:
    path.write_text(str(obj["n"]))


def load_text(obj: Any, path: Path, end_of_epoch: bool) -> None:
    obj["n"] = int(path.read_text())


def test_hooks_beside_an_object_that_could_not_be_saved_otherwise(tmp_path: Path) -> None:
    for number, make in enumerate(
        (
            lambda folder, obj: Checkpointer(folder, {"x": obj}, {"x": load_text}, {"x": save_text}),
            lambda folder, obj: added(folder, obj),
        )
    ):
        folder, obj = tmp_path / str(number), {"n": 3}
        make(folder, obj).save_checkpoint()
        obj["n"] = 0
        make(folder, obj).recover_if_possible()
        assert obj == {"n": 3}


def added(folder: Path, obj: Any) -> Checkpointer:
    checkpointer = Checkpointer(folder)
    checkpointer.add_recoverable("x", obj, custom_load_hook=load_text, custom_save_hook=save_text)
    return checkpointer


def test_a_load_hook_alone_gets_what_was_saved_as_usual(tmp_path: Path) -> None:
    Checkpointer(tmp_path, {"model": linear(2.0)}).save_checkpoint()

    def doubled(model: Any, path: Path, end_of_epoch: bool) -> None:
        fill(model, 2 * torch.load(path, weights_only=True)["weight"].item())

    model = linear()
    Checkpointer(tmp_path, {"model": model}, {"model": doubled}).recover_if_possible()
    assert value_of(model) == 4.0


def test_a_save_hook_alone_is_read_as_usual(tmp_path: Path) -> None:
    def save_halved(model: Any, path: Path) -> None:
        torch.save({key: value / 2 for key, value in model.state_dict().items()}, path)

    checkpointer = Checkpointer(tmp_path, {"model": linear(2.0)}, custom_save_hooks={"model": save_halved})
    checkpointer.save_checkpoint()
    model = linear()
    Checkpointer(tmp_path, {"model": model}).recover_if_possible()
    assert value_of(model) == 1.0


def test_a_hook_may_write_a_folder_or_a_name_of_its_own(tmp_path: Path) -> None:
    """numpy.save, for one, adds ".npy" to what it is given."""
    loaded: list[str] = []

    def save(obj: Any, path: Path) -> None:
        (path / "inner").mkdir(parents=True)
        (path / "inner" / "b.txt").write_text("b")
        (path / "a.txt").write_text("a")
        path.with_name(path.name + ".npy").write_text("c")

    def load(obj: Any, path: Path, end_of_epoch: bool) -> None:
        loaded.extend(
            p.read_text()
            for p in (path / "a.txt", path / "inner" / "b.txt", path.with_name(path.name + ".npy"))
        )

    checkpointer = Checkpointer(tmp_path, {"x": {}, "model": linear()}, {"x": load}, {"x": save})
    checkpoint = checkpointer.save_checkpoint()
    assert set(checkpoint.recoverables["x"].files) == {"x.ckpt/a.txt", "x.ckpt/inner/b.txt", "x.ckpt.npy"}
    checkpointer.recover_if_possible()
    assert loaded == ["a", "b", "c"]

    (checkpoint.path / "x.ckpt" / "inner" / "b.txt").write_text("B")
    with pytest.raises(CheckpointError, match="are damaged"):
        checkpointer.recover_if_possible()


def test_a_hook_that_writes_nothing_or_a_link(tmp_path: Path) -> None:
    nothing = Checkpointer(tmp_path / "a", {"x": {}}, {"x": load_text}, {"x": lambda obj, path: None})
    with pytest.raises(
        CheckpointError, match=r"recoverable 'x' \(builtins.dict\): its save hook wrote nothing"
    ):
        nothing.save_checkpoint()
    linking = Checkpointer(
        tmp_path / "b", {"x": {}}, {"x": load_text}, {"x": lambda obj, path: path.symlink_to("/etc/hosts")}
    )
    with pytest.raises(CheckpointError, match="x.ckpt is no regular file"):
        linking.save_checkpoint()
    assert list(tmp_path.glob("*/*")) == []


def test_a_hook_that_fails_is_named(tmp_path: Path) -> None:
    def failing(obj: Any, *_: Any) -> None:
        raise ZeroDivisionError("n is 0")

    with pytest.raises(
        CheckpointError, match=r"recoverable 'x' \(builtins.dict\) failed in its save hook: ZeroDivisionError"
    ):
        Checkpointer(tmp_path, {"x": {}}, {"x": load_text}, {"x": failing}).save_checkpoint()
    assert list(tmp_path.iterdir()) == []
    Checkpointer(tmp_path, {"x": {"n": 1}}, {"x": load_text}, {"x": save_text}).save_checkpoint()
    with pytest.raises(
        CheckpointError, match=r"recoverable 'x' .* could not be loaded from .*: ZeroDivisionError: n is 0"
    ):
        Checkpointer(tmp_path, {"x": {"n": 1}}, {"x": failing}, {"x": save_text}).recover_if_possible()


def test_hooks_are_checked_when_they_are_given(tmp_path: Path) -> None:
    with pytest.raises(
        TypeError, match=r"the load hook of 'x' is called as \(obj, path, end_of_epoch\), which save_text"
    ):
        Checkpointer(tmp_path, custom_load_hooks={"x": save_text})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="the save hook of 'x' is a str; a function is needed"):
        Checkpointer(tmp_path).add_recoverable("x", {}, custom_save_hook="save")  # type: ignore[arg-type]
    Checkpointer(tmp_path, custom_load_hooks={"x": functools.partial(load_text)})
    with pytest.raises(CheckpointError, match="no way known to save one"):
        Checkpointer(tmp_path, {"x": {}}, custom_save_hooks={"x": save_text})


def test_a_hook_for_a_name_that_is_not_there_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": linear()}, {"modle": load_text})
    checkpointer.save_checkpoint()
    checkpointer.save_checkpoint()
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert (
        warning == "the custom hook for 'modle' has no effect: nothing has that name. Did you mean 'model'?"
    )


def test_what_a_hook_wrote_as_several_files_needs_a_hook(tmp_path: Path) -> None:
    def save(obj: Any, path: Path) -> None:
        path.mkdir()
        (path / "a").write_text("a")

    Checkpointer(tmp_path, {"x": Counter()}, custom_save_hooks={"x": save}).save_checkpoint()
    with pytest.raises(
        CheckpointError, match="it was saved by a hook, as 'x.ckpt/a', and no load hook is known here"
    ):
        Checkpointer(tmp_path, {"x": Counter()}).recover_if_possible()
