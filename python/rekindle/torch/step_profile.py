"""`rekindle.profile`: a training step, timed operation by operation without running the step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from rekindle import _native
from rekindle.settings import Settings, TimeSource
from rekindle.torch.capture import Batch, arguments_of, capture
from rekindle.torch.environment import check_module
from rekindle.torch.held import resident_bytes, unread
from rekindle.torch.lower import lower
from rekindle.torch.planning import timed


@dataclass(frozen=True)
class StepProfile:
    """A timed training step."""

    graph: _native.Graph
    """Every operation with its time, every storage with its bytes."""
    name: str
    batch_size: int
    device: str
    guessed: list[str]
    """Operations that could not be run alone and have the cost model's time."""

    def save(self, folder: str | Path) -> list[Path]:
        """Writes the tables (CSV), the graph (`remat.graph/1`) and the pictures (SVG and PNG) that
        `rekindle profile` writes.
        """
        Path(folder).mkdir(parents=True, exist_ok=True)
        return _native.write_profile(self.graph, folder, self.name, self.batch_size, self.device)

    def __str__(self) -> str:
        peak, time = self.graph.peak / 2**20, self.graph.time / 1e3
        return (
            f"{self.name}, batch {self.batch_size} on {self.device}: peak {peak:.1f} MiB, "
            f"operations {time:.1f} ms"
        )


def profile(
    model: torch.nn.Module,
    inputs: Batch,
    *,
    profile: TimeSource = "measure",
    name: str | None = None,
) -> StepProfile:
    """Times every operation of the model's training step, alone and without running the step.

    Parameters and buffers that the step does not read count as held.
    """
    check_module(model, is_run=False)
    joint = capture(model, inputs)
    lowered = lower(joint, name or type(model).__name__, unread(joint, resident_bytes(model)))
    graph, guessed = timed(joint, lowered, Settings(1.0, profile))
    args, kwargs = arguments_of(inputs)
    tensors = [value for value in [*args, *kwargs.values()] if isinstance(value, torch.Tensor)]
    size = tensors[0].shape[0] if tensors and tensors[0].dim() else 1
    device = str(tensors[0].device) if tensors else "cpu"
    return StepProfile(graph, name or type(model).__name__, size, device, guessed)
