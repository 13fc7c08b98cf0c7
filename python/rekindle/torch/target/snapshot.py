"""Histories of PyTorch's CUDA allocator, as `torch.cuda.memory._dump_snapshot` writes them.

In: a pickle or JSON with `device_traces` (events `alloc`, `free_requested`, `free_completed`,
`segment_alloc`, `segment_free`, … each with an address and a size) and `segments` (what is there at
the end). Out: a `Snapshot`: the requests of one device in their order, what was handed out and
reserved at most by the events themselves, and the same by our allocator.

A pickle can run anything when it is read. This reader takes lists, tuples, dictionaries, texts and
numbers, and refuses every other thing in it.

Limits: a history that begins in the middle has blocks that were handed out before. Those that are
given back are taken to have been there at the start, each of its own; what stays and is never
mentioned is only in `segments`.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rekindle import _native
from rekindle.errors import InvalidInput

ALLOCATED = "alloc"
FREED = ("free_requested", "free")
TAKEN, MAPPED = ("segment_alloc",), ("segment_map",)
GIVEN_BACK = ("segment_free", "segment_unmap")


class _PlainUnpickler(pickle.Unpickler):
    """Reads what has no code in it."""

    def find_class(self, module: str, name: str) -> Any:
        raise InvalidInput(
            f"the snapshot wants {module}.{name}, which could run anything: it is not read"
        )


@dataclass(frozen=True)
class Snapshot:
    """A history of one device's allocator."""

    requests: list[tuple[int, int | None]]
    """Addresses with the bytes that are handed out there, None where they are given back."""
    allocated: int
    """The most that was handed out, by the events: bytes as PyTorch asked its allocator for them,
    rounded to its blocks.
    """
    reserved: int
    """The most that was taken from the device, by the events and what was there before them."""
    is_expandable: bool

    def replayed(self, limit: int | None = None) -> _native.Footprint:
        """What our allocator makes of the same requests."""
        return _native.replay_history(self.requests, expandable=self.is_expandable, limit=limit)


def read_snapshot(path: str | Path, device: int = 0) -> Snapshot:
    """Reads a snapshot: a pickle, or the same as JSON."""
    found = _contents(Path(path))
    traces = found.get("device_traces")
    if not isinstance(traces, list) or device >= len(traces):
        raise InvalidInput(f"{path} has no history of device {device}")
    segments = found.get("segments") or []
    try:
        return _history(traces[device], [s for s in segments if s.get("device", 0) == device])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidInput(f"{path} is no memory snapshot: {error!r}") from error


def _contents(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    try:
        found = json.loads(data) if data[:1] == b"{" else _PlainUnpickler(io.BytesIO(data)).load()
    except InvalidInput:
        raise
    except Exception as error:  # A damaged pickle can raise nearly everything.
        raise InvalidInput(f"{path} is no memory snapshot: {error!r}") from error
    if not isinstance(found, dict):
        raise InvalidInput(f"{path} is no memory snapshot: it is a {type(found).__name__}")
    return found


def _history(
    events: Iterable[Mapping[str, Any]], segments: Iterable[Mapping[str, Any]]
) -> Snapshot:
    requests: list[tuple[int, int | None]] = []
    known: set[int] = set()
    early: list[tuple[int, int]] = []
    taken = most = 0
    is_expandable = any(segment.get("is_expandable") for segment in segments)
    for event in events:
        action, address, size = event["action"], int(event["addr"]), int(event["size"])
        if action == ALLOCATED:
            known.add(address)
            requests.append((address, size))
        elif action in FREED:
            if address not in known:
                early.append((address, size))
            known.discard(address)
            requests.append((address, None))
        elif action in TAKEN or action in MAPPED:
            is_expandable = is_expandable or action in MAPPED
            taken += size
        elif action in GIVEN_BACK:
            taken -= size
        most = max(most, taken)
    # At the end there is what was there at the start, and what the events took.
    there = sum(int(segment["total_size"]) for segment in segments)
    reserved = most + max(there - taken, 0)
    return Snapshot([*early, *requests], _highest(requests, early), reserved, is_expandable)


def _highest(requests: list[tuple[int, int | None]], early: list[tuple[int, int]]) -> int:
    """The most bytes that were handed out, with those that were there before."""
    sizes: dict[int, int] = dict(early)
    now = most = sum(sizes.values())
    for address, size in requests:
        if size is None:
            now -= sizes.pop(address)
        else:
            sizes[address] = size
            now += size
        most = max(most, now)
    return most
