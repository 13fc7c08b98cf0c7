"""`torch.compile` → joint graphs, and planned modules back.

A `Session` belongs to one compiled model. AOTAutograd hands it each training graph (`partition`) and runs the two modules that
it gives back. Graphs without a backward run as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd

from remat.checking import Check
from remat.execute import Boxed, boxed
from remat.joint import Joint
from remat.optimizer import state_bytes
from remat.planning import Planned, Settings, plan_joint

Compiler = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
NUMBER = "remat_plan"
"""Under this key a module's `meta` tells which of the session's plans it runs."""


class Session:
    """The plans of one compiled model."""

    def __init__(
        self,
        settings: Settings,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        check: bool = False,
    ) -> None:
        self.settings = settings
        self.optimizer = optimizer
        self.check = check
        self.planned: list[Planned] = []
        """One for each graph and shape, in the order of their first calls."""
        self.checks: dict[int, Check] = {}
        """Comparisons whose backward has not been compiled yet."""

    def partition(
        self,
        joint_module: fx.GraphModule,
        joint_inputs: Any,
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: Sequence[int] | None = None,
        **_: Any,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Takes a joint graph, gives the forward and the backward of its plan."""
        joint = Joint(joint_module, num_fwd_outputs, static_lifetime_input_indices or ())
        planned = plan_joint(joint, self.settings, self.held(), f"graph {len(self.planned)}")
        self.planned.append(planned)
        forward, backward = planned.modules()
        forward.meta[NUMBER] = backward.meta[NUMBER] = len(self.planned) - 1
        return forward, backward

    def held(self) -> dict[str, int]:
        """Bytes that lie in memory beside the step's own."""
        if self.optimizer is None:
            return {}
        return {"optimizer state": state_bytes(self.optimizer)}

    def backend(self) -> Compiler:
        """What `torch.compile` takes as its backend."""
        compiler: Compiler = aot_autograd(
            fw_compiler=self.run_forward, bw_compiler=self.run_backward, inference_compiler=_run, partition_fn=self.partition
        )
        return compiler

    def run_forward(self, module: fx.GraphModule, _inputs: list[Any]) -> Boxed:
        """How a planned forward is run."""
        run = boxed(module)
        if not self.check:
            return run
        number = module.meta[NUMBER]
        self.checks[number] = Check(self.planned[number])
        return self.checks[number].forward(run)

    def run_backward(self, module: fx.GraphModule, _inputs: list[Any]) -> Boxed:
        """How a planned backward is run."""
        run = boxed(module)
        return self.checks.pop(module.meta[NUMBER]).backward(run) if self.check else run


def _run(module: fx.GraphModule, _inputs: list[Any]) -> Boxed:
    return boxed(module)
