"""A store in the host's pinned memory: for models on a GPU.

In: storages on the device, as `transfers` hands them over. Out: the same bytes later, in other
memory of the device.

Copies go through two streams of their own, one for each direction, beside the one that computes.
Nothing waits on the host: an order between two streams is an event that the later one waits for.

* A copy out comes behind what was computed when it began. Whoever frees its source waits for it
  first (`wait`), on the stream that computes; memory that is given back there is taken again there,
  so it is not overwritten too early.
* A copy in comes behind its copy out, and behind what was computed when its target was taken, for
  others have used that memory before. Whoever reads the target waits for it first.
* Memory that dies while it is copied, because an error unwound the step, makes the stream that
  computes wait before it is given back.

The streams are an object, so that tests can put others in their place that delay and reorder.

Limits: pinned memory is what PyTorch's own allocator for it hands out, which rounds sizes up to a
power of two. Written for CUDA; it has not been tried on a device.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import torch

from rekindle.errors import StoreFailed
from rekindle.torch.transfers import Event

OUT, IN = 0, 1
"""The two directions."""


class Streams(Protocol):
    """What of a device a store needs."""

    def pinned(self, size: int) -> torch.Tensor:
        """So many bytes of the host's memory that the device can reach."""

    def computed(self) -> Any:
        """The moment at which all that was computed so far is done."""

    def copy(self, way: int, target: torch.Tensor, source: torch.Tensor, after: list[Any]) -> Any:
        """Copies on the stream of that direction, behind these moments; gives its end."""

    def wait(self, moment: Any) -> None:
        """What is computed from now on comes behind it."""


class CudaStreams:
    """Those of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.ways = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def pinned(self, size: int) -> torch.Tensor:
        """See `Streams`."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def computed(self) -> Any:
        """See `Streams`."""
        return torch.cuda.current_stream(self.device).record_event()

    def copy(
        self,
        way: int,
        target: torch.Tensor,
        source: torch.Tensor,
        after: list[Any],
    ) -> Any:
        """See `Streams`."""
        stream = self.ways[way]
        for moment in after:
            stream.wait_event(moment)
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        return stream.record_event()

    def wait(self, moment: Any) -> None:
        """See `Streams`."""
        torch.cuda.current_stream(self.device).wait_event(moment)


class HostStore:
    """Pinned memory, with streams to it and back."""

    def __init__(self, streams: Streams, limit: int | None = None) -> None:
        self.streams = streams
        self.limit = limit
        """The most bytes that it may hold."""
        self._held = _Held()

    @property
    def held(self) -> int:
        """Bytes that are in it."""
        return self._held.bytes

    def place(self, size: int) -> torch.Tensor:
        """Room for so many bytes."""
        if self.limit is not None and self.held + size > self.limit:
            raise StoreFailed(
                f"the store in host memory holds {self.held} bytes and may hold {self.limit}, and "
                f"{size} more are to go there: an earlier forward waits for its backward; call "
                "backward after each forward, or give a larger offload_limit"
            )
        place = self.streams.pinned(size)
        self._held.bytes += size
        weakref.finalize(place.untyped_storage(), self._held.give_back, size).atexit = False
        return place

    def copy_out(self, source: torch.UntypedStorage, place: torch.Tensor) -> Event:
        """Begins to copy to the host."""
        after = [self.streams.computed()]
        end = self.streams.copy(OUT, place, _bytes_of(source), after)
        return _End(self.streams, end, source)

    def copy_in(self, place: torch.Tensor, target: torch.UntypedStorage, after: Event) -> Event:
        """Begins to copy to the device."""
        assert isinstance(after, _End)
        earlier = [after.moment, self.streams.computed()]
        end = self.streams.copy(IN, _bytes_of(target), place, earlier)
        return _End(self.streams, end, target)


class _Held:
    """How many bytes a store holds; it outlives the store."""

    def __init__(self) -> None:
        self.bytes = 0

    def give_back(self, size: int) -> None:
        self.bytes -= size


class _End:
    """The end of a copy; memory of the device that dies before anybody has waited for it waits
    itself.
    """

    def __init__(self, streams: Streams, moment: Any, memory: torch.UntypedStorage) -> None:
        self.streams, self.moment = streams, moment
        self._at_death = weakref.finalize(memory, streams.wait, moment)
        self._at_death.atexit = False

    def wait(self) -> None:
        """See `Event`."""
        self._at_death.detach()
        self.streams.wait(self.moment)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """The storage as a tensor of bytes."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
