"""What a profiler may be told, in every way to say it; and what each thing that is wrong with it is answered."""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import Any

import pytest

import brainlib as bl
from brainlib.config import load_hyperpyyaml, parse_arguments
from brainlib.profiling import profiler as profilers
from tests.brain.small import small

read = bl.ProfilerOptions.read


def test_nothing_is_off_and_an_empty_text_is_all_defaults() -> None:
    assert read(None) is None
    options = read("")
    assert options == read(" ; ") == read({}) == bl.ProfilerOptions()
    assert options is not None
    assert (options.batch_range, options.repeat, options.state, options.sorted_key) == (
        (10, 20),
        1,
        "All",
        "total",
    )
    assert (options.tracer_option, options.profile_path) == ("Default", None)
    assert (options.timer_only, options.exit_on_finished) == (False, True)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("batch_range=[50, 60]; profile_path=model.profile;", "batch_range", (50, 60)),
        ("batch_range = [ 50,60 ] ", "batch_range", (50, 60)),
        ("batch-range=(0, 1)", "batch_range", (0, 1)),
        ("repeat=3", "repeat", 3),
        ("state=GPU", "state", "GPU"),
        ("state = cpu", "state", "CPU"),
        ("sorted_key=ave", "sorted_key", "ave"),
        ("tracer_option=AllOpDetail", "tracer_option", "AllOpDetail"),
        ("profile_path=a=b/c=d", "profile_path", "a=b/c=d"),
        ("profile_path='my runs; all/it'", "profile_path", "my runs; all/it"),
        ('profile_path="it\'s here"; repeat=2', "profile_path", "it's here"),
        ("profile_path=my runs/it's", "profile_path", "my runs/it's"),
        ("profile_path=.", "profile_path", "./profile"),
        ("profile_path=/", "profile_path", "/profile"),
        ("profile_path=runs/", "profile_path", "runs/profile"),
        ("profile_path=runs/..", "profile_path", "runs/../profile"),
        ("timer_only=true", "timer_only", True),
        ("timer_only=on", "timer_only", True),
        ("exit_on_finished=False", "exit_on_finished", False),
        ("exit_on_finished=on", "exit_on_finished", True),
        ("exit_on_finished=0", "exit_on_finished", False),
    ],
)
def test_good_texts(text: str, key: str, value: Any) -> None:
    assert getattr(read(text), key) == value


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("batchrange=[1, 2]", "there is no profiler option 'batchrange'; there are 'batch_range', 'repeat', .*"
                              "Did you mean 'batch_range'?"),
        ("batch_range=[a,b]", r"'batch_range' is '\[a,b\]', but it takes \[a, b\] with whole numbers 0 <= a < b"),
        ("batch_range=[60,50]", r"'batch_range' is '\[60,50\]', but it takes \[a, b\] with whole numbers"),
        ("batch_range=[50,50]", "'batch_range'"),
        ("batch_range=[-1,5]", "'batch_range'"),
        ("batch_range=[1,2,3]", "'batch_range'"),
        ("batch_range=[1.5,3]", "'batch_range'"),
        ("batch_range=7", "'batch_range'"),
        ({"batch_range": 7}, "'batch_range' is 7, but it takes"),
        ({"batch_range": [True, 7]}, "'batch_range'"),
        ("repeat=0", "'repeat' is '0', but it takes a whole number, at least 1"),
        ("repeat=often", "'repeat'"),
        ("state=TPU", "'state' is 'TPU', but it takes one of 'CPU', 'GPU', 'All'"),
        ("sorted_key=mean", "'sorted_key' is 'mean', but it takes one of 'calls', 'total', 'max', 'min', 'ave'"),
        ("tracer_option=OpDetails", "'tracer_option' .* one of 'Default', 'OpDetail', 'AllOpDetail'.*mean 'OpDetail'"),
        ("profile_path=", "'profile_path' is '', but it takes a path"),
        ("timer_only=maybe", "'timer_only' is 'maybe', but it takes true or false"),
        ("exit_on_finished=2", "'exit_on_finished' is '2', but it takes true or false"),
        ("batch_range", "hold 'batch_range', which is no key=value"),
        ("=5", "hold '=5', which is no key=value"),
        ("repeat=2; repeat=3", "'repeat' is given twice"),
        ("profile_path='open", "open a quote ' and do not close it"),
        (5, "the profiler options are 5; they are a text"),
        ({"repeat": None}, "'repeat' is None, but it takes"),
        ({"profile_path": "a\0b"}, "'profile_path' is 'a.x00b', but it takes a path"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_what_is_allowed(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(given)


def test_what_has_no_effect_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    read("timer_only=true; state=CPU; sorted_key=max")
    assert "'state', 'sorted_key' has no effect with timer_only" in caplog.text
    caplog.clear()
    read("batch_range=[0, 5000]")
    assert "records 5000 updates; the trace may be too large to open" in caplog.text
    caplog.clear()
    bl.RunOptions.resolve({"profile_warmup": 3})
    assert "profile_warmup has no effect without profile_training" in caplog.text
    caplog.clear()
    bl.RunOptions.resolve({"profile_training": True, "profiler_options": ""})
    assert "profile_training has no effect, because profiler_options" in caplog.text


def test_what_is_odd_is_told_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    small(profiler_options="batch_range=[0, 5000]")
    assert caplog.text.count("the trace may be too large") == 1
    caplog.clear()
    for text in (
        f"batch_range=[1, 5000]; profile_path={tmp_path}/p",
        {"batch_range": [1, 2], "timer_only": True, "state": "CPU", "profile_path": f"{tmp_path}/q"},
    ):
        for _ in range(3):
            bl.add_profiler_step(text)
    for profiler in profilers._of_loops.values():
        profiler.stop()
        atexit.unregister(profiler.stop)
    assert caplog.text.count("the trace may be too large") == 1
    assert caplog.text.count("has no effect with timer_only") == 1


# -- as a run option ---------------------------------------------------------------------------------------------------


def test_as_a_run_option_on_every_path(tmp_path: Path) -> None:
    text = "batch_range=[50, 60]; profile_path=model.profile"
    hparams = tmp_path / "hparams.yaml"
    hparams.write_text("lr: 1\n")
    for spelled in ("--profiler_options", "--profiler-options"):
        _, run_opts, _ = parse_arguments([str(hparams), spelled, text])
        options = bl.RunOptions.resolve(run_opts).profile_options.profiler()
        assert options is not None and options.batch_range == (50, 60)
    hparams.write_text(
        "run_opts: {profiler_options: {batch_range: [2, 5], profile_path: 'a; b', timer_only: true}}\n"
    )
    options = bl.RunOptions.resolve(hparams=load_hyperpyyaml(hparams)).profile_options.profiler()
    assert options == bl.ProfilerOptions(batch_range=(2, 5), profile_path="a; b", timer_only=True)


def test_off_and_all_defaults_are_told_apart(tmp_path: Path) -> None:
    assert bl.RunOptions().profile_options.profiler() is None
    for off in (None, "null", "none"):
        assert bl.RunOptions.resolve({"profiler_options": off}).profile_options.profiler() is None
    assert bl.RunOptions.resolve({"profiler_options": ""}).profile_options.profiler() == bl.ProfilerOptions()
    assert bl.RunOptions.resolve({"profiler_options": {}}).profile_options.profiler() == bl.ProfilerOptions()
    hparams = tmp_path / "hparams.yaml"
    hparams.write_text("lr: 1\n")
    _, run_opts, _ = parse_arguments([str(hparams), "--profiler_options", ""])
    assert bl.RunOptions.resolve(run_opts).profile_options.profiler() == bl.ProfilerOptions()


def test_a_bad_one_is_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="'batch_range' is"):
        small(profiler_options="batch_range=[60, 50]")


def test_speechbrains_names_mean_a_range() -> None:
    options = bl.RunOptions.resolve({"profile_training": True, "profile_warmup": 3, "profile_steps": 4})
    assert options.profile_options.profiler() == bl.ProfilerOptions(batch_range=(3, 7))


# -- as an object ------------------------------------------------------------------------------------------------------


def test_what_a_brain_takes_as_profiler() -> None:
    for given in ("batch_range=[1, 2]", {"batch_range": [1, 2]}, bl.ProfilerOptions(batch_range=(1, 2))):
        bl.Brain(profiler=given)
    with pytest.raises(ValueError, match="profiler is 5, which has no start and no step and no stop; give a"):
        bl.Brain(profiler=5)
    with pytest.raises(ValueError, match="torch can run one at a time, give one of them"):
        bl.Brain(profiler=bl.Profiler(), run_opts={"profiler_options": ""})
    with pytest.raises(ValueError, match="None, which is off"):
        bl.Profiler(None)  # type: ignore[arg-type]


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match="'state' is 'GPU', but torch sees no GPU here: write state=CPU"):
        bl.Profiler("state=GPU")
