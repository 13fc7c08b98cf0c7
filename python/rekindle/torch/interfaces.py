"""Every private interface of PyTorch that Rekindle builds on. No other file of the package has one.

`NEEDED` and `NEEDED_FOR_INDUCTOR` say what is needed and where it is looked for. A PyTorch that
lacks some of it is refused when this file is loaded, with all the names: a new version that moved
something is repaired here, and nowhere else.
"""

from __future__ import annotations

import dis
import functools
import importlib
import inspect
import logging
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import fx

from rekindle.errors import UnsupportedTorch

Interface = tuple[str, str]
"""A name, and the module, class or value that has it."""

NEEDED: tuple[Interface, ...] = (
    ("aot_autograd", "torch._dynamo.backends.common"),
    ("BackendCompilerFailed", "torch._dynamo.exc"),
    ("TorchDynamoException", "torch._dynamo.exc"),
    ("TorchRuntimeError", "torch._dynamo.exc"),
    ("Unsupported", "torch._dynamo.exc"),
    ("UserError", "torch._dynamo.exc"),
    ("ignore_logging_functions", "torch._dynamo.config"),
    ("use_numpy_random_stream", "torch._dynamo.config"),
    ("_get_handlers", "torch._dynamo.variables.torch.TorchInGraphFunctionVariable"),
    ("InstructionTranslatorBase", "torch._dynamo.symbolic_convert"),
    ("tls", "torch._dynamo.symbolic_convert"),
    ("setup_or_before_with", "torch._dynamo.symbolic_convert.InstructionTranslatorBase"),
    ("install_guard", "torch._dynamo.guards"),
    ("NullContextVariable", "torch._dynamo.variables.ctx_manager"),
    ("counters", "torch._dynamo.utils"),
    ("reset", "torch._dynamo"),
    ("recompile_limit", "torch._dynamo.config"),
    ("accumulated_recompile_limit", "torch._dynamo.config"),
    ("skip_nnmodule_hook_guards", "torch._dynamo.config"),
    ("activation_memory_budget", "torch._functorch.config"),
    ("MemoryFormatMeta", "torch._functorch._aot_autograd.schemas"),
    ("PlainTensorMeta", "torch._functorch._aot_autograd.schemas"),
    ("TracingContext", "torch._guards"),
    ("backward_pass_autocast", "torch._functorch.config"),
    ("fallback_random", "torch._inductor.config"),
    ("detect_fake_mode", "torch._guards"),
    ("OpOverload", "torch._ops"),
    ("unset_fake_temporarily", "torch._subclasses.fake_tensor"),
    ("FakeTensor", "torch._subclasses.fake_tensor"),
    ("FakeTensorMode", "torch._subclasses.fake_tensor"),
    ("tree_leaves", "torch.utils._pytree"),
    ("tree_map_only", "torch.utils._pytree"),
    ("TorchDispatchMode", "torch.utils._python_dispatch"),
    ("_disable_current_modes", "torch.utils._python_dispatch"),
    ("GuardOnDataDependentSymNode", "torch.fx.experimental.symbolic_shapes"),
    ("disable_autocast_cache", "torch.fx.experimental.proxy_tensor"),
    ("FunctionalTensor", "torch._subclasses.functional_tensor"),
    ("_from_functional_tensor", "torch"),
    ("_op_dk", "torch.ops.aten.to.dtype"),
    ("_get_attr", "torch.fx.graph_module"),
    ("_get_current_graph_task_keep_graph", "torch._C._autograd"),
    ("_profiler_enabled", "torch._C._autograd"),
    ("_cdata", "torch.UntypedStorage"),
    ("_is_view", "torch.Tensor"),
    ("_backward_hooks", "torch.nn.Module"),
    ("_backward_pre_hooks", "torch.nn.Module"),
    ("_opname", "torch.ops.aten.clone.default"),
    ("_schema", "torch.ops.aten.clone.default"),
    ("_unsafe_preserve_version_counter", "torch.autograd"),
    ("queue_callback", "torch.autograd.Variable._execution_engine"),
    ("DispatchKey", "torch._C"),
    ("py_kernels", "torch.ops.aten.dropout.default"),
    ("_dispatch_cache", "torch.ops.aten.dropout.default"),
    ("_native_batch_norm_legit_functional", "torch.ops.aten"),
    ("_native_batch_norm_legit", "torch.ops.aten"),
)
NEEDED_FOR_INDUCTOR: tuple[Interface, ...] = (
    ("config", "torch._inductor"),
    ("compile_fx_inner", "torch._inductor.compile_fx"),
    ("AsyncCompile", "torch._inductor.async_compile"),
    ("cpp_pybinding", "torch._inductor.async_compile.AsyncCompile"),
    ("wait", "torch._inductor.async_compile.AsyncCompile"),
    ("source_code", "torch._inductor.output_code.CompiledFxGraph"),
    ("constants", "torch._inductor.output_code.CompiledFxGraph"),
    ("select_decomp_table", "torch._inductor.decomposition"),
    ("run_and_save_rng_state", "torch._prims.rng_prims"),
    ("run_with_rng_state", "torch._prims.rng_prims"),
    ("has_triton", "torch.utils._triton"),
)
NEEDED_FOR_RANKS: tuple[Interface, ...] = (
    ("_get_default_store", "torch.distributed.distributed_c10d"),
)


def missing(needed: Iterable[Interface]) -> list[str]:
    """What this PyTorch lacks, with where it was looked for."""
    return [f"{where}.{what}" for what, where in needed if not _has(where, what)]


def _has(where: str, what: str) -> bool:
    try:
        owner = _find(where)
    except (ImportError, AttributeError):
        return False
    return hasattr(owner, what) or what in getattr(owner, "__annotations__", ())


def _find(where: str) -> Any:
    """The module of that name, or what a module has under it."""
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError:
        parent, _, name = where.rpartition(".")
        if not parent:
            raise
        return getattr(_find(parent), name)


def require(needed: Iterable[Interface]) -> None:
    """Refuses a PyTorch that lacks something, and says all that it lacks."""
    names = missing(needed)
    if names:
        raise UnsupportedTorch(
            f"PyTorch {torch.__version__} lacks what Rekindle builds on: {', '.join(names)}; "
            "use a version of PyTorch that Rekindle knows, or a newer Rekindle"
        )


require(NEEDED)

from torch._dynamo import config as dynamo_config  # noqa: E402 (what is lacking is said first)
from torch._dynamo import reset as reset_dynamo  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._dynamo.exc import BackendCompilerFailed, TorchRuntimeError  # noqa: E402
from torch._dynamo.exc import TorchDynamoException, Unsupported, UserError  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch._dynamo import symbolic_convert  # noqa: E402
from torch._dynamo.guards import install_guard  # noqa: E402
from torch._dynamo.variables import TensorVariable  # noqa: E402
from torch._dynamo.variables.base import VariableTracker  # noqa: E402
from torch._dynamo.variables.ctx_manager import NullContextVariable  # noqa: E402
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable  # noqa: E402
from torch._functorch import config as functorch_config  # noqa: E402
from torch._functorch._aot_autograd.schemas import MemoryFormatMeta, PlainTensorMeta  # noqa: E402
from torch._guards import detect_fake_mode  # noqa: E402
from torch._inductor import config as inductor_config  # noqa: E402
from torch._ops import OpOverload  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from torch._subclasses.fake_tensor import unset_fake_temporarily as without_fakes  # noqa: E402
from torch._subclasses.functional_tensor import FunctionalTensor  # noqa: E402
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode  # noqa: E402
from torch.fx.graph_module import _get_attr as attribute_of  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._python_dispatch import _disable_current_modes as without_modes  # noqa: E402

METADATA = "_metadata"
"""Under this name a state dict carries the versions of the modules in it."""
BATCH_NORM: Any = torch.ops.aten._native_batch_norm_legit_functional.default
"""The batch norm of a captured forward: the new running statistics are results."""
BATCH_NORM_AGAIN: Any = torch.ops.aten._native_batch_norm_legit.no_stats
"""The same without running statistics."""


def has_captured_nothing(error: Exception) -> bool:
    """Whether a call that was to be one graph was left to eager."""
    return "found no compiled frames" in str(error)


def graph_breaks() -> dict[str, int]:
    """Why graphs have ended so far, and how often for each reason."""
    return dict(counters["graph_break"])


def ends_with_return(graph: torch.fx.GraphModule, function: str) -> bool:
    """Whether a graph that Dynamo has captured ends where a function of that name, or what is left
    of it behind a graph break, returns.
    """
    reason = getattr(graph, "compile_subgraph_reason", None)
    if reason is None or reason.graph_break or not reason.user_stack:
        return False
    name = reason.user_stack[-1].name
    return bool(name == function or name.startswith(f"torch_dynamo_resume_in_{function}_at_"))


def is_whole(graph: torch.fx.GraphModule, function: str) -> bool:
    """Whether a graph that Dynamo has captured is all of the function of that name."""
    reason = getattr(graph, "compile_subgraph_reason", None)
    return (
        reason is not None
        and not reason.graph_break
        and bool(reason.user_stack)
        and reason.user_stack[-1].name == function
    )


def fake_of(node: torch.fx.Node) -> Any:
    """What stands for a value of a graph that Dynamo has captured: a tensor without contents."""
    return node.meta.get("example_value")


def is_plain_fake(value: Any) -> TypeGuard[torch.Tensor]:
    """Whether a value of a graph that Dynamo has captured stands for a plain tensor of numbers."""
    kinds = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)
    return type(value) in kinds and value.layout is torch.strided


def is_written(fake: Any) -> bool:
    """Whether a graph that Dynamo has captured overwrites the tensor that this one stands for."""
    return isinstance(fake, torch.Tensor) and fake._version > 0


def storage_key(storage: torch.UntypedStorage) -> int:
    """Equal for storages that are the same block."""
    return int(storage._cdata)


def storage_sizes(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """The bytes of each storage that some tensors lie in."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return {storage_key(storage): storage.nbytes() for storage in storages}


def is_operation(target: object) -> TypeGuard[OpOverload]:
    """Whether an FX node calls an operation of PyTorch's."""
    return isinstance(target, OpOverload)


def name_of(target: object) -> str:
    """What an operation is called, without its namespace and overload; empty for anything else."""
    return str(target._opname) if is_operation(target) else ""


def schema_of(target: OpOverload) -> Any:
    """The arguments of an operation, with their names and defaults."""
    return target._schema


@contextmanager
def without_fakes_log() -> Iterator[None]:
    """What an operation says to tensors without contents is not logged: it is raised, too."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def number_of(symbol: Any) -> int | float | bool | None:
    """The number that a symbolic size is known to be; None if it depends on values."""
    number: int | float | bool | None = symbol.node.maybe_as_int()
    if number is None and not isinstance(symbol, torch.SymInt):
        expression = symbol.node.expr
        number = float(expression) if getattr(expression, "is_number", False) else None
    return number


def mark_boxed(call: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Tells AOTAutograd that a function takes one list, and empties it."""
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def is_fake(value: object) -> bool:
    """Whether it is a tensor without contents."""
    return isinstance(value, FakeTensor)


class _Any:
    """Equal to everything."""

    def __eq__(self, _other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def take_tangents_as_they_come() -> None:
    """The graph that is being compiled gets the gradients of what it gives as they are laid out.

    AOTAutograd has no way to know that while it traces. It takes them to be laid out like the
    values, and copies those that are not, after which sums may round differently from eager's.
    """
    context = torch._guards.TracingContext.try_get()
    whatever: Any = _Any()
    for tangent in getattr(context and context.fw_metadata, "subclass_tangent_meta", ()):
        if isinstance(tangent, PlainTensorMeta):
            tangent.memory_format = MemoryFormatMeta(size=whatever, stride=whatever)


def leave_out_missing_gradients(result: torch.Tensor) -> None:
    """The backward of the graph that gave a result gets None for each result for which no gradient
    has arrived, and not zeros.
    """
    node: Any = result.grad_fn
    node.set_materialize_grads(False)


@functools.cache
def frees_tangents() -> bool:
    """Whether the backward of a captured graph lets go of the gradients that it is handed when it
    has used them. Older versions hold them until it is over.
    """
    return "boxed_grads_call" in inspect.getsource(
        _find("torch._functorch._aot_autograd.runtime_wrappers")
    )


def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd knows a tensor as a view of another."""
    return bool(tensor._is_view())


def same_version(tensor: torch.Tensor) -> AbstractContextManager[None]:
    """A scope at whose end a tensor counts as not written since it began."""
    scope: AbstractContextManager[None] = _find("torch.autograd")._unsafe_preserve_version_counter(
        tensor
    )
    return scope


def keeps_graph() -> bool:
    """Whether the backward that runs now keeps its graph for another."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def is_profiled() -> bool:
    """Whether a profiler runs; there can be one at a time."""
    return bool(torch._C._autograd._profiler_enabled())


def has_backward_hook(module: torch.nn.Module) -> bool:
    """Whether a module has a hook with which Dynamo leaves a call to eager."""
    return bool(module._backward_hooks or module._backward_pre_hooks)


def when_backward_ends(call: Callable[[], None]) -> None:
    """Has a function called when the backward that runs now is over."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def default_store() -> Any:
    """Where the ranks of the default group met: what one sets, the others can wait for and get."""
    require(NEEDED_FOR_RANKS)
    return _find("torch.distributed.distributed_c10d")._get_default_store()


TRACED_APART = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
"""Under these keys PyTorch registers in Python how operations fall apart while they are traced."""
TRACED_ONLY = ("batch_norm", "one_hot", "tensor_split")
"""In the names of operations that keep their traced form, which computes the same: eager's updates
arguments that its schema does not name, or looks at values that are not there while it is traced.
"""


@contextmanager
def eager_dispatch(
    traced: Iterable[Any] = (), replaced: Mapping[Any, Callable[..., Any]] | None = None
) -> Iterator[None]:
    """While a step is traced in this scope, its operations fall apart as they do in eager.

    Tracing has forms of its own for some operations (dropout, interpolation, recurrent layers, …),
    which round differently. They are put away, so that PyTorch finds eager's; those in `traced`
    stay, and `replaced` has others in their place. And tracing leaves out draws that nobody reads,
    after which eager's generator stands elsewhere; it keeps them here.
    """
    kept, put_away = set(traced), list[tuple[Any, Any, Any]]()
    for operation in _operations():
        for key in TRACED_APART:
            known = operation.py_kernels.get(key)
            is_own = _is_traced_only(operation) or operation in kept
            form = (replaced or {}).get(operation, known if is_own else None)
            if form is not known:
                put_away.append((operation, key, known))
                _set_kernel(operation, key, form)
    try:
        with inductor_config.patch(fallback_random=True):
            yield
    finally:
        for operation, key, kernel in put_away:
            _set_kernel(operation, key, kernel)


@contextmanager
def eager_autocast_cache() -> Iterator[None]:
    """While a step is traced in this scope, autocast casts a parameter once, as in eager.

    Eager keeps the cast of a parameter until the outermost autocast ends, so gradients of one that
    is used several times are added in the lower precision. Tracing casts anew for each use, because
    what was cast before it began is unknown to it: here the casts of one trace are kept, and
    PyTorch says as in eager when they end.
    """
    cast, key = torch.ops.aten.to.dtype, torch._C.DispatchKey.CompositeImplicitAutograd
    tracing, known = _find("torch.fx.experimental.proxy_tensor"), cast.py_kernels.get(key)
    disable, clear = tracing.disable_autocast_cache, torch.clear_autocast_cache
    casts: dict[int, tuple[Any, Any]] = {}

    @contextmanager
    def begin_anew() -> Iterator[None]:
        casts.clear()
        try:
            yield
        finally:
            casts.clear()

    def clear_all() -> None:
        casts.clear()
        clear()

    def cast_once(tensor: Any, dtype: torch.dtype, *args: Any, **kwargs: Any) -> Any:
        plain = functools.partial(cast._op_dk, key) if known is None else known
        if not _is_kept_by_autocast(tensor, dtype):
            return plain(tensor, dtype, *args, **kwargs)
        if id(tensor) not in casts:
            casts[id(tensor)] = tensor, plain(tensor, dtype, *args, **kwargs)
        return casts[id(tensor)][1]

    tracing.disable_autocast_cache, torch.clear_autocast_cache = begin_anew, clear_all
    _set_kernel(cast, key, cast_once)
    try:
        yield
    finally:
        tracing.disable_autocast_cache, torch.clear_autocast_cache = disable, clear
        _set_kernel(cast, key, known)


def _is_kept_by_autocast(tensor: Any, dtype: torch.dtype) -> bool:
    """Whether a cast, in a trace, is one that autocast makes and eager's keeps."""
    if not isinstance(tensor, FunctionalTensor) or tensor.dtype != torch.float32:
        return False
    device = tensor.device.type
    torch.autocast_increment_nesting()
    is_inside = torch.autocast_decrement_nesting() > 0
    if not (
        is_inside
        # While autocast casts for an operation it is put out.
        and not torch.is_autocast_enabled(device)
        and torch.is_autocast_cache_enabled()
        and dtype == torch.get_autocast_dtype(device)
    ):
        return False
    # What stands for an input in a trace is no leaf; what it was made of is, as in eager.
    inner = torch._from_functional_tensor(tensor.elem)
    return bool(inner.requires_grad and inner.is_leaf and not inner._is_view())


def _set_kernel(operation: Any, key: Any, kernel: Callable[..., Any] | None) -> None:
    operation.py_kernels.pop(key, None)
    if kernel is not None:
        operation.py_kernels[key] = kernel
    operation._dispatch_cache.clear()


def _is_traced_only(operation: Any) -> bool:
    return any(part in operation._opname for part in TRACED_ONLY)


def _operations() -> Iterator[Any]:
    """Every operation of PyTorch's that has been looked at, in a fixed order."""
    for name in sorted(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            yield getattr(packet, overload)


@functools.cache
def inductor() -> types.SimpleNamespace:
    """What `inductor=True` needs, by name. It is loaded at the first call: that takes seconds."""
    require(NEEDED_FOR_INDUCTOR)
    found = {
        what: getattr(_find(where), what)
        for what, where in NEEDED_FOR_INDUCTOR
        if hasattr(_find(where), what)
    }
    return types.SimpleNamespace(**found)


@contextmanager
def compiling_kernels_by(maker: type) -> Iterator[None]:
    """In this scope the functions that Inductor generates have their kernels compiled by another
    than Inductor's own `AsyncCompile`.
    """
    place = _find("torch._inductor.async_compile")
    before, place.AsyncCompile = place.AsyncCompile, maker
    try:
        yield
    finally:
        place.AsyncCompile = before


# Dynamo turns a model's Python into graphs. What it answers to known functions is in a table, and
# so is what each bytecode does.


def is_to_be_whole() -> bool:
    """Whether what Dynamo captures at this moment must be one graph (`fullgraph=True`)."""
    translator = getattr(symbolic_convert.tls, "current_tx", None)
    return translator is not None and (translator.one_graph or translator.error_on_graph_break)


def handed_on(error: Exception) -> Exception:
    """The error in a form that Dynamo hands on while it captures, and does not wrap."""
    kind = type(error)
    names = {"__init__": Unsupported.__init__, "__module__": kind.__module__}
    made: Exception = type(kind.__name__, (kind, Unsupported), names)(str(error))
    return made


OWN = "torch"
"""The package whose own code must know that it is traced."""
QUESTIONS: tuple[Any, ...] = (
    torch.compiler.is_compiling,
    torch.compiler.is_dynamo_compiling,
    torch._utils.is_compiling,
)
JUMPS = tuple(number for name, number in dis.opmap.items() if "JUMP" in name and "_IF_" in name)
"""The bytecodes that branch."""

Decide = Callable[[Any, Any], Any]
Place = tuple[tuple[str, int | None], ...]
"""The lines of a model's Python that are being run, from the inside out."""


def _place(translator: Any) -> Place:
    found = []
    while translator is not None:
        found.append((translator.f_code.co_filename, translator.lineno))
        translator = translator.parent
    return tuple(found)


class CaptureFailed(BaseException):
    """A mistake in what Rekindle does while Dynamo captures. Dynamo takes any other exception for
    one of the model's, and ends the graph there.
    """


def _own(part: Callable[..., Any]) -> Callable[..., Any]:
    """A part of ours that Dynamo calls: what it raises and Dynamo does not know is our mistake."""

    def call(*args: Any) -> Any:
        try:
            return part(*args)
        except TorchDynamoException:
            raise
        except Exception as mistake:
            raise CaptureFailed(f"{part.__qualname__}: {mistake!r}") from mistake

    return call


@contextmanager
def answer_to_libraries(answer_at: Callable[[Place], bool]) -> Iterator[None]:
    """What Dynamo lets code outside of PyTorch know when it asks whether it is compiled, by the
    place where it asks.
    """
    handlers = TorchInGraphFunctionVariable._get_handlers()
    answered = _own(answer_at)
    known = {question: handlers[question] for question in QUESTIONS if question in handlers}

    def answering(original: Callable[..., Any]) -> Callable[..., Any]:
        def answer(variable: Any, translator: Any, *args: Any, **kwargs: Any) -> Any:
            asker = str(translator.f_globals.get("__name__", ""))
            if asker.partition(".")[0] == OWN:
                return original(variable, translator, *args, **kwargs)
            return VariableTracker.build(translator, answered(_place(translator)))

        return answer

    handlers.update({question: answering(original) for question, original in known.items()})
    try:
        yield
    finally:
        handlers.update(known)


@contextmanager
def decide_truths(decide: Decide) -> Iterator[None]:
    """Asks `decide` for a truth value wherever a tensor of one becomes a `bool`: `item()`, `in`."""
    methods, decided = getattr(TensorVariable, "tp_methods", {}), _own(decide)
    if "item" not in methods:
        yield  # An older Dynamo: such a graph ends here.
        return
    original = methods["item"]

    def item(variable: Any, translator: Any) -> Any:
        if variable.dtype is torch.bool:
            known = decided(translator, variable)
            if known is not variable:
                return known
        return original.handler(variable, translator)

    methods["item"] = type(original)(item)
    try:
        yield
    finally:
        methods["item"] = original


@contextmanager
def decide_branches(decide: Decide) -> Iterator[None]:
    """Asks `decide` for the value to branch on wherever it is a tensor."""
    tables = [kind.dispatch_table for kind in _kinds(symbolic_convert.InstructionTranslatorBase)]
    before = [{number: table[number] for number in JUMPS} for table in tables]
    decided = _own(decide)

    def deciding(original: Callable[..., Any]) -> Callable[..., Any]:
        def jump(translator: Any, instruction: Any) -> Any:
            if translator.stack and isinstance(translator.stack[-1], TensorVariable):
                translator.stack[-1] = decided(translator, translator.stack[-1])
            return original(translator, instruction)

        return jump

    for table, originals in zip(tables, before, strict=True):
        for number, original in originals.items():
            table[number] = deciding(original)
    try:
        yield
    finally:
        for table, originals in zip(tables, before, strict=True):
            for number, original in originals.items():
                table[number] = original


@contextmanager
def entering_contexts(entered: Callable[[Any], Any]) -> Iterator[None]:
    """Asks `entered` what is entered in place of the context of a `with`, both among Dynamo's
    variables.
    """
    kind: Any = symbolic_convert.InstructionTranslatorBase
    original, found = kind.setup_or_before_with, _own(entered)

    def enter(translator: Any, instruction: Any) -> Any:
        translator.stack[-1] = found(translator.stack[-1])
        return original(translator, instruction)

    kind.setup_or_before_with = enter
    try:
        yield
    finally:
        kind.setup_or_before_with = original


@contextmanager
def returning_from_call(refuse: Callable[[Any], str | None]) -> Iterator[None]:
    """Asks `refuse` before the function that is captured returns: what it says ends the graph."""
    table: Any = symbolic_convert.InstructionTranslator.dispatch_table
    numbers = [dis.opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST") if name in dis.opmap]
    before = {number: table[number] for number in numbers}
    asked = _own(refuse)

    def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
        def give_back(translator: Any, instruction: Any) -> Any:
            why = asked(translator)
            if why is not None:
                raise Unsupported(why)
            return original(translator, instruction)

        return give_back

    for number, original in before.items():
        table[number] = refusing(original)
    try:
        yield
    finally:
        for number, original in before.items():
            table[number] = original


def nothing_to_enter() -> Any:
    """A context that does nothing, among Dynamo's variables."""
    return NullContextVariable()


def context_variable_methods() -> dict[str, Any] | None:
    """What Dynamo does for the methods of a context variable; None where it does not know any."""
    kind = getattr(_find("torch._dynamo.variables"), "ContextVarVariable", None)
    found: dict[str, Any] | None = getattr(kind, "tp_methods", None)
    return found


@torch.compiler.substitute_in_graph(
    torch.xpu.is_current_stream_capturing, skip_signature_check=True
)
def _captures_no_stream() -> bool:
    """Libraries ask this beside the other questions, and Dynamo does not know the answer."""
    return False


def _kinds(kind: Any) -> list[Any]:
    """A class and all that are made from it."""
    return [kind, *(more for below in kind.__subclasses__() for more in _kinds(below))]


def branch_value(variable: Any) -> fx.Node | None:
    """The node of a truth value among Dynamo's variables."""
    node = variable.proxy.node
    example = node.meta.get("example_value")
    is_truth = isinstance(example, torch.Tensor) and example.numel() == 1
    return node if is_truth and not example.requires_grad else None


@dataclass
class GuardedInput:
    """An input of the call that is captured."""

    tensor: torch.Tensor
    source: Any

    def guard(self, holds: Callable[[torch.Tensor], bool]) -> None:
        """The graph serves only calls for whose input this holds."""

        def create(builder: Any, guard: Any) -> None:
            manager = builder.get_guard_manager(guard)
            manager.add_lambda_guard(holds, ["a branch goes the same way"], guard.user_stack)

        install_guard(self.source.make_guard(create))


def guard_value(placeholder: fx.Node) -> GuardedInput | None:
    """The tensor that an input is in this call; None if there is no telling."""
    argument = placeholder.meta.get("grapharg")
    source = getattr(argument, "source", None)
    tensor = getattr(argument, "example", None)
    if source is None or not isinstance(tensor, torch.Tensor):
        return None
    return GuardedInput(tensor, source)


def constant_in_dynamo(translator: Any, value: bool | str | None) -> Any:
    """A constant among Dynamo's variables."""
    return VariableTracker.build(translator, value)
