"""Operations that a GPU does not repeat bit for bit: their threads add in the order in which they
come.

The list is that of PyTorch's documentation of `torch.use_deterministic_algorithms`, with the
backwards of fused attention and of convolutions (its pages on reproducibility). A plan runs none of
them twice, unless the user allows it; in the plain step, too, they give other bits from run to run.
With `torch.use_deterministic_algorithms(True)` PyTorch takes kernels that repeat, or says that it
has none, and then nothing is kept for this reason.
"""

from __future__ import annotations

import torch

ATOMIC = frozenset(
    """
    index_add index_put scatter_add scatter_reduce scatter put bincount histc kthvalue median
    nanmedian cumsum ctc_loss nll_loss2d_forward nll_loss2d_backward grid_sampler_2d_backward
    grid_sampler_3d_backward upsample_linear1d_backward upsample_bilinear2d_backward
    upsample_bicubic2d_backward upsample_trilinear3d_backward adaptive_avg_pool3d_backward
    _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_max_pool2d_backward
    adaptive_max_pool3d_backward avg_pool3d_backward fractional_max_pool2d_backward
    fractional_max_pool3d_backward max_pool2d_with_indices_backward
    max_pool3d_with_indices_backward max_unpool2d max_unpool3d reflection_pad1d_backward
    reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward
    replication_pad2d_backward replication_pad3d_backward _embedding_bag_dense_backward
    embedding_dense_backward _segment_reduce_backward convolution_backward
    _scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward
    _scaled_dot_product_cudnn_attention_backward
    """.split()
)
"""Names of operations, without their overloads."""

_allowed = False


def allow_atomics(allowed: bool = True) -> None:
    """Lets plans run operations twice that a GPU does not repeat bit for bit: numbers are then
    close to the plain step's, as those of two plain steps are.
    """
    global _allowed  # noqa: PLW0603 (a setting of the process, as PyTorch's own are)
    _allowed = allowed


def is_repeatable(name: str, kind: str) -> bool:
    """Whether an operation may run again on a kind of device, as far as its bits go."""
    is_atomic = kind == "cuda" and name in ATOMIC
    return not is_atomic or _allowed or torch.are_deterministic_algorithms_enabled()
