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

MIB = 1 << 20
CONTEXT = "CUDA context and kernels"
CUBLAS = "cuBLAS workspaces"
CUDNN = "cuDNN workspaces"
NCCL = "NCCL buffers"
HOPPER = 9
"""The first compute capability with the larger workspace."""


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
            1331 * MIB,
            'Hugging Face, "Model memory anatomy": 1.3 GB before the first tensor; less where '
            "kernels are loaded lazily",
        ),
        # The thread of the forward has one, and the thread of the backward another.
        Margin(
            CUBLAS,
            2 * (32 if device.is_rocm or device.capability[0] >= HOPPER else 9) * MIB,
            "PyTorch's default of CUBLAS_WORKSPACE_CONFIG: 32 MiB from Hopper on, 8.1 before, for "
            "each of two threads",
        ),
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
                "NCCL's documentation: NCCL_BUFFSIZE is 4 MiB, for each of up to 32 channels, to "
                "send and to receive",
            )
        )
    return lines


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
