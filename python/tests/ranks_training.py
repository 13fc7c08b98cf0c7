"""One rank of a training run with gloo, as `test_ranks.py` starts it. Arguments: the kind of
parallelism, the rank, a file to meet at.

Prints `same` if the planned gradients are the unplanned ones bit for bit and the plan is every
rank's, or the name of the error.
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
from rekindle.torch import better_plan, planning
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
    if kind == "fsdp":
        for block in network.blocks:
            fully_shard(block)
        fully_shard(network)
    if kind == "tensor parallel":
        mesh = init_device_mesh("cpu", (WORLD,))
        for block in network.blocks:
            parallelize_module(
                block, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()}
            )
    return network


def gradients(model: nn.Module, batch: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    model(batch).backward()
    parts = [parameter.grad for parameter in model.parameters()]
    return [(part.to_local() if hasattr(part, "to_local") else part).clone() for part in parts]


def run(kind: str, rank: int) -> str:
    if kind == "missing" and rank:
        return "stays away"
    # The parts of a tensor are parts of the same one.
    seed = 0 if kind == "tensor parallel" else rank
    batch = torch.randn(64, 16, generator=torch.Generator().manual_seed(seed))
    network = build(kind, rank)
    is_parallel = kind in ("ddp inside", "ddp outside", "while training")
    plain = DistributedDataParallel(network) if is_parallel else network
    expected = gradients(plain, batch) if kind not in ("different", "missing") else []
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
    for _ in range(STEPS):
        found = gradients(model, batch)
        if not all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True)):
            return "other gradients"
    if is_changed and session_of(model)._better:
        return "still the first plan"
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
