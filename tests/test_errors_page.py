"""The page of errors: what it quotes is what is said. Each message is provoked, by the fault that it is about."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import brainlib as bl
from brainlib.audio import read_audio, write_audio
from brainlib.distributed.world import World
from tests.brain.small import Regression, Rows, batches, linear, sgd, small
from tests.distributed.host import Host

PAGE = Path(__file__).resolve().parent.parent / "docs" / "errors.md"
ROW = re.compile(
    r"^\| `(?P<quoted>[^`]+)`(?: \((?P<kind>[WI])\))? \| (?P<why>.+) \| (?P<todo>.+) \|$", re.MULTILINE
)
QUOTED = {row["quoted"]: row["kind"] for row in ROW.finditer(PAGE.read_text(encoding="utf-8"))}

Said = list[str]
Provoke = Callable[[Path], Said | None]
PROVOKED: dict[str, Provoke] = {}


def provokes(quoted: str) -> Callable[[Provoke], Provoke]:
    """The function provokes the message; it raises it, has it logged, or returns what another process printed."""

    def note(function: Provoke) -> Provoke:
        assert quoted not in PROVOKED
        PROVOKED[quoted] = function
        return function

    return note


def trained(
    folder: Path | None = None, cls: type[bl.Brain] = Regression, num_epochs: int = 1, **options: Any
) -> Any:
    checkpointer = None if folder is None else bl.Checkpointer(folder / "save")
    brain = small(cls, checkpointer=checkpointer, **options)
    brain.fit(range(num_epochs), batches(2, 2))
    return brain


def newest(folder: Path) -> Path:
    checkpoint = bl.Checkpointer(folder / "save").newest()
    assert checkpoint is not None
    return checkpoint.path


def table(**columns: list[Any]) -> bl.DynamicItemDataset:
    number = len(next(iter(columns.values())))
    return bl.DynamicItemDataset(
        {f"utt{n}": {key: values[n] for key, values in columns.items()} for n in range(number)}
    )


# ------------------------------------------------------------------------------------------------------------- data


@provokes("the … dataset is empty: it holds no item.")
def _(folder: Path) -> None:
    small().fit(range(1), Rows(0), train_loader_kwargs={"batch_size": 2})


@provokes("train_set is a …; it must be a Dataset, a DataLoader, or a list or other iterable of batches.")
def _(folder: Path) -> None:
    small().fit(range(1), batches(2)[0])


@provokes("train_set is an iterator that was used up in the first epoch:")
def _(folder: Path) -> None:
    small().fit(range(2), iter(batches(2, 2)))


@provokes("the training data changed in the middle of epoch …")
def _(folder: Path) -> None:
    class Cut(Regression):
        def on_fit_batch_end(self, *args: Any) -> None:
            self.checkpointer.save_checkpoint(end_of_epoch=False)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(folder, Cut)
    brain = small(checkpointer=bl.Checkpointer(folder / "save"))
    brain.fit(range(1), batches(2, 2, 2))


@provokes("the item '…': '…' by … failed:")
def _(folder: Path) -> None:
    data = table(n=[0])
    data.add_dynamic_item(lambda n: 1 / n, takes="n", provides="inverse")
    data.set_output_keys(["inverse"])
    _ = data[0]


@provokes("the items of a batch cannot be stacked: …")
def _(folder: Path) -> None:
    items = [{"wave": torch.ones(3)}, {"wave": torch.ones(4)}]
    small().fit(range(1), items, train_loader_kwargs={"batch_size": 2})


@provokes("valid_set is a list of the same kind of things as train_set, and has no loader options:")
def _(folder: Path) -> None:
    items = [{key: value[0] for key, value in batch.items()} for batch in batches(1, 1)]
    small().fit(range(1), items, items, train_loader_kwargs={"batch_size": 2})


@provokes("the data set is empty: it holds no item, and so no key.")
def _(folder: Path) -> None:
    bl.DynamicItemDataset({}, output_keys=["wav"])


@provokes("there is no key '…' in this data set;")
def _(folder: Path) -> None:
    table(text=["a"]).set_output_keys(["txt"])


@provokes("the key '…' of the item '…' is of the type …")
def _(folder: Path) -> None:
    table(n=["1", "2"]).filtered_sorted(key_min_value={"n": 1})


@provokes("the replacement '…' has no effect:")
def _(folder: Path) -> None:
    (folder / "a.csv").write_text("ID,wav\n1,$data_rot/1.wav\n")
    bl.DynamicItemDataset.from_csv(folder / "a.csv", {"data_root": "/corpus"})


@provokes("the items … have different keys:")
def _(folder: Path) -> None:
    bl.PaddedBatch([{"id": "a", "x": 1}, {"id": "b"}])


@provokes("the key '…' cannot be padded:")
def _(folder: Path) -> None:
    bl.PaddedBatch([{"x": torch.zeros(3, 2)}, {"x": torch.zeros(3, 4)}])


@provokes("… of … longer than max_batch_length=")
def _(folder: Path) -> None:
    bl.DynamicBatchSampler(range(2), 1.0, lengths_list=[0.5, 2.0])


@provokes("…: it has … samples a second, and … are needed.")
def _(folder: Path) -> None:
    write_audio(folder / "a.wav", torch.zeros(5), 8000)
    read_audio(folder / "a.wav", sample_rate=16000)


@provokes("…: its header speaks of … bytes at least, and … are there")
def _(folder: Path) -> None:
    write_audio(folder / "a.wav", torch.zeros(500), 8000)
    os.truncate(folder / "a.wav", 200)
    read_audio(folder / "a.wav")


# ------------------------------------------------------------------------------------------- checkpoints and resuming


@provokes("the checkpoint … is skipped:")
def _(folder: Path) -> None:
    trained(folder, num_epochs=2)
    (newest(folder) / "model.pt").write_bytes(b"no model")
    trained(folder, num_epochs=3)


@provokes("all checkpoints in … that could be loaded are damaged;")
def _(folder: Path) -> None:
    trained(folder)
    (newest(folder) / "model.pt").write_bytes(b"no model")
    trained(folder)


@provokes("… does not fit, so nothing was loaded:")
def _(folder: Path) -> None:
    trained(folder)
    trained(folder, model=torch.nn.Sequential(linear()))


@provokes("…is a numpy.ndarray, which the safe loader (torch.load(weights_only=True)) would not read back")
def _(folder: Path) -> None:
    class Seen(Regression):
        def get_extra_state(self) -> dict[str, Any]:
            return {"seen": np.ones(3)}

    trained(folder, Seen)


@provokes("no checkpoint holds …, and a resumed run will not have it:")
def _(folder: Path) -> None:
    trained(folder, hparams={"head": torch.nn.Linear(2, 2)})


@provokes("no checkpoint has the metric '…'.")
def _(folder: Path) -> None:
    trained(folder).evaluate(batches(2), min_key="WRE")


@provokes("the checkpoint holds the state of the extensions …, which this Brain does not have;")
def _(folder: Path) -> None:
    for extensions in ([bl.Snapshot()], []):
        checkpointer = bl.Checkpointer(folder / "save")
        bl_brain = Regression({"model": linear()}, sgd, checkpointer=checkpointer, extensions=extensions)
        bl_brain.fit(range(1), batches(2), progressbar=False)


@provokes("hparams differ from those of the checkpoint:")
def _(folder: Path) -> None:
    trained(folder, hparams={"lr": 0.1})
    trained(folder, hparams={"lr": 0.2}, num_epochs=2)


@provokes("going on, but not to the same bits as without the restart:")
def _(folder: Path) -> None:
    trained(folder)
    number = torch.get_num_threads()
    torch.set_num_threads(number + 1)
    try:
        trained(folder, num_epochs=2)
    finally:
        torch.set_num_threads(number)


@provokes("NOT SAVED:")
def _(folder: Path) -> None:
    class Seen(Regression):
        def get_extra_state(self) -> dict[str, Any]:
            return {"seen": np.ones(3)}

    trained(folder, Seen, on_save_error="warn")


@provokes("resume='…': there is no such path;")
def _(folder: Path) -> None:
    trained(folder, resume=str(folder / "nowhere"))


@provokes("nothing to do:")
def _(folder: Path) -> None:
    trained(folder)
    trained(folder)


# -------------------------------------------------------------------------------------------------- options and hparams


@provokes("There is no run option '…'")
def _(folder: Path) -> None:
    small(precison="bf16")


@provokes("The option '…' (…) is …, but it takes …")
def _(folder: Path) -> None:
    small(max_time="1:00")


@provokes("nothing read these keys of hparams, which look like options:")
def _(folder: Path) -> None:
    trained(hparams={"limit_train_batches": 1})


@provokes("the attribute … of your Brain is your own: the option … stays …")
def _(folder: Path) -> None:
    class Mine(Regression):
        def on_fit_start(self) -> None:
            super().on_fit_start()
            self.max_grad_norm = 1.0

    trained(None, Mine)


@provokes("… defines '…', which Brain needs for itself:")
def _(folder: Path) -> None:
    class Mine(Regression):
        def _fit_train(self) -> None:
            """A helper of the user's."""

    small(Mine)


@provokes("…, line …: '…' has no value yet")
def _(folder: Path) -> None:
    (folder / "a.yaml").write_text("lr: 0.1\noutput_folder: !PLACEHOLDER\n")
    bl.load_hyperpyyaml(folder / "a.yaml")


@provokes("…: '…': yes means different things to different readers of YAML:")
def _(folder: Path) -> None:
    bl.load_hyperpyyaml("shuffle: yes\n")


@provokes("opt_class is an optimizer (…); it must be a function that makes one from parameters,")
def _(folder: Path) -> None:
    model = linear()
    Regression({"model": model}, torch.optim.SGD(model.parameters(), 0.1))


# ------------------------------------------------------------------------------------------- losses that are not finite


def spoiled(*which: int) -> list[dict[str, torch.Tensor]]:
    data = batches(2, 2, 2)
    for number in which:
        data[number]["x"][0] = math.nan
    return data


@provokes("update skipped: a loss or gradient was not finite (")
def _(folder: Path) -> None:
    small().fit(range(1), spoiled(1))


@provokes("… in a row had a loss or gradient that is not finite, more than nonfinite_patience=")
def _(folder: Path) -> None:
    small(nonfinite_patience=1).fit(range(1), spoiled(0, 1, 2))


@provokes("no checkpoint is made, because the parameters … hold values that are not finite.")
def _(folder: Path) -> None:
    class Spoils(Regression):
        def on_stage_end(self, *args: Any) -> None:
            with torch.no_grad():
                self.modules.model.weight.fill_(math.nan)

    trained(folder, Spoils)


def of_objectives(returned: Callable[[torch.Tensor], torch.Tensor]) -> None:
    class Other(Regression):
        def compute_objectives(self, predictions: torch.Tensor, batch: Any, stage: bl.Stage) -> torch.Tensor:
            return returned(predictions)

    trained(None, Other)


@provokes("compute_objectives of … returned a tensor of shape …; the loss must be a scalar.")
def _(folder: Path) -> None:
    of_objectives(lambda predictions: predictions)


@provokes("compute_objectives of … returned a loss of the type …; it must be a real number in floating point")
def _(folder: Path) -> None:
    of_objectives(lambda predictions: predictions.mean() * 1j)


@provokes("compute_objectives of … returned a loss without a graph:")
def _(folder: Path) -> None:
    of_objectives(lambda predictions: predictions.mean().detach())


@provokes("no parameter will be updated: there is no optimizer.")
def _(folder: Path) -> None:
    trained(opt_class=None)


# --------------------------------------------------------------------------------------------------- several processes


def fails_on_one(folder: str) -> None:
    class Failing(Regression):
        def on_fit_batch_end(self, *args: Any) -> None:
            if World.from_environment().rank == 1:
                raise RuntimeError("no")

    trained(None, Failing)


def leaves_out_a_parameter(folder: str) -> None:
    class Half(Regression):
        def compute_forward(self, batch: Any, stage: bl.Stage) -> torch.Tensor:
            return self.modules.model[0](batch["x"])

    trained(None, Half, model=torch.nn.ModuleList([linear(), linear()]))


def saves_on_one(folder: str) -> None:
    class Alone(Regression):
        def on_stage_end(self, *args: Any) -> None:
            if bl.if_main_process():
                self.checkpointer.save_checkpoint()

    trained(Path(folder), Alone, dist_timeout_seconds=2)


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Host("tests.test_errors_page") as started:
        yield started


RANKS: dict[str, Callable[[str], None]] = {
    "this process ends because …": fails_on_one,
    "the gradients of this step were not exchanged between the ranks, because …": leaves_out_a_parameter,
    "…: rank … did not come within … s, and this is rank …": saves_on_one,
}


@provokes("the environment says WORLD_SIZE=… and has no …")
def _(folder: Path) -> None:
    World.from_environment({"WORLD_SIZE": "2"})


@provokes("parallel is 'ddp', and there is one process:")
def _(folder: Path) -> None:
    trained(parallel="ddp")


@provokes("loss_weight gave …; it must be a positive number:")
def _(folder: Path) -> None:
    class Weightless(Regression):
        def loss_weight(self, batch: Any, stage: bl.Stage) -> float:
            return 0.0

    trained(None, Weightless)


# --------------------------------------------------------------------------------------- signals and the limit of time


@provokes("stopped by … in epoch …")
def _(folder: Path) -> None:
    class Told(Regression):
        def on_fit_batch_end(self, *args: Any) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(bl.Stopped):
        trained(folder, Told)


HANGS = """
import os, signal, time, torch, brainlib as bl
class Hangs(bl.Brain):
    def compute_forward(self, batch, stage):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
brain = Hangs({"model": torch.nn.Linear(2, 1)}, lambda p: torch.optim.SGD(p, 0.1), run_opts={"stop_grace_seconds": 0.2})
brain.fit(range(1), [torch.ones(1, 2)], progressbar=False)
"""


@provokes("SIGTERM came … s ago and …: the process ends itself,")
def _(folder: Path) -> Said:
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode < 0
    return done.stderr.splitlines()


@provokes("until the next resume point no signal will end this run early:")
def _(folder: Path) -> None:
    class Seen:
        def state_dict(self) -> dict[str, Any]:
            raise RuntimeError("not now")

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    class Mine(Regression):
        def on_fit_start(self) -> None:
            self.seen = Seen()
            super().on_fit_start()

        def on_stage_start(self, stage: bl.Stage, epoch: int | None = None) -> None: ...

    trained(None, Mine)


# ---------------------------------------------------------------------------------------------------------------- tests


def opening(quoted: str) -> re.Pattern[str]:
    return re.compile(".+?".join(map(re.escape, quoted.split("…"))), re.DOTALL)


def said_in(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield str(error).strip("'\"") if isinstance(error, KeyError) else str(error)
        error = error.__cause__


def bare(line: str) -> str:
    """Without what stands before it where it is printed."""
    return re.sub(r"^(\[rank\d\]: |brainlib: |\w*Error: )+", "", line.strip())


@pytest.mark.parametrize("quoted", QUOTED)
def test_what_is_quoted_is_what_is_said(
    quoted: str, host: Host, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="brainlib")
    raised: list[str] = []
    printed: list[str] = []
    if quoted in RANKS:
        ended = host.start(RANKS[quoted], tmp_path / "world", str(tmp_path))
        printed = [bare(line) for each in ended for line in each.output.splitlines()]
    else:
        try:
            printed = [bare(line) for line in PROVOKED[quoted](tmp_path) or ()]
        except Exception as error:  # noqa: BLE001 - which one it is, the message says
            raised = list(said_in(error))
    logged = [record.getMessage() for record in caplog.records]
    told = {None: raised + printed, "W": logged, "I": logged + printed}[QUOTED[quoted]]
    assert any(opening(quoted).match(text) for text in told), json.dumps([raised, printed, logged], indent=1)


def test_each_message_is_provoked_and_each_provoked_one_is_on_the_page() -> None:
    assert QUOTED.keys() == PROVOKED.keys() | RANKS.keys()
    assert not PROVOKED.keys() & RANKS.keys() and len(QUOTED) >= 40


def test_no_row_of_the_page_is_passed_over() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == len(QUOTED) == sum(1 for _ in ROW.finditer(text))
