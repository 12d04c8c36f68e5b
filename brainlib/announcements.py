"""What a run says about itself: how it starts and ends, each epoch, which settings have no effect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from brainlib.checkpoint.retention import by_metric, rank
from brainlib.common.counted import counted
from brainlib.common.logs import logger
from brainlib.options import RunOptions
from brainlib.run_state import RunState
from brainlib.stage import Stage

if TYPE_CHECKING:
    from brainlib.brain import Brain
    from brainlib.checkpoint.checkpointer import Checkpoint, Checkpointer
    from brainlib.origin import Origin

__all__ = [
    "parameter_line",
    "say_done",
    "say_epoch",
    "say_finished",
    "say_from_where",
    "say_how",
    "say_that_it_goes_on",
    "say_what",
    "say_what_differs",
    "say_which_hparams_differ",
    "standing",
    "warn_of_shadowed_options",
    "warn_of_unread_keys",
]


def parameter_line(modules: torch.nn.Module) -> str:
    """How many parameters there are.

    >>> parameter_line(torch.nn.Linear(10, 10))
    '110 trainable of 110 parameters'
    """
    total, trained = _count(modules)
    return f"{trained:,} trainable of {counted(total, 'parameter', spec=',')}"


def _count(module: torch.nn.Module) -> tuple[int, int]:
    """All parameters, and those that are trained; of lazy ones it is not known how many they will be."""
    parameters = [param for param in module.parameters() if not torch.nn.parameter.is_lazy(param)]
    trained = sum(param.numel() for param in parameters if param.requires_grad)
    return sum(param.numel() for param in parameters), trained


MOST_MODULES = 10  # that are named


def say_what(brain: Brain) -> None:
    """What is trained, and on what: the modules with their parameters, and the sets."""
    named = list(brain.modules.items())
    told = [f"{name} ({type(module).__name__}, {_size(module)})" for name, module in named[:MOST_MODULES]]
    if (rest := len(named) - MOST_MODULES) > 0:
        told.append(f"and {rest} more")
    logger.info("%s: %s", type(brain).__name__, ", ".join(told) or "no modules")
    sets = [
        f"{stage.name.lower()} {_data(source.fingerprint(), source.num_batches, brain._batch_limit(stage))}"
        for stage, source in zip((Stage.TRAIN, Stage.VALID), brain._scope.sources, strict=False)
    ]
    logger.info("data: %s", "; ".join(sets))


def _size(module: torch.nn.Module) -> str:
    total, trained = _count(module)
    return f"{total:,}" + (f", {total - trained:,} of them frozen" if trained < total else "")


def _data(known: dict[str, int], num_batches: int | None, limit: int | None = None) -> str:
    """How much there is of a set, and how much of it an epoch takes where that is less.

    >>> _data({"items": 1797, "batch_size": 64, "batches": 29}, 29)
    '29 batches (1,797 items, 64 a batch)'
    >>> _data({}, 29, limit=2), _data({}, None, limit=2)
    ('2 of 29 batches', '2 batches at most')
    """
    if num_batches is None:
        at_most = None if limit is None else f"{counted(limit, 'batch', 'batches', ',')} at most"
        batches = at_most or "of unknown length"
    else:
        batches = counted(num_batches, "batch", "batches", ",")
        batches = f"{limit:,} of {batches}" if limit is not None and limit < num_batches else batches
    items = [counted(known["items"], "item", spec=",")] if "items" in known else []
    items += [f"{known['batch_size']:,} a batch"] if "batch_size" in known else []
    return batches + (f" ({', '.join(items)})" if items else "")


def say_epoch(brain: Brain, epoch: Any) -> None:
    """One line about the epoch that was just closed; the main process says it."""
    run, counter = brain._outer.run, brain._outer.epoch_counter
    total = getattr(counter, "limit", None)
    if total is None and hasattr(counter, "__len__"):
        total = len(counter)
    if brain._options.debug and isinstance(total, int):
        first = run.epoch_start if hasattr(counter, "limit") else 0
        total = min(total, first + brain._options.debug_epochs)
    number = epoch if hasattr(counter, "limit") else run.epoch
    name = f"epoch {number}" + (f"/{total}" if isinstance(total, int) else "")
    line = brain._epochs.close(name, _criterion(brain))
    if brain._world.is_main:
        logger.info("%s", line)


def say_done(brain: Brain) -> None:
    """The block with which a fit closes: what it has reached, and where things are. Main process only."""
    if not brain._epochs.num_said or not brain._world.is_main:
        return
    run = brain._outer.run
    logger.info("fit %d is done: %s, update %d", run.fit, counted(run.epoch, "epoch"), run.optimizer_step)
    for name, told in (
        ("best", brain._epochs.best(_criterion(brain))),
        ("checkpoints", _checkpoints(brain)),
        ("written", [*([f"{brain._experiment}"] if brain._experiment else []), *brain._epochs.places]),
    ):
        if told:
            logger.info("%s: %s", name, ", ".join(told))


def _criterion(brain: Brain) -> Any:
    return None if brain.checkpointer is None else brain.checkpointer.criterion


def _checkpoints(brain: Brain) -> list[str]:
    checkpointer = brain.checkpointer
    if checkpointer is None or checkpointer.written is None:
        return []
    if brain._is_trial:  # they go with the Brain
        if not brain._options.debug:
            return ["none is kept of a benchmark run"]
        return ["none is kept of a debug run (debug_persistently keeps them)"]
    told = [f"{checkpointer.checkpoints_dir}", f"newest {checkpointer.written.path.name}"]
    if (criterion := checkpointer.criterion) is not None:
        kind, key = criterion
        ranked = rank(checkpointer.list_checkpoints(), by_metric(key, kind))
        told += [f"best ({kind} {key}) {best.path.name}" for best in ranked[:1]]
    return told


def say_how(
    modules: torch.nn.Module,
    device: torch.device,
    options: RunOptions,
    seed: int,
    own_steps: bool = False,
    num_processes: int = 1,
    has_optimizer: bool = True,
) -> None:
    """The line with which a run starts; `own_steps`: whether the user's fit_batch may step without optimizers_step."""
    where = f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else f"{device}"
    where += f", {num_processes} processes," if num_processes > 1 else ""
    clip = (
        "no clipping"
        if options.max_grad_norm is None
        else f"gradients clipped to norm {options.max_grad_norm:g}"
    )
    if own_steps and not has_optimizer:
        clip = "no optimizer: updates are what your fit_batch counts, self.optimizer_step += 1"
    elif own_steps and options.max_grad_norm is not None:
        clip += " where your fit_batch calls optimizers_step"
    differing = ", ".join(f"{name}={value!r}" for name, value in options.differing().items())
    logger.info(
        "%s on %s in %s; %s; seed %s%s",
        parameter_line(modules),
        where,
        options.precision,
        clip,
        seed,
        f"; options: {differing}" if differing else "",
    )


def say_from_where(
    run: RunState, loaded: Checkpoint | None, checkpointer: Checkpointer | None, origin: Origin
) -> None:
    """Resumed, with the weights of another run, or from scratch: one line, with the file and the update."""
    origin.pass_over()
    note, otherwise = origin.lines(checkpointer)
    if loaded is not None:
        logger.info("resumed from %s: %s%s", loaded.path, standing(run), note)
    elif otherwise:
        logger.info("%s", otherwise)


def standing(run: RunState) -> str:
    """Where a run stands, for people.

    >>> run = RunState()
    >>> run.begin_fit(0, epoch_start=0)
    >>> standing(run)
    'fit 0, 0 epochs closed, update 0'
    """
    where = (
        f"epoch {run.epoch + 1}, after batch {run.step}"
        if run.step
        else f"{counted(run.epoch, 'epoch')} closed"
    )
    return f"fit {run.fit}, {where}, update {run.optimizer_step}"


def say_that_it_goes_on(run: RunState, number: int) -> None:
    """A further fit of the same Brain, or one that an error or Ctrl-C had interrupted."""
    if run.fit == number and run.step:
        logger.info(
            "fit %d goes on in epoch %d, after batch %d, update %d",
            number,
            run.epoch + 1,
            run.step,
            run.optimizer_step,
        )
    elif 0 <= run.fit < number:
        logger.info("fit %d goes on with the live weights, update %d", number, run.optimizer_step)


def say_what_differs(loaded: Checkpoint, now: dict[str, Any]) -> None:
    """A resume where the torch build, the CPU, the threads, the optimizers or compile differ may differ in bits."""
    before = dict(loaded.environment)
    if isinstance(forms := before.get("optimizers"), dict):
        # One that a hook of the open epoch makes is not there yet.
        before["optimizers"] = {name: forms[name] for name in forms if name in now["optimizers"]}
        now = {**now, "optimizers": {n: f for n, f in now["optimizers"].items() if n in before["optimizers"]}}
    changed = [
        f"{key} was {before[key]!r} and is {now[key]!r}"
        for key in ("torch", "cpu", "threads", "optimizers", "compile")
        if key in before and key in now and before[key] != now[key]
    ]
    if changed:
        logger.warning("going on, but not to the same bits as without the restart: %s", "; ".join(changed))


def say_which_hparams_differ(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Hparams that are not those of the checkpoint: what they change in a saved object, the checkpoint takes back."""
    changed = [
        f"{key} was {before[key]!r} and is {now[key]!r}"
        for key in now
        if key in before and before[key] != now[key]
    ]
    if changed:
        logger.warning(
            "hparams differ from those of the checkpoint: %s. What the checkpoint holds wins over them (the learning "
            "rate of an optimizer, the count of a schedule), what is made anew follows them (the length of a schedule, "
            "the data). For another run start in a new folder.",
            "; ".join(changed),
        )


def say_finished(epoch_counter: Any, run: RunState, limit_reached: bool) -> None:
    """Why a fit had no epoch to train."""
    if limit_reached:
        logger.info(
            "nothing to do: the run has made its %s (optimizer_step_limit)",
            counted(run.optimizer_step, "update"),
        )
    elif hasattr(epoch_counter, "limit"):
        logger.info(
            "nothing to do: the epoch counter stands at %s of %s. Raise its limit, or give fit a new "
            "counter, to train on.",
            epoch_counter.current,
            epoch_counter.limit,
        )
    elif run.epoch:
        logger.info(
            "nothing to do: fit %d is finished, %s",
            run.fit,
            f"all its {run.epoch} epochs are closed" if run.epoch > 1 else "its one epoch is closed",
        )
    else:
        logger.warning("nothing to do: %r holds no epoch", epoch_counter)


def warn_of_shadowed_options(
    attributes: dict[str, Any], own_names: Iterable[str], options: RunOptions
) -> None:
    """An attribute of the user's named like an option is the user's; say that the option did not change with it."""
    for name in sorted(set(RunOptions.names()) & set(attributes) - set(own_names)):
        if attributes[name] != getattr(options, name):
            logger.warning(
                "the attribute %s = %r of your Brain is your own: the option %s stays %r. To change the option, pass "
                "run_opts={%r: ...}.",
                name,
                attributes[name],
                name,
                getattr(options, name),
                name,
            )


def warn_of_unread_keys(keys: Iterable[str]) -> None:
    """Keys of hparams that nothing read and that look like an option that was meant."""
    pairs = RunOptions.resembling(keys)
    if pairs:
        listed = ", ".join(
            f"{key!r} (an option of that name has to stand under run_opts:)"
            if key == option
            else f"{key!r} (did you mean {option!r}?)"
            for key, option in pairs
        )
        logger.warning("nothing read these keys of hparams, which look like options: %s", listed)
