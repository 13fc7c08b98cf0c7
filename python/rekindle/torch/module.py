"""`rekindle.compile`: a module that trains in a budget, and `rekindle.backend` for `torch.compile`.

A `PlannedModule` holds the user's module under the name `module` and gives it out as it is: the
names of parameters and the keys of state dicts do not change; attributes that it does not have are
the module's, to read, to set and to delete. The plan is made at the first call with inputs of a
shape; each further shape has a plan of its own. Without gradients the module runs as it is.

A copy is a planned module of a copy, with the same settings and no plans yet.
"""

from __future__ import annotations

import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from rekindle.errors import (
    InvalidInput,
    NoGradients,
    OverBudget,
    RekindleError,
    Unplanned,
    UnplannedPart,
    UnsupportedOption,
)
from rekindle.settings import Budget, Settings, TimeSource
from rekindle.torch.eager_check import EagerCheck
from rekindle.torch.environment import check_module, check_optimizer, check_torch
from rekindle.torch.held import gradient_bytes, resident_bytes, storage_bytes
from rekindle.torch.inductor import require_compiler
from rekindle.torch.interfaces import (
    METADATA,
    BackendCompilerFailed,
    dynamo_config,
    has_backward_hook,
    pytree,
    without_modes,
)
from rekindle.torch.session import MOST_PLANS, Session

PREFIX = "module."
"""What a `PlannedModule` would add to its module's names."""
SESSION = "_session"
"""Under this name the session travels in the state of a copy."""

_sessions: weakref.WeakKeyDictionary[Any, Session] = weakref.WeakKeyDictionary()


def compile(
    module: torch.nn.Module,
    budget: Budget,
    *,
    profile: TimeSource = "measure",
    strategy: str = "search",
    offload: bool = False,
    check: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    inductor: bool = False,
    effort: int | None = None,
    time_limit: float | None = None,
) -> PlannedModule:
    """A module that trains like `module`, bit for bit, and whose step needs no more than `budget`
    at its peak.

    `budget`: bytes, text (`"8GiB"`, `"60%"`), or a share of the plain step's peak (`0.6`). It
    counts parameters, buffers, inputs, gradients, activations and transients of forward and
    backward; with `optimizer=` that optimizer's state too. What is computed outside the module is
    not seen: let the module return its loss. Gradients that are there when a step begins count as
    well, and such a step has a plan of its own: to leave the room to activations, clear them first
    (`zero_grad(set_to_none=True)`). `profile`: `"measure"` runs every operation alone on the
    device; `"roofline"` uses a cost model. `strategy`: one of
    `rekindle.strategies()`. `effort` (0 to 10) and `time_limit` (seconds) bound the planning.
    `check`: the first step of each plan also runs without it, and every number must be the same,
    bit for bit. That step needs the memory of both. `inductor`: Inductor compiles the plan's two
    modules. What is saved between them is what the plan saves, and dropout draws what it draws in
    eager; but fused operations round differently, so numbers are close to eager's and not equal,
    and inside each module Inductor fuses and reorders, so the predicted peak is that of the
    schedule which it was given, and the budget is not promised. The peak is measured in the first
    step of each plan, by what the allocator hands out, and `report` tells it; above the budget
    there is an `OverBudget` warning. `offload` is refused: plans keep or recompute.

    Each call has a budget of its own: of a model with several planned parts, none counts what the
    others hold. Copies (`copy.deepcopy`, `pickle`, `torch.save`) have the same settings and make
    their own plans; `optimizer` is not copied: a deep copy counts the state of the same one, and
    what was pickled as many bytes as that state has.
    """
    check_torch()
    check_module(module)
    _refuse_planned(module)
    if offload:
        raise UnsupportedOption(
            "offload=True: plans recompute what does not fit, they do not move it to host memory; "
            "leave it out"
        )
    if inductor:
        require_compiler(part.device for part in module.parameters())
    settings = Settings(budget, profile, strategy, effort, time_limit)
    return PlannedModule(module, _session(settings, optimizer, check, inductor))


def backend(
    budget: Budget,
    *,
    profile: TimeSource = "measure",
    strategy: str = "search",
    check: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    inductor: bool = False,
    effort: int | None = None,
    time_limit: float | None = None,
) -> Callable[..., Any]:
    """A backend for `torch.compile(model, backend=rekindle.backend(budget="8GiB"), dynamic=False)`.
    The arguments are those of `compile`.

    A backend sees graphs and not steps: it serves one model whose step is one graph. A second graph
    in a step is a `SplitStep` error, and gradients of an earlier step that do not fit are a
    `LiveGradients` error; `compile` plans for both. Parameters and buffers that no graph reads are
    not seen either, and not counted; `compile` counts them.

    What goes wrong while a graph is planned, such as an `InfeasibleBudget`, arrives inside
    `torch._dynamo.exc.BackendCompilerFailed`, as its `inner_exception`. `report` takes the function
    that is returned here.
    """
    check_torch()
    settings = Settings(budget, profile, strategy, effort, time_limit)
    session = _session(settings, optimizer, check, inductor)
    function = session.backend()
    _sessions[function] = session
    return function


def _session(
    settings: Settings, optimizer: torch.optim.Optimizer | None, check: bool, inductor: bool
) -> Session:
    check_optimizer(optimizer)
    if check and inductor:
        raise InvalidInput(
            "check=True compares bits, and what Inductor compiles rounds differently: leave one "
            "of the two out"
        )
    return Session(settings, optimizer=optimizer, check=check, inductor=inductor)


def _refuse_planned(module: torch.nn.Module) -> None:
    """There is no plan inside a plan."""
    for name, part in module.named_modules():
        if isinstance(part, PlannedModule):
            what = f"its part {name}" if name else "it"
            raise InvalidInput(
                f"the module is to be planned, and {what} is planned already: give "
                "rekindle.compile the module that was compiled before"
            )


def sessions_of(model: Any) -> dict[str, Session]:
    """The sessions of a planned module or a backend, or of the planned modules inside a model, by
    their names in it.
    """
    if model in _sessions:
        return {"": _sessions[model]}
    parts = model.named_modules() if isinstance(model, torch.nn.Module) else ()
    found = {name: _sessions[part] for name, part in parts if part in _sessions}
    if not found:
        raise RekindleError(
            "this model was not compiled by rekindle.compile, and neither was a part of it; "
            "where torch.compile was given rekindle.backend(…), give the function that "
            "rekindle.backend gave"
        )
    return found


def session_of(model: Any) -> Session:
    """The session of a planned module, of the one inside it, or of a backend."""
    (session,) = sessions_of(model).values()
    return session


class PlannedModule(torch.nn.Module):
    """A module that runs by plan. See `compile`."""

    module: torch.nn.Module
    _compiled: dict[int, Callable[..., Any]]
    """The compiled module, for steps that find gradients of so many bytes."""

    def __init__(self, module: torch.nn.Module, session: Session) -> None:
        super().__init__()
        self.module = module
        self.train(module.training)
        self._attach(session)
        self.register_state_dict_post_hook(_strip_prefix)
        self.register_load_state_dict_pre_hook(_add_prefix)

    def _is_parallel(self) -> bool:
        """Whether the module's backward talks to other ranks, which ends graphs."""
        return isinstance(self.module, DistributedDataParallel) or is_sharded(self.module)

    def _attach(self, session: Session) -> None:
        """Takes a session that has planned nothing yet."""
        _sessions[self] = session
        session.attach(self._resident, is_split=self._is_parallel())
        vars(self)["_compiled"] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_compiled": {}, SESSION: _sessions[self].again()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({name: value for name, value in state.items() if name != SESSION})
        self._attach(state[SESSION])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module; plans first if there is no plan for these shapes. Without gradients
        there is nothing to plan.
        """
        if not torch.is_grad_enabled():
            return self.module(*args, **kwargs)
        session = _sessions[self]
        if session.plan_together():
            self._compiled.clear()
        waiting = session.begin(
            gradient_bytes([*self.module.parameters(), *pytree.tree_leaves((args, kwargs))])
        )
        if waiting:
            warnings.warn(
                f"an earlier call of this model waits for its backward and holds {waiting} bytes, "
                "which the budget of this step does not count: call backward after each forward, "
                "or let one module compute both",
                OverBudget,
                stacklevel=3,
            )
        check = EagerCheck(self.module) if session.check and not self._is_parallel() else None
        result = self._call(*args, **kwargs)
        session.end()
        self._complain(session)
        if check is not None and session.call.captured:
            check.compare(args, kwargs, result)
        return result

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        try:
            # Without its guards on hooks, Dynamo would not see one that is added or taken away
            # after the first call.
            with dynamo_config.patch(
                recompile_limit=2 * MOST_PLANS, skip_nnmodule_hook_guards=False
            ):
                return self._compiled_for(_sessions[self].call.gradients)(*args, **kwargs)
        except BackendCompilerFailed as failure:
            if isinstance(failure.inner_exception, RekindleError):
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
        call = session.call
        if not call.runs and call.ran_without_gradients:
            raise NoGradients(
                "nothing in this call needs a gradient, so there is no backward to plan for: let "
                "parameters or inputs require gradients, or call the module under torch.no_grad()"
            )
        if not call.runs:
            raise Unplanned("no part of this call ran by a plan: " + self._why_unplanned())
        if call.breaks and not is_sharded(self.module):
            warnings.warn(
                f"the step is {len(call.runs)} graphs: each is planned, but what runs between them "
                "is not, and its memory is not counted. The graphs end here: "
                + "; ".join(sorted(set(call.breaks))),
                UnplannedPart,
                stacklevel=3,
            )

    def _why_unplanned(self) -> str:
        parts = self.module.named_modules()
        hooked = [name for name, part in parts if has_backward_hook(part)]
        if hooked:
            return (
                f"{hooked[0] or 'the module'} has a backward hook (register_full_backward_hook), "
                "with which torch.compile leaves the call to eager; remove it, and hook a tensor "
                "(Tensor.register_hook) or a parameter instead"
            )
        return (
            "is torch.compile disabled (TORCHDYNAMO_DISABLE, torch.compiler.disable), or is there "
            "a hook on a part of the model with which torch.compile leaves the call to eager?"
        )

    def _resident(self) -> tuple[int, int]:
        trained = [part for part in self.module.parameters() if part.requires_grad]
        # A graph is compiled in a mode whose tensors have no contents; these have.
        with without_modes():
            return resident_bytes(self.module), storage_bytes(trained)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not self._is_own(name):
            setattr(self.module, name, value)
            return
        super().__setattr__(name, value)
        if name == "training":
            self.module.training = value
        if name == "module" and "_compiled" in vars(self):
            self._compiled.clear()

    def __delattr__(self, name: str) -> None:
        if self._is_own(name):
            super().__delattr__(name)
        else:
            delattr(self.module, name)

    def _is_own(self, name: str) -> bool:
        """Whether an attribute is this module's and not the user's: then reading finds it here."""
        return name == "module" or name in vars(self) or hasattr(type(self), name)

    def register_parameter(self, *args: Any, **kwargs: Any) -> None:
        """Adds a parameter to the module."""
        self.module.register_parameter(*args, **kwargs)

    def register_buffer(self, *args: Any, **kwargs: Any) -> None:
        """Adds a buffer to the module."""
        self.module.register_buffer(*args, **kwargs)

    def add_module(self, *args: Any, **kwargs: Any) -> None:
        """Adds a part to the module."""
        self.module.add_module(*args, **kwargs)

    def named_parameters(
        self, *args: Any, **kwargs: Any
    ) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The module's parameters, under the names that they have in it."""
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """The module's buffers, under the names that they have in it."""
        return self.module.named_buffers(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Takes a state under the module's own names."""
        metadata = getattr(state_dict, METADATA, None)
        if metadata is not None:
            state_dict = OrderedDict(state_dict)
            # The versions of the parts, where those who load look for them.
            renamed = {(PREFIX + name).rstrip("."): about for name, about in metadata.items()}
            setattr(state_dict, METADATA, renamed)
        return super().load_state_dict(state_dict, *args, **kwargs)


def is_sharded(module: torch.nn.Module) -> bool:
    """Whether FSDP2 gathers parameters around parts of the module, which ends graphs there."""
    return any(hasattr(part, "set_requires_gradient_sync") for part in module.modules())


def _strip_prefix(_module: Any, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    _rename(state, prefix + PREFIX, prefix)
    metadata = getattr(state, METADATA, None)
    if metadata is not None:
        own = metadata.pop((prefix + PREFIX)[:-1])
        _rename(metadata, prefix + PREFIX, prefix)
        metadata[prefix[:-1]] = own


def _add_prefix(_module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    _rename(state, prefix, prefix + PREFIX)


def _rename(entries: MutableMapping[str, Any], old: str, new: str) -> None:
    """Gives names that begin with `old` the beginning `new`. All are taken out first: a new name
    may be another's old one.
    """
    names = [name for name in entries if name.startswith(old)]
    entries.update([(new + name[len(old) :], entries.pop(name)) for name in names])
