"""One rank of a training run with gloo, as `test_ranks.py` starts it. Arguments: the kind of
parallelism, the rank, a file to meet at.

Prints `same` if the planned gradients are the unplanned ones bit for bit and the plan is every
rank's, `each its own` if they are and the ranks train different steps, or the name of the error.
"""

import hashlib
import os
import sys
import warnings

import torch
import torch.distributed as distributed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

os.environ["REKINDLE_CACHE"] = "off"

import rekindle
from rekindle.torch import better_plan, planning, ranks
from rekindle.torch.module import session_of

WORLD = 2
STEPS = 3


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value + self.second(torch.tanh(self.first(value)))


class Network(nn.Module):
    def __init__(self, blocks: int = 3, width: int = 16) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            value = block(value)
        return value.square().mean()


def build(kind: str, rank: int) -> nn.Module:
    torch.manual_seed(0)
    network = Network(blocks=2 + rank if kind == "different" else 3)
    if kind.endswith("fsdp"):
        for block in network.blocks:
            fully_shard(block)
        fully_shard(network)
    if kind in ("tensor parallel", "other parts"):
        mesh = init_device_mesh("cpu", (WORLD,))
        for block in network.blocks:
            parallelize_module(
                block, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()}
            )
    return network


def batches(kind: str, rank: int) -> list[torch.Tensor]:
    """One for each step."""
    # The parts of a tensor are parts of the same one.
    seed = 0 if kind == "tensor parallel" else rank
    samples = [64] * STEPS
    if kind.startswith("padded"):
        # The ranks have the same shapes and others, at the same step and at others.
        samples = [[64, 48, 32, 48], [48, 48, 64, 24]][rank]
    if kind == "other parts":
        samples = [64 - 16 * rank] * STEPS
    drawn = torch.Generator().manual_seed(seed)
    return [torch.randn(count, 16, generator=drawn) for count in samples]


def gradients(model: nn.Module, batch: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    model(batch).backward()
    parts = [parameter.grad for parameter in model.parameters()]
    return [(part.to_local() if hasattr(part, "to_local") else part).clone() for part in parts]


def wait_for_one_that_ends(rank: int) -> str:
    """The other rank ends while it looks for a plan."""
    meeting = ranks.default_store()
    if rank:
        ranks.agree("a plan", lambda: (meeting.set("begun", "yes"), print("ends"), leave()))
    meeting.wait(["begun"])
    ranks.agree("a plan", lambda: None)
    return "does not wait"


def leave() -> None:
    sys.stdout.flush()
    os._exit(0)


def run(kind: str, rank: int) -> str:
    if kind == "missing":
        return wait_for_one_that_ends(rank)
    network = build(kind, rank)
    kind, is_padded = kind.removeprefix("padded "), kind.startswith("padded ")
    is_parallel = kind in ("ddp inside", "ddp outside", "while training")
    plain = DistributedDataParallel(network) if is_parallel else network
    given = batches("padded" if is_padded else kind, rank)
    expected = [gradients(plain, batch) for batch in given] if kind != "other parts" else []
    network = build(kind, rank)
    is_changed = kind in ("while training", "tensor parallel")
    if is_changed:
        # The plan is looked for while training goes on, and all change over at the third call.
        planning.LONG_SEARCH, better_plan.CALLS = 0, 2
    if kind in ("ddp inside", "while training"):
        model: nn.Module = DistributedDataParallel(rekindle.compile(network, 0.8, effort=1))
    elif kind == "ddp outside":
        model = rekindle.compile(DistributedDataParallel(network), 0.9, effort=1)
    else:
        model = rekindle.compile(network, 0.9, effort=1)
    for batch, theirs in zip(given, expected or given, strict=True):
        found = gradients(model, batch)
        if not all(torch.equal(a, b) for a, b in zip(found, theirs, strict=True)):
            return "other gradients"
    if is_changed and session_of(model)._better:
        return "still the first plan"
    if is_padded or kind == "different":
        return "each its own"
    plans = "".join(planned.plan.to_json() for planned in session_of(model).planned)
    digests: list[str | None] = [None] * WORLD
    distributed.all_gather_object(digests, hashlib.sha256(plans.encode()).hexdigest())
    return "same" if plans and digests[0] == digests[1] else "other plans"


def main(kind: str, rank: int, meeting: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=WORLD
    )
    try:
        print(run(kind, rank))
    except rekindle.RekindleError as error:
        print(type(error).__name__)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
