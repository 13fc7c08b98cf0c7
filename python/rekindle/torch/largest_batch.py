"""`rekindle.max_batch`: the largest batch that trains in a budget, found without training."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from rekindle.errors import InfeasibleBudget, InvalidInput
from rekindle.planner import plan_with
from rekindle.settings import Settings
from rekindle.torch.capture import Batch, capture
from rekindle.torch.environment import check_module, check_optimizer
from rekindle.torch.held import optimizer_state, resident_bytes, unread
from rekindle.torch.lower import lower
from rekindle.torch.planning import timed
from rekindle.torch.stores import Offload, check_devices, options_of, with_store

FEASIBLE_EFFORT = 1
"""The planner's effort while batch sizes are tried: whether a plan exists, not how fast it is."""
LARGEST_BATCH = 1 << 20
"""No batch beyond this is tried."""


@dataclass(frozen=True)
class LargestBatch:
    """What a budget allows."""

    size: int
    """The largest batch that trains in the budget by a plan, while for the next there is none; 0 if
    not even one does.
    """
    plain_size: int
    """The largest that trains in it without a plan."""
    peak: int
    """The plan's peak at `size`, in bytes."""
    budget: int

    def __str__(self) -> str:
        budget = f"{self.budget / 2**20:.1f} MiB"
        return f"batch {self.size} by plan, {self.plain_size} without, in {budget}"


def max_batch(
    model: torch.nn.Module,
    make_batch: Callable[[int], Batch],
    *,
    budget: int | str,
    strategy: str = "search",
    optimizer: torch.optim.Optimizer | None = None,
    offload: Offload = None,
    offload_limit: int | str | None = None,
    store: str | None = None,
) -> LargestBatch:
    """The largest batch size that trains in `budget`. `make_batch(n)` gives the model's arguments
    for a batch of `n`.

    Sizes are doubled while they fit, then halved in: the batch that is found fits, and for the next
    one no plan is found. The peak is taken to grow with the batch; what plans the planner finds may
    not, so a larger batch that fits is not ruled out.

    Nothing of the model runs. What counts is what `compile` counts. `offload`,
    `offload_limit` and `store` are those of `compile`, too.
    """
    check_module(model, is_run=False)
    check_optimizer(optimizer)
    settings = Settings(
        budget,
        "roofline",
        strategy,
        FEASIBLE_EFFORT,
        **options_of(offload, offload_limit, store),
    )
    check_devices(settings, (part.device for part in model.parameters()))
    allowed = settings.bytes_without_share
    if allowed is None:
        raise InvalidInput(
            "a share of the plain peak depends on the batch: give the budget in bytes, such as "
            '"8GiB"'
        )
    known: dict[int, tuple[bool, int | None]] = {}

    def attempt(size: int) -> tuple[bool, int | None]:
        """Whether the plain step fits, and the plan's peak if there is one."""
        if size not in known:
            joint = capture(model, make_batch(size))
            others = {
                **optimizer_state(optimizer, joint, model),
                **unread(joint, resident_bytes(model)),
            }
            graph, _ = timed(joint, lower(joint, f"batch {size}", others), settings)
            peak = None
            with contextlib.suppress(InfeasibleBudget):
                peak = plan_with(with_store(settings), graph, allowed).peak
            known[size] = graph.peak <= allowed, peak
        return known[size]

    size = _largest(lambda n: attempt(n)[1] is not None)
    plain = _largest(lambda n: attempt(n)[0])
    return LargestBatch(size, plain, (attempt(size)[1] or 0) if size else 0, allowed)


def _largest(fits: Callable[[int], bool]) -> int:
    """The largest number that fits; 0 if 1 does not."""
    low, high = 0, 1
    while high <= LARGEST_BATCH and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
