"""What is recorded and written: the right updates, counted by what the operators did; partial ones; errors; nothing
changed in training.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import brainlib as bl
from brainlib.profiling.phases import Phases
from tests.brain.small import Batch, Regression, batches, linear, sgd, small
from tests.contracts.brains import (
    SEVEN,
    InnerFit,
    Items,
    OwnAccumulation,
    Plain,
    ending,
    make,
    train,
    two_fits,
)

seven = pytest.mark.parametrize("cls", SEVEN, ids=lambda cls: cls.__name__)


def num_updates_in(trace: Path) -> int:
    """By the step of the optimizer, which torch itself records."""
    events = json.loads(trace.read_text())["traceEvents"]
    return sum(str(e.get("name", "")).startswith("Optimizer.step#") for e in events)


def shapes_in(trace: Path) -> list[int]:
    """Rows of the input of each addmm in the forward."""
    events = json.loads(trace.read_text())["traceEvents"]
    found = sorted((e["ts"], e) for e in events if e.get("name") == "aten::addmm")
    return [e["args"]["Input Dims"][1][0] for _, e in found]


def options(folder: Path, text: str = "batch_range=[2, 5]") -> str:
    return f"{text}; profile_path={folder}/p"


def traces(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def profiler_of(brain: Any) -> bl.Profiler:
    return brain._profiler.profilers[0]  # type: ignore[no-any-return]


# -- the right updates -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_batches", "recorded"), [(1, None), (2, None), (3, 1), (4, 2), (20, 3)])
def test_runs_of_some_updates_against_a_range(
    num_batches: int, recorded: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Batch k has k + 1 rows, so the shapes in the trace say which updates they are."""
    caplog.set_level("INFO", logger="brainlib")
    brain = small(profiler_options=options(tmp_path, "batch_range=[2, 5]; tracer_option=OpDetail"))
    brain.fit(range(1), batches(*range(1, num_batches + 1)))
    if recorded is None:
        assert f"nothing was recorded: the fit ended after {num_batches} update" in caplog.text
        assert "[2, 5] begins with update 2, counted from 0" in caplog.text
        assert traces(tmp_path) == [] and ("is empty, and is not written" in caplog.text) == (
            num_batches == 2
        )
        return
    trace = tmp_path / "p.rank0.cycle0.json"
    assert num_updates_in(trace) == recorded
    assert shapes_in(trace) == [3, 4, 5][:recorded]
    text = (tmp_path / "p.rank0.cycle0.txt").read_text()
    assert ("PARTIAL" in text) == (recorded < 3)
    if recorded < 3:
        assert f"the profile is partial: {recorded} of the 3 updates of [2, 5]" in caplog.text
        assert brain.run_state.epoch == 1
    else:
        assert brain.optimizer_step == 5 and "stopped by the profiler" in caplog.text


def test_an_exception_in_batch_4(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Regression):
        def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
            if self.step == 5:
                raise RuntimeError("the original")
            return super().compute_forward(batch, stage)

    brain = small(Failing, profiler_options=options(tmp_path))
    with pytest.raises(RuntimeError, match="the original") as caught:
        brain.fit(range(1), batches(*[2] * 20))
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    assert num_updates_in(tmp_path / "p.rank0.cycle0.json") == 2
    assert "because the fit ended after 4 updates, by RuntimeError" in caplog.text
    assert not any(callable(value) and name in vars(bl.Brain) for name, value in vars(brain).items())


def test_an_interrupt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import os
    import signal

    class Stopping(Regression):
        def on_fit_batch_end(self, *args: Any) -> None:
            if self.step == 4:
                os.kill(os.getpid(), signal.SIGINT)

    brain = small(Stopping, profiler_options=options(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        brain.fit(range(1), batches(*[2] * 20))
    assert num_updates_in(tmp_path / "p.rank0.cycle0.json") == 2
    assert "because the fit ended after 4 updates, by a signal" in caplog.text


def test_updates_count_across_epochs(tmp_path: Path) -> None:
    brain = small(profiler_options=options(tmp_path))
    brain.fit(range(2), batches(2, 2, 2, 2), batches(3))
    assert num_updates_in(tmp_path / "p.rank0.cycle0.json") == 3
    assert (brain.run_state.epoch, brain.run_state.step) == (1, 1)
    assert profiler_of(brain).reports[0].phases["validation"] > 0


def test_ranges_back_to_back(tmp_path: Path) -> None:
    brain = small(profiler_options=options(tmp_path, "batch_range=[2, 5]; repeat=2; tracer_option=OpDetail"))
    brain.fit(range(1), batches(*range(1, 21)))
    assert shapes_in(tmp_path / "p.rank0.cycle0.json") == [3, 4, 5]
    assert shapes_in(tmp_path / "p.rank0.cycle1.json") == [6, 7, 8]
    assert brain.optimizer_step == 8


def test_accumulation(tmp_path: Path) -> None:
    brain = small(
        profiler_options=options(tmp_path, "batch_range=[1, 3]; tracer_option=OpDetail"),
        grad_accumulation_factor=3,
    )
    brain.fit(range(1), batches(*range(1, 13)))
    trace = tmp_path / "p.rank0.cycle0.json"
    assert num_updates_in(trace) == 2 and shapes_in(trace) == [4, 5, 6, 7, 8, 9]


def test_from_the_first_update(tmp_path: Path) -> None:
    brain = small(profiler_options=options(tmp_path, "batch_range=[0, 2]; tracer_option=OpDetail"))
    brain.fit(range(1), batches(*range(1, 6)))
    assert shapes_in(tmp_path / "p.rank0.cycle0.json") == [1, 2]


def test_a_void_window_is_no_update(tmp_path: Path) -> None:
    data = batches(1, 2, 3, 4, 5, 6)
    data[1]["y"][:] = float("nan")
    brain = small(profiler_options=options(tmp_path, "batch_range=[1, 3]; tracer_option=OpDetail"))
    brain.fit(range(1), data)
    assert shapes_in(tmp_path / "p.rank0.cycle0.json") == [2, 3, 4]  # the void one passes by in the range
    assert num_updates_in(tmp_path / "p.rank0.cycle0.json") == 2


@seven
def test_every_style_of_brain(cls: type[Plain], tmp_path: Path) -> None:
    brain = train(make(cls, profiler_options=options(tmp_path)), num_epochs=2)
    steps = {"Gan": 6, "TwoOptimizers": 4}.get(cls.__name__, 3)  # the second joins in the last of the three
    assert num_updates_in(tmp_path / "p.rank0.cycle0.json") == steps
    (report,) = profiler_of(brain).reports
    assert report.num_updates == 3 and not report.partial and brain.optimizer_step == 5
    assert sum(report.phases.values()) == pytest.approx(report.seconds)
    assert {"data wait", "forward", "loss", "update", "backward"} <= report.phases.keys()
    assert ("fit_batch" in report.phases) == brain._custom_fit_batch
    assert report.num_items == 10
    assert all(row.calls and row.forward >= row.own for row in report.modules)
    assert any(row.backward > 0 for row in report.modules)


def test_own_accumulation_drops_its_trailing_window(tmp_path: Path) -> None:
    """Five batches by three: one update an epoch, and the two batches that are left are none."""
    brain = make(
        OwnAccumulation,
        profiler_options=options(tmp_path, "batch_range=[0, 2]"),
        grad_accumulation_factor=3,
    )
    train(brain, num_epochs=4)
    assert num_updates_in(tmp_path / "p.rank0.cycle0.json") == 2
    assert brain.run_state.epoch == 1


def test_inner_fits_are_not_counted(tmp_path: Path) -> None:
    brain = train(make(InnerFit, profiler_options=options(tmp_path, "batch_range=[0, 3]")), num_epochs=1)
    assert brain.optimizer_step == 3
    assert num_updates_in(tmp_path / "p.rank0.cycle0.json") == 3


# -- nothing changes ---------------------------------------------------------------------------------------------------


@seven
@pytest.mark.parametrize("text", ["state=CPU", "timer_only=true"])
def test_training_with_it_is_training_without(cls: type[Plain], text: str, tmp_path: Path) -> None:
    watched = make(
        cls,
        bl.Checkpointer(tmp_path / "save"),
        profiler_options=options(tmp_path, f"batch_range=[2, 8]; exit_on_finished=false; {text}"),
        grad_accumulation_factor=1,
    )
    assert ending(two_fits(watched)) == ending(two_fits(make(cls)))


@seven
def test_a_run_that_ended_with_its_profile_goes_on(cls: type[Plain], tmp_path: Path) -> None:
    first = make(cls, bl.Checkpointer(tmp_path / "save"), profiler_options=options(tmp_path))
    two_fits(first)
    assert first.optimizer_step == 5
    second = make(cls, bl.Checkpointer(tmp_path / "save"), global_seed=991)
    two_fits(second)
    reference = two_fits(make(cls))
    assert {**ending(second), "trace": first.trace + second.trace} == ending(reference)


def test_a_transformer_takes_the_same_way(tmp_path: Path) -> None:
    """Its layers look for hooks on themselves, and compute otherwise where there are some."""

    class Teacher(Regression):
        def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
            with torch.no_grad():
                taught = self.modules.teacher.eval()(batch["x"][:, None, :2].float())
            return self.modules.model(batch["x"]) + taught[:, 0].double()

    def trained(**run_opts: Any) -> str:
        torch.manual_seed(0)
        teacher = nn.TransformerEncoderLayer(2, 2, 8, batch_first=True)
        brain = Teacher(
            {"model": linear(), "teacher": teacher.requires_grad_(False)},
            lambda _: sgd(brain.modules.model.parameters()),
            hparams={"seed": 0},
            run_opts={"noprogressbar": True, "device": "cpu", **run_opts},
        )
        brain.fit(range(1), batches(*[4] * 8))
        return str([p.tolist() for p in brain.modules.parameters()])

    watched = trained(profiler_options=options(tmp_path, "batch_range=[1, 6]; exit_on_finished=false"))
    assert watched == trained()


# -- files -------------------------------------------------------------------------------------------------------------


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    for _ in range(3):
        small(profiler_options=options(tmp_path)).fit(range(1), batches(*[2] * 6))
    assert traces(tmp_path) == sorted(
        f"p{number}.rank0.cycle0.{kind}" for number in ("", "-2", "-3") for kind in ("json", "txt")
    )


def test_by_default_in_the_output_folder(tmp_path: Path) -> None:
    bl.create_experiment_directory(tmp_path)
    try:
        brain = small(profiler_options="batch_range=[1, 2]")
    finally:
        from brainlib.experiment import end_experiment

        end_experiment()
    brain.fit(range(1), batches(2, 2, 2))
    assert {"profile.rank0.cycle0.json", "profile.rank0.cycle0.txt"} <= set(traces(tmp_path))
    assert "aten::addmm" in (tmp_path / "train_log.txt").read_text()


def test_the_default_trace_is_small(tmp_path: Path) -> None:
    mlp = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2)).double()
    small(model=mlp, profiler_options=f"profile_path={tmp_path}/p").fit(range(1), batches(*[4] * 25))
    trace = tmp_path / "p.rank0.cycle0.json"
    assert num_updates_in(trace) == 10
    assert trace.stat().st_size < 20e6


def test_files_that_cannot_be_written_do_not_end_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("a file")
    where = f"batch_range=[1, 2]; exit_on_finished=false; profile_path={tmp_path}/taken/p"
    brain = small(profiler_options=where)
    brain.fit(range(1), batches(2, 2, 2, 2))
    assert brain.optimizer_step == 4
    assert "the files of cycle 0 could not be written" in caplog.text


@pytest.mark.parametrize("name", ["n" * 300, "\udcff"])
def test_a_name_that_no_file_can_have(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    brain = small(
        profiler_options={
            "batch_range": [1, 2],
            "exit_on_finished": False,
            "profile_path": f"{tmp_path}/{name}",
        }
    )
    brain.fit(range(1), batches(2, 2, 2, 2))
    assert brain.optimizer_step == 4
    assert "the files of cycle 0 could not be written" in caplog.text


@pytest.mark.parametrize("key", ["calls", "total", "max", "min", "ave"])
def test_the_table_is_sorted(key: str, tmp_path: Path) -> None:
    brain = small(profiler_options=options(tmp_path, f"batch_range=[1, 3]; sorted_key={key}"))
    brain.fit(range(1), batches(*[2] * 4))
    attribute = {"max": "longest", "min": "shortest"}.get(key, key)
    values = [getattr(row, attribute) for row in profiler_of(brain).reports[0].operators]
    assert len(values) > 10 and values == sorted(values, reverse=True)


@pytest.mark.parametrize("detail", ["Default", "OpDetail", "AllOpDetail"])
def test_what_each_detail_adds(detail: str, tmp_path: Path) -> None:
    brain = small(profiler_options=options(tmp_path, f"batch_range=[1, 3]; tracer_option={detail}"))
    brain.fit(range(1), batches(*[2] * 4))
    text = (tmp_path / "p.rank0.cycle0.json").read_text()
    assert ("Input Dims" in text) == (detail != "Default")
    assert ("[memory]" in text) == (detail == "AllOpDetail")
    assert ("python_function" in text) == (detail == "AllOpDetail")
    assert (profiler_of(brain).reports[0].flops > 0) == (detail == "AllOpDetail")
    assert "module::model" in text and "brainlib::forward" in text


def test_timer_only_writes_no_trace(tmp_path: Path) -> None:
    brain = small(profiler_options=options(tmp_path, "batch_range=[2, 5]; timer_only=true"))
    brain.fit(range(1), batches(*[2] * 10))
    assert traces(tmp_path) == ["p.rank0.cycle0.txt"]
    report = profiler_of(brain).reports[0]
    assert report.num_updates == 3 and report.num_items == 6 and len(report.update_seconds) == 3
    assert report.phases["backward"] > 0 and report.memory["host"] > 0
    assert not report.operators and [row.name for row in report.modules] == ["model"]


# -- the other ways to use it ------------------------------------------------------------------------------------------


def test_in_a_with_statement_and_training_goes_on_afterwards(tmp_path: Path) -> None:
    brain = small()
    data = batches(*[2] * 12)
    with bl.Profiler(options(tmp_path), brain) as profiler:
        brain.fit(range(1), data)
    assert profiler.finished and brain.optimizer_step == 5
    assert "aten::addmm" in repr(profiler) and "data wait" in repr(profiler)
    brain.fit(range(1), data)
    assert brain.optimizer_step == 12


def test_a_with_statement_leaves_what_hangs_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Options and other 'with's go on, and are alone again afterwards."""
    brain = small(benchmark_max_step=8, check_shape=["all"])
    before = brain._profiler
    with (
        bl.Inspector(brain, num_updates=3) as inspector,
        bl.Profiler(options(tmp_path) + "; exit_on_finished=false", brain) as profiler,
    ):
        brain.fit(range(1), batches(*[2] * 12))
    assert profiler.finished and "model (Linear), 3 calls" in repr(inspector)
    assert brain.optimizer_step == 8 and '"updates": 8' in capsys.readouterr().out
    assert brain._profiler is before and "model (Linear), 2 calls" in repr(before.profilers[1])


def test_a_second_profiler_of_ours_is_refused_also_in_a_with_statement(tmp_path: Path) -> None:
    brain = small(profiler_options=options(tmp_path))
    with pytest.raises(ValueError, match="the Brain has a profiler already"), bl.Profiler("", brain):
        pass
    brain.fit(range(1), batches(*[2] * 8))
    assert profiler_of(brain).finished
    other = small()
    with (
        bl.Profiler(options(tmp_path), other),
        pytest.raises(ValueError, match="already"),
        bl.Profiler("", other),
    ):
        pass
    assert other._profiler is None


def test_one_that_has_recorded_and_one_that_was_never_begun_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    profiler = bl.Profiler(options(tmp_path, "batch_range=[0, 1]; timer_only=true"))
    profiler.step()
    profiler.step()
    assert caplog.text.count("step() was called outside of a 'with'") == 1
    caplog.clear()
    for _ in range(2):
        assert "recorded already" not in caplog.text
        with profiler:
            profiler.step()
            profiler.step()
    assert "its ranges are recorded already" in caplog.text and len(profiler.reports) == 1


def test_a_range_that_is_open_where_an_error_comes_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Regression):
        def compute_forward(self, batch: Batch, stage: bl.Stage) -> torch.Tensor:
            raise KeyError("the original")

    with pytest.raises(KeyError, match="the original"):
        small(Failing, profiler_options=options(tmp_path, "batch_range=[0, 3]")).fit(range(1), batches(2))
    assert "0 of the 3 updates of [0, 3] were recorded" in caplog.text
    assert "nothing was recorded" not in caplog.text


def test_later_fits_of_the_script_are_not_run(tmp_path: Path) -> None:
    brain = small(profiler_options=options(tmp_path))
    brain.fit(range(1), batches(*[2] * 12))
    brain.fit(range(1), batches(*[2] * 3))
    assert brain.optimizer_step == 5


def test_a_fit_too_short_leaves_it_to_the_next(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    brain = small(profiler_options=options(tmp_path))
    brain.fit(range(1), batches(2, 2))
    assert "nothing was recorded" in caplog.text
    brain.fit(range(1), batches(*[2] * 12))
    assert num_updates_in(tmp_path / "p.rank0.cycle0.json") == 3 and brain.optimizer_step == 7


def test_two_at_a_time_are_refused(tmp_path: Path) -> None:
    brain = small(profiler_options=options(tmp_path))
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
        pytest.raises(RuntimeError, match="another profiler of torch is recording already"),
    ):
        brain.fit(range(1), batches(*[2] * 6))


def test_torchs_own_profiler_as_before(tmp_path: Path) -> None:
    theirs = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    brain = Regression(
        {"model": linear()}, sgd, hparams={"seed": 0}, run_opts={"noprogressbar": True, "device": "cpu"},
        profiler=theirs,
    )  # fmt: skip
    brain.fit(range(1), batches(2, 2, 2))
    assert sum(e.name.startswith("Optimizer.step#") for e in theirs.events() or ()) == 3


LOOPS = """
import sys, torch, brainlib as bl
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for name, more, num_updates in (("ends", "", 20), ("goes-on", "exit_on_finished=no", 20), ("short", "", 4)):
    ended = False
    for update in range(num_updates):
        model(torch.ones(update + 1, 3)).sum().backward()
        optimizer.step()
        text = f"batch_range=[2, 5]; tracer_option=OpDetail; profile_path={sys.argv[1]}/{name}; {more}"
        if bl.add_profiler_step(text):
            ended = True
            break
    print(name, update, ended)
"""


def test_in_loops_that_are_not_ours(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOPS, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["ends 4 True", "goes-on 19 False", "short 3 False"]
    for name, recorded in (("ends", 3), ("goes-on", 3), ("short", 2)):
        trace = tmp_path / f"{name}.rank0.cycle0.json"
        assert num_updates_in(trace) == recorded and shapes_in(trace) == [3, 4, 5][:recorded]
    assert done.stderr.count("the profile is partial: 2 of the 3 updates") == 1


def test_a_loop_that_is_not_ours_cannot_begin_with_update_0() -> None:
    with pytest.raises(
        ValueError, match="'batch_range' is .0, 5., but add_profiler_step is called after an update"
    ):
        bl.add_profiler_step("batch_range=[0, 5]")
    assert bl.add_profiler_step(None) is False


# -- phases ------------------------------------------------------------------------------------------------------------


def test_an_instant_belongs_to_one_phase_also_after_an_error() -> None:
    now = [0.0]
    phases = Phases(clock=lambda: now[0])

    def pass_time(seconds: float) -> None:
        now[0] += seconds

    outer = phases.enter("fit_batch")
    pass_time(1)
    phases.enter("update")  # never left: an optimizer that raised
    pass_time(2)
    phases.leave(outer)
    pass_time(4)
    hooks = phases.enter("hooks")
    pass_time(8)
    forward = phases.enter("forward")  # a hook that computes something is a hook
    pass_time(16)
    phases.leave(forward)
    phases.leave(hooks)
    assert phases.settle() == 31
    assert dict(phases.seconds) == {"loop": 4, "fit_batch": 1, "update": 2, "hooks": 24}


def test_saving_is_a_phase(tmp_path: Path) -> None:
    brain = make(
        Plain,
        bl.Checkpointer(tmp_path / "save"),
        ckpt_interval_steps=1,
        profiler_options=options(tmp_path, "batch_range=[1, 4]; timer_only=true"),
    )
    brain.fit(range(1), Items(), train_loader_kwargs={"batch_size": 2})
    assert profiler_of(brain).reports[0].phases["checkpoint"] > 0
