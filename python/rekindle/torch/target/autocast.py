"""What autocast does to operations on a GPU, where the host does something else.

The lists are those of `aten/src/ATen/autocast_mode.h`, by their names there, without what the host
treats in the same way. Kernels take the lower precision first.

Limits: a weight that one of `LOWER` casts twice is cast twice, where PyTorch keeps the first cast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rekindle.torch.interfaces import pytree, schema_of
from rekindle.torch.target.interfaces import ATEN

LOWER = ("addmv", "addr", "einsum", "mv", "chain_matmul", "linalg_multi_dot")
FP32 = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan "
    "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm "
    "group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity dist renorm "
    "logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d "
    "_upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d "
    "upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d "
    "_upsample_bicubic2d_aa"
).split()
FP32_BY_DTYPE = (
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm "
    "linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList"
).split()
"""They take a `dtype`, which autocast sets where it is not given."""
PROMOTE = (
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
).split()
"""Their arguments take the widest type among them."""
HOST_ONLY = (
    "stack cat index_copy replication_pad1d replication_pad2d replication_pad3d reflection_pad1d "
    "reflection_pad2d avg_pool3d adaptive_avg_pool3d adaptive_max_pool3d max_pool3d "
    "cross_entropy_loss multilabel_margin_loss_forward grid_sampler_2d grid_sampler_3d polar "
    "view_as_complex trace conv1d.padding conv2d.padding conv3d.padding fft_fft fft_ifft fft_rfft "
    "fft_irfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn fft_ifftn fft_rfftn fft_irfftn "
    "fft_hfft fft_ihfft quantile nanquantile"
).split()
"""A GPU runs them as they come."""

Kernel = Callable[..., Any]


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Numbers of the usual precisions in another one."""

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if _is_eligible(tensor) else tensor

    return pytree.tree_map_only(torch.Tensor, cast, value)


def _is_eligible(tensor: Any) -> bool:
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.is_floating_point()
        and tensor.dtype != torch.float64
    )


def _lower(operation: Any) -> Kernel:
    def run(dtype: torch.dtype, *args: Any, **kwargs: Any) -> Any:
        return operation(*_cast(args, dtype), **_cast(kwargs, dtype))

    return run


def _fp32(operation: Any) -> Kernel:
    def run(_dtype: torch.dtype, *args: Any, **kwargs: Any) -> Any:
        return operation(*_cast(args, torch.float32), **_cast(kwargs, torch.float32))

    return run


def _fp32_by_dtype(operation: Any) -> Kernel:
    names = [argument.name for argument in schema_of(operation).arguments]

    def run(_dtype: torch.dtype, *args: Any, **kwargs: Any) -> Any:
        at = names.index("dtype")
        given = args[at] if at < len(args) else kwargs.get("dtype")
        if given is None and _is_eligible(args[0]):
            args = args[:at]
            kwargs = {**kwargs, "dtype": torch.float32}
        return operation(*args, **kwargs)

    return run


def _promote(operation: Any) -> Kernel:
    def run(dtype: torch.dtype, *args: Any, **kwargs: Any) -> Any:
        found = [t for t in pytree.tree_leaves((args, kwargs)) if _is_eligible(t)]
        is_wide = any(tensor.dtype == torch.float32 for tensor in found)
        widest = torch.float32 if is_wide else dtype
        return operation(*_cast(args, widest), **_cast(kwargs, widest))

    return run


def _named(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(ATEN, packet), overload or "default")


KERNELS: dict[Any, Kernel | None] = {
    _named(name): policy(_named(name))
    for policy, names in (
        (_lower, LOWER),
        (_fp32, FP32),
        (_fp32_by_dtype, FP32_BY_DTYPE),
        (_promote, PROMOTE),
    )
    for name in names
} | {_named(name): None for name in HOST_ONLY}
"""What autocast on a GPU does, for each operation that the host treats otherwise; None: nothing."""
