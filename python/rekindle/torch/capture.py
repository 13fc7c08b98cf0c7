"""A model's joint graph without running the model.

The capture is that of `rekindle.compile`, ended as soon as the joint graph is there: no operation
of the model has run by then, so a step that does not fit in memory can be captured all the same.

Limits: the model must be one graph. A graph break is an error that names its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from rekindle.errors import InvalidInput, RekindleError, UnsupportedGraph
from rekindle.torch.autocast import OUTSIDE, BackwardAutocast
from rekindle.torch.eager_route import Route
from rekindle.torch.interfaces import (
    BackendCompilerFailed,
    TorchRuntimeError,
    Unsupported,
    UserError,
    aot_autograd,
    dynamo_config,
    eager_autocast_cache,
    functorch_config,
    reset_dynamo,
)
from rekindle.torch.joint import Joint
from rekindle.torch.outputs import cut_off
from rekindle.torch.target.carry_over import (
    autocast_on,
    carry_over,
    compare_forward,
    falling_apart_as_on,
)
from rekindle.torch.target.devices import HOST, Device
from rekindle.torch.target.interfaces import captured_on_host

Batch = torch.Tensor | Sequence[Any] | Mapping[str, Any]
"""A model's arguments: one, several in order, or several by name."""


class _Captured(Exception):
    def __init__(self, joint: Joint) -> None:
        super().__init__("captured")
        self.joint = joint


def capture(
    model: torch.nn.Module,
    inputs: Batch,
    device: Device = HOST,
    dtype: torch.dtype | None = None,
    autocast: torch.dtype | None = None,
) -> Joint:
    """The joint graph of one training step of `model`, which must return its loss. What it returns
    beside it is not differentiated, as `compile` has it.

    Nothing needs contents: a model on the device `meta` gives the graph that it gives on the host.
    For another `device` the step is captured here and carried over. `dtype` is that of parameters,
    buffers and inputs that are real numbers, if it is not their own; `autocast` is the lower
    precision of mixed precision.
    """

    called_with: list[Any] = []

    def stop(module: fx.GraphModule, _: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
        static = options.get("static_lifetime_input_indices") or ()
        carry_over(module, device)
        raise _Captured(Joint(module, num_fwd_outputs, static, called_with))

    def never(_module: fx.GraphModule, _inputs: list[Any]) -> Callable[..., Any]:
        raise UnsupportedGraph(
            "nothing in this call needs a gradient, so there is no training step in it"
        )

    backend: Callable[..., Callable[..., Any]] = traced_as_eager(
        aot_autograd(
            fw_compiler=never, bw_compiler=never, inference_compiler=never, partition_fn=stop
        ),
        device=device,
    )

    def without_others(module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        called_with[:] = inputs
        cut_off(module)
        if device.is_gpu:
            compare_forward(module, device, autocast)
        return backend(module, inputs)

    def dtype_of(tensor: torch.Tensor) -> torch.dtype | None:
        return dtype if tensor.is_floating_point() else None

    try:
        # Recurrent layers are looked into, so that what a GPU has in their place is named.
        with (
            captured_on_host(dtype_of),
            autocast_on(device, autocast),
            dynamo_config.patch(allow_rnn=device.is_gpu),
        ):
            _run_whole(model, without_others, *arguments_of(inputs))
    except BackendCompilerFailed as failure:
        if isinstance(failure.inner_exception, _Captured):
            return failure.inner_exception.joint
        if isinstance(failure.inner_exception, RekindleError):
            raise failure.inner_exception from None
        raise
    finally:
        called_with.clear()
        reset_dynamo()
    raise UnsupportedGraph("the model ran without being captured: is torch.compile disabled?")


def _run_whole(
    model: torch.nn.Module, backend: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> None:
    """Runs the model with a backend, as one graph, on eager's way through it."""
    route, reason = Route(), ""
    while True:
        reset_dynamo()
        try:
            with route.taken(is_whole=True):
                torch.compile(model, backend=backend, dynamic=False, fullgraph=True)(
                    *args, **kwargs
                )
            return
        except (Unsupported, UserError) as end:
            # What a model raises on another way is not why its graph ended before.
            if not (reason and str(end).startswith(RAISED)):
                reason = str(end)
            if not route.change(str(end)):
                raise UnsupportedGraph(_broken(reason)) from end
        except TorchRuntimeError as failure:
            raise InvalidInput(_failed(str(failure))) from failure


ENDS = {
    "_numpy.random": "NumPy draws random numbers there, and a plan repeats PyTorch's alone",
    "shape depends on input": "the size of a result depends on the values of a tensor there",
    "data-dependent": "a branch or a loop depends on the values of a tensor there",
    "RNN, GRU, or LSTM": "a recurrent layer (RNN, GRU or LSTM) is no graph of operations",
}
"""Why graphs end, in our words, by what PyTorch says."""
OWN = "/site-packages/torch/"
"""In the places of PyTorch's own code."""
RAISED = "Observed exception"
"""So it begins where the model itself raises an exception."""


def _lines_of(said: str) -> tuple[list[str], str]:
    """The lines of Dynamo's text, and the place in the model that it names last."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    called = [line for line in lines if line.startswith('File "')]
    # In what the model calls of PyTorch's nobody looks for it.
    called = [line for line in called if OWN not in line] or called
    return lines, f", at {called[-1].removeprefix('File ')}" if called else ""


def _failed(said: str) -> str:
    """Why and where a model fails."""
    lines, at = _lines_of(said)
    explained = [line.partition(": got ")[2] for line in lines if ": got " in line]
    return f"the model fails with this batch{at}: {(explained or lines)[0]}"


def _broken(said: str) -> str:
    """Why and where a model falls apart into several graphs."""
    lines, at = _lines_of(said)
    known = [words for part, words in ENDS.items() if part.lower() in said.lower()]
    explained = [line.partition(":")[2].strip() for line in lines if "Explanation:" in line]
    theirs = "; ".join([*lines[:1], *explained]) or "no reason is told"
    why = f"{known[0]} (PyTorch's words: {theirs})" if known else f"{theirs} (PyTorch's words)"
    return (
        f"the model is not one graph, and only one can be planned without running it{at}: {why}; "
        "take this part out of the model, or give the model to rekindle.compile on the device, "
        "which runs several graphs"
    )


def traced_as_eager(
    compiler: Callable[..., Any],
    autocast: BackwardAutocast | None = None,
    *,
    device: Device = HOST,
) -> Callable[..., Any]:
    """A backend whose graphs have the operations that eager runs: they fall apart as in eager on
    the device, and the backward is traced for the place where it is called, inside autocast or
    outside of it.
    """

    def compile(*args: Any, **kwargs: Any) -> Any:
        where = OUTSIDE if autocast is None else autocast.traced
        with (
            falling_apart_as_on(device),
            eager_autocast_cache(),
            functorch_config.patch(backward_pass_autocast=where),
        ):
            return compiler(*args, **kwargs)

    return compile


def arguments_of(inputs: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments by position and by name."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return ((inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)), {}
