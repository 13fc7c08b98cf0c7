"""What a device runs in place of the host's operations: one table, with its sources.

A step is captured on the host, where there is no device. Operations that fall apart in another way
on a GPU are made to fall apart in that way while the step is traced (`SUBSTITUTIONS`), so that
autograd itself says what they save. Then every tensor is carried over to the device: each operation
is asked once more, by PyTorch's own meta functions for CUDA, for the shapes and types of its
results (`carry_over`), such as the statistics of a layer norm, which the host keeps in the input's
type and a GPU in single precision.

What the table does not have is found by a comparison (`compare_forward`): the forward runs once on
tensors without contents on the host and once on such tensors on a GPU, there by PyTorch's own
rules, and the operations must be the same, one by one. Where they are not, the step is refused by
the name of the operation.

Limits: attention is chosen by `attention`, because without a device PyTorch's own choice is none,
and that a fused norm saves one number for each row is not seen by the comparison, in which it falls
apart on both sides; both are by the table alone.
A model whose Python asks for the kind of device is captured as on the host; `compile` on the device
then finds another graph and says so. Batch norm is cuDNN's in eager; a captured step has PyTorch's
own kernel, on any GPU, whose traced form this is, so cuDNN's reserve is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import fx

from rekindle.errors import CannotCarryOver
from rekindle.torch.interfaces import (
    attribute_of,
    eager_dispatch,
    fake_of,
    pytree,
    storage_key,
)
from rekindle.torch.target.attention import attention_on
from rekindle.torch.target.autocast import KERNELS
from rekindle.torch.target.devices import Device
from rekindle.torch.target.interfaces import (
    ATEN,
    ENTER_AUTOCAST,
    FUSED_RMS_NORM,
    FUSED_RMS_NORM_BACKWARD,
    LOG_SOFTMAX,
    SOFTMAX,
    Operations,
    autocast_kernels,
    autocast_of,
    convolving_in_bfloat16,
    dispatched_as_traced,
    without_contents,
)

Form = Callable[..., Any]


@dataclass(frozen=True)
class Substitution:
    """An operation that falls apart in another way on a GPU."""

    operation: Any
    becomes: str
    """In words."""
    source: str
    """Where PyTorch decides it."""
    form: Callable[[Device], Form] | None
    """How it falls apart there; None: in the form that PyTorch itself traces."""


def _softmax(fused: Any) -> Callable[[Device], Form]:
    def on(_device: Device) -> Form:
        def softmax(
            source: torch.Tensor, dim: int, dtype: torch.dtype | None = None
        ) -> torch.Tensor:
            if source.dtype == torch.float16 and dtype == torch.float32:
                return fused(source, dim, True)  # type: ignore[no-any-return]
            converted = source if dtype is None else source.to(dtype)
            return fused(converted, dim, False)  # type: ignore[no-any-return]

        return softmax

    return on


class _RmsNorm(torch.autograd.Function):
    """Its forward falls apart while it is traced, on a GPU too; its backward is one kernel."""

    @staticmethod
    def forward(
        ctx: Any,
        source: torch.Tensor,
        normalized_shape: list[int],
        weight: torch.Tensor | None,
        eps: float | None,
    ) -> torch.Tensor:
        result, inverse = FUSED_RMS_NORM(source, normalized_shape, weight, eps)
        ctx.save_for_backward(source, weight, inverse)
        ctx.normalized_shape = normalized_shape
        return result  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        source, weight, inverse = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], weight is not None and ctx.needs_input_grad[2]]
        found = FUSED_RMS_NORM_BACKWARD(
            gradients[0], source, ctx.normalized_shape, inverse, weight, wanted
        )
        return found[0], None, found[1], None


def _rms_norm(_device: Device) -> Form:
    def rms_norm(
        source: torch.Tensor,
        normalized_shape: list[int],
        weight: torch.Tensor | None = None,
        eps: float | None = None,
    ) -> torch.Tensor:
        return _RmsNorm.apply(source, normalized_shape, weight, eps)  # type: ignore[no-any-return]

    return rms_norm


def _dropout(_device: Device) -> Form:
    def dropout(source: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        if p == 0.0 or not train or source.numel() == 0:
            return source
        if p == 1.0:
            return source * torch.zeros((), dtype=source.dtype, device=source.device)
        return ATEN.native_dropout.default(source, p, train)[0]  # type: ignore[no-any-return]

    return dropout


SUBSTITUTIONS = (
    Substitution(
        ATEN.scaled_dot_product_attention.default,
        "the operation of cuDNN, flash or memory-efficient attention, which saves the sums of the "
        "softmax and never the scores",
        "aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, select_sdp_backend",
        attention_on,
    ),
    Substitution(
        ATEN.dropout.default,
        "native_dropout, one kernel that saves a mask of one byte for each number, where the host "
        "draws into a tensor of the input's type",
        "aten/src/ATen/native/Dropout.cpp, is_fused_kernel_acceptable",
        _dropout,
    ),
    Substitution(
        ATEN.softmax.int,
        "_softmax from half to single precision in one kernel, without a converted input",
        "aten/src/ATen/native/SoftMax.cpp, softmax",
        _softmax(SOFTMAX),
    ),
    Substitution(
        ATEN.log_softmax.int,
        "_log_softmax from half to single precision in one kernel, without a converted input",
        "aten/src/ATen/native/SoftMax.cpp, log_softmax",
        _softmax(LOG_SOFTMAX),
    ),
    Substitution(
        ATEN.rms_norm.default,
        "a norm that saves its input and one number for each row, where the host saves each "
        "intermediate",
        "aten/src/ATen/native/layer_norm.cpp, rms_norm_symint",
        _rms_norm,
    ),
)
"""Statistics of norms, layouts of convolutions and the like need no entry: PyTorch's meta functions
for CUDA say them when the tensors are carried over.
"""
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
REFUSED = (*RECURRENT, "_ctc_loss", "mkldnn", "_for_cpu")
"""In the names of operations that a GPU runs by a kernel whose sizes PyTorch does not tell without
one (cuDNN's recurrent layers and CTC loss), and of those that only a host has.
"""


@contextmanager
def falling_apart_as_on(device: Device) -> Iterator[None]:
    """What is traced in this scope falls apart as in eager on the device."""
    if not device.is_gpu:
        with eager_dispatch():
            yield
        return
    forms = {s.operation: s.form(device) for s in SUBSTITUTIONS if s.form is not None}
    traced = [s.operation for s in SUBSTITUTIONS if s.form is None]
    with eager_dispatch(traced, forms):
        yield


def _convolving_as_on(device: Device) -> AbstractContextManager[None]:
    """Layouts of convolutions as the device's library gives them: `use_cudnn` in
    `aten/src/ATen/native/Convolution.cpp` asks the device for bfloat16.
    """
    return convolving_in_bfloat16() if device.convolves_in_bfloat16 else nullcontext()


@contextmanager
def autocast_on(device: Device, dtype: torch.dtype | None) -> Iterator[None]:
    """Autocast on the host, by the rules of the device. None leaves it as it is."""
    with ExitStack() as stack:
        if dtype is not None:
            stack.enter_context(autocast_kernels(KERNELS if device.is_gpu else {}))
            stack.enter_context(autocast_of("cpu", dtype))
        yield


def compare_forward(module: fx.GraphModule, device: Device, autocast: torch.dtype | None) -> None:
    """Refuses a forward that falls apart in another way on the device.

    `module` is what Dynamo has captured. On the GPU's side nothing of the table is used but the
    choice of attention.
    """
    for node in module.graph.nodes:
        if node.op == "call_function" and _called(node.target) in RECURRENT:
            _refuse_by_name(_called(node.target), _at(node))
    here = _operations(module, "cpu", falling_apart_as_on(device), autocast_on(device, autocast))
    for ran in here:
        _refuse_by_name(ran.operation, ran.at)
    chosen = SUBSTITUTIONS[0]
    assert chosen.form is not None
    there = _operations(
        module,
        "cuda",
        eager_dispatch((), {chosen.operation: chosen.form(device)}),
        autocast_of("cuda", autocast),
        _convolving_as_on(device),
    )
    idle = _idle(module)
    for ran in there:
        if ran.is_from_host and ran.at not in idle:
            raise CannotCarryOver(
                f"{ran.at} needs what is made in the host's memory, and on a GPU that is a copy to "
                "it, which a step on the host has not: make it there (device=…, an index as a "
                "tensor of that device), or plan this step on the device itself"
            )
    there = [ran for ran in there if not ran.is_from_host]
    for ours, theirs in zip_longest(here, there):
        if ours is None or theirs is None or ours.operation != theirs.operation:
            raise _another_kernel(ours, theirs)


MAKES_TENSORS = ("tensor", "as_tensor", "new_tensor")
"""Functions that make a constant on the device that they are told: no operation copies it. Without
a driver PyTorch makes it on the host first.
"""
IN_PLACE = ("setitem", "iadd", "isub", "imul", "itruediv", "iand", "ior", "ixor")


def _idle(module: fx.GraphModule) -> set[str]:
    """Where nothing is computed that the joint graph has: conditions that are decided."""
    idle: set[fx.Node] = set()
    for node in reversed(module.graph.nodes):
        name = _called(node.target)
        is_pure = not node.is_impure() and not name.endswith("_") and name not in IN_PLACE
        if is_pure and all(user in idle for user in node.users):
            idle.add(node)
    return {_at(node) for node in idle}


def _another_kernel(ours: Ran | None, theirs: Ran | None) -> CannotCarryOver:
    """What the model calls there is said, and then what each side runs for it."""
    call = ours or theirs
    assert call is not None
    sides = [ran.operation if ran is not None else "nothing more" for ran in (ours, theirs)]
    return CannotCarryOver(
        f"{call.at} runs in another way on a GPU: there it is {sides[1]}, where the host has "
        f"{sides[0]}, and no substitution is known; plan this step on the device itself"
    )


def _refuse_by_name(name: str, at: str) -> None:
    if any(part in name for part in REFUSED):
        raise CannotCarryOver(
            f"{at} runs on a GPU as another kernel than on the host ({name}), whose memory PyTorch "
            "does not tell without a device: plan this step on the device itself"
        )


@dataclass(frozen=True)
class Ran:
    """An operation, and the call of the model that it is a part of."""

    operation: str
    at: str
    is_from_host: bool = False
    """Whether it copies to a GPU what lies in the host's memory there."""


def _operations(module: fx.GraphModule, kind: str, *scopes: Any) -> list[Ran]:
    """What a forward runs on tensors without contents."""
    found: list[Ran] = []

    def saw(name: str, is_from_host: bool) -> None:
        if not (is_from_host and runner.makes_tensor):
            found.append(Ran(name, runner.at, is_from_host))

    log = Operations(saw)
    with ExitStack() as stack:
        stack.enter_context(without_contents())
        for scope in scopes:
            stack.enter_context(scope)
        stack.enter_context(dispatched_as_traced())
        runner = _Elsewhere(module, kind)
        inputs = [runner.moved(fake_of(node)) for node in module.graph.find_nodes(op="placeholder")]
        stack.enter_context(log)
        try:
            runner.run(*inputs)
        except Exception as failure:
            raise _untold(runner.at, failure) from failure
    return found


VALUE_OF = "_local_scalar_dense"
"""The operation that makes a Python number of a tensor."""


def _untold(what: str, failure: Exception) -> CannotCarryOver:
    if VALUE_OF in str(failure):
        return CannotCarryOver(
            f"{what} depends on the values of a tensor, which are known only when the step runs: "
            "take this part out of the model, or plan this step on the device itself"
        )
    said = (str(failure).splitlines() or [repr(failure)])[0].rstrip(".") + "."
    return CannotCarryOver(
        f"{what} cannot be carried over to a GPU, where PyTorch says: {said} If that is no mistake "
        "of the model's, plan this step on the device itself"
    )


def _called(target: Any) -> str:
    """The name of what a node calls, as a person knows it."""
    return str(getattr(target, "__name__", None) or target)


def _place(node: fx.Node) -> str:
    """The module of the model that a node belongs to, if it is known."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    _, kind = list(stack.values())[-1]
    return f", in {getattr(kind, '__name__', None) or str(kind).rpartition('.')[2]}"


def _at(node: fx.Node) -> str:
    """A node, for a person."""
    return f"{_called(node.target)} ({node.name}{_place(node)})"


class _Elsewhere(fx.Interpreter):
    """Runs a module as if everything lay on another kind of device."""

    def __init__(self, module: fx.GraphModule, kind: str) -> None:
        super().__init__(module)
        # Errors are said in our words; what the interpreter adds is for who debugs it.
        self.extra_traceback = False
        self.kind = kind
        self.blocks: dict[int, torch.Tensor] = {}
        """The storages that have been made there, by those that they stand for."""
        self.at = ""
        """The node that runs."""
        self.makes_tensor = False
        """Whether it makes a constant."""

    def run_node(self, n: fx.Node) -> Any:
        self.at, self.makes_tensor = _at(n), _called(n.target) in MAKES_TENSORS
        return super().run_node(n)

    def moved(self, value: Any) -> Any:
        """A value that lies there. Tensors that share a storage share one there."""
        return pytree.tree_map_only(torch.Tensor, self._moved_tensor, value)

    def _moved_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        block = tensor.untyped_storage()
        key = storage_key(block)
        if key not in self.blocks:
            self.blocks[key] = torch.empty(block.nbytes(), dtype=torch.uint8, device=self.kind)
        flat = self.blocks[key].view(tensor.dtype) if block.nbytes() else self.blocks[key]
        if not block.nbytes():
            return torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.kind
            ).requires_grad_(tensor.requires_grad)
        with torch.no_grad():
            there = flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        return there.detach().requires_grad_(tensor.requires_grad)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = attribute_of(self.module, str(target))
        return self.moved(value) if isinstance(value, torch.Tensor) else value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is ENTER_AUTOCAST and args and args[0] == "cpu":
            args = (self.kind, *args[1:])
        args, kwargs = pytree.tree_map_only(torch.device, self._there, (args, kwargs))
        return super().call_function(target, args, kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map_only(torch.device, self._there, (args, kwargs))
        if target == "to":
            args = tuple(self.kind if value == "cpu" else value for value in args)
        return super().call_method(target, args, kwargs)

    def _there(self, device: torch.device) -> torch.device:
        return torch.device(self.kind) if device.type in ("cpu", "meta") else device


def carry_over(module: fx.GraphModule, device: Device) -> None:
    """Carries a joint graph over to the device: every tensor is one there, of the shape and type
    that PyTorch's meta functions for it give.
    """
    if not device.is_gpu:
        return
    for node in module.graph.nodes:
        if node.op == "call_function":
            _refuse_by_name(str(node.target), _at(node))
    runner = _Carrier(module, "cuda")
    placeholders = module.graph.find_nodes(op="placeholder")
    with without_contents(), torch.no_grad(), _convolving_as_on(device):
        try:
            runner.run(*[runner.moved(node.meta["val"]) for node in placeholders])
        except CannotCarryOver:
            raise
        except Exception as failure:
            raise _untold(runner.at, failure) from failure


class _Carrier(_Elsewhere):
    """Puts what each node gives there in the place of what it gave here."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op != "output" and "val" in n.meta:
            self._refuse_another_shape(n, result)
            n.meta["val"] = result
            _rewrite_devices(n)
        return result

    def _refuse_another_shape(self, node: fx.Node, result: Any) -> None:
        """Types may differ; a size may not."""
        shapes = [
            [tuple(t.shape) for t in pytree.tree_leaves(v) if isinstance(t, torch.Tensor)]
            for v in (node.meta["val"], result)
        ]
        if shapes[0] != shapes[1]:
            raise CannotCarryOver(
                f"{self.at} gives {shapes[0]} on the host and {shapes[1]} on a GPU, and what "
                "follows was traced for the first: plan this step on the device itself"
            )


def _rewrite_devices(node: fx.Node) -> None:
    there = torch.device("cuda")
    node.args, node.kwargs = pytree.tree_map_only(
        torch.device, lambda d: there if d.type in ("cpu", "meta") else d, (node.args, node.kwargs)
    )
