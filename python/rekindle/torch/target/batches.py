"""Batches of other sizes, and the largest that fits.

A batch is resized along the first dimension of its tensors. The graph of a size follows from those
of two others where both have the same nodes: each storage has a fixed part and one that grows with
the batch. What follows so is confirmed by a capture, which must be the very same but for its times.

Limits: what fits is not monotone. The allocator's segments and the planner's searches may have room
for a batch and none for a smaller one, so the largest batch here is one that fits while the next
one does not; that none beyond it fits is not proven.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from rekindle import _native
from rekindle.errors import InvalidInput
from rekindle.torch.capture import Batch
from rekindle.torch.interfaces import pytree

LARGEST_BATCH = 1 << 20
"""No batch beyond this is tried."""
ROUNDS = 12
"""How often other neighbours are taken; a square comes half as near in each round at least."""
FINER = 4
"""The first step beyond a batch that is known to fit is one part in so many of it."""


def size_of(batch: Batch) -> int:
    """The size of a batch: the first dimension of its first tensor."""
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.dim():
            return int(leaf.shape[0])
    return 1


def resized(batch: Batch, size: int, count: int) -> Batch:
    """The batch with its first dimension repeated or cut to `count`, in every tensor that has the
    batch's size there.
    """

    def resize(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.shape[0] != size:
            return tensor
        if tensor.is_meta:
            return torch.empty((count, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")
        rows = torch.arange(count, device=tensor.device) % size
        return tensor.detach().index_select(0, rows).requires_grad_(tensor.requires_grad)

    if not size:
        raise InvalidInput("the batch is empty")
    return pytree.tree_map_only(torch.Tensor, resize, batch)  # type: ignore[no-any-return]


Line = Callable[[int], _native.Graph]


def scaled(small: _native.Graph, at: int, large: _native.Graph, beyond: int) -> Line | None:
    """The graph of any batch size out of those of two; None if they are not alike."""
    if len(small) != len(large) or len(small.storages) != len(large.storages):
        return None
    pairs = zip(small.nodes, large.nodes, strict=True)
    if any(_wiring(a) != _wiring(b) for a, b in pairs):
        return None
    step = beyond - at

    def line(n: int) -> _native.Graph:
        def between(low: float, high: float) -> float:
            return low + (high - low) * (n - at) / step

        nodes = [
            _native.Node(
                a.name,
                a.op,
                a.phase,
                reads=a.reads,
                writes=a.writes,
                updates=a.updates,
                effect=a.effect,
                time=max(between(a.time, b.time), 0.0),
                workspace=max(a.workspace + (b.workspace - a.workspace) * (n - at) // step, 0),
            )
            for a, b in zip(small.nodes, large.nodes, strict=True)
        ]
        storages = [
            (max(a + (b - a) * (n - at) // step, 0), role)
            for (a, role), (b, _) in zip(small.storages, large.storages, strict=True)
        ]
        return _native.Graph(
            small.name, storages=storages, nodes=nodes, outputs=small.outputs, targets=_once(small)
        )

    return line


def _once(graph: _native.Graph) -> list[int]:
    return [at for at, node in enumerate(graph.nodes) if node.effect == "once"]


def _wiring(node: _native.Node) -> tuple[Any, ...]:
    return node.op, node.phase, node.reads, node.writes, node.updates, node.effect


def largest(
    excess: Callable[[_native.Graph], int],
    room: int,
    captured: Callable[[int], _native.Graph],
    known: int,
    least: int,
) -> tuple[int, int]:
    """The size of a batch that fits while the next one does not, or 0 if 1 does not fit; and the
    size from which it followed. `excess` says how many bytes beyond the `room` a graph needs, 0 if
    it fits; `least` is known to fit; sizes follow from `known` first.

    Sizes follow from two neighbours. The answer is captured, and must be the graph that followed;
    if it is not, as where scores grow with the square of the batch, it and its neighbour are the
    next two. Where graphs are not alike, sizes are captured until the answer is found.
    """
    # A batch of one is often another graph: what has one row is not copied.
    at = max(known, 2)
    for _ in range(ROUNDS):
        line = scaled(captured(at), at, captured(at + 1), at + 1)
        if line is None:
            break
        free = max(room - line(0).peak, 1)
        guess = _search(partial(_excess_on, line, excess), least, free)
        if guess < 2:
            break
        if guess == least or (
            _is_same(captured(guess), line(guess)) and not excess(captured(guess))
        ):
            return guess, at
        at = guess
    return _search(lambda n: excess(captured(n)), least, room), known


def _excess_on(line: Line, excess: Callable[[_native.Graph], int], size: int) -> int:
    return excess(line(size))


def _is_same(found: _native.Graph, followed: _native.Graph) -> bool:
    """Times aside: they do not grow evenly, as the longer of two counts."""
    found, followed = (graph.with_times([0.0] * len(graph)) for graph in (found, followed))
    return found.digest == followed.digest


def _search(excess: Callable[[int], int], least: int, free: int) -> int:
    """Goes up from what is known to fit in steps that double, and then between the last two: to
    where the excess would end if all but an empty batch grew evenly into the bytes that are `free`
    beside it, and in turns to the middle, as nothing says that it does.
    """
    low, high = least, least + max(least // FINER, 1)
    while not (over := excess(high)):
        low, high = high, high + 2 * (high - low)
        if high > LARGEST_BATCH:
            return low
    is_even = True
    while high - low > 1:
        even = high * free // (free + over)
        at = max(even, low + 1) if is_even and even < high else (low + high) // 2
        found = excess(at)
        if found:
            high, over, is_even = at, found, not is_even
        else:
            low, is_even = at, at == even or not is_even
    return low
