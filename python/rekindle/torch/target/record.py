"""`python -m rekindle.torch verify plan.json train_step.py`: predicted against measured.

In: a saved plan and a Python file that makes the model and a batch (`make_model()`, `make_batch()`
and, if it has one, `make_optimizer(model)`). The step runs plain and by plan on the device that is
here, from the same state; loss, gradients and buffers must be the same bits. Out: one line for each
quantity, and a record as JSON, with versions and device, that can be attached to an issue. Its
`margins` replace declared ones (`trace(margins=…)`).

Everything that touches a GPU is in `GpuMeter`; the rest runs with the host as the device, too. On
the host the allocator keeps nothing, so what is reserved is not measured.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch

from rekindle import _native
from rekindle.errors import InvalidInput, RekindleError
from rekindle.torch.bit_check import differ
from rekindle.torch.capture import arguments_of
from rekindle.torch.interfaces import pytree
from rekindle.torch.measure import measure_peak
from rekindle.torch.module import compile, session_of
from rekindle.torch.randomness import GeneratorStates
from rekindle.torch.target.margins import CONTEXT
from rekindle.torch.target.saved import SavedStep, dtype_of

FORMAT = "rekindle.record/1"
RUNS = 3
"""Steps whose median time is taken."""


@dataclass
class Measured:
    """What one step took; None for what this device does not tell."""

    live: int | None = None
    """Storages, to the byte."""
    allocated: int | None = None
    """`max_memory_allocated`."""
    reserved: int | None = None
    """`max_memory_reserved`."""
    outside: int | None = None
    """Bytes of the device that the process has and its allocator has not."""


class Meter(Protocol):
    """Measures on a kind of device."""

    kind: str
    name: str

    def measure(self, step: Callable[[], Any], there: list[torch.Tensor]) -> Measured:
        """Runs a step, and says what it took. `there` lies in memory before it."""

    def wait(self) -> None:
        """Waits for what was asked of the device."""


class HostMeter:
    """Counts storages."""

    kind = "cpu"

    def __init__(self) -> None:
        self.name = _processor()

    def measure(self, step: Callable[[], Any], there: list[torch.Tensor]) -> Measured:
        """Every storage that the step makes, and what is there."""
        with measure_peak(there) as counted:
            step()
        return Measured(live=counted.peak)

    def wait(self) -> None:
        """The host does what it is asked at once."""


class GpuMeter:
    """Asks the device's allocator and its driver. Not tested without a device."""

    kind = "cuda"

    def __init__(self) -> None:
        self.name = torch.cuda.get_device_name()

    def measure(self, step: Callable[[], Any], there: list[torch.Tensor]) -> Measured:
        """The counters of PyTorch's allocator, from an empty cache."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return Measured(
            live=int(torch.cuda.memory_stats().get("requested_bytes.all.peak", 0)),
            allocated=torch.cuda.max_memory_allocated(),
            reserved=torch.cuda.max_memory_reserved(),
            outside=total - free - torch.cuda.memory_reserved(),
        )

    def wait(self) -> None:
        """Waits for all streams."""
        torch.cuda.synchronize()


@dataclass
class Record:
    """What was predicted, and what was measured."""

    planned_for: str
    device: str
    kind: str
    predicted: dict[str, Any]
    plain: Measured
    planned: Measured
    plain_seconds: float
    planned_seconds: float
    bits: list[str]
    """What differs between the plain and the planned step; nothing if all bits are the same."""
    versions: dict[str, str] = field(default_factory=dict)
    margins: dict[str, int] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """One line for each quantity: predicted, then measured."""
        was = self.predicted
        found = [f"planned for {self.planned_for}, measured on {self.device} ({self.kind})"]
        for name in ("live", "allocated", "reserved"):
            found.append(_line(name, was.get(name), getattr(self.planned, name)))
        # Eager's Python holds some values for longer than a captured step does.
        found.append(_line("live without a plan", was.get("plain_live"), self.plain.live))
        overhead = was["time"] / was["plain_time"] - 1 if was.get("plain_time") else 0.0
        measured = self.planned_seconds / self.plain_seconds - 1 if self.plain_seconds else 0.0
        found.append(
            f"time: +{100 * overhead:.1f} % predicted, {100 * measured:+.1f} % measured "
            f"({self.plain_seconds * 1e3:.1f} → {self.planned_seconds * 1e3:.1f} ms)"
        )
        found.append("bits: " + ("; ".join(self.bits) if self.bits else "all the same"))
        return found

    def write(self, path: str | Path) -> Path:
        """Writes `rekindle.record/1`."""
        path = Path(path)
        try:
            path.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n")
        except OSError as error:
            raise InvalidInput(f"the record cannot be written: {error}") from error
        return path


def _line(name: str, predicted: int | None, measured: int | None) -> str:
    if predicted is None and measured is None:
        return f"{name}: neither predicted nor measured here"
    if predicted is None:
        return f"{name}: not predicted, {measured} bytes measured"
    if measured is None:
        return f"{name}: {predicted} bytes predicted, not measured on this device"
    difference = measured - predicted
    verdict = "equal" if not difference else f"{difference:+d} bytes"
    return f"{name}: {predicted} bytes predicted, {measured} measured ({verdict})"


def _processor() -> str:
    """The processor's name, where the system tells it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def meter_here(kind: str | None = None) -> Meter:
    """The meter of the device that is here: a GPU if there is one."""
    wanted = kind or ("cuda" if torch.cuda.is_available() else "cpu")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InvalidInput("there is no GPU here that PyTorch can use: verify with --device cpu")
    return GpuMeter() if wanted == "cuda" else HostMeter()


def verify(plan: str | Path, script: str | Path, meter: Meter | None = None) -> Record:
    """Runs the step of a script plain and by plan, and compares."""
    saved = SavedStep.read(plan)
    return compare(saved, plan, load(script), meter or meter_here())


def load(script: str | Path) -> ModuleType:
    """The script as a module; it must say how the model and a batch are made."""
    spec = importlib.util.spec_from_file_location("train_step", script)
    if spec is None or spec.loader is None or not Path(script).exists():
        raise InvalidInput(f"{script} is no Python file")
    module = importlib.util.module_from_spec(spec)
    with _of_the_script(f"{script} does not run"):
        spec.loader.exec_module(module)
    for name in ("make_model", "make_batch"):
        if not callable(getattr(module, name, None)):
            raise InvalidInput(f"{script} has no function {name}()")
    return module


@contextlib.contextmanager
def _of_the_script(what: str) -> Iterator[None]:
    """Errors of the user's own code, with where they are from."""
    try:
        yield
    except RekindleError:
        raise
    except Exception as error:
        raise InvalidInput(f"{what}: {type(error).__name__}: {error}") from error


def compare(saved: SavedStep, plan: str | Path, script: ModuleType, meter: Meter) -> Record:
    """The record of a step."""
    if saved.is_for_gpu != (meter.kind == "cuda"):
        raise InvalidInput(
            f"{plan} is a plan for {saved.device}, and this would run on {meter.name} "
            f"({meter.kind}): verify it there, or plan for the device that is here"
        )
    dtype, lower = dtype_of(saved.dtype), dtype_of(saved.autocast)

    def there_is(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(meter.kind, dtype if tensor.is_floating_point() else None)

    with _of_the_script("make_model(), make_batch() or make_optimizer() of the script fails"):
        model = script.make_model().to(meter.kind, dtype)
        batch = pytree.tree_map_only(torch.Tensor, there_is, script.make_batch())
        make_optimizer = getattr(script, "make_optimizer", None)
        optimizer = make_optimizer(model) if make_optimizer is not None else None
    args, kwargs = arguments_of(batch)

    def loss_of(module: torch.nn.Module) -> torch.Tensor:
        with torch.autocast(meter.kind, lower, enabled=lower is not None):
            return _loss(module(*args, **kwargs))

    with _of_the_script("the step that the script makes fails without a plan"):
        loss_of(model)
    start, draws = _copy(model.state_dict()), GeneratorStates()
    if optimizer is not None:
        # Its state is there in every step but the first.
        loss_of(model).backward()
        optimizer.step()
    kept = _tensors(dict(optimizer.state)) if optimizer is not None else []
    there = [*model.parameters(), *model.buffers(), *_tensors((args, kwargs)), *kept]

    def run(module: torch.nn.Module) -> tuple[Measured, float, dict[str, torch.Tensor]]:
        def step() -> None:
            results.append(loss_of(module))
            results[-1].backward()

        # The first step warms up, the second is measured, and the rest are timed.
        results: list[torch.Tensor] = []
        _put_back(model, start, draws)
        step()
        _put_back(model, start, draws)
        measured = meter.measure(step, there)
        numbers = {"loss": results[-1].detach().clone()}
        numbers |= {
            f"gradient of {name}": p.grad.clone()
            for name, p in model.named_parameters()
            if p.grad is not None
        }
        numbers |= {f"buffer {name}": b.clone() for name, b in model.named_buffers()}
        seconds = _median_seconds(step, results, lambda: _put_back(model, start, draws))
        return measured, seconds, numbers

    def _median_seconds(
        step: Callable[[], None], results: list[torch.Tensor], again: Callable[[], None]
    ) -> float:
        found = []
        for _ in range(RUNS):
            again()
            results.clear()
            meter.wait()
            begin = time.perf_counter()
            step()
            meter.wait()
            found.append(time.perf_counter() - begin)
        return statistics.median(found)

    plain, plain_seconds, expected = run(model)
    planned_module = compile(model, plan=plan, optimizer=optimizer)
    planned, planned_seconds, found = run(planned_module)
    assert session_of(planned_module).planned, "the step ran by its plan"
    margins = {} if planned.outside is None else {CONTEXT: planned.outside}
    return Record(
        saved.device,
        meter.name,
        meter.kind,
        saved.predicted,
        plain,
        planned,
        plain_seconds,
        planned_seconds,
        [name for name in expected if differ(expected[name], found.get(name))],
        {
            "rekindle": _native.__version__,
            "torch": torch.__version__,
            "planned with torch": saved.torch_version,
            "python": platform.python_version(),
            "system": platform.platform(),
            "cuda": str(torch.version.cuda),
        },
        margins,
    )


def _copy(state: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.detach().clone() if isinstance(value, torch.Tensor) else value
        for name, value in state.items()
    }


def _put_back(model: torch.nn.Module, state: dict[str, Any], draws: GeneratorStates) -> None:
    model.load_state_dict(state)
    model.zero_grad(set_to_none=True)
    draws.put_back()


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _loss(result: Any) -> torch.Tensor:
    """The value without dimensions that a model returns."""
    loss = getattr(result, "loss", None)
    candidates = [loss] if isinstance(loss, torch.Tensor) else _tensors(result)
    for value in candidates:
        if not value.dim() and value.requires_grad:
            return value
    raise InvalidInput("the model returns no loss: a value without dimensions that has a gradient")
