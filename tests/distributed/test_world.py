"""Ranks, notes, meetings, and how processes are started."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import brainlib as bl
from brainlib.distributed.group import from_main, join, link
from brainlib.distributed.options import DistributedOptions
from brainlib.distributed.world import World
from brainlib.options import RunOptions
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


def fails_in_preparation() -> None:
    def prepare() -> None:
        raise FileNotFoundError("no corpus here")

    bl.run_on_main(prepare)


def killed(rank: int) -> None:
    bl.ddp_init_group({"device": "cpu"})
    if World.from_environment().rank == rank:
        os.kill(os.getpid(), 9)
    bl.gather(1)


def test_the_peer_of_a_rank_that_fails_ends_with_one_line(host: Host, tmp_path: Path) -> None:
    zero, one = host.start(fails_in_preparation, tmp_path)
    assert zero.status == one.status == 1
    assert "FileNotFoundError: no corpus here" in zero.output and "Traceback" in zero.output
    assert one.output.splitlines() == [
        "brainlib: rank 1: this process ends because rank 0 failed: FileNotFoundError: no corpus here"
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_peer_of_a_killed_rank_ends_with_one_line(host: Host, tmp_path: Path, rank: int) -> None:
    ended = host.start(killed, tmp_path, rank)
    assert ended[rank].status == -9 and ended[1 - rank].status == 1
    (line,) = [each for each in ended[1 - rank].output.splitlines() if each.startswith("brainlib")]
    assert "this process ends because" in line and ("gone" in line or "failed" in line)
    assert max(each.seconds for each in ended) < 20


SCRIPT = """
import sys, brainlib as bl
from brainlib.distributed.world import World
print("words", sys.argv[1:], World.from_environment(), bl.gather(1) if 0 else "", flush=True)
if "fail" in sys.argv:
    sys.exit(3 if not bl.if_main_process() else 0)
"""


def test_launch_passes_words_on_and_writes_a_file_a_rank(tmp_path: Path) -> None:
    script, logs = tmp_path / "a script.py", tmp_path / "logs"
    script.write_text(SCRIPT)
    command = "import sys; from brainlib.cli import main; sys.exit(main())"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            command,
            "launch",
            "-n",
            "2",
            "--log_dir",
            logs,
            script,
            "--lr",
            "1e-3",
            "-n",
            "fail",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1
    assert "brainlib launch: rank 1" in done.stderr and "status 3" in done.stderr
    assert "rank=0" in done.stdout and "rank=1" not in done.stdout, "the main rank alone is on the terminal"
    for rank in (0, 1):
        (log,) = logs.glob(f"*/attempt_0/{rank}/stdout.log")
        assert f"words ['--lr', '1e-3', '-n', 'fail'] World(rank={rank}" in log.read_text()


def one_of_two(word: str) -> tuple[str, int, list[int]]:
    bl.ddp_init_group({"device": "cpu"})
    return word, World.from_environment().rank, bl.gather(World.from_environment().rank)


def test_spawn_returns_what_each_returned() -> None:
    assert bl.spawn(one_of_two, 2, args=("hi",)) == [("hi", 0, [0, 1]), ("hi", 1, [0, 1])]
    with pytest.raises(ValueError, match="devices names 1"):
        bl.spawn(one_of_two, 2, devices="4")
