"""A plan → the two modules that run it.

In: a `Joint`, its `Lowered` graph and the steps of a plan. Out: a forward and a backward for
AOTAutograd.

The steps before the boundary become the forward, those after it the backward. Each run of a node is
a fresh copy of its FX node; a node that runs again in the backward is a recomputation, in the form
that `effects.again` gives. Views are emitted where they are read, from whatever copy of their
storage is live. What the backward reads and the forward made is saved, and nothing else. Results
are picked directly behind their producer, so that one that nobody wants dies at once.

What a plan moves is moved whole, by the value that its storage was made for; views of it are made
anew from what comes back. Tokens cross from the forward to the backward like values. Each hazard is
a `wait`: before the first read of what was fetched, and before the memory of what was offloaded is
given back.

Every value says in its `meta` which value of the joint graph it stands for. That is a claim:
`lower_back` compares it with what the modules do.
"""

from __future__ import annotations

import contextlib
import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from rekindle.errors import RekindleError
from rekindle.torch import effects, randomness, transfers
from rekindle.torch.interfaces import detect_fake_mode
from rekindle.torch.joint import Joint, tensors_of
from rekindle.torch.lower import Lowered, device_of, generator_state_bytes

Steps = Sequence[tuple[str, int]]
ORIGIN = "rekindle_origin"
"""Under this key a value's `meta` has the name of the value that it stands for."""
DROPPED_META = "saved_tensor_with_no_vc_check"
"""A mark by which AOTAutograd expects an order among what is saved. Our order is our own."""


def inject(joint: Joint, lowered: Lowered, steps: Steps) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Builds the forward and the backward of a plan. The outputs of the forward are the step's own,
    and then what is saved for the backward, which takes it before the tangents.
    """
    forward, backward = _Injection(joint, lowered, steps).run()
    return (
        fx.GraphModule(joint.module, forward, "Forward"),
        fx.GraphModule(joint.module, backward, "Backward"),
    )


class _Injection:
    """The state of a build: which copy of each value is live."""

    def __init__(self, joint: Joint, lowered: Lowered, steps: Steps) -> None:
        self.joint = joint
        self.lowered = lowered
        self.steps = list(steps)
        self.forward, self.backward = fx.Graph(), fx.Graph()
        self.graph = self.forward
        """The half under construction."""
        self.live: dict[fx.Node, fx.Node] = {}
        """The copy of each original value in the half under construction."""
        self.left: dict[fx.Node, fx.Node] = {}
        """What the forward has when it ends."""
        self.saved: dict[fx.Node, fx.Node] = {}
        """A value of the forward → the backward's placeholder for it; in the order of saving."""
        self.saved_objects: dict[fx.Node, fx.Node] = {}
        """Likewise, what is no tensor (who is in a group of processes). PyTorch wants it last."""
        self.lying_in: dict[int, set[fx.Node]] = {}
        """The original values that lie in each live storage and may be in `live` or `left`."""
        self.states: dict[fx.Node, fx.Node] = {}
        """The generator's state before each draw that is repeated, in the half under construction.
        """
        self.left_states: dict[fx.Node, fx.Node] = {}
        self.tokens: dict[int, fx.Node] = {}
        """The copy in the store of each storage, in the half under construction."""
        self.left_tokens: dict[int, fx.Node] = {}
        self.arriving: set[int] = set()
        """Storages that were fetched and that nobody has waited for."""
        self.maker: dict[int, fx.Node] = {}
        """The value that each storage that is moved was made for."""
        self.leaving: set[int] = set()
        """Storages that were offloaded and that are still in memory."""
        self.first_tangent: fx.Node
        """Where the backward's placeholders for what was saved end; the value may be freed."""
        self.ran: set[int] = set()
        runs = Counter(number for kind, number in steps if kind == "run")
        self.repeated = {number for number, count in runs.items() if count > 1}

    def run(self) -> tuple[fx.Graph, fx.Graph]:
        boundary = self.steps.index(("run", self.lowered.boundary))
        for node in self.joint.primals:
            self.emit_placeholder(node)
        self.emit(self.steps[:boundary])
        outputs = self.values(self.joint.forward_outputs)
        self.graph, self.left, self.live = self.backward, self.live, {}
        self.left_states, self.states = self.states, {}
        self.left_tokens, self.tokens = self.tokens, {}
        for node in self.joint.tangents:
            self.emit_placeholder(node)
        self.first_tangent = self.live[self.joint.tangents[0]]
        self.emit(self.steps[boundary + 1 :])
        gradients = self.values(self.joint.gradients)
        for storage in sorted(self.leaving | self.arriving):
            self.finish(storage)
        self.backward.output(gradients)
        self.forward.output([*outputs, *self.saved, *self.saved_objects])
        for graph in (self.forward, self.backward):
            _drop_unread(graph)
        return self.forward, self.backward

    def values(self, originals: list[Any]) -> list[Any]:
        return [self.value(v) if isinstance(v, fx.Node) else v for v in originals]

    def emit(self, steps: Steps) -> None:
        take = {
            "run": self.run_node,
            "free": self.free,
            "offload": self.offload,
            "fetch": self.fetch,
        }
        for kind, number in steps:
            take[kind](number)

    def free(self, storage: int) -> None:
        self.finish(storage)
        for original in self.lying_in.pop(storage, ()):
            self.live.pop(original, None)
            self.left.pop(original, None)

    def value(self, original: fx.Node) -> fx.Node:
        """The live copy of a value: made in this half, a view of such, or saved by the forward. It
        has arrived.
        """
        for storage in self.joint.held(original):
            if storage.index in self.arriving:
                self.arrive(storage.index)
        return self.copy(original)

    def copy(self, original: fx.Node) -> fx.Node:
        """The same, whether it has arrived or not."""
        if original in self.live:
            return self.live[original]
        if original.op == "get_attr" or (
            self.joint.is_view(original) and not self.is_result(original)
        ):
            return self.hold(original, self.graph.node_copy(original, self.value))
        if original not in self.left:
            raise RekindleError(
                f"the plan reads {original.name} where nothing holds it; please report this"
            )
        return self.hold(original, self.saved_for(self.left[original]))

    def is_result(self, node: fx.Node) -> bool:
        """Whether it picks a result of an operation that computes, as opposed to one of several
        views.
        """
        return node.target is operator.getitem and not self.joint.is_view(node.all_input_nodes[0])

    def hold(self, original: fx.Node, copy: fx.Node) -> fx.Node:
        self.live[original] = copy
        copy.meta[ORIGIN] = original.name
        for storage in self.joint.held(original):
            self.lying_in.setdefault(storage.index, set()).add(original)
        return copy

    def emit_placeholder(self, node: fx.Node) -> None:
        copy = self.graph.placeholder(node.name)
        copy.meta = dict(node.meta)
        self.hold(node, copy)

    def saved_for(self, value: fx.Node) -> fx.Node:
        """The backward's placeholder for a value that the forward saves. They stand before the
        tangents, and objects behind tensors.
        """
        saved = self.saved if tensors_of(value) else self.saved_objects
        if value not in saved:
            behind = self.first_tangent
            if saved is self.saved:
                behind = next(iter(self.saved_objects.values()), behind)
            with self.graph.inserting_before(behind):
                copy = self.graph.placeholder(f"saved_{value.name}")
            copy.meta = dict(value.meta)
            saved[value] = copy
        return saved[value]

    def run_node(self, number: int) -> None:
        node = self.lowered.nodes[number]
        assert node is not None, (
            "the boundary runs between the halves, and bytes that are held do not run"
        )
        target, args, results = node.target, effects.without_unread(node), None
        if number in self.ran and self.graph is self.backward:
            target, args, results = effects.again(node)
        args = fx.map_arg(args, self.value)
        kwargs = fx.map_arg(node.kwargs, self.value)
        call = self.emit_call(number, node, (target, *args), kwargs)
        self.ran.add(number)
        self.take_results(node, call, results)

    def emit_call(
        self, number: int, node: fx.Node, call: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> fx.Node:
        """Emits the operation; with its generator's state if it draws and runs more than once."""
        if node not in self.lowered.token_of or number not in self.repeated:
            return _described(self.graph.call_function(call[0], call[1:], kwargs), node)
        device = device_of(node)
        if number in self.ran:
            again = (device, self.state(node), *call)
            return _described(self.graph.call_function(randomness.replay, again, kwargs), node)
        pair = self.graph.call_function(randomness.draw, (device, *call), kwargs)
        pair.meta[ORIGIN] = node.name
        self.states[node] = self.pick(pair, 0)
        self.states[node].meta["val"] = self.fake_state(device)
        return _described(self.pick(pair, 1), node)

    def state(self, node: fx.Node) -> fx.Node:
        """The generator's state before the first run of a random node."""
        if node not in self.states:
            self.states[node] = self.saved_for(self.left_states[node])
        return self.states[node]

    def fake_state(self, device: torch.device) -> torch.Tensor:
        return self.fake(generator_state_bytes(device))

    def fake(self, size: int) -> torch.Tensor:
        """So many bytes without contents."""
        fake_mode = detect_fake_mode([tensors_of(node) for node in self.joint.primals])
        with fake_mode or contextlib.nullcontext():
            return torch.empty(size, dtype=torch.uint8)

    def offload(self, storage: int) -> None:
        made = self.made_in(storage)
        token = self.graph.call_function(transfers.offload, (self.value(made),))
        token.meta = {ORIGIN: made.name, "val": self.fake(0)}
        self.tokens[storage] = token
        self.leaving.add(storage)

    def fetch(self, storage: int) -> None:
        made = self.maker[storage]
        fetched = self.graph.call_function(transfers.fetch, (self.token(storage),))
        self.hold(made, _described(fetched, made))
        self.arriving.add(storage)

    def arrive(self, storage: int) -> None:
        """Waits for what was fetched."""
        self.arriving.remove(storage)
        made = self.maker[storage]
        here = self.graph.call_function(transfers.wait, (self.copy(made),))
        self.hold(made, _described(here, made))

    def finish(self, storage: int) -> None:
        """Waits for what is under way with a storage whose memory is given back."""
        if storage in self.leaving:
            self.leaving.remove(storage)
            value = self.value(self.maker[storage])
            last = self.graph.call_function(transfers.wait, (value, self.token(storage)))
            _described(last, self.maker[storage])
        elif storage in self.arriving:
            self.arrive(storage)

    def token(self, storage: int) -> fx.Node:
        """The copy in the store."""
        if storage not in self.tokens:
            self.tokens[storage] = self.saved_for(self.left_tokens[storage])
        return self.tokens[storage]

    def made_in(self, storage: int) -> fx.Node:
        """The one value that a live storage was made for."""
        lying = sorted(self.lying_in[storage])
        made = [v for v in lying if not self.joint.is_view(v) or self.is_result(v)]
        if len(made) != 1:
            raise RekindleError(
                f"the plan moves a storage in which {', '.join(v.name for v in lying)} lie, and "
                "not one of them has it for itself; please report this"
            )
        self.maker[storage] = made[0]
        return made[0]

    def pick(self, call: fx.Node, position: Any) -> fx.Node:
        return self.graph.call_function(operator.getitem, (call, position))

    def take_results(self, node: fx.Node, call: fx.Node, count: int | None) -> None:
        """Holds what the run has made, but for what an earlier run has made and is still live: that
        stays.
        """
        results = [user for user in node.users if user.target is operator.getitem]
        if count is not None:
            results = [user for user in results if user.args[1] < count]  # type: ignore[operator]
        live = {s for s in self.joint.made(node) if s.index in self.lying_in}
        for value in results or [node]:
            if not live.isdisjoint(self.joint.held(value)):
                continue
            copy = _described(self.pick(call, value.args[1]), value) if results else call
            self.hold(value, copy)


def _described(copy: fx.Node, node: fx.Node) -> fx.Node:
    copy.meta = {key: value for key, value in node.meta.items() if key != DROPPED_META}
    copy.meta[ORIGIN] = node.name
    return copy


def _drop_unread(graph: fx.Graph) -> None:
    """Takes out picked results that nobody reads."""
    for node in reversed(list(graph.nodes)):
        if node.target is operator.getitem and not node.users:
            graph.erase_node(node)
