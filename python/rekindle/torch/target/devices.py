"""Devices that a step can be planned for without being there: what a data sheet says of them.

Rates are peaks without sparsity: a step takes longer, and a plan depends on their ratios only.
Memory is the data sheet's gigabytes, taken as 10⁹ bytes; a driver shows a little more. Everything
that follows from this table is a prediction. Where an operation was measured on the device, its
time replaces the table's.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from rekindle.errors import InvalidInput

FLASH_FROM = (8, 0)
"""The first compute capability with flash attention."""
BFLOAT16_FROM = (8, 0)
"""The first with cuDNN's convolutions in bfloat16."""
CUDNN_PREFERRED = (9, 10)
"""Compute capabilities, by their first number, on which cuDNN's attention comes first."""
CONSUMER = ((8, 6), (8, 9), (12, 0), (12, 1))
"""Those whose flash attention does not train with every size of heads."""


@dataclass(frozen=True)
class Device:
    """A device and its data sheet. Rates are per second."""

    name: str
    kind: str
    """`cpu`, `cuda` or `rocm`."""
    memory: int
    """Bytes."""
    bandwidth: float
    """Bytes between memory and processors."""
    host_link: float
    """Bytes between the device and the host's memory, in each direction."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Operations, by type: `float32`, `tf32`, `bfloat16`, `float16`."""
    capability: tuple[int, int] = (0, 0)
    """CUDA's compute capability."""
    floor: float = 3.0
    """Microseconds that any kernel takes."""
    source: str = ""

    @property
    def is_gpu(self) -> bool:
        """Whether PyTorch runs it as `cuda`."""
        return self.kind in ("cuda", "rocm")

    @property
    def is_rocm(self) -> bool:
        """Whether it is AMD's."""
        return self.kind == "rocm"

    @property
    def has_flash_attention(self) -> bool:
        """Whether PyTorch's flash attention runs there."""
        return self.is_rocm or self.capability >= FLASH_FROM

    @property
    def convolves_in_bfloat16(self) -> bool:
        """Whether the library's convolutions take bfloat16."""
        return self.is_rocm or self.capability >= BFLOAT16_FROM

    @property
    def prefers_cudnn_attention(self) -> bool:
        """Whether PyTorch tries cuDNN's attention first."""
        return self.kind == "cuda" and self.capability[0] in CUDNN_PREFERRED

    @property
    def is_consumer(self) -> bool:
        """Whether its flash attention trains with some sizes of heads only."""
        return self.kind == "cuda" and self.capability in CONSUMER

    @property
    def store(self) -> str:
        """The host's memory as a store that activations can be moved to."""
        speed = f"{self.host_link / 1e9:g}GB/s"
        return f"out={speed},in={speed},latency={TRANSFER_LATENCY}us,activations"

    def rate(self, dtype: torch.dtype, *, is_convolution: bool = False) -> float:
        """Operations per second of products in a type. Convolutions in single precision are
        tensor-float ones, PyTorch's default; other products are not.
        """
        name = str(dtype).removeprefix("torch.")
        if name == "float32" and is_convolution:
            return self.rates.get("tf32", self.rates["float32"])
        return self.rates.get(name, self.rates["float32"])


TRANSFER_LATENCY = 10
"""Microseconds before the first byte of a copy moves: a launch and an event on each side."""


def _gpu(
    name: str,
    gigabytes: float,
    bandwidth: float,
    link: float,
    rates: tuple[float, float, float, float],
    capability: tuple[int, int],
    source: str,
    kind: str = "cuda",
) -> Device:
    """Gigabytes, gigabytes per second, and 10¹² operations per second."""
    names = ("float32", "tf32", "bfloat16", "float16")
    by_type = {name: rate * 1e12 for name, rate in zip(names, rates, strict=True)}
    return Device(
        name, kind, int(gigabytes * 1e9), bandwidth * 1e9, link * 1e9, by_type, capability, 3.0,
        source,
    )  # fmt: skip


PCIE3, PCIE4, PCIE5 = 16.0, 32.0, 64.0
"""Gigabytes per second of sixteen lanes in one direction (PCI-SIG)."""

_KNOWN = (
    _gpu("V100-16GB", 16, 900, PCIE3, (15.7, 15.7, 15.7, 125), (7, 0), "NVIDIA V100 data sheet"),
    _gpu("V100-32GB", 32, 900, PCIE3, (15.7, 15.7, 15.7, 125), (7, 0), "NVIDIA V100 data sheet"),
    _gpu("T4", 16, 320, PCIE3, (8.1, 8.1, 8.1, 65), (7, 5), "NVIDIA T4 data sheet"),
    _gpu("A10", 24, 600, PCIE4, (31.2, 62.5, 125, 125), (8, 6), "NVIDIA A10 data sheet"),
    _gpu("A10G", 24, 600, PCIE4, (35, 35, 70, 70), (8, 6), "baseten.co, NVIDIA A10 vs A10G"),
    _gpu("A100-40GB", 40, 1555, PCIE4, (19.5, 156, 312, 312), (8, 0), "NVIDIA A100 data sheet"),
    _gpu("A100-80GB", 80, 2039, PCIE4, (19.5, 156, 312, 312), (8, 0), "NVIDIA A100 data sheet"),
    _gpu("A100-80GB-PCIe", 80, 1935, PCIE4, (19.5, 156, 312, 312), (8, 0),
         "NVIDIA A100 data sheet"),
    _gpu("RTX3090", 24, 936, PCIE4, (35.6, 35.6, 71, 71), (8, 6), "NVIDIA GA102 white paper"),
    _gpu("RTX4090", 24, 1008, PCIE4, (82.6, 82.6, 165.2, 165.2), (8, 9), "NVIDIA Ada white paper"),
    _gpu("L4", 24, 300, PCIE4, (30.3, 60, 121, 121), (8, 9), "NVIDIA L4 data sheet"),
    _gpu("L40S", 48, 864, PCIE4, (91.6, 183, 362, 362), (8, 9), "NVIDIA L40S data sheet"),
    _gpu("H100-80GB", 80, 3350, PCIE5, (67, 494.5, 989, 989), (9, 0), "NVIDIA H100 data sheet"),
    _gpu("H100-80GB-PCIe", 80, 2000, PCIE5, (51, 378, 756, 756), (9, 0), "NVIDIA H100 data sheet"),
    _gpu("H200", 141, 4800, PCIE5, (67, 494.5, 989, 989), (9, 0), "NVIDIA H200 data sheet, SXM"),
    _gpu("GH200-96GB", 96, 4000, 450, (67, 494.5, 989, 989), (9, 0), "NVIDIA GH200 data sheet, "
         "NVLink-C2C to the host"),
    _gpu("B200", 180, 8000, PCIE5, (80, 1100, 2250, 2250), (10, 0), "NVIDIA DGX B200 data sheet"),
    _gpu("RTX5090", 32, 1792, PCIE5, (104.8, 104.8, 209.5, 209.5), (12, 0),
         "NVIDIA Blackwell RTX white paper"),
    _gpu("MI300X", 192, 5300, PCIE5, (163.4, 653.7, 1307.4, 1307.4), (9, 4),
         "AMD Instinct MI300X data sheet", kind="rocm"),
)  # fmt: skip

HOST = Device(
    "cpu",
    "cpu",
    memory=0,
    bandwidth=1e10,
    host_link=1e10,
    rates={"float32": 5e10},
    floor=5.0,
    source="one modern core",
)
"""The device that is always here. How much memory it has is the machine's matter."""
DEVICES = {device.name: device for device in (HOST, *_KNOWN)}


NOISE = re.compile(
    r"nvidia|geforce|tesla|quadro|amd|instinct|tensor|core|gpu|oam|hbm\d*e?|sxm\d?|[^a-z0-9]"
)
"""In names of devices, what makers, drivers and clouds add."""


def device_named(name: Any) -> Device:
    """The device of that name; a `Device` is itself. The name may be the driver's, such as "NVIDIA
    A100-SXM4-80GB", if it says which one it is.
    """
    if isinstance(name, Device):
        return name
    given = str(name)
    wanted = _plain(given)
    for device in DEVICES.values():
        if wanted in (_plain(device.name), _plain(device.name).removeprefix("rtx")):
            return device
    # Not even if it is the only one: an L40 is no L40S, and another V100 has half the memory.
    near = [device for device in _KNOWN if wanted and _plain(device.name).startswith(wanted)]
    raise InvalidInput(_unknown(given, wanted, near))


def _plain(name: str) -> str:
    return NOISE.sub("", name.lower())


def _unknown(given: str, wanted: str, near: list[Device]) -> str:
    own = "another is a rekindle.torch.Device with its own rates"
    if wanted.rstrip("0123456789") in ("cuda", "rocm", "hip", "gpu", ""):
        said = f"{given!r} does not say which GPU it is, and there may be none here"
    elif near:
        likely = " or ".join(device.name for device in near)
        return f"{given!r} is not enough to say which device it is: {likely}? And {own}"
    else:
        said = f"there is no data sheet of a device {given!r}"
        by_name = {_plain(device.name): device.name for device in _KNOWN}
        close = difflib.get_close_matches(wanted, by_name, n=2, cutoff=0.5)
        if close:
            said += f" (did you mean {' or '.join(by_name[plain] for plain in close)}?)"
    return f"{said}; there are {', '.join(DEVICES)}, and {own}"
