"""The run options: everything a user may set about *how* a Brain runs, one small dataclass per collaborator.

An option is one field in the dataclass of the collaborator that obeys it (`brainlib/update/options.py`,
`brainlib/checkpoint/options.py`, …); those of the loop itself are here. `RunOptions` puts them under one flat roof,
reads them from every place where they may be set, and remembers which ones somebody set.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from brainlib.checkpoint.options import CheckpointOptions
from brainlib.checks.options import CheckOptions
from brainlib.common.errors import nearest, quoted
from brainlib.common.logs import logger
from brainlib.common.option_fields import Option, OptionGroup, option, options_of, same_name
from brainlib.data.options import DataOptions
from brainlib.distributed.devices import find_device
from brainlib.distributed.options import DistributedOptions
from brainlib.precision_options import PrecisionOptions
from brainlib.profiling.options import ProfileOptions
from brainlib.progress_options import ProgressOptions
from brainlib.stopping.options import StoppingOptions
from brainlib.update.options import UpdateOptions

if TYPE_CHECKING:
    import torch

__all__ = ["CompileOptions", "LoopOptions", "OtherOptions", "RunOptions"]


@dataclasses.dataclass(frozen=True)
class LoopOptions(OptionGroup):
    """What `Brain.fit` and `Brain.evaluate` do at all.

    >>> LoopOptions().debug_batches
    2
    """

    test_only: bool = option(False, "Skip training: fit returns at once, evaluate works.")
    debug: bool = option(
        False,
        "Run a few batches of a few epochs, with checkpoints in a temporary place; logs and results go where the "
        "script puts them.",
    )
    debug_batches: int = option(2, "With debug: how many batches a stage has.", minimum=1)
    debug_epochs: int = option(2, "With debug: how many epochs a fit has.", minimum=1)
    debug_persistently: bool = option(False, "With debug: keep the checkpoints, in their usual place.")
    valid_interval_steps: int = option(
        0,
        "Also validate inside an epoch, every so many optimizer updates; 0: only at its end.",
        ours=True,
        minimum=0,
    )


@dataclasses.dataclass(frozen=True)
class CompileOptions(OptionGroup):
    """Whether modules go through ``torch.compile``, and how. Modules are compiled in place.

    >>> CompileOptions().compile_mode
    'default'
    """

    compile: bool = option(False, "Compile the modules with torch.compile, in place.")
    compile_module_keys: list[str] | None = option(
        None, "Compile only the modules of these names (this alone switches compile on); null: all."
    )
    compile_mode: str = option(
        "default", "The mode given to torch.compile: default, reduce-overhead, max-autotune, …"
    )
    compile_using_fullgraph: bool = option(False, "Fail where a module cannot be compiled as one graph.")
    compile_using_dynamic_shape_tracing: bool = option(
        False, "Compile for changing shapes from the start, so that a new length is no new compilation."
    )
    tf32: bool | None = option(
        None,
        "Whether CUDA may compute float32 products in TF32, in the whole process; null: as torch has it.",
        ours=True,
    )
    channels_last: bool = option(
        False, "Put the weights of 2-D convolutions into the memory format channels_last.", ours=True
    )
    jit: bool = option(
        False,
        "Accepted for old files: write compile: true.",
        instead="TorchScript is no longer developed: write compile: true.",
    )
    jit_module_keys: list[str] | None = option(
        None,
        "Accepted for old files: write compile_module_keys.",
        instead="TorchScript is no longer developed: write compile_module_keys.",
    )

    def settle(self, explicit: frozenset[str]) -> CompileOptions:
        """Naming modules switches compile on, unless somebody switched it off."""
        if not self.compile_module_keys or self.compile:
            return self
        if "compile" in explicit:
            logger.warning("compile_module_keys has no effect, because compile is false.")
            return self
        return dataclasses.replace(self, compile=True)


@dataclasses.dataclass(frozen=True)
class OtherOptions(OptionGroup):
    """Names without a collaborator, accepted so that old files load.

    >>> OtherOptions().log_config is None
    True
    """

    log_config: str | None = option(
        None,
        "Accepted for old files: configure the logger 'brainlib' in your script.",
        instead="brainlib logs to the logger 'brainlib': call logging.config in your script to configure it.",
    )


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """All run options of one Brain, read-only.

    Every option is an attribute (``options.max_grad_norm``); a collaborator is handed its own group
    (``options.update_options``). Use `resolve` to make one.

    Attributes:
        explicit: the names of the options that somebody set, wherever.

    >>> options = RunOptions.resolve({"max-grad-norm": "1.5"}, hparams={"debug": True, "lr": 0.1})
    >>> options.max_grad_norm, options.debug, options.precision
    (1.5, True, 'fp32')
    >>> options.differing()
    {'max_grad_norm': 1.5, 'debug': True}
    """

    update_options: UpdateOptions = dataclasses.field(default_factory=UpdateOptions)
    precision_options: PrecisionOptions = dataclasses.field(default_factory=PrecisionOptions)
    checkpoint_options: CheckpointOptions = dataclasses.field(default_factory=CheckpointOptions)
    data_options: DataOptions = dataclasses.field(default_factory=DataOptions)
    loop_options: LoopOptions = dataclasses.field(default_factory=LoopOptions)
    stopping_options: StoppingOptions = dataclasses.field(default_factory=StoppingOptions)
    progress_options: ProgressOptions = dataclasses.field(default_factory=ProgressOptions)
    distributed_options: DistributedOptions = dataclasses.field(default_factory=DistributedOptions)
    compile_options: CompileOptions = dataclasses.field(default_factory=CompileOptions)
    profile_options: ProfileOptions = dataclasses.field(default_factory=ProfileOptions)
    check_options: CheckOptions = dataclasses.field(default_factory=CheckOptions)
    other_options: OtherOptions = dataclasses.field(default_factory=OtherOptions)
    explicit: frozenset[str] = frozenset()

    @classmethod
    def resolve(
        cls, run_opts: Mapping[str, Any] | RunOptions | None = None, hparams: Mapping[str, Any] | None = None
    ) -> RunOptions:
        """Read the options from every place where they may be set; a later place wins.

        The places, from the weakest: the defaults; the top level of ``hparams`` (SpeechBrain's names only: a name of
        ours there is the user's own key); the section ``hparams["run_opts"]``; ``run_opts``. In names, dashes and
        underscores are alike.

        Args:
            run_opts: names with values, as `parse_arguments` returns them, or another RunOptions, of which only what
                was explicitly set counts.
            hparams: the loaded hparams file, or any mapping. Only the keys that are options are read.

        Raises:
            ValueError: an unknown name (the message has the nearest), a value of the wrong kind, a contradiction, or a
                device that this machine does not have.

        >>> RunOptions.resolve({"debug": "yes"}, {"debug": False, "run_opts": {"limit-train-batches": 3}}).explicit
        frozenset({...})
        """
        given: dict[str, Any] = {}
        if hparams is not None:
            flat = {key: hparams[key] for key in _own_names(hparams, cls.speechbrain_names())}
            given.update(_read(flat, "a key of hparams"))
            if "run_opts" in hparams:
                section = hparams["run_opts"]
                if not isinstance(section, Mapping):
                    raise ValueError(
                        f"The hparams key 'run_opts' is {section!r}, but it takes options with their values, "
                        "such as run_opts: {limit_train_batches: 10}."
                    )
                given.update(_read(section, "under 'run_opts' in hparams"))
        if isinstance(run_opts, RunOptions):
            given.update({name: getattr(run_opts, name) for name in run_opts.explicit})
        elif isinstance(run_opts, Mapping):
            given.update(_read(run_opts, "in run_opts"))
        elif run_opts is not None:
            raise ValueError(f"run_opts is {run_opts!r}, but it takes a dict of options or a RunOptions.")
        return cls._composed(given)

    @classmethod
    def _composed(cls, given: Mapping[str, Any]) -> RunOptions:
        explicit = frozenset(given)
        groups: dict[str, Any] = {}
        for attribute, group in _groups().items():
            own = {each.name: given[each.name] for each in options_of(group) if each.name in given}
            groups[attribute] = group(**own).settle(explicit)
        resolved = cls(**groups, explicit=explicit)
        if resolved.device is not None:
            resolved.find_device(local_rank=0)  # a missing device is an error here, not at the first batch
        return resolved

    @staticmethod
    def names() -> tuple[str, ...]:
        """The name of every option, in the order of the groups.

        >>> "precision" in RunOptions.names()
        True
        """
        return tuple(all_options())

    @staticmethod
    def speechbrain_names() -> tuple[str, ...]:
        """The options whose names SpeechBrain has too: these also work at the top level of hparams.

        >>> "loss_average" in RunOptions.speechbrain_names()
        False
        """
        return tuple(each.name for each in all_options().values() if not each.ours)

    @staticmethod
    def resembling(keys: Iterable[str]) -> list[tuple[str, str]]:
        """Which of a user's keys look like an option that was meant.

        Args:
            keys: top-level keys of hparams that nothing read.

        Returns:
            Pairs (key, option): the key resembles an option of SpeechBrain's, or it is the name of an option of ours,
            which would have to stand under ``run_opts:`` to be one.

        >>> RunOptions.resembling(["max_gradient_norm", "limit_train_batches", "lr", "n_fft"])
        [('max_gradient_norm', 'max_grad_norm'), ('limit_train_batches', 'limit_train_batches')]
        """
        ours = {each.name for each in all_options().values() if each.ours}
        theirs = RunOptions.speechbrain_names()
        pairs = []
        for key in keys:
            name = same_name(str(key))
            if name in ours:
                pairs.append((key, name))
            elif name not in theirs:
                # 0.78 still takes checkpoint_interval_minutes for ckpt_interval_minutes.
                pairs += [(key, near) for near in difflib.get_close_matches(name, theirs, n=1, cutoff=0.78)]
        return pairs

    def differing(self) -> dict[str, Any]:
        """The options whose value is not the default, whoever set it.

        >>> RunOptions().differing()
        {}
        """
        return {name: self[name] for name, each in all_options().items() if self[name] != each.default}

    def find_device(self, local_rank: int | None = None) -> torch.device:
        """The device of this process, parsed and known to be there.

        Args:
            local_rank: the number of this process on this machine; None: torchrun's ``LOCAL_RANK``, else 0.

        >>> RunOptions.resolve({"device": "cpu"}).find_device()
        device(type='cpu')
        """
        if local_rank is None:
            local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        return find_device(self.distributed_options.device, local_rank)

    def __getattr__(self, name: str) -> Any:
        """An option by its name; asked only for what is no attribute of this class."""
        attribute = _home().get(name)
        if attribute is None:
            raise AttributeError(f"There is no run option {name!r}.{nearest(name, RunOptions.names())}")
        return getattr(getattr(self, attribute), name)

    def __getitem__(self, name: str) -> Any:
        """An option by its name, as ``run_opts["device"]`` is written in many scripts."""
        return getattr(self, known_name(name, "in run_opts"))

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *RunOptions.names()]


@functools.cache
def _groups() -> dict[str, type[OptionGroup]]:
    """The groups by the attribute of RunOptions that holds them."""
    fields = (field for field in dataclasses.fields(RunOptions) if field.name != "explicit")
    return {field.name: field.default_factory for field in fields}  # type: ignore[misc]


@functools.cache
def all_options() -> dict[str, Option]:
    """Every option by name, in the order of the groups: what the help and the docs page are made of.

    >>> all_options()["precision"].takes
    "one of 'fp32', 'fp16', 'bf16'"
    """
    return {each.name: each for group in _groups().values() for each in options_of(group)}


@functools.cache
def _home() -> dict[str, str]:
    return {each.name: attribute for attribute, group in _groups().items() for each in options_of(group)}


def known_name(name: object, where: str) -> str:
    """The option that a name means; an unknown one is an error with the nearest.

    >>> known_name("max-grad-norm", "in run_opts")
    'max_grad_norm'
    """
    if isinstance(name, str) and same_name(name) in all_options():
        return same_name(name)
    hint = nearest(same_name(name), all_options()) if isinstance(name, str) else ""
    raise ValueError(
        f"There is no run option {name!r} ({where}).{hint} "
        "docs/options.md lists all of them; a setting of your own belongs at the top level of hparams."
    )


def _own_names(hparams: Mapping[Any, Any], names: Iterable[str]) -> list[str]:
    wanted = frozenset(names)
    return [key for key in hparams if isinstance(key, str) and same_name(key) in wanted]


def _read(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    spelled: dict[str, str] = {}
    read: dict[str, Any] = {}
    for key, value in values.items():
        name = known_name(key, where)
        if name in spelled:
            raise ValueError(
                f"The option {name!r} is given twice ({where}): as {quoted([spelled[name], key])}."
            )
        spelled[name] = key
        read[name] = all_options()[name].read(value, where)
    return read
