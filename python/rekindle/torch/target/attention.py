"""Which kernel computes attention on a GPU, and what surrounds it.

PyTorch chooses by the device, the types and the shapes (`priority_order` and `can_use_…` in
`aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`, `scaled_dot_product_attention` in
`aten/src/ATen/native/transformers/attention.cpp`). Without a device it chooses none, so the choice
is made here by the same conditions. What a kernel saves is PyTorch's own: the operation is put into
the graph, and its shapes are those of its meta function.

Limits: dense tensors of four dimensions. Whether the installed cuDNN takes heads of more than 128
is not asked; flash attention, which is next, saves the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from rekindle.torch.target.devices import Device
from rekindle.torch.target.interfaces import ATEN, CUDNN, EFFICIENT, FLASH, MATH

HALF = (torch.float16, torch.bfloat16)
LARGEST_FLASH_HEAD = 256
LARGEST_CUDNN_HEAD = 128
LARGEST_CUDNN_SIZE = 65535
"""Of batches and of heads."""
TENSOR_CORES_FROM = (8, 0)
"""From this compute capability on single precision is aligned, too, and bfloat16 is taken."""
WIDE_HEADS_FROM, WIDE_HEADS_TO = 192, 224
"""Consumer GPUs train with heads up to the first, and above the second if nothing is dropped."""
FLASH_ALIGNMENT = 8
MASK_ALIGNMENT = 8


def attention_on(device: Device) -> Callable[..., torch.Tensor]:
    """`scaled_dot_product_attention` as that device runs it."""

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        tensors = (query, key, value)
        options = Options(device, attn_mask, dropout_p, is_causal, enable_gqa)
        if options.cudnn_runs(*tensors):
            mask = _added(attn_mask, query.dtype)
            how = (mask, _is_trained(*tensors), dropout_p, is_causal, False)
            return CUDNN(*tensors, *how, scale=scale)[0]  # type: ignore[no-any-return]
        if options.flash_runs(*tensors):
            return _flash(tensors, dropout_p, is_causal, scale)
        if options.efficient_runs(*tensors):
            mask = _aligned(_added(attn_mask, query.dtype), query, key)
            rest = (mask, _is_trained(*tensors), dropout_p, is_causal)
            return EFFICIENT(*tensors, *rest, scale=scale)[0]  # type: ignore[no-any-return]
        mask = _added(attn_mask, query.dtype)
        plain = (mask, dropout_p, is_causal, None)
        found: torch.Tensor = MATH(*tensors, *plain, scale=scale, enable_gqa=enable_gqa)[0]
        return found

    return attention


class Options:
    """What decides beside the tensors."""

    def __init__(
        self,
        device: Device,
        mask: torch.Tensor | None,
        dropout: float,
        is_causal: bool,
        is_grouped: bool,
    ) -> None:
        self.device = device
        self.mask = mask
        self.dropout = dropout
        self.is_causal = is_causal
        self.is_grouped = is_grouped

    def cudnn_runs(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
        """Only where it is preferred: behind the others its turn never comes."""
        heads = query.shape[-1], value.shape[-1]
        return (
            self.device.prefers_cudnn_attention
            and torch.backends.cuda.cudnn_sdp_enabled()
            and not torch.are_deterministic_algorithms_enabled()
            and self._is_regular(query, key, value, can_be_grouped=True, has_same_groups=False)
            and query.dtype in HALF
            and max(query.shape[:2]) <= LARGEST_CUDNN_SIZE
            and max(heads) <= LARGEST_CUDNN_HEAD
            and not any(size % FLASH_ALIGNMENT for size in heads)
            and float(self.dropout * 16).is_integer()
            and key.shape[2] != 1
            and (self.dropout == 0.0 or query.shape[2] != 1)
        )

    def flash_runs(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
        """Without a mask, in half precision."""
        head = query.shape[-1]
        is_too_wide = (
            self.device.is_consumer
            and head > WIDE_HEADS_FROM
            and (self.dropout > 0.0 or head <= WIDE_HEADS_TO)
        )
        return (
            torch.backends.cuda.flash_sdp_enabled()
            and self.device.has_flash_attention
            and self._is_regular(query, key, value, can_be_grouped=True)
            and self.mask is None
            and query.dtype in HALF
            and head == value.shape[-1] <= LARGEST_FLASH_HEAD
            and not is_too_wide
            and (not self.is_causal or query.shape[2] == key.shape[2])
        )

    def efficient_runs(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
        """In single precision too, and with a mask."""
        is_new = self.device.is_rocm or self.device.capability >= TENSOR_CORES_FROM
        alignment = 8 if query.dtype in HALF else 4 if is_new else 1
        dtypes = (torch.float16, torch.float32, *((torch.bfloat16,) if is_new else ()))
        sizes = query.shape[-1], value.shape[-1]
        return (
            torch.backends.cuda.mem_efficient_sdp_enabled()
            and self._is_regular(query, key, value, can_be_grouped=not self.device.is_rocm)
            and query.dtype in dtypes
            and not any(size % alignment for size in sizes)
            and (
                self.device.is_rocm
                or not is_new
                or all(
                    tensor.storage_offset() % alignment == 0
                    for tensor in (query, key, value)
                    if tensor.numel()
                )
            )
        )

    def _is_regular(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        can_be_grouped: bool,
        has_same_groups: bool = True,
    ) -> bool:
        """Shapes, types and strides that every fused kernel asks for."""
        tensors = (query, key, value)
        if any(tensor.dim() != 4 for tensor in tensors):
            return False
        are_equal = query.shape[1] == key.shape[1] == value.shape[1]
        groups = {key.shape[1], value.shape[1]}
        is_divided = (
            self.is_grouped
            and all(size and query.shape[1] % size == 0 for size in groups)
            and (len(groups) == 1 or not has_same_groups)
        )
        # One head for all queries needs no leave, but where groups are asked for they are checked.
        is_group = can_be_grouped and (is_divided or (not self.is_grouped and groups == {1}))
        return (
            len({tensor.dtype for tensor in tensors}) == 1
            and len({tensor.shape[0] for tensor in tensors}) == 1
            and query.shape[-1] == key.shape[-1]
            and (are_equal or is_group)
            and all(tensor.shape[2] > 0 for tensor in tensors)
            and all(t.stride(-1) == 1 or t.shape[-1] == 1 for t in tensors)
        )


def _is_trained(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _flash(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    dropout: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """Heads are padded to a multiple of eight, and the result is cut again."""
    size = tensors[0].shape[-1]
    rest = -size % FLASH_ALIGNMENT
    padded = [torch.nn.functional.pad(t, (0, rest)) if rest else t for t in tensors]
    factor = 1.0 / math.sqrt(size) if scale is None else scale
    result: torch.Tensor = FLASH(*padded, dropout, is_causal, False, scale=factor)[0]
    return result[..., :size] if rest else result


def _added(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A mask of truth values as numbers to be added."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    never = ATEN.scalar_tensor(-math.inf, dtype=dtype, device=mask.device)
    return torch.where(mask, 0.0, never)


def _aligned(
    mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor | None:
    """A mask whose rows begin at multiples of eight, for each head."""
    if mask is None:
        return None
    strides, sizes = mask.stride(), mask.shape
    pairs = zip(strides[:-1], sizes[:-1], strict=True)
    if strides[-1] != 1 or any(stride % MASK_ALIGNMENT for stride, _ in pairs):
        size = sizes[-1]
        mask = torch.nn.functional.pad(mask, (0, -size % MASK_ALIGNMENT))[..., :size]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
