"""A joint graph → a graph to plan, node for node.

In: a `Joint`. Out: a `Lowered`: the graph, and which FX node each of its nodes is.

The order is the plain step's: what the forward outputs need, then a node for the moment between the
passes (`loss`), then the rest. That node may run once, reads every forward output, overwrites the
inputs that the step overwrites, and makes the tangents. So no backward node can be moved before it,
no input can be read after it was overwritten, and what is live when it runs is what the forward
saves.

Random nodes are chained: each reads a token of no bytes that the one before it wrote. They keep
their order, and so draw what the plain step draws. To draw again, the state of the generator before
the first draw must be kept; a plan counts the states of all draws for the whole step, and the
modules keep those of the draws that it repeats.

Invariant: the bytes of the graph's own order are what the two modules of the plain step need, to
the byte, but for states that are not saved after all.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

import torch
from torch import fx

from rekindle._native import Graph, Node
from rekindle.torch.effects import Effect, effect_of, passed_on, unread
from rekindle.torch.interfaces import frees_tangents
from rekindle.torch.joint import Joint, Storage, tensors_of

BOUNDARY = "loss"
"""The node between the passes: the module's outputs are there, and their gradients come back."""
GENERATOR_STATES = "generator states"
"""The bytes that a plan counts for drawing again."""


@dataclass
class Lowered:
    """The graph to plan, and its nodes' origins."""

    graph: Graph
    """Without times."""
    nodes: list[fx.Node | None]
    """The FX node of each graph node; None for the boundary and for bytes that are held outside."""
    boundary: int
    """The node between the passes."""
    token_of: dict[fx.Node, int] = field(default_factory=dict)
    """The storage that stands for the generator's state, for each random node."""
    state_bytes: int = 0
    """Counted for the states of all draws."""
    handed_on: Set[int] = frozenset()
    """Which of the values that the forward hands out nobody holds when its backward begins."""

    @property
    def index(self) -> dict[fx.Node, int]:
        """The graph node of each FX node."""
        return {node: number for number, node in enumerate(self.nodes) if node is not None}


def lower(
    joint: Joint,
    name: str = "step",
    held: dict[str, int] | None = None,
    handed_on: Set[int] = frozenset(),
) -> Lowered:
    """Lowers a joint graph. `held` names bytes that lie in memory all the time, such as the
    optimizer's state; `handed_on` are the positions, among the values that the forward hands out,
    of those that only graphs behind it take: they may be dropped, and made again.
    """
    keep_overwritten(joint)
    return _Lowering(joint, name, handed_on).run(held or {})


def keep_overwritten(joint: Joint) -> None:
    """Gives the backward its own copy of what it reads of an overwritten input: by then the input
    holds something else.
    """
    lost = {storage for source in joint.overwritten for storage in joint.held(source)}
    forward = forward_nodes(joint)
    copies: dict[fx.Node, fx.Node] = {}
    for user in [node for node in joint.computing() if node not in forward]:
        for value in read_by(user):
            if not lost.intersection(joint.held(value)):
                continue
            if value not in copies:
                copies[value] = _copy_behind(joint, value)
            user.replace_input_with(value, copies[value])
    joint.copies.extend(copies.values())


def _copy_behind(joint: Joint, value: fx.Node) -> fx.Node:
    (tensor,) = tensors_of(value)
    last_input = (joint.primals + joint.tangents)[-1]
    with joint.graph.inserting_after(last_input if value.op == "placeholder" else value):
        copy = joint.graph.call_function(torch.ops.aten.clone.default, (value,))
    copy.meta["val"] = tensor.clone()
    joint.adopt(copy)
    return copy


def read_by(node: fx.Node) -> list[fx.Node]:
    """The FX nodes whose values the node's results depend on."""
    ignored = unread(node)
    if not ignored:
        return list(node.all_input_nodes)
    found: dict[fx.Node, None] = {}
    kept = [value for position, value in enumerate(node.args) if position not in ignored]
    fx.map_arg((kept, node.kwargs), lambda value: found.setdefault(value))
    return list(found)


def forward_nodes(joint: Joint) -> set[fx.Node]:
    """What the forward outputs need, the copies of what is overwritten after it, and all that has
    an effect and waits for no tangent.
    """
    late: set[fx.Node] = set(joint.tangents)
    for node in joint.graph.nodes:
        if any(argument in late for argument in node.all_input_nodes):
            late.add(node)
    wanted = [value for value in joint.forward_outputs if isinstance(value, fx.Node)] + joint.copies
    for node in joint.computing():
        if node not in late and effect_of(node) is not Effect.PURE:
            wanted.append(node)
    found: set[fx.Node] = set()
    while wanted:
        node = wanted.pop()
        if node not in found:
            found.add(node)
            wanted.extend(node.all_input_nodes)
    return found


def generator_state_bytes(device: torch.device) -> int:
    """What the state of the device's generator takes where a step's memory is counted. A GPU's is a
    seed and an offset, which lie in the host's memory.
    """
    return torch.get_rng_state().nbytes if device.type == "cpu" else 0


class _Lowering:
    """The parts of the graph, as they grow."""

    def __init__(self, joint: Joint, name: str, handed_on: Set[int]) -> None:
        self.joint = joint
        self.name = name
        self.handed_on = handed_on
        self.storages = [(storage.bytes, "other") for storage in joint.storages]
        self.nodes: list[Node] = []
        self.origins: list[fx.Node | None] = []
        self.written: set[int] = set()
        self.token_of: dict[fx.Node, int] = {}
        self.last_token: dict[Effect, int] = {}
        drawing = [node for node in joint.computing() if effect_of(node) is Effect.RANDOM]
        self.state_bytes = sum(generator_state_bytes(device_of(node)) for node in drawing)

    def run(self, held: dict[str, int]) -> Lowered:
        self.add_inputs(held)
        forward = forward_nodes(self.joint)
        for node in self.joint.computing():
            if node in forward:
                self.add_node(node, "forward", "activation")
        self.keep_outputs()
        self.keep_passed_on()
        boundary = self.add_boundary()
        for node in self.joint.computing():
            if node not in forward:
                self.add_node(node, "backward", "gradient")
        return Lowered(
            self.build(),
            self.origins,
            boundary,
            self.token_of,
            self.state_bytes,
            self.handed_on,
        )

    def add(self, origin: fx.Node | None, node: Node) -> int:
        self.nodes.append(node)
        self.origins.append(origin)
        return len(self.nodes) - 1

    def new_storage(self, size: int, role: str) -> int:
        self.storages.append((size, role))
        return len(self.storages) - 1

    def add_inputs(self, held: dict[str, int]) -> None:
        for node in self.joint.graph.nodes:
            if node.op == "get_attr" and tensors_of(node):
                self.add_input(node, "constant")
            elif node in self.joint.primals:
                self.add_input(node, "parameter" if node in self.joint.parameters else "input")
        for what, size in held.items():
            self.add_held(what, size, "optimizer_state")
        if self.state_bytes:
            self.add_held(GENERATOR_STATES, self.state_bytes, "constant")

    def add_held(self, what: str, size: int, role: str) -> None:
        storage = self.new_storage(size, role)
        self.add(None, Node(what, "held", "input", reads=[], writes=[storage]))

    def add_input(self, node: fx.Node, role: str) -> None:
        writes = [s.index for s in self.joint.held(node) if s.index not in self.written]
        self.mark(writes, role)
        self.add(node, Node(node.name, node.op, "input", reads=[], writes=writes))

    def mark(self, storages: list[int], role: str) -> None:
        for storage in storages:
            self.storages[storage] = self.storages[storage][0], role
            self.written.add(storage)

    def add_node(self, node: fx.Node, phase: str, role: str) -> None:
        reads = _unique([s for value in read_by(node) for s in self.joint.held(value)])
        writes = [s.index for s in self.joint.made(node)]
        self.mark(writes, role)
        effect = effect_of(node)
        if effect is not Effect.PURE:
            self.chain(node, effect, reads, writes)
        made = Node(
            node.name, str(node.target), phase, reads=reads, writes=writes, effect=effect.value
        )
        self.add(node, made)

    def chain(self, node: fx.Node, effect: Effect, reads: list[int], writes: list[int]) -> None:
        """Makes the node read the token of the one before it of its kind, so that their order
        stays.
        """
        if effect in self.last_token:
            reads.append(self.last_token[effect])
        token = self.new_storage(0, "other")
        writes.append(token)
        self.last_token[effect] = token
        if effect is Effect.RANDOM:
            self.token_of[node] = token

    def keep_outputs(self) -> None:
        """What the forward hands out is in others' hands: it cannot be dropped and made again."""
        for value in kept_outputs(self.joint, self.handed_on):
            for storage in self.joint.held(value):
                self.keep(storage)

    def keep_passed_on(self) -> None:
        """Running statistics that a layer used twice hands on to its second use stay: that use
        reads them when it runs first, and not when it runs again, which a graph cannot say.
        """
        for node in self.joint.computing():
            for value in passed_on(node):
                for storage in self.joint.held(value):
                    self.keep(storage)

    def keep(self, storage: Storage) -> None:
        if self.storages[storage.index][1] == "activation":
            self.storages[storage.index] = storage.bytes, "constant"

    def add_boundary(self) -> int:
        outputs = [value for value in self.joint.forward_outputs if isinstance(value, fx.Node)]
        reads = _unique([s for value in outputs for s in self.joint.held(value)])
        updates = _unique([s for value in self.joint.overwritten for s in self.joint.held(value)])
        reads += [s for s in updates if s not in reads]
        tangents = _unique([s for value in self.joint.tangents for s in self.joint.held(value)])
        writes = [s for s in tangents if s not in self.written]
        self.mark(writes, "tangent")
        # It is made again by nobody: its node runs once.
        passing = {s.index for value in self.passing_tangents() for s in self.joint.held(value)}
        self.mark([s for s in writes if s in passing], "gradient")
        boundary = Node(
            BOUNDARY,
            BOUNDARY,
            "backward",
            reads=reads,
            writes=writes,
            updates=updates,
            effect=Effect.ONCE.value,
        )
        return self.add(None, boundary)

    def passing_tangents(self) -> list[fx.Node]:
        """The gradients that a graph behind hands to this one, and that nobody else holds: they are
        gone when they have been used. Those of the caller stay.
        """
        if not frees_tangents():
            return []
        first = len(self.joint.new_contents)
        about = list(self.joint.output.meta.get("desc", ()))[first : first + self.num_handed_out]
        passed = [about[at] for at in self.handed_on if at < len(about)]
        return [
            tangent
            for tangent in self.joint.tangents
            if getattr(tangent.meta.get("desc"), "output", None) in passed
        ]

    @property
    def num_handed_out(self) -> int:
        return len(handed_out(self.joint))

    def build(self) -> Graph:
        kept = kept_outputs(self.joint, self.handed_on)
        kept += [value for value in self.joint.gradients if isinstance(value, fx.Node)]
        once = [at for at, node in enumerate(self.nodes) if node.effect == Effect.ONCE.value]
        return Graph(
            self.name,
            storages=self.storages,
            nodes=self.nodes,
            outputs=_unique([s for value in kept for s in self.joint.held(value)]),
            targets=once,
            origin=f"PyTorch {torch.__version__}",
        )


def handed_out(joint: Joint) -> list[object]:
    """What the forward hands out, but for the new contents of inputs, which come first, are copied
    and dropped.

    A new content may be handed out as well, further behind: then it stays.
    """
    return list(joint.forward_outputs[len(joint.new_contents) :])


def kept_outputs(joint: Joint, handed_on: Set[int] = frozenset()) -> list[fx.Node]:
    """What the forward hands out, and others hold while the backward runs."""
    return [
        value
        for at, value in enumerate(handed_out(joint))
        if isinstance(value, fx.Node) and at not in handed_on
    ]


def device_of(node: fx.Node) -> torch.device:
    """Where the node's results lie."""
    for tensor in tensors_of(node):
        return tensor.device
    return torch.device("cpu")


def _unique(storages: list[Storage]) -> list[int]:
    return list(dict.fromkeys(storage.index for storage in storages))
