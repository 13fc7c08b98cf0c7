"""`remat.compile`: a module that trains in a budget, and `remat.backend` for `torch.compile`.

A `PlannedModule` holds the user's module under the name `module` and gives it out as it is: the names of parameters and the keys
of state dicts do not change, attributes that it does not have are the module's. The plan is made at the first call with
inputs of a shape; each further shape has a plan of its own.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from remat.capture import MOST_PLANS, Session
from remat.environment import check_torch
from remat.errors import InvalidInput, NoGradients, OverBudget, RematError, Unplanned, UnplannedPart, UnsupportedOption
from remat.inductor import require_compiler
from remat.outstanding import gradient_bytes, local
from remat.planning import Budget, Settings, Strategy
from remat.timing import Profile

PREFIX = "module."
"""What a `PlannedModule` would add to its module's names."""

_sessions: weakref.WeakKeyDictionary[Any, Session] = weakref.WeakKeyDictionary()


def compile(
    module: torch.nn.Module,
    budget: Budget,
    *,
    profile: Profile = "measure",
    strategy: Strategy = "search",
    offload: bool = False,
    check: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    inductor: bool = False,
    effort: int | None = None,
    time_limit: float | None = None,
) -> PlannedModule:
    """A module that trains like `module`, bit for bit, and whose step needs no more than `budget` at its peak.

    `budget`: bytes, text (`"8GiB"`, `"60%"`), or a share of the plain step's peak (`0.6`). It counts parameters, buffers, inputs,
    gradients, activations and transients of forward and backward; with `optimizer=` that optimizer's state too. What is computed
    outside the module is not seen: let the module return its loss. Gradients that are there when a step begins count as well, and such
    a step has a plan of its own: to leave the room to activations, clear them first (`zero_grad(set_to_none=True)`).
    `profile`: `"measure"` runs every operation alone on the device; `"roofline"` uses a cost model.
    `strategy`: `"search"`, `"mutwo"` or `"sqrt"`. `effort` (0 to 10) and `time_limit` (seconds) bound the planning.
    `check`: the first step of each plan also runs without it, and every number must be the same, bit for bit. That step needs
    the memory of both.
    `inductor`: Inductor compiles the plan's two modules. What is saved between them is what the plan saves, and dropout draws what it
    draws in eager; but fused operations round differently, so numbers are close to eager's and not equal, and inside each module Inductor
    fuses and reorders, so the predicted peak is that of the schedule which it was given, and the budget is not promised. The peak is
    measured in the first step of each plan, by what the allocator hands out, and `report` tells it; above the budget there is an
    `OverBudget` warning.
    `offload` is refused: plans keep or recompute.
    """
    check_torch()
    if offload:
        raise UnsupportedOption(
            "offload=True: plans recompute what does not fit, they do not move it to host memory; leave it out"
        )
    if inductor:
        require_compiler(part.device for part in module.parameters())
    return PlannedModule(module, _session(Settings(budget, profile, strategy, effort, time_limit), optimizer, check, inductor))


def backend(
    budget: Budget,
    *,
    profile: Profile = "measure",
    strategy: Strategy = "search",
    check: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    inductor: bool = False,
    effort: int | None = None,
    time_limit: float | None = None,
) -> Callable[..., Any]:
    """A backend for `torch.compile(model, backend=remat.backend(budget="8GiB"), dynamic=False)`. The arguments are those of `compile`.

    A backend sees graphs and not steps: it serves one model whose step is one graph. A second graph in a step is a `SplitStep` error, and
    gradients of an earlier step that do not fit are a `LiveGradients` error; `compile` plans for both.
    """
    check_torch()
    session = _session(Settings(budget, profile, strategy, effort, time_limit), optimizer, check, inductor)
    function = session.backend()
    _sessions[function] = session
    return function


def _session(settings: Settings, optimizer: torch.optim.Optimizer | None, check: bool, inductor: bool) -> Session:
    if check and inductor:
        raise InvalidInput("check=True compares bits, and what Inductor compiles rounds differently: leave one of the two out")
    return Session(settings, optimizer=optimizer, check=check, inductor=inductor)


def session_of(model: Any) -> Session:
    """The session of a planned module, of one inside it, or of a backend."""
    if model in _sessions:
        return _sessions[model]
    if isinstance(model, torch.nn.Module):
        for part in model.modules():
            if part in _sessions:
                return _sessions[part]
    raise RematError("this model was not compiled by remat.compile, and neither was a part of it")


class PlannedModule(torch.nn.Module):
    """A module that runs by plan. See `compile`."""

    module: torch.nn.Module

    def __init__(self, module: torch.nn.Module, session: Session) -> None:
        super().__init__()
        self.module = module
        self.train(module.training)
        _sessions[self] = session
        session.resident = self._resident
        session.collects = True
        session.is_split = isinstance(module, DistributedDataParallel) or is_sharded(module)
        self._compiled: dict[int, Callable[..., Any]] = {}
        self.register_state_dict_post_hook(_strip_prefix)
        self.register_load_state_dict_pre_hook(_add_prefix)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module; plans first if there is no plan for these shapes."""
        if not torch.is_grad_enabled():
            return self._call(*args, **kwargs)
        session = _sessions[self]
        if session.is_undecided:
            session.plan_together()
            self._compiled.clear()
        waiting = session.begin(gradient_bytes([*self.module.parameters(), *pytree.tree_leaves((args, kwargs))]))
        if waiting:
            warnings.warn(
                f"an earlier call of this model waits for its backward and holds {waiting} bytes, which the budget of this step does not "
                "count: call backward after each forward, or let one module compute both",
                OverBudget,
                stacklevel=3,
            )
        result = self._call(*args, **kwargs)
        session.end()
        self._complain(session)
        return result

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        try:
            # Without its guards on hooks, Dynamo would not see one that is added or taken away after the first call.
            with torch._dynamo.config.patch(recompile_limit=2 * MOST_PLANS, skip_nnmodule_hook_guards=False):
                return self._compiled_for(_sessions[self].gradients)(*args, **kwargs)
        except BackendCompilerFailed as failure:
            if isinstance(failure.inner_exception, RematError):
                raise failure.inner_exception from None
            raise

    def _compiled_for(self, gradients: int) -> Callable[..., Any]:
        """The compiled module for steps that find gradients of so many bytes."""
        if gradients not in self._compiled:
            backend = _sessions[self].backend()
            self._compiled[gradients] = torch.compile(self.module, backend=backend, dynamic=False)
        return self._compiled[gradients]

    def _complain(self, session: Session) -> None:
        """Says what of the call was not planned."""
        if not session.runs and session.ran_without_gradients:
            raise NoGradients(
                "nothing in this call needs a gradient, so there is no backward to plan for: let parameters or inputs require gradients, "
                "or call the module under torch.no_grad()"
            )
        if not session.runs:
            raise Unplanned("no part of this call ran by a plan: is torch.compile disabled (TORCHDYNAMO_DISABLE, torch.compiler.disable)?")
        if session.breaks and not is_sharded(self.module):
            warnings.warn(
                f"the step is {len(session.runs)} graphs: each is planned, but what runs between them is not, and its memory is not counted. "
                "The graphs end here: " + "; ".join(sorted(set(session.breaks))),
                UnplannedPart,
                stacklevel=3,
            )

    def _resident(self) -> tuple[int, int]:
        parameters = list(self.module.parameters())
        trained = [part for part in parameters if part.requires_grad]
        # A graph is compiled in a mode whose tensors have no contents; these have.
        with _disable_current_modes():
            return _bytes([*parameters, *self.module.buffers()]), _bytes(trained)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The module's parameters, under the names that they have in it."""
        return ((name.replace(PREFIX, "", 1), part) for name, part in super().named_parameters(*args, **kwargs))

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """The module's buffers, under the names that they have in it."""
        return ((name.replace(PREFIX, "", 1), part) for name, part in super().named_buffers(*args, **kwargs))


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    storages = [local(tensor).untyped_storage() for tensor in tensors]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def is_sharded(module: torch.nn.Module) -> bool:
    """Whether FSDP2 gathers parameters around parts of the module, which ends graphs there."""
    return any(hasattr(part, "set_requires_gradient_sync") for part in module.modules())


def _strip_prefix(_module: Any, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    for key in [key for key in state if key.startswith(prefix + PREFIX)]:
        state[prefix + key[len(prefix + PREFIX) :]] = state.pop(key)


def _add_prefix(_module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for key in [key for key in state if key.startswith(prefix)]:
        state[prefix + PREFIX + key[len(prefix) :]] = state.pop(key)
