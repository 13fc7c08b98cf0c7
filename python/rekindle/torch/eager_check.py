"""`check=True`, the half that asks eager: the first step of each plan is compared with the module
itself.

The module runs once more as it is, with the buffers, the arguments and the generator's state that
the planned forward began with. Outputs and buffers are compared by their bits, and when the
backward ends, so is the gradient of every leaf: eager's backward runs from the same tangents, in
the same autocast.

Limits: that step needs the memory of both, and what the forward does beside tensors it does twice.
Modules that talk to other ranks in their backward (DDP, FSDP2) are compared with the captured graph
alone (`bit_check`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.func import functional_call

from rekindle.errors import CheckFailed
from rekindle.torch.bit_check import differ
from rekindle.torch.interfaces import pytree, when_backward_ends, without_modes
from rekindle.torch.randomness import GeneratorStates, same_draws


class _Forward(torch.nn.Module):
    """A module without the hooks on its call, which run around the planned forward."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.forward(*args, **kwargs)


class EagerCheck:
    """The comparison of one call with eager. Made before the planned forward is called."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.states = GeneratorStates()
        self.buffers: dict[str, torch.Tensor] | None = None

    def keep_buffers(self) -> None:
        """Copies the buffers, before anything of the call runs: only a call that captures
        something is compared, so the others need no copies.
        """
        if self.buffers is None:
            # A graph is captured in a mode whose tensors have no contents; these have.
            with without_modes(), torch.no_grad():
                known = _Forward(self.module).named_buffers()
                self.buffers = {name: buffer.clone() for name, buffer in known}

    def compare(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """The planned forward gave `result`: compares it, and has the gradients compared when their
        backward ends.
        """
        assert self.buffers is not None
        with same_draws():
            self.states.put_back()
            expected = functional_call(_Forward(self.module), self.buffers, args, kwargs)
        ours, theirs = _tensors(result), _tensors(expected)
        _refuse_different("output", dict(enumerate(ours)), dict(enumerate(theirs)))
        _refuse_different("buffer", dict(_Forward(self.module).named_buffers()), self.buffers)
        leaves = {
            name: leaf for name, leaf in self._leaves(args, kwargs).items() if leaf.requires_grad
        }
        _Gradients(leaves, ours, theirs)

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
        inputs = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        named = {f"input {at}": tensor for at, tensor in enumerate(inputs) if tensor.is_leaf}
        return {**named, **dict(self.module.named_parameters())}


class _Gradients:
    """Waits for the planned backward, and compares what it leaves in each leaf with eager's."""

    def __init__(
        self,
        leaves: dict[str, torch.Tensor],
        ours: list[torch.Tensor],
        theirs: list[torch.Tensor],
    ) -> None:
        self.leaves = leaves
        self.theirs = theirs
        self.tangents: dict[int, torch.Tensor] = {}
        self.before: dict[str, torch.Tensor] = {}
        self.accumulated: set[str] = set()
        self.hooks = [
            leaf.register_post_accumulate_grad_hook(lambda _, name=name: self.accumulated.add(name))
            for name, leaf in leaves.items()
        ]
        for at, output in enumerate(ours):
            if output.requires_grad:
                self.hooks.append(output.register_hook(lambda g, at=at: self._note(at, g)))

    def _note(self, at: int, tangent: torch.Tensor) -> None:
        if not self.tangents:
            when_backward_ends(self._compare)
            found = {name: leaf.grad for name, leaf in self.leaves.items()}
            self.before = {name: g.clone() for name, g in found.items() if g is not None}
        self.tangents[at] = tangent

    def _compare(self) -> None:
        for hook in self.hooks:
            hook.remove()
        if not self.accumulated:
            return
        outputs = [self.theirs[at] for at in self.tangents]
        found = torch.autograd.grad(
            outputs, list(self.leaves.values()), list(self.tangents.values()), allow_unused=True
        )
        self.theirs = []
        expected: dict[str, torch.Tensor | None] = {}
        results: dict[str, torch.Tensor | None] = {}
        for (name, leaf), gradient in zip(self.leaves.items(), found, strict=True):
            before = self.before.get(name)
            if before is None or gradient is None:
                expected[name] = gradient if before is None else before
            else:
                expected[name] = before + gradient
            results[name] = leaf.grad
        _refuse_different("gradient", results, expected)


def _tensors(result: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(result)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _refuse_different(what: str, results: dict[Any, Any], expected: dict[Any, Any]) -> None:
    different = [
        name for name in {**results, **expected} if differ(results.get(name), expected.get(name))
    ]
    if different:
        raise CheckFailed(
            f"{len(different)} of {len(expected)} {what}s differ from eager's, the first is {what} "
            f"{different[0]}. The plan is not the cause: the captured step computes something in "
            "another way than eager. docs/pytorch.md lists where that is known; otherwise please "
            "report this"
        )
