"""The private interfaces of PyTorch that capturing for a device that is not here builds on.

What the rest of the package needs is in `rekindle/torch/interfaces.py`; the rule is the same: a
PyTorch that lacks something is refused by its name, and no other file has a private interface.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from rekindle.torch.interfaces import Interface, TorchDispatchMode, pytree, require

NEEDED: tuple[Interface, ...] = (
    ("FakeTensor", "torch._subclasses.fake_tensor"),
    ("FakeTensorMode", "torch._subclasses.fake_tensor"),
    ("from_tensor", "torch._subclasses.fake_tensor.FakeTensorMode"),
    ("enable_python_dispatcher", "torch._dispatch.python"),
    ("_enter_autocast", "torch.amp.autocast_mode"),
    ("_scaled_dot_product_flash_attention", "torch.ops.aten"),
    ("_scaled_dot_product_efficient_attention", "torch.ops.aten"),
    ("_scaled_dot_product_cudnn_attention", "torch.ops.aten"),
    ("_scaled_dot_product_attention_math", "torch.ops.aten"),
    ("_fused_rms_norm", "torch.ops.aten"),
    ("_fused_rms_norm_backward", "torch.ops.aten"),
    ("_softmax", "torch.ops.aten"),
    ("_log_softmax", "torch.ops.aten"),
    ("_select_conv_backend", "torch._C"),
)
require(NEEDED)

from torch._dispatch.python import enable_python_dispatcher  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402

ATEN: Any = torch.ops.aten
FLASH: Any = ATEN._scaled_dot_product_flash_attention.default
EFFICIENT: Any = ATEN._scaled_dot_product_efficient_attention.default
CUDNN: Any = ATEN._scaled_dot_product_cudnn_attention.default
MATH: Any = ATEN._scaled_dot_product_attention_math.default
FUSED_RMS_NORM: Any = ATEN._fused_rms_norm.default
FUSED_RMS_NORM_BACKWARD: Any = ATEN._fused_rms_norm_backward.default
SOFTMAX: Any = ATEN._softmax.default
LOG_SOFTMAX: Any = ATEN._log_softmax.default
ENTER_AUTOCAST: Any = torch.amp.autocast_mode._enter_autocast
COPY: Any = ATEN._to_copy.default
HOST = torch.device("cpu")
IDLE = ("aten.detach.default", "aten.empty.memory_format", "aten.new_zeros.default")
"""They compute nothing: autograd detaches what it saves, a batch norm makes an empty reserve."""


@contextmanager
def captured_on_host(dtype_of: Callable[[torch.Tensor], torch.dtype | None]) -> Iterator[None]:
    """What is captured in this scope is captured as if every tensor lay in the host's memory, with
    contents or without, in the type that `dtype_of` says (None: its own).
    """
    original = FakeTensorMode.from_tensor
    stand_ins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        """Of another type, without contents; always the same one for a tensor."""
        dtype = dtype_of(tensor)
        if dtype is None or dtype == tensor.dtype:
            return tensor
        if id(tensor) not in stand_ins:
            empty = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=dtype, device="meta"
            ).requires_grad_(tensor.requires_grad)
            if isinstance(tensor, torch.nn.Parameter):
                empty = torch.nn.Parameter(empty.detach(), tensor.requires_grad)
            stand_ins[id(tensor)] = tensor, empty
        return stand_ins[id(tensor)][1]

    def from_tensor(mode: Any, tensor: torch.Tensor, **options: Any) -> Any:
        is_fake = isinstance(tensor, FakeTensor)
        fake = original(mode, tensor if is_fake else stand_in(tensor), **options)
        if fake.fake_device.type == "meta":
            fake.fake_device = HOST
        return fake

    with mock.patch.object(FakeTensorMode, "from_tensor", from_tensor):
        yield


def without_contents() -> Any:
    """A mode in which tensors have no contents, on whatever device."""
    return FakeTensorMode(allow_non_fake_inputs=True)


class Operations(TorchDispatchMode):
    """The operations that PyTorch runs in its scope, when all has fallen apart that does."""

    def __init__(self, saw: Callable[[str, bool], None]) -> None:
        super().__init__()
        self.saw = saw
        """Called with the name of each, and whether it copies from the host to a GPU."""

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function.namespace == "prim":
            return function(*args, **kwargs)
        with self:
            # Tracing takes an operation apart that some device knows in parts.
            parts = function.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        result = function(*args, **kwargs)
        if str(function) not in IDLE:
            kinds = [t.device.type for t in (*args[:1], result)] if function is COPY else ["", ""]
            self.saw(str(function), kinds[0] == "cpu" != kinds[1])
        return result


@contextmanager
def convolving_in_bfloat16() -> Iterator[None]:
    """Convolutions in bfloat16 are those of half precision in this scope.

    PyTorch asks the device whether cuDNN has them, and without one takes a kernel of its own, whose
    results are laid out in another way.
    """
    select = torch._C._select_conv_backend

    def as_half(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.bfloat16:
            return tensor
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=torch.float16, device=tensor.device
        )

    def ask(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map(as_half, (args, kwargs))
        return select(*args, **kwargs)

    with mock.patch.object(torch._C, "_select_conv_backend", ask):
        yield


@contextmanager
def dispatched_as_traced() -> Iterator[None]:
    """Operations fall apart in this scope as they do while a joint graph is traced."""
    with enable_python_dispatcher():
        yield


@contextmanager
def autocast_of(kind: str, dtype: torch.dtype | None) -> Iterator[None]:
    """Autocast for a kind of device, whether there is one here or not; None for none."""
    enabled, before = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    torch.set_autocast_enabled(kind, dtype is not None)
    torch.set_autocast_dtype(kind, before if dtype is None else dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, before)
        torch.clear_autocast_cache()


@contextmanager
def autocast_kernels(kernels: Mapping[Any, Callable[..., Any] | None]) -> Iterator[None]:
    """What autocast on the host does with some operations, in this scope; None for nothing. Each
    kernel is called outside of autocast.
    """
    library = torch.library.Library("aten", "IMPL")
    for operation, kernel in kernels.items():
        run = torch.library.fallthrough_kernel if kernel is None else _outside(kernel)
        library.impl(operation, run, "AutocastCPU", allow_override=True)
    try:
        yield
    finally:
        library._destroy()


def _outside(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype("cpu")
        torch.set_autocast_enabled("cpu", False)
        try:
            return kernel(dtype, *args, **kwargs)
        finally:
            torch.set_autocast_enabled("cpu", True)

    return call
