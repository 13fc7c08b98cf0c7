"""`rekindle.compile`: a module that trains in a budget, and `rekindle.backend` for `torch.compile`.

A planned module is the user's module in everything but its forward. Its class is made from the
module's own and has the same name, and both objects have one and the same dictionary: parameters,
buffers, parts, hooks, names, state dicts, attributes and methods are the module's, to read, to set
and to delete. `isinstance`, the signature of `forward` and what a library looks up in the class are
the module's too, so whatever takes the module takes the planned one.

Its forward goes to a `Runner`. Whoever replaces the forward, as libraries for mixed precision do,
replaces what is planned: the new one is run by plan, and the forward that it found, inside it, is
the module's.

A copy is a planned module of a copy, with the same settings and no plans yet.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rekindle.errors import InvalidInput, RekindleError, UnsupportedOption
from rekindle.settings import Budget, Differentiated, Settings, TimeSource
from rekindle.torch.environment import check_module, check_optimizer, check_torch
from rekindle.torch.inductor import require_compiler
from rekindle.torch.interfaces import handed_on, is_to_be_whole
from rekindle.torch.runner import Runner
from rekindle.torch.session import Session
from rekindle.torch.stores import Offload, check_devices, options_of
from rekindle.torch.target.saved import SavedStep

_sessions: weakref.WeakKeyDictionary[Any, Session] = weakref.WeakKeyDictionary()
"""Those of backends."""


def compile(
    module: torch.nn.Module,
    budget: Budget | None = None,
    *,
    plan: str | Path | None = None,
    profile: TimeSource = "measure",
    strategy: str = "search",
    offload: Offload = None,
    offload_limit: int | str | None = None,
    store: str | None = None,
    check: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    inductor: bool = False,
    effort: int | None = None,
    time_limit: float | None = None,
    differentiated: Differentiated = "loss",
    wait: bool = False,
) -> PlannedModule:
    """A module that trains like `module`, bit for bit, and whose step needs no more than `budget`
    at its peak.

    `budget`: bytes, text (`"8GiB"`, `"60%"`), or a share of the plain step's peak (`0.6`), which is
    that of the largest step so far. It counts parameters, buffers, inputs, gradients, activations
    and transients of forward and backward; with `optimizer=` that optimizer's state too. What is
    computed outside the module is not seen: let the module return its loss. Gradients that are
    there when a step begins count as well, and such a step has a plan of its own: to leave the room
    to activations, clear them first (`zero_grad(set_to_none=True)`). `profile`: `"measure"` runs
    every operation alone on the device; `"roofline"` uses a cost model. `strategy`: one of
    `rekindle.strategies()`. `effort` (0 to 10) and `time_limit` (seconds) bound the planning.
    `differentiated`: of what the module returns beside a loss (values without dimensions), nothing
    is differentiated, so that logits cost no gradient; who does so all the same gets a
    `NotDifferentiated` error, and says `"all"`. `wait`: the first step waits for the best plan that
    the planner finds, where it would otherwise run by one that is found at once and make room for
    the better one between two steps. `check`: the first step of each plan also runs
    without it, and every number must be the same, bit for bit. That step needs the memory of both.
    `inductor`: Inductor compiles the plan's two modules. What is saved between them is what the
    plan saves, and dropout draws what it draws in eager; but fused operations round differently, so
    numbers are close to eager's and not equal. The budget holds for what Inductor makes of the
    modules, which is known before they run: plans are handed to it until one fits. The peak is also
    measured in the first step of each plan, by what the allocator hands out, and `report` tells it.

    `offload`: plans also move activations out of memory and back while operations run, to a file in
    this folder (models on the CPU), or, with `"host"`, to pinned memory (models on a GPU). It may
    hold `offload_limit`. How fast it is is measured before the first plan, or said by `store`
    (`"out=2GB/s,in=2GB/s,latency=100us"`).

    `plan`: a file that `rekindle.torch.trace(…).plan(…).save` has written, here or elsewhere. It
    takes the place of a budget, and nothing is timed or planned. Where the step that is captured is
    not the one that was planned, an `AnotherGraph` error says in what they differ.

    The module that was given is not changed, and shares everything with the planned one. Each call
    has a budget of its own: of a model with several planned parts, none counts what the others
    hold. Copies (`copy.deepcopy`, `pickle`, `torch.save`) have the same settings and make their own
    plans; `optimizer` is not copied: a deep copy counts the state of the same one, and what was
    pickled as many bytes as that state has.
    """
    check_torch()
    check_module(module)
    _refuse_planned(module)
    if inductor and offload is not None:
        raise UnsupportedOption(
            "Inductor fuses and reorders what it compiles, and copies to a store must stay where "
            "the plan has them: leave offload or inductor=True out"
        )
    if inductor:
        require_compiler(part.device for part in module.parameters())
    if (budget is None) is (plan is None):
        raise InvalidInput("give a budget, or a plan that was made for one")
    given = SavedStep.read(plan) if plan is not None else None
    if given is not None and given.plan.store is not None and offload is None:
        raise InvalidInput('the plan moves tensors: say where to, such as offload="host"')
    allowed = given.plan.budget if given is not None else budget
    assert allowed is not None
    settings = Settings(
        allowed,
        profile,
        strategy,
        effort,
        time_limit,
        differentiated,
        **options_of(offload, offload_limit, store),
    )
    check_devices(settings, (part.device for part in module.parameters()))
    session = _session(settings, optimizer, check, inductor)
    session.wait = wait
    session.given = given
    return _planned(module, session)


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
    differentiated: Differentiated = "loss",
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
    settings = Settings(budget, profile, strategy, effort, time_limit, differentiated)
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
    if isinstance(model, types.FunctionType) and model in _sessions:
        return {"": _sessions[model]}
    parts = model.named_modules() if isinstance(model, torch.nn.Module) else ()
    found = {name: runner_of(part).session for name, part in parts if is_planned(part)}
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
    """A module that runs by plan. See `compile`.

    Limits: it has no other names of its own than these, so that none hides one of the module's.
    """

    __slots__ = ("_rekindle",)
    _rekindle: Runner
    _rekindle_class: type[torch.nn.Module]
    """The module's own class."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Whoever makes a new object of a planned module's class wants one of the module's own."""
        return cls._rekindle_class(*args, **kwargs)

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        runner = runner_of(self)
        made = _planned, (runner.module, runner.session.again())
        return made if runner.replaced is None else (*made, runner.replaced)

    def __setstate__(self, replaced: Any) -> None:
        runner_of(self).replace(replaced)

    def __deepcopy__(self, memo: dict[int, Any]) -> PlannedModule:
        runner = runner_of(self)
        planned = _planned(copy.deepcopy(runner.module, memo), runner.session.again())
        memo[id(self)] = planned
        runner_of(planned).replace(copy.deepcopy(runner.replaced, memo))
        return planned


def is_planned(module: torch.nn.Module) -> bool:
    """Whether it is a planned module."""
    return isinstance(module, PlannedModule)


def runner_of(planned: torch.nn.Module) -> Runner:
    """Who runs a planned module."""
    assert isinstance(planned, PlannedModule)
    return planned._rekindle


def _planned(module: torch.nn.Module, session: Session) -> PlannedModule:
    """The planned module of a module, by a session that has planned nothing yet."""
    planned = object.__new__(_class_of(type(module)))
    # The module's class may have its own way to set attributes; these are not the module's.
    object.__setattr__(planned, "__dict__", module.__dict__)
    object.__setattr__(planned, "_rekindle", Runner(module, session))
    return planned


_classes: dict[type[torch.nn.Module], type[PlannedModule]] = {}
"""The class of planned modules for each class of modules."""


def _class_of(plain: type[torch.nn.Module]) -> type[PlannedModule]:
    if plain not in _classes:
        names = {
            "__slots__": (),
            "__module__": plain.__module__,
            "__qualname__": plain.__qualname__,
            "__doc__": plain.__doc__,
            "_rekindle_class": plain,
            "forward": _Forward(plain),
        }
        _classes[plain] = types.new_class(
            plain.__name__, (PlannedModule, plain), {}, lambda body: body.update(names)
        )
    return _classes[plain]


class _Forward:
    """The forward of a class of planned modules, with the signature of the module's own.

    It is found before what the module's dictionary has under the name. One that is set is the
    planned module's alone: the module runs as it did.
    """

    def __init__(self, plain: type[torch.nn.Module]) -> None:
        def forward(self: PlannedModule, *args: Any, **kwargs: Any) -> Any:
            runner = self._rekindle
            if runner.is_running:
                return runner.module.forward(*args, **kwargs)
            return _run_uncompiled(runner, args, kwargs)

        forward.__doc__ = plain.forward.__doc__
        forward.__module__ = plain.__module__
        forward.__qualname__ = f"{plain.__qualname__}.forward"
        # Not `__wrapped__`: those who look for what they have wrapped shall stop here.
        with contextlib.suppress(TypeError, ValueError):
            forward.__signature__ = inspect.signature(plain.forward)  # type: ignore[attr-defined]
        self.forward = forward

    def __get__(self, planned: PlannedModule | None, _owner: Any = None) -> Any:
        if planned is None:
            return self.forward
        if not planned._rekindle.is_running:
            _refuse_whole_graph()
        replaced = planned._rekindle.replaced
        return types.MethodType(
            self.forward if replaced is None else _in_place_of_forward(replaced), planned
        )

    def __set__(self, planned: PlannedModule, forward: Any) -> None:
        is_own = getattr(forward, "__func__", forward) is self.forward
        planned._rekindle.replace(None if is_own else forward)

    def __delete__(self, planned: PlannedModule) -> None:
        planned._rekindle.replace(None)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _refuse_whole_graph() -> None:
    """Dynamo runs this while it captures what calls a planned module. Otherwise nothing happens."""
    if is_to_be_whole():
        raise handed_on(
            InvalidInput(
                "torch.compile(…, fullgraph=True) around a planned module: Rekindle compiles it "
                "itself, and an outer graph ends there; leave fullgraph=True out, or call the "
                "planned module as it is, which runs the whole step by plan"
            )
        )


def _in_place_of_forward(replaced: Callable[..., Any]) -> Callable[..., Any]:
    """What has been put in place of a forward, run by plan. Inside a run it is as it is."""

    def forward(self: PlannedModule, *args: Any, **kwargs: Any) -> Any:
        runner = self._rekindle
        if runner.is_running:
            return replaced(*args, **kwargs)
        return _run_uncompiled(runner, args, kwargs)

    forward.__wrapped__ = replaced  # type: ignore[attr-defined]
    return forward


@torch.compiler.disable(reason="Rekindle compiles it")  # type: ignore[untyped-decorator]
def _run_uncompiled(runner: Runner, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return runner.run(args, kwargs)
