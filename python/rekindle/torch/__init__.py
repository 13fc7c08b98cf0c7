"""Rekindle inside PyTorch: modules that train in a budget.

The files are the stages, in the order of the data: `capture` (or a `session`, inside
`torch.compile`), `joint`, `lower`, `timing`, `planning`, `inject`, `lower_back` (what was built,
checked), `execute` or `inductor`. Every private interface of PyTorch is in `interfaces`. Steps for
devices that are not here are in `target`.
"""

from rekindle.torch.largest_batch import LargestBatch, max_batch
from rekindle.torch.measure import measure_peak
from rekindle.torch.module import PlannedModule, backend, compile
from rekindle.torch.planning import PlannedGraph, plan
from rekindle.torch.reporting import Report, report
from rekindle.torch.step_profile import StepProfile, profile
from rekindle.torch.target.atomics import allow_atomics
from rekindle.torch.target.devices import DEVICES, Device
from rekindle.torch.target.snapshot import Snapshot, read_snapshot
from rekindle.torch.target.trace import TracedPlan, TracedStep, trace

__all__ = [
    "DEVICES",
    "Device",
    "LargestBatch",
    "PlannedGraph",
    "PlannedModule",
    "Report",
    "Snapshot",
    "StepProfile",
    "TracedPlan",
    "TracedStep",
    "allow_atomics",
    "backend",
    "compile",
    "max_batch",
    "measure_peak",
    "plan",
    "profile",
    "read_snapshot",
    "report",
    "trace",
]
