"""Find the device that was asked for, or say which there are."""

from __future__ import annotations

import torch

from brainlib.common.errors import quoted

__all__ = ["available_devices", "find_device"]


def available_devices() -> list[str]:
    """The devices of this machine that torch can use, the CPU first.

    >>> available_devices()[0]
    'cpu'
    """
    if not torch.accelerator.is_available():
        return ["cpu"]
    kind = _accelerator().type
    count = torch.accelerator.device_count()
    return ["cpu", *(["mps"] if kind == "mps" else [f"{kind}:{index}" for index in range(count)])]


def find_device(name: str | None = None, local_rank: int = 0) -> torch.device:
    """Parse the option `device` once, and make sure that the device exists.

    Args:
        name: "cpu", "cuda", "cuda:1", "mps", …; None: the accelerator if there is one, else the CPU.
        local_rank: the number of this process on this machine; it takes the accelerator of that number where none
            is named.

    Raises:
        ValueError: there is no such device; the message names those there are.

    >>> find_device("cpu")
    device(type='cpu')
    """
    devices = available_devices()
    if name is None:
        name = "cpu" if devices == ["cpu"] else devices[1].partition(":")[0]
    kind, _, index = name.strip().lower().partition(":")
    if kind in ("cpu", "mps"):
        found = kind if index in ("", "0") else f"{kind}:{index}"  # torch knows one of each
    else:
        found = f"{kind}:{index or local_rank}"
    if found in devices:
        return torch.device(found)
    hint = "Name one of these, or none."
    if not index and f"{kind}:0" in devices:
        hint = f"This is process {local_rank} of the machine, counted from 0: start one process a device."
    raise ValueError(f"The option 'device' is {name!r}, but this machine has {quoted(devices)}. {hint}")


def _accelerator() -> torch.device:
    device = torch.accelerator.current_accelerator()
    assert device is not None, "asked only when an accelerator is available"
    return device
