"""What `brainlib port` says of a script, and what it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import brainlib as bl
from brainlib.cli import main
from brainlib.compat.port import port
from tests.brain.small import Regression, batches, small

SCRIPT = """raise SystemExit("nobody runs this")
import os, speechbrain
import speechbrain as sb
import speechbrain.nnet.losses as losses
import speechbrain.dataio.dataset as datasets
from hyperpyyaml import load_hyperpyyaml
if True:
    from speechbrain.utils.distributed import (
        run_on_main,
        main_process_only,
    )  # behind it
from speechbrain.dataio.dataloader import *

class ASR(sb.Brain):
    def on_stage_end(self, stage, stage_loss, epoch):
        sb.nnet.losses.nll_loss(1)
        return sb.dataio.dataloader.LoopedLoader

ASR().fit(range(3), datasets.DynamicItemDataset({}))
"""


@pytest.fixture(autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with this name and the modules that the scripts here take from it."""
    folder = tmp_path_factory.mktemp("packages") / "speechbrain"
    for name in (
        "__init__",
        "nnet/__init__",
        "nnet/losses",
        "lobes/__init__",
        "lobes/features",
        "utils/__init__",
    ):
        file = folder / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text("raise SystemExit('nobody imports this')\ndef nll_loss(): pass\nclass Fbank: pass\n")
    monkeypatch.syspath_prepend(folder.parent)
    return folder


def test_what_it_says_of_a_script() -> None:
    report = port(SCRIPT)
    assert sorted(report.carried) == [
        (3, "import speechbrain as sb"),
        (5, "import speechbrain.dataio.dataset as datasets"),
        (6, "from hyperpyyaml import load_hyperpyyaml"),
        (8, "from speechbrain.utils.distributed import run_on_main"),
        (14, "speechbrain.Brain"),
        (19, "speechbrain.dataio.dataset.DynamicItemDataset"),
    ]
    assert report.kept == [
        (4, "import speechbrain.nnet.losses as losses"),
        (16, "speechbrain.nnet.losses.nll_loss"),
    ]
    assert [(line, what.partition(":")[0]) for line, what in sorted(report.differs)] == [
        (15, "on_stage_end"),
        (19, "fit"),
    ]
    assert sorted(report.left) == [
        (2, "import os, speechbrain: give each module a line of its own"),
        (
            8,
            "speechbrain.utils.distributed.main_process_only is not there; it stays speechbrain's, and may lean on its "
            "trainer",
        ),
        (12, "from speechbrain.dataio.dataloader import *: name what you use"),
        (
            17,
            "speechbrain.dataio.dataloader.LoopedLoader is not there: docs/porting.md says what there is instead",
        ),
    ]
    assert "could not be changed\n  line 2: import os" in str(report)


def test_only_imports_are_changed() -> None:
    before, after = SCRIPT.splitlines(), port(SCRIPT).text.splitlines()
    compile(port(SCRIPT).text, "train.py", "exec")
    assert [line for line in after if line not in before] == [
        "import brainlib.compat.speechbrain as sb",
        "import brainlib.compat.speechbrain.dataio.dataset as datasets",
        "from brainlib.compat.hyperpyyaml import load_hyperpyyaml",
        "    from brainlib.compat.speechbrain.utils.distributed import run_on_main",
        "    from speechbrain.utils.distributed import main_process_only  # behind it",
    ]


def test_tags_of_an_hparams_file() -> None:
    text = (
        "a: !new:speechbrain.utils.epoch_loop.EpochCounter {limit: 1}\n# b: !new:speechbrain.core.Brain\n"
        "c: !new:speechbrain.lobes.features.Fbank\nd: !name:speechbrain.dataio.sampler.ConcatDatasetBatchSampler\n"
        "max_grad_norm: -1\n"
    )
    assert str(port(text, "train.yaml")).splitlines() == [
        "carries over",
        "  line 1: speechbrain.utils.epoch_loop.EpochCounter",
        "stays speechbrain's, which has to be installed",
        "  line 3: speechbrain.lobes.features.Fbank",
        "differs on purpose",
        "  line 5: max_grad_norm: null switches clipping off, and so does a negative number; theirs turns "
        "gradients round",
        "could not be changed",
        "  line 4: speechbrain.dataio.sampler.ConcatDatasetBatchSampler is not there: docs/porting.md says what there "
        "is instead",
    ]


NAMES = """import torch, random
import speechbrain as sb
from speechbrain.core import Brain, AMPConfig
from speechbrain.lobes.features import Fbank, Fbonk
import os; from speechbrain.core import Stage
torch.manual_seed(1)

class ASR(Brain):
    def _fit_train(self, train_set, epoch, enable):
        sb.utils.foo.bar()
        sb.nnet.losses.nll_loss(random.seed(1), torch.Generator().manual_seed(3))

class Other(ASR):
    _outer = 3
    def _compile(self): pass
    def _mine(self): pass

class Bare:
    def _fit_train(self): pass
"""


def test_no_name_stands_in_two_lists() -> None:
    report = port(NAMES)
    assert sorted(report.carried) == [
        (2, "import speechbrain as sb"),
        (3, "from speechbrain.core import Brain"),
    ]
    assert [what.partition(" ")[0] for _, what in report.left if what.startswith("speechbrain.core")] == [
        "speechbrain.core.AMPConfig"
    ]
    assert (5, "from speechbrain.core import Stage: give it a line of its own") in report.left


def test_what_stays_is_looked_up_where_it_is_installed(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = port(NAMES)
    assert sorted(report.kept) == [
        (4, "speechbrain.lobes.features.Fbank"),
        (11, "speechbrain.nnet.losses.nll_loss"),
    ]
    assert {
        (
            4,
            "speechbrain.lobes.features.Fbonk: the installed speechbrain has no speechbrain.lobes.features.Fbonk",
        ),
        (10, "speechbrain.utils.foo.bar: the installed speechbrain has no speechbrain.utils.foo"),
    } <= set(report.left)
    (installed / "utils" / "__init__.py").write_text("def __getattr__(name): return name\n")
    assert (10, "speechbrain.utils.foo.bar") in port(NAMES).kept
    monkeypatch.setattr("brainlib.compat.port._installed", lambda: None)
    report = port(NAMES)
    assert (4, "speechbrain.lobes.features.Fbonk") in report.kept
    assert "which has to be installed (it is not here, so whether it has these was not looked up)\n" in str(
        report
    )


def test_it_tells_of_names_that_brain_needs_for_itself() -> None:
    told = [(line, what.partition(":")[0]) for line, what in port(NAMES).left if "for itself" in what]
    assert told == [(9, "ASR._fit_train"), (14, "Other._outer")]


def test_it_tells_of_a_seed_for_torch_alone() -> None:
    told = [(line, what) for line, what in port(NAMES).differs if "manual_seed" in what]
    assert [line for line, _ in told] == [6] and "brainlib.seed_everything seeds all three" in told[0][1]
    assert port("seed: 1\n__set_seed: !apply:torch.manual_seed [!ref <seed>]\n", "a.yaml").differs == [
        (2, told[0][1])
    ]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, new = tmp_path / "train.py", tmp_path / "new.py"
    script.write_text("import speechbrain as sb\n")
    assert main(["port", str(script), "--write", str(new)]) == 0
    assert new.read_text() == "import brainlib.compat.speechbrain as sb\n"
    assert script.read_text() == "import speechbrain as sb\n"
    assert f"written: {new}" in capsys.readouterr().out
    assert main(["port", str(script), "--write", str(new)]) == 2  # it is there
    assert "File exists" in capsys.readouterr().err
    script.write_text("import os\n")
    assert main(["port", str(script)]) == 0
    assert capsys.readouterr().out == "nothing of speechbrain's trainer is in this file\n"
    script.write_text("def :\n")
    assert main(["port", str(script)]) == 2
    assert "train.py, line 1: this is no Python" in capsys.readouterr().err
    script.write_text(SCRIPT)
    assert main(["port", str(script)]) == 1


EVALUATED = """
import speechbrain as sb

class ASR(sb.Brain):
    def on_stage_end(self, stage, stage_loss, epoch):
        if stage != sb.Stage.TEST:
            self.checkpointer.save_and_keep_only(meta={"loss": stage_loss}, min_keys=["loss"])
        else:
            self.hparams.train_logger.log_stats({"Epoch loaded": self.hparams.epoch_counter.current})
            counter = self.hparams.epoch_counter
            print(counter.current, other.current)
"""


def test_it_tells_of_a_counter_that_an_evaluation_does_not_set_back() -> None:
    (told,) = [(line, what) for line, what in port(EVALUATED).differs if what.startswith("epoch_counter")]
    assert told[0] == 9 and "self.checkpointer.loaded.counters['epoch']" in told[1]
    assert port("import speechbrain as sb\nhere.current = 3\n").differs == []


def test_what_it_says_to_write_is_the_epoch_of_the_weights(tmp_path: Path) -> None:
    class Fading(Regression):
        """Worse with each epoch; its weight is the number of the epoch."""

        told: ClassVar[list[int]] = []

        def on_stage_end(self, stage: bl.Stage, stage_loss: float, epoch: Any = None) -> None:
            if stage is bl.Stage.TRAIN:
                with torch.no_grad():
                    self.modules.model.weight.fill_(epoch)
            elif stage is bl.Stage.VALID:
                self.checkpointer.save_and_keep_only(meta={"error": abs(epoch - 2)}, min_keys=["error"])
            else:
                assert (
                    self.checkpointer.loaded.counters["epoch"]
                    == self.modules.model.weight.unique().item()
                    == 2
                )
                self.told.append(self.hparams.epoch_counter.current)

    for _ in range(2):  # the second time nothing is trained
        counter = bl.EpochCounter(4)
        brain = small(Fading, checkpointer=bl.Checkpointer(tmp_path), hparams={"epoch_counter": counter})
        brain.fit(counter, batches(2), batches(1))
        brain.evaluate(batches(1), min_key="error")
    assert Fading.told == [4, 4]
