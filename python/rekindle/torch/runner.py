"""A call of a planned module: from its arguments to the compiled function that runs it.

The plan is made at the first call with inputs of a shape; each further shape has a plan of its own.
For each there is a function of its own that `torch.compile` compiles, and that is all that knows
it: when the plans are too many, those that have not been used for longest are dropped with their
functions.

Without gradients the module runs as it is: without `torch.no_grad()`, too, if nothing that goes
into the call needs a gradient.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from rekindle.errors import (
    OverBudget,
    RekindleError,
    UnknownSize,
    Unplanned,
    UnplannedPart,
    WrongInput,
)
from rekindle.torch.eager_check import EagerCheck
from rekindle.torch.eager_route import MOST_CHANGES, Route
from rekindle.torch.halves import Halves
from rekindle.torch.held import gradient_bytes, resident_bytes, storage_bytes
from rekindle.torch.interfaces import (
    BackendCompilerFailed,
    CaptureFailed,
    GuardOnDataDependentSymNode,
    TorchRuntimeError,
    Unsupported,
    UserError,
    dynamo_config,
    has_backward_hook,
    has_captured_nothing,
    pytree,
    without_fakes_log,
    without_modes,
)
from rekindle.torch.preparation import prepare, registers_hooks
from rekindle.torch.session import Session

MOST_SHAPES = 64
"""Shapes whose plans are kept, and plans of each: what is compiled takes memory."""


class Compiled:
    """A module, compiled for arguments of some shapes."""

    def __init__(
        self,
        module: torch.nn.Module,
        function: Callable[[], Callable[..., Any]],
        session: Session,
        *,
        is_whole: bool,
    ) -> None:
        self._module, self._function, self._session = module, function, session
        self._preparations = 0
        self.route = Route()
        self.is_whole = is_whole
        """Whether the step is one graph, as far as is known."""
        self.function = self._compile()
        self.captures: list[Halves] = []
        """The graphs that were captured."""
        self.end = ""
        """Why the step is not one graph."""

    @property
    def numbers(self) -> set[int]:
        """All that these graphs are known by."""
        return {number for half in self.captures for number in half.numbers.values()}

    def _compile(self) -> Callable[..., Any]:
        backend = self._session.backend()
        return torch.compile(
            self._function(), backend=backend, dynamic=False, fullgraph=self.is_whole
        )

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Lets the module register its hooks, at most as often as a route is changed."""
        self._preparations += 1
        return self._preparations <= MOST_CHANGES and prepare(
            self._module, self._function(), args, kwargs
        )

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module, on the way through it on which it is one graph if there is one."""
        while True:
            try:
                with self.route.taken(is_whole=self.is_whole):
                    return self.function(*args, **kwargs)
            except (Unsupported, UserError) as end:
                if not self.is_whole:
                    raise
                # Nothing has run yet: a whole graph is captured before it runs.
                if registers_hooks(str(end)) and self._prepare(args, kwargs):
                    self.function = self._compile()
                    continue
                self.is_whole, self.end = self.route.change(str(end)), str(end)
            except (BackendCompilerFailed, GuardOnDataDependentSymNode) as failure:
                cause = cause_of(failure)
                if not (self.is_whole and depends_on_values(cause)):
                    raise
                # A whole graph has sizes of all kinds; one that may end, ends before these.
                self.is_whole, self.end = False, str(cause)
            self.function = self._compile()


def cause_of(failure: Exception) -> Exception:
    """What a backend has raised, or what was raised before it was asked."""
    if isinstance(failure, BackendCompilerFailed):
        return failure.inner_exception
    return failure


def depends_on_values(cause: Exception) -> bool:
    """Whether a graph could not be made because a size in it depends on values."""
    return isinstance(cause, (UnknownSize, GuardOnDataDependentSymNode))


def _function_of_its_own(
    module: torch.nn.Module, replaced: Callable[..., Any] | None
) -> Callable[..., Any]:
    """A function that calls the module's forward, or what is in its place. What is compiled is kept
    with the code of a function, so it goes when this one goes.
    """

    def planned_step(*args: Any, **kwargs: Any) -> Any:
        return (module.forward if replaced is None else replaced)(*args, **kwargs)

    planned_step.__code__ = planned_step.__code__.replace()
    return planned_step


class Runner:
    """The plans of one module, and the functions that run them."""

    def __init__(self, module: torch.nn.Module, session: Session) -> None:
        self.module = module
        self.session = session
        self.replaced: Callable[..., Any] | None = None
        """What others have put in place of the planned module's forward."""
        self.is_running = False
        """Whether a call runs: what it calls is not planned on its own."""
        self.compiled: OrderedDict[tuple[Hashable, ...], Compiled] = OrderedDict()
        """For each number of bytes of gradients that are found and shapes of arguments; the last
        used at the end.
        """
        self.is_parallel = isinstance(module, DistributedDataParallel)
        session.attach(
            self._resident,
            is_split=self.is_parallel or is_sharded(module),
            parameters=module.parameters,
        )

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the module; plans first if there is no plan for these shapes."""
        leaves = pytree.tree_leaves((args, kwargs))
        values = [*self.module.parameters(), *leaves]
        if not (torch.is_grad_enabled() and any(_needs_gradient(value) for value in values)):
            with self._running():
                return (self.replaced or self.module.forward)(*args, **kwargs)
        session = self.session
        if session.plan_together() or session.autocast.is_to_be_captured_anew():
            self.compiled.clear()
        waiting = session.begin(gradient_bytes(values))
        session.call.stand_ins.arguments.update(map(id, leaves))
        if waiting:
            warnings.warn(
                f"an earlier call of this model waits for its backward and holds {waiting} bytes, "
                "which the budget of this step does not count: call backward after each forward, "
                "or let one module compute both",
                OverBudget,
                stacklevel=2,
            )
        is_alone = not (self.is_parallel or is_sharded(self.module))
        check = EagerCheck(self.module) if session.check and is_alone else None
        compiled = self._compiled_for(tuple(map(_described, leaves)))
        if check is not None:
            session.call.before_capture = check.keep_buffers
            if not compiled.is_whole:  # What is captured may come after what has run.
                check.keep_buffers()
        result = self._call(compiled, args, kwargs)
        compiled.captures += session.call.captured
        session.end(result)
        self._complain(compiled)
        session.autocast.watch(result)
        session.told_compiled.update(compiled.route.told_compiled())
        if check is not None and session.call.captured:
            check.compare(args, kwargs, result)
        return result

    def replace(self, forward: Callable[..., Any] | None) -> None:
        """Puts something in place of the forward, or the forward back."""
        self.replaced = forward
        self._drop(list(self.compiled))

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        before, self.is_running = self.is_running, True
        try:
            yield
        finally:
            self.is_running = before

    def _compiled_for(self, kind: tuple[Hashable, ...]) -> Compiled:
        """The compiled module for a kind of calls. Old ones make room for it."""
        key, session = (self.session.call.gradients, *kind), self.session
        found = self.compiled.pop(key, None)
        alike = [known for (_, *other), known in self.compiled.items() if other == [*kind]]
        known = alike if found is None else [found]
        found = next((known for known in known if session.adapt(known.captures)), None)
        if found is None or len(found.numbers) >= MOST_SHAPES:
            is_whole = not (self.is_parallel or is_sharded(self.module))
            found = Compiled(self.module, self._function, session, is_whole=is_whole)
        self.compiled[key] = found
        self._drop(list(self.compiled)[:-MOST_SHAPES])
        return found

    def _function(self) -> Callable[..., Any]:
        # What runs a module in parallel is not to be looked into.
        if self.is_parallel and self.replaced is None:
            function: Callable[..., Any] = self.module.forward
            return function
        return _function_of_its_own(self.module, self.replaced)

    def _drop(self, keys: list[tuple[Hashable, ...]]) -> None:
        """Drops some compiled functions, and what is known of the graphs that only they run."""
        dropped = [self.compiled.pop(key).numbers for key in keys]
        used = [compiled.numbers for compiled in self.compiled.values()]
        self.session.forget(set().union(*dropped).difference(*used))

    def _call(self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            # Without its guards on hooks, Dynamo would not see one that is added or taken away
            # after the first call; and plans are dropped here, before Dynamo gives up.
            with (
                dynamo_config.patch(
                    recompile_limit=MANY,
                    accumulated_recompile_limit=MANY,
                    skip_nnmodule_hook_guards=False,
                ),
                without_fakes_log(),
                self._running(),
            ):
                return compiled.run(*args, **kwargs)
        except BackendCompilerFailed as failure:
            if isinstance(cause_of(failure), RekindleError):
                raise cause_of(failure) from None
            raise
        except CaptureFailed as failure:
            raise RekindleError(
                f"the capture of the step failed in a part of Rekindle's own ({failure}); please "
                "report this"
            ) from failure.__cause__
        except TorchRuntimeError as failure:
            raise _wrong_input(failure, args, kwargs) from None
        except RuntimeError as failure:
            if has_captured_nothing(failure):
                raise self._unplanned(compiled) from None
            raise

    def _complain(self, compiled: Compiled) -> None:
        """Says what of the call was not planned."""
        call = self.session.call
        if call.ran_without_gradients and not call.runs:
            return
        if not call.runs:
            raise self._unplanned(compiled)
        if call.breaks and not is_sharded(self.module):
            self.session.ends.update(why.partition("\n")[0] for why in call.breaks)
            what = (
                f"the step is {len(call.runs)} graphs: each is planned, but what runs between them"
                if len(call.runs) > 1
                else "a part of the step is planned, but what runs beside it"
            )
            warnings.warn(
                f"{what} is not, and its memory is not counted. The graphs end here: "
                + "; ".join(sorted(set(call.breaks))),
                UnplannedPart,
                stacklevel=2,
            )

    def _unplanned(self, compiled: Compiled) -> Unplanned:
        return Unplanned("no part of this call ran by a plan: " + self._why_unplanned(compiled.end))

    def _why_unplanned(self, end: str) -> str:
        parts = self.module.named_modules()
        hooked = [name for name, part in parts if has_backward_hook(part)]
        if hooked:
            return (
                f"{hooked[0] or 'the module'} has a backward hook (register_full_backward_hook), "
                "with which torch.compile leaves the call to eager; remove it, and hook a tensor "
                "(Tensor.register_hook) or a parameter instead"
            )
        if end:
            return (
                f"the graph would end at {reason_of(end)}, and where that is inside a loop "
                "torch.compile leaves all of the loop to eager; move it out of the loop, or make "
                "what the loop repeats a module of its own"
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


MANY = 1 << 30
"""More compiled graphs than there will be."""


def is_sharded(module: torch.nn.Module) -> bool:
    """Whether FSDP2 gathers parameters around parts of the module, which ends graphs there."""
    return any(hasattr(part, "set_requires_gradient_sync") for part in module.modules())


def _needs_gradient(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _described(value: object) -> Hashable:
    """What of an argument tells one kind of calls from another. Dynamo sees to the rest."""
    return (value.shape, value.dtype) if isinstance(value, torch.Tensor) else None


def _wrong_input(
    failure: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> RekindleError:
    """The model does not run with such arguments, in eager neither. The compiler's trace says it
    somewhere in the middle.
    """
    given = [str(at) for at in range(len(args))], list(args)
    names, values = given[0] + list(kwargs), given[1] + list(kwargs.values())
    shapes = [
        f"{name} {list(value.shape)}"
        for name, value in zip(names, values, strict=True)
        if isinstance(value, torch.Tensor)
    ]
    return WrongInput(
        f"the module does not run with these arguments ({', '.join(shapes)}): "
        + reason_of(str(failure))
    )


def reason_of(text: str) -> str:
    """What an operation says, and where it was called, out of the compiler's trace."""
    said = text.split("got ", 1)[-1].strip().splitlines()[0]
    places = [line.strip() for line in text.splitlines() if line.strip().startswith("File ")]
    return f"{said} ({places[-1]})" if places else said
