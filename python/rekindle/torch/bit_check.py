"""`check=True`: the first step of a plan runs without it too, and every number must be the same.

Both forwards start from the same generator state and the same arguments; both backwards from the
same tangents. Outputs and gradients are compared by their bits, so that a NaN equals itself. After
that step nothing is left of the check.
"""

from __future__ import annotations

from typing import Any

import torch

from rekindle.errors import CheckFailed
from rekindle.torch.execute import Boxed, boxed
from rekindle.torch.interfaces import mark_boxed
from rekindle.torch.planning import PlannedGraph
from rekindle.torch.randomness import same_draws


class BitCheck:
    """The comparison of one plan with the plain step. Wraps the functions that run the plan's two
    modules.
    """

    def __init__(self, planned: PlannedGraph) -> None:
        self.num_outputs = len(planned.joint.forward_outputs)
        self.num_tangents = len(planned.joint.tangents)
        self.forward_names = [str(value) for value in planned.joint.forward_outputs]
        self.gradient_names = [f"the gradient {value}" for value in planned.joint.gradients]
        self.plain_forward: Boxed | None = boxed(planned.plain.forward)
        self.plain_backward: Boxed | None = boxed(
            planned.plain.backward, tangents=self.num_tangents, as_traced=True
        )
        self.saved: list[Any] = []

    def forward(self, run: Boxed) -> Boxed:
        """Runs the forward; the first time, compares its outputs."""

        def call(arguments: list[Any]) -> Any:
            if self.plain_forward is None:
                return run(arguments)
            with same_draws():
                expected = self.plain_forward(list(arguments))
            self.plain_forward, self.saved = None, list(expected[self.num_outputs :])
            results = run(arguments)
            _compare(self.forward_names, results[: self.num_outputs], expected[: self.num_outputs])
            return results

        return mark_boxed(call)

    def backward(self, run: Boxed) -> Boxed:
        """Runs the backward; the first time, compares the gradients."""

        def call(arguments: list[Any]) -> Any:
            if self.plain_backward is None:
                return run(arguments)
            tangents = arguments[len(arguments) - self.num_tangents :]
            with same_draws():
                expected = self.plain_backward([*self.saved, *tangents])
            self.plain_backward, self.saved = None, []
            results = run(arguments)
            _compare(self.gradient_names, results, expected)
            return results

        return mark_boxed(call)


def _compare(names: list[str], results: Any, expected: Any) -> None:
    different = [
        name
        for name, a, b in zip(names, results, expected, strict=True)
        if isinstance(a, torch.Tensor) and differ(a, b)
    ]
    if different:
        raise CheckFailed(
            f"{len(different)} of {len(names)} results differ from the plain step's, the first is "
            f"{different[0]}: an operation gives other bits when it runs again. On a GPU, "
            "torch.use_deterministic_algorithms(True) helps; otherwise please report this"
        )


def differ(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Whether two values have other bits; None is a value that is not there."""
    if a is None or b is None:
        return a is not b
    if a.shape != b.shape or a.dtype != b.dtype:
        return True
    a, b = (value.detach().reshape(-1).view(torch.uint8) for value in (a, b))
    return not torch.equal(a, b)
