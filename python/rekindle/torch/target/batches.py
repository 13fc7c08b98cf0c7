"""Batches of other sizes, and the largest that fits.

A batch is resized along the first dimension of its tensors. The graph of a size follows from those
of two others where both have the same nodes: each storage has a fixed part and one that grows with
the batch. What follows so is confirmed by a capture, which must be the very same but for its times.
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
FINER = 16
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
    fits: Callable[[_native.Graph], bool],
    captured: Callable[[int], _native.Graph],
    known: int,
    least: int,
) -> tuple[int, int]:
    """The size of a batch that fits while the next one does not, or 0 if 1 does not fit; and the
    size from which it followed. `least` is known to fit; sizes follow from `known` first.

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
        guess = _search(partial(_fits_on, line, fits, least), least, least // FINER)
        if guess < 2:
            break
        if guess == least or (_is_same(captured(guess), line(guess)) and fits(captured(guess))):
            return guess, at
        at = guess
    return _search(lambda n: n <= least or fits(captured(n)), least, 1), known


def _fits_on(line: Line, fits: Callable[[_native.Graph], bool], least: int, size: int) -> bool:
    return size <= least or fits(line(size))


def _is_same(found: _native.Graph, followed: _native.Graph) -> bool:
    """Times aside: they do not grow evenly, as the longer of two counts."""
    found, followed = (graph.with_times([0.0] * len(graph)) for graph in (found, followed))
    return found.digest == followed.digest


def _search(fits: Callable[[int], bool], guess: int, step: int) -> int:
    """Goes up or down from the guess in steps that double, and then between the last two."""
    step = max(step, 1)
    if guess and not fits(guess):
        high = guess
        while (low := max(high - step, 0)) and not fits(low):
            high, step = low, 2 * step
    else:
        low = guess
        while (high := low + step) <= LARGEST_BATCH and fits(high):
            low, step = high, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
