"""Where a planned model moves activations to, and how fast that is: what `offload=` names.

In: settings, and what is planned. Out: the `Transfers` that run a plan, and the settings with the
store that the planner plans with. A store is measured once in a process, unless its speed is given.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from typing import Any

import torch

from rekindle.errors import InvalidInput, UnsupportedOption
from rekindle.settings import HOST, Settings
from rekindle.torch.file_store import FileStore
from rekindle.torch.host_store import CudaStreams, HostStore
from rekindle.torch.interfaces import without_modes
from rekindle.torch.store_speed import measure
from rekindle.torch.transfers import Transfers


Offload = str | os.PathLike[str] | None
"""A folder, or `"host"`."""


def options_of(offload: Offload, limit: int | str | None, store: str | None) -> dict[str, Any]:
    """What of the settings says where activations go. A folder is the same whatever the current one
    is later.
    """
    if offload is None and store is not None:
        raise InvalidInput("store says how fast offload= is: say where activations go, too")
    if isinstance(offload, os.PathLike) or (isinstance(offload, str) and offload != HOST):
        offload = os.path.abspath(offload)
    return {"offload": offload, "offload_limit": limit, "store": store}


def transfers_for(settings: Settings, devices: Iterable[torch.device]) -> Transfers | None:
    """What moves activations of these devices to the store and back; None if there is no store."""
    if settings.offload is None:
        return None
    device = check_devices(settings, devices)
    return _transfers(settings.offload, device, settings.offload_bytes)


def _transfers(offload: str, device: torch.device, limit: int | None = None) -> Transfers:
    if offload == HOST:
        return Transfers(HostStore(CudaStreams(device), limit))
    return Transfers(FileStore(offload, limit))


def check_devices(settings: Settings, devices: Iterable[torch.device]) -> torch.device:
    """Where the model is. Refuses a store that does not suit that."""
    found = sorted({str(device) for device in devices} - {"cpu"})
    if settings.offload is None:
        return torch.device("cpu")
    if len(found) > 1:
        raise UnsupportedOption(
            f"offload= moves activations of one device, and the model is on {', '.join(found)}"
        )
    if settings.offload == HOST and not (found and found[0].startswith("cuda")):
        raise UnsupportedOption(
            f'offload="{HOST}" is for models on a GPU, and this one is on {(found or ["cpu"])[0]}: '
            "name a folder, and activations go to a file in it"
        )
    if settings.offload != HOST and found:
        raise UnsupportedOption(
            f"offload= with a folder is for models on the CPU, and this one is on {found[0]}: give "
            f'offload="{HOST}", and activations go to pinned memory'
        )
    return torch.device(found[0] if found else "cpu")


def with_store(settings: Settings) -> Settings:
    """The settings with the store that the planner plans with."""
    if settings.offload is None or settings.is_store_known:
        return settings
    return settings.with_store(settings.store or _speed(settings.offload))


@functools.cache
def _speed(offload: str) -> str:
    device = torch.device("cuda" if offload == HOST else "cpu")
    # A graph is planned in a mode whose tensors have no contents; these have.
    with without_modes():
        return measure(_transfers(offload, device), device)
