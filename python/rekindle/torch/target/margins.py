"""What a process takes of a GPU beside its step: declared, each line by itself.

No capture shows it, and it depends on driver, libraries and settings. The defaults are from
published documentation and stand on the safe side; `python -m rekindle.torch verify` measures what
it can on the device, and a measured line replaces a declared one (`margins=`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rekindle import _native
from rekindle.errors import InvalidInput
from rekindle.torch.target.devices import Device

KIB, MIB = 1 << 10, 1 << 20
CONTEXT = "CUDA context and kernels"
CUBLAS = "cuBLAS workspaces"
CUDNN = "cuDNN workspaces"
NCCL = "NCCL buffers"
LARGE_WORKSPACE_FROM = 9
"""The first compute capability of NVIDIA's with a workspace of 32 MiB: Hopper's."""
THREADS = 2
"""The thread of the forward has a workspace, and the thread of the backward another."""


@dataclass(frozen=True)
class Margin:
    """Bytes that are kept free for something, and why so many."""

    name: str
    bytes: int
    source: str
    is_measured: bool = False

    def __str__(self) -> str:
        kind = "measured" if self.is_measured else "declared"
        return f"{self.name}: {self.bytes / MIB:.0f} MiB ({kind}: {self.source})"


def default_margins(device: Device, operations: Iterable[str], ranks: int) -> list[Margin]:
    """The lines for a step with these operations on one of so many ranks."""
    if not device.is_gpu:
        return []
    names = set(operations)
    lines = [
        Margin(
            CONTEXT,
            1343 * MIB,
            'Hugging Face, "Model training anatomy" (huggingface.co/docs/transformers/'
            "model_memory_anatomy): 1343 MB on a V100 after the first tensor, 1 to 2 GB in general",
        ),
        Margin(CUBLAS, THREADS * _workspace(device), WORKSPACE_SOURCE),
    ]
    if any("convolution" in name for name in names):
        lines.append(
            Margin(
                CUDNN,
                512 * MIB,
                "no documentation has a number, as each algorithm asks for its own: taken to be as "
                "much",
            )
        )
    if ranks > 1:
        lines.append(
            Margin(
                NCCL,
                2 * 32 * 4 * MIB,
                "NCCL's documentation (docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html):"
                " NCCL_BUFFSIZE is 4 MiB; taken for 32 channels, to send and to receive",
            )
        )
    return lines


WORKSPACE_SOURCE = (
    "PyTorch's aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize, if "
    "CUBLAS_WORKSPACE_CONFIG says nothing else: 32 MiB from Hopper on, 8.125 before, 128 on MI300; "
    "for each of two threads"
)


def _workspace(device: Device) -> int:
    """What a thread's products have; before Hopper it is `:4096:2:16:8`, in KiB."""
    if device.is_rocm:
        return 128 * MIB
    if device.capability[0] >= LARGE_WORKSPACE_FROM:
        return 32 * MIB
    return 2 * 4096 * KIB + 8 * 16 * KIB


def replaced_margins(
    lines: list[Margin], given: Mapping[str, int | str] | str | Path | None
) -> list[Margin]:
    """The lines with some in place of the declared ones: by name, or of a record of `verify`."""
    if given is None:
        return lines
    if isinstance(given, (str, Path)):
        measured, source = _of_record(Path(given)), f"the record {Path(given).name}"
    else:
        measured = {name: _bytes(size) for name, size in given.items()}
        source = "given by the user"
    unknown = set(measured) - {line.name for line in lines}
    if unknown and isinstance(given, Mapping):
        known = ", ".join(line.name for line in lines) or "none on this device"
        raise InvalidInput(f"there is no margin {sorted(unknown)[0]!r}; there are: {known}")
    return [
        Margin(line.name, measured[line.name], source, is_measured=True)
        if line.name in measured
        else line
        for line in lines
    ]


def _bytes(size: int | str) -> int:
    found = _native.parse_budget(size) if isinstance(size, str) else size
    if found < 0:
        raise InvalidInput(f"a margin is bytes, not {size!r}")
    return found


def _of_record(path: Path) -> dict[str, int]:
    try:
        margins = json.loads(path.read_text())["margins"]
        return {str(name): int(size) for name, size in margins.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path} is no record of verify: {error!r}") from error
