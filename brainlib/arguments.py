"""What a Brain can be made of and called with, checked before anything happens."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from brainlib.common.errors import nearest, quoted
from brainlib.seeding import last_seed

__all__ = ["check_arguments", "check_fit_arguments", "check_loader_options", "seed_of"]


def check_arguments(
    modules: Any, opt_class: Any, hparams: Any, checkpointer: Any, loggers: Any, extensions: Any = ()
) -> None:
    """Refuse what a Brain cannot be made of.

    >>> check_arguments(None, None, None, "save", ())
    Traceback (most recent call last):
    ...
    ValueError: checkpointer is 'save'; it must be a Checkpointer, such as brainlib.Checkpointer('save')
    """
    if modules is not None and not isinstance(modules, (Mapping, torch.nn.ModuleDict)):
        raise ValueError(
            f"modules is a {type(modules).__name__}; it must be a dict from names to modules, such as "
            "{'model': model}"
        )
    for name, module in (modules or {}).items():
        if not isinstance(module, torch.nn.Module):
            raise ValueError(f"modules[{name!r}] is a {type(module).__name__}; it must be a torch.nn.Module")
        if not isinstance(name, str) or not name.isidentifier() or hasattr(torch.nn.ModuleDict, name):
            raise ValueError(
                f"modules has the key {name!r}; a key becomes an attribute of brain.modules, so it must be a plain "
                "name (letters, digits, underscores) that torch.nn.ModuleDict does not use itself"
            )
    if isinstance(opt_class, torch.optim.Optimizer):
        raise ValueError(
            f"opt_class is an optimizer ({type(opt_class).__name__}); it must be a function that makes one from "
            "parameters, such as lambda parameters: torch.optim.Adam(parameters, 1e-3)"
        )
    if opt_class is not None and not callable(opt_class):
        raise ValueError(
            f"opt_class is {opt_class!r}; it must be a function that takes parameters and returns an optimizer. In an "
            "hparams file: !name:torch.optim.Adam {lr: 0.001}"
        )
    if hparams is not None and not isinstance(hparams, Mapping):
        raise ValueError(
            f"hparams is a {type(hparams).__name__}; it must be a dict, as load_hyperpyyaml returns it"
        )
    if checkpointer is not None and not hasattr(checkpointer, "attach"):
        raise ValueError(
            f"checkpointer is {checkpointer!r}; it must be a Checkpointer, such as "
            f"brainlib.Checkpointer({str(checkpointer)!r})"
        )
    if isinstance(loggers, (str, bytes)) or not isinstance(loggers, Iterable):
        raise ValueError(
            f"loggers is {loggers!r}; it must be a list of loggers, such as [FileTrainLogger('log.txt')]"
        )
    if isinstance(extensions, str) or not isinstance(extensions, Iterable):
        raise ValueError(
            f"extensions is {extensions!r}; it must be a list of extensions, such as [Snapshot(5)]"
        )
    for each in loggers:
        if not hasattr(each, "log_stats"):
            raise ValueError(
                f"loggers holds {each!r}; each must have log_stats, as brainlib.FileTrainLogger and "
                "brainlib.JsonlLogger do"
            )


def check_fit_arguments(epoch_counter: Any) -> None:
    """Refuse a number of epochs where the epochs are wanted.

    >>> check_fit_arguments(10)
    Traceback (most recent call last):
    ...
    ValueError: epoch_counter is 10; it must be something to iterate over, such as range(10) or EpochCounter(10)
    """
    if isinstance(epoch_counter, (str, bytes)) or not isinstance(epoch_counter, Iterable):
        hint = epoch_counter if isinstance(epoch_counter, int) else 10
        raise ValueError(
            f"epoch_counter is {epoch_counter!r}; it must be something to iterate over, such as range({hint}) or "
            f"EpochCounter({hint})"
        )


def check_loader_options(options: Mapping[str, Any]) -> None:
    """Refuse a loader option that DataLoader does not have.

    >>> check_loader_options({"batchsize": 8})
    Traceback (most recent call last):
    ...
    ValueError: a DataLoader has no option 'batchsize'. Did you mean 'batch_size'?
    """
    known = [
        name for name in inspect.signature(DataLoader.__init__).parameters if name not in ("self", "dataset")
    ]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ValueError(f"a DataLoader has no option {quoted(unknown)}.{nearest(unknown[0], known)}")


def seed_of(hparams: Mapping[str, Any]) -> int | None:
    """The seed of the run: the key ``seed``, else what `seed_everything` was given, else None."""
    seed = hparams.get("seed")
    if seed is None:
        return last_seed()
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ValueError(f"the hparams key 'seed' is {seed!r}; it must be an integer with 0 <= seed < 2**63")
    return seed
