"""How long operations take on a device that is not here: a roofline by its data sheet.

The longer of moving the bytes that the operation reads and writes, and doing its arithmetic at the
peak of the type, and what any kernel takes. Products run at the tensor cores' rate for their type;
everything else at the rate of single precision.
"""

from __future__ import annotations

from torch import fx

from rekindle.torch.effects import is_collective
from rekindle.torch.interfaces import name_of, storage_key, storage_sizes
from rekindle.torch.joint import tensors_of
from rekindle.torch.target.devices import Device
from rekindle.torch.timing import is_counted, operations

NETWORK_BYTES = 1e4
"""Bytes in a microsecond between processes; the same as `timing` has it."""
MICROSECONDS = 1e6


def predicted_microseconds(node: fx.Node, device: Device) -> float:
    """The roofline's time of a node."""
    results = tensors_of(node)
    moved = storage_sizes(results)
    for value in node.all_input_nodes:
        moved.update((storage_key(t.untyped_storage()), t.nbytes) for t in tensors_of(value))
    if is_collective(node):
        return device.floor + sum(moved.values()) / NETWORK_BYTES
    rate = device.rates["float32"]
    if is_counted(node) and results:
        is_convolution = "convolution" in name_of(node.target)
        rate = device.rate(results[0].dtype, is_convolution=is_convolution)
    seconds = max(sum(moved.values()) / device.bandwidth, operations(node) / rate)
    return device.floor + seconds * MICROSECONDS
