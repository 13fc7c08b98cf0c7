"""The same draw again: the generator's state before a draw is a value, and a draw can be repeated
from it.

`draw` runs an operation and gives the state before it; `replay` runs it from that state and leaves
the generator where it was. They are called from the modules that `inject` builds. `same_draws` is
for what must not be noticed.
"""

from __future__ import annotations

from typing import Any

import torch

from rekindle.errors import UnsupportedOption


def draw(
    device: torch.device, operation: Any, /, *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, Any]:
    """The generator's state, and what the operation gives from it."""
    _refuse_capture(device)
    # The view makes the state known to whoever counts the storages that operations give.
    state = _state(device)
    return state.view(state.shape), operation(*args, **kwargs)


def replay(
    device: torch.device, state: torch.Tensor, operation: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """What the operation gave from `state`. The generator stays where it is."""
    _refuse_capture(device)
    now = _state(device)
    _set_state(device, state)
    try:
        return operation(*args, **kwargs)
    finally:
        _set_state(device, now)


def _refuse_capture(device: torch.device) -> None:
    """A CUDA graph would hold the state of the step in which it was captured, and repeat that."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise UnsupportedOption(
            "the plan draws random numbers again, from a state that is fetched in each step, and a "
            "CUDA graph cannot fetch it: capture the step without dropout, or with a budget in "
            "which no draw is repeated"
        )


def _state(device: torch.device) -> torch.Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_state(device: torch.device, state: torch.Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


class GeneratorStates:
    """The states of all generators, as they are when it is made."""

    def __init__(self) -> None:
        self.host = torch.get_rng_state()
        self.devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def put_back(self) -> None:
        """Sets all generators to these states."""
        torch.set_rng_state(self.host)
        if self.devices:
            torch.cuda.set_rng_state_all(self.devices)

    def are_unchanged(self) -> bool:
        """Whether nothing has been drawn since."""
        now = GeneratorStates()
        pairs = zip([self.host, *self.devices], [now.host, *now.devices], strict=True)
        return all(torch.equal(before, after) for before, after in pairs)


class same_draws:  # noqa: N801 (a context, named like one)
    """Leaves all generators as it found them."""

    def __enter__(self) -> None:
        self.states = GeneratorStates()

    def __exit__(self, *_: object) -> None:
        self.states.put_back()
