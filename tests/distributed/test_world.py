"""Ranks, notes, meetings, and how processes are started."""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import brainlib as bl
from brainlib.cli import main as cli
from brainlib.distributed import shared_disk
from brainlib.distributed.group import _word_of_this_life, from_main, join, link
from brainlib.distributed.options import DistributedOptions
from brainlib.distributed.world import World
from brainlib.options import RunOptions
from tests.contracts.brains import SHUFFLED, VALID, Items, Plain, digest, make, ready_batches
from tests.distributed.host import ROOT, Host

LAUNCHED = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_global_main_and_node_main_are_told_apart() -> None:
    assert World.from_environment(LAUNCHED) == World(3, 1, 4, 2)
    first_of_second_node = World.from_environment({**LAUNCHED, "RANK": "2", "LOCAL_RANK": "0"})
    assert (first_of_second_node.is_main, first_of_second_node.is_node_main) == (False, True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"RANK": "4"}, "ranks count from 0"),
        ({"RANK": "x"}, "RANK='x', which is no whole number"),
        ({"LOCAL_RANK": "2"}, "ranks count from 0"),
    ],
)
def test_a_description_that_cannot_be_is_refused(change: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        World.from_environment({**LAUNCHED, **change})


def test_one_process_is_the_null_object() -> None:
    assert bl.run_on_main(sum, ([1, 2],), post_func=pytest.fail) == 3
    assert bl.gather("x") == ["x"] and from_main(lambda: 3) == 3 and bl.if_main_process()
    bl.ddp_init_group({"device": "cpu"})
    assert not dist.is_initialized()


def test_parallel_ddp_wants_several_processes() -> None:
    with pytest.raises(ValueError, match="there is one process: start the script with `brainlib launch"):
        bl.Brain(run_opts={"parallel": "ddp", "device": "cpu"})


def a_world() -> dict[str, Any]:
    world, told = World.from_environment(), {}
    began = time.monotonic()
    told["prepared"] = bl.run_on_main(
        lambda: (time.sleep(0.4), "done")[1], post_func=lambda: told.update(post=time.monotonic() - began)
    )
    assert not dist.is_initialized(), "a preparation is not waited for in a collective"
    bl.ddp_init_group(RunOptions.resolve({"device": "cpu", "dist_timeout_seconds": 20}))
    bl.ddp_init_group({"device": "cpu"})
    told |= {
        "initialized": dist.is_initialized(),
        "backend": dist.get_backend(),
        "main": bl.if_main_process(),
        "gathered": bl.gather(10 * world.rank),
        "from main": from_main(lambda: world.rank + 7),
    }
    join(world, bl.Brain(run_opts={"device": "cpu"}).device, DistributedOptions(dist_timeout_seconds=1.0))
    try:
        if world.rank == 0:
            link().assemble("save_checkpoint")
    except TimeoutError as error:
        told["absent"] = str(error)
    return told


def test_what_two_ranks_tell_each_other(host: Host, tmp_path: Path) -> None:
    zero, one = host.run(a_world, tmp_path)
    assert (zero["prepared"], one["prepared"]) == ("done", None)
    assert "post" not in zero and one["post"] > 0.35, "the others begin when it is prepared"
    for each in (zero, one):
        assert each["initialized"] and each["backend"] == "gloo"
        assert each["gathered"] == [0, 10] and each["from main"] == 7
    assert (zero["main"], one["main"]) == (True, False)
    assert zero["absent"].startswith("save_checkpoint: rank 1 did not come within 0.8 s, and this is rank 0.")


def test_a_second_life_does_not_take_the_words_of_the_first() -> None:
    """The launcher's store outlives them, and with several machines no count of restarts is the same on all."""
    store, words = dist.HashStore(), []
    for life in range(3):
        with ThreadPoolExecutor(3) as ranks:
            order = (1, 2, 0) if life else (0, 1, 2)  # the others come first, and find what is left of before
            calls = [ranks.submit(_word_of_this_life, store, World(rank, rank, 3, 3), 10.0) for rank in order]
            (word,) = {call.result() for call in calls}
        words.append(word)
    assert len(set(words)) == 3
    with pytest.raises(
        TimeoutError, match=r"after 0.1 s not all of the 4 ranks have connected, and this is rank 3"
    ):
        _word_of_this_life(store, World(3, 3, 4, 4), 0.1)


def fails_in_preparation() -> None:
    def prepare() -> None:
        raise FileNotFoundError("no corpus here")

    bl.run_on_main(prepare)


def killed(rank: int, how: str) -> None:
    bl.ddp_init_group({"device": "cpu"})
    bl.gather(0)  # both know each other
    if World.from_environment().rank == rank:
        if how == "SIGKILL":
            os.kill(os.getpid(), 9)
        os._exit(3)
    bl.gather(1)


def test_the_peer_of_a_rank_that_fails_ends_with_one_line(host: Host, tmp_path: Path) -> None:
    zero, one = host.start(fails_in_preparation, tmp_path)
    assert zero.status == one.status == 1
    assert "FileNotFoundError: no corpus here" in zero.output and "Traceback" in zero.output
    assert one.output.splitlines() == [
        "brainlib: rank 1: this process ends because rank 0 failed: FileNotFoundError: no corpus here"
    ]


@pytest.mark.parametrize(
    ("rank", "how", "status", "told"),
    [(0, "SIGKILL", -9, "was ended by SIGKILL"), (1, "os._exit", 3, "ended with status 3")],
)
def test_the_peer_of_a_killed_rank_ends_with_one_line(
    host: Host, tmp_path: Path, rank: int, how: str, status: int, told: str
) -> None:
    ended = host.start(killed, tmp_path, rank, how)
    assert ended[rank].status == status and ended[1 - rank].status == 1
    (line,) = [each for each in ended[1 - rank].output.splitlines() if each.startswith("brainlib")]
    assert f"this process ends because rank {rank} (process " in line and line.endswith(told)
    assert max(each.seconds for each in ended) < 20


def elsewhere(folder: str, kind: str) -> None:
    """Two ranks that name a folder alike, or not, and do not see each other's."""
    rank, shared_disk.SECONDS = World.from_environment().rank, 0.3
    (Path(folder) / f"machine-{rank}").mkdir()
    os.chdir(Path(folder) / f"machine-{rank}")
    home = "/proc/self/cwd/save" if kind == "not seen" else "save"
    brain = make(Plain, bl.Checkpointer(home))
    brain.fit(range(1), ready_batches(), VALID)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("not seen", "does not see what rank 0 on"),
        ("other names", "machine-1/save, and rank 0 in"),
    ],
)
def test_a_folder_that_ranks_do_not_share_is_refused_at_the_start(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, told: str
) -> None:
    zero, one = host.start(elsewhere, tmp_path, str(tmp_path), kind)
    assert zero.status == one.status == 1
    assert "ValueError: rank 1" in zero.output and told in zero.output
    assert "Traceback" not in one.output and "this process ends because rank 0 failed: " in one.output
    assert not list(tmp_path.glob("machine-0/save/*")), "no checkpoint, and no mark is left"


SCRIPT = """
import os, sys
rank = int(os.environ["RANK"])
print("words", sys.argv[1:], "rank", rank, flush=True)
if rank == 1 and "killed" in sys.argv:
    os.kill(os.getpid(), 9)
if rank == 1 and "ends" in sys.argv:
    os._exit(3)
"""


TORCHS_OWN = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # files of logs left open


@TORCHS_OWN
@pytest.mark.parametrize(("word", "how"), [("killed", "SIGKILL"), ("ends", "status 3")])
def test_launch_names_who_failed_and_how(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], word: str, how: str
) -> None:
    """Words are passed on as they are, each rank has its file, and the main rank alone is on the terminal."""
    script, logs = tmp_path / "a script.py", tmp_path / "logs"
    script.write_text(SCRIPT)
    options = ["-n", "2", "--log_dir", str(logs)]
    assert cli(["launch", *options, str(script), "--lr", "1e-3", "-n", word]) == 1
    out, error = capfd.readouterr()
    (line,) = [line for line in error.splitlines() if line.startswith("brainlib launch: rank 1 (process ")]
    assert line.endswith(f"ended with {how}")
    assert "rank 0" in out and "rank 1" not in out
    for rank in (0, 1):
        (log,) = logs.glob(f"*/attempt_0/{rank}/stdout.log")
        assert log.read_text() == f"words ['--lr', '1e-3', '-n', '{word}'] rank {rank}\n"


def test_the_words_of_torchrun(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its word for the number of processes is one of ours; of what launch does not know it shows its own usage."""
    script = tmp_path / "train.py"
    script.write_text("import os\nprint('of', os.environ['WORLD_SIZE'])")
    assert cli(["launch", "--nproc_per_node", "1", str(script)]) == 0
    assert capfd.readouterr().out == "of 1\n"
    with pytest.raises(SystemExit) as end:
        cli(["launch", "--nnodes", "1", str(script)])
    told = capfd.readouterr().err
    assert end.value.code == 2 and "usage: brainlib launch [-n N]" in told and "arguments: --nnodes" in told


@pytest.mark.parametrize(
    ("given", "end"), [("trian.py", "trian.py. Did you mean 'train.py'?"), ("zzz", "zzz"), ("empty", "empty")]
)
def test_a_script_that_is_not_there_is_said_before_anything_starts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], given: str, end: str
) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "empty").mkdir()
    assert cli(["launch", "--log_dir", str(tmp_path / "logs"), str(tmp_path / given), "--lr", "1"]) == 2
    assert capfd.readouterr().err == f"brainlib: there is no script {tmp_path}/{end}\n"
    assert not (tmp_path / "logs").exists()


RESTARTED = """
import os, sys
from tests.distributed.test_world import mortal
mortal(sys.argv[1], int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
"""


class Mortal(Plain):
    """Rank 1 is killed in its first life."""

    life = 1

    def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Any, should_step: bool) -> None:
        if self.optimizer_step == 7 and self.life == 0 and World.from_environment().rank == 1:
            os.kill(os.getpid(), 9)


def mortal(home: str, life: int) -> str:
    torch.set_num_threads(1)
    brain = make(Mortal, bl.Checkpointer(home), ckpt_interval_steps=2)
    brain.life = life
    brain.fit(range(3), Items(), VALID, train_loader_kwargs=SHUFFLED)
    if bl.if_main_process():
        Path(home, "ended.txt").write_text(digest(brain))
    return digest(brain)


@TORCHS_OWN
def test_max_restarts_goes_on_by_itself(
    host: Host, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = host.run(mortal, tmp_path / "uncut", str(tmp_path / "uncut" / "save"), 1)
    script = tmp_path / "train.py"
    script.write_text(RESTARTED)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert cli(["launch", "--max_restarts", "1", str(script), str(tmp_path / "save")]) == 0
    error = capfd.readouterr().err
    assert (tmp_path / "save" / "ended.txt").read_text() == expected[0] == expected[1]
    assert "starting from scratch" in error and "resumed" in error, error
    assert "this process ends because rank 1 (process " in error


def one_of_two(word: str) -> tuple[str, int, list[int]]:
    bl.ddp_init_group({"device": "cpu"})
    return word, World.from_environment().rank, bl.gather(World.from_environment().rank)


def test_spawn_returns_what_each_returned() -> None:
    assert bl.spawn(one_of_two, 2, args=("hi",)) == [("hi", 0, [0, 1]), ("hi", 1, [0, 1])]
    with pytest.raises(ValueError, match="devices names 1"):
        bl.spawn(one_of_two, 2, devices="4")


def waits_for_who_does_not_come(seconds: float) -> None:
    bl.ddp_init_group({"device": "cpu"})
    bl.Brain(run_opts={"device": "cpu", "dist_timeout_seconds": seconds})
    if World.from_environment().rank == 1:
        time.sleep(10)
    torch.distributed.barrier()


def test_the_time_that_a_brain_is_given_is_that_of_a_group_that_was_made_before(
    host: Host, tmp_path: Path
) -> None:
    waits, sleeps = host.start(waits_for_who_does_not_come, tmp_path, 2.0)
    assert waits.status == 1, waits.output  # with the time of before it would have met the other one
    assert "Timed out" in waits.output and "raise dist_timeout_seconds" in waits.output
    assert sleeps.status != 0


def ends_before() -> None:
    bl.ddp_init_group({"device": "cpu"})
    if World.from_environment().rank == 0:
        bl.gather(0)


def test_a_rank_that_ended_before_is_named(host: Host, tmp_path: Path) -> None:
    waits, ended = host.start(ends_before, tmp_path)
    assert waits.status == 1 and ended.status == 0
    assert "Rank 1 came to the end of the script before: all have to make the same calls" in waits.output
