"""The link between the processes of a run: the store they leave notes in, and the process group.

Two means, for two kinds of waiting. The *store* is a small table that all can read and write: waiting there may take
hours (one process prepares data), and one can be told who has not come. A *collective* (gradients, sums) is fast, and
every process has to come to it within `dist_timeout_seconds`. With one process there is neither.
"""

from __future__ import annotations

import atexit
import datetime
import functools
import json
import logging
import os
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from brainlib.common.logs import PoliteConsole, logger
from brainlib.common.option_fields import options_of
from brainlib.distributed.devices import find_device
from brainlib.distributed.options import DistributedOptions
from brainlib.distributed.peers import Peers
from brainlib.distributed.world import World

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

__all__ = ["ddp_init_group", "from_main", "gather", "join", "link", "run_on_main"]

T = TypeVar("T")

LOOK_SECONDS = 0.25  # how often a process that waits at the store looks whether the others live
_STORE_SECONDS = 300.0  # for one exchange with the store
_FAILED_SECONDS = 1.0  # as long, where it leaves a note that they may look for
_END_SECONDS = 60.0  # how long a process that is done waits for the others, so that the store outlives them


class Link:
    """What connects this process with the others; made when it is first needed.

    Attributes:
        world: who takes part.
        store: the table of notes.
        peers: who they are, and whether they live.
        timeout: seconds within which all have to come to a collective.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.timeout = float(DistributedOptions().dist_timeout_seconds)
        self.store = self._meet()
        self.peers = Peers(world, self.store)
        self._meetings: Counter[str] = Counter()
        self._ours = False  # whether the process group is ours to destroy

    def _meet(self) -> Store:
        from torch.distributed.rendezvous import rendezvous

        allowed = datetime.timedelta(seconds=_STORE_SECONDS)
        store, _, _ = next(rendezvous("env://", timeout=allowed))
        store = PrefixStore("brainlib", store)
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            return store  # the main rank holds it
        # A launcher holds it, and may have started all again: what the ranks of before have written is still there.
        return PrefixStore(_word_of_this_life(store, self.world, self.timeout), store)

    def open_group(self, device: torch.device, options: DistributedOptions) -> None:
        """Make the process group unless there is one. All ranks."""
        before, self.timeout = self.timeout, float(options.dist_timeout_seconds)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if dist.is_initialized():
            if self._ours and self.timeout != before:  # a group that is the user's own keeps its time
                dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=self.timeout))
            return
        with self.peers.explained():
            self.peers.learn()  # as far as they have come: one may be gone before all have
            dist.init_process_group(
                backend=_backend(device, options),
                store=PrefixStore("group", self.store),
                rank=self.world.rank,
                world_size=self.world.size,
                timeout=datetime.timedelta(seconds=self.timeout),
                device_id=device if device.type == "cuda" else None,
            )
            self._ours = True
            self.peers.learn()

    def close(self, failed: bool) -> None:
        """The process ends. The main one may hold the store: it stays until the others have read what is in it."""
        if self._ours and dist.is_initialized() and not failed:
            dist.destroy_process_group()
        end = time.monotonic() + (_FAILED_SECONDS if failed else _END_SECONDS)
        holds_store = self.world.is_main and not dist.is_torchelastic_launched()
        try:
            self.store.set(f"end/{self.world.rank}", "")
            keys = [f"end/{rank}" for rank in range(self.world.size)]
            while (
                holds_store
                and self.peers.has_something_to_say(failed)
                and time.monotonic() < end
                and not self.store.check(keys)
            ):
                if not failed and self.peers.lost() is not None:
                    return
                time.sleep(0.02)
        except RuntimeError:  # of the store: it has gone already, and nobody needs it any more
            logger.debug("the others had gone before")

    # ---- meetings

    def number(self, what: str) -> str:
        """The key of the next meeting of this kind: all processes count them alike."""
        self._meetings[what] += 1
        return f"{what}/{self._meetings[what]}"

    def wait_for(self, keys: Mapping[str, int], limit: float | None, what: str) -> None:
        """Wait until all notes are there.

        Args:
            keys: the notes, and the rank that writes each.
            limit: seconds; None: as long as the others live.
            what: what it is for, for the message.

        Raises:
            PeerLost: a process that has to write one is gone.
            TimeoutError: the notes did not come; the message names who did not write.
        """
        end = None if limit is None else time.monotonic() + limit
        looked, pause = time.monotonic(), 0.002
        with self.peers.explained():
            while not self.store.check(
                list(keys)
            ):  # not its own wait: that tells of each timeout on the terminal
                now = time.monotonic()
                if now >= looked + LOOK_SECONDS:
                    looked = now
                    self.peers.raise_if_lost(None)
                if end is not None and now >= end:
                    absent = sorted(rank for key, rank in keys.items() if not self.store.check([key]))
                    raise TimeoutError(
                        f"{what}: {_ranks(absent)} did not come within {limit:g} s, and this is rank "
                        f"{self.world.rank}. All ranks have to call it, so do not put it behind if_main_process(). "
                        "Where a rank only needs longer than this, raise dist_timeout_seconds."
                    )
                time.sleep(pause)
                pause = min(pause * 1.5, 0.1)

    def assemble(self, what: str) -> None:
        """Return when all ranks are here, at the same kind of meeting. All ranks.

        Raises:
            PeerLost, TimeoutError: as `wait_for`.
        """
        key = self.number(what)
        self.store.set(f"{key}/{self.world.rank}", "")
        keys = {f"{key}/{rank}": rank for rank in range(self.world.size)}
        self.wait_for(
            keys, self.timeout * 0.8, what
        )  # before the others give up in the collective they are in


def _word_of_this_life(store: Store, world: World, seconds: float) -> str:
    """A word that all ranks of this life of the job know, and those of an earlier one did not. All ranks.

    The launcher's count of restarts is none: with several machines each agent counts by itself. So every rank says a
    word of its own, the main one repeats all that it hears together with the life's, and that is right for a rank
    that finds its own word in it.

    Raises:
        TimeoutError: somebody did not come.
    """
    mine, said = uuid.uuid4().hex, [f"said/{rank}" for rank in range(world.size)]
    store.set(said[world.rank], mine)
    heard: list[str] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if world.is_main and store.check(said):
            now = [word.decode() for word in store.multi_get(said)]
            if now != heard:
                heard = now
                store.set("heard", json.dumps([mine, heard]))
            if store.check([f"{mine}/here/{rank}" for rank in range(1, world.size)]):
                return mine
        elif not world.is_main and store.check(["heard"]):
            word, heard = json.loads(store.get("heard"))
            if heard[world.rank : world.rank + 1] == [mine]:
                store.set(f"{word}/here/{world.rank}", "")
                return str(word)
        time.sleep(0.01)
    raise TimeoutError(
        f"after {seconds:g} s not all of the {world.size} ranks have connected, and this is rank {world.rank}. What "
        "one of them does for so long before it makes a Brain belongs into bl.run_on_main"
    )


def _ranks(ranks: list[int]) -> str:
    told = ", ".join(map(str, ranks))
    return f"rank {told}" if len(ranks) == 1 else f"the ranks {told}"


def _backend(device: torch.device, options: DistributedOptions) -> str:
    """Numbers on the host travel by gloo in any case, so that a sum of Python floats needs no device."""
    if device.type == "cuda":
        named = options.distributed_backend
        return "gloo" if named == "gloo" else f"cpu:gloo,cuda:{named}"
    return "mpi" if options.distributed_backend == "mpi" else "gloo"


_link: Link | None = None


def link() -> Link:
    """The link of this process to the others.

    Raises:
        AssertionError: there are no others.
    """
    global _link
    world = World.from_environment()
    assert world.size > 1, "one process has nobody to talk to"
    if _link is None:
        _link = Link(world)
        _look_after_the_end(_link)
        if not world.is_main:
            _speak_up_only_for_warnings(world)
    return _link


def _look_after_the_end(made: Link) -> None:
    failed = False
    before = sys.excepthook

    @functools.wraps(before)
    def note(kind: Any, error: BaseException, trace: Any) -> None:
        nonlocal failed
        failed = True
        if not made.peers.explains(error):
            before(kind, error, trace)

    sys.excepthook = note

    @atexit.register
    def end() -> None:
        made.close(failed or made.peers.any_failed)


def _speak_up_only_for_warnings(world: World) -> None:
    """Each line of the run once on the terminal, by the main process; warnings of the others with their rank."""
    for handler in logger.handlers:
        if isinstance(handler, PoliteConsole):
            handler.setLevel(logging.WARNING)
            handler.setFormatter(logging.Formatter(f"brainlib: rank {world.rank}: %(message)s"))


def join(world: World, device: torch.device, options: DistributedOptions) -> None:
    """Make the process group where there are several processes, and none yet. All ranks."""
    if options.parallel == "ddp" and world.size == 1:
        raise ValueError(
            "parallel is 'ddp', and there is one process: start the script with `brainlib launch -n 2 SCRIPT ...` or "
            "torchrun, or leave parallel at 'auto', which takes what there is"
        )
    if world.size > 1:
        link().open_group(device, options)


def ddp_init_group(run_opts: Any = None) -> None:
    """Connect this process with the others, where a launcher has started several; nothing to do in one process.

    A Brain does so by itself. Call it where ranks have to agree before there is one.

    Args:
        run_opts: a dictionary or `RunOptions`, of which the options of devices and processes are read.

    >>> ddp_init_group({"device": "cpu"})
    """
    world = World.from_environment()
    if world.size == 1:
        return
    chosen = {}
    for each in options_of(
        DistributedOptions
    ):  # a dictionary as users write it, or RunOptions, which has them all
        if run_opts is not None and (not isinstance(run_opts, Mapping) or each.name in run_opts):
            chosen[each.name] = each.read(run_opts[each.name], "in run_opts")
    options = DistributedOptions(**chosen)
    join(world, find_device(options.device, world.local_rank), options)


def run_on_main(
    func: Callable[..., T],
    args: tuple[Any, ...] | None = None,
    kwargs: dict[str, Any] | None = None,
    post_func: Callable[..., Any] | None = None,
    post_args: tuple[Any, ...] | None = None,
    post_kwargs: dict[str, Any] | None = None,
    run_post_on_main: bool = False,
) -> T | None:
    """Call `func` on the main process (data preparation, downloads); the others wait for it, however long. All ranks.

    They wait at a note, not in a collective, so no timeout of these ends a preparation that takes hours.

    Args:
        func: called on the main process.
        args: for `func`.
        kwargs: for `func`.
        post_func: called on the others afterwards, such as to read what was prepared.
        post_args: for `post_func`.
        post_kwargs: for `post_func`.
        run_post_on_main: whether the main process calls `post_func`, too.

    Returns:
        What `func` returned, on the main process; None on the others.

    Raises:
        Exception: whatever `func` raises, on the main process. The others then end with one line.

    >>> run_on_main(sum, args=([1, 2],))
    3
    """
    world = World.from_environment()
    result: T | None = None
    if world.size == 1:
        result = func(*(args or ()), **(kwargs or {}))
    else:
        joined = link()
        key = joined.number("run_on_main")
        if world.is_main:
            result = func(*(args or ()), **(kwargs or {}))
            joined.store.set(key, "")
        else:
            joined.wait_for({key: 0}, None, "run_on_main")
    if post_func is not None and (run_post_on_main or not world.is_main):
        post_func(*(post_args or ()), **(post_kwargs or {}))
    return result


def gather(value: T) -> list[T]:
    """The values of all ranks, in the order of the ranks, on each of them; ``[value]`` with one process. All ranks.

    For what you count yourself: ``correct = sum(bl.gather(self.correct))``.

    >>> gather(3)
    [3]
    """
    world = World.from_environment()
    if world.size == 1:
        return [value]
    values: list[Any] = [None] * world.size
    with link().peers.explained():
        dist.all_gather_object(values, value)
    return values


def from_main(ask: Callable[[], T]) -> T:
    """What `ask` returns on the main process, on all ranks; an error there ends all. All ranks.

    >>> from_main(lambda: 3)
    3
    """
    world = World.from_environment()
    if world.size == 1:
        return ask()
    answer: list[Any] = [None]
    if world.is_main:
        answer = [ask()]
    with link().peers.explained():
        dist.broadcast_object_list(answer, src=0)
    return answer[0]  # type: ignore[no-any-return]
