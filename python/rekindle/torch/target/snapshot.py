"""Histories of PyTorch's CUDA allocator, as `torch.cuda.memory._dump_snapshot` writes them.

In: a pickle or JSON with `device_traces` (events `alloc`, `free_requested`, `free_completed`,
`segment_alloc`, `segment_free`, … each with an address and a size) and `segments` (what is there at
the end). Out: a `Snapshot`: the events of one device in their order, what was there before the
first, what was handed out and reserved at most by the events themselves, and the same by our
allocator, block for block.

A recording usually begins in the middle. Since at its end every segment and block is known, the
events are undone one by one, from the last to the first; what is left was there at the start. A
block that was there and is given back is as large as its request, rounded; in the large pool a gap
of up to 1 MiB behind it is part of it, for no free block there is so small.

A pickle can run anything when it is read. This reader takes lists, tuples, dictionaries, texts and
numbers, and refuses every other thing in it.

Limits: where a block that was there had a rest of its own and a free block behind that, the two
cannot be told apart; some addresses are then other ones. Of a history with expandable segments, or
without any segment, the blocks that were there are taken to be the first requests, each of its own.
"""

from __future__ import annotations

import bisect
import io
import json
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rekindle import _native
from rekindle.errors import InvalidInput

ALLOCATED = "alloc"
GIVEN_BACK = ("free_completed", "free")
"""When memory can be used again. A request to free it comes first, and is all that some have."""
REQUESTED = "free_requested"
SEGMENT, SEGMENT_FREED = "segment_alloc", "segment_free"
MAPPED, UNMAPPED = "segment_map", "segment_unmap"
UNUSED = "inactive"
"""The state of a block that nobody has."""
LEAST_BLOCK, LARGEST_REST = 512, 1 << 20

Event = tuple[str, int, int]
"""What happened: `alloc`, `free`, `segment_alloc` or `segment_free`; an address and bytes."""


class _PlainUnpickler(pickle.Unpickler):
    """Reads what has no code in it."""

    def find_class(self, module: str, name: str) -> Any:
        raise InvalidInput(
            f"the snapshot wants {module}.{name}, which could run anything: it is not read"
        )


@dataclass(frozen=True)
class Segment:
    """Memory that was taken from the device, and what of it is handed out."""

    address: int
    size: int
    is_small: bool
    used: tuple[tuple[int, int], ...]
    """Addresses and bytes of blocks, by rising address."""


@dataclass(frozen=True)
class Snapshot:
    """A history of one device's allocator."""

    events: list[Event]
    there: list[Segment]
    """What was there before the first event."""
    allocated: int
    """The most that was handed out, by the events: bytes as they were asked for, and whole blocks
    of what was there.
    """
    reserved: int
    """The most that was taken from the device, by the events and what was there before them."""
    is_expandable: bool

    def replayed(self, limit: int | None = None) -> _native.Replayed:
        """What our allocator makes of the same requests. It is given where segments lie, which is
        the device's choice; `elsewhere` and `otherwise` count what it does in another way.
        """
        there = [(part.address, part.size, part.is_small, part.used) for part in self.there]
        return _native.replay_history(
            self.events, there=there, expandable=self.is_expandable, limit=limit
        )


def read_snapshot(path: str | Path, device: int = 0) -> Snapshot:
    """Reads a snapshot: a pickle, or the same as JSON."""
    found = _contents(Path(path))
    traces = found.get("device_traces")
    if not isinstance(traces, list) or not 0 <= device < len(traces):
        raise InvalidInput(f"{path} has no history of device {device}")
    try:
        segments = [s for s in found.get("segments") or [] if s.get("device", 0) == device]
        _refuse_streams(traces[device], path)
        return _history(traces[device], segments)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidInput(f"{path} is no memory snapshot: {error!r}") from error


def _contents(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
        found = json.loads(data) if data[:1] == b"{" else _PlainUnpickler(io.BytesIO(data)).load()
    except InvalidInput:
        raise
    except Exception as error:  # A damaged pickle can raise nearly everything.
        raise InvalidInput(f"{path} is no memory snapshot: {error!r}") from error
    if not isinstance(found, dict):
        raise InvalidInput(f"{path} is no memory snapshot: it is a {type(found).__name__}")
    return found


def _refuse_streams(trace: Iterable[Mapping[str, Any]], path: str | Path) -> None:
    """Blocks of one stream serve no other, and ours is one stream's allocator."""
    streams = {event.get("stream", 0) for event in trace if event["action"] == ALLOCATED}
    if len(streams) > 1:
        raise InvalidInput(
            f"{path} has blocks of {len(streams)} streams, and the allocator is known for one: "
            "record a step that stays on its stream"
        )


def _history(trace: Sequence[Mapping[str, Any]], segments: list[Mapping[str, Any]]) -> Snapshot:
    is_expandable = any(segment.get("is_expandable") for segment in segments) or any(
        event["action"] == MAPPED for event in trace
    )
    events = _events(trace)
    end = sum(int(segment["total_size"]) for segment in segments)
    there: list[Segment] = []
    if segments and not is_expandable:
        there = _Undone(segments).to_the_start(events)
    else:
        events = [*_early(events), *events]
    at_start = {address: size for part in there for address, size in part.used}
    return Snapshot(
        events, there, _most_allocated(events, at_start), _most_reserved(trace, end), is_expandable
    )


def _events(trace: Sequence[Mapping[str, Any]]) -> list[Event]:
    """The events that count, by their names here."""
    has_end = any(event["action"] in GIVEN_BACK for event in trace)
    names = {ALLOCATED: "alloc", SEGMENT: SEGMENT, SEGMENT_FREED: SEGMENT_FREED}
    names |= dict.fromkeys(GIVEN_BACK if has_end else (REQUESTED,), "free")
    return [
        (names[event["action"]], int(event["addr"]), int(event["size"]))
        for event in trace
        if event["action"] in names
    ]


class _Undone:
    """Segments and blocks at the end of a history, on the way back to its start."""

    def __init__(self, segments: Iterable[Mapping[str, Any]]) -> None:
        self.segments: dict[int, tuple[int, bool]] = {}
        """Bytes, and whether it belongs to the small pool, by address."""
        self.order: list[int] = []
        self.used: dict[int, int] = {}
        self.used_order: list[int] = []
        for segment in segments:
            at = int(segment["address"])
            self._add_segment(at, int(segment["total_size"]), segment["segment_type"] == "small")
            for block in segment["blocks"]:
                if block["state"] != UNUSED:
                    self._add_block(at, int(block["size"]))
                at += int(block["size"])

    def to_the_start(self, events: Sequence[Event]) -> list[Segment]:
        """What is left when all events are undone."""
        for action, address, size in reversed(events):
            if action == "alloc":
                self._remove_block(address)
            elif action == "free":
                self._add_block(address, self._block_size(address, size))
            elif action == SEGMENT:
                self.order.remove(address)
                del self.segments[address]
            else:
                # Segments of the small pool are of one size, which the large pool never has.
                self._add_segment(address, size, is_small=size == 2 * LARGEST_REST)
        found = []
        for address in self.order:
            size, is_small = self.segments[address]
            low = bisect.bisect_left(self.used_order, address)
            high = bisect.bisect_left(self.used_order, address + size)
            used = tuple((at, self.used[at]) for at in self.used_order[low:high])
            found.append(Segment(address, size, is_small, used))
        return found

    def _block_size(self, address: int, requested: int) -> int:
        """The bytes of a block that was given back: its request, and a rest that is too small to be
        a block of its own.
        """
        at = bisect.bisect_right(self.order, address) - 1
        if at < 0:
            raise ValueError(f"{address:#x} lies in no segment")
        start = self.order[at]
        size, is_small = self.segments[start]
        rounded = -(-requested // LEAST_BLOCK) * LEAST_BLOCK
        if is_small:
            return rounded
        behind = bisect.bisect_right(self.used_order, address)
        next_used = self.used_order[behind] if behind < len(self.used_order) else start + size
        rest = min(next_used, start + size) - address - rounded
        return rounded + rest if 0 < rest <= LARGEST_REST else rounded

    def _add_segment(self, address: int, size: int, is_small: bool) -> None:
        self.segments[address] = size, is_small
        bisect.insort(self.order, address)

    def _add_block(self, address: int, size: int) -> None:
        if address in self.used:
            raise ValueError(f"{address:#x} is given back twice")
        self.used[address] = size
        bisect.insort(self.used_order, address)

    def _remove_block(self, address: int) -> None:
        if self.used.pop(address, None) is None:
            raise ValueError(f"{address:#x} is handed out twice")
        del self.used_order[bisect.bisect_left(self.used_order, address)]


def _early(events: Sequence[Event]) -> list[Event]:
    """The blocks that are given back without having been handed out, as first requests."""
    known: set[int] = set()
    early: list[Event] = []
    for action, address, size in events:
        if action == "alloc":
            known.add(address)
        elif action == "free":
            if address not in known:
                early.append(("alloc", address, size))
            known.discard(address)
    return early


def _most_allocated(events: Iterable[Event], at_start: Mapping[int, int]) -> int:
    sizes = dict(at_start)
    now = most = sum(sizes.values())
    for action, address, size in events:
        if action == "alloc":
            sizes[address] = size
            now += size
        elif action == "free":
            now -= sizes.pop(address)
        most = max(most, now)
    return most


def _most_reserved(trace: Iterable[Mapping[str, Any]], end: int) -> int:
    """At the end there is what was there at the start, and what the events took."""
    taken = most = 0
    for event in trace:
        if event["action"] in (SEGMENT, MAPPED):
            taken += int(event["size"])
        elif event["action"] in (SEGMENT_FREED, UNMAPPED):
            taken -= int(event["size"])
        most = max(most, taken)
    return most + max(end - taken, 0)
