"""Locks and context variables do nothing to tensors, so they need not end a graph.

Dynamo knows neither: it ends a graph where a lock is taken or a context variable is set. Inside
`followed` a lock is not taken, since one thread captures; and what a context variable is set to is
remembered for the rest of the capture, until it is reset. Libraries take a lock to do something
once, and set such a variable around a call.

Limits: only for a call that is captured as one graph. A variable that is still set when the call
returns would have to be set in every later call as well: there the graph ends, as it does without
this file. A PyTorch that knows no context variables is left as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from rekindle.torch.interfaces import (
    constant_in_dynamo,
    context_variable_methods,
    entering_contexts,
    nothing_to_enter,
    returning_from_call,
)

LOCKS = (type(threading.Lock()), type(threading.RLock()))
Values = dict[int, list[Any]]
"""What each context variable is set to, the last at the end, by the variable's identity."""
REMEMBERED = "rekindle_context_variables"
"""Under this name what is being captured carries its `Values`: a capture that begins anew has
none.
"""


@contextmanager
def followed() -> Iterator[None]:
    """What is captured in this scope goes on where a lock is taken or a context variable is set."""
    with ExitStack() as scope:
        scope.enter_context(entering_contexts(_entered))
        methods = context_variable_methods()
        if methods is not None:
            for name, follow in (("get", _get), ("set", _set), ("reset", _reset)):
                scope.callback(methods.__setitem__, name, methods[name])
                methods[name] = _following(methods[name], follow)
            scope.enter_context(returning_from_call(_refuse_what_is_set))
        yield


def _entered(context: Any) -> Any:
    """What is entered in place of a context."""
    return nothing_to_enter() if isinstance(getattr(context, "value", None), LOCKS) else context


def _following(method: Any, follow: Callable[..., Any]) -> Any:
    def handler(variable: Any, translator: Any, args: Any, kwargs: Any) -> Any:
        values = _remembered(translator).setdefault(id(variable.cv_obj), [])
        found = follow(translator, values, args)
        return method.handler(variable, translator, args, kwargs) if found is None else found

    return type(method)(handler)


def _get(_translator: Any, values: list[Any], _args: Any) -> Any:
    return values[-1] if values else None


def _set(translator: Any, values: list[Any], args: Any) -> Any:
    values.append(args[0])
    return constant_in_dynamo(translator, f"{REMEMBERED} {len(values)}")


def _reset(translator: Any, values: list[Any], _args: Any) -> Any:
    if not values:
        return None
    values.pop()
    return constant_in_dynamo(translator, None)


def _remembered(translator: Any) -> Values:
    remembered: Values = translator.output.__dict__.setdefault(REMEMBERED, {})
    return remembered


def _refuse_what_is_set(translator: Any) -> str | None:
    """Why a call cannot be one graph."""
    is_set = any(_remembered(translator).values())
    return "a context variable is set and not reset" if is_set else None
