"""A plan → the two modules that run it.

In: a `Joint`, its `Lowered` graph and the steps of a plan. Out: a `Split`: a forward and a backward
for AOTAutograd, and what each of their values keeps in memory.

The steps before the boundary become the forward, those after it the backward. Each run of a node is
a fresh copy of its FX node; a node that runs again in the backward is a recomputation, in the form
that `effects.again` gives. Views are emitted where they are read, from whatever copy of their
storage is live. What the backward reads and the forward made is saved, and nothing else. Results
are picked directly behind their producer, so that one that nobody wants dies at once.

Invariant, checked after every build: what is saved is what the plan holds across the boundary.
"""

from __future__ import annotations

import contextlib
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode

from rekindle import effects, randomness
from rekindle.errors import RekindleError
from rekindle.joint import Joint, Storage, outputs_of, tensors_of
from rekindle.lower import Lowered, device_of, generator_state_bytes

Steps = Sequence[tuple[str, int]]
DROPPED_META = "saved_tensor_with_no_vc_check"
"""A mark by which AOTAutograd expects an order among what is saved. Our order is our own."""


@dataclass(frozen=True)
class Block:
    """One making of a storage; a recomputation makes another. Making 0 is what others own:
    parameters, inputs, tangents.
    """

    storage: int
    making: int
    bytes: int


@dataclass
class Half:
    """One of the two modules."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    blocks: dict[fx.Node, tuple[Block, ...]] = field(default_factory=dict)
    """What each value keeps in memory while it lives."""


@dataclass
class Split:
    """The two modules."""

    forward: Half
    backward: Half
    num_forward_outputs: int
    """The outputs of the forward that are the step's own. Those after them are saved for the
    backward.
    """

    @property
    def saved(self) -> list[Block]:
        """What the forward hands to the backward and nobody else owns."""
        values = outputs_of(self.forward.graph)[self.num_forward_outputs :]
        blocks = dict.fromkeys(block for value in values for block in self.forward.blocks[value])
        return [block for block in blocks if block.making > 0]

    @property
    def largest_saved(self) -> int | None:
        """Which output of the forward is the largest that is saved and nobody else owns; None if
        nothing is.
        """
        values = outputs_of(self.forward.graph)
        sizes = {
            position: sum(
                block.bytes for block in self.forward.blocks[values[position]] if block.making > 0
            )
            for position in range(self.num_forward_outputs, len(values))
        }
        largest = max(sizes, key=lambda position: sizes[position], default=None)
        return largest if largest is not None and sizes[largest] else None


def inject(joint: Joint, lowered: Lowered, steps: Steps) -> Split:
    """Builds the two modules of a plan and checks them against it."""
    split = _Injection(joint, lowered, steps).run()
    _check_saved(joint, lowered, steps, split)
    return split


def _check_saved(joint: Joint, lowered: Lowered, steps: Steps, split: Split) -> None:
    """What is saved must be what the plan holds when the boundary runs and its backward reads."""
    held: set[int] = set()
    for kind, number in steps:
        if (kind, number) == ("run", lowered.boundary):
            break
        if kind == "free":
            held.discard(number)
        else:
            node = lowered.nodes[number]
            assert node is not None
            held.update(storage.index for storage in joint.made(node))
    states = set(lowered.token_of.values())
    saved = {block.storage for block in split.saved} - states
    outputs = [v for v in [*joint.forward_outputs, *joint.gradients] if isinstance(v, fx.Node)]
    for_others = {storage.index for value in outputs for storage in joint.held(value)}
    if not saved <= held or not held - saved <= for_others:
        raise RekindleError(
            f"the forward saves storages {sorted(saved)}, the plan holds {sorted(held)}: "
            "the module does not run the plan; please report this"
        )


class _Injection:
    """The state of a build: which copy of each value is live."""

    def __init__(self, joint: Joint, lowered: Lowered, steps: Steps) -> None:
        self.joint = joint
        self.lowered = lowered
        self.steps = list(steps)
        self.forward = Half()
        self.backward = Half()
        self.half = self.forward
        self.live: dict[fx.Node, fx.Node] = {}
        """The copy of each original value in the half under construction."""
        self.left: dict[fx.Node, fx.Node] = {}
        """What the forward has when it ends."""
        self.saved: dict[fx.Node, fx.Node] = {}
        """A value of the forward → the backward's placeholder for it; in the order of saving."""
        self.lying_in: dict[int, set[fx.Node]] = {}
        """The original values that lie in each storage and may be in `live` or `left`."""
        self.block_of: dict[int, Block] = {}
        """The live making of each storage."""
        self.states: dict[fx.Node, fx.Node] = {}
        """The generator's state before each draw that is repeated, in the half under construction.
        """
        self.left_states: dict[fx.Node, fx.Node] = {}
        self.makings = 0
        self.ran: set[int] = set()
        runs = Counter(number for kind, number in steps if kind == "run")
        self.repeated = {number for number, count in runs.items() if count > 1}

    def run(self) -> Split:
        boundary = self.steps.index(("run", self.lowered.boundary))
        for node in self.joint.primals:
            self.emit_placeholder(node)
        self.emit(self.steps[:boundary])
        outputs = self.values(self.joint.forward_outputs)
        self.half, self.left, self.live = self.backward, self.live, {}
        self.left_states, self.states = self.states, {}
        for node in self.joint.tangents:
            self.emit_placeholder(node)
        self.emit(self.steps[boundary + 1 :])
        gradients = self.values(self.joint.gradients)
        self.backward.graph.output(gradients)
        self.forward.graph.output([*outputs, *self.saved])
        for half in (self.forward, self.backward):
            _drop_unread(half)
        return Split(self.forward, self.backward, len(outputs))

    def values(self, originals: list[Any]) -> list[Any]:
        return [self.value(v) if isinstance(v, fx.Node) else v for v in originals]

    def emit(self, steps: Steps) -> None:
        for kind, number in steps:
            if kind == "free":
                self.free(number)
            else:
                self.run_node(number)

    def free(self, storage: int) -> None:
        for original in self.lying_in.pop(storage, ()):
            self.live.pop(original, None)
            self.left.pop(original, None)
        self.block_of.pop(storage, None)

    def value(self, original: fx.Node) -> fx.Node:
        """The live copy of a value: made in this half, a view of such, or saved by the forward."""
        if original in self.live:
            return self.live[original]
        if original.op == "get_attr":
            return self.hold(original, self.half.graph.node_copy(original), self.outside(original))
        if self.joint.is_view(original) and not self.is_result(original):
            copy = self.half.graph.node_copy(original, self.value)
            return self.hold(original, copy, self.blocks_of(original))
        if original not in self.left:
            raise RekindleError(
                f"the plan reads {original.name} where nothing holds it; please report this"
            )
        return self.hold(original, self.fetch(self.left[original]), self.blocks_of(original))

    def is_result(self, node: fx.Node) -> bool:
        """Whether it picks a result of an operation that computes, as opposed to one of several
        views.
        """
        return node.target is operator.getitem and not self.joint.is_view(node.all_input_nodes[0])

    def hold(self, original: fx.Node, copy: fx.Node, blocks: tuple[Block, ...]) -> fx.Node:
        self.live[original] = copy
        self.half.blocks[copy] = blocks
        for block in blocks:
            self.lying_in.setdefault(block.storage, set()).add(original)
        return copy

    def blocks_of(self, original: fx.Node) -> tuple[Block, ...]:
        return tuple(self.block_of[storage.index] for storage in self.joint.held(original))

    def outside(self, original: fx.Node) -> tuple[Block, ...]:
        for storage in self.joint.held(original):
            self.block_of.setdefault(storage.index, Block(storage.index, 0, storage.bytes))
        return self.blocks_of(original)

    def emit_placeholder(self, node: fx.Node) -> None:
        copy = self.half.graph.placeholder(node.name)
        copy.meta = dict(node.meta)
        self.hold(node, copy, self.outside(node))

    def fetch(self, value: fx.Node) -> fx.Node:
        """The backward's placeholder for a value that the forward saves. They stand before the
        tangents.
        """
        if value not in self.saved:
            first_tangent = self.live[self.joint.tangents[0]]
            with self.half.graph.inserting_before(first_tangent):
                copy = self.half.graph.placeholder(f"saved_{value.name}")
            copy.meta = dict(value.meta)
            self.saved[value] = copy
        return self.saved[value]

    def run_node(self, number: int) -> None:
        node = self.lowered.nodes[number]
        assert node is not None, (
            "the boundary runs between the halves, and bytes that are held do not run"
        )
        target, args, results = node.target, effects.without_unread(node), None
        if number in self.ran and self.half is self.backward:
            target, args, results = effects.again(node)
        args = fx.map_arg(args, self.value)
        kwargs = fx.map_arg(node.kwargs, self.value)
        call = self.emit_call(number, (target, *args), kwargs)
        self.ran.add(number)
        self.take_results(node, call, results)

    def emit_call(self, number: int, call: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        """Emits the operation; with the state of its generator if it draws and runs more than once."""
        node = self.lowered.nodes[number]
        assert node is not None
        graph = self.half.graph
        if node not in self.lowered.token_of or number not in self.repeated:
            return _described(graph.call_function(call[0], call[1:], kwargs), node)
        device = device_of(node)
        if number in self.ran:
            replay = graph.call_function(
                randomness.replay, (device, self.state(node), *call), kwargs
            )
            return _described(replay, node)
        pair = graph.call_function(randomness.draw, (device, *call), kwargs)
        self.states[node] = self.pick(pair, 0, self.fake_state(device))
        self.half.blocks[self.states[node]] = (
            self.new_block(self.lowered.token_of[node], _bytes(self.states[node])),
        )
        self.half.blocks[pair] = self.half.blocks[self.states[node]]
        return self.pick(pair, 1, node.meta.get("val"))

    def state(self, node: fx.Node) -> fx.Node:
        """The generator's state before the first run of a random node."""
        if node not in self.states:
            value = self.left_states[node]
            self.states[node] = self.fetch(value)
            self.half.blocks[self.states[node]] = self.forward.blocks[value]
        return self.states[node]

    def fake_state(self, device: torch.device) -> torch.Tensor:
        fake_mode = detect_fake_mode([tensors_of(node) for node in self.joint.primals])
        with fake_mode or contextlib.nullcontext():
            return torch.empty(generator_state_bytes(device), dtype=torch.uint8)

    def pick(self, call: fx.Node, position: Any, value: Any) -> fx.Node:
        picked = self.half.graph.call_function(operator.getitem, (call, position))
        picked.meta["val"] = value
        return picked

    def new_block(self, storage: int, size: int) -> Block:
        self.makings += 1
        return Block(storage, self.makings, size)

    def take_results(self, node: fx.Node, call: fx.Node, count: int | None) -> None:
        """Holds what the run has made, but for what an earlier run has made and is still live: that
        stays.
        """
        results = [user for user in node.users if user.target is operator.getitem]
        if count is not None:
            results = [user for user in results if user.args[1] < count]  # type: ignore[operator]
        values = results or [node]
        made = {
            storage
            for storage in self.joint.made(node)
            if _lies_in(self.joint, values, storage) or count is None
        }
        blocks = {
            storage.index: self.new_block(storage.index, storage.bytes) for storage in sorted(made)
        }
        self.half.blocks[call] = tuple(blocks.values())
        fresh = {index for index in blocks if index not in self.block_of}
        self.block_of.update((index, blocks[index]) for index in fresh)
        for value in values:
            storages = {storage.index for storage in self.joint.held(value)}
            if not storages <= fresh:
                continue
            copy = _described(self.pick(call, value.args[1], None), value) if results else call
            self.hold(value, copy, self.blocks_of(value) if results else self.half.blocks[call])


def _lies_in(joint: Joint, values: list[fx.Node], storage: Storage) -> bool:
    return any(storage in joint.held(value) for value in values)


def _described(copy: fx.Node, node: fx.Node) -> fx.Node:
    copy.meta = {key: value for key, value in node.meta.items() if key != DROPPED_META}
    return copy


def _bytes(node: fx.Node) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors_of(node))


def _drop_unread(half: Half) -> None:
    """Takes out picked results that nobody reads."""
    for node in reversed(list(half.graph.nodes)):
        if node.target is operator.getitem and not node.users:
            half.graph.erase_node(node)
            half.blocks.pop(node)
