"""`inductor=True`: the two modules of a plan, each compiled by Inductor.

In: a module of a plan, and what it will be called with. Out: a function of one list.

The modules are compiled one by one, after the split: Inductor never sees forward and backward
together, and cannot undo a recomputation by saving what it makes. Every output keeps the strides
that it has in eager, so what is saved is what the plan saves, byte for byte. Operations are taken
apart as Inductor likes them inside a module only. Draws stay those of the device's generator, in
the module's order, and a repeated draw starts from the saved state.

What changes: fused operations round differently, so numbers are close to eager's and not equal to
them. Inside a module Inductor fuses, moves and reuses, so the peak is not the plan's: it is
foreseen from what Inductor wrote (`wrapper_bytes`), and `inductor_budget` chooses a plan that
holds.

Limits: a module with an operation that overwrites its arguments is handed over as it is, and
Inductor may refuse it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from rekindle.errors import CompilerMissing
from rekindle.torch.execute import Boxed
from rekindle.torch.interfaces import compiling_kernels_by, detect_fake_mode, inductor
from rekindle.torch.joint import outputs_of
from rekindle.torch.randomness import draw, replay

SETTINGS = {
    "fallback_random": True,
    "reorder_for_peak_memory": False,
    "layout_optimization": False,
    "fusion_memory_timeline_peak_memory_increase_gb": 0.0,
    "emulate_precision_casts": True,
}
"""Draws are eager's, the order is the plan's, and no weight or activation is copied to another
layout, which no plan has room for. Half precision rounds after every operation, fused or not: what
is made again inside its reader's kernel is what was made first.

What is made again late is not made early, with something that reads the same, where that would
raise the module's peak: the order is the plan's where memory needs it, and Inductor's where not. In
a small step that recomputes all that it can, 383,632 bytes became 221,392 by this.
"""


def _settings() -> dict[str, Any]:
    """Those that this PyTorch has."""
    known = inductor().config
    return {name: value for name, value in SETTINGS.items() if hasattr(known, name)}


def require_compiler(devices: Iterable[torch.device]) -> None:
    """Refuses a device for which Inductor has nothing to compile with."""
    compilers = [name for name in inductor().config.cpp.cxx if name]
    for kind in sorted({device.type for device in devices}):
        if kind == "cpu" and not any(shutil.which(name) for name in compilers):
            raise CompilerMissing(
                f"inductor=True compiles C++ for the CPU, and there is no {' or '.join(compilers)}:"
                " install a compiler (Debian: apt install g++), name one in the environment "
                "variable CXX, or leave inductor=True out"
            )
        if kind == "cuda" and not torch.cuda.is_available():
            raise CompilerMissing(
                "inductor=True compiles for the GPU, and this machine has none that PyTorch can "
                "use: see torch.cuda.is_available(), or leave inductor=True out"
            )
        if kind == "cuda" and not inductor().has_triton():
            raise CompilerMissing(
                "inductor=True compiles for the GPU with Triton, which is not installed: "
                "pip install triton, or leave inductor=True out"
            )


@dataclass
class CompiledHalf:
    """A module as Inductor runs it."""

    run: Boxed
    source: str
    """The function that calls its kernels, as Inductor wrote it."""
    constants: dict[str, torch.Tensor]
    """What that function reads beside its arguments."""
    scopes: list[dict[str, Any]]
    """The names that it reads; some are kernels that are not compiled yet."""

    def compile_kernels(self) -> None:
        """Compiles the kernels that wait for it, all at once."""
        for scope in self.scopes:
            compiler = inductor().AsyncCompile()
            for name, kernel in list(scope.items()):
                if isinstance(kernel, _Waiting):
                    scope[name] = compiler.cpp_pybinding(*kernel.about)
            compiler.wait(scope)
        self.scopes.clear()


@dataclass
class CompiledStep:
    """The two modules of a plan as Inductor runs them."""

    forward: CompiledHalf
    backward: CompiledHalf
    peak: int
    """The most bytes that the step takes, all that others own included."""
    budget: int = 0
    """The most that it may take."""

    def compile_kernels(self) -> None:
        """Compiles the kernels of both."""
        self.forward.compile_kernels()
        self.backward.compile_kernels()


@dataclass
class _Waiting:
    """A kernel for the CPU that is not compiled."""

    about: tuple[Any, ...]


def compile_half(module: fx.GraphModule, *, is_backward: bool) -> CompiledHalf:
    """The module as Inductor runs it, once its kernels are compiled. On the CPU that takes the
    longest, so it is left for when the module is known to fit.
    """
    inputs = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    scopes: list[dict[str, Any]] = []

    class Later(inductor().AsyncCompile):  # type: ignore[misc]
        """Leaves kernels for the CPU uncompiled."""

        def cpp_pybinding(self, *about: Any) -> _Waiting:
            return _Waiting(about)

        def wait(self, scope: dict[str, Any]) -> None:
            super().wait(scope)
            scopes.append(scope)

    with inductor().config.patch(_settings()), compiling_kernels_by(Later):
        parts = take_apart(module, inputs)
        output = parts.graph.output_node()
        output.meta["user_visible_output_idxs"] = [
            position
            for position, value in enumerate(outputs_of(parts.graph))
            if isinstance(value, fx.Node)
        ]
        compiled = inductor().compile_fx_inner(parts, inputs, is_backward=is_backward)
    return CompiledHalf(compiled, compiled.source_code, dict(compiled.constants or {}), scopes)


def take_apart(module: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """The same module in the operations that Inductor knows how to fuse."""
    fake_mode = detect_fake_mode(inputs)
    assert fake_mode is not None, "a module is compiled with tensors that have no contents"
    with fake_mode, torch.no_grad(), mock.patch.object(fake_mode, "allow_non_fake_inputs", True):
        return make_fx(
            _WithStates(module).run, decomposition_table=inductor().select_decomp_table()
        )(*inputs)


class _WithStates(fx.Interpreter):
    """Runs a module, with its draws in the form that Inductor knows."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is draw:
            return inductor().run_and_save_rng_state(*args[1:], **kwargs)
        if target is replay:
            return inductor().run_with_rng_state(*args[1:], **kwargs)
        return super().call_function(target, args, kwargs)
